"""Adaptive Neural Engine execution from the outside: real workers on the virtual Mac, GPU busy."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from typing import Any

import pytest
from reliability_case import CHOICE, TWO, Case, child_processes, own_threads, text

from laya_apple import BackendUnavailableError, Laya
from laya_apple.result import Result

SLOW_WORDS = 6_000
"""A context that takes milliseconds to tokenise on any machine; most of it is cut away again."""


def handoff(laya: Laya) -> dict[str, Any]:
    found: dict[str, Any] = laya.info()["ane_handoff"]
    return found


def run(case: Case, laya: Laya, words: list[int]) -> tuple[list[Result], list[str]]:
    """One request a number of words, all in one episode under a busy GPU; results and the ways taken.

    A machine that stalls for a second between two forwards ends the episode, as it should; then again.
    """
    for _ in range(10):
        episodes, asked = handoff(laya)["episodes"], len(case.ways())
        with case.busy_gpu(laya):
            futures = [laya.submit(text(i, count), CHOICE) for i, count in enumerate(words)]
            results = [future.result(120) for future in futures]
        if handoff(laya)["episodes"] == episodes + 1:
            return results, case.ways()[asked:]
        time.sleep(1.1)  # a pause, so that the next attempt starts armed
    raise AssertionError("no ten tries without a stall of a second")


@pytest.fixture
def laya(case: Case) -> Laya:
    return case.workers(ane_handoff=True)


def all_on_the_neural_engine(results: list[Result]) -> bool:
    return {
        (r.runtime.device, r.runtime.backend, r.runtime.compute_units, r.runtime.dtype, r.runtime.buckets)
        for r in results
    } == {("ane", "coreml", "CPU_AND_NE", "float16", (64,))}


def test_it_is_there_and_armed_before_the_first_request(laya: Laya) -> None:
    found = handoff(laya)
    assert found["probes"].pop(64)["verdict"] == "PLACED"
    assert found == {
        "eligible": True,
        "active": True,
        "reason": None,
        "state": "armed",
        "disabled_reason": None,
        "episodes": 0,
        "breaker_openings": 0,
        "sync_forwards": 0,
        "async_forwards": 0,
        "episode_forwards": 0,
        "slow_requests": 0,
        "probes": {},
    }
    assert json.loads(json.dumps(laya.info()))["ane_handoff"]["state"] == "armed"


def test_without_gpu_activity_it_stays_synchronous(case: Case, laya: Laya) -> None:
    asked = len(case.ways())
    results = [laya.predict(text(i), CHOICE) for i in range(70)]
    assert case.ways()[asked:] == ["coremltools"] * 70
    assert all_on_the_neural_engine(results)
    assert (handoff(laya)["state"], handoff(laya)["sync_forwards"]) == ("armed", 70)


def test_under_gpu_load_it_hands_over_after_64_forwards(case: Case, laya: Laya) -> None:
    results, ways = run(case, laya, [12] * 66)
    assert ways == ["coremltools"] * 64 + ["async"] * 2
    assert handoff(laya)["state"] == "async_healthy"
    assert all_on_the_neural_engine(results)
    inline = case.load("ane")
    assert [r.answers for r in results] == [inline.predict(text(i), CHOICE).answers for i in range(66)]


def test_a_slowed_host_opens_the_breaker_after_three(case: Case, laya: Laya) -> None:
    results, ways = run(case, laya, [12] * 64 + [SLOW_WORDS] * 3 + [12] * 4)
    assert ways == ["coremltools"] * 64 + ["async"] * 3 + ["coremltools"] * 4
    assert (handoff(laya)["state"], handoff(laya)["breaker_openings"]) == ("breaker_open", 1)
    assert handoff(laya)["active"] is True
    assert all_on_the_neural_engine(results)


@pytest.mark.parametrize(
    ("fault", "arguments", "reason"),
    [
        ("async_no_completion", {}, "the asynchronous prediction did not complete within 5 s"),
        ("async_error", {"message": "no luck"}, "the asynchronous prediction failed: no luck"),
    ],
)
def test_a_failed_prediction_runs_again_on_coremltools_once(
    case: Case, laya: Laya, fault: str, arguments: dict[str, Any], reason: str
) -> None:
    case.mac.fault(fault, **arguments)  # every asynchronous prediction from now on
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results, ways = run(case, laya, [12] * 70)
    assert ways == ["coremltools"] * 70
    assert len([e for e in case.mac.events("fault") if e["name"] == fault]) == 1
    assert [(w.category, str(w.message)) for w in caught] == [
        (
            RuntimeWarning,
            "the asynchronous Core ML path is disabled, and forwards go on through coremltools' predict on "
            f"the Neural Engine: {reason}",
        )
    ]
    assert all_on_the_neural_engine(results)
    assert [r.runtime.routing_reason for r in results] == ["validated_short_single_question_path"] * 70
    found = handoff(laya)
    assert (found["state"], found["active"], found["reason"]) == ("disabled", False, reason)
    inline = case.load("ane")
    assert [r.answers for r in results] == [inline.predict(text(i), CHOICE).answers for i in range(70)]


def test_off_means_off(case: Case) -> None:
    laya = case.workers(ane_handoff=False)
    assert handoff(laya) == {"eligible": True, "active": False, "reason": "ane_handoff=False"}
    assert {e["way"] for e in case.mac.events("load")} == {"coremltools"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "needs execution='workers' and device='auto'"),
        (
            {"execution": "workers", "ane_placement": "thread"},
            "needs the Neural Engine on a thread by measured placement (ane_placement='auto')",
        ),
    ],
)
def test_where_it_cannot_apply_it_says_so(case: Case, arguments: dict[str, Any], reason: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        laya = case.load("auto", **arguments)
    assert handoff(laya) == {"eligible": False, "active": False, "reason": reason}
    assert caught == []


@pytest.mark.parametrize(
    ("fault", "arguments", "reason"),
    [
        ("pyobjc_missing", {}, "pyobjc-framework-CoreML cannot be imported"),
        (
            "async_load_error",
            {"message": "no room"},
            "the asynchronous path of L64 did not load: Core ML could not load",
        ),
        (
            "async_wrong_outputs",
            {},
            "the asynchronous path of L64 did not load: logits of the asynchronous path differs from",
        ),
        ("coremltools_missing", {}, "the Neural Engine is not in use (ane_runtime_unavailable)"),
        (
            "load_error",
            {"units": "CPU_AND_NE"},
            "no bucket of the Neural Engine is loaded",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*dropped from the Neural Engine:RuntimeWarning")
def test_required_and_unavailable_raises_and_leaves_nothing(
    case: Case, fault: str, arguments: dict[str, Any], reason: str
) -> None:
    before, children = own_threads(), child_processes()
    case.mac.fault(fault, **arguments)
    with pytest.raises(BackendUnavailableError) as caught:
        case.workers(ane_handoff=True)
    prefix = "ane_handoff=True: adaptive Neural Engine execution is unavailable: "
    assert str(caught.value).startswith(prefix + reason)
    assert own_threads() <= before
    assert child_processes() <= children


ONCE = """
import json, sys, warnings
from laya_apple import Laya
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    reasons = []
    for number in range(2):
        with Laya.from_pretrained(sys.argv[1], execution="workers") as laya:
            result = laya.predict("word1 word2", json.loads(sys.argv[2]))
            reasons.append([laya.info()["ane_handoff"]["reason"], result.runtime.device])
print(json.dumps([[str(w.message) for w in caught if w.category is RuntimeWarning], reasons]))
"""


def test_unavailable_is_warned_about_once_a_process_and_recorded_each_time(case: Case) -> None:
    case.mac.fault("async_load_error", message="no room")
    done = subprocess.run(
        [sys.executable, "-c", ONCE, str(case.checkpoint.path), json.dumps(CHOICE)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    messages, reasons = json.loads(done.stdout)
    (message,) = messages
    reason = reasons[0][0]
    assert reason.endswith("model.mlmodelc: no room")
    assert reasons == [[reason, "ane"]] * 2
    assert message == (
        "adaptive Neural Engine execution is unavailable, so forwards run coremltools' predict only: "
        f"{reason}; ane_handoff=False says that this is meant. This is said once; "
        "info()['ane_handoff'] has the reason each time"
    )


def test_a_gpu_request_after_a_pause_starts_a_new_episode(case: Case, laya: Laya) -> None:
    run(case, laya, [12] * 65)
    time.sleep(1.1)
    assert handoff(laya)["state"] == "async_healthy"  # looking moves nothing
    laya.predict(text(1), TWO)
    assert handoff(laya)["state"] == "armed"
