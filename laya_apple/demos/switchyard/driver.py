"""One round: the open loop that submits on the timetable and never waits for an answer.

The submitting process stays quiet from a round's first arrival to its last response: nothing is printed,
sampled or computed there but what ``Laya.submit`` does itself.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from laya_apple.demos.switchyard import metrics, world
from laya_apple.errors import LayaAppleError
from laya_apple.result import Result
from laya_apple.trace import RequestTrace
from laya_apple.workload import Request

ARMING_NS = 500_000_000
DRAIN_TIMEOUT_S = 600.0
# After a finished round nothing is queued; after a failed one nobody waits for what is.
CLOSE_TIMEOUT_S = 2.0
# The same waiting loop as the published benchmark. A spin loop would hold the interpreter lock against
# the Neural Engine's thread in this very process.
POLL_S = 0.0002

DEVICES = {metrics.GPU_ONLY: "gpu", metrics.HYBRID: "auto"}
EXECUTION = "workers"


class RoundFailed(LayaAppleError):
    """A request failed, timed out or left no trace, so the round cannot be reported."""


class AneUnusedInWarmup(LayaAppleError):
    """The router sent no train to the Neural Engine during the warm-up."""


class LayaLike(Protocol):
    """The part of ``laya_apple.Laya`` that a round uses."""

    def submit(self, context: Any, questions: Any) -> Future[Result]: ...

    def info(self) -> Mapping[str, Any]: ...

    def close(self, timeout: float) -> None: ...


LayaFactory = Callable[..., LayaLike]
"""``factory(model, device=…, dtype=…, execution="workers", trace=callback, local_files_only=…)``."""


@dataclass(frozen=True)
class Clock:
    """The time axis of a round: ``time.monotonic_ns()``, as in RequestTrace."""

    monotonic_ns: Callable[[], int] = time.monotonic_ns
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Submission:
    """One submitted request: its place in the timetable, scheduled arrival and pending result."""

    index: int
    arrival: world.Arrival
    arrival_ns: int
    future: Future[Result]


@dataclass(frozen=True)
class Played:
    """A finished open loop: records in schedule order, and when its timetable started."""

    round_start_ns: int
    records: list[dict[str, Any]]


class _Submitter:
    """The one thread that submits, and what it has submitted so far."""

    def __init__(
        self,
        laya: LayaLike,
        clock: Clock,
        arrivals: Sequence[world.Arrival],
        requests: Sequence[Request],
    ) -> None:
        self.start_ns = 0
        self.submitted: list[Submission] = []
        self.error: Exception | None = None
        self._laya, self._clock = laya, clock
        self._arrivals, self._requests = arrivals, requests
        self._finished: SimpleQueue[Future[Result]] = SimpleQueue()
        self._stop = threading.Event()
        self._ended = threading.Event()

    def run_and_drain(self, drain_timeout_s: float) -> None:
        """Arm, submit everything, wait for the responses. The thread has ended afterwards, also on error."""
        self.start_ns = self._clock.monotonic_ns() + ARMING_NS
        thread = threading.Thread(target=self._run, name="switchyard-submitter")
        thread.start()
        try:
            # Not join(): interrupted there, Python 3.11 takes a running thread for an ended one.
            self._ended.wait()
            if self.error is None:
                self._drain(drain_timeout_s)
        finally:
            self._stop.set()
            self._ended.wait()
            thread.join()

    def _run(self) -> None:
        try:
            self._submit_all()
        except Exception as error:  # reraise: by OpenLoop.play, on the caller's thread
            self.error = error
        finally:
            self._ended.set()

    def _submit_all(self) -> None:
        for index, (arrival, request) in enumerate(zip(self._arrivals, self._requests, strict=True)):
            due_ns = self.start_ns + round(arrival.offset_s * 1e9)
            while self._clock.monotonic_ns() < due_ns:
                self._clock.sleep(POLL_S)
            if self._stop.is_set():
                return
            future = self._laya.submit(request.context, request.questions)
            self.submitted.append(Submission(index, arrival, due_ns, future))
            future.add_done_callback(self._note)

    def _note(self, future: Future[Result]) -> None:
        # A round with a failed request is lost; there is no use in playing it to its end.
        if future.cancelled() or future.exception() is not None:
            self._stop.set()
        self._finished.put(future)

    def _drain(self, timeout_s: float) -> None:
        """Wait until every submitted request has finished, one has failed, or the time is over."""
        deadline = time.monotonic() + timeout_s
        for _ in self.submitted:
            if self._stop.is_set():
                return
            try:
                self._finished.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:  # closed: what has not finished fails the round in OpenLoop._join
                return


@dataclass
class OpenLoop:
    """Submits one timetable to a loaded Laya whose trace callback is ``traces.put``."""

    laya: LayaLike
    traces: SimpleQueue[RequestTrace]
    background: Mapping[str, Request]
    clock: Clock = field(default_factory=Clock)
    drain_timeout_s: float = DRAIN_TIMEOUT_S

    def play(self, arrivals: Sequence[world.Arrival], round_index: int) -> Played:
        """Submit every arrival at its time and wait for every response.

        Raises RoundFailed with the first failure, and KeyboardInterrupt after the submitter has stopped.
        """
        requests = [self._request(arrival) for arrival in arrivals]
        submitter = _Submitter(self.laya, self.clock, arrivals, requests)
        # What exists before the round is moved out of the collector's sight, so that a collection inside
        # it only looks at the round's own objects. The collector stays on, as in a user's process.
        gc.collect()
        gc.freeze()
        try:
            submitter.run_and_drain(self.drain_timeout_s)
        finally:
            gc.unfreeze()
        if submitter.error is not None:
            error = submitter.error
            raise RoundFailed(
                f"submitting request {len(submitter.submitted)} failed: {type(error).__name__}: {error}"
            ) from error
        return Played(submitter.start_ns, self._join(submitter.submitted, round_index))

    def _request(self, arrival: world.Arrival) -> Request:
        return world.prompt(arrival.train) if arrival.train else self.background[arrival.cls]

    def _join(self, submitted: Sequence[Submission], round_index: int) -> list[dict[str, Any]]:
        for one in submitted:
            if one.future.done() and (error := _failure(one.future)) is not None:
                raise RoundFailed(
                    f"request {one.index} ({one.arrival.cls}) failed: {type(error).__name__}: {error}"
                ) from error
        pending = [one for one in submitted if not one.future.done()]
        if pending:
            raise RoundFailed(
                f"{len(pending)} of {len(submitted)} requests did not finish within "
                f"{self.drain_timeout_s:g} s after the last arrival; the first is request {pending[0].index}"
            )
        by_id: dict[int, RequestTrace] = {}
        for trace in drained(self.traces):
            if trace.request_id in by_id:
                raise RoundFailed(f"request id {trace.request_id} was traced twice")
            by_id[trace.request_id] = trace
        records = []
        for one in submitted:
            result = one.future.result()
            request_id = result.runtime.request_id
            found = None if request_id is None else by_id.pop(request_id, None)
            if found is None:
                raise RoundFailed(f"request {one.index} ({one.arrival.cls}) finished without a trace")
            records.append(record(one, result, found, round_index))
        if by_id:
            raise RoundFailed(f"{len(by_id)} traces belong to no request of the round")
        return records


def _failure(future: Future[Result]) -> BaseException | None:
    if future.cancelled():
        return RoundFailed("it was cancelled")
    return future.exception()


def drained(traces: SimpleQueue[RequestTrace]) -> list[RequestTrace]:
    """Everything in the queue now."""
    found = []
    while True:
        try:
            found.append(traces.get_nowait())
        except Empty:  # closed: the queue holds no more
            return found


def record(one: Submission, result: Result, trace: RequestTrace, round_index: int) -> dict[str, Any]:
    """One line of ``trace.jsonl``."""
    found = {
        "round": round_index,
        "index": one.index,
        "class": one.arrival.cls,
        "arrival_ns": one.arrival_ns,
        **trace.to_dict(),
    }
    train = one.arrival.train
    if train is not None:
        answer = result.answers[world.QUESTION_ID]
        found |= {
            "line": train.line,
            "train_id": train.train_id,
            "pattern": train.pattern,
            "answer": answer["choice"],
            "probabilities": answer["probabilities"],
            "oracle": train.oracle,
        }
        found["outcome"] = metrics.outcome(metrics.latency_ms(found), answer["choice"], train.oracle)
    return found


@dataclass(frozen=True)
class RoundPlan:
    """What one round runs: configuration, model and the two timetables."""

    index: int
    config: str
    model: str
    dtype: str
    schedule: Sequence[world.Arrival]
    warmup: Sequence[world.Arrival]
    background: Mapping[str, Request]
    local_files_only: bool = False


@dataclass(frozen=True)
class RoundData:
    """What one round left: the records and the facts around them."""

    played: Played
    warmup_ane_trains: int
    info: Mapping[str, Any]
    conditions: dict[str, Any]
    started_utc: str


def run_round(
    plan: RoundPlan,
    laya_factory: LayaFactory,
    *,
    sample_conditions: Callable[[], dict[str, Any]],
    other_processes: Callable[[], list[dict[str, Any]] | None],
    now_utc: Callable[[], str],
    clock: Clock | None = None,
    drain_timeout_s: float = DRAIN_TIMEOUT_S,
) -> RoundData:
    """Load, warm up, run the timed window, drain and close: the whole life of one ``Laya``.

    Raises AneUnusedInWarmup (hybrid only), RoundFailed, or whatever loading raised. The instance is closed
    in every case, so two configurations never share the machine.
    """
    traces: SimpleQueue[RequestTrace] = SimpleQueue()
    laya = laya_factory(
        plan.model,
        device=DEVICES[plan.config],
        dtype=plan.dtype,
        execution=EXECUTION,
        trace=traces.put,
        local_files_only=plan.local_files_only,
    )
    try:
        loop = OpenLoop(laya, traces, plan.background, clock or Clock(), drain_timeout_s)
        warm = loop.play(plan.warmup, plan.index)
        on_ane = sum(line["target"] == "ane" for line in warm.records if metrics.is_train(line))
        if plan.config == metrics.HYBRID and on_ane == 0:
            raise AneUnusedInWarmup("no train of the warm-up was routed to the Neural Engine")
        others = other_processes()
        start = sample_conditions()
        started_utc = now_utc()
        played = loop.play(plan.schedule, plan.index)
        conditions = {"start": start, "end": sample_conditions(), "other_laya_processes": others}
        return RoundData(played, on_ane, dict(laya.info()), conditions, started_utc)
    finally:
        laya.close(CLOSE_TIMEOUT_S)
