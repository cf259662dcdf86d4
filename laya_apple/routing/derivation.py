"""Which buckets join auto, from measured times."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from laya_apple.routing.queueing import ServiceTable, previous_bucket


def derive_auto_buckets(
    offered: Sequence[int], table: ServiceTable, parity_passed: Collection[int]
) -> tuple[int, ...]:
    """The prefix of the ascending ``offered`` buckets that auto may send to the Neural Engine.

    A bucket joins if its artifact passed parity and its Neural Engine P50 is below the GPU's P50 at the
    bucket before it: the shortest row that it would take from the GPU is hardly longer than that one. The
    first bucket is held against itself. The first failure ends the list.
    """
    joined: list[int] = []
    for bucket in offered:
        if bucket not in parity_passed or bucket not in table.ane_ms:
            break
        if table.ane_ms[bucket] >= table.gpu_estimate_ms(previous_bucket(offered, bucket)):
            break
        joined.append(bucket)
    return tuple(joined)
