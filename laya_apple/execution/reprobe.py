"""Probing a suspect bucket again, while its device is idle. Asked for with ``ane_reprobe=True``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from laya_apple.backends.base import Backend
from laya_apple.errors import ArtifactError

IDLE_S = 1.0
"""Seconds without a request after which a device counts as idle."""


def reprobe(backend: Backend, bucket: int) -> Mapping[str, Any]:
    """The probe of a loaded bucket now; UNKNOWN, with the reason, where it cannot be made."""
    from laya_apple.backends.coreml import CoreMLBackend

    if not isinstance(backend, CoreMLBackend):
        return _unknown("the platform wraps the Core ML backend")
    try:
        return backend.reprobe(bucket)
    except ArtifactError as error:  # closed: no comparison, so the verdict is UNKNOWN and the bucket suspect
        return _unknown(f"{type(error).__name__}: {error}")


def _unknown(detail: str) -> Mapping[str, Any]:
    return {"ane_ms": None, "cpu_ms": None, "ratio": None, "verdict": "UNKNOWN", "detail": detail}


class IdleReprobe:
    """Inline execution has no thread of its own: this one waits for a quiet moment, and ends after it.

    ``lock`` is held by every forward; ``run`` is called with it held.
    """

    def __init__(self, lock: threading.Lock, run: Callable[[int], None]) -> None:
        self._lock = lock
        self._run = run
        self._stopped = threading.Event()
        self._last_ns = time.monotonic_ns()

    def served(self) -> None:
        """A forward has just ended."""
        self._last_ns = time.monotonic_ns()

    def ask(self, bucket: int) -> None:
        """Probe ``bucket`` once no forward has ended for ``IDLE_S``."""
        threading.Thread(target=self._wait, args=(bucket,), name="laya-reprobe", daemon=True).start()

    def stop(self) -> None:
        """Probe nothing any more."""
        self._stopped.set()

    def _wait(self, bucket: int) -> None:
        while not self._stopped.wait(IDLE_S / 4):
            with self._lock:
                if self._stopped.is_set():
                    return
                if time.monotonic_ns() - self._last_ns >= IDLE_S * 1e9:
                    self._run(bucket)
                    return
