"""What a virtual Mac is told across processes: a profile, faults, and the log of what happened.

``LAYA_VIRTUAL_MAC_STATE`` names a directory. Workers inherit the variable, so a fault set in a test is seen
by every process the test starts, and gone once the directory says so. Without the variable there are no
faults, no log, and the profile is ``LAYA_VIRTUAL_MAC_PROFILE`` (default ``m4max``).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STATE_VARIABLE = "LAYA_VIRTUAL_MAC_STATE"
PROFILE_VARIABLE = "LAYA_VIRTUAL_MAC_PROFILE"

_STATE_FILE = "state.json"
_EVENTS_FILE = "events.jsonl"
_FIRED_DIR = "fired"


@dataclass(frozen=True)
class Fault:
    """One fault as it stands in the state file."""

    id: int
    name: str
    args: Mapping[str, Any]


@dataclass(frozen=True)
class State:
    """One reading of the state file."""

    profile: object = None
    """A profile name, a table, or None for the default."""
    faults: tuple[Fault, ...] = ()
    owner_pid: int = 0
    """The test's process, which no fault may kill."""
    directory: Path | None = None


@dataclass
class _Reader:
    """Caches the last reading: the file is checked on every forward, and parsed only when it changed."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    key: tuple[str, int, int] | None = None
    state: State = field(default_factory=State)

    def read(self) -> State:
        named = os.environ.get(STATE_VARIABLE)
        if not named:
            return State()
        path = os.path.join(named, _STATE_FILE)
        try:
            found = os.stat(path)
        except OSError:
            return State()
        key = (path, found.st_mtime_ns, found.st_ino)
        with self.lock:
            if key != self.key:
                self.state, self.key = _parse(Path(named)), key
            return self.state


# The reading is a cache of one file, so sharing it within a process changes nothing a caller could see.
_READER = _Reader()


def _parse(directory: Path) -> State:
    try:
        raw = json.loads((directory / _STATE_FILE).read_text(encoding="utf-8"))
    except OSError:  # removed between the two look-ups: the test is over
        return State()
    return State(
        profile=raw["profile"],
        faults=tuple(Fault(f["id"], f["name"], f["args"]) for f in raw["faults"]),
        owner_pid=raw["owner_pid"],
        directory=directory,
    )


def read_state() -> State:
    """The state as it stands now."""
    return _READER.read()


def write_state(directory: Path, state: State) -> None:
    """Replace the state file in one step; every process sees either the old one or the new one."""
    raw = {
        "profile": state.profile,
        "faults": [{"id": f.id, "name": f.name, "args": dict(f.args)} for f in state.faults],
        "owner_pid": state.owner_pid,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _FIRED_DIR).mkdir(exist_ok=True)
    staged = directory / f".{_STATE_FILE}.{os.getpid()}"
    staged.write_text(json.dumps(raw), encoding="utf-8")
    # The kernel's own stamps are too coarse to tell two quick changes apart, and inodes are used again.
    now_ns = time.time_ns()
    os.utime(staged, ns=(now_ns, now_ns))
    os.replace(staged, directory / _STATE_FILE)


def log_event(event: str, **facts: Any) -> None:
    """Append one event; a no-op without a state directory. One write, so processes never mix lines."""
    directory = read_state().directory
    if directory is None:
        return
    line = json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts})
    try:
        handle = os.open(directory / _EVENTS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:  # the directory went away with its test
        return
    try:
        os.write(handle, line.encode() + b"\n")
    finally:
        os.close(handle)


def read_events(directory: Path) -> list[dict[str, Any]]:
    """Every event logged so far, in the order written."""
    path = directory / _EVENTS_FILE
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def claim_firing(fault: Fault, directory: Path | None) -> bool:
    """True when this firing is within the fault's ``times``, counted over all processes."""
    times = fault.args.get("times")
    if times is None or directory is None:
        return True
    for number in range(int(times)):
        token = directory / _FIRED_DIR / f"{fault.id}-{number}"
        try:
            os.close(os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        except OSError:  # the directory went away with its test
            return False
        return True
    return False
