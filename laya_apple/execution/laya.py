"""``Laya``: a checkpoint loaded on one device, or on two with a router before them."""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from laya_apple.checkpoint import Checkpoint, open_checkpoint
from laya_apple.errors import BackendUnavailableError, InvalidRequestError, LayaAppleError
from laya_apple.execution import adaptive, report
from laya_apple.execution.inline import Inline
from laya_apple.execution.options import REQUEST_TIMEOUT_S, Options
from laya_apple.execution.workers import Trace, Workers
from laya_apple.platform import Platform, current_platform
from laya_apple.prompt.answers import Calibration, format_answers
from laya_apple.prompt.sequence import Prepared, prepare
from laya_apple.prompt.tokenizer import Tokenizer
from laya_apple.registry import resolve
from laya_apple.result import Result
from laya_apple.trace import QueueSnapshot

if TYPE_CHECKING:
    from laya_apple.backends.base import RowOutput

CLOSE_TIMEOUT_S = 30.0
_FINALIZE_TIMEOUT_S = 5.0


class Laya:
    """A model that answers typed questions about a text. Make one with :meth:`from_pretrained`.

    Safe to use from many threads. Not usable after a fork: load it again in the child.
    """

    def __init__(
        self, options: Options, checkpoint: Checkpoint, platform: Platform, trace: Trace | None
    ) -> None:
        """Use :meth:`from_pretrained`."""
        self._pid = os.getpid()
        self._closed = False
        self._options = options
        self._platform = platform
        self._config = checkpoint.config
        self._tokenizer = Tokenizer.from_dir(checkpoint.path)
        self._format = functools.partial(_answers, Calibration.from_config(checkpoint.config))
        self._identity = report.Identity(checkpoint.spec, options.execution, options.dtype, platform.virtual)
        self._executor: Inline | Workers
        if options.execution == "inline":
            self._executor = Inline(options, checkpoint, platform)
        else:
            self._executor = Workers(options, checkpoint, platform, self._identity, self._format, trace)
        # Also at interpreter exit: no worker process is left behind.
        self._finalizer = weakref.finalize(self, _finalize, self._pid, self._executor)

    @classmethod
    def from_pretrained(
        cls,
        model_id: str | os.PathLike[str],
        device: str = "auto",
        *,
        dtype: str = "float16",
        local_files_only: bool = False,
        batch_size: int = 16,
        execution: str = "inline",
        ane_placement: str = "auto",
        ane_startup: str = "wait",
        trace: Trace | None = None,
        ane_handoff: bool | None = None,
        ane_reprobe: bool = False,
        request_timeout: float = REQUEST_TIMEOUT_S,
        max_pending: int | None = None,
    ) -> Laya:
        """Load a registered model (name or repository) or a local checkpoint directory.

        ``device``: ``gpu`` is MLX on the GPU, ``ane`` the validated Core ML artifact on the Neural Engine,
        each or an error; ``auto`` chooses between the two before each request; ``cpu`` is MLX on the CPU,
        never chosen by auto. ``dtype`` (``float16`` or ``float32``) is MLX's; the Neural Engine is float16.

        ``execution="inline"`` runs on the caller's thread. ``"workers"`` gives each device a queue: MLX in a
        worker process, the Neural Engine on a thread or in a process (``ane_placement``; ``auto`` takes the
        measured placement). Then ``trace`` is called with one RequestTrace a completed request,
        ``request_timeout`` seconds bound one forward, ``max_pending`` bounds a device's queue, and
        ``ane_startup="background"`` lets MLX serve while the Neural Engine loads.

        ``ane_handoff``: under auto, with workers and the Neural Engine on a thread, forwards move between
        coremltools' predict and Core ML's asynchronous prediction of the same artifact while the GPU is busy.
        None does so where it is available, True insists on it, False never does; ``info()["ane_handoff"]``.

        A bucket whose requests slow down towards CPU speed after it has loaded is suspect: one
        RuntimeWarning, ``info()["ane_sentinel"]``, and ``RuntimeInfo.placement`` UNKNOWN; no request is
        moved. With ``ane_reprobe`` it is probed again once the device is idle, which decides PLACED or
        FELL_BACK.

        Raises ValueError for arguments that cannot be served, before anything is downloaded or loaded;
        UnsupportedModelError, BackendUnavailableError or an ArtifactError for what cannot be loaded.
        """
        options = Options(
            device=device,
            dtype=dtype,
            local_files_only=local_files_only,
            batch_size=batch_size,
            execution=execution,
            ane_placement=ane_placement,
            ane_startup=ane_startup,
            ane_handoff=ane_handoff,
            ane_reprobe=ane_reprobe,
            request_timeout=request_timeout,
            max_pending=max_pending,
        )
        if trace is not None and not callable(trace):
            raise ValueError(f"trace must be a function of one RequestTrace, not {trace!r}")
        options.check(traced=trace is not None)
        platform = current_platform()
        spec = resolve(model_id)
        options.check_handoff(spec.name)
        options.check_reprobe(spec.name)
        checkpoint = open_checkpoint(spec, local_files_only=local_files_only, platform=platform)
        return cls(options, checkpoint, platform, trace)

    def predict(self, context: object = None, questions: object = None, *, state: object = None) -> Result:
        """Answer ``questions`` about ``context`` (or ``state``, the same thing by another name).

        Raises InvalidRequestError for a malformed request, UnsupportedShapeError or an ArtifactError when an
        explicit Neural Engine cannot take it, BackendUnavailableError when the device is dead or closed, and
        LayaAppleError when the backend failed or its outputs are not finite.
        """
        executor = self._check_usable()
        if isinstance(executor, Workers):
            if executor.serves_from_this_thread():
                raise LayaAppleError(
                    "predict was called from a callback, on the thread that answers requests, and would wait "
                    "for ever; use submit there"
                )
            result: Result = self.submit(context, questions, state=state).result()
            return result
        submit_ns = time.monotonic_ns()
        prepared = self._prepare(context, questions, state)
        if not prepared.rows:
            return self._nothing(submit_ns)
        outputs, record = executor.run(self._identity, prepared)
        answers = self._format(prepared, outputs)
        runtime = record((time.monotonic_ns() - submit_ns) / 1e6)
        return Result(answers, {"input_tokens": prepared.input_tokens, "output_tokens": 0}, runtime)

    def submit(
        self, context: object = None, questions: object = None, *, state: object = None
    ) -> Future[Result]:
        """Like :meth:`predict`, without waiting: tokenises here, then queues the request on a device.

        A malformed request, a dead device or a full queue raises here; what happens later is raised by the
        Future. It can be cancelled until the device is free for it. Inline, it runs before this returns.
        """
        submit_ns = time.monotonic_ns()
        executor = self._check_usable()
        if isinstance(executor, Inline):
            done: Future[Result] = Future()
            done.set_running_or_notify_cancel()
            done.set_result(self.predict(context, questions, state=state))
            return done
        prepared = self._prepare(context, questions, state)
        prepared_ns = time.monotonic_ns()
        if not prepared.rows:
            empty: Future[Result] = Future()
            empty.set_result(self._nothing(submit_ns))
            return empty
        return executor.submit(prepared, submit_ns, prepared_ns).future

    async def apredict(
        self, context: object = None, questions: object = None, *, state: object = None
    ) -> Result:
        """:meth:`predict` for asyncio: the event loop is free while the device works.

        Cancelling the task cancels the request, if it still waits.
        """
        import asyncio

        if isinstance(self._executor, Inline):
            return await asyncio.to_thread(self.predict, context, questions, state=state)
        return await asyncio.wrap_future(self.submit(context, questions, state=state))

    def wait_for_ane(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds (None: for ever) for the Neural Engine; whether it serves.

        False at once where this instance has none. A start-up that failed is warned about here or at the next
        request, whichever comes first.
        """
        executor = self._check_usable()
        if isinstance(executor, Workers):
            return executor.wait_for_ane(timeout)
        return "ane" in executor.backend_infos()

    def queue_snapshots(self) -> dict[str, QueueSnapshot]:
        """Device -> its queue now; empty for inline execution."""
        executor = self._check_usable()
        return executor.snapshots() if isinstance(executor, Workers) else {}

    def info(self) -> dict[str, Any]:
        """Facts about this instance, as JSON-able values."""
        executor = self._check_usable()
        workers = executor if isinstance(executor, Workers) else None
        spec, options, prospect = self._identity.spec, self._options, executor.prospect
        infos = executor.backend_infos()
        state = executor.ane_state() if options.uses_ane else None
        ane = infos.get("ane")
        return {
            "model": spec.name,
            "model_revision": spec.revision,
            "weights_sha256": spec.weights_sha256,
            "device": options.device,
            "execution": options.execution,
            "dtype": options.dtype,
            "synthetic": self._platform.virtual,
            "platform": {
                "soc": self._platform.soc,
                "macos": self._platform.macos,
                "macos_build": self._platform.macos_build,
                "machine": self._platform.machine,
            },
            "backends": {device: report.plain(info) for device, info in infos.items()},
            "workers": workers.describe() if workers else {},
            "ane_unavailable": state.unavailable if state and options.device == "auto" else None,
            "ane_error": executor.ane_error,
            "ane_auto_buckets": list(state.auto_buckets) if state else [],
            "ane_buckets": list(ane.buckets) if ane else [],
            "ane_dropped": dict(ane.dropped) if ane else {},
            "ane_probes": {bucket: dict(probe) for bucket, probe in ane.probes.items()} if ane else {},
            "ane_sentinel": executor.sentinel.describe() if executor.sentinel else {},
            "ane_placement": options.ane_host(spec.name) if workers and ane else None,
            "ane_handoff": (
                workers.handoff() if workers else adaptive.describe(options, spec.name, None, None)
            ),
            "routing_profile": str(prospect.profile.path) if prospect.profile else None,
            "service_table": prospect.table.source,
            "request_timeout_s": options.request_timeout,
            "max_pending": options.max_pending,
        }

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Finish what is queued for up to ``timeout`` seconds, fail the rest, and end every worker.

        May be called more than once; any other use afterwards raises BackendUnavailableError. In a forked
        child it does nothing.
        """
        if os.getpid() != self._pid:
            return
        self._closed = True
        self._finalizer.detach()
        self._executor.close(timeout)

    def __enter__(self) -> Laya:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Ctrl-C means now: what waits is failed instead of finished.
        interrupted = kind is not None and not issubclass(kind, Exception)
        self.close(0.0 if interrupted else CLOSE_TIMEOUT_S)

    def _prepare(self, context: object, questions: object, state: object) -> Prepared:
        if state is not None:
            if context is not None:
                raise InvalidRequestError("context and state name the same thing; pass one of them")
            context = state
        if questions is None:
            raise InvalidRequestError("questions is missing; pass a dict of id -> definition")
        return prepare(self._tokenizer, self._config, context, questions)

    def _nothing(self, submit_ns: int) -> Result:
        runtime = report.nothing_ran(self._identity, (time.monotonic_ns() - submit_ns) / 1e6)
        return Result({}, {"input_tokens": 0, "output_tokens": 0}, runtime)

    def _check_usable(self) -> Inline | Workers:
        if os.getpid() != self._pid:
            raise BackendUnavailableError(
                f"this Laya was loaded in process {self._pid} and cannot be used in its forked child "
                f"{os.getpid()}; load it again here, or start processes with the 'spawn' method"
            )
        if self._closed:
            raise BackendUnavailableError("this Laya is closed")
        return self._executor


def _answers(
    calibration: Calibration, prepared: Prepared, outputs: Sequence[RowOutput]
) -> dict[str | int, dict[str, Any]]:
    return format_answers(prepared.questions, outputs, calibration)


def _finalize(pid: int, executor: Inline | Workers) -> None:
    if os.getpid() == pid:
        executor.close(_FINALIZE_TIMEOUT_S)
