"""What people read in the terminal: the header line and the summary section."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_laya.session import LayaSession

BANNER = "*** virtual Mac, synthetic: nothing here is measured on Apple silicon ***"


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
    for verdict in session.verdicts:
        reporter.write_line(verdict.line, green=verdict.outcome == "PASS", red=verdict.outcome != "PASS")
    state = session.state(exit_status)
    kept = "" if state == "finished" else f" (the session was {state}; what finished is kept)"
    reporter.write_line(f"results: {_short(session.folder)}{kept}")
    _open_pages(reporter, session)


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
        if limit["host_limited"]:
            ratio = limit["gpu_p50_ratio"]
            reporter.write_line(
                f"{limit['config']}: host_limited: this host fell behind the declared device times "
                f"({limit['ane_over']} of {limit['ane_requests']} ANE requests over theirs, GPU P50 at "
                f"{'no request' if ratio is None else format(ratio, '.2f')} of its own)",
                yellow=True,
            )
    if run["conditions"]["adverse"]:
        reporter.write_line(f"conditions against a latency: {', '.join(run['conditions']['adverse'])}")
    if run["folder"]:
        reporter.write_line(f"wrote {_short(Path(run['folder']))}: {', '.join(run['files'])}")


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
