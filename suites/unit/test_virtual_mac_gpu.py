"""The GPU half: declared times, kept outputs, faults, and what the host's overruns say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laya_apple.backends.base import BackendInfo, RowOutput
from laya_apple.prompt.sequence import Row
from laya_apple.routing.queueing import published_table
from pytest_laya.virtual_mac.control import VirtualMac
from pytest_laya.virtual_mac.declared import DeclaredTimes, current_times, make_profile
from pytest_laya.virtual_mac.overruns import Overruns, judge_round

TABLE = {"gpu_ms": {"1": {"64": 5.0, "128": 10.0}, "4": {"64": 20.0, "128": 40.0}}, "ane_ms": {"64": 8.0}}


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with VirtualMac(tmp_path / "virtual-mac", monkeypatch) as virtual_mac:
        yield virtual_mac


class Counting:
    """A backend whose outputs depend on the row, and on the call where ``drift`` is set."""

    def __init__(self, *, drift: bool = False) -> None:
        self.calls = 0
        self.drift = drift
        self.closed = False

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(backend="mlx", device="gpu", dtype="float16", weights_sha256="0" * 64)

    def forward(self, rows: Sequence[Row]) -> list[RowOutput]:
        self.calls += 1
        extra = self.calls if self.drift else 0
        return [
            RowOutput(np.full(len(r.markers), sum(r.ids) + extra, np.float32), np.zeros(2, np.float32))
            for r in rows
        ]

    def warm(self) -> None:
        self.calls = 0

    def close(self) -> None:
        self.closed = True


def row(length: int, first: int = 1) -> Row:
    return Row(ids=(first, *range(2, length + 1)), markers=(1, 2), qtype=0)


def elapsed_ms(backend: Any, rows: Sequence[Row]) -> float:
    started = time.perf_counter()
    backend.forward(rows)
    return (time.perf_counter() - started) * 1e3


def test_the_cpu_and_the_neural_engine_are_not_wrapped(mac: VirtualMac) -> None:
    inner = Counting()
    assert mac.platform.wrap_backend("cpu", inner) is inner
    assert mac.platform.wrap_backend("ane", inner) is inner
    assert mac.platform.mlx_gpu_device() == "cpu"


def test_a_forward_takes_at_least_its_declared_time(mac: VirtualMac) -> None:
    mac.profile(TABLE)
    gpu = mac.platform.wrap_backend("gpu", Counting())
    assert elapsed_ms(gpu, [row(64)]) >= 5
    assert elapsed_ms(gpu, [row(96), row(10)]) >= 15
    assert elapsed_ms(gpu, [row(128)] * 4) >= 40
    assert [e["length"] for e in mac.events("forward")] == [64, 96, 128]


def test_repeating_requests_are_kept_once_two_computations_agree(mac: VirtualMac) -> None:
    mac.profile(TABLE)
    inner = Counting()
    gpu = mac.platform.wrap_backend("gpu", inner)
    outputs = [gpu.forward([row(512)])[0].options.tolist() for _ in range(4)]
    assert inner.calls == 2
    assert outputs == [outputs[0]] * 4
    assert [e["kept"] for e in mac.events("forward")] == [False, False, True, True]
    assert elapsed_ms(gpu, [row(512)]) >= 40
    gpu.forward([row(512, first=9)])
    gpu.forward([row(512), row(512)])
    assert inner.calls == 4


def test_outputs_that_differ_are_never_kept(mac: VirtualMac) -> None:
    mac.profile(TABLE)
    inner = Counting(drift=True)
    gpu = mac.platform.wrap_backend("gpu", inner)
    for _ in range(4):
        gpu.forward([row(512)])
    assert inner.calls == 4


def test_a_kept_output_is_not_the_callers_to_change(mac: VirtualMac) -> None:
    mac.profile(TABLE)
    gpu = mac.platform.wrap_backend("gpu", Counting())
    first = gpu.forward([row(512)])[0].options.tolist()
    for _ in range(3):
        gpu.forward([row(512)])[0].options[:] = 0
    assert gpu.forward([row(512)])[0].options.tolist() == first


def test_trains_are_always_computed_and_so_is_everything_without_declared_times(mac: VirtualMac) -> None:
    inner = Counting()
    gpu = mac.platform.wrap_backend("gpu", inner)
    for _ in range(3):
        gpu.forward([row(512)])
    assert inner.calls == 3
    mac.profile(TABLE)
    for _ in range(3):
        gpu.forward([row(128)])
    assert inner.calls == 6


def test_faults_of_the_gpu(mac: VirtualMac) -> None:
    gpu = mac.platform.wrap_backend("gpu", Counting())
    mac.fault("gpu_nonfinite", times=1)
    assert np.isnan(gpu.forward([row(8)])[0].options).all()
    assert np.isfinite(gpu.forward([row(8)])[0].options).all()
    mac.fault("gpu_error", after=1, message="no luck")
    gpu.forward([row(8)])
    with pytest.raises(RuntimeError, match=r"^no luck$"):
        gpu.forward([row(8)])
    mac.clear()
    mac.fault("gpu_kill")
    with pytest.raises(RuntimeError, match="would kill the test's own process"):
        gpu.forward([row(8)])


def test_closing_closes_the_backend_and_logs_the_overruns(mac: VirtualMac) -> None:
    mac.profile({"gpu_ms": {"1": {"64": 1e-6}}, "ane_ms": {}})
    inner = Counting()
    gpu = mac.platform.wrap_backend("gpu", inner)
    gpu.forward([row(8)])
    gpu.close()
    (event,) = mac.events("overruns")
    assert inner.closed
    assert (event["forwards"], event["over"]) == (1, 1)
    assert event["over_max_ms"] == event["over_total_ms"] > 0


def test_the_default_profile_is_the_published_table(mac: VirtualMac, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_profile(None) == DeclaredTimes("m4max", published_table())
    assert make_profile("m4max").gpu_ms(64, 1) == 9.3909
    assert make_profile("m4max").ane_ms(64) == 8.0746
    assert (make_profile("instant").gpu_ms(1024, 4), make_profile("instant").ane_ms(64)) == (0, 0)
    mac.profile("m4max")
    assert current_times().name == "m4max"
    monkeypatch.delenv("LAYA_VIRTUAL_MAC_STATE")
    monkeypatch.setenv("LAYA_VIRTUAL_MAC_PROFILE", "instant")
    assert not current_times().timed


def test_bad_profiles_are_refused(mac: VirtualMac) -> None:
    with pytest.raises(
        ValueError, match=r"^unknown profile 'm9': use one of m4max, instant, a table or a .json file$"
    ):
        mac.profile("m9")
    with pytest.raises(ValueError, match="malformed service table"):
        mac.profile({"gpu": {}})


def test_overruns_add_up() -> None:
    overruns = Overruns()
    for worked_ms, declared_ms in [(1, 2), (5, 2), (4, 2), (9, 0)]:
        overruns = overruns.add(worked_ms, declared_ms)
    assert overruns == Overruns(forwards=4, over=2, over_total_ms=5, over_max_ms=3)


def trace(target: str, service_ms: float, length: int = 64) -> dict[str, Any]:
    return {
        "target": target,
        "sequence_length": length,
        "question_count": 1,
        "service_start_ns": 0,
        "service_end_ns": round(service_ms * 1e6),
    }


def test_a_round_is_host_limited_by_either_device() -> None:
    times = make_profile(TABLE)
    good = [trace("ane", 8.5)] * 9 + [trace("ane", 20)] + [trace("gpu", 5.2)] * 3
    report = judge_round(good, times, (64, 96))
    assert (report.ane_over_share, report.host_limited) == (0.1, False)
    assert report.gpu_p50_ratio == pytest.approx(1.04)
    assert judge_round([*good, trace("ane", 20)], times, (64, 96)).host_limited
    assert judge_round([trace("gpu", 5.6)] * 3, times, (64, 96)).host_limited
    assert judge_round([], times, (64,)).gpu_p50_ratio is None
