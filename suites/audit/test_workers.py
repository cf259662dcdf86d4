"""Rows 3, 13 and 21: queues refuse early, a dead GPU moves nothing, a worker's warnings reach who should."""

import re
import warnings

import pytest
from audit_case import CLEAR, LONG, SHORT, Home

from laya_apple import BackendUnavailableError, UnsupportedShapeError

KILLED = r"the gpu worker \(process \d+\) was killed by SIGKILL"


@pytest.mark.laya_audit(3)
def test_explicit_ane_workers_refuses_long_rows_before_queueing(home: Home):
    laya = home.load("ane", execution="workers", ane_placement="thread", max_pending=1)
    home.mac.fault("prediction_hang", times=1)
    running = laya.submit(SHORT, CLEAR)
    # The queue is full, and the refusal is still about the shape: nothing was queued.
    with pytest.raises(UnsupportedShapeError, match="178 tokens exceeds laya-mini's largest"):
        laya.submit(LONG, CLEAR)
    assert laya.queue_snapshots()["ane"].queued_jobs == 0
    assert not running.done()


@pytest.mark.laya_audit(13)
def test_dead_gpu_worker_fails_loudly_and_never_falls_back(home: Home):
    home.calibrate(64)
    laya = home.load("auto", execution="workers", ane_placement="thread")
    before = home.predictions()
    home.mac.fault("gpu_kill")
    for _ in range(3):
        with pytest.raises(BackendUnavailableError, match=KILLED):
            laya.predict(LONG, CLEAR)
    assert home.predictions() == before
    assert re.search(KILLED, laya.info()["workers"]["gpu"]["dead"])
    # What was routed to the Neural Engine before the death is routed there after it, for the same reason.
    runtime = laya.predict(SHORT, CLEAR).runtime
    assert (runtime.device, runtime.routing_reason) == ("ane", "validated_short_single_question_path")


@pytest.mark.laya_audit(13)
def test_a_dead_gpu_worker_fails_what_waits_behind_it(home: Home):
    laya = home.load("gpu", execution="workers")
    home.mac.fault("gpu_kill", after=1)
    futures = [laya.submit(LONG, CLEAR) for _ in range(4)]
    assert futures[0].result(30).runtime.device == "gpu"
    for future in futures[1:]:
        with pytest.raises(BackendUnavailableError, match=KILLED):
            future.result(30)
    with pytest.raises(BackendUnavailableError, match=KILLED):
        laya.submit(SHORT, CLEAR)


@pytest.mark.laya_audit(21)
def test_only_our_own_load_warnings_leave_a_worker_s_standard_error(home: Home, monkeypatch, capfd):
    home.calibrate(64, 96)
    home.edit(("parity", "passed"), False, bucket=96)
    monkeypatch.setenv("LAYA_APPLE_PLATFORM", "audit_noisy:platform")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        home.load("auto", execution="workers", ane_placement="process")
    ours = [one for one in caught if "L96 was dropped" in str(one.message)]
    assert [one.category for one in ours] == [RuntimeWarning]
    assert ours[0].filename == __file__ or ours[0].filename.endswith("audit_case.py")
    assert [one for one in caught if "a library" in str(one.message)] == []
    told = capfd.readouterr().err
    assert "UserWarning: a library has something to say about ane" in told
    assert "RuntimeWarning: a library has something to say about gpu" in told
    assert "L96 was dropped" not in told
