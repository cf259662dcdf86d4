"""Rows 1 and 3: every routing reason is reached; explicit ane refuses what is too long."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from audit_case import (
    CLEAR,
    INLINE_AND_THREAD,
    LONG,
    LONGER,
    MIDDLE,
    READY,
    SHORT,
    TWO,
    Home,
    no_warnings,
)

from laya_apple import UnsupportedShapeError
from laya_apple.result import RuntimeInfo
from pytest_laya import audit_census

WORKERS = {"execution": "workers", "ane_placement": "thread"}
MANY = {"which": {"type": "choice", "instructions": "Which?", "criteria": [f"{i}" for i in range(33)]}}


def _explicit(device: str) -> Callable[[Home], RuntimeInfo]:
    return lambda home: home.load(device).predict(SHORT, CLEAR).runtime


def _auto(text: str, questions: object, *buckets: int) -> Callable[[Home], RuntimeInfo]:
    def run(home: Home) -> RuntimeInfo:
        home.calibrate(*buckets)
        return home.load("auto").predict(text, questions).runtime

    return run


def _without_core_ml(home: Home) -> RuntimeInfo:
    home.calibrate(64)
    home.mac.fault("coremltools_missing")
    return home.load("auto").predict(SHORT, CLEAR).runtime


def _unvalidated(home: Home) -> RuntimeInfo:
    return home.load("auto").predict(SHORT, CLEAR).runtime


def _starting(home: Home) -> RuntimeInfo:
    home.calibrate(64)
    home.mac.fault("load_hang")
    laya = home.load("auto", ane_startup="background", **WORKERS)
    assert laya.info()["ane_unavailable"] == "ane_starting"
    return laya.predict(SHORT, CLEAR).runtime


def _busy_ane(home: Home) -> RuntimeInfo:
    home.calibrate(64)
    laya = home.load("auto", **WORKERS)
    home.mac.fault("prediction_hang", times=1)
    laya.submit(SHORT, CLEAR)
    return laya.submit(SHORT, CLEAR).result(30).runtime


def _busy_gpu(home: Home) -> RuntimeInfo:
    home.calibrate(64)
    laya = home.load("auto", **WORKERS)
    home.mac.fault("gpu_hang", times=1)
    laya.submit(LONG, CLEAR)
    return laya.submit(MIDDLE, CLEAR).result(30).runtime


REASONS: dict[str, tuple[str, Callable[[Home], RuntimeInfo]]] = {
    "gpu_requested": ("gpu", _explicit("gpu")),
    "ane_requested": ("ane", _explicit("ane")),
    "cpu_requested": ("cpu", _explicit("cpu")),
    "no_questions": ("none", lambda home: home.load("gpu").predict(SHORT, {}).runtime),
    "ane_runtime_unavailable": ("gpu", _without_core_ml),
    "platform_not_validated": ("gpu", _unvalidated),
    "ane_starting": ("gpu", _starting),
    "multiple_questions": ("gpu", _auto(SHORT, TWO, 64)),
    "sequence_exceeds_ane_auto_range": ("gpu", _auto(MIDDLE, CLEAR, 64)),
    "options_exceed_ane_shape": ("gpu", _auto("", MANY, 64, 96, 128)),
    "ane_artifact_unavailable": ("gpu", _auto(LONGER, CLEAR, 64, 96, 128)),
    READY: ("ane", _auto(SHORT, CLEAR, 64)),
    "ane_backlog_shorter_on_gpu": ("gpu", _busy_ane),
    "gpu_backlog_shorter_on_ane": ("ane", _busy_gpu),
}
"""Reason -> the device that then answers, and a request that gets it."""


@pytest.mark.laya_audit(1)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_is_reached_and_recorded(home: Home, reason):
    device, run = REASONS[reason]
    runtime = run(home)
    assert (runtime.routing_reason, runtime.device) == (reason, device)
    assert (runtime.buckets != (), runtime.compute_units) == (
        (True, "CPU_AND_NE") if device == "ane" else (False, None)
    )


@pytest.mark.laya_audit(1)
def test_the_source_gives_no_other_reason():
    modules = audit_census.sources(audit_census.package_folder())
    assert audit_census.reasons(modules) == set(REASONS)


@pytest.mark.laya_audit(3)
@pytest.mark.parametrize("text", [LONG], ids=["178-tokens"])
def test_explicit_ane_refuses_rows_longer_than_the_largest_bucket(home: Home, text):
    laya = home.load("ane")
    before = home.predictions()
    with pytest.raises(UnsupportedShapeError, match="178 tokens exceeds laya-mini's largest Neural Engine"):
        laya.predict(text, CLEAR)
    with pytest.raises(UnsupportedShapeError, match="33 options exceeds the Neural Engine graph's 32"):
        laya.predict("", MANY)
    assert (home.predictions(), home.gpu_forwards()) == (before, 0)


@pytest.mark.laya_audit(1)
@pytest.mark.parametrize("arguments", INLINE_AND_THREAD)
def test_routing_never_answers_a_failure_with_the_other_device(home: Home, arguments):
    home.calibrate(64)
    laya = home.load("auto", **arguments)
    home.mac.fault("prediction_error", message="broken engine")
    for _ in range(2):
        with no_warnings(), pytest.raises(Exception, match="broken engine"):
            laya.predict(SHORT, CLEAR)
    home.mac.clear()
    assert laya.predict(SHORT, CLEAR).runtime.device == "ane"
