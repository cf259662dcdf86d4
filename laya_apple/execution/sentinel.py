"""Row 27 of the audit: notices when a bucket that passed its probe stops running at Neural Engine speed.

The probe looks at load. From then on the service times of real requests are all there is, and they cost
nothing. The verdict here is a suspicion: it warns once and is on record, and it never moves a request. A
probe while the device is idle (``ane_reprobe=True``) decides.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from laya_apple.result import Placement

BASELINE_REQUESTS = 50
CPU_SHARE = 0.8
"""Of the probe's time on the CPU: from there on a request is as slow as the CPU. The probe's own limit."""
CONTENTION = 1.4
"""A request up to this much slower than the baseline is no evidence: a busy machine does that too."""
LEAST_APART = 1.5
"""CPU speed over Neural Engine speed below which service times cannot tell the two apart."""
CLIP = 0.5
"""Most that one request counts for, so that no few outliers make an alarm; natural log of a ratio."""
ALARM = 4.0
"""Sum of log ratios beyond CONTENTION at which the bucket is suspect: some twelve requests at twice."""


class Watch:
    """One bucket's service times against the baseline: a clipped CUSUM of log ratios.

    ``ane_ms`` and ``cpu_ms`` are the probe's fastest predictions. The baseline is the median of the first
    ``BASELINE_REQUESTS`` requests, but no more than the geometric mean of the two speeds, so that a bucket
    which falls back before the baseline is complete is found all the same.
    """

    def __init__(self, ane_ms: float, cpu_ms: float) -> None:
        self.slow_ms = CPU_SHARE * cpu_ms
        self.watchable = ane_ms > 0 and self.slow_ms / ane_ms >= LEAST_APART
        self.requests = 0
        self.baseline_ms: float | None = None
        self.total = 0.0
        self.suspect = False
        self._cap_ms = math.sqrt(max(ane_ms * self.slow_ms, 0.0))
        self._first: list[float] = []
        self._allowance = 0.0

    def add(self, service_ms: float) -> bool:
        """Count one request of ``service_ms``; True once, when the bucket becomes suspect."""
        self.requests += 1
        if not self.watchable or self.suspect or service_ms <= 0:
            return False
        if self.baseline_ms is None:
            self._first.append(service_ms)
            if len(self._first) == BASELINE_REQUESTS:
                self.baseline_ms = min(statistics.median(self._first), self._cap_ms)
                self._allowance = max(math.log(CONTENTION), math.log(self.slow_ms / self.baseline_ms) / 2)
                self._first.clear()
            return False
        excess = math.log(service_ms / self.baseline_ms) - self._allowance
        self.total = max(0.0, self.total + min(max(excess, -CLIP), CLIP))
        self.suspect = self.total > ALARM
        return self.suspect


class Sentinel:
    """The watches of one loaded Neural Engine, bucket by bucket. Thread-safe.

    ``warn`` says a message to the caller. ``reprobe`` is told the bucket that became suspect, where a probe
    while idle was asked for.
    """

    def __init__(
        self,
        model_name: str,
        probes: Mapping[int, Mapping[str, Any]],
        warn: Callable[[str], None],
        reprobe: Callable[[int], None] | None = None,
    ) -> None:
        self._model_name = model_name
        self._warn = warn
        self._ask = reprobe
        self._lock = threading.Lock()
        self._watches = {bucket: watch for bucket, probe in probes.items() if (watch := _watch(probe))}
        self._reprobes: dict[int, dict[str, Any]] = {}
        self._alarms: dict[int, int] = {}

    def observe(self, buckets: Sequence[int], service_ms: float) -> None:
        """Count a request whose rows all ran in one bucket; one of several says nothing about any."""
        if len(set(buckets)) != 1:
            return
        bucket, row_ms = buckets[0], service_ms / len(buckets)
        with self._lock:
            watch = self._watches.get(bucket)
            alarmed = watch is not None and watch.add(row_ms)
            if alarmed:
                self._alarms[bucket] = self._alarms.get(bucket, 0) + 1
                self._reprobes.pop(bucket, None)
        if alarmed and watch is not None:
            self._warn(
                f"{self._model_name} L{bucket} is SUSPECT: its requests have slowed from "
                f"{watch.baseline_ms:.3f} ms towards CPU speed (from {watch.slow_ms:.3f} ms) since it was "
                "loaded; requests stay on the Neural Engine path, RuntimeInfo.placement says UNKNOWN, and "
                "info()['ane_sentinel'] has the figures; loading the model again probes it again"
            )
            if self._ask is not None:
                self._ask(bucket)

    def reprobed(self, bucket: int, probe: Mapping[str, Any]) -> None:
        """A probe while idle has decided: PLACED starts the watch anew, anything else stands."""
        with self._lock:
            self._reprobes[bucket] = dict(probe)
            if probe["verdict"] == "PLACED":
                watch = _watch(probe)
                if watch is not None:
                    self._watches[bucket] = watch
        if probe["verdict"] == "FELL_BACK":
            self._warn(
                f"{self._model_name} L{bucket} FELL_BACK: probed again while idle, it takes "
                f"{probe['ane_ms']:.3f} ms against {probe['cpu_ms']:.3f} ms on the CPU alone; "
                "load the model again"
            )

    def placements(self) -> dict[int, Placement]:
        """Bucket -> what its results must say instead of the load-time probe's verdict."""
        with self._lock:
            found: dict[int, Placement] = {}
            for bucket, watch in self._watches.items():
                if watch.suspect:
                    reprobe = self._reprobes.get(bucket)
                    fell_back = reprobe is not None and reprobe["verdict"] == "FELL_BACK"
                    found[bucket] = "FELL_BACK" if fell_back else "UNKNOWN"
            return found

    def describe(self) -> dict[int, dict[str, Any]]:
        """``info()["ane_sentinel"]``: bucket -> verdict and the figures it rests on, milliseconds."""
        placements = self.placements()
        with self._lock:
            return {
                bucket: {
                    "verdict": self._verdict(watch, placements.get(bucket)),
                    "requests": watch.requests,
                    "baseline_ms": watch.baseline_ms,
                    "slow_ms": watch.slow_ms,
                    "evidence": watch.total,
                    "alarms": self._alarms.get(bucket, 0),
                    "reprobe": self._reprobes.get(bucket),
                }
                for bucket, watch in self._watches.items()
            }

    @staticmethod
    def _verdict(watch: Watch, placement: Placement | None) -> str:
        if placement == "FELL_BACK":
            return "FELL_BACK"
        if watch.suspect:
            return "SUSPECT"
        if not watch.watchable:
            return "UNWATCHABLE"
        return "LEARNING" if watch.baseline_ms is None else "NORMAL"


def _watch(probe: Mapping[str, Any]) -> Watch | None:
    """None for a probe without two times, of a bucket that was not loaded."""
    ane_ms, cpu_ms = probe.get("ane_ms"), probe.get("cpu_ms")
    if probe.get("verdict") != "PLACED" or ane_ms is None or cpu_ms is None:
        return None
    return Watch(float(ane_ms), float(cpu_ms))
