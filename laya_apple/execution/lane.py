"""One device's FIFO: what is queued, what runs, and what happens when the device dies.

A lane is passive. Callers put jobs in; the transport's thread (see ``transports``) reports what became of
them. Every Future a lane has accepted is resolved by it: with a result, an error, or as cancelled.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from laya_apple.backends.base import BackendInfo, RowOutput
from laya_apple.errors import BackendUnavailableError, LayaAppleError
from laya_apple.trace import QueueSnapshot

if TYPE_CHECKING:
    from laya_apple.prompt.sequence import Row

STOP_GRACE_S = 5.0
"""How long a transport may take to end by itself before it is killed or abandoned."""


class RequestFuture(Future[Any]):
    """A Future whose cancellation also takes the job off its device's queue."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cancel: Callable[[], None] | None = None

    def cancel(self) -> bool:
        """Cancel the request unless the device has become free for it."""
        if not super().cancel():
            return False
        if self.on_cancel is not None:
            self.on_cancel()
        return True


class Job(ABC):
    """One request on its way through a lane. Stamps are ``time.monotonic_ns()``, 0 until they happen."""

    __slots__ = (
        "cancelled",
        "dispatch_ns",
        "estimate_ms",
        "frame",
        "future",
        "queue_enter_ns",
        "request_id",
        "rows",
        "sent_ns",
    )

    def __init__(self, request_id: int, rows: Sequence[Row], estimate_ms: float) -> None:
        self.request_id = request_id
        self.rows = rows
        self.estimate_ms = estimate_ms
        self.future = RequestFuture()
        self.frame = b""
        self.queue_enter_ns = self.sent_ns = self.dispatch_ns = 0
        self.cancelled = False

    @property
    def prepare_ms(self) -> float:
        """How long the caller's thread took to prepare the rows."""
        return 0.0

    @abstractmethod
    def complete(
        self, outputs: list[RowOutput], service_start_ns: int, service_end_ns: int, received_ns: int
    ) -> Any:
        """What the Future resolves to; runs on the transport's thread. An error it raises fails the job."""


class Transport(Protocol):
    """Carries jobs to a backend and reports to the lane from a thread of its own.

    ``send`` does not raise: a backend that cannot be reached is reported as dead, like any other death.
    """

    depth: int
    """Jobs that may be sent and not yet answered."""
    ready: Future[BackendInfo]
    """Resolves when the backend is loaded and warm, or with the error that stopped it."""

    @property
    def thread_ident(self) -> int | None: ...
    def start(self, lane: Lane) -> None: ...
    def accepts_behind_another(self, job: Job) -> bool: ...
    def prepare(self, job: Job) -> None: ...
    def send(self, job: Job) -> None: ...
    def abandon(self) -> None: ...
    def stop(self, grace_s: float) -> None: ...
    def describe(self) -> dict[str, Any]: ...


