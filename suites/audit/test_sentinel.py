"""Row 27: a bucket that leaves the Neural Engine after load is noticed, warned about and on record."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import warnings

import pytest
from audit_case import CLEAR, HOSTS, INLINE_AND_THREAD, SHORT, Home, eventually, no_warnings

from laya_apple.execution.sentinel import BASELINE_REQUESTS


def _serve(laya, count: int):
    return [laya.predict(SHORT, CLEAR).runtime for _ in range(count)]


def _until_suspect(laya, most: int = 60):
    for count in range(most):
        runtime = laya.predict(SHORT, CLEAR).runtime
        if laya.info()["ane_sentinel"][64]["verdict"] != "NORMAL":
            return count + 1, runtime
    raise AssertionError(f"not suspect after {most} requests: {laya.info()['ane_sentinel']}")


@pytest.mark.laya_audit(27)
@pytest.mark.parametrize("arguments", HOSTS)
def test_an_evicted_compile_is_noticed_and_moves_nothing(home: Home, arguments):
    laya = home.load("ane", **arguments)
    assert {one.placement for one in _serve(laya, BASELINE_REQUESTS)} == {"PLACED"}
    facts = laya.info()["ane_sentinel"][64]
    assert (facts["verdict"], facts["requests"], facts["alarms"]) == ("NORMAL", BASELINE_REQUESTS, 0)
    home.mac.fault("compile_evicted", bucket=64)
    with pytest.warns(RuntimeWarning, match="laya-mini L64 is SUSPECT: its requests have slowed"):
        needed, last = _until_suspect(laya)
    with no_warnings():
        later = _serve(laya, 5)
    assert needed <= 60
    assert {(one.device, one.placement) for one in (last, *later)} == {("ane", "UNKNOWN")}
    facts = laya.info()["ane_sentinel"][64]
    assert (facts["verdict"], facts["alarms"], facts["reprobe"]) == ("SUSPECT", 1, None)
    assert laya.info()["ane_sentinel"][96]["verdict"] == "LEARNING"
    assert home.gpu_forwards() == 0


@pytest.mark.laya_audit(27)
def test_one_evicted_before_the_baseline_is_complete_is_noticed_too(home: Home):
    laya = home.load("ane")
    home.mac.fault("compile_evicted", bucket=64)
    _serve(laya, BASELINE_REQUESTS)
    with pytest.warns(RuntimeWarning, match="laya-mini L64 is SUSPECT"):
        _until_suspect(laya)


@pytest.mark.laya_audit(27)
@pytest.mark.parametrize("arguments", INLINE_AND_THREAD)
@pytest.mark.parametrize("evicted", [True, False], ids=["evicted", "only-slow"])
def test_a_probe_while_idle_decides(home: Home, arguments, evicted):
    laya = home.load("ane", ane_reprobe=True, **arguments)
    _serve(laya, BASELINE_REQUESTS)
    if evicted:
        home.mac.fault("compile_evicted", bucket=64)
    else:
        home.mac.profile({"gpu_ms": {"1": {"64": 0.1}}, "ane_ms": {"64": 30.0}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _until_suspect(laya)
        probe = eventually(lambda: laya.info()["ane_sentinel"][64]["reprobe"], "the probe while idle")
        runtime = laya.predict(SHORT, CLEAR).runtime
    verdict = "FELL_BACK" if evicted else "PLACED"
    assert (probe["verdict"], runtime.placement, runtime.device) == (verdict, verdict, "ane")
    told = [str(one.message) for one in caught if "laya-mini L64" in str(one.message)]
    assert [("SUSPECT" in one, "FELL_BACK" in one) for one in told] == [(True, False)] + [
        (False, True)
    ] * evicted
    assert laya.info()["ane_sentinel"][64]["verdict"] == ("FELL_BACK" if evicted else "LEARNING")


@pytest.mark.laya_audit(27)
def test_without_the_option_nothing_is_probed_again(home: Home):
    laya = home.load("ane")
    _serve(laya, BASELINE_REQUESTS)
    home.mac.fault("compile_evicted", bucket=64)
    with pytest.warns(RuntimeWarning, match="SUSPECT"):
        _until_suspect(laya)
    loads = [one for one in home.mac.events("load") if one["units"] == "CPU_ONLY"]
    assert len(loads) == 2  # those of the load-time probes
    with no_warnings():
        assert laya.predict(SHORT, CLEAR).runtime.placement == "UNKNOWN"


@pytest.mark.laya_audit(27)
def test_a_probe_while_idle_needs_the_engine_in_this_process(home: Home):
    with pytest.raises(ValueError, match="ane_reprobe=True needs the Neural Engine of laya-mini in this"):
        home.load("ane", ane_reprobe=True, execution="workers", ane_placement="process")


@pytest.mark.laya_audit(27)
def test_session_json_records_it(home: Home, tmp_path):
    (tmp_path / "test_inner.py").write_text(
        textwrap.dedent(
            f"""
            def test_it(laya_factory, recwarn):
                laya = laya_factory({home.spec.name!r}, device="ane")
                for _ in range(120):
                    laya.predict({SHORT!r}, {CLEAR!r})
                assert laya.info()["ane_sentinel"][64]["verdict"] == "SUSPECT"
            """
        ),
        encoding="utf-8",
    )
    home.mac.fault("compile_evicted", bucket=64, after=80)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--laya-platform", "virtual"]
    done = subprocess.run(
        [*command, "--laya-out", "out", "test_inner.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out" / "session.json").read_text(encoding="utf-8"))
    (entry,) = document["sentinel"]
    assert (entry["bucket"], entry["verdict"], entry["alarms"]) == (64, "SUSPECT", 1)
    assert entry["test"].endswith("test_inner.py::test_it")
