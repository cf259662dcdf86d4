"""What the audit's tests share: a model, texts of known lengths, and a home to load and break things in."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laya_apple import Laya
from laya_apple.artifacts.build import build_artifact
from laya_apple.artifacts.locations import Locations
from laya_apple.artifacts.store import load_verified
from laya_apple.checkpoint import open_checkpoint
from laya_apple.registry import resolve
from laya_apple.routing import ServiceTable
from laya_apple.routing.profiles import coremltools_version, profile_path, save_profile
from pytest_laya.virtual_mac.control import VirtualMac

MODEL = "laya-mini"
BUCKETS = (64, 96)
"""The artifacts that are built; 128 is offered and has none."""
PREBUILT = "LAYA_AUDIT_PREBUILT"

CLEAR = {"clear": {"type": "noul", "instructions": "Is platform A clear?"}}
TWO = {**CLEAR, "open": {"type": "noul", "instructions": "Is platform A open?"}}
SHORT = "Platform A is clear. "
"""33 tokens with CLEAR."""
MIDDLE = SHORT * 10
"""78 tokens: the 96 bucket."""
LONGER = SHORT * 16
"""108 tokens: the 128 bucket, which has no artifact."""
LONG = SHORT * 30
"""178 tokens: beyond every bucket."""

READY = "validated_short_single_question_path"

DECLARED = {"gpu_ms": {"1": {"64": 0.1, "1024": 0.2}}, "ane_ms": {"64": 10.0, "96": 10.0, "128": 10.0}}
"""Times of the virtual devices, ms: long enough that a busy host does not decide what the probe finds."""
SECOND_MS = 1000.0
MEASURED = ServiceTable(
    "the audit's tests",
    {1: ((64, 9 * SECOND_MS), (128, 12 * SECOND_MS), (1024, 70 * SECOND_MS))},
    {64: 8 * SECOND_MS, 96: 8.5 * SECOND_MS, 128: 10 * SECOND_MS},
)
"""Estimates of a thousand times the usual, so that a backlog is not over before the next request comes."""

HOSTS = [
    pytest.param({"execution": "inline"}, id="inline"),
    pytest.param({"execution": "workers", "ane_placement": "thread"}, id="thread"),
    pytest.param({"execution": "workers", "ane_placement": "process"}, id="process"),
]
INLINE_AND_THREAD = HOSTS[:2]


class Home:
    """One test's cache and machine."""

    def __init__(self, mac: VirtualMac, cache: Path) -> None:
        self.mac = mac
        self.cache = cache
        self.spec = resolve(MODEL)
        self.locations = Locations.of(mac.platform)
        self._opened: list[Laya] = []
        mac.profile(DECLARED)

    def load(self, device: str = "auto", model: Any = MODEL, **arguments: Any) -> Laya:
        """A Laya that is closed after the test."""
        laya = Laya.from_pretrained(model, device, **arguments)
        self._opened.append(laya)
        return laya

    def calibrate(self, *auto: int, table: ServiceTable = MEASURED) -> Path:
        """Give this machine a local profile; returns its file."""
        return save_profile(
            self.mac.platform,
            self.spec,
            coremltools_version(),
            auto_buckets=auto,
            table=table,
            created_at="2026-01-01T00:00:00Z",
        )

    @property
    def profile_path(self) -> Path:
        return profile_path(self.mac.platform, coremltools_version())

    def artifact(self, bucket: int = 64) -> Path:
        return self.locations.artifact(self.spec, bucket)

    def model(self, bucket: int = 64) -> Path:
        return self.locations.model(self.spec, bucket)

    def own(self, bucket: int = 64) -> Path:
        """Put a copy in the place of the linked artifact: its files may be changed; no stamp covers it."""
        place = self.artifact(bucket)
        copy = place.with_name(place.name + ".copy")
        shutil.copytree(place, copy)
        shutil.rmtree(place)
        copy.rename(place)
        return place

    def stamped(self, bucket: int = 64) -> Path:
        """The only artifact, a copy that was verified and so has a stamp of its own."""
        for other in BUCKETS:
            if other != bucket:
                self.remove(other)
        place = self.own(bucket)
        with without_canary():
            load_verified(self.spec, bucket, platform=self.mac.platform)
        return place

    def slow(self, bucket: int = 64) -> None:
        """The only artifact, and a device so slow that nothing else the host does changes a ratio much."""
        for other in BUCKETS:
            if other != bucket:
                self.remove(other)
        self.mac.profile({"gpu_ms": {"1": {"64": 0.1}}, "ane_ms": {str(bucket): 30.0}})

    def remove(self, bucket: int) -> None:
        shutil.rmtree(self.artifact(bucket))

    def edit(self, keys: tuple[str | int, ...], value: Any, bucket: int = 64) -> None:
        """Set one value of a bucket's manifest."""
        path = self.own(bucket) / "manifest.json"
        edit_json(path, keys, value)

    def plans(self) -> int:
        """How many compute plans were read so far."""
        return len(self.mac.events("plan"))

    def predictions(self) -> int:
        """Predictions of models loaded for the Neural Engine so far, probes included."""
        return len([one for one in self.mac.events("predict") if one["units"] == "CPU_AND_NE"])

    def gpu_forwards(self) -> int:
        return len(self.mac.events("forward"))

    def quarantined(self) -> list[Path]:
        return sorted(self.locations.quarantine.glob("*"))

    def close(self) -> None:
        self.mac.clear()
        for laya in self._opened:
            laya.close(5.0)


def build(folder: Path) -> Path:
    """Build, verify and stamp the artifacts of BUCKETS below ``folder``; returns the cache."""
    cache = folder / "cache"
    with pytest.MonkeyPatch.context() as patch, VirtualMac(folder / "mac", patch) as mac:
        patch.setenv("LAYA_APPLE_CACHE", str(cache))
        mac.profile(DECLARED)
        with without_canary():
            for bucket in BUCKETS:
                build_artifact(open_checkpoint(MODEL), bucket, platform=mac.platform)
                load_verified(resolve(MODEL), bucket, platform=mac.platform)
    return cache


class without_canary:
    """As in an application that embeds Python: no subprocess is started, and one warning says so."""

    def __enter__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(sys, "executable", "an-application")
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.filterwarnings("ignore", "sys.executable")

    def __exit__(self, *error: object) -> None:
        self._caught.__exit__(*error)
        self._patch.undo()


def link_tree(source: Path, destination: Path) -> None:
    """Hard links, so that stamps hold; copies across file systems, which are verified anew."""

    def place(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except OSError:
            shutil.copy2(one, other)

    shutil.copytree(source, destination, copy_function=place)


def edit_json(path: Path, keys: tuple[str | int, ...], value: Any) -> None:
    """Set one value of a JSON file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    inner = document
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(document), encoding="utf-8")


def eventually(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Poll until ``condition`` holds; a deadline far beyond what it takes, so that no machine is too slow."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"never happened: {what}")


class no_warnings(warnings.catch_warnings):  # type: ignore[type-arg]
    """Any warning is an error."""

    def __enter__(self) -> None:  # type: ignore[override]
        super().__enter__()
        warnings.simplefilter("error")
