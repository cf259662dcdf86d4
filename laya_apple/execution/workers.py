"""Requests run on devices with a queue each; the router sees the queues."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from laya_apple import routing
from laya_apple.backends.base import BackendInfo, RowOutput
from laya_apple.errors import LayaAppleError
from laya_apple.execution import adaptive, engine, report
from laya_apple.execution.lane import Job, Lane
from laya_apple.execution.loading import LoadRequest
from laya_apple.execution.notices import warn_caller, warn_from_thread
from laya_apple.execution.options import Options
from laya_apple.execution.transports import ProcessTransport, ThreadTransport
from laya_apple.platform import Platform
from laya_apple.result import Result
from laya_apple.routing import AneState, Decision
from laya_apple.trace import QueueSnapshot, RequestTrace

if TYPE_CHECKING:
    from laya_apple.checkpoint import Checkpoint
    from laya_apple.prompt.sequence import Prepared

_REQUEST_IDS = itertools.count(1)
Formatter = Callable[["Prepared", Sequence[RowOutput]], dict[str | int, dict[str, Any]]]
Trace = Callable[[RequestTrace], object]


class Request(Job):
    """A job that knows how to become a Result and a trace."""

    __slots__ = (
        "ane",
        "buckets",
        "decision",
        "gpu",
        "lane",
        "owner",
        "prepared",
        "prepared_ns",
        "routed_ns",
        "submit_ns",
    )

    owner: Workers
    lane: Lane
    prepared: Prepared
    decision: Decision
    gpu: QueueSnapshot | None
    ane: QueueSnapshot | None
    buckets: tuple[int, ...]
    submit_ns: int
    prepared_ns: int
    routed_ns: int

    @property
    def prepare_ms(self) -> float:
        return (self.prepared_ns - self.submit_ns) / 1e6

    def complete(
        self, outputs: list[RowOutput], service_start_ns: int, service_end_ns: int, received_ns: int
    ) -> Result:
        return self.owner.complete(self, outputs, service_start_ns, service_end_ns, received_ns)


class Workers:
    """The lanes of one Laya: a worker process for MLX, a thread or a process for the Neural Engine."""

    def __init__(
        self,
        options: Options,
        checkpoint: Checkpoint,
        platform: Platform,
        identity: report.Identity,
        formatter: Formatter,
        trace: Trace | None,
    ) -> None:
        self._options = options
        self._spec = checkpoint.spec
        self._identity = identity
        self._format = formatter
        self._trace = trace
        self._trace_failed = False
        self._route_lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}
        self._infos: dict[str, BackendInfo] = {}
        self._stop = threading.Event()
        self._watchdog = threading.Thread(
            target=_watch,
            args=(self._lanes, self._stop, options.request_timeout),
            name="laya-watchdog",
            daemon=True,
        )
        self._ane_up = threading.Event()
        self._pending_warning: str | None = None
        self.ane_error: str | None = None
        self._adaptive: adaptive.Adaptive | None = None
        self.prospect = engine.prospect(platform, checkpoint.spec)
        self._ane = AneState(self.prospect.unavailable, self.prospect.auto_buckets)
        wants_ane = options.device == "ane" or (options.device == "auto" and self._ane.unavailable is None)
        try:
            if options.device != "ane":
                self._start("gpu" if options.device == "auto" else options.device, checkpoint)
            if wants_ane:
                self._start("ane", checkpoint)
            self._await_lanes()
            if options.ane_handoff is True:
                adaptive.require(self._adaptive, self._ane_missing())
        except BaseException:  # reraise: no worker outlives a failed load
            self.close(0.0)
            raise
        self._watchdog.start()

    # Loading

    def _start(self, device: str, checkpoint: Checkpoint) -> None:
        options = self._options
        request = LoadRequest(
            device=device,
            checkpoint=checkpoint,
            dtype=options.dtype,
            batch_size=options.batch_size,
            strict=options.device != "auto",
            buckets=checkpoint.spec.ane_buckets if device == "ane" else (),
        )
        transport: ThreadTransport | ProcessTransport
        if device == "ane" and options.ane_host(checkpoint.spec.name) == "thread":
            self._adaptive = adaptive.create(options, checkpoint.spec.name, self._lanes.get("gpu"))
            transport = ThreadTransport(request, self._adaptive)
        else:
            transport = ProcessTransport(request, send_timeout_s=options.request_timeout)
        lane = Lane(
            device, transport, request_timeout_s=options.request_timeout, max_pending=options.max_pending
        )
        self._lanes[device] = lane
        lane.start()

    def _await_lanes(self) -> None:
        for device, lane in self._lanes.items():
            if device == "ane" and self._options.device == "auto":
                continue
            self._infos[device] = lane.transport.ready.result()
            _reissue(lane)
        ane = self._lanes.get("ane")
        if ane is None:
            return
        if self._options.device == "ane":
            self._ane_up.set()
        elif self._options.ane_startup == "wait":
            self._join_ane(ane)
            self._notice_dead_ane()
        else:
            self._ane = AneState("ane_starting", self.prospect.auto_buckets)
            # The lane's own thread reports; nothing here keeps this object alive.
            ane.transport.ready.add_done_callback(lambda _: self._join_ane(ane))

    def _join_ane(self, lane: Lane) -> None:
        """The auto instance's Neural Engine is up, or is not coming."""
        auto_buckets = self.prospect.auto_buckets
        try:
            info = lane.transport.ready.result()
        except Exception as error:  # warned: rows 6 and 16 auto goes on with MLX, every request says why
            self._lose_ane(error)
        else:
            _reissue(lane)
            self._infos["ane"] = info
            self._ane = AneState(None, auto_buckets, info.buckets)
            adaptive.warn_unavailable(self._adaptive, on_caller=self._options.ane_startup == "wait")
        self._ane_up.set()

    def _lose_ane(self, error: BaseException) -> None:
        self.ane_error = f"{type(error).__name__}: {error}"
        self._ane = AneState("ane_runtime_unavailable", self.prospect.auto_buckets)
        self._pending_warning = engine.unavailable_message(error)

    def wait_for_ane(self, timeout_s: float | None) -> bool:
        """Wait for a Neural Engine that starts in the background; whether it serves."""
        if "ane" not in self._lanes:
            return False
        self._ane_up.wait(timeout_s)
        self._notice_dead_ane()
        return self._ane_up.is_set() and "ane" in self._infos and self._lanes["ane"].dead is None

    def _notice_dead_ane(self) -> None:
        """Under auto, leave a Neural Engine that died, with one warning on a caller's thread."""
        with self._route_lock:
            self._check_ane()
            message, self._pending_warning = self._pending_warning, None
        if message is not None:
            warn_caller(message)

    def _check_ane(self) -> None:
        """Route lock held."""
        lane = self._lanes.get("ane")
        if lane is None or lane.dead is None or self._options.device != "auto":
            return
        if self.ane_error is None and not self._stop.is_set():
            self._lose_ane(lane.dead)

    # Requests

    def submit(self, prepared: Prepared, submit_ns: int, prepared_ns: int) -> Request:
        """Route a request on the queues as they stand and put it in one.

        Raises UnsupportedShapeError and ArtifactErrors of an explicit Neural Engine before anything is
        queued, and BackendUnavailableError when the device is dead or its queue full.
        """
        options, spec = self._options, self._spec
        buckets: tuple[int, ...] = ()
        if options.device == "ane":
            buckets = report.row_buckets(spec, prepared.rows)
            report.check_loaded(spec, self._infos["ane"], buckets)
        self._notice_dead_ane()
        # One request at a time from snapshot to queue, so that each sees the ones before it.
        with self._route_lock:
            self._check_ane()
            gpu, ane = self._snapshot("gpu"), self._snapshot("ane")
            decision = self._decide(prepared, gpu, ane)
            lane = self._lanes.get(decision.target)
            if lane is None or decision.target not in self._infos:
                raise LayaAppleError(
                    f"routing chose {decision.target} ({decision.reason}), whose backend is not loaded; "
                    "nothing ran in its place"
                )
            if decision.target == "ane":
                buckets = buckets or report.row_buckets(spec, prepared.rows)
                estimate_ms = self.prospect.table.ane_estimate_ms(buckets)
            else:
                estimate_ms = self.prospect.table.gpu_estimate_ms(
                    prepared.sequence_length, len(prepared.rows)
                )
            request = Request(next(_REQUEST_IDS), prepared.rows, estimate_ms)
            request.owner, request.lane, request.prepared = self, lane, prepared
            request.decision, request.buckets = decision, buckets
            request.gpu, request.ane = gpu, ane
            request.submit_ns, request.prepared_ns = submit_ns, prepared_ns
            request.routed_ns = time.monotonic_ns()
            if self._adaptive is not None and lane.device == "gpu":
                self._adaptive.gpu_request()
            lane.submit(request)
        return request

    def _decide(self, prepared: Prepared, gpu: QueueSnapshot | None, ane: QueueSnapshot | None) -> Decision:
        device, rows, length = self._options.device, len(prepared.rows), prepared.sequence_length
        option_count = max(len(row.markers) for row in prepared.rows)
        if device != "auto" or gpu is None:
            return routing.decide(device, self._spec, rows, length, self._ane, option_count=option_count)
        return routing.decide_queued(
            device,
            self._spec,
            rows,
            length,
            self._ane,
            table=self.prospect.table,
            gpu=gpu,
            ane=ane,
            option_count=option_count,
        )

    def _snapshot(self, device: str) -> QueueSnapshot | None:
        lane = self._lanes.get(device)
        if lane is None or lane.dead is not None or device not in self._infos:
            return None
        return lane.snapshot()

    def complete(
        self,
        request: Request,
        outputs: list[RowOutput],
        service_start_ns: int,
        service_end_ns: int,
        received_ns: int,
    ) -> Result:
        """Format an answered request and hand its trace over. Raises what formatting raises."""
        prepared, gpu, ane = request.prepared, request.gpu, request.ane
        answers = self._format(prepared, outputs)
        response_ns = time.monotonic_ns()
        runtime = report.runtime_info(
            self._identity,
            report.ran_on(self._infos[request.lane.device], request.buckets),
            prepared,
            request.decision,
            latency_ms=(response_ns - request.submit_ns) / 1e6,
            device_ms=(service_end_ns - service_start_ns) / 1e6,
            queue_wait_ms=(request.dispatch_ns - request.queue_enter_ns) / 1e6,
            gpu_backlog_ms=gpu.backlog_ms if gpu else None,
            ane_backlog_ms=ane.backlog_ms if ane else None,
            request_id=request.request_id,
        )
        if self._trace is not None:
            self._hand_over(
                RequestTrace(
                    request_id=request.request_id,
                    sequence_length=prepared.sequence_length,
                    question_count=len(prepared.rows),
                    target=request.decision.target,
                    routing_reason=request.decision.reason,
                    service_estimate_ms=request.estimate_ms,
                    gpu=gpu,
                    ane=ane,
                    submit_ns=request.submit_ns,
                    prepared_ns=request.prepared_ns,
                    routed_ns=request.routed_ns,
                    queue_enter_ns=request.queue_enter_ns,
                    dispatch_ns=request.dispatch_ns,
                    service_start_ns=service_start_ns,
                    service_end_ns=service_end_ns,
                    received_ns=received_ns,
                    response_ns=response_ns,
                )
            )
        return Result(answers, {"input_tokens": prepared.input_tokens, "output_tokens": 0}, runtime)

    def _hand_over(self, trace: RequestTrace) -> None:
        assert self._trace is not None
        try:
            self._trace(trace)
        except Exception as error:  # warned: our own rule; a trace callback is reported once, fails nothing
            if self._trace_failed:
                return
            self._trace_failed = True
            place = traceback.extract_tb(error.__traceback__)[-1]
            warn_from_thread(
                f"the trace callback failed at {place.filename}:{place.lineno}: {type(error).__name__}: "
                f"{error}; requests go on, and this is reported once"
            )

    # Facts and the end

    def snapshots(self) -> dict[str, QueueSnapshot]:
        """The queues of the devices that serve."""
        found = {device: self._snapshot(device) for device in self._lanes}
        return {device: snapshot for device, snapshot in found.items() if snapshot is not None}

    def handoff(self) -> dict[str, Any]:
        """``info()["ane_handoff"]``."""
        return adaptive.describe(self._options, self._spec.name, self._adaptive, self._ane_missing())

    def _ane_missing(self) -> str | None:
        """Why this auto instance's Neural Engine is not in use, or None where it is."""
        return self.ane_error or (None if "ane" in self._infos else self._ane.unavailable)

    def ane_state(self) -> AneState:
        self._notice_dead_ane()
        return self._ane

    def backend_infos(self) -> dict[str, BackendInfo]:
        return dict(self._infos)

    def describe(self) -> dict[str, dict[str, Any]]:
        """Each device's host: thread or process, process id, and why it is dead if it is."""
        return {
            device: {**lane.transport.describe(), "dead": str(lane.dead) if lane.dead else None}
            for device, lane in self._lanes.items()
        }

    def serves_from_this_thread(self) -> bool:
        """True on a thread that answers requests, where waiting for one would wait for ever."""
        return threading.get_ident() in {lane.transport.thread_ident for lane in self._lanes.values()}

    def close(self, timeout_s: float) -> None:
        """Finish what is queued for up to ``timeout_s`` in all, fail the rest, end every worker."""
        deadline = time.monotonic() + timeout_s
        try:
            for lane in self._lanes.values():
                lane.close(max(deadline - time.monotonic(), 0.0))
        finally:
            self._stop.set()
            self._ane_up.set()
            if self._watchdog.is_alive():
                self._watchdog.join(1.0)


def _watch(lanes: Mapping[str, Lane], stop: threading.Event, timeout_s: float) -> None:
    while not stop.wait(min(max(timeout_s / 10, 0.01), 1.0)):
        for lane in lanes.values():
            lane.check_timeout()


def _reissue(lane: Lane) -> None:
    if isinstance(lane.transport, ProcessTransport):
        for category, message in lane.transport.load_warnings:
            warn_caller(message, UserWarning if category == "UserWarning" else RuntimeWarning)
