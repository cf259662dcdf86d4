"""Every state of the Neural Engine path, reached through a real fault of a virtual Mac or of its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from switchyard_bench import Bench, check_stored, own, rounds

from laya_apple.cli import main
from laya_apple.demos.switchyard import ane_state, messages, report, runtime
from laya_apple.platform import detect
from laya_apple.routing.profiles import coremltools_version

COMMAND = 'uvx --from "laya-apple[convert]" laya-apple switchyard --setup-ane'
ON_ANE = "validated_short_single_question_path"

Break = Callable[[Bench], None]


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


def test_every_reason_of_the_seed_is_reached_above() -> None:
    files = ("test_switchyard_states.py", "test_switchyard_rounds.py")
    source = "".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in files)
    assert [reason for reason in messages.REASON_TEXTS if f'"{reason}"' not in source] == []
