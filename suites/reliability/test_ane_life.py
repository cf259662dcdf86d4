"""The Neural Engine coming up late, not at all, or dying, with the real Core ML code on the virtual Mac."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from reliability_case import CHOICE, Case, child_processes, eventually, own_threads, text

from laya_apple import BackendUnavailableError, Laya

PROCESS = {"ane_placement": "process"}
UNAVAILABLE = "the Neural Engine is unavailable, so device='auto' uses MLX only (ane_runtime_unavailable): "
placements = pytest.mark.parametrize("placement", [{}, PROCESS], ids=["thread", "process"])


def ran(laya: Laya, number: int = 1) -> tuple[str, str]:
    runtime = laya.predict(text(number), CHOICE).runtime
    return runtime.device, runtime.routing_reason


def recorded(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in caught if w.category is RuntimeWarning]


@placements
def test_background_start_serves_from_mlx_until_the_engine_is_up(
    case: Case, placement: dict[str, Any]
) -> None:
    case.mac.fault("load_hang", units="CPU_ONLY", times=1)  # the load waits at its probe
    laya = case.workers(ane_startup="background", **placement)
    assert ran(laya) == ("gpu", "ane_starting")
    eventually(lambda: case.mac.events("fault"), "the load hangs")
    assert laya.wait_for_ane(0.05) is False
    assert laya.info()["ane_unavailable"] == "ane_starting"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        case.mac.clear()  # the probe's load fails: no bucket, but the engine is up
        assert laya.wait_for_ane(60) is True
    assert "L64 was dropped from the Neural Engine" in recorded(caught)[0]
    assert ran(laya) == ("gpu", "ane_artifact_unavailable")


@placements
def test_background_start_then_the_engine_serves(case: Case, placement: dict[str, Any]) -> None:
    laya = case.workers(ane_startup="background", **placement)
    assert laya.wait_for_ane(60) is True
    assert ran(laya) == ("ane", "validated_short_single_question_path")
    assert laya.info()["ane_handoff"]["active"] is (placement == {})


def test_background_start_without_the_asynchronous_path_still_serves(case: Case) -> None:
    case.mac.fault("async_load_error", message="no room")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said once a process, maybe already
        laya = case.workers(ane_startup="background")
        assert laya.wait_for_ane(60) is True
    assert ran(laya)[0] == "ane"
    assert laya.info()["ane_handoff"]["reason"].endswith("no room")


def test_a_required_handoff_cannot_start_in_the_background(case: Case) -> None:
    with pytest.raises(ValueError, match=r"^ane_handoff=True needs ane_startup='wait'$"):
        case.workers(ane_startup="background", ane_handoff=True)
    assert case.mac.events("load") == []


def test_a_background_start_that_fails_is_warned_about_and_recorded(case: Case) -> None:
    case.mac.fault("load_kills", units="CPU_AND_NE")
    laya = case.workers(ane_startup="background", **PROCESS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert laya.wait_for_ane(60) is False
        assert [ran(laya, i) for i in range(3)] == [("gpu", "ane_runtime_unavailable")] * 3
    (message,) = recorded(caught)
    assert message.startswith(UNAVAILABLE + "BackendUnavailableError: the ane worker (process ")
    assert message.endswith(" was killed by SIGKILL; load the model again")
    assert laya.info()["ane_unavailable"] == "ane_runtime_unavailable"
    assert laya.info()["ane_error"] in message


def test_a_dead_worker_under_auto_fails_its_request_then_mlx_serves(case: Case) -> None:
    laya = case.workers(**PROCESS)
    assert ran(laya)[0] == "ane"
    case.mac.fault("worker_killed", times=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(BackendUnavailableError, match=r"the ane worker .* was killed by SIGKILL"):
            laya.predict(text(2), CHOICE)
        assert [ran(laya, i) for i in range(5)] == [("gpu", "ane_runtime_unavailable")] * 5
    (message,) = recorded(caught)
    assert message.startswith(UNAVAILABLE + "BackendUnavailableError: the ane worker (process ")
    assert laya.wait_for_ane(0) is False
    assert laya.info()["ane_handoff"]["active"] is False


def test_a_dead_worker_under_explicit_ane_keeps_raising(case: Case) -> None:
    laya = case.workers("ane", **PROCESS)
    case.mac.fault("worker_killed", times=1)
    for number in range(3):
        with pytest.raises(BackendUnavailableError, match=r"the ane worker .* was killed by SIGKILL"):
            laya.predict(text(number), CHOICE)
    assert case.mac.events("forward") == []


def test_a_thread_whose_forward_hangs_is_given_up_and_mlx_serves(case: Case) -> None:
    threads, children = own_threads(), child_processes()
    laya = case.workers(request_timeout=2.0)
    case.mac.fault("prediction_hang", times=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(BackendUnavailableError, match=r"did not answer within request_timeout=2 s"):
            laya.predict(text(2), CHOICE)
        assert [ran(laya, i) for i in range(3)] == [("gpu", "ane_runtime_unavailable")] * 3
    assert len(recorded(caught)) == 1
    found = laya.info()["ane_handoff"]
    assert (found["active"], "request_timeout=2 s" in found["reason"]) == (False, True)
    case.mac.clear()
    laya.close()
    eventually(lambda: own_threads() <= threads, "the abandoned thread ends once its call returns")
    assert child_processes() <= children
