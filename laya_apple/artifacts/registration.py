"""Putting an artifact in its place in one step, and keeping a record of one that did not pass."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from laya_apple.artifacts.locations import Locations, slug
from laya_apple.artifacts.recovery import Place, discard, put_back, set_aside
from laya_apple.registry import ModelSpec


@contextmanager
def staged(locations: Locations, spec: ModelSpec, bucket: int) -> Iterator[Path]:
    """A fresh directory for one build, removed afterwards whatever happened.

    Call with the artifact's lock held: then every other staging directory of this bucket was left by a
    process that died, and goes first.
    """
    name = slug(spec, bucket)
    locations.staging.mkdir(parents=True, exist_ok=True)
    for leftover in locations.staging.glob(f"{name}~*"):
        shutil.rmtree(leftover, ignore_errors=True)
    directory = locations.staging / f"{name}~{uuid.uuid4().hex[:8]}"
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def publish(locations: Locations, spec: ModelSpec, bucket: int, artifact: Path) -> Path:
    """Rename the complete ``artifact`` directory to its registered path, in place of whatever is there.

    A process killed in between leaves the old artifact, the new one or none, never a mixture; ``recovery``
    puts the old one back where there is none. Call with the lock held. Raises OSError when the file system
    refuses; the old artifact is then back in its place.
    """
    place = Place.of(locations, spec, bucket)
    target = place.artifact
    target.parent.mkdir(parents=True, exist_ok=True)
    old = set_aside(place) if target.exists() else None
    try:
        os.rename(artifact, target)
    except OSError:  # reraise: with the old artifact back in its place
        if old is not None:
            put_back(place, old)
        raise
    if old is not None:
        discard(place, old)
    record = locations.rejected(spec, bucket).parent
    shutil.rmtree(record, ignore_errors=True)
    return target


def reject(
    locations: Locations, spec: ModelSpec, bucket: int, manifest: Mapping[str, Any], reason: str
) -> Path:
    """Write the manifest of a build that did not pass below ``rejected``; nothing else is kept of it."""
    path = locations.rejected(spec, bucket)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    text = json.dumps({**manifest, "rejection": reason}, indent=2, ensure_ascii=False)
    fresh.write_text(text + "\n", encoding="utf-8")
    os.replace(fresh, path)
    return path
