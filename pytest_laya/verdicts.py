"""Verdicts on the session's facts, reported as tests of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

Outcome = Literal["PASS", "FAIL", "UNKNOWN"]


@dataclass(frozen=True)
class Verdict:
    """One judged claim; anything but PASS is red."""

    group: str
    """``laya-gate``, ``laya-baseline``, ``laya-require`` or ``laya-goldens``."""
    name: str
    outcome: Outcome
    reason: str

    @property
    def nodeid(self) -> str:
        return f"{self.group}::{self.name}"

    @property
    def location(self) -> tuple[str, int | None, str]:
        """For reporters. A domain that ended the node id would have its dots written as ``::``."""
        return self.group, None, f"{self.group} {self.name}"

    @property
    def line(self) -> str:
        return f"{self.outcome:7} {self.group} {self.name}: {self.reason}"


def emit(session: pytest.Session, verdicts: Sequence[Verdict]) -> None:
    """Report every verdict as pytest reports a test, so terminal, JUnit and exit code count it."""
    hook = session.config.hook
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    if verdicts and terminal is not None:
        terminal.ensure_newline()  # the last test's line has its percentage already
    for verdict in verdicts:
        session.testscollected += 1  # the terminal's percentage is reported over collected
        hook.pytest_runtest_logstart(nodeid=verdict.nodeid, location=verdict.location)
        for when in ("setup", "call", "teardown"):
            hook.pytest_runtest_logreport(report=_report(verdict, when))
        hook.pytest_runtest_logfinish(nodeid=verdict.nodeid, location=verdict.location)


def _report(verdict: Verdict, when: Literal["setup", "call", "teardown"]) -> pytest.TestReport:
    red = when == "call" and verdict.outcome != "PASS"
    now = time.time()
    return pytest.TestReport(
        nodeid=verdict.nodeid,
        location=verdict.location,
        keywords={verdict.group: 1},
        outcome="failed" if red else "passed",
        longrepr=f"{verdict.outcome}: {verdict.reason}" if red else None,
        when=when,
        start=now,
        stop=now,
        user_properties=[("laya.verdict", verdict.outcome), ("laya.reason", verdict.reason)],
    )
