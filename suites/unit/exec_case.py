"""What tests of execution share: a checkpoint, questions, and a hand on the scripted machine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import exec_platform
import pytest
from checkpoint_files import write_checkpoint

from laya_apple import Laya
from laya_apple.checkpoint import open_checkpoint
from laya_apple.routing import ServiceTable
from laya_apple.routing.profiles import coremltools_version, save_profile

CHOICE = {"q": {"type": "choice", "instructions": "word1 word2", "criteria": ["word3", "word4", "word5"]}}
TWO = {**CHOICE, "p": {"type": "noul", "instructions": "word7"}}
TEXT = "word8 word9 word10"
LONG = " ".join(["word8"] * 150)
TABLE = ServiceTable("a test", {1: ((64, 9.0), (128, 12.0), (1024, 70.0))}, {64: 8.0, 96: 8.5, 128: 10.0})


def eventually(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """Poll until ``condition`` holds; a deadline far beyond what it takes, so that no machine is too slow."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"never happened: {what}")


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Machine:
    """One test's scripted machine."""

    def __init__(self, checkpoint: Path, control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkpoint = checkpoint
        self._control = control
        self._monkeypatch = monkeypatch
        self._open: list[Laya] = []
        control.mkdir()
        monkeypatch.setenv(exec_platform.CONTROL, str(control))
        monkeypatch.setenv("LAYA_APPLE_PLATFORM", "exec_platform:platform")
        monkeypatch.setenv("LAYA_APPLE_CACHE", str(control / "cache"))
        monkeypatch.setitem(sys.modules, exec_platform.COREML, exec_platform.coreml_module())

    def steer(self, device: str, **script: Any) -> None:
        """Say what a device (or ``<device>-load``) does from now on; no script is: behave."""
        path = self._control / device
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(script), encoding="utf-8")
        temporary.replace(path)

    def forwards(self, device: str) -> int:
        return len([line for line in self.log() if line.startswith(f"{device} forward ")])

    def log(self) -> list[str]:
        path = self._control / "log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def calibrate(self, *auto: int, table: ServiceTable = TABLE) -> None:
        """Give this machine a local profile."""
        spec = open_checkpoint(self.checkpoint).spec
        save_profile(
            exec_platform.MAC,
            spec,
            coremltools_version(),
            auto_buckets=auto,
            table=table,
            created_at="2026-01-01T00:00:00Z",
        )

    def load(self, device: str, **arguments: Any) -> Laya:
        """A Laya that is closed after the test."""
        laya = Laya.from_pretrained(self.checkpoint, device, **arguments)
        self._open.append(laya)
        return laya

    def workers(self, device: str, **arguments: Any) -> Laya:
        # The scripted engine has no asynchronous path, which is warned about once a process.
        arguments.setdefault("ane_handoff", False)
        return self.load(device, execution="workers", **arguments)

    def close(self) -> None:
        for path in self._control.iterdir():
            if path.is_file() and path.name != "log":
                path.unlink()
        for laya in self._open:
            laya.close(5.0)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("exec") / "tiny")


@pytest.fixture
def machine(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    found = Machine(checkpoint, tmp_path / "control", monkeypatch)
    yield found
    found.close()
