"""Where a request goes and why: every reason, the queues, the calibration rule."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laya_apple import routing
from laya_apple.routing import AneState, Decision, ServiceTable
from laya_apple.trace import QueueSnapshot


@dataclass(frozen=True)
class Spec:
    ane_buckets: tuple[int, ...] = (64, 96, 128)


SPEC = Spec()
READY = AneState(auto_buckets=(64, 96, 128), loaded_buckets=(64, 96, 128))
EMPTY = routing.EMPTY_QUEUE


def backlog(ms: float) -> QueueSnapshot:
    return QueueSnapshot(backlog_ms=ms, queued_jobs=0, running=ms > 0)


@pytest.mark.parametrize(
    ("device", "questions", "length", "state", "options", "expected"),
    [
        ("gpu", 1, 60, READY, 3, Decision("gpu", "gpu_requested")),
        ("ane", 4, 60, READY, 3, Decision("ane", "ane_requested")),
        ("cpu", 1, 60, READY, 3, Decision("cpu", "cpu_requested")),
        ("auto", 1, 60, READY, 3, Decision("ane", "validated_short_single_question_path")),
        ("auto", 1, 128, READY, 32, Decision("ane", "validated_short_single_question_path")),
        ("auto", 1, 129, READY, 3, Decision("gpu", "sequence_exceeds_ane_auto_range")),
        ("auto", 1, 60, READY, 33, Decision("gpu", "options_exceed_ane_shape")),
        ("auto", 2, 60, READY, 3, Decision("gpu", "multiple_questions")),
        ("auto", 2, 500, READY, 3, Decision("gpu", "multiple_questions")),
        ("auto", 1, 60, AneState(), 3, Decision("gpu", "platform_not_validated")),
        *(
            ("auto", 9, 999, AneState(reason, (64,), (64,)), 3, Decision("gpu", reason))
            for reason in ("ane_runtime_unavailable", "platform_not_validated", "ane_starting")
        ),
        # A missing bucket never pads up to the next one.
        ("auto", 1, 60, AneState(None, (64, 96), (96,)), 3, Decision("gpu", "ane_artifact_unavailable")),
        # The range is what was measured here, not what is offered.
        (
            "auto",
            1,
            65,
            AneState(None, (64,), (64, 96)),
            3,
            Decision("gpu", "sequence_exceeds_ane_auto_range"),
        ),
    ],
)
def test_every_reason_is_reachable(device, questions, length, state, options, expected):
    assert routing.decide(device, SPEC, questions, length, state, option_count=options) == expected


def test_an_unknown_device_is_refused():
    with pytest.raises(ValueError, match="device must be one of auto, gpu, ane, cpu, not 'tpu'"):
        routing.decide("tpu", SPEC, 1, 60, READY)


def queued(device="auto", questions=1, length=60, state=READY, *, gpu, ane, options=3):
    return routing.decide_queued(
        device,
        SPEC,
        questions,
        length,
        state,
        table=routing.published_table(),
        gpu=gpu,
        ane=ane,
        option_count=options,
    )


def test_a_short_request_moves_to_the_gpu_when_that_answers_sooner():
    # 9.3909 on the GPU against 1.4 + 8.0746 on the Neural Engine.
    assert queued(gpu=EMPTY, ane=backlog(1.4)) == Decision("gpu", "ane_backlog_shorter_on_gpu")
    assert queued(gpu=EMPTY, ane=backlog(1.3)).target == "ane"
    assert queued(gpu=backlog(100.0), ane=backlog(100.0)).target == "ane"


EXPLICIT_ONLY = AneState(None, (64,), (64, 96))


def test_a_request_above_the_auto_range_moves_to_its_loaded_bucket():
    # Bucket 96 takes 9.0178; the GPU's bar is the bucket below, 9.3909.
    moved = Decision("ane", "gpu_backlog_shorter_on_ane")
    assert queued(length=90, state=EXPLICIT_ONLY, gpu=backlog(0.1), ane=EMPTY) == moved
    assert queued(length=90, state=EXPLICIT_ONLY, gpu=backlog(1.0), ane=backlog(1.5)).target == "gpu"
    assert queued(length=120, state=EXPLICIT_ONLY, gpu=backlog(500.0), ane=EMPTY).target == "gpu"
    assert queued(length=90, state=EXPLICIT_ONLY, gpu=backlog(500.0), ane=EMPTY, options=40) == Decision(
        "gpu", "sequence_exceeds_ane_auto_range"
    )


@pytest.mark.parametrize(
    ("device", "questions", "length"),
    [("auto", 1, 129), ("auto", 1, 1024), ("auto", 2, 60), ("gpu", 1, 60), ("ane", 1, 60), ("cpu", 1, 60)],
)
def test_long_multi_question_and_explicit_requests_never_move(device, questions, length):
    base = routing.decide(device, SPEC, questions, length, READY)
    for gpu, ane in ((EMPTY, backlog(1e6)), (backlog(1e6), EMPTY)):
        assert queued(device, questions, length, gpu=gpu, ane=ane) == base


@pytest.mark.parametrize("reason", ["ane_runtime_unavailable", "platform_not_validated", "ane_starting"])
def test_an_unavailable_engine_gets_nothing_however_long_the_gpu_queue(reason):
    state = AneState(reason, (64,), (64, 96))
    for length in (60, 90):
        assert queued(length=length, state=state, gpu=backlog(1e6), ane=EMPTY) == Decision("gpu", reason)


def test_without_a_neural_engine_queue_nothing_moves():
    assert queued(gpu=backlog(1e6), ane=None, length=90, state=EXPLICIT_ONLY).target == "gpu"


times = st.floats(min_value=0.01, max_value=1e4)


@st.composite
def ruled_tables(draw):
    """A table with GPU times rising in length, and the state that the profile rule derives from it."""
    offered = (64, 96, 128, 256)
    gpu = sorted(draw(st.lists(times, min_size=5, max_size=5)))
    table = ServiceTable(
        source="drawn",
        gpu_ms={1: tuple(zip((*offered, 1024), gpu, strict=True))},
        ane_ms=dict(zip(offered, draw(st.lists(times, min_size=4, max_size=4)), strict=True)),
    )
    passed = draw(st.sets(st.sampled_from(offered)))
    auto = routing.derive_auto_buckets(offered, table, passed)
    loaded = tuple(sorted(draw(st.sets(st.sampled_from(offered)))))
    return Spec(offered), table, AneState(None, auto, loaded)


@given(
    ruled_tables(),
    st.sampled_from(["auto", "gpu", "ane", "cpu"]),
    st.integers(1, 5),
    st.integers(1, 1100),
    st.integers(1, 40),
)
def test_empty_queues_decide_like_no_queues(ruled, device, questions, length, options):
    spec, table, state = ruled
    with_queues = routing.decide_queued(
        device, spec, questions, length, state, table=table, gpu=EMPTY, ane=EMPTY, option_count=options
    )
    assert with_queues == routing.decide(device, spec, questions, length, state, option_count=options)


@given(ruled_tables(), st.integers(1, 256), st.floats(min_value=0.0, max_value=1e3))
def test_equal_queues_leave_a_validated_short_request_on_the_engine(ruled, length, ms):
    spec, table, state = ruled
    state = AneState(None, state.auto_buckets, spec.ane_buckets)
    base = routing.decide("auto", spec, 1, length, state)
    if base.target == "ane":
        # The rule's own margin may be lost to rounding in the sum, never more.
        queues = {"gpu": backlog(ms + 1e-6 if ms else 0.0), "ane": backlog(ms)}
        assert routing.decide_queued("auto", spec, 1, length, state, table=table, **queues) == base


@given(ruled_tables(), st.integers(1, 300), times, times)
def test_a_move_always_promises_an_earlier_finish(ruled, length, gpu_ms, ane_ms):
    spec, table, state = ruled
    moved = routing.decide_queued(
        "auto", spec, 1, length, state, table=table, gpu=backlog(gpu_ms), ane=backlog(ane_ms)
    )
    bucket = routing.fitting_bucket(spec.ane_buckets, length)
    if moved.reason == "ane_backlog_shorter_on_gpu":
        assert gpu_ms + table.gpu_estimate_ms(length) < ane_ms + table.ane_estimate_ms((bucket,))
    elif moved.reason == "gpu_backlog_shorter_on_ane":
        assert bucket not in state.auto_buckets
        assert bucket in state.loaded_buckets
        assert ane_ms + table.ane_estimate_ms((bucket,)) < gpu_ms + table.gpu_estimate_ms(length)


def test_estimates_follow_the_measured_points():
    table = routing.published_table()
    assert table.gpu_estimate_ms(64) == 9.3909
    assert table.gpu_estimate_ms(1) == 9.3909
    assert table.gpu_estimate_ms(80) == pytest.approx((9.3909 + 11.567) / 2)
    assert table.gpu_estimate_ms(1024) == 71.0049
    assert table.gpu_estimate_ms(1536) == pytest.approx(71.0049 + (71.0049 - 35.2083))
    assert table.gpu_estimate_ms(128, 4) == 33.1606
    assert table.gpu_estimate_ms(64, 2) == pytest.approx(9.3909 + (18.7714 - 9.3909) / 3)
    assert table.gpu_estimate_ms(64, 7) == pytest.approx(18.7714 + (18.7714 - 9.3909))
    assert table.ane_estimate_ms((64,)) == 8.0746
    assert table.ane_estimate_ms((64, 128)) == pytest.approx(8.0746 + 9.9307)
    assert "Apple M4 Max" in table.source


def test_a_table_survives_a_round_trip():
    table = routing.published_table()
    assert ServiceTable.from_dict(table.source, table.to_dict()) == table


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"gpu_ms": [], "ane_ms": {}},
        {"gpu_ms": {}, "ane_ms": {}},
        {"gpu_ms": {"4": {"64": 1.0}}, "ane_ms": {}},
        {"gpu_ms": {"1": {}}, "ane_ms": {}},
        {"gpu_ms": {"1": {"64": 0}}, "ane_ms": {}},
        {"gpu_ms": {"1": {"64": True}}, "ane_ms": {}},
        {"gpu_ms": {"1": {"64": "9"}}, "ane_ms": {}},
        {"gpu_ms": {"1": {"64": float("nan")}}, "ane_ms": {}},
        {"gpu_ms": {"1": {"x": 1.0}}, "ane_ms": {}},
        {"gpu_ms": {"1": {"64": 1.0}}},
    ],
)
def test_a_malformed_table_is_a_value_error(data):
    with pytest.raises(ValueError):
        ServiceTable.from_dict("test", data)


def rule(gpu: dict[int, float], ane: dict[int, float], passed=(64, 96, 128)) -> tuple[int, ...]:
    table = ServiceTable("test", {1: tuple(sorted(gpu.items()))}, ane)
    return routing.derive_auto_buckets((64, 96, 128), table, passed)


def test_the_calibration_rule_stops_at_the_first_failure():
    gpu = {64: 9.0, 96: 11.0, 128: 12.0}
    assert rule(gpu, {64: 8.0, 96: 8.9, 128: 10.9}) == (64, 96, 128)
    assert rule(gpu, {64: 9.0, 96: 1.0, 128: 1.0}) == ()
    assert rule(gpu, {64: 8.0, 96: 9.0, 128: 1.0}) == (64,)
    assert rule(gpu, {64: 8.0, 96: 8.0, 128: 11.0}) == (64, 96)
    assert rule(gpu, {64: 8.0, 96: 8.0, 128: 8.0}, passed=(64, 128)) == (64,)
    assert rule(gpu, {64: 8.0, 128: 8.0}) == (64,)
    assert rule(gpu, {}) == ()
