"""A tiny checkpoint on a virtual Mac that auto sends to the Neural Engine, its artifact built once."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from artifact_files import ONE_HEAD, SMALL, TWO_LAYERS, write_goldens_of
from checkpoint_files import WORDS, write_checkpoint

from laya_apple import Laya
from laya_apple.artifacts.build import build_artifact
from laya_apple.checkpoint import Checkpoint, open_checkpoint
from laya_apple.errors import LayaAppleError
from laya_apple.routing import ServiceTable
from laya_apple.routing.profiles import coremltools_version, save_profile
from pytest_laya.virtual_mac.control import VirtualMac

DECLARED = {"gpu_ms": {"1": {"64": 1.0}}, "ane_ms": {"64": 20.0}}
"""What forwards take here at least, milliseconds; without it a busy machine would decide the probe."""

ROUTED = ServiceTable("a test", {1: ((64, 1e5),), 4: ((64, 4e5),)}, {64: 3.0})
"""What the router believes: the GPU is so slow that a queue on the Neural Engine never moves there."""

CHOICE = {"q": {"type": "choice", "instructions": "word1 word2", "criteria": ["word3", "word4", "word5"]}}
TWO = {**CHOICE, "p": {"type": "noul", "instructions": "word7"}}


def text(number: int, words: int = 12) -> str:
    """A text of its own for every number."""
    return " ".join(WORDS[(number + i * (3 + number % 7)) % len(WORDS)] for i in range(words))


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return bool(listed.stdout.strip()) and not listed.stdout.strip().startswith("Z")


def child_processes() -> set[int]:
    """The processes that this one has started and that are not gone."""
    listed = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
    return {pid for pid in map(int, listed.stdout.split()) if is_running(pid)}


def eventually(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Poll until it holds; the deadline is far beyond what it takes, so that no machine is too slow."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"never happened: {what}")


def own_threads() -> set[threading.Thread]:
    """Every thread of the runtime in this process."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("laya-")}


@dataclass
class Case:
    """One test's virtual Mac, with the checkpoint's artifact and a profile that lets auto use it."""

    mac: VirtualMac
    checkpoint: Checkpoint
    opened: list[Laya] = field(default_factory=list)

    def load(self, device: str = "auto", **arguments: Any) -> Laya:
        """A Laya that is closed after the test. ``request_timeout`` is out of reach unless given."""
        if arguments.get("execution") == "workers":
            arguments.setdefault("request_timeout", 600.0)
        laya = Laya.from_pretrained(self.checkpoint.path, device, **arguments)
        self.opened.append(laya)
        return laya

    def workers(self, device: str = "auto", **arguments: Any) -> Laya:
        return self.load(device, execution="workers", **arguments)

    def ways(self) -> list[str]:
        """How the Neural Engine was asked so far, prediction by prediction, in every process."""
        return [e["way"] for e in self.mac.events("predict") if e["units"] == "CPU_AND_NE"]

    @contextmanager
    def busy_gpu(self, laya: Laya) -> Iterator[None]:
        """A GPU job that runs until the block is left, and then fails."""
        self.mac.fault("gpu_hang", times=1)
        running = laya.submit(text(0), TWO)
        try:
            yield
        finally:
            self.mac.clear("gpu_hang")
        with pytest.raises(LayaAppleError, match="gpu_hang was cleared"):
            running.result(60)

    def close(self) -> None:
        self.mac.clear()
        for laya in self.opened:
            laya.close(10.0)


@pytest.fixture(scope="session")
def case_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Path]:
    """The checkpoint, whose rows all fit 64 tokens, and the cache with its artifact and profile."""
    folder = tmp_path_factory.mktemp("reliability")
    agent = ONE_HEAD | SMALL | {"max_len": 64, "head_max_len": 48}
    checkpoint = open_checkpoint(write_checkpoint(folder / "tiny", encoder=TWO_LAYERS, agent=agent))
    write_goldens_of(checkpoint, checkpoint.path / "goldens.json")
    with pytest.MonkeyPatch.context() as patch, VirtualMac(folder / "mac", patch) as mac:
        patch.setenv("LAYA_APPLE_CACHE", str(folder / "cache"))
        mac.profile(DECLARED)
        build_artifact(checkpoint, 64, platform=mac.platform)
        save_profile(
            mac.platform,
            checkpoint.spec,
            coremltools_version(),
            auto_buckets=(64,),
            table=ROUTED,
            created_at="2026-01-01T00:00:00Z",
        )
    return checkpoint, folder / "cache"


@pytest.fixture
def case(
    case_files: tuple[Checkpoint, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Case]:
    checkpoint, cache = case_files
    monkeypatch.setenv("LAYA_APPLE_CACHE", str(cache))
    with VirtualMac(tmp_path / "mac", monkeypatch) as mac:
        mac.profile(DECLARED)
        found = Case(mac, checkpoint)
        yield found
        found.close()
