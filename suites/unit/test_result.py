"""result.json and trace.jsonl: layout, schema, redaction, atomic writing, exit codes and the summary."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from switchyard_fakes import (
    REAL_MAC,
    SHA,
    VIRTUAL_MAC,
    Behaviour,
    Stage,
    default_behaviour,
    raising,
    ready_checks,
)

from laya_apple import errors, registry
from laya_apple.cli import main
from laya_apple.demos.switchyard import conditions, report, result, run, world
from laya_apple.demos.switchyard.redact import Redactor


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> tuple[run.Outcome, Path]:
    folder = tmp_path_factory.mktemp("comparison")
    auto = default_behaviour("auto")
    auto.info = {"ane_placement": "thread", "ane_probes": {64: {"ratio": 0.4, "verdict": "PLACED"}}}
    return Stage({"auto": auto}).run(folder), folder


def test_layout_of_a_comparison(comparison: tuple[run.Outcome, Path]) -> None:
    outcome, folder = comparison
    assert outcome.exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["replay.html", "result.json", "trace.jsonl"]
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert found == outcome.result
    assert {
        "schema", "schema_version", "tool", "laya_apple", "created_utc", "mode", "standard",
        "submission_eligible", "synthetic", "workload", "machine", "model", "ane", "design", "rounds",
        "configs", "comparison", "trace_file",
    } <= set(found)  # fmt: skip
    assert (found["schema"], found["schema_version"]) == ("laya-apple/switchyard-result", 1)
    assert (found["tool"], found["mode"]) == ("laya-apple switchyard", "standard")
    assert found["design"] == {
        "ordering": "seed_parity",
        "counterbalance": "none",
        "sequence": ["hybrid", "gpu_only"],
    }
    assert [one["config"] for one in found["rounds"]] == ["hybrid", "gpu_only"]
    assert [one["ane_verified"] for one in found["rounds"]] == [True, None]
    assert found["comparison"]["available"] is True
    assert found["comparison"]["same_schedule_sha256"] is True
    assert found["comparison"]["decision_disagreements"] == 0
    assert found["configs"]["gpu_only"]["device"] == "gpu"
    assert found["configs"]["hybrid"]["device"] == "auto"
    assert found["configs"]["hybrid"]["execution"] == "workers"
    assert found["configs"]["hybrid"]["ane_placement"] == "thread"
    assert found["ane"]["state"] == "ready"
    assert found["ane"]["warmup_ane_requests"] == sum(a.train is not None for a in world.warmup_schedule())
    assert found["ane"]["probes"] == {"64": {"ratio": 0.4, "verdict": "PLACED"}}
    assert found["model"]["ane_artifacts"] == {"64": SHA, "96": SHA, "128": SHA}


def test_workload_block_of_the_default_run_has_the_published_facts() -> None:
    block = report.workload_block(11, 60)
    assert block["offered"] == {"requests": 2410, "trains": 1422, "req_s": pytest.approx(2410 / 60)}
    assert block["schedule_sha256"] == "bf84ed5699072c8d561ae8c65b61bd6fd71b89c2d467f2b2c5686caad0ccf99d"
    assert block["prompt_template_sha256"] == world.prompt_template_sha256()
    assert (block["burst_period_s"], block["burst_on_s"], block["nominal_rate_req_s"]) == (3, 1, 40)
    assert (block["warmup_s"], block["warmup_seed"]) == (5, 111)
    assert block["mix"] == {"train": 0.6, "medium_1q": 0.2, "long_1q": 0.1, "short_4q": 0.1}


def test_a_virtual_mac_is_labelled_everywhere(comparison: tuple[run.Outcome, Path]) -> None:
    outcome, _ = comparison
    assert outcome.result is not None
    assert outcome.result["synthetic"] is True
    assert outcome.result["standard"] is outcome.result["submission_eligible"] is False
    assert report.summary(outcome.result)[0] == (
        "Switchyard switchyard-v1, seed 11, 3 s (virtual Mac, synthetic)"
    )


def test_a_trace_line_holds_the_trace_and_the_place_in_the_schedule(
    comparison: tuple[run.Outcome, Path],
) -> None:
    outcome, folder = comparison
    lines = (folder / "trace.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert records == list(outcome.records)
    train = next(record for record in records if record["class"] == "train")
    assert set(train) == {
        "round", "index", "class", "arrival_ns", "request_id", "sequence_length", "question_count", "target",
        "routing_reason", "service_estimate_ms", "gpu", "ane", "submit_ns", "prepared_ns", "routed_ns",
        "queue_enter_ns", "dispatch_ns", "service_start_ns", "service_end_ns", "received_ns", "response_ns",
        "line", "train_id", "pattern", "answer", "probabilities", "oracle", "outcome",
    }  # fmt: skip


@pytest.mark.parametrize(("seed", "order"), [(11, ["hybrid", "gpu_only"]), (12, ["gpu_only", "hybrid"])])
def test_round_order_follows_the_seeds_parity(tmp_path: Path, seed: int, order: list[str]) -> None:
    outcome = Stage().run(tmp_path, seed=seed)
    assert outcome.result is not None
    assert [one["config"] for one in outcome.result["rounds"]] == order


def asked(**changes: Any) -> report.Asked:
    return replace(report.Asked(11, 60, "float16", ("gpu_only", "hybrid")), **changes)


@pytest.mark.parametrize(
    ("options", "platform", "model", "standard"),
    [
        (asked(), REAL_MAC, "laya-typed-decisions", True),
        (asked(seed=12), REAL_MAC, "laya-typed-decisions", False),
        (asked(duration_s=57), REAL_MAC, "laya-typed-decisions", False),
        (asked(dtype="float32"), REAL_MAC, "laya-typed-decisions", False),
        (asked(configs=("gpu_only",)), REAL_MAC, "laya-typed-decisions", False),
        (asked(), REAL_MAC, "laya-mini", False),
        (asked(), VIRTUAL_MAC, "laya-typed-decisions", False),
    ],
)
def test_only_the_preregistered_run_on_a_real_mac_is_standard(
    options: report.Asked, platform: Any, model: str, standard: bool
) -> None:
    from laya_apple.demos.switchyard.metrics import Round

    rounds = [Round(0, "gpu_only", 0, [])]
    assert options.is_standard(platform, registry.resolve(model), rounds) is standard
    assert options.is_standard(platform, registry.resolve(model), []) is False


def test_without_the_ane_the_gpu_only_round_runs_and_the_summary_names_the_command(tmp_path: Path) -> None:
    checks = ready_checks(
        load_verified=raising(errors.ArtifactMissingError("run laya-apple artifacts build"))
    )
    stage = Stage()
    outcome = stage.run(tmp_path, checks=checks)
    assert outcome.exit_code == 0
    assert outcome.result is not None
    assert list(outcome.result["configs"]) == ["gpu_only"]
    assert outcome.result["comparison"] == {
        "available": False,
        "same_schedule_sha256": None,
        "decision_disagreements": None,
        "disagreeing_trains": None,
    }
    text = "\n".join(report.summary(outcome.result))
    assert "The Neural Engine model is not built on this Mac yet (ane_artifact_unavailable)" in text
    assert 'uvx --from "laya-apple[convert]" laya-apple switchyard --setup-ane' in text


def test_the_summary_presents_no_demoted_round(tmp_path: Path) -> None:
    auto = default_behaviour("auto")
    auto.target = lambda count: "ane" if count < 10 else "gpu"
    outcome = Stage({"auto": auto}).run(tmp_path)
    assert outcome.result is not None
    lines = report.summary(outcome.result)
    assert "GPU + ANE: not counted, its trains did not stay on the Neural Engine" in lines
    assert not [line for line in lines if re.match(r"GPU \+ ANE: \d", line)]


def failing(at: int) -> Behaviour:
    return Behaviour(
        fail_future=lambda n: errors.BackendUnavailableError("the GPU worker died") if n == at else None
    )


def test_a_failed_gpu_only_round_exits_1_and_finished_rounds_are_written(tmp_path: Path) -> None:
    outcome = Stage({"gpu": failing(300)}).run(tmp_path)
    assert outcome.exit_code == 1
    assert outcome.result is not None
    assert [one["config"] for one in outcome.result["rounds"]] == ["hybrid"]
    assert list(outcome.result["configs"]) == ["hybrid"]
    (failed,) = outcome.result["failed_rounds"]
    assert failed["config"] == "gpu_only"
    assert failed["error"].endswith("BackendUnavailableError: the GPU worker died")
    assert (tmp_path / "replay.html").exists()
    assert f"GPU only: failed: {failed['error']}" in report.summary(outcome.result)


def test_nothing_is_written_when_no_round_finished(tmp_path: Path) -> None:
    checks = ready_checks(auto_buckets=lambda: ())
    outcome = Stage({"gpu": failing(0)}).run(tmp_path / "out", checks=checks)
    assert (outcome.exit_code, outcome.result, outcome.result_dir, outcome.page) == (1, None, None, None)
    assert [one.config for one in outcome.failures] == ["gpu_only"]
    assert not (tmp_path / "out").exists()


def test_an_interrupt_keeps_finished_rounds_and_exits_1(tmp_path: Path) -> None:
    class Interrupted(Stage):
        def factory(self, model: str, **arguments: Any) -> Any:
            if arguments["device"] == "gpu":
                raise KeyboardInterrupt
            return super().factory(model, **arguments)

    outcome = Interrupted().run(tmp_path)
    assert (outcome.exit_code, outcome.interrupted) == (1, True)
    assert outcome.result is not None
    assert [one["config"] for one in outcome.result["rounds"]] == ["hybrid"]
    assert outcome.result["failed_rounds"] == [{"config": "gpu_only", "error": "interrupted"}]


def test_an_interrupted_hybrid_round_ends_the_run(tmp_path: Path) -> None:
    class Interrupted(Stage):
        def factory(self, model: str, **arguments: Any) -> Any:
            raise KeyboardInterrupt

    stage = Interrupted()
    outcome = stage.run(tmp_path / "out")
    assert (outcome.exit_code, outcome.interrupted, outcome.result) == (1, True, None)
    assert [one.config for one in outcome.failures] == ["hybrid"]


def test_a_checkpoint_that_is_not_here_is_a_failed_gpu_only_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    outcome = Stage().run(
        tmp_path / "out", model="laya-typed-decisions", local_files_only=True, background=None
    )
    assert (outcome.exit_code, outcome.result) == (1, None)
    assert outcome.failures[0].config == "gpu_only"
    assert "BackendUnavailableError" in outcome.failures[0].error


@pytest.mark.parametrize("duration", [0, 1, 4, 60.5, -3, float("nan"), float("inf")])
def test_a_duration_that_is_no_whole_number_of_cycles_is_refused_before_anything_loads(
    tmp_path: Path, duration: float
) -> None:
    stage = Stage()
    with pytest.raises(run.UsageProblem, match=r"^--duration must be a whole number of 3 s burst cycles"):
        stage.run(tmp_path, duration_s=duration)
    assert stage.loaded == []


def test_default_folder_names_the_second_and_the_chip() -> None:
    import datetime

    now = datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=datetime.UTC)
    mac = replace(REAL_MAC, soc="Apple M4 Max")
    assert run.default_out(mac, now) == Path("switchyard-results/20260304T050607Z-apple-m4-max")


def test_command_refuses_bad_usage_with_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYA_APPLE_PLATFORM", "switchyard_fakes:linux")
    for arguments, message in [
        (["--duration", "4"], "whole number of 3 s burst cycles"),
        (["--replay", str(tmp_path / "nowhere")], "was not written by a Switchyard run"),
        ([], "Apple silicon"),
    ]:
        assert main(["switchyard", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("laya-apple: ")
        assert message in captured.err


def test_an_invalid_result_is_never_written(tmp_path: Path, comparison: tuple[run.Outcome, Path]) -> None:
    outcome, _ = comparison
    assert outcome.result is not None
    broken = json.loads(json.dumps(outcome.result))
    broken["rounds"][0]["game"]["late"] = "many"
    with pytest.raises(result.ResultInvalid, match=r"at rounds/0/game/late: 'many' is not of type 'integer'"):
        result.write(tmp_path, broken, outcome.records)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("standard",), True),
        (("submission_eligible",), True),
        (("mode",), "live"),
        (("workload", "deadline_ms"), 120),
        (("ane", "reason"), "because"),
        (("surprise",), 1),
    ],
)
def test_the_schema_refuses(place: tuple[str, ...], value: Any, comparison: tuple[run.Outcome, Path]) -> None:
    outcome, _ = comparison
    broken = json.loads(json.dumps(outcome.result))
    inner = broken
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(result.ResultInvalid):
        result.validate(broken)


def test_an_interrupted_write_leaves_the_old_files_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result.write_files(tmp_path, {"a": "old a", "b": "old b"})
    with pytest.raises(UnicodeEncodeError):
        result.write_files(tmp_path, {"a": "new a", "b": "\ud800"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old a", "b": "old b"}


def test_an_existing_folder_is_overwritten_file_by_file_and_nothing_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "result.json").write_text("old")
    Stage().run(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert result.read(tmp_path)[0]["schema_version"] == 1


def damaged(folder: Path, change: str) -> None:
    path = folder / "result.json"
    trace = folder / "trace.jsonl"
    if change == "no result":
        path.unlink()
    elif change == "no trace":
        trace.unlink()
    elif change == "not JSON":
        path.write_text("{")
    elif change == "other trace":
        trace.write_text(trace.read_text().replace('"round":0', '"round":1', 1))
    elif change == "not UTF-8":
        trace.write_bytes(b"\xff\xfe")
    else:
        found = json.loads(path.read_text())
        found.update({"newer": {"schema_version": 2}, "other": {"schema": "x"}, "bad": {"rounds": 3}}[change])
        path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no result", "was not written by a Switchyard run"),
        ("no trace", "was not written by a Switchyard run"),
        ("not JSON", "was not written by a Switchyard run"),
        ("not UTF-8", "was not written by a Switchyard run"),
        ("other trace", "is not the trace of the result.json beside it"),
        ("newer", "has schema_version 2; this version reads up to 1"),
        ("other", "is not a Switchyard result"),
        ("bad", "does not match its schema at rounds"),
    ],
)
def test_what_no_run_wrote_is_refused(
    tmp_path: Path, change: str, message: str, comparison: tuple[run.Outcome, Path]
) -> None:
    shutil.copytree(comparison[1], tmp_path, dirs_exist_ok=True)
    damaged(tmp_path, change)
    with pytest.raises(result.ResultUnreadable, match=re.escape(message)):
        result.read(tmp_path)


def test_paths_are_redacted_in_every_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAYA_APPLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home" / "hf"))
    error = errors.ArtifactParityError(
        f"{tmp_path}/cache/artifacts/x and {tmp_path}/home/hf/hub and {tmp_path}/home/me "
        f"and {tmp_path}/homely"
    )
    out = tmp_path / "out"
    outcome = Stage().run(out, checks=ready_checks(load_verified=raising(error)))
    assert outcome.ane["detail"] == (
        "ArtifactParityError: <LAYA_APPLE_CACHE>/artifacts/x and <HF_HOME>/hub and ~/me and "
        f"{tmp_path}/homely"
    )
    for name in ("result.json", "trace.jsonl", "replay.html"):
        assert str(tmp_path / "cache") not in (out / name).read_text(encoding="utf-8")


def test_redaction_keeps_everything_but_the_paths() -> None:
    redactor = Redactor({"LAYA_APPLE_CACHE": "/c"}, Path("/home/a"))
    value = {"/c/x": ["/c", 1, None, True, 2.5, {"k": "/home/a/.cache/huggingface/hub"}], "n": "/home/ab"}
    assert redactor.value(value) == {
        "<LAYA_APPLE_CACHE>/x": ["<LAYA_APPLE_CACHE>", 1, None, True, 2.5, {"k": "<HF_HOME>/hub"}],
        "n": "/home/ab",
    }


def test_conditions_name_executables_and_never_command_lines() -> None:
    sample = conditions.sample()
    assert len(sample["loadavg"]) == 3
    assert sample["top_cpu"] is None or all("/" not in one["name"] for one in sample["top_cpu"])
    listing = "\n".join(
        [
            "    1     0 /sbin/init --secret",
            "   10     1 /usr/bin/python3 /usr/local/bin/laya-apple switchyard --token hunter2",
            "   11    10 /usr/bin/python3 -m laya_apple.execution.worker_main",
            "   20     1 python -m laya_apple.demos.switchyard.oracle --device gpu",
            "   21     1 /usr/bin/python3 scripts/bench_probe.py",
            "   22     1 /usr/bin/vim laya_apple.py",
            "   23     1 grep -r laya-apple .",
            "   24     1 python -m laya_apple_other",
            "   30     1 /opt/bin/laya-apple predict secret",
            " junk",
        ]
    )
    assert conditions.find_laya_processes(listing, own_pid=10) == [
        {"pid": 20, "name": "python"},
        {"pid": 21, "name": "python3"},
        {"pid": 30, "name": "laya-apple"},
    ]


def test_every_round_records_its_conditions(comparison: tuple[run.Outcome, Path]) -> None:
    outcome, _ = comparison
    assert outcome.result is not None
    for one in outcome.result["rounds"]:
        assert set(one["conditions"]) == {"start", "end", "other_laya_processes"}
        assert set(one["conditions"]["start"]) == {"utc", "loadavg", "top_cpu", "pmset_therm"}


def test_host_facts_say_how_the_host_kept_up(comparison: tuple[run.Outcome, Path]) -> None:
    outcome, _ = comparison
    hybrid, gpu_only = outcome.host["rounds"]
    assert hybrid["submit_lag_all_requests"]["n"] == len(world.schedule(duration_s=3))
    shapes = [(one["target"], one["sequence_length"]) for one in hybrid["service"]]
    assert shapes == [("ane", 64), ("gpu", 512)]
    assert gpu_only["service"][0]["service_ms"]["p50_ms"] == 9


def test_files_are_readable_by_others(comparison: tuple[run.Outcome, Path]) -> None:
    _, folder = comparison
    assert {os.stat(path).st_mode & 0o777 for path in folder.iterdir()} == {0o644}
