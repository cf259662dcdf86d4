"""``laya-apple artifacts build | list | verify | warm``: the Neural Engine artifacts of this machine.

``transfer`` adds the actions that move artifacts between machines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laya_apple.errors import ArtifactError, LayaAppleError, UnsupportedShapeError

if TYPE_CHECKING:
    from laya_apple.checkpoint import Checkpoint
    from laya_apple.platform import Platform


def add_parser(subparsers: Any) -> None:
    """Add the command and its actions."""
    from laya_apple.cli import transfer

    parser = subparsers.add_parser("artifacts", help="build and check the Neural Engine artifacts")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = add_action(actions, "build", _build, "convert, compile and validate here, then register")
    build.add_argument("--force", action="store_true", help="build again even if a valid one is registered")
    build.add_argument(
        "--goldens", type=Path, metavar="FILE", help="the golden file to pass (default: shipped)"
    )
    build.add_argument(
        "--layer-norm",
        choices=("decomposed", "op"),
        default="decomposed",
        help="spelling of LayerNorm in the graph; the one-op spelling is for checks on a Mac",
    )
    listing = actions.add_parser("list", help="what is registered, and what was rejected")
    listing.add_argument("--json", action="store_true", help="one JSON document on standard output")
    listing.set_defaults(run=_list)
    add_action(actions, "verify", _verify, "run every check, load each bucket and probe where it runs")
    add_action(
        actions, "warm", _warm, "load each registered bucket and predict once, so that the next load is fast"
    )
    transfer.add_actions(actions)


def add_action(
    actions: Any, name: str, run: Any, text: str, *, buckets: bool = True
) -> argparse.ArgumentParser:
    """An action on one model; with ``buckets`` it takes ``--bucket`` too."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    parser.add_argument(
        "--model", required=True, help="a registered name, its repository, or a checkpoint directory"
    )
    if buckets:
        parser.add_argument(
            "--bucket",
            type=int,
            action="append",
            metavar="TOKENS",
            help="a compiled length; repeat for more (default: all that the model offers)",
        )
    parser.add_argument("--offline", action="store_true", help="nothing goes to the network")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(run=run)
    return parser


def open_buckets(args: argparse.Namespace) -> tuple[Checkpoint, tuple[int, ...], Platform]:
    """The checkpoint, the wanted buckets (all that are offered if none is named) and the platform.

    Raises BackendUnavailableError (no Core ML here), UnsupportedShapeError (a bucket that is not offered) and
    what ``open_checkpoint`` raises.
    """
    from laya_apple.artifacts.runtime import require_coremltools
    from laya_apple.checkpoint import open_checkpoint
    from laya_apple.platform import current_platform

    platform = current_platform()
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # coremltools' progress bars, read when tqdm is imported
    require_coremltools(platform)
    checkpoint = open_checkpoint(args.model, local_files_only=args.offline, platform=platform)
    offered = checkpoint.spec.ane_buckets
    wanted = tuple(sorted(set(getattr(args, "bucket", None) or offered)))
    for bucket in wanted:
        if bucket not in offered:
            raise UnsupportedShapeError(
                f"{checkpoint.spec.name} offers the lengths {', '.join(map(str, offered))}, not {bucket}"
            )
    label(platform)
    return checkpoint, wanted, platform


def label(platform: Platform) -> None:
    """Say so when the platform is a stand-in."""
    if platform.virtual:
        say(f"synthetic: {platform.soc}, not a real Mac; its artifacts are refused by one")


def _build(args: argparse.Namespace) -> int:
    from laya_apple.artifacts.build import build_artifact

    checkpoint, buckets, platform = open_buckets(args)
    facts = []
    for bucket in buckets:
        start = time.perf_counter()
        try:
            result = build_artifact(
                checkpoint,
                bucket,
                goldens=args.goldens,
                force=args.force,
                layer_norm=args.layer_norm,
                platform=platform,
                progress=say,
            )
        except LayaAppleError as error:  # reraise: as a line and exit code 1, after the other buckets
            facts.append({"bucket": bucket, **failure(error)})
            continue
        took_s = time.perf_counter() - start
        facts.append(
            {
                "bucket": bucket,
                "ok": True,
                "built": result.built,
                "path": str(result.path),
                "artifact_sha256": result.manifest.artifact_sha256,
                "seconds": round(took_s, 3),
            }
        )
        done = "built" if result.built else "found"
        say(f"{result.model} L{bucket}: {done} in {took_s:.1f} s, {result.path}")
    return finish(args, "build", checkpoint, platform, facts)


def _verify(args: argparse.Namespace) -> int:
    return _load_each(args, "verify", full=True)


def _warm(args: argparse.Namespace) -> int:
    return _load_each(args, "warm", full=False)


