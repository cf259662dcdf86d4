"""A warmed process that forks one child for each piece of work, so that a child can be killed at any step.

``python crash_server.py FOLDER`` sets everything up below FOLDER, then answers one JSON request a line. It
holds no MLX state and starts no subprocess: ``sys.executable`` is taken away, and so no canary runs.
"""

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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from artifact_files import tiny_checkpoint

from laya_apple.artifacts.build import build_artifact
from laya_apple.artifacts.fetch import fetch_artifact, open_repository, repository
from laya_apple.artifacts.index import make_index
from laya_apple.artifacts.locations import Locations
from laya_apple.artifacts.prune import prune
from laya_apple.artifacts.store import load_verified
from laya_apple.artifacts.transfer import export_artifact, import_archive
from laya_apple.checkpoint import Checkpoint
from laya_apple.errors import LayaAppleError
from laya_apple.platform import Platform, current_platform
from pytest_laya.virtual_mac.disk import install_disk_faults
from pytest_laya.virtual_mac.faults import make_fault
from pytest_laya.virtual_mac.state import STATE_VARIABLE, State, read_events, write_state

BUCKET = 64
OTHER_BUCKET = 96
AGED_S = 2 * 3600.0


class Server:
    """The checkpoint, an old and a new artifact of one bucket, and the work that children do with them."""

    def __init__(self, folder: Path) -> None:
        sys.executable = "an-application"
        warnings.simplefilter("ignore", RuntimeWarning)
        self.folder = folder
        self.platform: Platform = current_platform()
        self.checkpoint: Checkpoint = tiny_checkpoint(folder / "tiny")
        self.new = self._build(folder / "new", "op")
        self.old = self._build(folder / "old", "decomposed")
        self._build(folder / "old", "decomposed", OTHER_BUCKET)
        hub = folder / "hub"
        os.environ["LAYA_APPLE_CACHE"] = str(folder / "new")
        self.archive = export_artifact(self.checkpoint.spec, BUCKET, hub, platform=self.platform).archive
        make_index(hub)
        self.opened = open_repository(repository(str(hub)))
        self.work: dict[str, Callable[[], dict[str, Any]]] = {
            "build": lambda: self._built(force=False),
            "rebuild": lambda: self._built(force=True),
            "import": lambda: self._imported(force=False),
            "replace": lambda: self._imported(force=True),
            "fetch": lambda: self._fetched(force=False),
            "refetch": lambda: self._fetched(force=True),
            "load": self._loaded,
            "prune": lambda: self._pruned(0.0),
            "prune_aged": lambda: self._pruned(AGED_S),
        }

    def facts(self) -> dict[str, Any]:
        """What the tests need to know."""
        os.environ["LAYA_APPLE_CACHE"] = str(self.folder / "old")
        locations = Locations.of(self.platform)
        return {
            "old": self.old,
            "new": self.new,
            "root": str(locations.root.relative_to(self.folder / "old")),
            "artifact": str(
                locations.artifact(self.checkpoint.spec, BUCKET).relative_to(self.folder / "old")
            ),
            "mlx": any(name.partition(".")[0] == "mlx" for name in sys.modules),
        }

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Fork, do ``request["work"]`` in ``request["cache"]``; the child's result, or what it died of."""
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._child(request, write_end)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            said = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        reply: dict[str, Any] = {"signal": -status if status < 0 else 0}
        if request.get("count"):
            reply["steps"] = sum(e["event"] == "step" for e in read_events(Path(request["state"])))
        return reply | (json.loads(said) if said else {})

    def _child(self, request: dict[str, Any], write_end: int) -> None:
        code = 3
        try:
            os.environ["LAYA_APPLE_CACHE"] = request["cache"]
            os.environ[STATE_VARIABLE] = request["state"]
            under = {"under": request["cache"]}
            faults = []
            if request.get("at"):
                faults.append(make_fault(1, "killed_at_step", {"at": request["at"], **under}))
            if request.get("count"):
                faults.append(make_fault(2, "steps_logged", under))
            write_state(Path(request["state"]), State(profile="m4max", faults=tuple(faults), owner_pid=0))
            install_disk_faults()
            try:
                result = self.work[request["work"]]()
            except LayaAppleError as error:
                result = {"error": type(error).__name__, "message": str(error)}
            os.write(write_end, json.dumps(result).encode())
            code = 0
        finally:
            os._exit(code)

    def _build(self, cache: Path, layer_norm: Any, bucket: int = BUCKET) -> str:
        os.environ["LAYA_APPLE_CACHE"] = str(cache)
        result = build_artifact(self.checkpoint, bucket, layer_norm=layer_norm, platform=self.platform)
        return result.manifest.artifact_sha256

    def _built(self, *, force: bool) -> dict[str, Any]:
        result = build_artifact(self.checkpoint, BUCKET, layer_norm="op", force=force, platform=self.platform)
        return {"artifact_sha256": result.manifest.artifact_sha256}

    def _imported(self, *, force: bool) -> dict[str, Any]:
        result = import_archive(self.checkpoint, self.archive, force=force, platform=self.platform)
        return {"artifact_sha256": result.manifest.artifact_sha256, "notes": list(result.notes)}

    def _fetched(self, *, force: bool) -> dict[str, Any]:
        result = fetch_artifact(self.checkpoint, BUCKET, self.opened, force=force, platform=self.platform)
        return {"artifact_sha256": result.imported.manifest.artifact_sha256}

    def _loaded(self) -> dict[str, Any]:
        _, manifest = load_verified(self.checkpoint.spec, BUCKET, full=True, platform=self.platform)
        return {"artifact_sha256": manifest.artifact_sha256}

    def _pruned(self, later_s: float) -> dict[str, Any]:
        report = prune(Locations.of(self.platform), now_s=time.time() + later_s)
        return {
            "removed": sorted(map(str, report.removed)),
            "restored": sorted(map(str, report.restored)),
            "kept": {str(path): reason for path, reason in report.kept.items()},
        }


def main() -> None:
    # The protocol's own standard output; what libraries print goes to standard error.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    server = Server(folder)
    print(json.dumps(server.facts()), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.run(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
