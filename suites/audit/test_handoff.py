"""Row 22: adaptive execution changes how a forward is called, never where or on what it runs."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from audit_case import CLEAR, LONG, MODEL, SHORT, Home, no_warnings

from laya_apple import BackendUnavailableError

WORKERS = {"execution": "workers"}
SYNCHRONOUS = 64
"""Forwards of an episode that run on coremltools' predict before the asynchronous path is used."""


@pytest.mark.laya_audit(22)
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("pyobjc_missing", "pyobjc"),
        ("async_load_error", "refuses to load"),
        ("async_wrong_outputs", "differs from"),
    ],
    ids=["pyobjc", "load-error", "other-outputs"],
)
def test_unavailable_it_raises_when_it_was_asked_for(home: Home, fault, why):
    home.calibrate(64)
    home.mac.fault(fault)
    with pytest.raises(BackendUnavailableError, match=f"(?i)ane_handoff=True: .* unavailable: .*({why})"):
        home.load("auto", ane_handoff=True, **WORKERS)


@pytest.mark.laya_audit(22)
def test_unavailable_by_default_it_warns_once_a_process_and_records_why(home: Home):
    home.calibrate(64)
    home.mac.fault("pyobjc_missing")
    script = f"""
        import json, warnings
        from laya_apple import Laya
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            said, ran = [], []
            for _ in range(2):
                with Laya.from_pretrained({MODEL!r}, "auto", execution="workers") as laya:
                    ran.append(laya.predict({SHORT!r}, {CLEAR!r}).runtime.device)
                    said.append(laya.info()["ane_handoff"])
        told = [str(one.message) for one in caught if "adaptive Neural Engine execution" in str(one.message)]
        print(json.dumps([told, said, ran]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told, said, ran = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == 1
    assert "forwards run coremltools' predict only" in told[0]
    assert [(one["eligible"], one["active"]) for one in said] == [(True, False)] * 2
    assert "pyobjc" in said[1]["reason"].lower()
    assert ran == ["ane", "ane"]


@pytest.mark.laya_audit(22)
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"message": "engine hiccup"}, "engine hiccup"),
        ({"name": "async_other_array"}, None),
    ],
    ids=["error", "another-array"],
)
def test_a_failing_asynchronous_forward_runs_again_on_the_engine(home: Home, fault, why):
    home.calibrate(64)
    home.remove(96)
    laya = home.load("auto", ane_handoff=True, **WORKERS)
    home.mac.profile("instant")
    expected = laya.predict(SHORT, CLEAR).answers
    home.mac.fault("gpu_hang", times=1)
    laya.submit(LONG, CLEAR)  # the GPU is busy from here on
    for _ in range(SYNCHRONOUS):
        assert laya.predict(SHORT, CLEAR).runtime.device == "ane"
    arguments = dict(fault)
    home.mac.fault(arguments.pop("name", "async_error"), **arguments)
    if why is None:
        result = laya.predict(SHORT, CLEAR)
        assert laya.info()["ane_handoff"]["async_forwards"] == 1
    else:
        with pytest.warns(RuntimeWarning, match=f"asynchronous Core ML path is disabled.*{why}"):
            result = laya.predict(SHORT, CLEAR)
        with no_warnings():
            laya.predict(SHORT, CLEAR)
        state = laya.info()["ane_handoff"]
        assert (state["active"], state["state"]) == (False, "disabled")
        assert why in state["reason"]
    runtime = result.runtime
    assert result.answers == expected
    assert (runtime.device, runtime.compute_units, runtime.buckets) == ("ane", "CPU_AND_NE", (64,))
    assert runtime.routing_reason == "validated_short_single_question_path"


@pytest.mark.laya_audit(22)
@pytest.mark.parametrize(
    "arguments",
    [
        {"device": "auto"},
        {"device": "gpu", **WORKERS},
        {"device": "auto", "ane_placement": "process", **WORKERS},
        {"device": "auto", "ane_startup": "background", **WORKERS},
    ],
    ids=["inline", "gpu", "process", "background"],
)
def test_an_ineligible_handoff_is_refused(home: Home, arguments):
    with pytest.raises(ValueError, match="ane_handoff=True needs"):
        home.load(ane_handoff=True, **arguments)
    assert home.mac.events("load") == []
