"""The test's side of ``crash_server``: caches to spoil, and what is seen in them afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laya_apple.hashing import tree_hash

SERVER = Path(__file__).with_name("crash_server.py")
ROOT = SERVER.parents[2]


@dataclass
class Crashes:
    """A running crash server."""

    folder: Path
    process: subprocess.Popen[str]
    facts: dict[str, Any]
    count: int = 0
    templates: dict[str, Path] = field(default_factory=dict)
    """Caches in a state that takes a while to reach."""

    def cache(self, template: Path) -> Cache:
        """A fresh copy of the cache ``template``."""
        self.count += 1
        path = self.folder / "caches" / str(self.count)
        shutil.copytree(template, path, symlinks=True)
        return Cache(self, path)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, "the crash server died"
        reply: dict[str, Any] = json.loads(line)
        return reply


@dataclass
class Cache:
    """One cache and the work done in it."""

    crashes: Crashes
    path: Path
    runs: int = 0

    @property
    def root(self) -> Path:
        return self.path / self.crashes.facts["root"]

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def artifact(self) -> Path:
        """The registered path."""
        return self.path / self.crashes.facts["artifact"]

    def do(self, work: str, **more: Any) -> dict[str, Any]:
        """Do ``work`` in a forked child; ``at=N`` kills it before its Nth step."""
        self.runs += 1
        state = self.path.with_name(f"{self.path.name}-state") / str(self.runs)
        return self.crashes.ask(work=work, cache=str(self.path), state=str(state), **more)

    def registered(self) -> str:
        """``old``, ``new`` or ``none``, from the files alone; ``corrupt`` for anything else."""
        manifest = self.artifact / "manifest.json"
        if not manifest.is_file():
            return "none"
        try:
            declared = json.loads(manifest.read_text(encoding="utf-8"))["integrity"]["artifact_sha256"]
            found = tree_hash(self.artifact / "model.mlmodelc")
        except (OSError, ValueError, KeyError):
            return "corrupt"
        names = {self.crashes.facts["old"]: "old", self.crashes.facts["new"]: "new"}
        return names.get(found, "corrupt") if found == declared else "corrupt"

    def leftovers(self) -> list[str]:
        """What lies in staging, and the marks of an unpublished artifact."""
        staged = [path.name for path in (self.artifacts / ".staging").glob("*") if not path.is_symlink()]
        marks = ("PENDING.json", "manifest.pending.json")
        return sorted([*staged, *(name for name in marks if (self.artifact / name).exists())])

    def previous(self) -> list[Path]:
        return sorted((self.artifacts / ".previous").glob("*"))

    def quarantined(self) -> list[Path]:
        return sorted((self.artifacts / "quarantine").glob("*"))

    def drop(self) -> None:
        shutil.rmtree(self.path)
        shutil.rmtree(self.path.with_name(f"{self.path.name}-state"), ignore_errors=True)


@contextmanager
def crash_server(folder: Path) -> Iterator[Crashes]:
    """A server with its own folder, ended afterwards."""
    environment = {
        **os.environ,
        "LAYA_APPLE_PLATFORM": "pytest_laya.virtual_mac:platform",
        "LAYA_VIRTUAL_MAC_PROFILE": "instant",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    for name in ("LAYA_VIRTUAL_MAC_STATE", "LAYA_APPLE_PREBUILT_REPO"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(folder / "server")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        encoding="utf-8",
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the crash server did not start"
        yield Crashes(folder / "server", process, json.loads(line))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
