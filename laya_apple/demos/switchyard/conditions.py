"""What else the machine was doing around a round. Command lines are read but never recorded."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

TOP_PROCESSES = 5
_TIMEOUT_S = 10


def now_utc() -> str:
    """The present second in UTC, as ``2026-01-31T12:00:00Z``."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def sample() -> dict[str, Any]:
    """Load average, the five busiest processes (CPU %, executable name only) and thermal notes.

    A field that this machine cannot tell is None.
    """
    return {
        "utc": now_utc(),
        "loadavg": list(os.getloadavg()),
        "top_cpu": _top_cpu(_output("ps", "-A", "-o", "pcpu=,comm=")),
        "pmset_therm": _thermal_notes(_output("pmset", "-g", "therm")) if sys.platform == "darwin" else None,
    }


def other_laya_processes() -> list[dict[str, Any]] | None:
    """Other running laya-apple processes, by pid and executable name; None where ps cannot tell.

    This process, its ancestors (a launcher) and its descendants (our own workers) are left out.
    """
    listing = _output("ps", "-A", "-o", "pid=,ppid=,args=")
    return None if listing is None else find_laya_processes(listing, os.getpid())


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, errors="replace")
    except (OSError, subprocess.SubprocessError):  # closed: the field is recorded as unknown
        return None
    return done.stdout if done.returncode == 0 else None


def _executable(path: str) -> str:
    return PurePosixPath(path).name


def _top_cpu(listing: str | None) -> list[dict[str, Any]] | None:
    if listing is None:
        return None
    found: list[tuple[float, str]] = []
    for line in listing.splitlines():
        share, _, command = line.strip().partition(" ")
        try:
            found.append((float(share.replace(",", ".")), _executable(command.strip())))
        except ValueError:  # closed: a line without a number names no busy process
            continue
    found.sort(key=lambda one: (-one[0], one[1]))
    return [{"cpu_percent": share, "name": name} for share, name in found[:TOP_PROCESSES]]


def _thermal_notes(text: str | None) -> list[str] | None:
    return None if text is None else [line.strip() for line in text.splitlines() if line.strip()]


def find_laya_processes(listing: str, own_pid: int) -> list[dict[str, Any]]:
    """Pick laya-apple processes from ``ps -o pid=,ppid=,args=`` output."""
    parents: dict[int, int] = {}
    arguments: dict[int, list[str]] = {}
    for line in listing.splitlines():
        fields = line.split(None, 2)
        if len(fields) == 3 and fields[0].isdigit() and fields[1].isdigit():
            parents[int(fields[0])] = int(fields[1])
            arguments[int(fields[0])] = fields[2].split()
    family = _family(parents, own_pid)
    return [
        {"pid": pid, "name": _executable(args[0])}
        for pid, args in sorted(arguments.items())
        if pid not in family and _is_laya(args)
    ]


def _family(parents: dict[int, int], own_pid: int) -> set[int]:
    def ancestors(pid: int) -> list[int]:
        chain = [pid]
        while (parent := parents.get(chain[-1])) is not None and parent not in chain:
            chain.append(parent)
        return chain

    return set(ancestors(own_pid)) | {pid for pid in parents if own_pid in ancestors(pid)}


def _is_laya(args: Sequence[str]) -> bool:
    """By the first two arguments: the console script, ``python -m laya_apple…`` or ``scripts/bench_*.py``."""
    first = args[:2]
    if any(_executable(one) == "laya-apple" for one in first):
        return True
    if len(args) > 2 and args[1] == "-m" and args[2].split(".")[0] == "laya_apple":
        return True
    return any(re.search(r"(^|/)scripts/bench_[^/]*\.py$", one) for one in first)
