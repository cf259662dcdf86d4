"""The index of a repository of artifact archives: made for publishers, read without trust, selected from."""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from laya_apple.artifacts.archive import ARCHIVE_SUFFIX, read_archive_manifest, unpack
from laya_apple.artifacts.graph import GRAPH_NAME
from laya_apple.artifacts.locations import MODEL_DIRECTORY, build_command
from laya_apple.artifacts.manifest import VALIDATED, Manifest, now
from laya_apple.errors import ArtifactError, ArtifactIntegrityError, ArtifactMissingError
from laya_apple.hashing import tree_hash
from laya_apple.platform import Platform
from laya_apple.registry import ModelSpec

INDEX_FORMAT = "laya-apple-prebuilt-index"
INDEX_VERSION = 1
INDEX_FILE = "index.json"
SCHEMA_FILE = "prebuilt-index.schema.json"
MAX_INDEX_BYTES = 16 * 1024**2

_IDENTITY = ("model", "revision", "weights_sha256", "graph", "length", "synthetic")


@dataclass(frozen=True, slots=True)
class Entry:
    """One archive, as its index describes it. ``path`` is relative to the repository, POSIX."""

    path: str
    model: str
    revision: str
    weights_sha256: str
    graph: str
    length: int
    platform: Mapping[str, str]
    archive_sha256: str
    bytes: int
    artifact_sha256: str
    synthetic: bool = False


