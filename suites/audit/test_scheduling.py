"""Row 2: a busy device's next request may go to the other one, before it is submitted, and says so."""

import pytest
from audit_case import CLEAR, LONG, MIDDLE, SHORT, TWO, Home

WORKERS = {"execution": "workers", "ane_placement": "thread"}


@pytest.mark.laya_audit(2)
def test_a_busy_engine_hands_its_next_request_to_the_gpu(home: Home):
    home.calibrate(64)
    laya = home.load("auto", **WORKERS)
    home.mac.fault("prediction_hang", times=1)
    first = laya.submit(SHORT, CLEAR)
    second = laya.submit(SHORT, CLEAR).result(30).runtime
    assert (second.device, second.routing_reason) == ("gpu", "ane_backlog_shorter_on_gpu")
    assert second.ane_backlog_ms > 0
    assert second.gpu_backlog_ms == 0.0
    assert not first.done()


@pytest.mark.laya_audit(2)
def test_a_busy_gpu_hands_its_next_request_to_an_explicit_only_bucket(home: Home):
    home.calibrate(64)
    laya = home.load("auto", **WORKERS)
    home.mac.fault("gpu_hang", times=1)
    first = laya.submit(LONG, CLEAR)
    second = laya.submit(MIDDLE, CLEAR).result(30).runtime
    assert (second.device, second.routing_reason) == ("ane", "gpu_backlog_shorter_on_ane")
    assert (second.buckets, second.gpu_backlog_ms > 0) == ((96,), True)
    assert not first.done()


@pytest.mark.laya_audit(2)
def test_long_and_multi_question_requests_never_go_to_the_engine(home: Home):
    home.calibrate(64)
    laya = home.load("auto", **WORKERS)
    before = home.predictions()
    home.mac.fault("gpu_hang", times=1)
    laya.submit(LONG, CLEAR)
    waiting = [laya.submit(LONG, CLEAR), laya.submit(SHORT, TWO), laya.submit(MIDDLE, TWO)]
    assert laya.queue_snapshots()["ane"].queued_jobs == 0
    home.mac.clear()
    told = [future.result(30).runtime for future in waiting]
    assert [one.routing_reason for one in told] == [
        "sequence_exceeds_ane_auto_range",
        "multiple_questions",
        "multiple_questions",
    ]
    assert {one.device for one in told} == {"gpu"}
    assert home.predictions() == before
