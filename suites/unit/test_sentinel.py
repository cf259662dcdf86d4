"""The sentinel on simulated service times: what it must notice, and what must not alarm it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laya_apple.execution import sentinel
from laya_apple.execution.sentinel import BASELINE_REQUESTS, Sentinel, Watch

RUNS = 1000
ANE_MS, CPU_MS = 8.0, 20.0
"""The probe's figures: a ratio of 0.4, between the published 0.32 and 0.50."""


def _times(rng: np.random.Generator, requests: int, runs: int = RUNS) -> np.ndarray:
    """Service times [requests, runs], ms: log-normal with sigma 0.15, and 2 % isolated outliers of 3x."""
    times = ANE_MS * np.exp(rng.normal(0.0, 0.15, (requests, runs)))
    outlier = rng.random((requests, runs)) < 0.02
    outlier[1:] &= ~outlier[:-1]
    return np.where(outlier, 3 * times, times)


def _bursts(rng: np.random.Generator, times: np.ndarray) -> np.ndarray:
    """Contention: stretches of 20 to 200 requests at 1.3x, a third of all requests."""
    requests, runs = times.shape
    slowed = np.zeros((requests, runs), dtype=bool)
    for run in range(runs):
        at = int(rng.integers(0, 200))
        while at < requests:
            length = int(rng.integers(20, 200))
            slowed[at : at + length, run] = True
            at += length + int(rng.integers(40, 400))
    return np.where(slowed, 1.3 * times, times)


def _alarms(times: np.ndarray) -> np.ndarray:
    """The request at which each run alarms, -1 for none: ``Watch``, for all runs at once."""
    requests, runs = times.shape
    slow_ms = sentinel.CPU_SHARE * CPU_MS
    baseline = np.minimum(np.median(times[:BASELINE_REQUESTS], axis=0), math.sqrt(ANE_MS * slow_ms))
    allowance = np.maximum(math.log(sentinel.CONTENTION), np.log(slow_ms / baseline) / 2)
    total, alarm = np.zeros(runs), np.full(runs, -1)
    for request in range(BASELINE_REQUESTS, requests):
        step = np.clip(np.log(times[request] / baseline) - allowance, -sentinel.CLIP, sentinel.CLIP)
        total = np.maximum(0.0, total + step)
        alarm[(total > sentinel.ALARM) & (alarm < 0)] = request
    return alarm


def _alarm(times: np.ndarray, ane_ms: float = ANE_MS, cpu_ms: float = CPU_MS) -> int:
    watch = Watch(ane_ms, cpu_ms)
    return next((index for index, ms in enumerate(times) if watch.add(float(ms))), -1)


def test_the_simulation_is_the_product():
    rng = np.random.default_rng(1)
    times = _bursts(rng, _times(rng, 400, 40))
    times[200:, ::2] *= 2
    assert [_alarm(times[:, run]) for run in range(40)] == list(_alarms(times))


def test_a_shift_to_twice_alarms_within_60_requests():
    rng = np.random.default_rng(2)
    times = _times(rng, 500)
    times[440:] *= 2
    alarms = _alarms(times)
    assert np.mean((alarms >= 440) & (alarms < 500)) >= 0.95


def test_no_shift_in_10_000_requests_alarms_in_fewer_than_1_percent():
    assert np.mean(_alarms(_times(np.random.default_rng(3), 10_000)) >= 0) < 0.01


def test_bursts_of_contention_alarm_in_fewer_than_1_percent():
    rng = np.random.default_rng(4)
    assert np.mean(_alarms(_bursts(rng, _times(rng, 10_000))) >= 0) < 0.01


def test_a_fallback_before_the_baseline_is_complete_alarms_too():
    rng = np.random.default_rng(5)
    times = _times(rng, 150) * CPU_MS / ANE_MS
    alarms = _alarms(times)
    assert np.mean((alarms >= 0) & (alarms < BASELINE_REQUESTS + 60)) >= 0.95


@pytest.mark.parametrize(("cpu_ms", "watchable"), [(14.9, False), (15.0, True), (8.0, False)])
def test_two_speeds_too_near_are_not_told_apart(cpu_ms, watchable):
    watch = Watch(8.0, cpu_ms)
    assert watch.watchable is watchable
    assert any(watch.add(8.0 if n < 50 else 80.0) for n in range(100)) is watchable


def _probe(ane_ms=8.0, cpu_ms=20.0, verdict="PLACED"):
    return {"ane_ms": ane_ms, "cpu_ms": cpu_ms, "ratio": None, "verdict": verdict}


def _watched(**more):
    told: list[str] = []
    probes = {64: _probe(), 96: _probe(), 128: _probe(verdict="FELL_BACK")}
    return Sentinel("a-model", probes, told.append, **more), told


def _serve(watcher, ms, count, buckets=(64,)):
    for _ in range(count):
        watcher.observe(buckets, ms)


def test_it_says_what_it_knows():
    watcher, told = _watched()
    assert {bucket: one["verdict"] for bucket, one in watcher.describe().items()} == {
        64: "LEARNING",
        96: "LEARNING",
    }
    _serve(watcher, 8.0, 50)
    assert watcher.describe()[64]["verdict"] == "NORMAL"
    assert (watcher.placements(), told) == ({}, [])
    _serve(watcher, 18.0, 60)
    assert watcher.placements() == {64: "UNKNOWN"}
    assert len(told) == 1
    assert "a-model L64 is SUSPECT: its requests have slowed from 8.000 ms towards CPU speed" in told[0]
    facts = watcher.describe()[64]
    assert (facts["verdict"], facts["requests"], facts["baseline_ms"], facts["slow_ms"]) == (
        "SUSPECT",
        110,
        8.0,
        16.0,
    )


def test_rows_of_one_bucket_share_the_time_and_rows_of_several_say_nothing():
    watcher, _ = _watched()
    _serve(watcher, 24.0, 50, buckets=(64, 64, 64))
    _serve(watcher, 99.0, 50, buckets=(64, 96))
    _serve(watcher, 99.0, 50, buckets=())
    facts = watcher.describe()
    assert (facts[64]["requests"], facts[64]["baseline_ms"]) == (50, 8.0)
    assert facts[96]["requests"] == 0


def test_a_probe_while_idle_decides():
    asked: list[int] = []
    watcher, told = _watched(reprobe=asked.append)
    _serve(watcher, 8.0, 50)
    _serve(watcher, 18.0, 60)
    assert asked == [64]
    watcher.reprobed(64, _probe(verdict="UNKNOWN"))
    assert watcher.placements() == {64: "UNKNOWN"}
    watcher.reprobed(64, _probe(20.0, 20.0, "FELL_BACK"))
    assert watcher.placements() == {64: "FELL_BACK"}
    assert "a-model L64 FELL_BACK" in told[1]
    watcher.reprobed(64, _probe())
    assert watcher.placements() == {}
    assert watcher.describe()[64]["verdict"] == "LEARNING"
    assert watcher.describe()[64]["alarms"] == 1
    assert len(told) == 2
