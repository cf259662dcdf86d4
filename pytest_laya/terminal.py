"""What people read in the terminal: the header line and the summary section."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_laya import audit

if TYPE_CHECKING:
    from pytest_laya.session import LayaSession

BANNER = "*** virtual Mac, synthetic: nothing here is measured on Apple silicon ***"

REPLAY = "replay.html"
"""All that a replay writes."""


def header(session: LayaSession) -> list[str]:
    """The platform, where it is not simply the real machine of an unrelated project."""
    if session.choice.virtual:
        return [f"laya: {session.choice.line}", f"laya: {BANNER}"]
    if session.choice.hook:
        return [f"laya: {session.choice.line}"]
    return []


def summary(reporter: Any, session: LayaSession, exit_status: int) -> None:
    """Numbers, verdicts and where the files are; nothing for a session without a test of ours."""
    if session.is_worker or not session.active or session.config.option.collectonly:
        return
    reporter.write_sep("=", "laya")
    if session.choice.virtual:
        reporter.write_line(BANNER, bold=True, yellow=True)
    for fact in session.recorded("switchyard"):
        _switchyard(reporter, fact.machine, fact.data)
    if session.audited:
        _audit(reporter, session)
    for verdict in session.verdicts:
        if verdict.group == audit.GROUP:  # the table says it
            continue
        reporter.write_line(verdict.line, green=verdict.outcome == "PASS", red=verdict.outcome != "PASS")
    state = session.state(exit_status)
    kept = "" if state == "finished" else f" (the session was {state}; what finished is kept)"
    reporter.write_line(f"results: {_short(session.folder)}{kept}")
    _open_pages(reporter, session)


def _audit(reporter: Any, session: LayaSession) -> None:
    from pytest_laya import audit_report

    for line in audit_report.table(session.audited):
        broken = "  BROKEN" in line[:12]
        missing = "  NOT EXERCISED" in line[:20]
        reporter.write_line(line, red=broken, yellow=missing)
    reporter.write_line("")


def _switchyard(reporter: Any, machine: str, run: dict[str, Any]) -> None:
    if machine:
        reporter.write_line(f"[{machine}]")
    for line in run["lines"]:
        reporter.write_line(line)
    if run["replayed"]:
        reporter.write_line("an earlier run, read for --replay: nothing was measured")
    for config, error in run["failures"].items():
        reporter.write_line(f"{config}: failed: {error}", red=True)
    for limit in run["host"].get("limits", ()):
        reporter.write_line(host_line(limit), yellow=limit["host_limited"])
    if run["conditions"]["adverse"]:
        reporter.write_line(f"conditions against a latency: {', '.join(run['conditions']['adverse'])}")
    if run["folder"]:
        written = run["files"] if not run["replayed"] else [name for name in run["files"] if name == REPLAY]
        reporter.write_line(f"wrote {_short(Path(run['folder']))}: {', '.join(written)}")


def host_line(limit: dict[str, Any]) -> str:
    """How a round's service times on the virtual Mac compare with the declared ones."""
    told = []
    if limit["ane_requests"]:
        told.append(f"{limit['ane_over']} of {limit['ane_requests']} ANE requests over their declared time")
    if limit["gpu_p50_ratio"] is not None:
        told.append(f"GPU P50 at {limit['gpu_p50_ratio']:.2f} of its own")
    kept = "host_limited, this host fell behind" if limit["host_limited"] else "host kept up"
    return f"{limit['config']}: {kept}: {', '.join(told) or 'no request'}"


def _short(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _open_pages(reporter: Any, session: LayaSession) -> None:
    """Open the replay page where a person is looking: at a terminal, outside CI, unless told not to."""
    from pytest_laya.options import read_switchyard_options

    asked = read_switchyard_options(session.config)
    if asked.no_open or os.environ.get("CI") or not reporter.isatty:
        return
    import webbrowser

    for fact in session.recorded("switchyard"):
        if fact.data["page"] and not fact.machine:
            webbrowser.open(Path(fact.data["page"]).resolve().as_uri())
