"""The documents of the results folder, built from the session's state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_laya import machine, report, results
from pytest_laya.facts import Fact

if TYPE_CHECKING:
    from pytest_laya.session import LayaSession

MEASURED = ("conditions", "parity", "probe")
"""Kinds of fact that have a file of their own, ``<kind>.json``."""


def write(session: LayaSession, state: str, kinds: set[str] | None, exit_status: int | None) -> None:
    """Write session.json, the measured files with news (``kinds``; None: all), at the end the report."""
    folder, root = session.folder, Path(session.config.rootpath)
    facts = machine.platform_facts()
    synthetic = bool(facts["virtual"])
    for kind in MEASURED:
        recorded = session.recorded(kind)
        if recorded and (kinds is None or kind in kinds):
            document = results.header(kind, synthetic=synthetic) | {
                "records": [_entry(one) for one in recorded]
            }
            results.write_json(folder / f"{kind}.json", kind, document, root)
    document = session_document(session, facts, state, exit_status)
    results.write_json(folder / "session.json", "session", document, root)
    if state != "unfinished":
        results.write_text(folder / "report.html", report.render(results.redact(document, root)))


def _entry(fact: Fact) -> dict[str, Any]:
    return {"test": fact.test, "machine": fact.machine} | fact.data


def session_document(
    session: LayaSession, platform: dict[str, Any], state: str, exit_status: int | None
) -> dict[str, Any]:
    """session.json: versions, platform, options by name and value, outcomes, verdicts and files."""
    counts = {outcome: session.outcomes[outcome] for outcome in ("passed", "failed", "error", "skipped")}
    ended = None if state == "unfinished" else results.utc_now()
    return results.header("session", synthetic=platform["virtual"]) | {
        "state": state,
        "exit_status": exit_status,
        "started_utc": session.started,
        "ended_utc": ended,
        "platform": platform,
        "machines": session.machines,
        "versions": machine.versions(),
        "git": machine.git_revision(Path(session.config.rootpath)),
        "options": session.settings.named(),
        "tests": counts,
        "laya_tests": [
            {"test": test, "outcome": outcome, "reason": session.skip_reasons.get(test)}
            for test, outcome in session.laya_outcomes.items()
        ],
        "switchyard": [_entry(one) for one in session.recorded("switchyard")],
        "metrics": [metric.to_dict() for metric in session.metrics()],
        "verdicts": [
            {"group": one.group, "name": one.name, "verdict": one.outcome, "reason": one.reason}
            for one in session.verdicts
        ],
        "files": _files(session, state),
    }


def _files(session: LayaSession, state: str) -> dict[str, str]:
    """File name -> path relative to the results folder, or the path of a folder elsewhere."""
    files = {f"{kind}.json": f"{kind}.json" for kind in MEASURED if session.recorded(kind)}
    for fact in session.recorded("switchyard"):
        if fact.data["folder"] is None:  # no round finished, so nothing was written
            continue
        folder = Path(fact.data["folder"])
        inside = folder.is_relative_to(session.folder)
        place = folder.relative_to(session.folder) if inside else folder
        label = f"switchyard {fact.machine}".strip()
        for name in fact.data["files"]:
            files[f"{label} {name}"] = str(place / name)
    for fact in session.recorded("trace"):
        files[fact.data["file"]] = fact.data["file"]
    if state != "unfinished":
        files["report.html"] = "report.html"
    return files
