"""A machine for tests of execution: MLX's CPU as its GPU, a scripted Neural Engine, faults on order.

Hook: ``LAYA_APPLE_PLATFORM=exec_platform:platform``, with this folder on the path. What a backend does at
each call is read from ``$EXEC_CONTROL/<device>`` just then, so a test steers every process of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from laya_apple import errors
from laya_apple.backends.base import Backend, BackendInfo, RowOutput
from laya_apple.platform import Platform
from laya_apple.prompt.sequence import Row

CONTROL = "EXEC_CONTROL"
COREML = "laya_apple.backends.coreml"
POLL_S = 0.005


class ScriptedMac(Platform):
    """An Apple-silicon Mac by its facts."""

    def mlx_gpu_device(self) -> str | None:
        return "cpu"

    def wrap_backend(self, device: str, backend: Backend) -> Backend:
        return Steered(device, backend)


MAC = ScriptedMac("Apple M4 Max", "26.6.2", "25G80", "arm64", 64 << 30, virtual=True)


def platform() -> Platform:
    """The hook: also puts the scripted Neural Engine in the place of the real backend's module."""
    sys.modules[COREML] = coreml_module()
    return MAC


def coreml_module() -> types.ModuleType:
    module = types.ModuleType(COREML)
    module.CoreMLBackend = ScriptedEngine  # type: ignore[attr-defined]
    return module


def control(device: str) -> dict[str, Any]:
    path = Path(os.environ[CONTROL]) / device
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


class ScriptedEngine:
    """Core ML's stand-in: loads what the control file says, answers with fixed logits."""

    def __init__(self, checkpoint: Any, *, buckets: Sequence[int], strict: bool, platform: Platform) -> None:
        script = control("ane-load")
        while script.get("hold"):
            time.sleep(POLL_S)
            script = control("ane-load")
        if "error" in script:
            raise getattr(errors, script["error"])(script["message"])
        for message in script.get("warn", ()):
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        dropped = {int(bucket): why for bucket, why in script.get("dropped", {}).items()}
        loaded = tuple(bucket for bucket in buckets if bucket not in dropped)
        verdicts = script.get("verdicts", {})
        self.info = BackendInfo(
            backend="coreml",
            device="ane",
            dtype="float16",
            weights_sha256=checkpoint.spec.weights_sha256,
            compute_units="CPU_AND_NE",
            buckets=loaded,
            artifact_sha256={bucket: f"{bucket:064d}" for bucket in loaded},
            probes={bucket: {"verdict": verdicts.get(str(bucket), "PLACED")} for bucket in loaded},
            dropped=dropped,
        )

    def forward(self, rows: Sequence[Row]) -> list[RowOutput]:
        return fixed(rows)

    def warm(self) -> None:
        log("ane", "warm")

    def close(self) -> None:
        log("ane", "close")


def fixed(rows: Sequence[Row]) -> list[RowOutput]:
    """Outputs that tell which row they belong to, at no cost."""
    return [
        RowOutput(
            np.arange(len(row.markers), dtype=np.float32) * (sum(row.ids) % 101) / 100,
            np.zeros(3, np.float32),
        )
        for row in rows
    ]


class Steered:
    """Does what ``$EXEC_CONTROL/<device>`` says before it lets the backend answer."""

    def __init__(self, device: str, backend: Backend) -> None:
        self._device = device
        self._backend = backend

    @property
    def info(self) -> BackendInfo:
        return self._backend.info

    def forward(self, rows: Sequence[Row]) -> list[RowOutput]:
        log(self._device, "forward")
        script = control(self._device)
        while script.get("hold"):
            time.sleep(POLL_S)
            script = control(self._device)
        time.sleep(script.get("sleep_s", 0.0))
        if "kill" in script:
            os.kill(os.getpid(), signal.SIGKILL)
        if "exit" in script:
            os._exit(script["exit"])
        if "raise" in script:
            raise getattr(errors, script["raise"], RuntimeError)(script["message"])
        if "warn" in script:
            warnings.warn(script["warn"], UserWarning, stacklevel=1)
        outputs = fixed(rows) if script.get("fixed") else self._backend.forward(rows)
        if script.get("nan"):
            outputs = [RowOutput(np.full_like(one.options, np.nan), one.action) for one in outputs]
        return outputs[1:] if script.get("short") else outputs

    def warm(self) -> None:
        script = control(f"{self._device}-load")
        if "kill" in script:
            os.kill(os.getpid(), signal.SIGKILL)
        self._backend.warm()

    def close(self) -> None:
        self._backend.close()


def log(device: str, event: str) -> None:
    """One line an event, from every process."""
    with (Path(os.environ[CONTROL]) / "log").open("a", encoding="utf-8") as stream:
        stream.write(f"{device} {event} {os.getpid()}\n")
