"""pytest-xdist: what a worker is told, and what it hands back beside the reports of its tests."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_laya import facts, machine, results
from pytest_laya.facts import Fact

if TYPE_CHECKING:
    from pytest_laya.session import LayaSession

KEY = "laya"


@dataclass(frozen=True)
class WorkerInput:
    """What the controller tells a worker."""

    base: str
    """The controller's working folder on this host; empty on another host."""
    started: str
    """The session's UTC stamp, so that all name the same results folder."""
    workers_here: int
    """Workers of this session on this host."""
    machine: str
    """Empty on the controller's host, else the worker's id."""

    @property
    def remote_base(self) -> Path:
        """On another host: a folder of the session's own, whose text files travel back."""
        return Path(tempfile.gettempdir()) / f"laya-session-{self.started}-{self.machine}"


def brief(session: LayaSession, node: Any) -> None:
    """Tell a worker, before it starts, where results go and with whom it shares its host."""
    hosts = [_host(spec) for spec in node.nodemanager.specs]
    here = _host(node.gateway.spec)
    local = here == ""
    node.workerinput[KEY] = asdict(
        WorkerInput(
            base=str(session.base) if local else "",
            started=session.started,
            workers_here=hosts.count(here),
            machine="" if local else node.gateway.id,
        )
    )


def _host(spec: Any) -> str:
    """Empty for this host, else what names the other one."""
    return "" if spec.popen else str(spec.ssh or spec.socket or spec)


def report_back(session: LayaSession) -> None:
    """On a worker: hand over facts that no report took along, and from another host the files."""
    output: dict[str, Any] = getattr(session.config, "workeroutput", {})
    used = session.used
    files = {}
    if session.worker is not None and session.machine and session.worker.remote_base.is_dir():
        root = session.worker.remote_base
        files = {
            str(path.relative_to(root)): path.read_text(encoding="utf-8")
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }
    output[KEY] = {
        "facts": facts.encode(session.pending())[1],
        "platform": json.dumps(machine.platform_facts()) if used and session.machine else "",
        "files": files,
    }


def debrief(session: LayaSession, node: Any) -> None:
    """On the controller: take what a worker handed over; a worker that crashed handed over nothing."""
    output = getattr(node, "workeroutput", {}).get(KEY)
    if not output:
        return
    session.facts.extend(session.brought_home(Fact(**fields)) for fields in json.loads(output["facts"]))
    if output["platform"]:
        session.machines[node.gateway.id] = json.loads(output["platform"])
    for name, text in output["files"].items():
        results.write_text(session.folder / node.gateway.id / name, text)
