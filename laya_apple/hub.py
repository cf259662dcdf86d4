"""Checkpoints of the Hugging Face hub: fetched at the pinned revision, hashed once, offline after that."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from laya_apple.config import CHECKPOINT_FILES, WEIGHTS_FILE
from laya_apple.errors import BackendUnavailableError
from laya_apple.hashing import file_sha256
from laya_apple.platform import Platform, cache_root

if TYPE_CHECKING:
    from laya_apple.registry import ModelSpec

_TRUE = {"1", "ON", "YES", "TRUE"}


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """The hub library's cache: ``HF_HUB_CACHE``, else ``$HF_HOME/hub``, else its default.

    Read at each call, while the library itself reads the environment once, at import.
    """
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(os.path.expandvars(named)).expanduser()
    home = environ.get("HF_HOME")
    if home:
        return Path(os.path.expandvars(home)).expanduser() / "hub"
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "huggingface" / "hub"


def offline(environ: Mapping[str, str] = os.environ) -> bool:
    """True when ``HF_HUB_OFFLINE`` (or ``TRANSFORMERS_OFFLINE``) asks for no network."""
    return (environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE


def cached_snapshot(spec: ModelSpec) -> Path | None:
    """The pinned revision's folder in the hub cache if all of its files are there; no network."""
    folder = hub_cache() / f"models--{spec.repo.replace('/', '--')}" / "snapshots" / spec.revision
    return folder if all((folder / name).is_file() for name in CHECKPOINT_FILES) else None


def snapshot(spec: ModelSpec, platform: Platform, *, local_files_only: bool = False) -> Path:
    """The folder of the pinned revision, complete and with the pinned weights.

    The cache alone is looked at first, so a cached checkpoint opens no connection; ``local_files_only`` or
    ``HF_HUB_OFFLINE`` stops there. Raises BackendUnavailableError, naming the download command, when it is
    not cached and may not or cannot be fetched, and when the weights are not the pinned ones.
    """
    folder = cached_snapshot(spec)
    if folder is None:
        if local_files_only or offline():
            asked = "local_files_only=True" if local_files_only else "HF_HUB_OFFLINE"
            raise BackendUnavailableError(
                f"{spec.name} is not complete in the cache ({hub_cache()}) and {asked} forbids the network; "
                f"run `laya-apple download {spec.name}` on a machine with network access first"
            )
        folder = _fetch(spec, force=False)
    verify(spec, folder, platform)
    return folder


def download(spec: ModelSpec, platform: Platform) -> Path:
    """As :func:`snapshot`, but files whose weights fail the check are fetched once more.

    Raises BackendUnavailableError as :func:`snapshot` does.
    """
    folder = cached_snapshot(spec)
    if folder is not None:
        try:
            verify(spec, folder, platform)
            return folder
        except BackendUnavailableError:  # closed: the files are fetched again and checked again
            if offline():
                raise
    if offline():
        raise BackendUnavailableError(
            f"{spec.name} cannot be downloaded while HF_HUB_OFFLINE is set; unset it and run "
            f"`laya-apple download {spec.name}` again"
        )
    fetched = _fetch(spec, force=folder is not None)
    verify(spec, fetched, platform)
    return fetched


def _fetch(spec: ModelSpec, *, force: bool) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            spec.repo,
            revision=spec.revision,
            allow_patterns=list(CHECKPOINT_FILES),
            cache_dir=hub_cache(),
            force_download=force,
        )
    except Exception as error:  # reraise: the hub library's errors share no base class
        raise BackendUnavailableError(
            f"{spec.name} could not be downloaded from {spec.repo} at {spec.revision[:12]} "
            f"({type(error).__name__}: {error}); check the network and run `laya-apple download {spec.name}`"
        ) from error
    missing = [name for name in CHECKPOINT_FILES if not (Path(folder) / name).is_file()]
    if missing:
        raise BackendUnavailableError(
            f"{spec.name}: {spec.repo} at {spec.revision[:12]} did not deliver {', '.join(missing)}; run "
            f"`laya-apple download {spec.name}` again"
        )
    return Path(folder)


def verify(spec: ModelSpec, folder: Path, platform: Platform) -> None:
    """Hash the weights unless a stamp says that this very file (path, size, mtime) has passed.

    Raises BackendUnavailableError, naming the mend, when the hash is not the pinned one.
    """
    weights = (folder / WEIGHTS_FILE).resolve()
    status = weights.stat()
    facts = {
        "path": str(weights),
        "size_bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "sha256": spec.weights_sha256,
    }
    stamp = cache_root(platform) / "verified" / f"{spec.name}-{spec.revision[:12]}.json"
    if _read_stamp(stamp) == facts:
        return
    actual = file_sha256(weights)
    if actual != spec.weights_sha256:
        raise BackendUnavailableError(
            f"{spec.name}: the weights at {weights} hash to {actual[:12]}…, not to the pinned "
            f"{spec.weights_sha256[:12]}…; run `laya-apple download {spec.name}` to fetch them again"
        )
    _write_stamp(stamp, facts)


def _read_stamp(stamp: Path) -> object:
    try:
        return json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # closed: without a readable stamp the weights are hashed
        return None


def _write_stamp(stamp: Path, facts: Mapping[str, object]) -> None:
    draft = stamp.with_name(f".{stamp.name}.{uuid.uuid4().hex}")
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        os.replace(draft, stamp)
    except OSError:  # closed: without a stamp the weights are hashed again next time
        return
