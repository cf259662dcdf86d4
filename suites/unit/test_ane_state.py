"""The Neural Engine's state: every reason code of the seed, its state, text, command and exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from switchyard_fakes import (
    LINUX,
    REAL_MAC,
    SHA,
    Behaviour,
    Stage,
    default_behaviour,
    raising,
    ready_checks,
)

from laya_apple import errors, registry
from laya_apple.demos.switchyard import ane_state, messages, metrics, run

SPEC = registry.resolve("laya-mini")
COMMAND = 'uvx --from "laya-apple[convert]" laya-apple switchyard --setup-ane'

# The seed's table, word for word.
TEXTS = {
    "ane_runtime_unavailable": "The Neural Engine runtime (Core ML Tools) is not installed",
    "ane_artifact_unavailable": "The Neural Engine model is not built on this Mac yet",
    "ane_artifact_stale": "The Neural Engine model needs to be rebuilt on this Mac",
    "platform_not_validated": "This Mac has not been calibrated for the Neural Engine yet",
    "ane_unused_in_warmup": "The router sent no trains to the Neural Engine during warmup",
    "ane_parity_failed": "A Neural Engine model failed the correctness check on this Mac",
    "ane_placement_failed": "Core ML could not run the model on the Neural Engine",
    "not_apple_silicon": "This machine is not an Apple silicon Mac",
    "ane_lost_during_round": "The Neural Engine stopped being used during the round",
    "ane_round_failed": "The GPU + ANE round failed on this Mac",
    "ane_convert_unavailable": "The Neural Engine build tools (laya-apple[convert]) are not installed",
    "ane_calibration_failed": "Measuring this Mac for the Neural Engine failed",
}
MENDABLE = {
    "ane_runtime_unavailable",
    "ane_artifact_unavailable",
    "ane_artifact_stale",
    "platform_not_validated",
    "ane_unused_in_warmup",
    "ane_convert_unavailable",
}


def test_texts_and_states_are_the_seeds() -> None:
    assert messages.REASON_TEXTS == TEXTS
    for reason in TEXTS:
        block = ane_state.AneStatus(reason).to_dict()
        assert block["state"] == ("setup_available" if reason in MENDABLE else "unavailable")
        assert block["setup_command"] == (COMMAND if reason in MENDABLE else None)
        assert block["reason_text"] == TEXTS[reason]


def test_ready_needs_every_check() -> None:
    status = ane_state.decide(SPEC, REAL_MAC, ready_checks())
    assert status.state == "ready"
    assert status.artifacts == {64: SHA, 96: SHA, 128: SHA}
    assert status.auto_buckets == (64, 96, 128)
    assert status.to_dict(7) == {
        "state": "ready",
        "reason": None,
        "reason_text": None,
        "detail": None,
        "setup_command": None,
        "warmup_ane_requests": 7,
    }


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.BackendUnavailableError("no coremltools"), "ane_runtime_unavailable"),
        (errors.ArtifactMissingError("not built"), "ane_artifact_unavailable"),
        (errors.ArtifactRevisionError("other macOS"), "ane_artifact_stale"),
        (errors.ArtifactIntegrityError("hash"), "ane_artifact_stale"),
        (errors.ArtifactParityError("parity"), "ane_parity_failed"),
        (errors.ComputeUnitMismatchError("cpu"), "ane_placement_failed"),
        (OSError("disk"), "ane_placement_failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_a_check_raises_becomes_the_reason(error: Exception, reason: str) -> None:
    status = ane_state.decide(SPEC, REAL_MAC, ready_checks(load_verified=raising(error, only=96)))
    assert (status.reason, status.detail) == (reason, f"{type(error).__name__}: {error}")
    assert set(status.artifacts) == {64, 128}


def test_without_coremltools_nothing_else_is_asked() -> None:
    def never(bucket: int) -> str:
        raise AssertionError("asked")

    checks = ready_checks(coremltools_available=lambda: False, load_verified=never)
    assert ane_state.decide(SPEC, REAL_MAC, checks).reason == "ane_runtime_unavailable"


def test_no_profile_or_one_without_buckets_is_not_calibrated() -> None:
    status = ane_state.decide(SPEC, REAL_MAC, ready_checks(auto_buckets=lambda: ()))
    assert (status.state, status.reason) == ("setup_available", "platform_not_validated")
    assert status.artifacts == {64: SHA, 96: SHA, 128: SHA}


def test_only_the_profiles_buckets_must_verify() -> None:
    checks = ready_checks(
        auto_buckets=lambda: (64,), load_verified=raising(errors.ArtifactMissingError("no"), only=128)
    )
    assert ane_state.decide(SPEC, REAL_MAC, checks).state == "ready"


def test_an_unavailable_finding_outranks_one_that_set_up_can_mend() -> None:
    def load_verified(bucket: int) -> str:
        raise errors.ArtifactMissingError("no") if bucket == 64 else errors.ArtifactParityError("bad")

    checks = ready_checks(load_verified=load_verified, auto_buckets=lambda: ())
    status = ane_state.decide(SPEC, REAL_MAC, checks)
    assert (status.state, status.reason) == ("unavailable", "ane_parity_failed")
    assert status.detail == "ArtifactParityError: bad"


def test_another_machine_is_not_apple_silicon() -> None:
    assert ane_state.decide(SPEC, LINUX, ready_checks()).reason == "not_apple_silicon"


class SetUp:
    """Injected build and calibrate steps that record what they were asked."""

    def __init__(self, *, build: Exception | None = None, calibrate: Exception | None = None) -> None:
        self.built: list[int] = []
        self.calibrated = 0
        self._errors = (build, calibrate)

    def checks(self, verified: set[int] | None = None, calibrated: bool = False) -> ane_state.Checks:
        def load_verified(bucket: int) -> str:
            if bucket in (verified or set()) or bucket in self.built:
                return SHA
            raise errors.ArtifactMissingError(f"L{bucket} is not built")

        def auto_buckets() -> tuple[int, ...]:
            return SPEC.ane_buckets if calibrated or self.calibrated else ()

        return ready_checks(load_verified=load_verified, auto_buckets=auto_buckets)

    def steps(self) -> ane_state.Steps:
        def build(bucket: int) -> None:
            if self._errors[0] is not None:
                raise self._errors[0]
            self.built.append(bucket)

        def calibrate() -> None:
            if self._errors[1] is not None:
                raise self._errors[1]
            self.calibrated += 1

        return ane_state.Steps(build, calibrate)


def test_set_up_builds_what_does_not_verify_then_calibrates_then_runs_both_rounds(tmp_path: Path) -> None:
    made = SetUp()
    stage = Stage()
    outcome = stage.run(tmp_path, setup_ane=True, checks=made.checks({96}), steps=made.steps())
    assert (made.built, made.calibrated) == ([64, 128], 1)
    assert outcome.ane["state"] == "ready"
    assert [device for device, _ in stage.loaded] == ["auto", "gpu"]
    assert outcome.result is not None
    assert outcome.result["model"]["ane_artifacts"] == {"64": SHA, "96": SHA, "128": SHA}


def test_set_up_leaves_a_matching_profile_alone() -> None:
    made = SetUp()
    assert ane_state.set_up(SPEC, made.checks(calibrated=True), made.steps(), print) is None
    assert (made.built, made.calibrated) == ([64, 96, 128], 0)


@pytest.mark.parametrize(
    ("made", "state", "reason", "detail"),
    [
        (
            SetUp(build=ModuleNotFoundError("No module named 'coremltools'")),
            "setup_available",
            "ane_convert_unavailable",
            "ModuleNotFoundError: No module named 'coremltools'",
        ),
        (
            SetUp(build=errors.ArtifactParityError("0.4 off")),
            "unavailable",
            "ane_parity_failed",
            "ArtifactParityError: 0.4 off",
        ),
        (
            SetUp(build=errors.ComputeUnitMismatchError("on the CPU")),
            "unavailable",
            "ane_placement_failed",
            "ComputeUnitMismatchError: on the CPU",
        ),
        (
            SetUp(calibrate=errors.BackendUnavailableError("no GPU")),
            "unavailable",
            "ane_calibration_failed",
            "BackendUnavailableError: no GPU",
        ),
        (
            SetUp(calibrate=ImportError("no build tools")),
            "setup_available",
            "ane_convert_unavailable",
            "ImportError: no build tools",
        ),
    ],
    ids=["no build tools", "parity", "placement", "calibration", "no tools for calibration"],
)
def test_a_failed_set_up_becomes_the_state_and_the_gpu_only_round_still_runs(
    tmp_path: Path, made: SetUp, state: str, reason: str, detail: str
) -> None:
    stage = Stage()
    outcome = stage.run(tmp_path, setup_ane=True, checks=made.checks(), steps=made.steps())
    assert outcome.exit_code == 0
    assert (outcome.ane["state"], outcome.ane["reason"], outcome.ane["detail"]) == (state, reason, detail)
    assert [device for device, _ in stage.loaded] == ["gpu"]


def test_set_up_without_coremltools_names_the_build_tools(tmp_path: Path) -> None:
    checks = ready_checks(coremltools_available=lambda: False)
    outcome = Stage().run(tmp_path, setup_ane=True, checks=checks, steps=SetUp().steps())
    assert outcome.ane["reason"] == "ane_convert_unavailable"
    assert outcome.ane["setup_command"] == COMMAND


def test_a_warm_up_that_sends_no_train_to_the_ane_drops_the_hybrid_round(tmp_path: Path) -> None:
    stage = Stage({"auto": Behaviour(reason=lambda count: "ane_backlog_shorter_on_gpu")})
    outcome = stage.run(tmp_path)
    assert outcome.exit_code == 0
    assert (outcome.ane["state"], outcome.ane["reason"]) == ("setup_available", "ane_unused_in_warmup")
    assert outcome.ane["warmup_ane_requests"] == 0
    assert outcome.ane["setup_command"] == COMMAND
    assert outcome.result is not None
    assert [one["config"] for one in outcome.result["rounds"]] == ["gpu_only"]
    assert stage.loaded[0][1].closed


@pytest.mark.parametrize("how", ["none on the ane", "runtime lost"])
def test_a_round_that_loses_the_ane_is_demoted_and_keeps_its_data(tmp_path: Path, how: str) -> None:
    def lost(count: int) -> bool:
        return count > 250  # past the 5 s warm-up of about 240 requests

    behaviour = default_behaviour("auto")
    if how == "none on the ane":
        warm = {"on": True}
        behaviour.target = lambda count: "ane" if count < 10 and warm["on"] else "gpu"
    else:
        behaviour.target = lambda count: "gpu" if lost(count) else "ane"
        behaviour.reason = lambda count: (
            "ane_runtime_unavailable" if lost(count) else "validated_short_single_question_path"
        )
    outcome = Stage({"auto": behaviour}).run(tmp_path)
    assert outcome.exit_code == 0
    assert (outcome.ane["state"], outcome.ane["reason"]) == ("unavailable", "ane_lost_during_round")
    assert outcome.ane["setup_command"] is None
    assert outcome.result is not None
    hybrid, gpu_only = outcome.result["rounds"]
    assert (hybrid["config"], hybrid["ane_verified"]) == ("hybrid", False)
    assert (gpu_only["config"], gpu_only["ane_verified"]) == ("gpu_only", None)
    assert outcome.result["comparison"]["available"] is False
    assert any(line["round"] == hybrid["index"] for line in outcome.records)


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(fail_load=errors.BackendUnavailableError("no GPU worker")),
        Behaviour(train_target="ane", fail_future=lambda n: RuntimeError("boom") if n == 3 else None),
        Behaviour(train_target="ane", fail_future=lambda n: RuntimeError("boom") if n == 300 else None),
    ],
    ids=["loading", "warming up", "running"],
)
def test_a_hybrid_round_that_raises_is_dropped_and_the_gpu_only_round_still_runs(
    tmp_path: Path, behaviour: Behaviour
) -> None:
    outcome = Stage({"auto": behaviour}).run(tmp_path)
    assert outcome.exit_code == 0
    assert (outcome.ane["state"], outcome.ane["reason"]) == ("unavailable", "ane_round_failed")
    assert outcome.ane["detail"]
    assert outcome.result is not None
    assert [one["config"] for one in outcome.result["rounds"]] == ["gpu_only"]
    assert "hybrid" not in outcome.result["configs"]
    assert outcome.result["failed_rounds"] == [{"config": "hybrid", "error": outcome.ane["detail"]}]


def test_a_machine_that_is_no_mac_is_a_usage_problem(tmp_path: Path) -> None:
    with pytest.raises(run.UsageProblem, match="Apple silicon"):
        Stage().run(tmp_path, platform=LINUX)
    assert list(tmp_path.iterdir()) == []


def test_every_reason_is_reached_by_a_test_of_this_file() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    after_the_table = source.split("def test_texts_and_states_are_the_seeds")[1]
    assert [reason for reason in TEXTS if f'"{reason}"' not in after_the_table] == []
    assert metrics.CONFIGS == ("gpu_only", "hybrid")
