"""``artifacts prune``: removes what killed imports and builds left, and nothing else.

What is removed lies in the cache, belongs to a bucket that no process is working on, and is older than an
hour. Registered, quarantined and rejected artifacts stay, and so does every artifact that a replace set
aside: it is put back where nothing is registered.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from laya_apple.artifacts.locations import Locations
from laya_apple.artifacts.recovery import (
    PENDING_FILE,
    Place,
    discard,
    in_cache,
    is_alive,
    is_pending,
    is_published,
    pending_pid,
    restore,
    try_locked,
)

MIN_AGE_S = 3600.0

_DRAFT = re.compile(r"(.+\.json\.[0-9a-f]+|\..+\.json\.[0-9a-f]{32})")
"""Half-written stamps and rejection records; the finished ones end in ``.json``."""


@dataclass
class PruneReport:
    """What was done; ``kept`` maps what was found and left to the reason."""

    removed: list[Path] = field(default_factory=list)
    restored: list[Path] = field(default_factory=list)
    """Registered paths to which a previous artifact was put back."""
    kept: dict[Path, str] = field(default_factory=dict)
    freed_bytes: int = 0


def prune(locations: Locations, *, now_s: float | None = None) -> PruneReport:
    """Clean up the store. ``now_s`` is the time of day in seconds, for the age rule; None is now.

    Never waits for a bucket in use. Raises OSError when something cannot be moved.
    """
    report = PruneReport()
    if not locations.artifacts.is_dir():
        return report
    work = _Prune(locations, time.time() if now_s is None else now_s, report)
    for place in work.places():
        with try_locked(place.lock) as free:
            work.bucket(place, free)
    work.drafts()
    work.strangers()
    return report


@dataclass(frozen=True)
class _Prune:
    locations: Locations
    now_s: float
    report: PruneReport

    def places(self) -> list[Place]:
        """Every bucket with something to look at, in order of its slug."""
        found: dict[str, Place] = {}
        for directory in (self.locations.staging, self.locations.previous):
            for path in _entries(directory):
                place = Place.named(self.locations, path.name.partition("~")[0])
                if place is not None:
                    found[place.slug] = place
        for artifact in self.locations.artifacts.glob("*/*/bc1s-masked-L*-B1"):
            place = Place.holding(self.locations, artifact)
            if place is not None and (is_pending(artifact) or (artifact / PENDING_FILE).is_file()):
                found[place.slug] = place
        return [found[name] for name in sorted(found)]

    def bucket(self, place: Place, free: bool) -> None:
        """Everything of one bucket; ``free`` says that its lock is held here."""
        if is_pending(place.artifact):
            self._pending(place, free)
        elif free and is_published(place.artifact) and in_cache(self.locations, place.artifact):
            (place.artifact / PENDING_FILE).unlink(missing_ok=True)
        for path in place.staged():
            self._remove(place, path, free, _age_s(path, self.now_s))
        if free and restore(place) is not None:
            self.report.restored.append(place.artifact)
        for path in place.previous():
            self.report.kept[path] = "a previous artifact, which a replace had set aside"

    def _pending(self, place: Place, free: bool) -> None:
        pid = pending_pid(place.artifact)
        if is_alive(pid):
            self.report.kept[place.artifact] = f"process {pid}, which is importing it, still runs"
            return
        marker = place.artifact / PENDING_FILE
        age_s = _age_s(marker if marker.is_file() else place.artifact, self.now_s)
        self._remove(place, place.artifact, free, age_s)

    def _remove(self, place: Place, path: Path, free: bool, age_s: float) -> None:
        if not free:
            self.report.kept[path] = "in use"
        elif age_s < MIN_AGE_S:
            self.report.kept[path] = f"less than {MIN_AGE_S / 60:.0f} minutes old"
        else:
            size_bytes = _size_bytes(path)
            if discard(place, path):
                self.report.removed.append(path)
                self.report.freed_bytes += size_bytes
            else:
                self.report.kept[path] = "not in the cache"

    def drafts(self) -> None:
        """Stamps and records that were being written."""
        candidates = [
            *_entries(self.locations.verified),
            *self.locations.artifacts.glob("rejected/*/manifest.json.*"),
        ]
        for path in candidates:
            if not _DRAFT.fullmatch(path.name) or not in_cache(self.locations, path) or not path.is_file():
                continue
            if _age_s(path, self.now_s) >= MIN_AGE_S:
                size_bytes = path.stat().st_size
                path.unlink(missing_ok=True)
                self.report.removed.append(path)
                self.report.freed_bytes += size_bytes

    def strangers(self) -> None:
        """Names in the store's own directories that nothing of ours has."""
        for directory in (self.locations.staging, self.locations.previous):
            for path in _entries(directory):
                if Place.named(self.locations, path.name.partition("~")[0]) is None:
                    self.report.kept[path] = "not ours"


def _entries(directory: Path) -> Iterator[Path]:
    yield from sorted(directory.iterdir()) if directory.is_dir() else ()


def _age_s(path: Path, now_s: float) -> float:
    try:
        return now_s - path.lstat().st_mtime
    except OSError:  # closed: it is gone, so it is not old
        return 0.0


def _size_bytes(path: Path) -> int:
    return sum(p.lstat().st_size for p in path.rglob("*") if p.is_symlink() or p.is_file())
