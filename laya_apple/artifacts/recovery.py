"""What a killed import or build leaves behind, and putting it right.

A bucket's registered directory is *pending* while it has no ``manifest.json`` but a ``PENDING.json``: an
import has moved it there to validate it. A replace first moves the artifact in place to ``.previous``; it is
put back unless the new one was published. Everything here is called with the bucket's lock held.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laya_apple.artifacts.locations import MANIFEST_FILE, Locations, slug
from laya_apple.artifacts.manifest import now
from laya_apple.registry import ModelSpec

WITHHELD_FILE = "manifest.pending.json"
"""The manifest of a directory that is being validated; publishing renames it to ``manifest.json``."""
PENDING_FILE = "PENDING.json"
"""Who is validating: process id and start."""

_SLUG = re.compile(r"(?P<model>.+)-(?P<revision>[0-9a-f]{12})-(?P<name>bc1s-masked-L[0-9]+-B1)")


@dataclass(frozen=True, slots=True)
class Place:
    """The paths of one bucket, known by its slug alone."""

    locations: Locations
    slug: str
    artifact: Path
    """The registered directory."""

    @classmethod
    def of(cls, locations: Locations, spec: ModelSpec, bucket: int) -> Place:
        return cls(locations, slug(spec, bucket), locations.artifact(spec, bucket))

    @classmethod
    def named(cls, locations: Locations, name: str) -> Place | None:
        """The place of a slug; None for another file name."""
        match = _SLUG.fullmatch(name)
        if match is None:
            return None
        path = locations.artifacts / match["model"] / match["revision"] / match["name"]
        return cls(locations, name, path)

    @classmethod
    def holding(cls, locations: Locations, artifact: Path) -> Place | None:
        """The place whose registered directory is ``artifact``; None for a path that can't be one."""
        return cls.named(locations, f"{artifact.parent.parent.name}-{artifact.parent.name}-{artifact.name}")

    @property
    def lock(self) -> Path:
        return self.locations.artifacts / ".locks" / f"{self.slug}.lock"

    def previous(self) -> list[Path]:
        """Artifacts that a replace moved aside, oldest first."""
        return sorted(self.locations.previous.glob(f"{self.slug}~*"))

    def staged(self) -> list[Path]:
        """Staging directories of this bucket."""
        return sorted(self.locations.staging.glob(f"{self.slug}~*"))


def is_published(artifact: Path) -> bool:
    """True when ``load_verified`` would look at it."""
    return (artifact / MANIFEST_FILE).is_file()


def is_pending(artifact: Path) -> bool:
    """True when an import moved it there and did not publish it."""
    marked = (artifact / PENDING_FILE).is_file() or (artifact / WITHHELD_FILE).is_file()
    return marked and not is_published(artifact)


def withhold(artifact: Path, **facts: Any) -> None:
    """Mark a staged artifact as pending, before it is moved to its registered path."""
    os.rename(artifact / MANIFEST_FILE, artifact / WITHHELD_FILE)
    record = {"pid": os.getpid(), "started_at": now(), **facts}
    (artifact / PENDING_FILE).write_text(json.dumps(record) + "\n", encoding="utf-8")


def pending_pid(artifact: Path) -> int | None:
    """The process that put a pending artifact there; None when that cannot be read."""
    try:
        pid = json.loads((artifact / PENDING_FILE).read_text(encoding="utf-8"))["pid"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # closed: an unknown owner
        return None
    return pid if type(pid) is int and pid > 0 else None


def is_alive(pid: int | None) -> bool:
    """True when a process of that id runs, whoever owns it."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # closed: it has exited, or can never have been one
        return False
    except PermissionError:  # closed: it runs, under another user
        return True
    return True


def publish(artifact: Path, text: str) -> None:
    """Put the manifest of a pending artifact in its place: one atomic rename makes it the registered one."""
    withheld = artifact / WITHHELD_FILE
    withheld.write_text(text, encoding="utf-8")
    os.replace(withheld, artifact / MANIFEST_FILE)
    # After the publication; whoever dies in between leaves a mark that the next import takes away.
    (artifact / PENDING_FILE).unlink(missing_ok=True)


def set_aside(place: Place) -> Path:
    """Move what stands at the registered path to ``.previous``; returns where it is."""
    place.locations.previous.mkdir(parents=True, exist_ok=True)
    # The time orders them; names alone must tell, since renaming keeps a directory's mtime.
    aside = place.locations.previous / f"{place.slug}~{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
    os.rename(place.artifact, aside)
    return aside


def put_back(place: Place, aside: Path) -> None:
    """Move an artifact that was set aside to its registered path, where nothing stands."""
    place.artifact.parent.mkdir(parents=True, exist_ok=True)
    os.rename(aside, place.artifact)


def discard(place: Place, path: Path) -> bool:
    """Delete a directory of the store; False, and nothing done, when it does not lie in the cache.

    It is renamed into staging first, so that nobody ever finds half of it in its place. Links are never
    followed out of the cache. Raises OSError when it cannot be moved.
    """
    locations = place.locations
    if not in_cache(locations, path):
        return False
    doomed = path
    if path.parent != locations.staging:
        locations.staging.mkdir(parents=True, exist_ok=True)
        doomed = locations.staging / f"{place.slug}~discard-{uuid.uuid4().hex[:8]}"
        os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
    return True


def in_cache(locations: Locations, path: Path) -> bool:
    """True when ``path`` is no link and its real parent lies in the cache's real root."""
    return not path.is_symlink() and path.parent.resolve().is_relative_to(locations.root.resolve())


def recover(place: Place) -> list[str]:
    """Put right what a killed import or build of this bucket left; returns what was done, for people.

    A pending artifact and all staging directories are removed; the newest artifact that was set aside is put
    back where nothing is registered. Others that were set aside stay.
    """
    done = []
    for path in place.staged():
        discard(place, path)
    if is_pending(place.artifact) and discard(place, place.artifact):
        done.append(f"removed what an unfinished import left at {place.artifact}")
    elif is_published(place.artifact):
        (place.artifact / PENDING_FILE).unlink(missing_ok=True)
    if restored := restore(place):
        done.append(f"put back the artifact that an unfinished replace had moved to {restored}")
    return done


def restore(place: Place) -> Path | None:
    """Put the newest artifact that was set aside back, if nothing stands at the registered path."""
    aside = place.previous()
    if not aside or place.artifact.exists() or not in_cache(place.locations, aside[-1]):
        return None
    put_back(place, aside[-1])
    return aside[-1]


@contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Hold the lock on ``path`` and yield True, or yield False at once while another process holds it."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # closed: it is in use, so nothing of that bucket is touched
            yield False
            return
        yield True


@contextmanager
def undone_on_failure(place: Place, aside: Path | None) -> Iterator[None]:
    """Around work at the registered path: on any exception the new directory goes, the old one returns."""
    try:
        yield
    except BaseException:  # reraise: an interrupt, too, must not leave half a registration
        if is_pending(place.artifact):
            discard(place, place.artifact)
        if aside is not None and not place.artifact.exists():
            with suppress(OSError):  # else it stays where it is, and the next import or prune puts it back
                put_back(place, aside)
        raise
