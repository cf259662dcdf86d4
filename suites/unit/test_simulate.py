"""The simulator against the published figures, and what it estimates."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from switchyard_fakes import Stage

from laya_apple import registry
from laya_apple.demos.switchyard import metrics, simulate, world
from laya_apple.routing.queueing import published_table

SPEC = registry.resolve(world.MODEL)
TABLE = published_table()


@pytest.mark.parametrize(
    ("config", "factors", "late", "p99_ms", "devices"),
    [
        (metrics.GPU_ONLY, simulate.Factors(), 1380, 2467, {"gpu": 1422}),
        (metrics.HYBRID, simulate.Factors(), 0, 40.6, {"ane": 1415, "gpu": 7}),
        (metrics.GPU_ONLY, simulate.Factors(1.04, 1.12), 1406, 3100, {"gpu": 1422}),
        (metrics.HYBRID, simulate.Factors(1.04, 1.12), 0, 52.2, {"ane": 1415, "gpu": 7}),
    ],
)
def test_published_figures(
    config: str, factors: simulate.Factors, late: int, p99_ms: float, devices: dict[str, int]
) -> None:
    found = simulate.summarise(simulate.simulate(world.schedule(), config, TABLE, spec=SPEC, factors=factors))
    assert (found["trains"], found["late"], found["devices"]) == (1422, late, devices)
    assert found["decision_latency"]["p99_ms"] == pytest.approx(p99_ms, abs=0.6 if p99_ms > 1000 else 0.05)


def test_queues_are_first_in_first_out_and_nothing_overlaps() -> None:
    jobs = simulate.simulate(world.schedule(duration_s=9), metrics.HYBRID, TABLE, spec=SPEC)
    for device in ("gpu", "ane"):
        mine = [job for job in jobs if job.device == device]
        assert all(after.start_ms >= before.end_ms for before, after in itertools.pairwise(mine))
        assert all(job.start_ms >= job.arrival_ms for job in mine)


def test_long_and_multi_question_requests_never_go_to_the_ane() -> None:
    jobs = simulate.simulate(world.schedule(), metrics.HYBRID, TABLE, spec=SPEC)
    assert {job.device for job in jobs if job.cls != world.TRAIN} == {"gpu"}
    assert {job.reason for job in jobs if job.cls == world.TRAIN} == {
        "validated_short_single_question_path",
        "ane_backlog_shorter_on_gpu",
    }


def test_factors_are_found_again_in_a_trace_that_was_made_with_them() -> None:
    factors = simulate.Factors(1.3, 1.07)
    records = []
    for job in simulate.simulate(
        world.schedule(duration_s=9), metrics.HYBRID, TABLE, spec=SPEC, factors=factors
    ):
        length, questions = simulate.request_shape(job.cls)
        records.append(
            {
                "target": job.device,
                "sequence_length": length,
                "question_count": questions,
                "dispatch_ns": round(job.start_ms * 1e6),
                "service_end_ns": round(job.end_ms * 1e6),
            }
        )
    found = simulate.estimate_factors(records, TABLE, SPEC)
    assert (found.gpu, found.ane) == (pytest.approx(1.3, abs=1e-6), pytest.approx(1.07, abs=1e-6))
    assert simulate.estimate_factors([], TABLE, SPEC) == simulate.Factors(1.0, 1.0)


def test_highest_rate_holds_and_the_next_one_does_not() -> None:
    asked = {"low_req_s": 20.0, "high_req_s": 70.0, "duration_s": 30}
    rate = simulate.highest_rate(metrics.HYBRID, TABLE, SPEC, **asked)  # type: ignore[arg-type]
    assert rate is not None

    def p99_ms(at: float) -> float:
        schedule = world.schedule(world.SEED, 30, at)
        found = simulate.summarise(simulate.simulate(schedule, metrics.HYBRID, TABLE, spec=SPEC))
        return float(found["decision_latency"]["p99_ms"])

    assert p99_ms(rate) <= 100 < p99_ms(rate + 0.5)


def test_no_rate_of_the_range_holds() -> None:
    found = simulate.highest_rate(metrics.GPU_ONLY, TABLE, SPEC, low_req_s=60, high_req_s=61, duration_s=9)
    assert found is None


def test_command_writes_the_simulation_beside_the_measured_reference(tmp_path: Path) -> None:
    out = tmp_path / "new" / "simulation.json"
    said: list[str] = []
    assert simulate.main(["--out", str(out), "--duration", "9", "--rates", "30", "31"], said.append) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["simulated"] is True
    assert found["measured_reference"]["gpu_only"] == {"late": [1407, 1408], "p99_ms": [3108, 3171]}
    assert found["measured_reference"]["hybrid"] == {"late": [0, 0], "p99_ms": [54.5, 54.7]}
    assert set(found["rounds"]) == set(found["highest_rate_req_s"]) == {"gpu_only", "hybrid"}
    assert not (out.parent / "result.json").exists()
    assert any(line.startswith("hybrid: 0 of ") for line in said)


def test_command_takes_factors_from_a_recorded_run(tmp_path: Path) -> None:
    Stage().run(tmp_path / "run")
    out = tmp_path / "simulation.json"
    arguments = ["--out", str(out), "--trace", str(tmp_path / "run"), "--duration", "3"]
    assert simulate.main(arguments, lambda line: None) == 0
    # The fake's trains take 8 ms on the Neural Engine against 8.0746 ms in the table.
    factors = json.loads(out.read_text(encoding="utf-8"))["factors"]
    assert factors["ane"] == pytest.approx(8 / 8.0746, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--duration", "4"], "whole number of 3 s burst cycles"),
        (["--trace", "nowhere"], "nowhere was not written by a Switchyard run"),
        (["--table", "nowhere.json"], "nowhere.json"),
    ],
)
def test_usage_problems_exit_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as caught:
        simulate.main([*arguments, "--out", str(tmp_path / "simulation.json")])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
