"""Every number of result.json from the lines of the trace, held against plain recomputation."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from switchyard_fakes import Behaviour, Stage, default_behaviour

from laya_apple.demos.switchyard import intervals, metrics, result, world

START_NS = 5_000_000_000


def line(index: int, latency_ms: float, **changes: Any) -> dict[str, Any]:
    """A train's record, 10 ms after the one before: 1 ms submit lag, 2 ms routing, 5 ms inference."""
    arrival = START_NS + index * 10_000_000
    found = {
        "round": 0, "index": index, "class": "train", "arrival_ns": arrival, "request_id": index,
        "target": "gpu", "routing_reason": "gpu_requested", "sequence_length": 64, "question_count": 1,
        "submit_ns": arrival + 1_000_000, "queue_enter_ns": arrival + 3_000_000,
        "dispatch_ns": arrival + 7_000_000, "service_start_ns": arrival + 8_000_000,
        "service_end_ns": arrival + 13_000_000, "response_ns": arrival + round(latency_ms * 1e6),
        "line": 1, "train_id": 1000 + index, "pattern": 0, "answer": "A", "oracle": "A",
    }  # fmt: skip
    return found | changes


def one(records: list[dict[str, Any]], index: int = 0, config: str = metrics.GPU_ONLY) -> metrics.Round:
    return metrics.Round(index, config, START_NS, records)


def test_definitions_of_the_times() -> None:
    record = line(0, 20)
    assert metrics.latency_ms(record) == 20
    assert metrics.queue_wait_ms(record) == 4
    assert metrics.inference_ms(record) == 5
    assert metrics.submit_lag_ms(record) == 1
    assert metrics.overhead_ms(record) == 11


def test_late_and_miss_rates_are_strictly_greater_than() -> None:
    systems = metrics.systems([one([line(0, 100), line(1, 100.001), line(2, 25), line(3, 25.001)])])
    assert systems["late"] == {"count": 1, "rate": 0.25, "deadline_ms": 100}
    assert systems["miss_rate_at_ms"] == {"25": 0.75, "50": 0.5, "100": 0.25, "250": 0.0, "500": 0.0}


def test_game_counts_late_before_misrouted_and_accuracy_over_all_trains() -> None:
    records = [line(0, 10), line(1, 10, answer="B"), line(2, 200), line(3, 200, answer="B")]
    assert metrics.game([one(records)]) == {
        "trains": 4,
        "delivered": 1,
        "late": 2,
        "misrouted": 1,
        "route_accuracy": 0.5,
    }


def test_makespan_ends_with_the_last_response_of_any_request_and_is_summed_when_pooled() -> None:
    slow = line(1, 500, **{"class": "long_1q"})
    rounds = [one([line(0, 10), slow]), one([line(0, 20)], index=1)]
    assert metrics.makespan_s(rounds[0]) == pytest.approx(0.51)
    secondary = metrics.systems(rounds)["secondary"]
    assert secondary["makespan_s"] == pytest.approx(0.51 + 0.02)
    assert secondary["decisions_per_s"] == pytest.approx(2 / 0.53)
    assert secondary["completed_req_s"] == pytest.approx(3 / 0.53)


def test_train_metrics_leave_background_out_and_background_is_apart() -> None:
    background = line(1, 900, **{"class": "medium_1q", "target": "ane", "routing_reason": "x"})
    systems = metrics.systems([one([line(0, 10), background])])
    assert systems["decision_latency"]["n"] == 1
    assert systems["secondary"]["submit_lag"]["n"] == 1
    assert systems["secondary"]["submit_lag_all_requests"]["n"] == 2
    assert systems["secondary"]["devices"] == {"gpu": 1}
    assert systems["secondary"]["routing_reasons"] == {"gpu_requested": 1}
    assert systems["secondary"]["background"]["medium_1q"]["devices"] == {"ane": 1}
    assert systems["secondary"]["background"]["medium_1q"]["decision_latency"]["max_ms"] == 900
    assert systems["secondary"]["background"]["long_1q"]["decision_latency"] == {"n": 0}


def test_pooled_percentiles_are_of_the_concatenated_samples() -> None:
    rounds = [one([line(0, 1)]), one([line(i, 100) for i in range(3)], index=1)]
    assert metrics.systems(rounds)["decision_latency"]["p50_ms"] == 100


