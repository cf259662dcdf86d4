"""Rows 5 and 12: what a manifest says is held against the model, the machine and CPU_AND_NE."""

import pytest
from audit_case import CLEAR, SHORT, Home

from laya_apple import ArtifactParityError, ArtifactRevisionError, ComputeUnitMismatchError
from laya_apple.artifacts.store import load_verified

EDITS = {
    "graph": (("artifact", "graph"), "another", ArtifactRevisionError, "graph is 'another'"),
    "length": (("artifact", "length"), 96, ArtifactRevisionError, "length is 96, not 64"),
    "precision": (("artifact", "precision"), "float32", ArtifactRevisionError, "precision is 'float32'"),
    "model": (("source", "model"), "laya", ArtifactRevisionError, "model is 'laya', not 'laya-mini'"),
    "parity": (("parity", "passed"), False, ArtifactParityError, "did not pass the parity gate"),
    "status": (("status",), "rejected", ArtifactParityError, "did not pass the parity gate"),
    "soc": (("platform", "soc"), "Apple M9", ArtifactRevisionError, "soc is 'Apple M9'"),
    "macos": (("platform", "macos"), "25.0", ArtifactRevisionError, "macOS major is '25'"),
    "coremltools": (("platform", "coremltools"), "8.3", ArtifactRevisionError, "coremltools is '8.3'"),
}


@pytest.mark.laya_audit(5)
@pytest.mark.parametrize("what", EDITS)
def test_explicit_ane_refuses_what_the_manifest_disqualifies(home: Home, what):
    keys, value, kind, why = EDITS[what]
    home.edit(keys, value)
    with pytest.raises(kind, match=why):
        home.load("ane")
    assert home.predictions() == 0


@pytest.mark.laya_audit(12)
@pytest.mark.parametrize("units", ["ALL", "CPU_ONLY", "CPU_AND_GPU"])
def test_a_manifest_of_other_compute_units_is_refused(home: Home, units):
    home.edit(("placement", "compute_units"), units)
    with pytest.raises(ComputeUnitMismatchError, match=f"declared are {units}, only CPU_AND_NE is allowed"):
        home.load("ane")


@pytest.mark.laya_audit(12)
@pytest.mark.parametrize("units", ["ALL", "CPU_ONLY", "CPU_AND_GPU"])
def test_an_argument_of_other_compute_units_is_refused(home: Home, units):
    with pytest.raises(ComputeUnitMismatchError, match=f"asked for are {units}, only CPU_AND_NE is allowed"):
        load_verified(home.spec, 64, compute_units=units, platform=home.mac.platform)
    assert home.mac.events("load") == []


@pytest.mark.laya_audit(12)
@pytest.mark.parametrize("execution", ["inline", "workers"])
def test_every_model_that_answers_is_loaded_with_cpu_and_ne(home: Home, execution):
    laya = home.load("ane", execution=execution)
    before = len(home.mac.events("predict"))
    runtime = laya.predict(SHORT, CLEAR).runtime
    answered = home.mac.events("predict")[before:]
    assert [one["units"] for one in answered] == ["CPU_AND_NE"]
    assert runtime.compute_units == "CPU_AND_NE"
    assert {one["units"] for one in home.mac.events("load")} == {"CPU_AND_NE", "CPU_ONLY"}
    assert laya.info()["backends"]["ane"]["compute_units"] == "CPU_AND_NE"
