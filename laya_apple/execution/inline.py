"""Requests run on the caller's thread, one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from laya_apple import routing
from laya_apple.backends.base import Backend, BackendInfo, RowOutput
from laya_apple.errors import LayaAppleError
from laya_apple.execution import engine, report
from laya_apple.execution.loading import LoadRequest, load_backend, run_forward
from laya_apple.execution.notices import warn_caller
from laya_apple.execution.options import Options
from laya_apple.execution.reprobe import IdleReprobe, reprobe
from laya_apple.execution.sentinel import Sentinel
from laya_apple.platform import Platform
from laya_apple.routing import AneState

if TYPE_CHECKING:
    from laya_apple.checkpoint import Checkpoint
    from laya_apple.prompt.sequence import Prepared
    from laya_apple.result import Placement, RuntimeInfo


class Inline:
    """The backends of one Laya, in this process."""

    def __init__(self, options: Options, checkpoint: Checkpoint, platform: Platform) -> None:
        self._options = options
        self._spec = checkpoint.spec
        self._lock = threading.Lock()
        self._backends: dict[str, Backend] = {}
        self.prospect = engine.prospect(platform, checkpoint.spec)
        self._ane = AneState(self.prospect.unavailable, self.prospect.auto_buckets)
        self.ane_error: str | None = None
        self._idle: IdleReprobe | None = None

        def load(device: str, *, strict: bool = True, buckets: tuple[int, ...] = ()) -> None:
            self._backends[device] = load_backend(
                LoadRequest(device, checkpoint, options.dtype, options.batch_size, strict, buckets), platform
            )

        try:
            if options.device == "ane":
                load("ane", buckets=checkpoint.spec.ane_buckets)
            else:
                load("gpu" if options.device == "auto" else options.device)
                if options.device == "auto" and self._ane.unavailable is None:
                    self._load_ane(load)
        except BaseException:  # reraise: after giving back what was loaded
            self.close(0.0)
            raise
        self.sentinel: Sentinel | None = None
        if "ane" in self._backends:
            self._watch_over(self._backends["ane"])

    def _watch_over(self, ane: Backend) -> None:
        if self._options.ane_reprobe:
            self._idle = IdleReprobe(self._lock, self._reprobe)
        ask = self._idle.ask if self._idle else None
        self.sentinel = Sentinel(self._spec.name, ane.info.probes, warn_caller, ask)

    def _reprobe(self, bucket: int) -> None:
        """Lock held."""
        ane = self._backends.get("ane")
        if ane is not None and self.sentinel is not None:
            self.sentinel.reprobed(bucket, reprobe(ane, bucket))

    def _load_ane(self, load: Any) -> None:
        auto_buckets = self.prospect.auto_buckets
        try:
            load("ane", strict=False, buckets=auto_buckets)
        except Exception as error:  # warned: row 6 auto goes on with MLX, every request says why
            self.ane_error = f"{type(error).__name__}: {error}"
            self._ane = AneState("ane_runtime_unavailable", auto_buckets)
            warn_caller(engine.unavailable_message(error))
            return
        info = self._backends["ane"].info
        self._ane = AneState(None, auto_buckets, info.buckets)

    def run(
        self, identity: report.Identity, prepared: Prepared
    ) -> tuple[list[RowOutput], Callable[[float], RuntimeInfo]]:
        """Route and run one request; outputs, and what makes its record once its latency_ms is known.

        Raises what routing and the backend raise.
        """
        spec = self._spec
        decision = routing.decide(
            self._options.device,
            spec,
            len(prepared.rows),
            prepared.sequence_length,
            self._ane,
            option_count=max(len(row.markers) for row in prepared.rows),
        )
        backend = self._backends.get(decision.target)
        if backend is None:
            raise LayaAppleError(
                f"routing chose {decision.target} ({decision.reason}), whose backend is not loaded; "
                "nothing ran in its place"
            )
        buckets: tuple[int, ...] = ()
        if decision.target == "ane":
            buckets = report.row_buckets(spec, prepared.rows)
            report.check_loaded(spec, backend.info, buckets)
        with self._lock:
            start_ns = time.monotonic_ns()
            outputs = run_forward(backend, decision.target, prepared.rows)
            end_ns = time.monotonic_ns()
            if self._idle is not None:
                self._idle.served()
        ran = report.ran_on(backend.info, buckets, self._placements(buckets, (end_ns - start_ns) / 1e6))

        def record(latency_ms: float) -> RuntimeInfo:
            return report.runtime_info(
                identity,
                ran,
                prepared,
                decision,
                latency_ms=latency_ms,
                device_ms=(end_ns - start_ns) / 1e6,
            )

        return outputs, record

    def _placements(self, buckets: tuple[int, ...], service_ms: float) -> Mapping[int, Placement]:
        if self.sentinel is None or not buckets:
            return report.NO_PLACEMENTS
        self.sentinel.observe(buckets, service_ms)
        return self.sentinel.placements()

    def ane_state(self) -> AneState:
        return self._ane

    def backend_infos(self) -> dict[str, BackendInfo]:
        return {device: backend.info for device, backend in self._backends.items()}

    def close(self, timeout_s: float) -> None:
        """Release the backends, after a forward that runs on another thread.

        Where that does not end in ``timeout_s``, they are left to it: nothing is pulled from under a forward.
        """
        if self._idle is not None:
            self._idle.stop()
        if not self._lock.acquire(timeout=max(timeout_s, 0.0)):
            return
        try:
            while self._backends:
                self._backends.popitem()[1].close()
        finally:
            self._lock.release()
