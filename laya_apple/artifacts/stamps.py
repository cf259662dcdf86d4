"""Verification stamps: proof that an artifact's files passed the hash and compute-plan checks unchanged."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from laya_apple.artifacts.locations import Locations
from laya_apple.platform import Platform
from laya_apple.registry import ModelSpec


def stamp_key(
    directory: Path, artifact_sha256: str, compute_units: str, platform: Platform, coremltools_version: str
) -> str:
    """Hex digest over all that a stamp depends on; any change to it re-runs the checks.

    The artifact's hash, every file's size, mtime in nanoseconds and inode (the manifest's too), the compute
    units, the macOS build and the coremltools version. Raises OSError when a file cannot be seen.
    """
    listing = []
    for path in sorted(directory.rglob("*"), key=lambda path: path.parts):
        if not path.is_dir() or path.is_symlink():
            seen = path.lstat()
            name = path.relative_to(directory).as_posix()
            listing.append([name, seen.st_size, seen.st_mtime_ns, seen.st_ino])
    facts = [artifact_sha256, listing, compute_units, platform.macos_build, coremltools_version]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def is_stamped(locations: Locations, spec: ModelSpec, bucket: int, key: str) -> bool:
    """True when the artifact's stamp holds ``key``. A missing or unreadable stamp means full verification."""
    try:
        stamp = json.loads(locations.stamp(spec, bucket).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # closed: no stamp, so the checks run
        return False
    return isinstance(stamp, dict) and stamp.get("key") == key


def write_stamp(locations: Locations, spec: ModelSpec, bucket: int, key: str) -> None:
    """Record that the checks passed for ``key``, in one atomic step."""
    path = locations.stamp(spec, bucket)
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(json.dumps({"key": key}) + "\n", encoding="utf-8")
        os.replace(staged, path)
    except OSError:  # closed: without a stamp the next load verifies in full
        with suppress(OSError):  # closed: a draft that stays is never read as a stamp
            staged.unlink()