def test_disagreements_are_trains_answered_differently_in_any_two_rounds() -> None:
    rounds = [
        one([line(0, 10), line(1, 10), line(2, 10, **{"class": "long_1q"})]),
        one([line(0, 10), line(1, 10, answer="C"), line(2, 10, **{"class": "long_1q"})], 1, metrics.HYBRID),
    ]
    found = metrics.comparison(rounds)
    assert (found["decision_disagreements"], found["disagreeing_trains"]) == (1, [1])
    assert found["same_schedule_sha256"] is True


def test_one_round_alone_is_no_comparison() -> None:
    assert metrics.comparison([one([line(0, 10)])]) == {
        "available": False,
        "same_schedule_sha256": None,
        "decision_disagreements": None,
        "disagreeing_trains": None,
    }


@pytest.mark.parametrize(("verified", "available"), [(True, True), (False, False)])
def test_a_comparison_needs_every_hybrid_round_verified(verified: bool, available: bool) -> None:
    hybrid = metrics.Round(1, metrics.HYBRID, START_NS, [line(0, 10)], verified)
    assert metrics.comparison([one([line(0, 10)]), hybrid])["available"] is available


def test_another_timetable_is_noticed() -> None:
    later = [line(0, 10), line(1, 10)]
    later[1]["arrival_ns"] += 1
    assert (
        metrics.comparison([one([line(0, 10), line(1, 10)]), one(later, 1)])["same_schedule_sha256"] is False
    )


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 9 s run of both rounds in virtual time, with late, misrouted and disagreeing trains."""
    folder = tmp_path_factory.mktemp("run")
    auto = default_behaviour("auto")
    auto.answer = lambda count, oracle: "B" if count % 50 == 0 else oracle
    stage = Stage({"auto": auto, "gpu": Behaviour(service_ms={"gpu": 17.0, "ane": 8.0})})
    outcome = stage.run(folder, duration_s=9)
    assert outcome.exit_code == 0
    return folder


def test_result_json_is_recomputed_exactly_from_the_trace(run_folder: Path) -> None:
    found, records = result.read(run_folder)
    numbers = metrics.recompute(metrics.rounds_of(found, records))
    for stored, computed in zip(found["rounds"], numbers["rounds"], strict=True):
        assert {key: stored[key] for key in computed} == computed
    for config, computed in numbers["configs"].items():
        assert {key: found["configs"][config][key] for key in computed} == computed
    assert set(found["configs"]) == set(numbers["configs"])
    assert found["comparison"] == numbers["comparison"]
    assert found["statistics"] == numbers["statistics"]


def test_result_json_agrees_with_an_independent_recomputation(run_folder: Path) -> None:
    """Straight from the definitions, with NumPy and none of the product's code."""
    found, records = result.read(run_folder)
    for stored in found["rounds"]:
        mine = [record for record in records if record["round"] == stored["index"]]
        trains = [record for record in mine if record["class"] == "train"]
        latency = np.array([(t["response_ns"] - t["arrival_ns"]) / 1e6 for t in trains])
        wait = np.array([(t["dispatch_ns"] - t["queue_enter_ns"]) / 1e6 for t in trains])
        right = np.array([t["answer"] == t["oracle"] for t in trains])
        systems, game = stored["systems"], stored["game"]
        assert game["trains"] == len(trains) > 0
        assert game["late"] == systems["late"]["count"] == int((latency > 100).sum())
        assert game["misrouted"] == int(((latency <= 100) & ~right).sum())
        assert game["delivered"] == int(((latency <= 100) & right).sum())
        assert game["route_accuracy"] == pytest.approx(right.mean())
        for percent in (50, 95, 99):
            expected = np.percentile(latency, percent)
            assert systems["decision_latency"][f"p{percent}_ms"] == pytest.approx(expected)
            assert systems["queue_wait"][f"p{percent}_ms"] == pytest.approx(np.percentile(wait, percent))
        for threshold, rate in systems["miss_rate_at_ms"].items():
            assert rate == pytest.approx((latency > float(threshold)).mean())
        span = (max(r["response_ns"] for r in mine) - stored["round_start_ns"]) / 1e9
        assert systems["secondary"]["makespan_s"] == pytest.approx(span)
        assert systems["secondary"]["completed_req_s"] == pytest.approx(len(mine) / span)
    by_index: dict[int, set[str]] = {}
    for record in records:
        if record["class"] == "train":
            by_index.setdefault(record["index"], set()).add(record["answer"])
    differing = sum(len(answers) > 1 for answers in by_index.values())
    assert found["comparison"]["decision_disagreements"] == differing > 0


