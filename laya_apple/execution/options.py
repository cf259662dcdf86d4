"""The arguments of ``Laya.from_pretrained``, checked before anything is downloaded or loaded."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from laya_apple.registry import LOCAL_PREFIX
from laya_apple.routing import DEVICES

DTYPES = ("float16", "float32")
EXECUTIONS = ("inline", "workers")
PLACEMENTS = ("auto", "thread", "process")
STARTUPS = ("wait", "background")
REQUEST_TIMEOUT_S = 60.0
_PLACEMENT_TABLE = Path(__file__).parent.parent / "data" / "placement.json"

AneHost = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asked for. ``request_timeout`` is seconds, ``max_pending`` requests a device."""

    device: str = "auto"
    dtype: str = "float16"
    local_files_only: bool = False
    batch_size: int = 16
    execution: str = "inline"
    ane_placement: str = "auto"
    ane_startup: str = "wait"
    ane_handoff: bool | None = None
    ane_reprobe: bool = False
    request_timeout: float = REQUEST_TIMEOUT_S
    max_pending: int | None = None

    @property
    def uses_ane(self) -> bool:
        return self.device in ("ane", "auto")

    def check(self, *, traced: bool) -> None:
        """Raise ValueError, naming the argument and what it may be, for anything that cannot be served."""
        _one_of("device", self.device, DEVICES)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("execution", self.execution, EXECUTIONS)
        _one_of("ane_placement", self.ane_placement, PLACEMENTS)
        _one_of("ane_startup", self.ane_startup, STARTUPS)
        if self.device == "ane" and self.dtype != "float16":
            raise ValueError(f"device='ane' runs in float16 only, not {self.dtype}; leave dtype out")
        if type(self.batch_size) is not int or self.batch_size < 1:
            raise ValueError(f"batch_size must be a positive number of rows, not {self.batch_size!r}")
        if self.ane_handoff is not None:
            _boolean("ane_handoff", self.ane_handoff, "None, True or False")
        _boolean("local_files_only", self.local_files_only, "True or False")
        _boolean("ane_reprobe", self.ane_reprobe, "True or False")
        if not _positive(self.request_timeout):
            raise ValueError(f"request_timeout must be a positive time in s, not {self.request_timeout!r}")
        if self.max_pending is not None and (type(self.max_pending) is not int or self.max_pending < 1):
            raise ValueError(f"max_pending must be None or a positive number, not {self.max_pending!r}")
        if self.ane_reprobe and not self.uses_ane:
            raise ValueError(f"ane_reprobe=True needs device='ane' or 'auto', not {self.device!r}")
        if self.execution == "inline":
            self._check_inline(traced)
        if self.ane_startup == "background" and self.device != "auto":
            raise ValueError("ane_startup='background' needs device='auto': MLX serves until the ANE is up")

    def _check_inline(self, traced: bool) -> None:
        needs = "needs execution='workers'"
        if traced:
            raise ValueError(f"trace= {needs}")
        if self.ane_placement != "auto":
            raise ValueError(f"ane_placement={self.ane_placement!r} {needs}")
        if self.ane_startup != "wait":
            raise ValueError(f"ane_startup={self.ane_startup!r} {needs}")
        if self.max_pending is not None:
            raise ValueError(f"max_pending= {needs}")

    def check_handoff(self, model_name: str) -> None:
        """Raise ValueError when ``ane_handoff=True`` is asked of a setting that can never use it."""
        if self.ane_handoff is not True:
            return
        reason = self.handoff_ineligible(model_name)
        if reason is not None:
            raise ValueError(f"ane_handoff=True {reason}")
        if self.ane_startup != "wait":
            raise ValueError("ane_handoff=True needs ane_startup='wait'")

    def check_reprobe(self, model_name: str) -> None:
        """Raise ValueError when ``ane_reprobe=True`` is asked of a Neural Engine in another process."""
        if self.ane_reprobe and self.execution == "workers" and self.ane_host(model_name) == "process":
            raise ValueError(
                f"ane_reprobe=True needs the Neural Engine of {model_name} in this process: "
                "ane_placement='thread' or execution='inline'"
            )

    def handoff_ineligible(self, model_name: str) -> str | None:
        """Why the adaptive path cannot apply to these options, or None where it can."""
        if self.execution != "workers" or self.device != "auto":
            return "needs execution='workers' and device='auto'"
        if self.ane_placement != "auto" or measured_placement(model_name) != "thread":
            return "needs the Neural Engine on a thread by measured placement (ane_placement='auto')"
        return None

    def ane_host(self, model_name: str) -> AneHost:
        """Whether the Neural Engine runs on a thread of this process or in a worker process."""
        if self.ane_placement == "auto":
            return measured_placement(model_name)
        return "thread" if self.ane_placement == "thread" else "process"


def measured_placement(model_name: str) -> AneHost:
    """The published placement of a model; a local checkpoint takes the table's default."""
    table = _placements()
    if model_name.startswith(LOCAL_PREFIX):
        return table["default"]
    return table.get(model_name, table["default"])


@functools.cache
def _placements() -> dict[str, AneHost]:
    data = json.loads(_PLACEMENT_TABLE.read_text(encoding="utf-8"))
    return {**data["models"], "default": data["default"]}


def _boolean(name: str, value: object, may_be: str) -> None:
    if not isinstance(value, bool):  # 1 equals True, and is not what was meant
        raise ValueError(f"{name} must be {may_be}, not {value!r}")


def _one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
