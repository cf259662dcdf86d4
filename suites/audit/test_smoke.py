"""The happy path on every device. Mutants must pass it, so that a pin kills them for its own reason."""

import os
from pathlib import Path

import pytest
from audit_case import CLEAR, READY, SHORT, Home


def test_the_package_is_the_copy_under_test():
    import laya_apple

    named = os.environ.get("LAYA_AUDIT_COPY")
    assert named is None or Path(laya_apple.__file__).is_relative_to(named)


@pytest.mark.parametrize(
    ("device", "reason"), [("cpu", "cpu_requested"), ("gpu", "gpu_requested"), ("ane", "ane_requested")]
)
def test_each_device_answers(home: Home, device, reason):
    runtime = home.load(device).predict(SHORT, CLEAR).runtime
    assert (runtime.device, runtime.routing_reason) == (device, reason)


def test_auto_answers(home: Home):
    home.calibrate(64, 96)
    runtime = home.load("auto").predict(SHORT, CLEAR).runtime
    assert (runtime.device, runtime.routing_reason, runtime.placement) == ("ane", READY, "PLACED")