def read_index(path: Path, where: str) -> tuple[Entry, ...]:
    """The entries of an index file; ``where`` names the repository in messages.

    Raises ArtifactIntegrityError for a file that is no index, is of a newer format, breaks the schema or
    names a path outside the repository.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_INDEX_BYTES:
            raise ValueError(f"it has {size_bytes} bytes, at most {MAX_INDEX_BYTES} are read")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # reraise: as what is wrong with the index
        raise ArtifactIntegrityError(f"{INDEX_FILE} of {where} cannot be read: {error}") from error
    _check(data, where)
    entries = []
    for raw in data["artifacts"]:
        if not _is_plain(raw["path"]):
            raise ArtifactIntegrityError(
                f"{INDEX_FILE} of {where} names {raw['path']!r}, which is no path inside the repository"
            )
        known = {name: raw[name] for name in Entry.__dataclass_fields__ if name in raw}
        entries.append(Entry(**known))
    return tuple(entries)


def select(
    entries: Sequence[Entry],
    spec: ModelSpec,
    bucket: int,
    platform: Platform,
    coremltools_version: str,
    where: str,
) -> Entry:
    """The archive of one bucket for this very platform: same chip, macOS major and coremltools.

    Of several, one of this macOS build comes first, then one of this macOS version, then the first listed.
    Raises ArtifactMissingError, naming the build command, when there is none; another platform's is never
    taken.
    """
    wanted = (spec.name, spec.revision, spec.weights_sha256, GRAPH_NAME, bucket, platform.virtual)
    of_bucket = [e for e in entries if tuple(getattr(e, name) for name in _IDENTITY) == wanted]
    build = f"build it with: {build_command(spec, bucket)}"
    if not of_bucket:
        raise ArtifactMissingError(
            f"{spec.name} L{bucket}: {where} has no artifact of revision {spec.revision[:12]}; {build}"
        )
    here = (platform.soc, str(platform.macos_major), coremltools_version)
    fitting = [e for e in of_bucket if _machine(e.platform) == here]
    if not fitting:
        listed = "; ".join(sorted({_describe(_machine(e.platform)) for e in of_bucket}))
        raise ArtifactMissingError(
            f"{spec.name} L{bucket}: {where} has no artifact for {_describe(here)}, only for {listed}; "
            + build
        )
    return max(
        fitting,
        key=lambda e: (
            e.platform["macos_build"] == platform.macos_build,
            e.platform["macos"] == platform.macos,
        ),
    )


def make_index(directory: Path, *, progress: Callable[[str], None] = lambda line: None) -> tuple[Entry, ...]:
    """Write ``index.json`` for all archives below ``directory``, in one atomic step; returns its entries.

    Every archive is unpacked to a temporary place and its files are held against its manifest. Raises
    ArtifactMissingError when there is no archive, ArtifactIntegrityError for one that is broken,
    ArtifactError for one that is not validated, and for two of the same bucket and platform.
    """
    archives = sorted(
        path for path in directory.rglob(f"*{ARCHIVE_SUFFIX}") if path.is_file() and not path.is_symlink()
    )
    if not archives:
        raise ArtifactMissingError(
            f"{directory} holds no {ARCHIVE_SUFFIX} archive; export some into it first"
        )
    entries = []
    seen: dict[tuple[Any, ...], str] = {}
    for archive in archives:
        name = archive.relative_to(directory).as_posix()
        progress(f"{name}: checking")
        entry = _entry(archive, name)
        key = (*(getattr(entry, field) for field in _IDENTITY), tuple(sorted(entry.platform.items())))
        if key in seen:
            raise ArtifactError(f"{seen[key]} and {name} are of the same bucket and platform; remove one")
        seen[key] = name
        entries.append(entry)
    document = {
        "format": INDEX_FORMAT,
        "format_version": INDEX_VERSION,
        "created_at": now(),
        "artifacts": [_as_dict(entry) for entry in entries],
    }
    draft = directory / f".{INDEX_FILE}.{uuid.uuid4().hex[:8]}"
    try:
        draft.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(draft, directory / INDEX_FILE)
    except OSError as error:  # reraise: no room, or a place that cannot be written
        raise ArtifactError(f"{directory / INDEX_FILE} could not be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return tuple(entries)


def _entry(archive: Path, name: str) -> Entry:
    if not _is_plain(name):
        raise ArtifactError(f"{name!r} cannot be named in an index; rename it")
    manifest = read_archive_manifest(archive)
    with tempfile.TemporaryDirectory(prefix="laya-apple-index-") as folder:
        facts = unpack(archive, Path(folder))
        found = tree_hash(Path(folder) / MODEL_DIRECTORY)
    _check_publishable(name, manifest, found)
    source, built = manifest.section("source"), manifest.section("platform")
    return Entry(
        path=name,
        model=source["model"],
        revision=source["revision"],
        weights_sha256=source["weights_sha256"],
        graph=manifest.section("artifact")["graph"],
        length=manifest.length,
        platform={key: built[key] for key in ("soc", "macos", "macos_build", "coremltools")},
        archive_sha256=facts.archive_sha256,
        bytes=facts.bytes,
        artifact_sha256=manifest.artifact_sha256,
        synthetic=manifest.synthetic,
    )


def _check_publishable(name: str, manifest: Manifest, found_sha256: str) -> None:
    if found_sha256 != manifest.artifact_sha256:
        raise ArtifactIntegrityError(
            f"{name}: its files hash to {found_sha256[:12]}…, its manifest says "
            f"{manifest.artifact_sha256[:12]}…; export it again"
        )
    if manifest.status != VALIDATED or manifest.section("parity")["passed"] is not True:
        raise ArtifactError(f"{name}: its artifact did not pass the parity gate (status {manifest.status})")


def _check(data: Any, where: str) -> None:
    from jsonschema import Draft202012Validator

    schema = json.loads(files("laya_apple.data").joinpath(SCHEMA_FILE).read_text(encoding="utf-8"))
    error = next(iter(Draft202012Validator(schema).iter_errors(data)), None)
    if error is not None:
        at = "/".join(map(str, error.path)) or INDEX_FILE
        raise ArtifactIntegrityError(f"{INDEX_FILE} of {where} is not an index: {at}: {error.message[:200]}")
    if data["format_version"] > INDEX_VERSION:
        raise ArtifactIntegrityError(
            f"{INDEX_FILE} of {where} is of format version {data['format_version']}, this laya-apple reads "
            f"{INDEX_VERSION}; upgrade it"
        )


def _is_plain(path: str) -> bool:
    """True for a relative POSIX path that stays inside and names an archive."""
    parts = path.split("/")
    return (
        path.isprintable()
        and "\\" not in path
        and ":" not in path
        and all(part not in ("", ".", "..") for part in parts)
        and PurePosixPath(path).name.endswith(ARCHIVE_SUFFIX)
    )


def _machine(platform: Mapping[str, str]) -> tuple[str, str, str]:
    return platform["soc"], platform["macos"].partition(".")[0], platform["coremltools"]


def _describe(machine: tuple[str, str, str]) -> str:
    soc, major, coremltools = machine
    return f"{soc}, macOS {major}, coremltools {coremltools}"


def _as_dict(entry: Entry) -> dict[str, Any]:
    facts = {name: getattr(entry, name) for name in Entry.__dataclass_fields__}
    return facts | {"platform": dict(entry.platform)}
