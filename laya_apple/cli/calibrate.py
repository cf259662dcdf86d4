"""``laya-apple calibrate``: measure this Mac, so that auto may use the Neural Engine on it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from laya_apple.errors import LayaAppleError


def add_parser(subparsers: Any) -> None:
    """Add the subcommand; loads nothing heavy."""
    text = "measure GPU and Neural Engine on this Mac, so that device='auto' may use both"
    parser = subparsers.add_parser(
        "calibrate",
        help=text,
        description=f"{text}. Every bucket the model offers must be built (`laya-apple artifacts build`). "
        "Leave the machine alone while it runs.",
    )
    parser.add_argument(
        "--model", required=True, help="a registered name, its repository, or a checkpoint directory"
    )
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16", help="of MLX")
    parser.add_argument("--offline", action="store_true", help="nothing goes to the network")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 with one line when something could not be measured."""
    from laya_apple import registry
    from laya_apple.execution.calibration import calibrate
    from laya_apple.platform import current_platform

    platform = current_platform()
    spec = registry.resolve(args.model)
    if platform.virtual:
        _say(f"synthetic: {platform.soc}, not a real Mac; its profile is refused by one")
    try:
        found = calibrate(
            spec, platform=platform, dtype=args.dtype, local_files_only=args.offline, progress=_say
        )
    except LayaAppleError as error:  # reraise: as one line and exit code 1
        print(f"laya-apple: {error}", file=sys.stderr)
        return 1
    if args.json:
        document = {
            "model": found.model,
            "revision": spec.revision,
            "synthetic": platform.virtual,
            "profile": str(found.path),
            "auto_buckets": list(found.auto_buckets),
            **found.table.to_dict(),
        }
        print(json.dumps(document, indent=2))
        return 0
    chosen = ", ".join(f"L{bucket}" for bucket in found.auto_buckets)
    print(
        f"{found.model}: auto uses the Neural Engine for {chosen}"
        if chosen
        else f"{found.model}: the Neural Engine is no faster than the GPU here; auto uses MLX only"
    )
    print(f"wrote {found.path}")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
