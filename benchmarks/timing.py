"""The two loops that are timed, the same for us and for a peer. Imports nothing of either."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WARMUP = 200
LOOPS = 3_000


def closed_loop(submit: Callable[[int], Any]) -> dict[str, float]:
    """P50 and P99, microseconds, of one request at a time."""
    for number in range(WARMUP):
        submit(number).result()
    taken_us = []
    for number in range(LOOPS):
        begin = time.perf_counter()
        submit(number).result()
        taken_us.append((time.perf_counter() - begin) * 1e6)
    taken_us.sort()
    return {"p50_us": taken_us[LOOPS // 2], "p99_us": taken_us[LOOPS * 99 // 100]}


def throughput(submit: Callable[[int], Any], count: int) -> float:
    """Requests a second when all are submitted at once."""
    begin = time.perf_counter()
    futures = [submit(number) for number in range(count)]
    for future in futures:
        future.result()
    return count / (time.perf_counter() - begin)
