"""The open loop: it keeps the timetable, joins every trace, and drops nothing silently."""

from __future__ import annotations

import gc
import signal
import threading
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from switchyard_fakes import BACKGROUND, Behaviour, FakeLaya, Stage, VirtualTime

from laya_apple.demos.switchyard import driver, metrics, world
from laya_apple.errors import BackendUnavailableError
from laya_apple.result import Result

SCHEDULE = world.schedule(duration_s=3)


def loop(behaviour: Behaviour | None = None, **changes: Any) -> tuple[driver.OpenLoop, FakeLaya]:
    time = VirtualTime()
    traces: SimpleQueue[Any] = SimpleQueue()
    laya = FakeLaya(time, behaviour or Behaviour(), traces.put)
    return driver.OpenLoop(laya, traces, BACKGROUND, time.clock(), **changes), laya


def test_every_request_is_submitted_at_its_time_and_joined_to_its_trace() -> None:
    opened, laya = loop()
    played = opened.play(SCHEDULE, 4)
    assert laya.count == len(SCHEDULE) == len(played.records)
    for arrival, line in zip(SCHEDULE, played.records, strict=True):
        due_ns = played.round_start_ns + round(arrival.offset_s * 1e9)
        assert line["arrival_ns"] == due_ns
        # The virtual clock moves in steps of the waiting loop, so a submission is less than one step late.
        assert 0 <= line["submit_ns"] - due_ns < driver.POLL_S * 1e9
        assert line["round"] == 4
        assert line["class"] == arrival.cls
        if arrival.train:
            assert line["train_id"] == arrival.train.train_id
            assert line["answer"] == line["oracle"] == arrival.train.oracle
            assert line["probabilities"][line["answer"]] == 0.9
        else:
            assert "oracle" not in line
            assert "train_id" not in line
    assert [line["index"] for line in played.records] == list(range(len(SCHEDULE)))


def test_the_timetable_starts_half_a_second_after_arming() -> None:
    opened, _ = loop()
    armed_ns = opened.clock.monotonic_ns()
    assert opened.play(SCHEDULE, 0).round_start_ns == armed_ns + 500_000_000


def test_submission_never_waits_for_a_response() -> None:
    """Responses that take 1 s each do not delay a single submission."""
    opened, _ = loop(Behaviour(service_ms={"gpu": 1000.0, "ane": 1000.0}))
    played = opened.play(SCHEDULE, 0)
    assert max(metrics.submit_lag_ms(line) for line in played.records) < driver.POLL_S * 1e3
    assert max(map(metrics.latency_ms, played.records)) > 100_000


def test_late_wins_over_misrouted_in_the_recorded_outcome() -> None:
    opened, _ = loop(Behaviour(answer=lambda count, oracle: "A"))
    trains = [line for line in opened.play(SCHEDULE, 0).records if metrics.is_train(line)]
    for line in trains:
        late = metrics.latency_ms(line) > 100
        expected = "late" if late else "delivered" if line["oracle"] == "A" else "misrouted"
        assert line["outcome"] == expected
    assert {line["outcome"] for line in trains} == {"late", "delivered", "misrouted"}


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (
            Behaviour(
                fail_future=lambda n: BackendUnavailableError("the GPU worker died") if n == 5 else None
            ),
            r"^request 5 \(\w+\) failed: BackendUnavailableError: the GPU worker died$",
        ),
        (
            Behaviour(fail_submit=lambda n: RuntimeError("closed") if n == 7 else None),
            r"^submitting request 7 failed: RuntimeError: closed$",
        ),
        (Behaviour(untraced=lambda n: n == 3), r"^request 3 \(\w+\) finished without a trace$"),
        (Behaviour(traced_twice=lambda n: n == 3), r"^request id 3 was traced twice$"),
    ],
    ids=["future", "submit", "no trace", "two traces"],
)
def test_one_bad_request_fails_the_round(behaviour: Behaviour, message: str) -> None:
    opened, _ = loop(behaviour)
    with pytest.raises(driver.RoundFailed, match=message):
        opened.play(SCHEDULE, 0)


