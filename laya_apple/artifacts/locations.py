"""Where artifacts, locks, stamps and rejects lie below the cache, and the command that rebuilds one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from laya_apple.artifacts.graph import GRAPH_NAME
from laya_apple.platform import Platform, cache_root
from laya_apple.registry import ModelSpec

MANIFEST_FILE = "manifest.json"
MODEL_DIRECTORY = "model.mlmodelc"


@dataclass(frozen=True, slots=True)
class Locations:
    """Every path of the artifact store, below one cache root. Creates nothing by itself."""

    root: Path

    @classmethod
    def of(cls, platform: Platform) -> Locations:
        """The store of ``platform``; a virtual platform has one of its own."""
        return cls(cache_root(platform))

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def staging(self) -> Path:
        """Where artifacts are built; nothing in it is registered."""
        return self.artifacts / ".staging"

    @property
    def previous(self) -> Path:
        """Where a replace keeps the artifact that was registered, until the new one is."""
        return self.artifacts / ".previous"

    @property
    def quarantine(self) -> Path:
        return self.artifacts / "quarantine"

    @property
    def verified(self) -> Path:
        """Stamps: one file an artifact."""
        return self.root / "verified"

    def artifact(self, spec: ModelSpec, bucket: int) -> Path:
        """The registered directory of one bucket, which holds ``manifest.json`` and ``model.mlmodelc``."""
        return self.artifacts / _file_name(spec.name) / spec.revision[:12] / f"{GRAPH_NAME}-L{bucket}-B1"

    def model(self, spec: ModelSpec, bucket: int) -> Path:
        return self.artifact(spec, bucket) / MODEL_DIRECTORY

    def rejected(self, spec: ModelSpec, bucket: int) -> Path:
        """The manifest of the last build that did not pass."""
        return self.artifacts / "rejected" / slug(spec, bucket) / MANIFEST_FILE

    def stamp(self, spec: ModelSpec, bucket: int) -> Path:
        return self.verified / f"{slug(spec, bucket)}.json"

    def lock(self, spec: ModelSpec, bucket: int) -> Path:
        return self.artifacts / ".locks" / f"{slug(spec, bucket)}.lock"


def slug(spec: ModelSpec, bucket: int) -> str:
    """One file name for one bucket of one model revision."""
    return f"{_file_name(spec.name)}-{spec.revision[:12]}-{GRAPH_NAME}-L{bucket}-B1"


def build_command(spec: ModelSpec, bucket: int | None = None, *, force: bool = False) -> str:
    """The command line that builds (with ``force``: rebuilds) the bucket, or all that are offered."""
    model = shlex.quote(str(spec.path) if spec.path is not None and not spec.embedded else spec.name)
    command = f"laya-apple artifacts build --model {model}"
    if bucket is not None:
        command += f" --bucket {bucket}"
    return command + (" --force" if force else "")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``, waiting for its holder; freed when the process ends, however."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    file: IO[bytes]
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]", "_", name)
