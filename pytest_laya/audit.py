"""The no-silent-fallback audit: its table, and the verdict on each row from what ran just now."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

from pytest_laya.verdicts import Outcome, Verdict

RowVerdict = Literal["PINNED", "BROKEN", "NOT EXERCISED"]
GROUP = "laya-audit"
"""Node id prefix of the rows' verdicts under ``--laya-audit=strict``."""

LEGEND = (
    "PINNED: every test listed for the row ran in this session and passed.  "
    "BROKEN: one failed.  NOT EXERCISED: one did not run, so nothing was proven."
)


@dataclass(frozen=True)
class Row:
    """One way a request could silently run elsewhere, and what stops it."""

    number: int
    guarantee: str
    """One line for the terminal: what a user may rely on."""
    path: str
    handling: str
    evidence: str
    """Kind of evidence, as ``end to end on the virtual Mac``."""
    pins: tuple[str, ...]
    """Node ids below the suites' folder, parameters included."""


@dataclass(frozen=True)
class Judged:
    """A row with its verdict and the outcome of each of its pins."""

    row: Row
    verdict: RowVerdict
    outcomes: tuple[tuple[str, str], ...]
    """(pin, ``passed``, ``failed``, ``error``, ``skipped`` or ``not run``)."""

    @property
    def why(self) -> str:
        """What the verdict rests on, one line."""
        if self.verdict == "PINNED":
            return f"{len(self.outcomes)} of {len(self.outcomes)} tests passed"
        wrong = [(pin, outcome) for pin, outcome in self.outcomes if outcome != "passed"]
        if self.verdict == "BROKEN":
            wrong = [(pin, outcome) for pin, outcome in wrong if outcome in ("failed", "error")]
        pin, outcome = wrong[0] if wrong else ("no test is listed", "not run")
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return f"{pin}: {outcome}{more}"


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """``audit.toml`` as read."""
    text = resources.files("pytest_laya").joinpath("audit.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def rows() -> tuple[Row, ...]:
    """The table, in the order of its numbers."""
    return tuple(
        Row(
            number=one["row"],
            guarantee=one["guarantee"],
            path=one["path"],
            handling=one["handling"],
            evidence=one["evidence"],
            pins=tuple(one["pins"]),
        )
        for one in document()["row"]
    )


def outcomes_of(tests: Mapping[str, str]) -> dict[str, str]:
    """Pin -> outcome for every listed pin among ``tests`` (node id -> outcome)."""
    listed = {pin for row in rows() for pin in row.pins}
    # A pin's file is two components deep, and its parameters may hold anything.
    found = {}
    for nodeid, outcome in tests.items():
        path, _, name = nodeid.replace("\\", "/").partition("::")
        pin = "/".join(path.split("/")[-2:]) + "::" + name
        if pin in listed:
            found[pin] = outcome
    return found


def judge(tests: Mapping[str, str]) -> list[Judged]:
    """The verdict on every row, from node id -> outcome of the tests that ran."""
    ran = outcomes_of(tests)
    return [_judged(row, tuple((pin, ran.get(pin, "not run")) for pin in row.pins)) for row in rows()]


def _judged(row: Row, outcomes: tuple[tuple[str, str], ...]) -> Judged:
    seen = {outcome for _, outcome in outcomes}
    verdict: RowVerdict = "NOT EXERCISED"
    if seen & {"failed", "error"}:
        verdict = "BROKEN"
    elif seen == {"passed"}:
        verdict = "PINNED"
    return Judged(row, verdict, outcomes)


def verdicts(judged: Sequence[Judged]) -> list[Verdict]:
    """The rows as tests of their own: anything but PINNED is red."""
    colours: dict[RowVerdict, Outcome] = {"PINNED": "PASS", "BROKEN": "FAIL", "NOT EXERCISED": "UNKNOWN"}
    return [
        Verdict(GROUP, f"row-{one.row.number}", colours[one.verdict], f"{one.verdict}: {one.why}")
        for one in judged
    ]
