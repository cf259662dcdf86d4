"""What becomes of a round in which something fails: dropped, demoted or the run's failure."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from switchyard_bench import Bench, check_stored, rounds

from laya_apple import Laya
from laya_apple.demos.switchyard import replay, report, world

COMMAND = 'uvx --from "laya-apple[convert]" laya-apple switchyard --setup-ane'
ON_ANE = "validated_short_single_question_path"


def test_a_warm_up_without_a_train_on_the_engine_drops_the_round(bench: Bench) -> None:
    """The stamps hold, the engine's own compile does not: the probe drops every bucket while loading."""
    bench.mac.fault("ane_compile_failed")
    with pytest.warns(RuntimeWarning) as caught:
        outcome = bench.run()
    dropped = [str(one.message) for one in caught if "was dropped from the Neural Engine" in str(one.message)]
    assert [f"L{bucket} was dropped" in line for bucket, line in zip((64, 96, 128), dropped, strict=True)]
    assert outcome.exit_code == 0
    assert rounds(outcome) == [("gpu_only", None)]
    ane = check_stored(outcome)
    assert (ane["state"], ane["reason"]) == ("setup_available", "ane_unused_in_warmup")
    assert ane["reason_text"] == "The router sent no trains to the Neural Engine during warmup"
    assert (ane["setup_command"], ane["warmup_ane_requests"]) == (COMMAND, 0)


class Disturbed:
    """A real ``Laya``; something happens to it before one of its submissions."""

    def __init__(self, laya: Laya, at: int, happens: Callable[[Laya], None]) -> None:
        self._laya, self._at, self._happens, self._count = laya, at, happens, 0

    def submit(self, context: Any, questions: Any) -> Future[Any]:
        if self._count == self._at:
            self._happens(self._laya)
        self._count += 1
        return self._laya.submit(context, questions)

    def info(self) -> dict[str, Any]:
        return self._laya.info()

    def close(self, timeout: float) -> None:
        self._laya.close(timeout)


def hybrid_disturbed(at: int, happens: Callable[[Laya], None], **changes: Any) -> Callable[..., Any]:
    """A factory whose hybrid instance is disturbed before submission ``at``."""

    def factory(model: str, **arguments: Any) -> Any:
        if arguments["device"] == "gpu":
            return Laya.from_pretrained(model, **arguments)
        return Disturbed(Laya.from_pretrained(model, **arguments, **changes), at, happens)

    return factory


WARM_UP = len(world.warmup_schedule(11))


@pytest.mark.parametrize(
    ("fault", "at", "why"),
    [
        ("prediction_error", 60, "the Core ML prediction failed: the virtual Neural Engine failed"),
        ("prediction_error", WARM_UP + 60, "the Core ML prediction failed: the virtual Neural Engine failed"),
        ("nonfinite_outputs", WARM_UP + 60, "a non-finite option logit"),
        ("gpu_error", WARM_UP + 60, "the virtual GPU failed this forward"),
    ],
    ids=["in the warm-up", "in the round", "values that are not finite", "on the GPU"],
)
@pytest.mark.filterwarnings("ignore:.*adaptive.*:RuntimeWarning")
def test_a_hybrid_round_that_fails_is_dropped_and_changes_no_exit_code(
    bench: Bench, fault: str, at: int, why: str
) -> None:
    def set_up_again(line: str) -> None:
        if line.startswith("gpu_only: 5"):
            bench.mac.clear()

    bench.on_progress = set_up_again
    outcome = bench.run(laya_factory=hybrid_disturbed(at, lambda laya: bench.mac.fault(fault)))
    assert outcome.exit_code == 0
    assert rounds(outcome) == [("gpu_only", None)]
    ane = check_stored(outcome)
    assert (ane["state"], ane["reason"]) == ("unavailable", "ane_round_failed")
    assert ane["reason_text"] == "The GPU + ANE round failed on this Mac"
    assert ane["setup_command"] is None
    assert why in ane["detail"]
    assert outcome.result is not None
    assert outcome.result["failed_rounds"] == [{"config": "hybrid", "error": ane["detail"]}]
    assert outcome.result["comparison"]["available"] is False
    assert any(line.startswith("GPU + ANE: failed: ") for line in report.summary(outcome.result))


