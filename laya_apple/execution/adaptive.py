"""Adaptive Neural Engine execution: the state machine, the two Core ML paths, and what is said about them."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from laya_apple.backends.base import Backend, RowOutput
from laya_apple.errors import BackendUnavailableError
from laya_apple.execution.handoff import Handoff
from laya_apple.execution.loading import run_forward
from laya_apple.execution.notices import warn_caller, warn_from_thread
from laya_apple.execution.options import Options

if TYPE_CHECKING:
    from laya_apple.backends.coreml_async import AsyncPath
    from laya_apple.execution.lane import Job, Lane


class Adaptive:
    """One Neural Engine thread's choice between coremltools' predict and the asynchronous path.

    ``attach`` and ``run`` belong to that thread; the rest may be called from any.
    """

    def __init__(self, gpu: Lane) -> None:
        self._gpu = gpu
        self._path: AsyncPath | None = None
        self._machine = Handoff(on_disabled=_warn_disabled)
        self.unavailable: str | None = "the Neural Engine has not loaded"
        """Why every forward is synchronous, or None where the asynchronous path has loaded."""

    def attach(self, backend: Backend) -> None:
        """Load the asynchronous path of a backend that has just loaded; ``unavailable`` says what failed."""
        from laya_apple.backends.coreml import CoreMLBackend
        from laya_apple.backends.coreml_async import AsyncPath

        if not isinstance(backend, CoreMLBackend):
            self.unavailable = (
                "the platform wraps the Core ML backend, which the asynchronous path would pass by"
            )
            return
        try:
            self._path = AsyncPath.load(backend)
        except BackendUnavailableError as error:  # warned: row 22 by warn_unavailable, or raised by require
            self.unavailable = str(error)
        else:
            self.unavailable = None

    def gpu_request(self) -> None:
        """A request is about to be queued on the GPU."""
        if self._path is not None:
            self._machine.gpu(self._gpu.last_active_ns)

    def run(self, backend: Backend, device: str, job: Job) -> list[RowOutput]:
        """One job's forward on the path that the machine decides. Raises what ``run_forward`` raises.

        An asynchronous prediction that fails runs again on coremltools' predict, still the Neural Engine.
        """
        path = self._path
        if path is None:
            return run_forward(backend, device, job.rows)
        from laya_apple.backends.coreml_async import AsyncPredictionError

        decided = self._machine.decide(self._gpu.last_active_ns)
        try:
            if decided == "async":
                try:
                    return run_forward(path, device, job.rows)
                except AsyncPredictionError as error:  # warned: row 22 and the path is disabled for good
                    self._machine.disable(str(error))
            return run_forward(backend, device, job.rows)
        finally:
            self._machine.observe(job.prepare_ms)

    def describe(self) -> dict[str, Any]:
        """The part of ``info()["ane_handoff"]`` that depends on what loaded and what ran."""
        if self._path is None:
            return {"active": False, "reason": self.unavailable}
        snapshot = self._machine.snapshot()
        return {
            "active": snapshot.state != "disabled",
            "reason": snapshot.disabled_reason,
            **snapshot.to_dict(),
            "probes": {bucket: dict(probe) for bucket, probe in self._path.probes.items()},
        }

    def close(self) -> None:
        """Let the asynchronous models go."""
        if self._path is not None:
            self._path.close()


def create(options: Options, model_name: str, gpu: Lane | None) -> Adaptive | None:
    """The adaptive execution of these options; None where it is off or cannot apply."""
    if gpu is None or options.ane_handoff is False or options.handoff_ineligible(model_name) is not None:
        return None
    return Adaptive(gpu)


def require(adaptive: Adaptive | None, ane_missing: str | None) -> None:
    """For ``ane_handoff=True``: raise BackendUnavailableError unless the asynchronous path has loaded."""
    reason = f"the Neural Engine is not in use ({ane_missing})" if ane_missing else None
    if reason is None:
        reason = adaptive.unavailable if adaptive is not None else "the Neural Engine is not in use"
    if reason is not None:
        raise BackendUnavailableError(
            f"ane_handoff=True: adaptive Neural Engine execution is unavailable: {reason}"
        )


def describe(
    options: Options, model_name: str, adaptive: Adaptive | None, ane_missing: str | None
) -> dict[str, Any]:
    """``info()["ane_handoff"]``: ``eligible``, ``active``, ``reason`` (why not) and, once loaded, more."""
    ineligible = options.handoff_ineligible(model_name)
    if options.ane_handoff is False:
        facts: dict[str, Any] = {"active": False, "reason": "ane_handoff=False"}
    elif ineligible is not None:
        facts = {"active": False, "reason": ineligible}
    elif ane_missing is not None or adaptive is None:
        facts = {"active": False, "reason": f"the Neural Engine is not in use ({ane_missing})"}
    else:
        facts = adaptive.describe()
    return {"eligible": ineligible is None, **facts}


def warn_unavailable(adaptive: Adaptive | None, *, on_caller: bool) -> None:
    """One RuntimeWarning a process where adaptive execution could apply but did not load."""
    told = _told_in_this_process()
    if adaptive is None or adaptive.unavailable is None or told.is_set():
        return
    told.set()
    warn = warn_caller if on_caller else warn_from_thread
    warn(
        "adaptive Neural Engine execution is unavailable, so forwards run coremltools' predict only: "
        f"{adaptive.unavailable}; ane_handoff=False says that this is meant. This is said once; "
        "info()['ane_handoff'] has the reason each time"
    )


@functools.cache
def _told_in_this_process() -> threading.Event:
    return threading.Event()


def _warn_disabled(reason: str) -> None:
    warn_from_thread(
        "the asynchronous Core ML path is disabled, and forwards go on through coremltools' predict on the "
        f"Neural Engine: {reason}"
    )
