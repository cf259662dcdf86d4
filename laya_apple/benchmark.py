"""Summary statistics of a sample of latencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

PERCENTILES = (50, 95, 99)


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Linear percentile of a non-empty, ascending sample: interpolated between the two nearest ranks."""
    position = (len(ascending) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (position - below)


def stats(samples_ms: Sequence[float]) -> dict[str, Any]:
    """``n``, ``p50_ms``, ``p95_ms``, ``p99_ms``, ``mean_ms``, ``min_ms`` and ``max_ms`` of a sample.

    Percentiles are linear. An empty sample gives ``{"n": 0}``; a non-finite value raises ValueError.
    """
    if not samples_ms:
        return {"n": 0}
    if not all(map(math.isfinite, samples_ms)):
        raise ValueError("a latency sample holds a value that is not finite")
    ascending = sorted(samples_ms)
    found: dict[str, Any] = {"n": len(ascending)}
    for percent in PERCENTILES:
        found[f"p{percent}_ms"] = percentile(ascending, percent)
    found["mean_ms"] = math.fsum(ascending) / len(ascending)
    found["min_ms"] = ascending[0]
    found["max_ms"] = ascending[-1]
    return found
