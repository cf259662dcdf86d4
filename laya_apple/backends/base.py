"""What every backend offers, and the facts it reports about itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from laya_apple.prompt.sequence import Row


@dataclass(frozen=True, slots=True)
class RowOutput:
    """One row's outputs, float32: ``options`` [k] logits in slot order, ``action`` [n_act] logits."""

    options: NDArray[np.float32]
    action: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """Picklable facts about a loaded backend, sent from a worker to its parent."""

    backend: str
    """``mlx`` or ``coreml``."""
    device: str
    """``gpu``, ``ane`` or ``cpu``."""
    dtype: str
    weights_sha256: str
    compute_units: str | None = None
    buckets: tuple[int, ...] = ()
    """Compiled lengths that loaded, ascending (ANE)."""
    artifact_sha256: Mapping[int, str] = field(default_factory=dict)
    """Bucket -> artifact hash (ANE)."""
    probes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Bucket -> {ane_ms, cpu_ms, ratio, verdict}; includes buckets dropped for their ratio (ANE)."""
    dropped: Mapping[int, str] = field(default_factory=dict)
    """Bucket -> ``ErrorType: message`` for each bucket that auto could not load (ANE)."""


class Backend(Protocol):
    """A loaded model on one device. Not thread-safe: one thread calls ``forward`` at a time."""

    @property
    def info(self) -> BackendInfo: ...

    def forward(self, rows: Sequence[Row]) -> list[RowOutput]:
        """Run all rows and return their outputs in order. Non-finite outputs are returned, not hidden."""
        ...

    def warm(self) -> None:
        """Compile and run every shape that is compiled once."""
        ...

    def close(self) -> None: ...
