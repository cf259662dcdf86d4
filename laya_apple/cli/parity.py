"""``laya-apple parity``: hold a model on one device against the goldens made by upstream."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from laya_apple.platform import current_platform


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("parity", help="compare a model on one device with upstream's answers")
    parser.add_argument("--model", required=True, help="a model's name, its repository or a directory")
    parser.add_argument("--device", choices=("gpu", "ane", "cpu"), required=True)
    parser.add_argument(
        "--dtype",
        choices=("float16", "float32"),
        default="float16",
        help="default float16, the ane's only one",
    )
    parser.add_argument("--goldens", type=Path, metavar="FILE", help="default: those shipped for the model")
    parser.add_argument("--offline", action="store_true", help="never open a connection")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: the gate passed; 1: it did not. Raises what loading raises, and LayaAppleError without goldens."""
    # Loaded here, so that the other commands start without NumPy.
    from laya_apple.artifacts.build import goldens_path
    from laya_apple.artifacts.graph import MAX_OPTIONS
    from laya_apple.checkpoint import open_checkpoint
    from laya_apple.errors import UnsupportedShapeError
    from laya_apple.execution.loading import LoadRequest, load_backend
    from laya_apple.parity.gate import run_gate
    from laya_apple.parity.goldens import load_goldens
    from laya_apple.prompt.tokenizer import Tokenizer
    from laya_apple.registry import resolve

    platform = current_platform()
    spec = resolve(args.model)
    on_ane = args.device == "ane"
    if on_ane and args.dtype != "float16":
        raise UnsupportedShapeError(f"--device ane runs in float16 only, not {args.dtype}; leave --dtype out")
    goldens = load_goldens(args.goldens or goldens_path(spec), weights_sha256=spec.weights_sha256)
    checkpoint = open_checkpoint(spec, local_files_only=args.offline, platform=platform)
    buckets = spec.ane_buckets if on_ane else ()
    request = LoadRequest(args.device, checkpoint, args.dtype, 16, strict=True, buckets=buckets)
    backend = load_backend(request, platform)
    try:
        report = run_gate(
            backend.forward,
            Tokenizer.from_dir(checkpoint.path),
            checkpoint.config,
            goldens,
            dtype=args.dtype,
            weights_sha256=spec.weights_sha256,
            max_length=max(buckets) if on_ane else None,
            max_options=MAX_OPTIONS if on_ane else None,
        )
    finally:
        backend.close()
    if platform.virtual:
        print(f"synthetic: {platform.soc}, not a real Mac", file=sys.stderr)
    facts = {"model": spec.name, "device": args.device, "synthetic": platform.virtual} | report.to_dict()
    if args.json:
        print(json.dumps(facts, ensure_ascii=False))
    else:
        print(f"{report.summary}, on {args.device}")
    return 0 if report.passed else 1
