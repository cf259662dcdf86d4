"""Declared device times: how long a virtual forward takes, in milliseconds.

The default profile is the published M4 Max table for laya-typed-decisions (forward P50s). The virtual Mac did not
measure it; it sleeps up to it, so that queues behave like the real machine's.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_laya.virtual_mac.state import PROFILE_VARIABLE, read_state

CPU_SLOWDOWN = 2.5
"""A CPU-only load, and an ANE load whose compile failed, take this times max(declared, the host's own time)."""

_M4_MAX: dict[str, Any] = {
    "gpu": {
        1: {64: 9.3909, 96: 11.567, 128: 12.2261, 512: 35.2083, 1024: 71.0049},
        4: {64: 18.7714, 96: 26.3158, 128: 33.1606, 256: 63.4638, 512: 123.9525, 1024: 262.2954},
    },
    "ane": {64: 8.0746, 96: 9.0178, 128: 9.9307},
}

PROFILE_NAMES = ("m4max", "instant")


@dataclass(frozen=True)
class DeclaredTimes:
    """Milliseconds a forward takes at least. Empty tables declare nothing."""

    name: str
    gpu: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Question count -> length -> ms."""
    ane: Mapping[int, float] = field(default_factory=dict)
    """Length -> ms for one row."""

    @property
    def timed(self) -> bool:
        """False for a profile that declares no time at all."""
        return bool(self.gpu or self.ane)

    def gpu_ms(self, length: int, questions: int) -> float:
        """One forward of ``questions`` rows whose longest has ``length`` tokens."""
        if not self.gpu:
            return 0.0
        at_length = {count: interpolate(table, length) for count, table in self.gpu.items()}
        return interpolate(at_length, questions)

    def ane_ms(self, length: int) -> float:
        """One prediction of the model compiled for ``length`` tokens."""
        return interpolate(self.ane, length) if self.ane else 0.0


def interpolate(table: Mapping[int, float], at: int) -> float:
    """Linear between the measured points, never below the first, extended beyond the last by its own slope."""
    xs = sorted(table)
    if at <= xs[0] or len(xs) == 1:
        return table[xs[0]]
    right = min(max(bisect_left(xs, at), 1), len(xs) - 1)
    x0, x1 = xs[right - 1], xs[right]
    return table[x0] + (table[x1] - table[x0]) * (at - x0) / (x1 - x0)


def make_profile(given: object) -> DeclaredTimes:
    """A profile from its name, a table ``{"gpu": {questions: {length: ms}}, "ane": {length: ms}}`` or a JSON path.

    Raises ValueError when it is none of these.
    """
    if given is None or given == "m4max":
        return _from_table("m4max", _M4_MAX)
    if given == "instant":
        return DeclaredTimes("instant")
    if isinstance(given, Mapping):
        return _from_table("table", given)
    if isinstance(given, str) and given.endswith(".json"):
        return _from_table("table", json.loads(Path(given).read_text(encoding="utf-8")))
    raise ValueError(f"unknown profile {given!r}: use one of {', '.join(PROFILE_NAMES)}, a table or a .json file")


def _from_table(name: str, table: Mapping[str, Any]) -> DeclaredTimes:
    unknown = set(table) - {"gpu", "ane"}
    if unknown:
        raise ValueError(f"a profile has the keys gpu and ane, not {sorted(unknown)}")
    return DeclaredTimes(
        name,
        gpu={int(q): {int(n): float(ms) for n, ms in t.items()} for q, t in table.get("gpu", {}).items()},
        ane={int(n): float(ms) for n, ms in table.get("ane", {}).items()},
    )


def current_times() -> DeclaredTimes:
    """The profile in force: the state file's, else ``LAYA_VIRTUAL_MAC_PROFILE``, else the published M4 Max."""
    profile = read_state().profile
    return make_profile(os.environ.get(PROFILE_VARIABLE) if profile is None else profile)
