"""Prebuilt artifacts from a repository that the user names: index, archive, hash, then the import."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from laya_apple.artifacts.archive import require_safe_extraction
from laya_apple.artifacts.index import INDEX_FILE, Entry, read_index, select
from laya_apple.artifacts.locations import Locations, build_command
from laya_apple.artifacts.recovery import Place
from laya_apple.artifacts.runtime import coremltools_version, require_coremltools
from laya_apple.artifacts.transfer import Expected, ImportResult, bucket_locked, import_archive, look
from laya_apple.checkpoint import Checkpoint
from laya_apple.errors import ArtifactIntegrityError, ArtifactMissingError, BackendUnavailableError
from laya_apple.hashing import file_sha256
from laya_apple.hub import hub_cache, offline
from laya_apple.platform import Platform, current_platform

REPO_VARIABLE = "LAYA_APPLE_PREBUILT_REPO"
DEFAULT_REVISION = "main"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class Repository:
    """Where archives come from: a repository of the hub at a revision, or a directory in its place."""

    name: str
    revision: str | None
    """Branch, tag or commit; None for a directory."""
    directory: Path | None
    local_files_only: bool = False

    @property
    def where(self) -> str:
        """For messages."""
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Opened:
    """A repository whose index was read."""

    repository: Repository
    entries: tuple[Entry, ...]
    commit: str | None
    """The commit the index came from, from which the archives come too; None for a directory."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What ``fetch`` did for one bucket."""

    imported: ImportResult
    entry: Entry | None
    """None when nothing was fetched because a verified artifact was registered."""


def repository(
    repo: str | None,
    *,
    revision: str = DEFAULT_REVISION,
    local_files_only: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Repository:
    """The repository named by ``repo``, else by ``LAYA_APPLE_PREBUILT_REPO``.

    ``owner/name`` is one of the Hugging Face hub; anything else must be a directory (write ``./owner/name``
    for one that looks alike). Opens no connection. Raises BackendUnavailableError when none is named: there
    is no default and none is guessed.
    """
    named = repo or environ.get(REPO_VARIABLE)
    if not named:
        raise BackendUnavailableError(
            "no repository of prebuilt artifacts is named, and there is no default one; pass --repo or set "
            f"{REPO_VARIABLE}, or build the artifacts with: laya-apple artifacts build"
        )
    if _HUB_ID.fullmatch(named):
        asked = local_files_only or offline(environ)
        return Repository(named, revision, None, asked)
    directory = Path(named).expanduser()
    if not directory.is_dir():
        raise BackendUnavailableError(
            f"{named!r} is neither a repository (owner/name) nor a directory; check --repo and "
            + REPO_VARIABLE
        )
    return Repository(named, None, directory.resolve())


def open_repository(repository: Repository) -> Opened:
    """Read the repository's index.

    Raises ArtifactMissingError (a directory without an index), BackendUnavailableError (offline and not
    cached, or not to be had), ArtifactIntegrityError (no valid index).
    """
    path = _file(repository, INDEX_FILE, repository.revision)
    # The hub's cache lays files out as snapshots/<commit>/<path>: what follows comes from that very commit.
    commit = path.parent.name if repository.directory is None else None
    return Opened(repository, read_index(path, repository.where), commit)


def fetch_artifact(
    checkpoint: Checkpoint,
    bucket: int,
    opened: Opened | Callable[[], Opened],
    *,
    force: bool = False,
    goldens: Path | None = None,
    platform: Platform | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> FetchResult:
    """Fetch and register the artifact of one bucket for this platform, unless a verified one is registered.

    ``opened`` may be a function, called only if something is to be fetched. The archive's hash must be the
    index's; then come the import's checks and the placement probe at the registered path.

    Raises what ``open_repository``, ``index.select`` and ``import_archive`` raise.
    """
    platform = platform or current_platform()
    require_coremltools(platform)
    require_safe_extraction()
    spec = checkpoint.spec
    place = Place.of(Locations.of(platform), spec, bucket)
    with bucket_locked(place, build_command(spec, bucket)):
        notes, found = look(place, spec, bucket, platform, force=force, progress=progress)
    if found is not None:
        present = ImportResult(spec.name, bucket, place.artifact, False, False, found, None, notes)
        return FetchResult(present, None)
    source = opened if isinstance(opened, Opened) else opened()
    where = source.repository.where
    entry = select(source.entries, spec, bucket, platform, coremltools_version(), where)
    progress(f"{spec.name} L{bucket}: fetching {entry.path} ({entry.bytes / 1e6:.1f} MB) from {where}")
    archive = _file(source.repository, entry.path, source.commit)
    _check_archive(archive, entry, where)
    result = import_archive(
        checkpoint,
        archive,
        force=force,
        probe=True,
        goldens=goldens,
        # The bytes that are unpacked are hashed again: the file could change in between.
        expected=Expected(entry.archive_sha256, entry.bytes, entry.artifact_sha256),
        platform=platform,
        progress=progress,
    )
    return FetchResult(result, entry)


def _check_archive(archive: Path, entry: Entry, where: str) -> None:
    size_bytes = archive.stat().st_size
    if size_bytes != entry.bytes:
        raise ArtifactIntegrityError(
            f"{entry.path} of {where} has {size_bytes} bytes, the index says {entry.bytes}; nothing was "
            f"registered; if the repository is right, delete {archive} and fetch again"
        )
    found = file_sha256(archive)
    if found != entry.archive_sha256:
        raise ArtifactIntegrityError(
            f"{entry.path} of {where} hashes to {found[:12]}…, the index says {entry.archive_sha256[:12]}…; "
            f"nothing was registered; if the repository is right, delete {archive} and fetch again"
        )


def _file(repository: Repository, name: str, revision: str | None) -> Path:
    if repository.directory is None:
        return _hub_file(repository, name, revision)
    path = repository.directory / name
    if not path.is_file():
        raise ArtifactMissingError(f"{repository.where} holds no {name}")
    # A link in the directory must not make us read what lies elsewhere.
    if not path.resolve().is_relative_to(repository.directory):
        raise ArtifactIntegrityError(f"{name} of {repository.where} leads out of the directory")
    return path


def _hub_file(repository: Repository, name: str, revision: str | None) -> Path:
    if repository.local_files_only:
        return _cached_file(repository, name, revision)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        path = hf_hub_download(repository.name, name, revision=revision, cache_dir=hub_cache())
    except Exception as error:  # reraise: the hub library's errors share no base class
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            raise ArtifactMissingError(f"{repository.where} holds no {name}") from error
        raise BackendUnavailableError(
            f"{name} could not be downloaded from {repository.where} ({type(error).__name__}: {error}); "
            "check the name, the revision and the network"
        ) from error
    return Path(path)


def _cached_file(repository: Repository, name: str, revision: str | None) -> Path:
    """From the hub's cache alone; opens no connection."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository.name, name, cache_dir=hub_cache(), revision=revision)
    if not isinstance(found, str):
        raise BackendUnavailableError(
            f"{name} of {repository.where} is not in the hub's cache, and offline was asked for; fetch it "
            "once without --offline and HF_HUB_OFFLINE"
        )
    return Path(found)