class Lane:
    """A device's queue over one transport. Thread-safe."""

    def __init__(
        self,
        device: str,
        transport: Transport,
        *,
        request_timeout_s: float,
        max_pending: int | None = None,
    ) -> None:
        self.device = device
        self.transport = transport
        self._timeout_ns = int(request_timeout_s * 1e9)
        self._timeout_s = request_timeout_s
        self._max_pending = max_pending
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._queued: deque[Job] = deque()
        self._sent: deque[Job] = deque()
        self._waiting_ms = 0.0
        self._completing = False
        self._free_ns = 0
        self._closing = False
        self._dead: BackendUnavailableError | None = None

    @property
    def dead(self) -> BackendUnavailableError | None:
        """Why the device no longer serves, or None."""
        return self._dead

    @property
    def last_active_ns(self) -> int | None:
        """None while a job is queued or running, else when the last one ended (0 before the first)."""
        with self._lock:
            return None if self._queued or self._sent or self._completing else self._free_ns

    def start(self) -> None:
        """Begin loading; ``transport.ready`` tells when it is done."""
        self.transport.start(self)

    def submit(self, job: Job) -> None:
        """Queue a job. Raises BackendUnavailableError when the device is dead, closed, or its queue full."""
        self.transport.prepare(job)
        job.future.on_cancel = lambda: self._cancelled(job)
        with self._lock:
            self._check_open()
            pending = len(self._queued) + len(self._sent)
            if self._max_pending is not None and pending >= self._max_pending:
                raise BackendUnavailableError(
                    f"the {self.device} queue is full: {pending} requests are pending and max_pending is "
                    f"{self._max_pending}; wait for some to finish"
                )
            job.queue_enter_ns = time.monotonic_ns()
            self._queued.append(job)
            self._waiting_ms += job.estimate_ms
            self._pump()

    def snapshot(self) -> QueueSnapshot:
        """Estimates of the jobs that wait plus the running one's remainder."""
        with self._lock:
            if not self._sent:
                return QueueSnapshot(0.0, 0, False)
            running = self._sent[0]
            spent_ms = (time.monotonic_ns() - running.dispatch_ns) / 1e6
            remainder_ms = max(running.estimate_ms - spent_ms, 0.0)
            waiting = len(self._queued) + len(self._sent) - 1
            return QueueSnapshot(self._waiting_ms + remainder_ms, waiting, True)

    def finished(self, start_ns: int, end_ns: int, answer: list[RowOutput] | LayaAppleError) -> None:
        """The oldest sent job has been answered. Called by the transport's thread alone."""
        received_ns = time.monotonic_ns()
        with self._lock:
            if not self._sent:
                return  # The lane died meanwhile and has failed this job already.
            job = self._sent.popleft()
            self._completing = True
            if self._sent:
                self._dispatch(self._sent[0], max(self._sent[0].sent_ns, end_ns))
            self._pump()
        if not job.cancelled:
            _resolve(job, answer, start_ns, end_ns, received_ns)
        # Only this thread changes these two, so the lock is not needed, unless close() waits for them.
        self._free_ns = time.monotonic_ns()
        self._completing = False
        if self._closing:
            with self._lock:
                self._idle.notify_all()

    def die(self, error: BackendUnavailableError) -> None:
        """The device is gone: fail what was sent and what waits. Nothing moves to another device."""
        with self._lock:
            if self._dead is not None:
                return
            self._dead = error
            failed = self._take_all()
        _fail(failed, error)

    def check_timeout(self) -> None:
        """Kill the device if its running job has taken longer than the request timeout."""
        with self._lock:
            if not self._sent or self._completing:
                return
            since_ns = max(self._sent[0].dispatch_ns, self._free_ns)
            if time.monotonic_ns() - since_ns <= self._timeout_ns:
                return
        self.die(
            BackendUnavailableError(
                f"the {self.device} device did not answer within request_timeout={self._timeout_s:g} s "
                "and is given up; load the model again"
            )
        )
        self.transport.abandon()

    def close(self, timeout_s: float) -> None:
        """Finish what is queued for up to ``timeout_s``, fail the rest, and end the transport."""
        try:
            self._drain(timeout_s)
        finally:
            with self._lock:
                failed = self._take_all()
                if self._dead is None:
                    self._dead = BackendUnavailableError("this Laya is closed")
            _fail(failed, BackendUnavailableError("this Laya was closed before the request was answered"))
            if failed or not self.transport.ready.done():
                self.transport.abandon()
            self.transport.stop(STOP_GRACE_S)

    def _drain(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._closing = True
            if threading.get_ident() == self.transport.thread_ident:
                return  # Called from a callback: the thread that would answer is this one.
            while self._queued or self._sent or self._completing:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return
                self._idle.wait(left_s)

    def _check_open(self) -> None:
        if self._dead is not None:
            raise BackendUnavailableError(*self._dead.args)
        if self._closing:
            raise BackendUnavailableError("this Laya is closed")

    def _pump(self) -> None:
        """Send while the transport has room. Lock held."""
        while self._queued and len(self._sent) < self.transport.depth:
            job = self._queued[0]
            if self._sent and not self.transport.accepts_behind_another(job):
                return
            self._queued.popleft()
            job.sent_ns = time.monotonic_ns()
            self._sent.append(job)
            if len(self._sent) == 1:
                self._dispatch(job, job.sent_ns)
            self.transport.send(job)

    def _dispatch(self, job: Job, at_ns: int) -> None:
        """The device is free for this job. Lock held."""
        if job.cancelled:
            # Its estimate left the backlog when it was cancelled; the answer will be dropped.
            job.dispatch_ns = at_ns
            job.estimate_ms = 0.0
            return
        self._forget(job)
        job.dispatch_ns = at_ns
        job.cancelled = not job.future.set_running_or_notify_cancel()

    def _cancelled(self, job: Job) -> None:
        with self._lock:
            if job.cancelled or job.dispatch_ns:
                return
            job.cancelled = True
            self._forget(job)
            job.future.set_running_or_notify_cancel()
            if job in self._queued:
                self._queued.remove(job)
            if self._closing:
                self._idle.notify_all()

    def _forget(self, job: Job) -> None:
        """The job waits no more; with nothing left waiting, rounding leaves nothing behind either."""
        nothing_waits = not self._queued and len(self._sent) <= 1
        self._waiting_ms = 0.0 if nothing_waits else max(self._waiting_ms - job.estimate_ms, 0.0)

    def _take_all(self) -> list[Job]:
        """Empty the lane; the jobs that still have to be failed. Lock held."""
        jobs = [job for job in (*self._sent, *self._queued) if not job.cancelled]
        self._sent.clear()
        self._queued.clear()
        self._waiting_ms = 0.0
        self._idle.notify_all()
        for job in jobs:
            # One that was never dispatched may have been cancelled a moment ago.
            job.cancelled = not job.dispatch_ns and not job.future.set_running_or_notify_cancel()
        return [job for job in jobs if not job.cancelled]


def _resolve(
    job: Job, answer: list[RowOutput] | LayaAppleError, start_ns: int, end_ns: int, received_ns: int
) -> None:
    try:
        if isinstance(answer, LayaAppleError):
            raise answer
        value = job.complete(answer, start_ns, end_ns, received_ns)
    except Exception as error:  # reraise: through the Future
        job.future.set_exception(error)
        return
    job.future.set_result(value)


def _fail(jobs: Sequence[Job], error: BackendUnavailableError) -> None:
    for job in jobs:
        # One exception object a Future: raising the same one from many threads would mix up tracebacks.
        job.future.set_exception(BackendUnavailableError(*error.args))
