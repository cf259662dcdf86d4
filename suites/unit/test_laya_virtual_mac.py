"""``Laya`` on the virtual Mac: the real Core ML backend under both executions, and its faults."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from artifact_files import Registered

from laya_apple import (
    ArtifactMissingError,
    BackendUnavailableError,
    ComputeUnitMismatchError,
    Laya,
    LayaAppleError,
)
from laya_apple.routing import ServiceTable
from laya_apple.routing.profiles import coremltools_version, save_profile

CHOICE = {"q": {"type": "choice", "instructions": "word1 word2", "criteria": ["word3", "word4", "word5"]}}
TEXT = "word8 word9 word10"
TABLE = ServiceTable("a test", {1: ((64, 9.0), (128, 12.0))}, {64: 8.0})
READY = "validated_short_single_question_path"

Load = Callable[..., Laya]


@pytest.fixture
def load(registered: Registered) -> Iterator[Load]:
    opened: list[Laya] = []
    # Declared times, so that a busy test machine does not decide what the placement probe finds.
    registered.mac.profile("m4max")

    def call(device: str, execution: str, **arguments: Any) -> Laya:
        laya = Laya.from_pretrained(registered.checkpoint.path, device, execution=execution, **arguments)
        opened.append(laya)
        return laya

    yield call
    registered.mac.clear()
    for laya in opened:
        laya.close(5.0)


def calibrate(registered: Registered) -> None:
    save_profile(
        registered.mac.platform,
        registered.checkpoint.spec,
        coremltools_version(),
        auto_buckets=(64,),
        table=TABLE,
        created_at="2026-01-01T00:00:00Z",
    )


HOSTS = [("inline", {}), ("workers", {"ane_placement": "thread"}), ("workers", {"ane_placement": "process"})]


@pytest.mark.parametrize(("execution", "arguments"), HOSTS)
def test_the_engine_answers_and_is_on_record(load: Load, registered: Registered, execution, arguments):
    gpu = load("gpu", "inline").predict(TEXT, CHOICE).answers["q"]["probabilities"]
    laya = load("ane", execution, **arguments)
    result = laya.predict(TEXT, CHOICE)
    for label, share in result.answers["q"]["probabilities"].items():
        assert share == pytest.approx(gpu[label], abs=0.02)
    runtime = result.runtime
    assert (runtime.backend, runtime.device, runtime.compute_units) == ("coreml", "ane", "CPU_AND_NE")
    assert (runtime.dtype, runtime.buckets, runtime.placement) == ("float16", (64,), "PLACED")
    assert runtime.synthetic is True
    info = laya.info()
    sha256 = info["backends"]["ane"]["artifact_sha256"][64]
    assert runtime.artifact_revision == f"L64:{sha256[:12]}"
    assert info["ane_probes"][64]["verdict"] == "PLACED"
    assert info["ane_probes"][64]["ratio"] < 0.8
    with pytest.raises(ArtifactMissingError, match="laya-apple artifacts build"):
        laya.predict(" ".join(["word1"] * 70), CHOICE)


@pytest.mark.parametrize(("execution", "arguments"), HOSTS[:2])
def test_auto_uses_what_was_measured_here(load: Load, registered: Registered, execution, arguments):
    calibrate(registered)
    laya = load("auto", execution, **arguments)
    assert laya.predict(TEXT, CHOICE).runtime.routing_reason == READY
    assert laya.predict(" ".join(["word1"] * 70), CHOICE).runtime.device == "gpu"


def test_auto_without_a_profile_loads_no_engine(load: Load, registered: Registered):
    laya = load("auto", "inline")
    assert laya.predict(TEXT, CHOICE).runtime.routing_reason == "platform_not_validated"
    assert [event for event in registered.mac.events("load") if event["pid"] == os.getpid()] == []


def test_without_core_ml_tools_auto_says_so_without_a_warning(load: Load, registered: Registered):
    calibrate(registered)
    registered.mac.fault("coremltools_missing")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laya = load("auto", "inline")
        assert laya.predict(TEXT, CHOICE).runtime.routing_reason == "ane_runtime_unavailable"
    with pytest.raises(BackendUnavailableError, match=r"laya-apple\[ane\]"):
        load("ane", "inline")


@pytest.mark.parametrize(("execution", "arguments"), HOSTS[:2])
def test_a_model_that_runs_on_the_cpu_is_refused_or_dropped(
    load: Load, registered: Registered, execution, arguments
):
    calibrate(registered)
    registered.mac.fault("ane_compile_failed")
    with pytest.raises(ComputeUnitMismatchError):
        load("ane", execution, **arguments)
    with pytest.warns(RuntimeWarning, match="L64 was dropped"):
        laya = load("auto", execution, **arguments)
    assert laya.predict(TEXT, CHOICE).runtime.routing_reason == "ane_artifact_unavailable"
    assert laya.info()["ane_probes"][64]["verdict"] == "FELL_BACK"


@pytest.mark.parametrize(("execution", "arguments"), HOSTS[:2])
def test_outputs_that_are_not_finite_never_become_an_answer(
    load: Load, registered: Registered, execution, arguments
):
    laya = load("ane", execution, **arguments)
    registered.mac.fault("nonfinite_outputs")
    with pytest.raises(LayaAppleError, match="no answer was made"):
        laya.predict(TEXT, CHOICE)
    registered.mac.clear()
    assert laya.predict(TEXT, CHOICE).runtime.device == "ane"


def test_a_killed_gpu_worker_moves_nothing_to_the_engine(load: Load, registered: Registered):
    calibrate(registered)
    laya = load("auto", "workers")
    registered.mac.fault("gpu_kill")
    long = " ".join(["word1"] * 70)
    for _ in range(2):
        with pytest.raises(BackendUnavailableError, match=r"the gpu worker .* was killed by SIGKILL"):
            laya.predict(long, CHOICE)
    assert laya.predict(TEXT, CHOICE).runtime.device == "ane"