def test_a_hybrid_round_that_cannot_load_is_dropped(bench: Bench) -> None:
    """The state is ready; the GPU's worker process dies while it loads for the hybrid round."""
    bench.mac.fault("gpu_kill", times=1)
    outcome = bench.run()
    assert outcome.exit_code == 0
    assert rounds(outcome) == [("gpu_only", None)]
    ane = check_stored(outcome)
    assert (ane["state"], ane["reason"]) == ("unavailable", "ane_round_failed")
    assert "BackendUnavailableError" in ane["detail"]


def kill_the_engine(laya: Laya) -> None:
    """End the Neural Engine's process while nothing runs on it, and wait until that is known."""
    _wait_until(lambda: laya.queue_snapshots()["ane"].running is False)
    os.kill(laya.info()["workers"]["ane"]["pid"], signal.SIGKILL)
    _wait_until(lambda: laya.info()["workers"]["ane"]["dead"] is not None)


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.filterwarnings("ignore:.*Neural Engine.*:RuntimeWarning")
@pytest.mark.parametrize("after", [0, 60], ids=["before the first train", "in the middle"])
def test_a_round_that_loses_the_engine_keeps_its_data_and_is_compared_nowhere(
    bench: Bench, after: int
) -> None:
    factory = hybrid_disturbed(WARM_UP + after, kill_the_engine, ane_placement="process")
    outcome = bench.run(laya_factory=factory)
    assert outcome.exit_code == 0
    assert rounds(outcome) == [("hybrid", False), ("gpu_only", None)]
    ane = check_stored(outcome)
    assert (ane["state"], ane["reason"]) == ("unavailable", "ane_lost_during_round")
    assert ane["reason_text"] == "The Neural Engine stopped being used during the round"
    assert ane["setup_command"] is None
    assert ane["warmup_ane_requests"] > 0
    found = outcome.result
    assert found is not None
    lost = [line for line in outcome.records if line["round"] == 0]
    assert len(lost) == found["workload"]["offered"]["requests"]
    reasons = {line["routing_reason"] for line in lost if line["class"] == "train"}
    assert reasons - {"ane_backlog_shorter_on_gpu"} == (
        {"ane_runtime_unavailable", ON_ANE} if after else {"ane_runtime_unavailable"}
    )
    assert found["comparison"]["available"] is False
    # The terminal names the round and gives none of its numbers.
    summary = report.summary(found)
    (line,) = [one for one in summary if one.startswith("GPU + ANE")]
    assert line == "GPU + ANE: not counted, its trains did not stay on the Neural Engine"
    latency = found["rounds"][0]["systems"]["decision_latency"]
    assert f"P50 {latency['p50_ms']:.1f}" not in "\n".join(summary)
    # The page keeps the data, and says that it is no comparison.
    shown = replay.replay_data(found, list(outcome.records))
    assert [one["config"] for one in shown["rounds"]] == ["hybrid", "gpu_only"]
    assert shown["result"]["comparison"]["available"] is False


def test_a_gpu_only_round_that_fails_ends_with_1_and_keeps_the_hybrid_round(bench: Bench) -> None:
    def when_the_second_round_starts(line: str) -> None:
        if line.startswith("gpu_only: 5"):
            bench.mac.fault("gpu_kill", after=30, times=1)

    bench.on_progress = when_the_second_round_starts
    outcome = bench.run()
    assert outcome.exit_code == 1
    assert rounds(outcome) == [("hybrid", True)]
    assert check_stored(outcome)["state"] == "ready"
    (failure,) = outcome.failures
    assert failure.config == "gpu_only"
    assert "BackendUnavailableError" in failure.error
    assert outcome.result is not None
    assert outcome.result["comparison"]["available"] is False
    assert any(line.startswith("GPU only: failed: ") for line in report.summary(outcome.result))


def test_both_rounds_failing_writes_nothing_and_ends_with_1(bench: Bench) -> None:
    bench.mac.fault("gpu_error")
    outcome = bench.run()
    assert outcome.exit_code == 1
    assert [one.config for one in outcome.failures] == ["hybrid", "gpu_only"]
    assert outcome.result is None
    assert not Path(bench.folder).exists()
