"""The main command, both rounds: what it prints, writes and decides. How late anything was is no test."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ON_ANE = "validated_short_single_question_path"


# The engine takes less than half of the GPU's time it is held against, so that a busy host derives the same
# buckets as an idle one.
DECLARED = {
    "gpu_ms": {
        "1": {"64": 20.0, "96": 24.0, "128": 26.0, "512": 40.0, "1024": 80.0},
        "4": {"64": 30.0, "128": 40.0, "1024": 200.0},
    },
    "ane_ms": {"64": 8.0, "96": 9.0, "128": 10.0},
}


def main_command(folder, cache, *arguments, **environ):
    """``pytest suites/switchyard`` on the virtual Mac, one burst cycle a round, in a process of its own."""
    declared = cache / "declared.json"
    declared.write_text(json.dumps(DECLARED))
    return subprocess.run(
        [
            sys.executable, "-m", "pytest", "suites/switchyard", "--duration", "3",
            "--laya-platform", "virtual", f"--laya-out={folder}", "-rs", "-p", "no:cacheprovider", *arguments,
        ],
        cwd=ROOT,
        env=os.environ
        | {"LAYA_APPLE_CACHE": str(cache), "LAYA_VIRTUAL_MAC_PROFILE": str(declared), "CI": "1"}
        | environ,
        capture_output=True,
        text=True,
        timeout=500,
    )  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Empty before the first run, which builds and measures."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def played(tmp_path_factory, cache):
    """Seed 11 on a machine where nothing is built."""
    folder = tmp_path_factory.mktemp("played")
    done = main_command(folder, cache, "--seed", "11")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    return done.stdout, result, lines, json.loads((folder / "session.json").read_text())


def test_it_prepares_the_engine_and_runs_both_rounds_hybrid_first(played):
    out, result, _, session = played
    assert [line.split()[0] for line in out.splitlines() if "building it" in line] == ["L64", "L96", "L128"]
    assert "measuring this Mac: laya-apple calibrate" in out
    assert [one["config"] for one in result["rounds"]] == ["hybrid", "gpu_only"]
    assert result["design"] == {
        "ordering": "seed_parity",
        "counterbalance": "none",
        "sequence": ["hybrid", "gpu_only"],
    }
    assert session["tests"] == {"passed": 4, "failed": 0, "error": 0, "skipped": 0}
    assert (session["synthetic"], result["synthetic"], result["standard"]) == (True, True, False)


def test_trains_run_on_the_engine_and_the_background_on_the_gpu(played):
    _, result, lines, _ = played
    hybrid = [line for line in lines if line["round"] == 0]
    trains = [line for line in hybrid if line["class"] == "train"]
    decided = Counter((line["target"], line["routing_reason"]) for line in trains)
    assert decided["ane", ON_ANE] > len(trains) / 2
    assert set(decided) <= {("ane", ON_ANE), ("gpu", "ane_backlog_shorter_on_gpu")}
    assert {line["target"] for line in hybrid if line["class"] != "train"} == {"gpu"}
    assert {line["target"] for line in lines if line["round"] == 1} == {"gpu"}
    assert result["rounds"][0]["ane_verified"] is True
    assert result["rounds"][0]["systems"]["secondary"]["routing_reasons"][ON_ANE] == decided["ane", ON_ANE]


def test_both_rounds_decide_the_same_timetable_alike(played):
    _, result, _, _ = played
    assert result["comparison"] == {
        "available": True,
        "same_schedule_sha256": True,
        "decision_disagreements": 0,
        "disagreeing_trains": [],
    }
    assert [one["game"]["route_accuracy"] for one in result["rounds"]] == [1.0, 1.0]


def test_probes_artifacts_and_profile_are_on_record(played, cache):
    _, result, _, _ = played
    ane = result["ane"]
    assert (ane["state"], ane["reason"]) == ("ready", None)
    assert ane["warmup_ane_requests"] > 0
    assert {bucket: probe["verdict"] for bucket, probe in ane["probes"].items()} == dict.fromkeys(
        ("64", "96", "128"), "PLACED"
    )
    artifacts = cache / "virtual-mac" / "artifacts" / "laya-mini"
    hashes = {}
    for path in artifacts.glob("*/*/manifest.json"):
        manifest = json.loads(path.read_text())
        hashes[str(manifest["artifact"]["length"])] = manifest["integrity"]["artifact_sha256"]
    assert set(hashes) == {"64", "96", "128"}
    assert result["model"]["ane_artifacts"] == hashes
    profile = cache / "virtual-mac" / "profiles" / result["machine"]["calibrated_profile"]
    measured = json.loads(profile.read_text())["models"]["laya-mini"]
    assert measured["auto_buckets"] == [64, 96, 128]


def test_the_host_is_on_the_summary_and_in_the_session(played):
    out, _, _, session = played
    (run,) = session["switchyard"]
    limits = {limit["config"]: limit for limit in run["host"]["limits"]}
    assert set(limits) == {"hybrid", "gpu_only"}
    for config, limit in limits.items():
        (line,) = [one for one in out.splitlines() if one.startswith(f"{config}: host")]
        assert line.startswith(f"{config}: host_limited") is limit["host_limited"]
        assert f"GPU P50 at {limit['gpu_p50_ratio']:.2f} of its own" in line
    over = f"{limits['hybrid']['ane_over']} of {limits['hybrid']['ane_requests']} ANE requests over their"
    assert over in out
    assert out.count("submit lag P99 ") == 2
    assert [one["submit_lag_all_requests"]["n"] for one in run["host"]["rounds"]] == [116, 116]


@pytest.mark.laya_slow
def test_an_even_seed_reverses_the_order_and_builds_nothing_again(played, cache, tmp_path):
    done = main_command(tmp_path / "out", cache, "--seed", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "building it" not in done.stdout
    assert "laya-apple calibrate" not in done.stdout
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [one["config"] for one in result["rounds"]] == ["gpu_only", "hybrid"]
    assert result["comparison"]["decision_disagreements"] == 0
    assert result["comparison"]["same_schedule_sha256"] is True


@pytest.mark.laya_slow
@pytest.mark.parametrize("required", [False, True])
def test_a_machine_without_core_ml_tools_skips_the_hybrid_round_or_is_red(tmp_path, cache, required):
    from pytest_laya.virtual_mac.faults import make_fault
    from pytest_laya.virtual_mac.state import STATE_VARIABLE, State, write_state

    write_state(tmp_path / "mac", State(faults=(make_fault(1, "coremltools_missing", {}),)))
    arguments = ["--seed", "11", *(["--laya-require", "ane"] if required else [])]
    done = main_command(tmp_path / "out", cache, *arguments, **{STATE_VARIABLE: str(tmp_path / "mac")})
    reason = "The Neural Engine build tools (laya-apple[convert]) are not installed (ane_convert_unavailable)"
    assert reason in done.stdout
    assert "GPU only: " in done.stdout
    assert "GPU + ANE: " not in done.stdout
    if required:
        assert done.returncode == 1
        assert "2 failed, 2 passed" in done.stdout
        assert f"--laya-require ane: {reason}" in done.stdout
    else:
        assert done.returncode == 0
        assert "2 passed, 2 skipped" in done.stdout