def test_every_record_is_one_request_of_the_timetable(run_folder: Path) -> None:
    found, records = result.read(run_folder)
    schedule = world.schedule(11, 9)
    assert len(records) == 2 * len(schedule) == 2 * found["workload"]["offered"]["requests"]
    for stored in found["rounds"]:
        mine = [record for record in records if record["round"] == stored["index"]]
        assert [record["index"] for record in mine] == list(range(len(schedule)))
        assert [record["class"] for record in mine] == [arrival.cls for arrival in schedule]


def test_bootstrap_equals_resamples_that_are_really_built() -> None:
    rng = random.Random(3)
    samples = [
        (0, cycle * 3_000_000_000 + i, rng.uniform(10, 180)) for cycle in range(4) for i in range(5 + cycle)
    ]
    found = intervals.statistics({"gpu_only": samples})["configs"]["gpu_only"]
    cycles = [[s[2] for s in samples if s[1] // 3_000_000_000 == cycle] for cycle in range(4)]
    draws = random.Random(intervals.BOOTSTRAP_SEED)
    pooled = [
        [value for cycle in draws.choices(range(4), k=4) for value in cycles[cycle]]
        for _ in range(intervals.RESAMPLES)
    ]
    for percent in (50, 95, 99):
        values = [np.percentile(one, percent) for one in pooled]
        expected = np.percentile(values, [2.5, 97.5])
        assert found[f"p{percent}_ms"]["interval"] == pytest.approx(list(expected))
    rates = [np.mean(np.array(one) > 100) for one in pooled]
    assert found["late_rate"]["interval"] == pytest.approx(list(np.percentile(rates, [2.5, 97.5])))


def test_statistics_say_what_the_sample_cannot_carry() -> None:
    samples = [(0, i // 71 * 3_000_000_000, 10.0) for i in range(1420)]
    large = intervals.statistics({"gpu_only": samples})["configs"]["gpu_only"]
    assert (large["trains"], large["burst_cycles"]) == (1420, 20)
    assert large["p99_ms"] == {"value": 10, "interval": [10, 10], "samples_beyond": 14, "supported": True}
    small = intervals.statistics({"gpu_only": samples[:71]})["configs"]["gpu_only"]
    assert small["burst_cycles"] == 1
    assert small["p99_ms"] == {"value": 10, "interval": None, "samples_beyond": 0, "supported": False}
    assert small["late_rate"]["interval"] is None
    assert small["late_rate"]["binomial"]["assumes"] == "requests treated as independent"


def test_statistics_name_their_condition_and_how_to_repeat_them() -> None:
    block = intervals.statistics({})
    assert "timetable of this run" in block["conditional_on"]
    assert "71 %" in block["conditional_on"]
    assert (block["seed"], block["resamples"], block["confidence"]) == (20, 2000, 0.95)


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [(0, 10, 0.0, 0.3085), (10, 10, 0.6915, 1.0), (5, 100, 0.0164, 0.1128), (0, 1422, 0.0, 0.00259)],
)
def test_exact_binomial_interval(count: int, total: int, low: float, high: float) -> None:
    """Against the tables of Clopper and Pearson."""
    assert intervals.clopper_pearson(count, total) == pytest.approx((low, high), abs=1e-4)


def test_an_empty_round_has_no_rates() -> None:
    numbers = metrics.recompute([one([])])
    assert numbers["rounds"][0]["game"]["route_accuracy"] is None
    assert numbers["rounds"][0]["systems"]["late"]["rate"] is None
    assert numbers["statistics"]["configs"]["gpu_only"]["trains"] == 0


def test_recomputing_changes_no_record() -> None:
    records = [line(0, 10)]
    before = copy.deepcopy(records)
    metrics.recompute([one(records)])
    assert records == before
