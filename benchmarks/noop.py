"""A platform whose backends answer at once: what is left to time is the host's own work.

``LAYA_APPLE_PLATFORM=benchmarks.noop:platform`` with the repository's root on the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from laya_apple.platform import Platform, detect

if TYPE_CHECKING:
    from laya_apple.backends.base import Backend, BackendInfo
    from laya_apple.prompt.sequence import Row


class NoOp:
    """Keeps a backend's facts and answers with zeros."""

    def __init__(self, backend: Backend) -> None:
        self._info = backend.info
        backend.close()

    @property
    def info(self) -> BackendInfo:
        return self._info

    def forward(self, rows: Sequence[Row]) -> list[object]:
        from laya_apple.backends.base import RowOutput

        return [RowOutput(np.zeros(len(row.markers), np.float32), np.zeros(2, np.float32)) for row in rows]

    def warm(self) -> None:
        """Nothing to compile."""

    def close(self) -> None:
        """Nothing to release."""


class NoOpPlatform(Platform):
    """The real machine's facts, with every backend replaced."""

    def wrap_backend(self, device: str, backend: Backend) -> Backend:
        return NoOp(backend)  # type: ignore[return-value]


def platform() -> Platform:
    """The hook."""
    real = detect()
    return NoOpPlatform(real.soc, real.macos, real.macos_build, real.machine, real.memory_bytes)
