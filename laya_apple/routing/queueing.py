"""Service-time estimates, and the decision that also looks at the queues."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laya_apple.routing.decide import (
    MAX_ANE_OPTIONS,
    AneState,
    BucketSpec,
    Decision,
    decide,
    fitting_bucket,
)
from laya_apple.trace import QueueSnapshot

PUBLISHED_TABLE = Path(__file__).parent.parent / "data" / "service-m4-max.json"
EMPTY_QUEUE = QueueSnapshot(backlog_ms=0.0, queued_jobs=0, running=False)

_Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class ServiceTable:
    """Measured forward times of one model on one machine, milliseconds.

    ``gpu_ms`` maps a question count to ascending (length, P50) points; ``ane_ms`` maps a bucket to its P50.
    """

    source: str
    gpu_ms: Mapping[int, _Points]
    ane_ms: Mapping[int, float]

    def gpu_estimate_ms(self, sequence_length: int, question_count: int = 1) -> float:
        """MLX time for one request: linear in length, then in question count.

        Lengths below the shortest measured one cost as much as it does, since a forward has a fixed part;
        beyond the last length, and beyond the last question count, the last two points are extended.
        """
        counts = sorted(self.gpu_ms)
        points = tuple((count, _length_estimate(self.gpu_ms[count], sequence_length)) for count in counts)
        return _interpolate(points, question_count)

    def ane_estimate_ms(self, buckets: Iterable[int]) -> float:
        """Neural Engine time for one request: the sum over its rows' buckets, one row a prediction."""
        points = tuple(sorted(self.ane_ms.items()))
        return sum(_interpolate(points, bucket) for bucket in buckets)

    @classmethod
    def from_dict(cls, source: str, data: Mapping[str, Any]) -> ServiceTable:
        """Read ``{"gpu_ms": {"1": {"64": 9.39}}, "ane_ms": {"64": 8.07}}``.

        Raises ValueError when it holds no single-question series, or a time that is not a positive number.
        """
        try:
            gpu_ms = {int(count): _points(series) for count, series in data["gpu_ms"].items()}
            ane_ms = dict(_points(data["ane_ms"]))
        except (AttributeError, KeyError, TypeError) as error:  # reraise: as one error for a bad table
            raise ValueError(f"malformed service table: {error!r}") from error
        if not gpu_ms.get(1) or not all(gpu_ms.values()) or min(gpu_ms) < 1:
            raise ValueError("a service table needs gpu_ms times for one question")
        return cls(source=source, gpu_ms=gpu_ms, ane_ms=ane_ms)

    def to_dict(self) -> dict[str, Any]:
        """The inverse of :meth:`from_dict`, without the source."""
        return {
            "gpu_ms": {
                str(count): {str(length): ms for length, ms in self.gpu_ms[count]}
                for count in sorted(self.gpu_ms)
            },
            "ane_ms": {str(bucket): self.ane_ms[bucket] for bucket in sorted(self.ane_ms)},
        }


def published_table() -> ServiceTable:
    """The published M4 Max figures; where no local profile matches they order backlogs, nothing else."""
    data = json.loads(PUBLISHED_TABLE.read_text(encoding="utf-8"))
    return ServiceTable.from_dict(data["source"], data)


def decide_queued(
    device: str,
    spec: BucketSpec,
    question_count: int,
    sequence_length: int,
    ane_state: AneState,
    *,
    table: ServiceTable,
    gpu: QueueSnapshot,
    ane: QueueSnapshot | None,
    option_count: int = 0,
) -> Decision:
    """:func:`decide`, then the other device if that one would answer sooner.

    Only single-question auto requests move, and only away from a device that has a backlog. One above the
    auto range moves only to its own explicit-only bucket, and only when that beats the GPU's time for the
    bucket below, the same bar that calibration sets.
    """
    chosen = decide(device, spec, question_count, sequence_length, ane_state, option_count=option_count)
    if device != "auto" or ane is None:
        return chosen
    bucket = fitting_bucket(spec.ane_buckets, sequence_length)
    if bucket is None:
        return chosen
    ane_finish_ms = ane.backlog_ms + table.ane_estimate_ms((bucket,))
    if chosen.target == "ane" and ane.backlog_ms > 0:
        if gpu.backlog_ms + table.gpu_estimate_ms(sequence_length) < ane_finish_ms:
            return Decision("gpu", "ane_backlog_shorter_on_gpu")
    elif (
        chosen.reason == "sequence_exceeds_ane_auto_range"
        and gpu.backlog_ms > 0
        and bucket in ane_state.loaded_buckets
        and option_count <= MAX_ANE_OPTIONS
    ):
        below = previous_bucket(spec.ane_buckets, bucket)
        if ane_finish_ms < gpu.backlog_ms + table.gpu_estimate_ms(below):
            return Decision("ane", "gpu_backlog_shorter_on_ane")
    return chosen


def previous_bucket(buckets: Sequence[int], bucket: int) -> int:
    """The offered bucket below ``bucket``; the first one stands for itself."""
    index = bisect.bisect_left(buckets, bucket)
    return buckets[max(index - 1, 0)]


def _points(series: Mapping[str, Any]) -> _Points:
    points = []
    for length, ms in series.items():
        if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 < ms < float("inf"):
            raise ValueError(f"the time at {length} is {ms!r}, not a positive number of milliseconds")
        points.append((int(length), float(ms)))
    return tuple(sorted(points))


def _length_estimate(points: _Points, sequence_length: int) -> float:
    return _interpolate(points, max(sequence_length, points[0][0]))


def _interpolate(points: _Points, x: int) -> float:
    """Linear between points and along the last two beyond the end; flat with a single point."""
    if len(points) == 1:
        return points[0][1]
    right = min(max(bisect.bisect_left(points, (x,)), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    if x <= x0 and right == 1:
        return y0
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
