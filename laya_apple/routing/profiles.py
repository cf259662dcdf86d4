"""Local capability profiles: what calibration measured on this very machine, for the router.

One file a machine and Core ML Tools version, ``profiles/<soc>-macos<major>-coremltools<version>.json`` below
the cache, with one entry a model. A profile that does not hold up is ignored with a RuntimeWarning, and then
auto uses MLX only (``platform_not_validated``).
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from laya_apple.platform import Platform, cache_root
from laya_apple.routing.decide import BucketSpec
from laya_apple.routing.derivation import derive_auto_buckets
from laya_apple.routing.queueing import ServiceTable

FORMAT = "laya-apple-profile"
FORMAT_VERSION = 1


class ModelIdentity(BucketSpec, Protocol):
    """The part of a model's registry entry that a profile is keyed on."""

    @property
    def name(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def weights_sha256(self) -> str: ...


@dataclass(frozen=True)
class Profile:
    """One model's entry: the buckets auto may use here, and the times they were derived from."""

    path: Path
    auto_buckets: tuple[int, ...]
    table: ServiceTable


class _Rejected(Exception):
    """Why a profile does not hold up; never leaves this module."""


def coremltools_version() -> str:
    """The installed Core ML Tools version, without importing it; empty when it is not installed."""
    if sys.modules.get("coremltools", ...) is None:
        return ""  # Its import is blocked in this process.
    try:
        return importlib.metadata.version("coremltools")
    except importlib.metadata.PackageNotFoundError:  # closed: no version matches no profile
        return ""


def profile_path(platform: Platform, coremltools: str, *, cache: Path | None = None) -> Path:
    """Where this machine's profile lives; ``cache`` defaults to the platform's cache folder."""
    name = f"{platform.soc}-macos{platform.macos_major}-coremltools{coremltools}"
    safe = re.sub(r"[^A-Za-z0-9.+-]", "_", name)
    return (cache or cache_root(platform)) / "profiles" / f"{safe}.json"


def load_profile(
    platform: Platform, spec: ModelIdentity, coremltools: str, *, cache: Path | None = None
) -> Profile | None:
    """This machine's measured entry for a model, or None where there is none.

    A file or entry that is unreadable, of an unknown format, of another machine or checkpoint, or whose
    buckets are not a prefix of the offered ones is ignored with a RuntimeWarning naming the file.
    """
    path = profile_path(platform, coremltools, cache=cache)
    try:
        document = _read(path)
        if document is None:
            return None
        _check_machine(document, platform, coremltools)
        return _entry(document, path, spec)
    except _Rejected as error:  # warned: rows 18 and 19; auto uses MLX only
        warnings.warn(
            f"the local profile {path} is ignored, so device='auto' uses MLX only: {error}; "
            "run `laya-apple calibrate` to measure this machine again",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def save_profile(
    platform: Platform,
    spec: ModelIdentity,
    coremltools: str,
    *,
    auto_buckets: tuple[int, ...],
    table: ServiceTable,
    created_at: str,
    cache: Path | None = None,
) -> Path:
    """Write a model's measured entry, keeping the other models' ones; returns the file.

    Written whole or not at all, under a lock, so that two calibrations do not lose each other's entry.
    """
    path = profile_path(platform, coremltools, cache=cache)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        try:
            document = _read(path) or {}
            _check_machine(document, platform, coremltools)
            models = dict(document["models"])
        except (_Rejected, KeyError):  # closed: what load_profile would ignore is replaced
            models = {}
        models[spec.name] = {
            "revision": spec.revision,
            "weights_sha256": spec.weights_sha256,
            "created_at": created_at,
            "source": table.source,
            "auto_buckets": list(auto_buckets),
            **table.to_dict(),
        }
        _write(
            path,
            {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "synthetic": platform.virtual,
                "platform": {
                    "soc": platform.soc,
                    "macos": platform.macos,
                    "macos_build": platform.macos_build,
                    "coremltools": coremltools,
                    "machine": platform.machine,
                },
                "models": models,
            },
        )
    return path


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:  # closed: not calibrated
        return None
    except (OSError, ValueError, RecursionError) as error:  # reraise: ignored with a warning by the caller
        raise _Rejected(f"it cannot be read ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _Rejected(f"it is not a {FORMAT} file")
    if document.get("format_version") != FORMAT_VERSION:
        raise _Rejected(
            f"its format_version is {document.get('format_version')!r}, this version reads {FORMAT_VERSION}"
        )
    if not isinstance(document.get("models"), dict) or not isinstance(document.get("platform"), dict):
        raise _Rejected("it has no models or no platform")
    return document


def _check_machine(document: Mapping[str, Any], platform: Platform, coremltools: str) -> None:
    measured = document["platform"]
    here = {"soc": platform.soc, "coremltools": coremltools, "machine": platform.machine}
    for field, value in here.items():
        if measured.get(field) != value:
            raise _Rejected(f"it was measured with {field} {measured.get(field)!r}, this is {value!r}")
    major = str(measured.get("macos", "")).partition(".")[0]
    if major != str(platform.macos_major):
        raise _Rejected(f"it was measured on macOS {major or '?'}, this is macOS {platform.macos_major}")
    if document.get("synthetic") is not platform.virtual:
        raise _Rejected("a virtual machine's profile never counts on a real one, nor the other way round")


def _entry(document: Mapping[str, Any], path: Path, spec: ModelIdentity) -> Profile | None:
    entry = document["models"].get(spec.name)
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise _Rejected(f"its entry for {spec.name} is not an object")
    for field, value in (("revision", spec.revision), ("weights_sha256", spec.weights_sha256)):
        if entry.get(field) != value:
            raise _Rejected(f"its entry for {spec.name} is stale: it was measured for another {field}")
    listed = entry.get("auto_buckets")
    if not isinstance(listed, list) or any(type(bucket) is not int for bucket in listed):
        raise _Rejected(f"its auto_buckets for {spec.name} are {listed!r}, not a list of lengths")
    auto = tuple(listed)
    offered = spec.ane_buckets
    unoffered = [bucket for bucket in auto if bucket not in offered]
    if unoffered:
        raise _Rejected(f"it lists buckets {unoffered} that are not offered for {spec.name}: {list(offered)}")
    if auto != offered[: len(auto)]:
        raise _Rejected(f"its buckets {list(auto)} are not a prefix of the offered {list(offered)}")
    try:
        table = ServiceTable.from_dict(f"local profile {path.name}", entry)
    except ValueError as error:  # reraise: ignored with a warning by the caller
        raise _Rejected(str(error)) from error
    if auto != derive_auto_buckets(offered, table, auto):
        raise _Rejected(f"its buckets {list(auto)} do not follow from its own times")
    return Profile(path=path, auto_buckets=auto, table=table)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(document, stream, indent=2)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:  # reraise: after removing the half-written file
        with contextlib.suppress(OSError):  # closed: a draft that stays is never read as a profile
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
