"""Row 9: the compute plan must be wholly on the Neural Engine, wherever an artifact comes from."""

import pytest
from audit_case import CLEAR, INLINE_AND_THREAD, MODEL, SHORT, Home, without_canary

from laya_apple import ComputeUnitMismatchError
from laya_apple.artifacts.build import build_artifact
from laya_apple.artifacts.transfer import export_artifact, import_archive
from laya_apple.checkpoint import open_checkpoint

FAULTS = {
    "ops_on_cpu": "the compute plan: not on the Neural Engine: .*gelu.* on cpu",
    "ops_on_gpu": "the compute plan: not on the Neural Engine: .*gelu.* on gpu",
    "plan_without_device": "the compute plan: no device for .*gelu",
}


@pytest.mark.laya_audit(9)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_plan_that_leaves_the_engine_is_refused_at_first_load(home: Home, fault):
    home.own(64)
    home.mac.fault(fault, bucket=64)
    with pytest.raises(ComputeUnitMismatchError, match=FAULTS[fault]):
        home.load("ane")


@pytest.mark.laya_audit(9)
@pytest.mark.parametrize("arguments", INLINE_AND_THREAD)
def test_a_plan_that_leaves_the_engine_drops_the_bucket_under_auto(home: Home, arguments):
    home.calibrate(64)
    home.own(64)
    home.mac.fault("ops_on_cpu", bucket=64)
    with pytest.warns(RuntimeWarning, match="L64 was dropped .*ComputeUnitMismatchError.*the compute plan"):
        laya = home.load("auto", **arguments)
    assert laya.predict(SHORT, CLEAR).runtime.routing_reason == "ane_artifact_unavailable"


@pytest.mark.laya_audit(9)
def test_a_plan_that_leaves_the_engine_is_refused_at_build(home: Home):
    home.remove(64)
    home.mac.fault("ops_on_cpu", bucket=64)
    with without_canary(), pytest.raises(ComputeUnitMismatchError, match="not on the Neural Engine"):
        build_artifact(open_checkpoint(MODEL), 64, platform=home.mac.platform)
    assert not home.artifact(64).exists()
    assert home.locations.rejected(home.spec, 64).is_file()


@pytest.mark.laya_audit(9)
def test_a_plan_that_leaves_the_engine_is_refused_at_import(home: Home, tmp_path):
    archive = export_artifact(home.spec, 64, tmp_path / "out", platform=home.mac.platform).archive
    home.remove(64)
    home.mac.fault("ops_on_cpu", bucket=64)
    with without_canary(), pytest.raises(ComputeUnitMismatchError, match="not on the Neural Engine"):
        import_archive(open_checkpoint(MODEL), archive, platform=home.mac.platform)
    assert not home.artifact(64).exists()
