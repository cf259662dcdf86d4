"""What the tests of hostile archives and indexes share."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transfer_files import Importing

from laya_apple.artifacts.fetch import fetch_artifact, open_repository, repository
from laya_apple.artifacts.index import make_index


@contextlib.contextmanager
def watched(importing: Importing) -> Iterator[None]:
    """Every file-system step of the block must be in staging or on the lock, and nothing may be left."""
    root = importing.locations.root
    importing.mac.fault("steps_logged")
    before = len(importing.mac.events("step"))
    try:
        yield
    finally:
        importing.mac.clear("steps_logged")
    allowed = [str(path) for path in (importing.locations.staging, importing.locations.artifacts / ".locks")]
    parents = [str(path) for path in (root, *root.parents, importing.locations.artifacts)]
    stray = [
        (step["op"], step["path"])
        for step in importing.mac.events("step")[before:]
        if not step["path"].startswith(tuple(allowed))
        and not (step["op"] == "os.mkdir" and step["path"] in parents)
    ]
    assert stray == []
    importing.assert_nothing_registered()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def hub_of(importing: Importing) -> Path:
    hub = importing.folder / "hub"
    hub.mkdir()
    shutil.copy(importing.archive, hub)
    make_index(hub)
    return hub


def fetch_from(importing: Importing, hub: Path) -> Any:
    opened = open_repository(repository(str(hub)))
    return fetch_artifact(importing.checkpoint, 64, opened, platform=importing.mac.platform)
