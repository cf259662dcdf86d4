"""A short real round through the plugin: files, summary and numbers, recomputed without our own code."""

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """One GPU-only run of 3 s on the virtual Mac, in a process of its own."""
    folder = tmp_path_factory.mktemp("played")
    command = [
        sys.executable, "-m", "pytest", "suites/switchyard", "--seed", "11", "--duration", "3",
        "--laya-device", "gpu", "--laya-platform", "virtual", f"--laya-out={folder}",
        "-p", "no:cacheprovider",
        "--laya-gate", "gpu_only.route_accuracy >= 0.9", "--laya-allow-synthetic",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return done, folder


@pytest.fixture(scope="module")
def lines(played):
    _, folder = played
    return [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def result(played):
    _, folder = played
    return json.loads((folder / "result.json").read_text())


def test_the_session_passes_and_says_synthetic(played):
    done, folder = played
    assert done.returncode == 0, done.stdout + done.stderr
    assert "laya: virtual Mac, synthetic: " in done.stdout
    assert "Switchyard switchyard-v1, seed 11, 3 s (virtual Mac, synthetic)" in done.stdout
    assert "PASS    laya-gate gpu_only.route_accuracy >= 0.9: " in done.stdout
    assert "--laya-device gpu: no GPU + ANE round was asked for" in done.stdout
    assert {path.name for path in folder.iterdir()} == {
        "result.json", "trace.jsonl", "replay.html", "session.json", "conditions.json", "report.html",
    }  # fmt: skip


def test_result_and_session_are_labelled(played, result):
    _, folder = played
    session = json.loads((folder / "session.json").read_text())
    assert (result["synthetic"], result["standard"], result["submission_eligible"]) == (True, False, False)
    assert session["synthetic"] is True
    assert {metric["synthetic"] for metric in session["metrics"]} == {True}
    (run,) = session["switchyard"]
    (limit,) = run["host"]["limits"]
    assert limit["config"] == "gpu_only"
    assert isinstance(limit["host_limited"], bool)
    (round_,) = run["host"]["rounds"]
    assert round_["submit_lag_all_requests"]["n"] == result["workload"]["offered"]["requests"]


def percentile(values, percent):
    """Linear between the two nearest ranks, written here again on purpose."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def check_stats(told, values):
    assert told["n"] == len(values)
    expected = {f"p{percent}_ms": percentile(values, percent) for percent in (50, 95, 99)}
    expected |= {"mean_ms": sum(values) / len(values), "min_ms": min(values), "max_ms": max(values)}
    assert {name: told[name] for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_every_number_follows_from_the_trace(lines, result):
    (told,) = result["rounds"]
    systems, game, secondary = told["systems"], told["game"], told["systems"]["secondary"]
    trains = [line for line in lines if line["class"] == "train"]
    latency = [(line["response_ns"] - line["arrival_ns"]) / 1e6 for line in trains]
    wait = [(line["dispatch_ns"] - line["queue_enter_ns"]) / 1e6 for line in trains]
    inference = [(line["service_end_ns"] - line["service_start_ns"]) / 1e6 for line in trains]
    lag = [(line["submit_ns"] - line["arrival_ns"]) / 1e6 for line in trains]
    span_s = (max(line["response_ns"] for line in lines) - told["round_start_ns"]) / 1e9

    check_stats(systems["decision_latency"], latency)
    check_stats(systems["queue_wait"], wait)
    check_stats(secondary["inference"], inference)
    check_stats(secondary["submit_lag"], lag)
    check_stats(
        secondary["submit_lag_all_requests"],
        [(line["submit_ns"] - line["arrival_ns"]) / 1e6 for line in lines],
    )
    check_stats(
        secondary["overhead"],
        [total - queued - ran for total, queued, ran in zip(latency, wait, inference, strict=True)],
    )
    late = [value > 100 for value in latency]
    right = [line["answer"] == line["oracle"] for line in trains]
    outcomes = [
        "late" if is_late else "delivered" if ok else "misrouted"
        for is_late, ok in zip(late, right, strict=True)
    ]
    assert [line["outcome"] for line in trains] == outcomes
    assert systems["late"] == {"count": sum(late), "rate": sum(late) / len(trains), "deadline_ms": 100}
    assert {name: game[name] for name in ("delivered", "late", "misrouted")} == {
        name: outcomes.count(name) for name in ("delivered", "late", "misrouted")
    }
    assert game["trains"] == len(trains)
    assert game["route_accuracy"] == pytest.approx(sum(right) / len(trains))
    assert systems["miss_rate_at_ms"] == {
        str(bound): pytest.approx(sum(value > bound for value in latency) / len(trains))
        for bound in (25, 50, 100, 250, 500)
    }
    assert secondary["makespan_s"] == pytest.approx(span_s)
    assert secondary["decisions_per_s"] == pytest.approx(len(trains) / span_s)
    assert secondary["completed_req_s"] == pytest.approx(len(lines) / span_s)
    assert secondary["devices"] == {"gpu": len(trains)}
    assert secondary["routing_reasons"] == {"gpu_requested": len(trains)}
    for name in ("medium_1q", "long_1q", "short_4q"):
        mine = [line for line in lines if line["class"] == name]
        if mine:
            told_class = secondary["background"][name]
            check_stats(
                told_class["decision_latency"],
                [(line["response_ns"] - line["arrival_ns"]) / 1e6 for line in mine],
            )
            assert told_class["devices"] == {"gpu": len(mine)}
    assert result["configs"]["gpu_only"]["summary"] == systems
    assert result["configs"]["gpu_only"]["game"] == game


def test_laya_mini_routes_every_train(result):
    assert result["model"]["name"] == "laya-mini"
    assert result["rounds"][0]["game"]["route_accuracy"] == 1.0


def start(folder, *arguments, **popen):
    command = [
        sys.executable, "-m", "pytest", "suites/switchyard", "--seed", "12", "--duration", "3",
        "--laya-platform", "virtual", f"--laya-out={folder}", "-p", "no:cacheprovider", *arguments,
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **popen
    )


def test_a_gpu_only_round_that_fails_is_red_and_says_why(virtual_mac, tmp_path):
    """The virtual GPU refuses a forward; the fault reaches the worker process by the environment."""
    virtual_mac.profile("m4max")
    virtual_mac.fault("gpu_error")
    process = start(tmp_path / "out", "--laya-device=gpu")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert "gpu_only: failed: RoundFailed: " in output
    assert "the virtual GPU failed this forward" in output
    session = json.loads((tmp_path / "out" / "session.json").read_text())
    assert session["state"] == "finished"
    assert session["switchyard"][0]["folder"] is None
    assert not (tmp_path / "out" / "result.json").exists()


def test_ctrl_c_in_a_round_ends_the_session_and_says_so(tmp_path):
    process = start(tmp_path / "out", "--laya-device=gpu", "-s")
    shown = ""
    for line in process.stdout:
        shown += line
        if "gpu_only: 5 s warm-up, then 3 s" in line:
            time.sleep(2)  # into the loading or the warm-up, which take more than 5 s
            process.send_signal(signal.SIGINT)
            break
    output = shown + process.communicate(timeout=300)[0]
    assert process.returncode == 2, output
    assert "(the session was interrupted; what finished is kept)" in output
    session = json.loads((tmp_path / "out" / "session.json").read_text())
    assert (session["state"], session["exit_status"]) == ("interrupted", 2)
    assert session["switchyard"][0]["failures"] == {"gpu_only": "interrupted"}
