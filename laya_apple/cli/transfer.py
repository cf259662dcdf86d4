"""``laya-apple artifacts export | import | fetch | prune | index``: artifacts between machines."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laya_apple.cli.artifacts import add_action, failure, finish, label, open_buckets, say
from laya_apple.errors import ArtifactError, LayaAppleError

if TYPE_CHECKING:
    from laya_apple.artifacts.transfer import ImportResult


def add_actions(actions: Any) -> None:
    """Add the five actions to ``laya-apple artifacts``."""
    export = add_action(actions, "export", _export, "write registered artifacts that verify to archives")
    export.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where to (default: here)")

    text = "check archives on this machine and register what passes"
    importing = add_action(actions, "import", _import, text, buckets=False)
    importing.add_argument("archives", type=Path, nargs="+", metavar="ARCHIVE", help="an exported .tar.gz")
    _add_checks(importing)

    text = "fetch prebuilt artifacts for this platform from a repository, check and register them"
    fetch = add_action(actions, "fetch", _fetch, text)
    fetch.add_argument(
        "--repo",
        metavar="REPO",
        help="owner/name on the Hugging Face hub, or a directory (default: LAYA_APPLE_PREBUILT_REPO)",
    )
    fetch.add_argument("--revision", default="main", help="branch, tag or commit (default: %(default)s)")
    _add_checks(fetch)

    text = "remove what killed imports and builds left in the cache; artifacts stay"
    prune = actions.add_parser("prune", help=text, description=text)
    prune.add_argument("--json", action="store_true", help="one JSON document on standard output")
    prune.set_defaults(run=_prune)

    text = "write index.json for a directory of archives, to publish it"
    index = actions.add_parser("index", help=text, description=text)
    index.add_argument("directory", type=Path, metavar="DIR")
    index.add_argument("--json", action="store_true", help="one JSON document on standard output")
    index.set_defaults(run=_index)


def _add_checks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace a registered artifact")
    parser.add_argument(
        "--goldens", type=Path, metavar="FILE", help="the golden file to pass (default: shipped)"
    )


def _export(args: argparse.Namespace) -> int:
    from laya_apple.artifacts.transfer import export_artifact

    checkpoint, buckets, platform = open_buckets(args)
    facts = []
    for bucket in buckets:
        try:
            result = export_artifact(
                checkpoint.spec, bucket, args.out, platform=platform, progress=_progress()
            )
        except ArtifactError as error:  # reraise: as a line and exit code 1, after the other buckets
            facts.append({"bucket": bucket, **failure(error)})
            continue
        facts.append(
            {
                "bucket": bucket,
                "ok": True,
                "archive": str(result.archive),
                "archive_sha256": result.archive_sha256,
                "artifact_sha256": result.manifest.artifact_sha256,
            }
        )
        say(f"{checkpoint.spec.name} L{bucket}: {result.archive}")
    return finish(args, "export", checkpoint, platform, facts)


def _import(args: argparse.Namespace) -> int:
    from laya_apple.artifacts.transfer import import_archive

    checkpoint, _, platform = open_buckets(args)
    facts = []
    for archive in args.archives:
        start = time.perf_counter()
        try:
            result = import_archive(
                checkpoint,
                archive,
                force=args.force,
                goldens=args.goldens,
                platform=platform,
                progress=_progress(),
            )
        except LayaAppleError as error:  # reraise: as a line and exit code 1, after the other archives
            facts.append({"archive": str(archive), **failure(error)})
            continue
        facts.append({"archive": str(archive), **_registered(result, start)})
    return finish(args, "import", checkpoint, platform, facts)


def _fetch(args: argparse.Namespace) -> int:
    import functools

    from laya_apple.artifacts.fetch import fetch_artifact, open_repository, repository

    source = repository(args.repo, revision=args.revision, local_files_only=args.offline)
    checkpoint, buckets, platform = open_buckets(args)
    if not sys.stderr.isatty():
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
    # Read once, and only when a bucket is to be fetched.
    opened = functools.cache(lambda: open_repository(source))
    facts = []
    for bucket in buckets:
        start = time.perf_counter()
        try:
            result = fetch_artifact(
                checkpoint,
                bucket,
                opened,
                force=args.force,
                goldens=args.goldens,
                platform=platform,
                progress=_progress(),
            )
        except LayaAppleError as error:  # reraise: as a line and exit code 1, after the other buckets
            facts.append({"bucket": bucket, **failure(error)})
            continue
        fact = _registered(result.imported, start)
        if result.entry is not None:
            fact["archive"] = result.entry.path
            fact["commit"] = opened().commit
        facts.append(fact)
    return finish(args, "fetch", checkpoint, platform, facts, repository=source.where)


def _registered(result: ImportResult, start: float) -> dict[str, Any]:
    took_s = time.perf_counter() - start
    verb = "found" if not result.imported else "replaced" if result.replaced else "registered"
    line = f"{result.model} L{result.bucket}: {verb} in {took_s:.1f} s, {result.path}"
    if result.probe is not None:
        line += f", {result.probe['verdict']} (ratio {result.probe['ratio']:.2f})"
    say(line)
    return {
        "bucket": result.bucket,
        "ok": True,
        "imported": result.imported,
        "replaced": result.replaced,
        "path": str(result.path),
        "artifact_sha256": result.manifest.artifact_sha256,
        "probe": result.probe,
        "recovered": list(result.notes),
        "seconds": round(took_s, 3),
    }


def _prune(args: argparse.Namespace) -> int:
    from laya_apple.artifacts.locations import Locations
    from laya_apple.artifacts.prune import prune
    from laya_apple.platform import current_platform

    platform = current_platform()
    locations = Locations.of(platform)
    try:
        report = prune(locations)
    except OSError as error:  # reraise: as a line and exit code 1
        raise ArtifactError(f"{locations.root} could not be pruned: {error}") from error
    if args.json:
        document = {
            "action": "prune",
            "synthetic": platform.virtual,
            "removed": [str(path) for path in report.removed],
            "restored": [str(path) for path in report.restored],
            "kept": [{"path": str(path), "reason": reason} for path, reason in report.kept.items()],
            "freed_bytes": report.freed_bytes,
        }
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return 0
    label(platform)
    for path in report.removed:
        print(f"removed   {path}")
    for path in report.restored:
        print(f"put back  {path}")
    for path, reason in report.kept.items():
        print(f"kept      {path}: {reason}")
    print(f"{len(report.removed)} removed, {report.freed_bytes / 1e6:.1f} MB freed below {locations.root}")
    return 0


def _index(args: argparse.Namespace) -> int:
    from laya_apple.artifacts.index import INDEX_FILE, make_index

    entries = make_index(args.directory, progress=_progress())
    path = args.directory / INDEX_FILE
    if args.json:
        document = {
            "action": "index",
            "index": str(path),
            "synthetic": any(entry.synthetic for entry in entries),
            "artifacts": [
                {"path": e.path, "model": e.model, "length": e.length, "archive_sha256": e.archive_sha256}
                for e in entries
            ],
        }
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return 0
    for entry in entries:
        mark = "  synthetic" if entry.synthetic else ""
        print(f"{entry.model} L{entry.length}  {entry.platform['soc']}  {entry.path}{mark}")
    print(f"{len(entries)} archives in {path}")
    return 0


def _progress() -> Callable[[str], None]:
    """Step by step on a terminal, quiet elsewhere."""
    return say if sys.stderr.isatty() else lambda line: None