def _load_each(args: argparse.Namespace, action: str, *, full: bool) -> int:
    from laya_apple.artifacts.bucket import BucketModel
    from laya_apple.artifacts.features import HostSide
    from laya_apple.artifacts.locations import Locations
    from laya_apple.artifacts.probe import run_probe
    from laya_apple.artifacts.store import load_verified

    checkpoint, buckets, platform = open_buckets(args)
    spec = checkpoint.spec
    host = HostSide(checkpoint)
    facts: list[dict[str, Any]] = []
    for bucket in buckets:
        start = time.perf_counter()
        try:
            model, manifest = load_verified(spec, bucket, full=full, platform=platform)
            features = host.probe_features(bucket)
            BucketModel(model, manifest, host).predict(features)
            fact: dict[str, Any] = {"bucket": bucket, "ok": True, "artifact_sha256": manifest.artifact_sha256}
            line = "verified" if full else "warm"
            if full:
                probe = run_probe(model, Locations.of(platform).model(spec, bucket), features)
                fact |= {"ok": probe.verdict == "PLACED", "probe": probe.to_dict()}
                line = f"{line}, {probe.verdict}: {probe.why()}"
        except ArtifactError as error:  # reraise: as a line and exit code 1, after the other buckets
            facts.append({"bucket": bucket, **failure(error)})
            continue
        took_s = time.perf_counter() - start
        facts.append({**fact, "seconds": round(took_s, 3)})
        say(f"{spec.name} L{bucket}: {line} ({took_s:.2f} s)")
    return finish(args, action, checkpoint, platform, facts)


def _list(args: argparse.Namespace) -> int:
    from laya_apple.artifacts.locations import Locations
    from laya_apple.artifacts.manifest import ManifestError, read_manifest
    from laya_apple.platform import current_platform

    platform = current_platform()
    locations = Locations.of(platform)
    entries: list[dict[str, Any]] = []
    patterns = (("*/*/bc1s-masked-L*-B1/manifest.json", True), ("rejected/*/manifest.json", False))
    for pattern, registered in patterns:
        for path in sorted(locations.artifacts.glob(pattern)):
            entry: dict[str, Any] = {"path": str(path.parent), "registered": registered}
            try:
                manifest = read_manifest(path)
            except (ManifestError, OSError) as error:  # reraise: as the entry's state
                entries.append({**entry, "error": str(error)})
                continue
            entries.append(
                {
                    **entry,
                    "model": manifest.section("source")["model"],
                    "revision": manifest.section("source")["revision"],
                    "bucket": manifest.length,
                    "status": manifest.status,
                    "rejection": manifest.data.get("rejection"),
                    "created_at": manifest.data["created_at"],
                    "platform": dict(manifest.section("platform")),
                    "synthetic": manifest.synthetic,
                    "artifact_sha256": manifest.artifact_sha256,
                }
            )
    if args.json:
        print(json.dumps({"synthetic": platform.virtual, "artifacts": entries}, indent=2, ensure_ascii=False))
        return 0
    label(platform)
    for entry in entries:
        print(_line(entry))
    if not entries:
        print(f"no artifacts below {locations.artifacts}")
    return 0


def _line(entry: dict[str, Any]) -> str:
    if "error" in entry:
        return f"unreadable  {entry['path']}: {entry['error']}"
    built_on = entry["platform"]
    line = (
        f"{entry['status']:9}  {entry['model']} L{entry['bucket']}  {entry['artifact_sha256'][:12]}  "
        f"{built_on['soc']}, macOS {built_on['macos']}, coremltools {built_on['coremltools']}  "
        f"{entry['created_at']}"
    )
    if entry["synthetic"]:
        line += "  synthetic"
    return f"{line}\n           {entry['rejection']}" if entry["rejection"] else line


def failure(error: LayaAppleError) -> dict[str, Any]:
    """Print the error's line; returns its facts for the JSON document."""
    print(f"laya-apple: {error}", file=sys.stderr)
    return {"ok": False, "error": type(error).__name__, "message": str(error)}


def finish(
    args: argparse.Namespace,
    action: str,
    checkpoint: Checkpoint,
    platform: Platform,
    facts: list[dict[str, Any]],
    **more: Any,
) -> int:
    """Print the JSON document if asked for; returns the exit code: 1 when anything in ``facts`` failed."""
    if args.json:
        document = {
            "action": action,
            "model": checkpoint.spec.name,
            "revision": checkpoint.spec.revision,
            "synthetic": platform.virtual,
            **more,
            "buckets": facts,
        }
        print(json.dumps(document, indent=2, ensure_ascii=False))
    return 0 if all(fact["ok"] for fact in facts) else 1


def say(line: str) -> None:
    """One line on standard error."""
    print(line, file=sys.stderr)