def test_a_failed_request_ends_the_round_early() -> None:
    opened, laya = loop(Behaviour(fail_future=lambda n: RuntimeError("dead") if n == 5 else None))
    with pytest.raises(driver.RoundFailed, match="request 5"):
        opened.play(SCHEDULE, 0)
    assert laya.count == 6


def test_a_request_that_never_finishes_fails_the_round_after_the_drain_timeout() -> None:
    opened, _ = loop(Behaviour(silent=lambda n: n == 9), drain_timeout_s=0.05)
    total = len(SCHEDULE)
    with pytest.raises(
        driver.RoundFailed, match=rf"^1 of {total} requests did not finish within 0.05 s .* request 9$"
    ):
        opened.play(SCHEDULE, 0)


def test_the_default_drain_timeout_is_600_s() -> None:
    assert loop()[0].drain_timeout_s == 600


def test_a_cancelled_request_fails_the_round() -> None:
    opened, laya = loop()
    original = laya.submit

    def submit(context: Any, questions: Any) -> Future[Result]:
        if laya.count == 2:
            laya.count += 1
            future: Future[Result] = Future()
            future.cancel()
            return future
        return original(context, questions)

    laya.submit = submit  # type: ignore[method-assign]
    with pytest.raises(
        driver.RoundFailed, match=r"^request 2 \(\w+\) failed: RoundFailed: it was cancelled$"
    ):
        opened.play(SCHEDULE, 0)


def test_a_trace_of_no_request_fails_the_round() -> None:
    opened, laya = loop()
    opened.play(SCHEDULE[:2], 0)
    stray: list[Any] = []
    laya.trace, keep = stray.append, laya.trace
    opened.play(SCHEDULE[:0], 0)
    laya.trace = keep
    laya.submit("Platform A is clear and open", {world.QUESTION_ID: {}})
    with pytest.raises(driver.RoundFailed, match=r"^1 traces belong to no request of the round$"):
        opened.play(SCHEDULE[:2], 0)


def test_an_interrupt_stops_the_submitter_and_leaves_no_thread() -> None:
    time = VirtualTime()
    traces: SimpleQueue[Any] = SimpleQueue()
    laya = FakeLaya(time, Behaviour(), traces.put)
    reached = threading.Event()

    def fail_submit(count: int) -> None:
        if count == 3:
            reached.set()
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)

    laya.behaviour = Behaviour(fail_submit=fail_submit)
    opened = driver.OpenLoop(laya, traces, BACKGROUND, driver.Clock())
    with pytest.raises(KeyboardInterrupt):
        opened.play(world.schedule(), 0)
    assert reached.is_set()
    assert not [one for one in threading.enumerate() if one.name == "switchyard-submitter"]
    assert gc.get_freeze_count() == 0


def test_a_round_runs_one_laya_as_the_seed_says_and_closes_it(tmp_path: Path) -> None:
    stage = Stage()
    stage.run(tmp_path, seed=12)
    assert [(a["model"], a["device"], a["execution"], a["dtype"]) for a in stage.arguments] == [
        ("laya-mini", "gpu", "workers", "float16"),
        ("laya-mini", "auto", "workers", "float16"),
    ]
    assert all(laya.closed for _, laya in stage.loaded)


def test_the_warm_up_is_played_first_and_not_recorded(tmp_path: Path) -> None:
    stage = Stage()
    outcome = stage.run(tmp_path, seed=12)
    warmup = world.warmup_schedule(12)
    timed = world.schedule(12, 3)
    assert stage.loaded[0][1].count == len(warmup) + len(timed)
    assert len(outcome.records) == 2 * len(timed)
    assert min(line["request_id"] for line in outcome.records) == len(warmup)
