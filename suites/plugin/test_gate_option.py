"""--laya-gate: a claim passes only if the sample supports it, and is counted as a test."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from recording import recording

from pytest_laya.gates import Claim, Metric, judge, judge_all

MEASURED = recording('"hybrid.late.rate", 0.004, 0.001, 0.008')


@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        ("hybrid.late.rate <= 0.01", "PASS"),
        ("hybrid.late.rate < 0.0081", "PASS"),
        ("hybrid.late.rate <= 0.008", "PASS"),
        ("hybrid.late.rate < 0.008", "UNKNOWN"),
        ("hybrid.late.rate <= 0.005", "UNKNOWN"),
        ("hybrid.late.rate <= 0.0005", "FAIL"),
        ("hybrid.late.rate >= 1e-3", "PASS"),
        ("hybrid.late.rate > 0.5", "FAIL"),
    ],
)
def test_a_claim_is_judged_on_the_whole_interval(inner, claim, outcome):
    result = inner(MEASURED, "--laya-gate", claim)
    passed = outcome == "PASS"
    result.assert_outcomes(passed=1 + passed, failed=not passed)
    assert result.ret == (pytest.ExitCode.OK if passed else pytest.ExitCode.TESTS_FAILED)
    result.stdout.fnmatch_lines(
        [f"{outcome:7} laya-gate {claim}: *0.004, 95% interval 0.001 to 0.008, n 100 *"]
    )


def test_a_metric_that_was_not_recorded_is_red(inner):
    result = inner(MEASURED, "--laya-gate", "gpu_only.late.rate <= 1")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["UNKNOWN laya-gate gpu_only.late.rate <= 1: no test of this session recorded gpu_only.late.rate; "
         "recorded: hybrid.late.rate"]
    )  # fmt: skip


def test_a_deselected_measurement_leaves_the_gate_red(inner):
    result = inner(MEASURED, "--laya-gate", "hybrid.late.rate <= 0.01", "-k", "nothing")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["UNKNOWN laya-gate *; recorded: no metric at all"])


def test_a_sample_too_small_to_say_is_unknown(inner):
    result = inner(recording('"hybrid.late.rate", 0.0, None, None'), "--laya-gate", "hybrid.late.rate <= 1")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["UNKNOWN laya-gate *: the sample does not support an interval: chosen here"])


def test_a_synthetic_metric_needs_the_option(inner):
    source = recording('"hybrid.late.rate", 0.0, 0.0, 0.0, synthetic=True')
    claim = ("--laya-gate", "hybrid.late.rate <= 0.01")
    result = inner(source, *claim)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["UNKNOWN laya-gate *: the result is synthetic (virtual Mac); *"])
    inner(source, *claim, "--laya-allow-synthetic").assert_outcomes(passed=2)


def test_adverse_conditions_make_a_latency_unknown_and_nothing_else(inner):
    latency = '"hybrid.late.rate", 0.0, 0.0, 0.0, latency=True, adverse=["on battery", "low-power mode"]'
    accuracy = '"hybrid.route_accuracy", 1.0, 0.997, 1.0, adverse=["on battery"]'
    result = inner(
        recording(latency, accuracy),
        "--laya-gate", "hybrid.late.rate <= 0.01", "--laya-gate", "hybrid.route_accuracy >= 0.99",
    )  # fmt: skip
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["UNKNOWN laya-gate hybrid.late.rate *: * on battery, low-power mode"])


def test_the_same_metric_twice_must_hold_both_times(inner):
    source = recording('"hybrid.late.rate", 0.0, 0.0, 0.0', '"hybrid.late.rate", 0.5, 0.4, 0.6')
    result = inner(source, "--laya-gate", "hybrid.late.rate <= 0.01")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAIL    laya-gate hybrid.late.rate <= 0.01: 0.5, *"])


def test_an_exact_count_has_no_noise():
    metric = Metric("comparison.decision_disagreements", 0.0, (0.0, 0.0), 1422, 1.0, "count", latency=False)
    assert judge(Claim.parse("comparison.decision_disagreements <= 0"), metric, False) == (
        "PASS",
        "0 (exact)",
    )


def test_each_machine_of_a_fleet_is_judged_by_itself():
    def late(machine, high):
        return Metric("a.b", 0.0, (0.0, high), 9, 0.95, "chosen", latency=False, machine=machine)

    verdicts = judge_all([Claim.parse("a.b <= 0.1")], [late("gw0", 0.05), late("gw1", 0.5)], False)
    assert [(one.name, one.outcome) for one in verdicts] == [
        ("a.b <= 0.1 [gw0]", "PASS"),
        ("a.b <= 0.1 [gw1]", "UNKNOWN"),
    ]


@pytest.mark.parametrize(
    "text", ["late", "late == 1", "late <= x", "<= 1", "late <= 1 and more", "late <= 1e999"]
)
@pytest.mark.parametrize("how", ["command line", "ini"])
def test_what_is_no_claim_is_refused(inner, text, how):
    arguments = [f"--laya-gate={text}"] if how == "command line" else []
    result = inner(MEASURED, *arguments, ini=f"laya_gate =\n    {text}\n" if how == "ini" else "")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --laya-gate '{text}' is not 'METRIC OPERATOR NUMBER', as *"])


def test_gates_of_the_ini_file_are_judged(inner):
    result = inner(MEASURED, ini="laya_gate =\n    hybrid.late.rate <= 0.01\n    hybrid.late.rate <= 0.02\n")
    result.assert_outcomes(passed=3)


def test_junit_counts_gates_and_carries_metrics(inner, pytester):
    inner(MEASURED, "--laya-gate", "hybrid.late.rate <= 0.0005", "--junitxml=out.xml")
    suite = ElementTree.parse(pytester.path / "out.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    measured, gate = suite.findall("testcase")
    assert [(one.get("name"), one.get("value")) for one in measured.iter("property")] == [
        ("laya.hybrid.late.rate", "0.004")
    ]
    assert (gate.get("classname"), gate.get("name")) == ("laya-gate", "hybrid.late.rate <= 0.0005")
    assert gate.find("failure").get("message").startswith("FAIL: 0.004, 95% interval 0.001 to 0.008")


def test_the_progress_never_passes_100_percent(inner):
    result = inner(MEASURED, "--laya-gate", "hybrid.late.rate <= 0.01", "-v")
    result.stdout.fnmatch_lines(
        ["*::test_measured PASSED *100%]", "laya-gate::hybrid.late.rate <= 0.01 PASSED *100%]"]
    )
    assert max(int(line.rsplit("[", 1)[1][:-2]) for line in result.outlines if line.endswith("%]")) == 100


def test_maxfail_still_judges_and_an_interrupt_does_not(inner):
    failing = MEASURED + "\n    def test_broken(): assert False\n    def test_after(): pass\n"
    result = inner(failing, "-x", "--laya-gate", "hybrid.late.rate <= 0.01")
    result.assert_outcomes(passed=2, failed=1)
    stopped = MEASURED + "\n    def test_stop(): raise KeyboardInterrupt\n"
    result = inner(stopped, "--laya-gate", "hybrid.late.rate <= 0.01", "--laya-out=out", subprocess=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.no_fnmatch_line("*laya-gate*")


def test_collect_only_judges_nothing(inner):
    result = inner(MEASURED, "--collect-only", "--laya-gate", "hybrid.late.rate <= 0.01")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*laya-gate*")


def test_with_xdist_the_controller_judges_once(inner, pytester):
    source = MEASURED + "\n    def test_other(): pass\n    def test_third(): pass\n"
    result = inner(
        source, "-n2", "--laya-gate", "hybrid.late.rate <= 0.01", "--laya-gate", "hybrid.late.rate <= 0.005",
        "--laya-out=out", "--junitxml=out.xml", plugins=True, subprocess=True,
    )  # fmt: skip
    result.assert_outcomes(passed=4, failed=1)
    document = json.loads((pytester.path / "out" / "session.json").read_text())
    assert [(one["name"], one["verdict"]) for one in document["verdicts"]] == [
        ("hybrid.late.rate <= 0.01", "PASS"),
        ("hybrid.late.rate <= 0.005", "UNKNOWN"),
    ]
    assert len(document["metrics"]) == 1
    suite = ElementTree.parse(pytester.path / "out.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("5", "1")
