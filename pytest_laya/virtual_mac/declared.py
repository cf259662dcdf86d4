"""Declared device times: how long a virtual forward takes, in milliseconds.

The default profile is the published M4 Max table for laya-typed-decisions (forward P50s), with the routing's
own interpolation. The virtual Mac did not measure it; it sleeps up to it, so that queues behave like the real
machine's.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laya_apple.routing.queueing import ServiceTable, published_table
from pytest_laya.virtual_mac.state import PROFILE_VARIABLE, read_state

CPU_SLOWDOWN = 2.5
"""CPU-only loads, and ANE loads whose compile failed, take this times max(declared, the host's own time)."""

PROFILE_NAMES = ("m4max", "instant")


@dataclass(frozen=True)
class DeclaredTimes:
    """Milliseconds a forward takes at least; a profile without a table declares nothing."""

    name: str
    table: ServiceTable | None = None

    @property
    def timed(self) -> bool:
        """False for a profile that declares no time at all."""
        return self.table is not None

    def gpu_ms(self, length: int, questions: int) -> float:
        """One forward of ``questions`` rows whose longest has ``length`` tokens."""
        return self.table.gpu_estimate_ms(length, questions) if self.table is not None else 0.0

    def ane_ms(self, length: int) -> float:
        """One prediction of the model compiled for ``length`` tokens."""
        if self.table is None or not self.table.ane_ms:
            return 0.0
        return self.table.ane_estimate_ms((length,))


def make_profile(given: object) -> DeclaredTimes:
    """A profile from its name, a table or a JSON path.

    The table is that of :meth:`laya_apple.routing.queueing.ServiceTable.from_dict`:
    ``{"gpu_ms": {"1": {"64": 9.39}}, "ane_ms": {"64": 8.07}}``. Raises ValueError when it is none of these.
    """
    if given is None or given == "m4max":
        return _published()
    if given == "instant":
        return DeclaredTimes("instant")
    if isinstance(given, Mapping):
        return DeclaredTimes("table", ServiceTable.from_dict("declared", given))
    if isinstance(given, str) and given.endswith(".json"):
        return make_profile(json.loads(Path(given).read_text(encoding="utf-8")))
    raise ValueError(
        f"unknown profile {given!r}: use one of {', '.join(PROFILE_NAMES)}, a table or a .json file"
    )


@functools.cache
def _published() -> DeclaredTimes:
    return DeclaredTimes("m4max", published_table())


def current_times() -> DeclaredTimes:
    """The profile in force: the state file's, else ``LAYA_VIRTUAL_MAC_PROFILE``, else ``m4max``."""
    profile = read_state().profile
    return make_profile(os.environ.get(PROFILE_VARIABLE) if profile is None else profile)


def sleep_until(deadline: float) -> None:
    """Sleep without the GIL until ``time.perf_counter()`` reaches ``deadline`` (seconds)."""
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left)
