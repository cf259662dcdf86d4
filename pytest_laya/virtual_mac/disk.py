"""File-system faults: a full disk, and death at a chosen step.

Python reports every file-system call to its audit hooks before making it, and a hook may raise. That is a
documented mechanism of the interpreter, so no code is replaced. Steps are counted in each process on its own.
Writers in native code are not seen.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from pytest_laya.virtual_mac.faults import kill_process
from pytest_laya.virtual_mac.state import claim_firing, log_event, read_state

DISK_FAULTS = frozenset({"disk_full", "killed_at_step", "steps_logged"})

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_STEPS = {
    "os.mkdir": (0, 2),
    "os.rename": (1, 3),
    "os.remove": (0, 1),
    "os.rmdir": (0, 1),
    "os.link": (1, 3),
    "os.symlink": (1, 2),
    "os.truncate": (0, None),
    "os.chmod": (0, 2),
}
"""Audit event -> where its path and its directory handle stand. ``open`` for writing is a step too."""
_ALLOCATING = frozenset({"open", "os.mkdir", "os.link", "os.symlink"})


@dataclass
class _Hook:
    """The process's audit hook: it can't be removed, so it does nothing unless a disk fault stands."""

    installed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    local: threading.local = field(default_factory=threading.local)
    steps: dict[tuple[str, int], int] = field(default_factory=dict)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if (event != "open" and event not in _STEPS) or getattr(self.local, "inside", False):
            return
        self.local.inside = True  # our own look-ups open files
        try:
            path = _path_of(event, args)
            if path is not None:
                self._step(event, path)
        finally:
            self.local.inside = False

    def _step(self, event: str, path: str) -> None:
        state = read_state()
        if state.directory is None or _is_under(path, str(state.directory)):
            return  # what the virtual Mac itself writes is no step of the test
        for fault in state.faults:
            if fault.name not in DISK_FAULTS or not _is_under(path, fault.args["under"]):
                continue
            if fault.name == "steps_logged":
                log_event("step", op=event, path=path)
                continue
            if fault.name == "disk_full" and event not in _ALLOCATING:
                continue
            with self.lock:
                key = (str(state.directory), fault.id)
                count = self.steps[key] = self.steps.get(key, 0) + 1
            if fault.name == "killed_at_step" and count == fault.args["at"]:
                log_event("fault", name=fault.name, op=event, path=path)
                kill_process(fault)
            full = fault.name == "disk_full" and count >= fault.args["at"]
            if full and claim_firing(fault, state.directory):
                log_event("fault", name=fault.name, op=event, path=path)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _path_of(event: str, args: tuple[Any, ...]) -> str | None:
    """Absolute path the step writes to; None where the event is no step."""
    if event == "open":
        raw, _mode, flags = args
        directory = None
        if not isinstance(flags, int) or not flags & _WRITING:
            return None
    else:
        at, directory_at = _STEPS[event]
        raw = args[at]
        directory = args[directory_at] if directory_at is not None else None
    if not isinstance(raw, (str, bytes, os.PathLike)):
        return None  # an open file handle: its opening was the step
    path = os.fsdecode(raw)
    if isinstance(directory, int) and directory >= 0 and not os.path.isabs(path):
        try:
            path = os.path.join(os.readlink(f"/proc/self/fd/{directory}"), path)
        except OSError:  # no procfs: the bare name, which matches no `under`
            return path
    return os.path.abspath(path)


def _is_under(path: str, under: str | None) -> bool:
    if under is None:
        return True
    root = os.path.realpath(under)
    parent = os.path.realpath(os.path.dirname(path))
    return path == root or parent == root or parent.startswith(root + os.sep)


_HOOK = _Hook()


def install_disk_faults() -> None:
    """Add the audit hook once a disk fault stands; processes without one don't pay for it."""
    if not _HOOK.installed and any(f.name in DISK_FAULTS for f in read_state().faults):
        _HOOK.installed = True
        sys.addaudithook(_HOOK)
