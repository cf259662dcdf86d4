"""Every state of the Neural Engine path, reached through a real fault of a virtual Mac or of its files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from switchyard_bench import Bench, own

from laya_apple import Laya
from laya_apple.cli import main
from laya_apple.demos.switchyard import ane_state, messages, replay, report, result, run, runtime, world
from laya_apple.platform import detect
from laya_apple.routing.profiles import coremltools_version

COMMAND = 'uvx --from "laya-apple[convert]" laya-apple switchyard --setup-ane'
ON_ANE = "validated_short_single_question_path"

Break = Callable[[Bench], None]


def rounds(outcome: run.Outcome) -> list[tuple[str, bool | None]]:
    assert outcome.result is not None
    return [(one["config"], one["ane_verified"]) for one in outcome.result["rounds"]]


def check_stored(outcome: run.Outcome) -> dict[str, Any]:
    """The files hold what the run returned; returns the ``ane`` block."""
    assert outcome.result is not None
    assert outcome.result_dir is not None
    stored, records = result.read(outcome.result_dir)
    assert stored == outcome.result
    assert records == list(outcome.records)
    return stored["ane"]


def test_ready_runs_both_rounds_in_the_seeds_order(bench: Bench) -> None:
    outcome = bench.run()
    assert outcome.exit_code == 0
    assert rounds(outcome) == [("hybrid", True), ("gpu_only", None)]
    ane = check_stored(outcome)
    assert (ane["state"], ane["reason"], ane["setup_command"]) == ("ready", None, None)
    trains = [line for line in outcome.records if line["class"] == "train" and line["round"] == 0]
    assert ane["warmup_ane_requests"] > 0
    assert {line["routing_reason"] for line in trains if line["target"] == "ane"} == {ON_ANE}
    assert {line["target"] for line in outcome.records if line["class"] != "train"} <= {"gpu", "ane"}
    assert {line["target"] for line in outcome.records if line["round"] == 1} == {"gpu"}
    assert {bucket: probe["verdict"] for bucket, probe in ane["probes"].items()} == {
        "64": "PLACED",
        "96": "PLACED",
        "128": "PLACED",
    }
    assert outcome.result is not None
    assert set(outcome.result["model"]["ane_artifacts"]) == {"64", "96", "128"}
    assert outcome.result["comparison"]["available"] is True
    assert outcome.result["comparison"]["same_schedule_sha256"] is True
    assert outcome.result["design"]["sequence"] == ["hybrid", "gpu_only"]


def test_an_even_seed_runs_the_gpu_alone_first(bench: Bench) -> None:
    outcome = bench.run(seed=12)
    assert rounds(outcome) == [("gpu_only", None), ("hybrid", True)]
    assert outcome.result is not None
    assert outcome.result["design"]["sequence"] == ["gpu_only", "hybrid"]


# Before any round ------------------------------------------------------------------------------------------


def without_coremltools(bench: Bench) -> None:
    bench.mac.fault("coremltools_missing")


def without_artifacts(bench: Bench) -> None:
    shutil.rmtree(bench.locations.artifacts)


def with_nothing_built_or_measured(bench: Bench) -> None:
    shutil.rmtree(bench.locations.root)


def with_changed_weights(bench: Bench) -> None:
    (weights,) = (bench.model(96) / "weights").iterdir()
    bench.mac.change_file(own(weights), "size")


def with_another_coremltools(bench: Bench) -> None:
    """Core ML Tools is updated; the machine was measured again since, the artifacts were not rebuilt."""
    document = json.loads(bench.profile.read_text())
    bench.mac.fault("other_coremltools", version="9.9")
    document["platform"]["coremltools"] = coremltools_version()
    bench.profile.write_text(json.dumps(document))


def without_a_profile(bench: Bench) -> None:
    bench.profile.unlink()


def with_an_unreadable_profile(bench: Bench) -> None:
    own(bench.profile).write_text("{")


def with_operations_on_the_cpu(bench: Bench) -> None:
    bench.forget_stamps()
    bench.mac.fault("ops_on_cpu", bucket=64)


def with_a_plan_without_device(bench: Bench) -> None:
    bench.forget_stamps()
    bench.mac.fault("plan_without_device", bucket=128)


def with_a_model_that_kills_its_loader(bench: Bench) -> None:
    bench.forget_stamps()
    bench.mac.fault("load_kills", bucket=64)


def with_a_model_that_cannot_load(bench: Bench) -> None:
    bench.mac.fault("load_error", bucket=64)


def with_an_artifact_that_failed_parity(bench: Bench) -> None:
    path = own(bench.locations.artifact(bench.checkpoint.spec, 64) / "manifest.json")
    manifest = json.loads(path.read_text())
    manifest["parity"]["passed"] = False
    path.write_text(json.dumps(manifest))


def with_a_missing_and_a_misplaced_bucket(bench: Bench) -> None:
    """What set-up could mend comes first, and yet what it cannot mend is said."""
    shutil.rmtree(bench.locations.artifact(bench.checkpoint.spec, 64))
    bench.forget_stamps()
    bench.mac.fault("ops_on_gpu", bucket=128)


BEFORE = {
    without_coremltools: ("setup_available", "ane_runtime_unavailable", None),
    without_artifacts: ("setup_available", "ane_artifact_unavailable", "ArtifactMissingError: "),
    with_nothing_built_or_measured: (
        "setup_available",
        "ane_artifact_unavailable",
        "ArtifactMissingError: ",
    ),
    with_changed_weights: ("setup_available", "ane_artifact_stale", "ArtifactIntegrityError: "),
    with_another_coremltools: ("setup_available", "ane_artifact_stale", "ArtifactRevisionError: "),
    without_a_profile: ("setup_available", "platform_not_validated", None),
    with_an_unreadable_profile: ("setup_available", "platform_not_validated", None),
    with_operations_on_the_cpu: ("unavailable", "ane_placement_failed", "ComputeUnitMismatchError: "),
    with_a_plan_without_device: ("unavailable", "ane_placement_failed", "ComputeUnitMismatchError: "),
    with_a_model_that_kills_its_loader: ("unavailable", "ane_placement_failed", "ArtifactError: "),
    with_a_model_that_cannot_load: ("unavailable", "ane_placement_failed", "ArtifactError: "),
    with_an_artifact_that_failed_parity: ("unavailable", "ane_parity_failed", "ArtifactParityError: "),
    with_a_missing_and_a_misplaced_bucket: (
        "unavailable",
        "ane_placement_failed",
        "ComputeUnitMismatchError: ",
    ),
}


@pytest.mark.filterwarnings("ignore:the local profile:RuntimeWarning")
@pytest.mark.parametrize("broken", BEFORE, ids=lambda broken: broken.__name__)
def test_what_is_found_before_the_rounds_leaves_the_gpu_only_round(bench: Bench, broken: Break) -> None:
    state, reason, error = BEFORE[broken]
    broken(bench)
    outcome = bench.run()
    assert outcome.exit_code == 0
    assert rounds(outcome) == [("gpu_only", None)]
    ane = check_stored(outcome)
    assert (ane["state"], ane["reason"]) == (state, reason)
    assert ane["reason_text"] == messages.REASON_TEXTS[reason]
    assert ane["setup_command"] == (COMMAND if state == "setup_available" else None)
    assert ane["warmup_ane_requests"] is None
    if error is None:
        assert ane["detail"] is None
    else:
        assert ane["detail"].startswith(error)
        assert str(bench.folder.parent / "cache") not in ane["detail"]
    assert outcome.result is not None
    assert outcome.result["comparison"]["available"] is False
    summary = report.summary(outcome.result)
    assert f"Neural Engine: {messages.REASON_TEXTS[reason]} ({reason})" in summary
    assert (f"  set it up with: {COMMAND}" in summary) is (state == "setup_available")
    assert {line["target"] for line in outcome.records} == {"gpu"}


def test_a_machine_that_is_no_mac_is_refused_with_2(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAYA_APPLE_PLATFORM", "switchyard_fakes:linux")
    assert main(["switchyard", "--out", str(bench.folder)]) == 2
    assert capsys.readouterr().err.startswith(
        "laya-apple: this machine cannot run the benchmark: it needs MLX"
    )
    assert not bench.folder.exists()


def test_off_a_mac_the_state_says_so(bench: Bench) -> None:
    here = detect()
    if here.is_apple_silicon:
        pytest.skip("this is an Apple silicon Mac")
    spec = bench.checkpoint.spec
    block = ane_state.decide(spec, here, runtime.checks(spec, here)).to_dict()
    assert (block["state"], block["reason"]) == ("unavailable", "not_apple_silicon")
    assert block["reason_text"] == "This machine is not an Apple silicon Mac"
    assert block["setup_command"] is None


# Set-up ----------------------------------------------------------------------------------------------------


def test_set_up_builds_what_does_not_verify_and_measures_the_machine(bench: Bench) -> None:
    kept = (bench.model(96) / "coremldata.bin").stat().st_mtime_ns
    shutil.rmtree(bench.locations.artifact(bench.checkpoint.spec, 64))
    bench.profile.unlink()
    bench.mac.profile({"gpu_ms": {"1": {"64": 40.0}}, "ane_ms": dict.fromkeys(("64", "96", "128"), 10.0)})
    outcome = bench.run(setup_ane=True)
    assert outcome.exit_code == 0
    assert check_stored(outcome)["state"] == "ready"
    assert rounds(outcome) == [("hybrid", True), ("gpu_only", None)]
    assert (bench.model(96) / "coremldata.bin").stat().st_mtime_ns == kept
    (building,) = [line for line in bench.lines if "building it" in line]
    assert building.startswith("L64 does not verify (ArtifactMissingError: ")
    assert "measuring this Mac: laya-apple calibrate" in bench.lines


def test_a_set_up_that_finds_everything_does_nothing(bench: Bench) -> None:
    spec, platform, lines = bench.checkpoint.spec, bench.mac.platform, []
    before = bench.profile.stat().st_mtime_ns
    checks, steps = runtime.checks(spec, platform), runtime.steps(spec, platform, lines.append)
    assert ane_state.set_up(spec, checks, steps, lines.append) is None
    assert lines == []
    assert bench.profile.stat().st_mtime_ns == before


def remove_and_spoil(bench: Bench) -> None:
    without_artifacts(bench)
    bench.mac.fault("wrong_outputs")


def remove_and_misplace(bench: Bench) -> None:
    without_artifacts(bench)
    bench.mac.fault("ops_on_cpu")


def remove_and_fail_to_compile(bench: Bench) -> None:
    without_artifacts(bench)
    bench.mac.fault("ane_compile_failed")


def unmeasured_with_a_gpu_that_fails_once(bench: Bench) -> None:
    without_a_profile(bench)
    bench.mac.fault("gpu_error", times=1)


def unmeasured_with_an_engine_that_runs_on_the_cpu(bench: Bench) -> None:
    without_a_profile(bench)
    bench.mac.fault("ane_compile_failed")


SET_UP = {
    without_coremltools: ("setup_available", "ane_convert_unavailable", None),
    remove_and_spoil: ("unavailable", "ane_parity_failed", "the parity gate failed"),
    remove_and_misplace: ("unavailable", "ane_placement_failed", "the compute plan"),
    remove_and_fail_to_compile: ("unavailable", "ane_placement_failed", "the placement probe (FELL_BACK)"),
    unmeasured_with_a_gpu_that_fails_once: (
        "unavailable",
        "ane_calibration_failed",
        "the gpu backend failed: VirtualMacError: the virtual GPU failed this forward",
    ),
    unmeasured_with_an_engine_that_runs_on_the_cpu: (
        "unavailable",
        "ane_calibration_failed",
        "does not run on the Neural Engine",
    ),
}


@pytest.mark.parametrize("broken", SET_UP, ids=lambda broken: broken.__name__)
def test_a_set_up_that_fails_leaves_the_gpu_only_round(bench: Bench, broken: Break) -> None:
    state, reason, why = SET_UP[broken]
    broken(bench)
    outcome = bench.run(setup_ane=True)
    assert outcome.exit_code == 0
    assert rounds(outcome) == [("gpu_only", None)]
    ane = check_stored(outcome)
    assert (ane["state"], ane["reason"]) == (state, reason)
    assert ane["reason_text"] == messages.REASON_TEXTS[reason]
    assert ane["setup_command"] == (COMMAND if state == "setup_available" else None)
    assert (why is None and ane["detail"] is None) or why in ane["detail"]


# In and around the hybrid round ----------------------------------------------------------------------------


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


def test_every_reason_of_the_seed_is_reached_above() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [reason for reason in messages.REASON_TEXTS if f'"{reason}"' not in source] == []
