"""MLX on its CPU device in the GPU's place: declared times, faults, and a memory of repeating requests."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laya_apple.backends.base import Backend, BackendInfo, RowOutput
from laya_apple.prompt.sequence import Row
from pytest_laya.virtual_mac.declared import current_times, sleep_until
from pytest_laya.virtual_mac.faults import VirtualMacError, fires, hang, kill_process
from pytest_laya.virtual_mac.overruns import Overruns
from pytest_laya.virtual_mac.state import log_event

TRAIN_LENGTH = 128
"""A single row up to this long is a train or looks like one: its outputs are never kept."""
KEPT_REQUESTS = 8

RowsKey = tuple[Row, ...]


@dataclass(frozen=True)
class _Seen:
    outputs: tuple[RowOutput, ...]
    confirmed: bool
    """Computed twice with bitwise equal outputs; only then is the work skipped."""


class VirtualGPU:
    """A backend that takes at least its declared time for every forward; the rest is slept without the GIL.

    The host is slower than a GPU on long rows, so outputs of repeating background requests are kept once two
    computations agreed bit for bit. They still take the declared time. Nothing is kept under a profile that
    declares no times.
    """

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._seen: OrderedDict[RowsKey, _Seen] = OrderedDict()
        self._overruns = Overruns()

    @property
    def info(self) -> BackendInfo:
        return self._inner.info

    @property
    def overruns(self) -> Overruns:
        """How often, and by how much, the host was slower than the declared times."""
        return self._overruns

    def forward(self, rows: Sequence[Row]) -> list[RowOutput]:
        """Outputs of all rows, in order. Raises what the wrapped backend raises, and the GPU's faults."""
        started = time.perf_counter()
        self._fail_if_told()
        times = current_times()
        outputs, kept = self._outputs(tuple(rows), keep=times.timed)
        if (fault := fires("gpu_nonfinite")) is not None:
            value = float(fault.args["value"])
            outputs = [
                RowOutput(np.full_like(o.options, value), np.full_like(o.action, value)) for o in outputs
            ]
        if rows:
            length = max(len(row.ids) for row in rows)
            declared_ms = times.gpu_ms(length, len(rows))
            worked_ms = (time.perf_counter() - started) * 1e3
            self._overruns = self._overruns.add(worked_ms, declared_ms)
            log_event("forward", device="gpu", rows=len(rows), length=length, kept=kept, worked_ms=worked_ms)
            sleep_until(started + declared_ms / 1e3)
        return outputs

    def warm(self) -> None:
        self._inner.warm()

    def close(self) -> None:
        log_event("overruns", device="gpu", **self._overruns.to_dict())
        self._inner.close()

    def _fail_if_told(self) -> None:
        if (fault := fires("gpu_kill")) is not None:
            kill_process(fault)
        if (fault := fires("gpu_hang")) is not None:
            hang(fault)
        if (fault := fires("gpu_error")) is not None:
            raise VirtualMacError(fault.args["message"])

    def _outputs(self, rows: RowsKey, *, keep: bool) -> tuple[list[RowOutput], bool]:
        if not keep or not rows or (len(rows) == 1 and len(rows[0].ids) <= TRAIN_LENGTH):
            return self._inner.forward(rows), False
        seen = self._seen.get(rows)
        if seen is not None and seen.confirmed:
            self._seen.move_to_end(rows)
            return [RowOutput(o.options.copy(), o.action.copy()) for o in seen.outputs], True
        outputs = self._inner.forward(rows)
        confirmed = seen is not None and _same(seen.outputs, outputs)
        copies = tuple(RowOutput(o.options.copy(), o.action.copy()) for o in outputs)
        self._seen[rows] = _Seen(copies, confirmed)
        if len(self._seen) > KEPT_REQUESTS:
            self._seen.popitem(last=False)
        return outputs, False


def _same(before: Sequence[RowOutput], after: Sequence[RowOutput]) -> bool:
    return all(
        a.options.tobytes() == b.options.tobytes() and a.action.tobytes() == b.action.tobytes()
        for a, b in zip(before, after, strict=True)
    )
