"""One test at a time on the device, over all processes of this user on this host."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def device_lock_path() -> Path:
    """One lock a user: another user's sessions are another matter, and could hold the file for ever."""
    return Path(tempfile.gettempdir()) / f"laya-apple-device-{os.getuid()}.lock"


@contextmanager
def device_lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Wait for the device, hold it, give it back. The kernel frees it when a holder dies.

    ``say`` is told once when another process has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for the device: another test of this user on this host has it ({path})")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
