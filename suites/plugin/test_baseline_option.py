"""--laya-baseline: each metric is compared by itself, and only like with like."""

import json
import shutil

import pytest
from switchyard_fakes import Behaviour, Stage

MEASURED = """
    from pathlib import Path
    import pytest
    from pytest_laya import session, switchyard
    from pytest_laya.conditions import Conditions

    QUIET = Conditions("2026-01-01T00:00:00Z", 8, (0.1, 0.1, 0.1), False, False, False, {virtualised})

    def test_measured(request):
        switchyard.record(switchyard.read_run(session.of(request.config), Path("now")), (QUIET, QUIET))
"""
SOURCE = MEASURED.format(virtualised=False)

METRICS = {
    f"{config}.{name}"
    for config in ("gpu_only", "hybrid")
    for name in (
        "late.rate", "decision_latency.p50_ms", "decision_latency.p95_ms", "decision_latency.p99_ms",
        "queue_wait.p50_ms", "queue_wait.p95_ms", "queue_wait.p99_ms", "route_accuracy", "decisions_per_s",
    )
} | {"comparison.decision_disagreements"}  # fmt: skip


def hybrid(**changes):
    reason = "validated_short_single_question_path"
    return Behaviour(train_target="ane", reason=lambda count: reason, **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Result folders of 60 s runs in virtual time, by what was wrong with the machine."""
    root = tmp_path_factory.mktemp("runs")
    behaviours = {
        "before": {},
        "slower": {"auto": hybrid(service_ms={"gpu": 9.0, "ane": 16.0})},
        "wrong": {"auto": hybrid(answer=lambda count, oracle: "A")},
    }
    for name, changed in behaviours.items():
        Stage(behaviours=changed).run(root / name, duration_s=60)
    Stage().run(root / "shorter", duration_s=3)
    return root


@pytest.fixture
def compared(inner, pytester, runs):
    """Compares the run ``now`` with ``before``; returns the result and verdict by metric."""

    def compare(now, before="before", *arguments, source=SOURCE):
        for folder, name in (("now", now), ("before", before)):
            shutil.copytree(runs / name, pytester.path / folder)
        allowed = () if "no-synthetic" in arguments else ("--laya-allow-synthetic",)
        result = inner(source, "--laya-baseline=before", "--laya-out=out", *allowed)
        document = json.loads((pytester.path / "out" / "session.json").read_text())
        return result, {one["name"]: (one["verdict"], one["reason"]) for one in document["verdicts"]}

    return compare


def test_the_same_run_passes_one_test_a_metric(compared):
    result, verdicts = compared("before")
    assert set(verdicts) == METRICS
    assert {verdict for verdict, _ in verdicts.values()} == {"PASS"}
    result.assert_outcomes(passed=1 + len(METRICS))


def test_a_slower_device_fails_its_latencies_and_nothing_else(compared):
    result, verdicts = compared("slower")
    failed = {name for name, (verdict, _) in verdicts.items() if verdict != "PASS"}
    assert failed == {
        "hybrid.decision_latency.p50_ms", "hybrid.decision_latency.p95_ms", "hybrid.decision_latency.p99_ms",
        "hybrid.queue_wait.p50_ms", "hybrid.queue_wait.p95_ms", "hybrid.queue_wait.p99_ms",
        "hybrid.late.rate",
    }  # fmt: skip
    assert all(verdicts[name][1].startswith("regressed beyond noise: was ") for name in failed)
    result.assert_outcomes(passed=1 + len(METRICS) - len(failed), failed=len(failed))


def test_wrong_answers_fail_correctness_alone(compared):
    _, verdicts = compared("wrong")
    failed = {name for name, (verdict, _) in verdicts.items() if verdict == "FAIL"}
    assert failed == {"hybrid.route_accuracy", "comparison.decision_disagreements"}


def test_an_improvement_passes(compared):
    _, verdicts = compared("before", "slower")
    assert {verdict for verdict, _ in verdicts.values()} == {"PASS"}


def test_another_workload_is_not_comparable(compared):
    result, verdicts = compared("shorter")
    assert {verdict for verdict, _ in verdicts.values()} == {"UNKNOWN"}
    assert all("duration: 60, now 3; timetable: " in reason for _, reason in verdicts.values())
    result.assert_outcomes(passed=1, failed=len(METRICS))


def test_synthetic_results_need_the_option(compared):
    result, verdicts = compared("before", "before", "no-synthetic")
    assert {verdict for verdict, _ in verdicts.values()} == {"UNKNOWN"}
    result.assert_outcomes(passed=1, failed=len(METRICS))


def test_adverse_conditions_leave_correctness_alone(compared):
    _, verdicts = compared("before", source=MEASURED.format(virtualised=True))
    passed = {name for name, (verdict, _) in verdicts.items() if verdict == "PASS"}
    assert passed == {"gpu_only.route_accuracy", "hybrid.route_accuracy", "comparison.decision_disagreements"}
    assert "virtualised host" in verdicts["hybrid.late.rate"][1]


def test_a_session_without_a_round_is_red(inner, pytester, runs):
    shutil.copytree(runs / "before", pytester.path / "before")
    result = inner("def test_it(): pass", "--laya-baseline=before")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["UNKNOWN laya-baseline switchyard: no Switchyard round finished in this session"]
    )


@pytest.mark.parametrize("what", ["missing", "no result", "newer"])
def test_a_folder_that_is_no_result_is_refused(inner, pytester, runs, what):
    folder = pytester.path / "before"
    if what != "missing":
        shutil.copytree(runs / "before", folder)
    if what == "no result":
        (folder / "result.json").write_text("{}")
    if what == "newer":
        document = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps(document | {"schema_version": 2}))
    result = inner("def test_it(): pass", "--laya-baseline=before")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = {
        "missing": "ERROR: --laya-baseline: *before was not written by a Switchyard run: *",
        "no result": "ERROR: --laya-baseline: *result.json is not a Switchyard result",
        "newer": "ERROR: --laya-baseline: *result.json has schema_version 2; this version reads up to 1",
    }
    result.stderr.fnmatch_lines([message[what]])
