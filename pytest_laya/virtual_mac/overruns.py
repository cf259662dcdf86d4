"""How far the host fell behind the declared times: the reason a virtual round may be ``host_limited``."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pytest_laya.virtual_mac.declared import DeclaredTimes

ANE_SHARE_LIMIT = 0.10
"""More than this share of ANE requests over their declared time limits a round."""
GPU_P50_LIMIT = 1.10
"""A median GPU service time above this multiple of the declared one limits a round."""


@dataclass(frozen=True)
class Overruns:
    """Forwards whose work alone took longer than declared. Milliseconds."""

    forwards: int = 0
    over: int = 0
    over_total_ms: float = 0.0
    over_max_ms: float = 0.0

    def add(self, worked_ms: float, declared_ms: float) -> Overruns:
        """With one more forward; a declared time of zero can't be overrun."""
        excess_ms = worked_ms - declared_ms if declared_ms else 0.0
        late = excess_ms > 0
        return Overruns(
            self.forwards + 1,
            self.over + late,
            self.over_total_ms + (excess_ms if late else 0.0),
            max(self.over_max_ms, excess_ms if late else 0.0),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class HostReport:
    """What one round's traces say about the host."""

    ane_requests: int
    ane_over: int
    ane_over_share: float
    gpu_requests: int
    gpu_p50_ratio: float | None
    """Median of service time / declared time; None without GPU requests."""
    host_limited: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge_round(
    traces: Iterable[Mapping[str, Any]],
    times: DeclaredTimes,
    buckets: Iterable[int],
    *,
    slack_ms: float = 1.0,
) -> HostReport:
    """Compare the service times of one round's traces (``RequestTrace.to_dict()``) with the declared ones.

    An ANE request is over when its service took more than the declared time of its bucket plus ``slack_ms``,
    the time the host's own tail and the sleep's resolution take.
    """
    offered = sorted(buckets)
    ane_over = ane_count = 0
    gpu_ratios: list[float] = []
    for trace in traces:
        service_ms = (trace["service_end_ns"] - trace["service_start_ns"]) / 1e6
        length, questions = trace["sequence_length"], trace["question_count"]
        if trace["target"] == "ane":
            bucket = next((b for b in offered if b >= length), length)
            ane_count += 1
            ane_over += service_ms > times.ane_ms(bucket) * questions + slack_ms
        elif trace["target"] == "gpu" and times.gpu_ms(length, questions) > 0:
            gpu_ratios.append(service_ms / times.gpu_ms(length, questions))
    share = ane_over / ane_count if ane_count else 0.0
    ratio = statistics.median(gpu_ratios) if gpu_ratios else None
    limited = times.timed and (share > ANE_SHARE_LIMIT or (ratio is not None and ratio > GPU_P50_LIMIT))
    return HostReport(ane_count, ane_over, share, len(gpu_ratios), ratio, limited)
