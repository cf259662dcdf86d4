"""A small checkpoint, built and measured on a virtual Mac once; every test has its cache of its own."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from artifact_files import tiny_checkpoint

from laya_apple.artifacts.build import build_artifact
from laya_apple.artifacts.locations import Locations
from laya_apple.checkpoint import Checkpoint
from laya_apple.demos.switchyard import driver, result, run, world
from laya_apple.execution.calibration import Effort, calibrate
from laya_apple.routing.profiles import coremltools_version, profile_path
from laya_apple.workload import Request
from pytest_laya.virtual_mac.control import VirtualMac

# The engine's declared times lie at most at half of the GPU's they are held against.
DECLARED = {
    "gpu_ms": {"1": {"64": 40.0, "96": 60.0, "128": 80.0}},
    "ane_ms": {"64": 10.0, "96": 10.0, "128": 10.0},
}
_QUESTION = {"q": {"type": "choice", "instructions": "word1 word2", "criteria": ["word3", "word4"]}}
BACKGROUND = {name: Request(f"word7 word8 {name}", _QUESTION) for name in world.BACKGROUND}


class HurriedClock:
    """Plays a timetable about twenty times as fast, on an axis that stays behind the real one.

    Arrivals then lie before the responses, as they do in real time; how late anything was means nothing.
    """

    PACE = 20
    HEAD_START_NS = 120_000_000_000

    def __init__(self) -> None:
        self._gained_ns = 0

    def monotonic_ns(self) -> int:
        assert self._gained_ns < self.HEAD_START_NS
        return time.monotonic_ns() - self.HEAD_START_NS + self._gained_ns

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self._gained_ns += round(seconds * 1e9) * self.PACE

    def clock(self) -> driver.Clock:
        return driver.Clock(self.monotonic_ns, self.sleep)


@dataclass
class Bench:
    """The whole benchmark with the runtime's real checks, workers and files, on a virtual Mac."""

    mac: VirtualMac
    checkpoint: Checkpoint
    folder: Path
    lines: list[str] = field(default_factory=list)
    on_progress: Callable[[str], None] = lambda line: None

    @property
    def locations(self) -> Locations:
        return Locations.of(self.mac.platform)

    @property
    def profile(self) -> Path:
        return profile_path(self.mac.platform, coremltools_version())

    def forget_stamps(self) -> None:
        """The next load runs every check."""
        shutil.rmtree(self.locations.verified)

    def model(self, bucket: int) -> Path:
        return self.locations.model(self.checkpoint.spec, bucket)

    def run(self, *, laya_factory: driver.LayaFactory | None = None, **options: Any) -> run.Outcome:
        """A run with a timed window of one burst cycle, unless told otherwise."""
        asked = {"duration_s": 3, "out": self.folder, "model": str(self.checkpoint.path), **options}

        def progress(line: str) -> None:
            self.lines.append(line)
            self.on_progress(line)

        return run.run(
            run.Options(**asked),
            platform=self.mac.platform,
            laya_factory=laya_factory,
            background=BACKGROUND,
            progress=progress,
            clock=HurriedClock().clock(),
        )


def rounds(outcome: run.Outcome) -> list[tuple[str, bool | None]]:
    assert outcome.result is not None
    return [(one["config"], one["ane_verified"]) for one in outcome.result["rounds"]]


def check_stored(outcome: run.Outcome) -> dict[str, Any]:
    """The files hold what the run returned; returns the ``ane`` block."""
    assert outcome.result is not None
    assert outcome.result_dir is not None
    stored, records = result.read(outcome.result_dir)
    assert stored == outcome.result
    assert records == list(outcome.records)
    return stored["ane"]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Path]:
    """The checkpoint and a cache with its artifacts, their stamps and its profile."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch, VirtualMac(folder / "mac", patch) as mac:
        patch.setenv("LAYA_APPLE_CACHE", str(folder / "cache"))
        checkpoint = tiny_checkpoint(folder / "tiny")
        for bucket in checkpoint.spec.ane_buckets:
            build_artifact(checkpoint, bucket, platform=mac.platform)
        mac.profile(DECLARED)
        calibrate(
            checkpoint.spec,
            platform=mac.platform,
            lengths=(64,),
            question_counts=(1,),
            effort=Effort(warmups=1, repeats=3, enough=3),
        )
    return checkpoint, folder / "cache"


@pytest.fixture
def bench(prepared: tuple[Checkpoint, Path], mac: VirtualMac, tmp_path: Path) -> Bench:
    """Everything ready: verified, stamped and measured.

    The files are the prepared ones, by link, so that their stamps hold; a test changes one after :func:`own`.
    """
    checkpoint, cache = prepared
    shutil.copytree(cache, tmp_path / "cache", dirs_exist_ok=True, copy_function=os.link)
    return Bench(mac, checkpoint, tmp_path / "out")


def own(path: Path) -> Path:
    """Put a copy in the place of a linked file, so that changing it concerns this test alone."""
    copy = path.with_name(path.name + ".own")
    shutil.copy2(path, copy)
    os.replace(copy, path)
    return path
