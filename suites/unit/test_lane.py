"""The queue itself, held against a model: whatever happens, in whatever order, every Future resolves once."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from laya_apple import BackendUnavailableError, LayaAppleError
from laya_apple.execution.lane import Job, Lane


class Loose:
    """A transport whose device answers when the test says so."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.ready: Future = Future()
        self.ready.set_result(None)
        self.sent: list[Job] = []
        self.thread_ident = None
        self.abandoned = self.stopped = False

    def start(self, lane: Lane) -> None: ...
    def prepare(self, job: Job) -> None: ...
    def accepts_behind_another(self, job: Job) -> bool:
        return not job.rows

    def send(self, job: Job) -> None:
        self.sent.append(job)

    def abandon(self) -> None:
        self.abandoned = True

    def stop(self, grace_s: float) -> None:
        self.stopped = True

    def describe(self) -> dict:
        return {}


class Echo(Job):
    def complete(self, outputs, service_start_ns, service_end_ns, received_ns):
        assert self.queue_enter_ns <= self.sent_ns <= self.dispatch_ns
        return outputs


class LaneMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.depth = 2
        self.transport = Loose(self.depth)
        self.lane = Lane("gpu", self.transport, request_timeout_s=60.0, max_pending=6)
        self.waiting: list[Echo] = []
        """Accepted, not dispatched, not cancelled: oldest first."""
        self.running: Echo | None = None
        self.cancelled_in_flight: set[Echo] = set()
        self.expected: dict[Echo, object] = {}
        self.number = 0
        self.gone = False

    def sync(self) -> None:
        """The device is free for the oldest sent job, unless one runs."""
        if self.running is None and self.transport.sent:
            head = self.transport.sent[0]
            if head not in self.cancelled_in_flight:
                self.running = head
                self.waiting.remove(head)

    @rule(large=st.booleans())
    def submit(self, large: bool) -> None:
        job = Echo(self.number, [object()] if large else [], 10.0)
        self.number += 1
        pending = len(self.transport.sent) + len([j for j in self.waiting if j not in self.transport.sent])
        if self.gone or pending >= 6:
            with pytest.raises(BackendUnavailableError):
                self.lane.submit(job)
            return
        self.lane.submit(job)
        self.waiting.append(job)
        self.sync()

    @precondition(lambda self: self.transport.sent and not self.gone)
    @rule(fails=st.booleans())
    def answer(self, fails: bool) -> None:
        job = self.transport.sent.pop(0)
        self.running = None
        outcome: object = LayaAppleError("no") if fails else ["answer", job.request_id]
        if job in self.cancelled_in_flight:
            self.cancelled_in_flight.discard(job)
        else:
            self.expected[job] = outcome
        self.lane.finished(1, 2, outcome)
        self.sync()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        job = data.draw(st.sampled_from(self.waiting))
        assert job.future.cancel() is True
        self.waiting.remove(job)
        self.expected[job] = "cancelled"
        if job in self.transport.sent:
            self.cancelled_in_flight.add(job)

    @precondition(lambda self: self.running is not None)
    @rule()
    def cancel_too_late(self) -> None:
        assert self.running.future.cancel() is False

    def end(self, error_text: str) -> None:
        for job in [*self.waiting, *([self.running] if self.running else [])]:
            self.expected[job] = error_text
        self.waiting, self.running, self.gone = [], None, True
        self.transport.sent.clear()
        self.cancelled_in_flight.clear()

    @precondition(lambda self: self.number > 8)
    @rule()
    def die(self) -> None:
        self.end("the worker died" if not self.gone else "")
        self.lane.die(BackendUnavailableError("the worker died"))

    @precondition(lambda self: self.number > 8 and not self.gone)
    @rule()
    def close(self) -> None:
        self.end("this Laya was closed before the request was answered")
        self.lane.close(0.0)
        assert self.transport.stopped

    @invariant()
    def every_future_is_where_the_model_has_it(self) -> None:
        for job, outcome in self.expected.items():
            assert job.future.done()
            if outcome == "cancelled":
                assert job.future.cancelled()
            elif isinstance(outcome, list):
                assert job.future.result() == outcome
            else:
                assert str(job.future.exception()) == str(outcome)
        for job in self.waiting:
            assert not job.future.done()
            assert not job.future.running()
        if self.running is not None:
            assert self.running.future.running()

    @invariant()
    def the_backlog_is_what_waits_and_what_runs(self) -> None:
        snapshot = self.lane.snapshot()
        low = 10.0 * len(self.waiting)
        assert low <= snapshot.backlog_ms <= low + (10.0 if self.running else 0.0)
        assert snapshot.running is bool(self.transport.sent)

    @invariant()
    def no_more_is_in_flight_than_allowed(self) -> None:
        assert len(self.transport.sent) <= self.depth
        assert not any(job.rows for job in self.transport.sent[1:])


LaneMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLane = LaneMachine.TestCase


def test_a_job_cancelled_in_flight_is_dropped_and_the_next_one_runs():
    transport = Loose(2)
    lane = Lane("gpu", transport, request_timeout_s=60.0)
    first, second, third = (Echo(number, [], 5.0) for number in range(3))
    for job in (first, second, third):
        lane.submit(job)
    assert second.future.cancel()
    lane.finished(1, 2, ["one"])
    lane.finished(3, 4, ["dropped"])
    assert third.future.running()
    lane.finished(5, 6, ["three"])
    assert first.future.result() == ["one"]
    assert third.future.result() == ["three"]
    assert lane.snapshot().backlog_ms == 0.0


def test_an_answer_after_death_is_dropped():
    lane = Lane("gpu", Loose(1), request_timeout_s=60.0)
    job = Echo(1, [], 5.0)
    lane.submit(job)
    lane.die(BackendUnavailableError("gone"))
    lane.finished(1, 2, ["late"])
    with pytest.raises(BackendUnavailableError, match="gone"):
        job.future.result()
    assert isinstance(lane.dead, BackendUnavailableError)


def test_dispatch_is_when_the_device_becomes_free():
    lane = Lane("gpu", Loose(2), request_timeout_s=60.0)
    first, second = Echo(1, [], 5.0), Echo(2, [], 5.0)
    lane.submit(first)
    lane.submit(second)
    assert first.dispatch_ns == first.sent_ns
    assert second.dispatch_ns == 0
    end_ns = second.sent_ns + 1_000_000
    lane.finished(first.sent_ns, end_ns, ["one"])
    assert second.dispatch_ns == end_ns
    third = Echo(3, [], 5.0)
    lane.submit(third)
    lane.finished(end_ns, third.sent_ns - 1, ["two"])
    assert third.dispatch_ns == third.sent_ns


def test_an_error_while_formatting_fails_that_request():
    class Bad(Job):
        def complete(self, *_):
            raise LayaAppleError("not finite")

    lane = Lane("gpu", Loose(1), request_timeout_s=60.0)
    bad, good = Bad(1, [], 5.0), Echo(2, [], 5.0)
    lane.submit(bad)
    lane.submit(good)
    lane.finished(1, 2, [])
    lane.finished(3, 4, ["fine"])
    assert str(bad.future.exception()) == "not finite"
    assert good.future.result() == ["fine"]


def test_closing_waits_for_what_runs():
    lane = Lane("gpu", Loose(1), request_timeout_s=60.0)
    job = Echo(1, [], 5.0)
    lane.submit(job)
    closer = threading.Thread(target=lane.close, args=(20.0,))
    closer.start()
    lane.finished(1, 2, ["done"])
    closer.join(20.0)
    assert not closer.is_alive()
    assert job.future.result() == ["done"]
    with pytest.raises(BackendUnavailableError, match="closed"):
        lane.submit(Echo(2, [], 5.0))
