"""The faults a virtual Mac can have, their arguments, and how a device asks for them.

Every fault that happens on a call takes ``after`` (let that many matching calls of a process pass first) and
``times`` (at most that many firings over all processes). Faults of the Neural Engine take ``bucket`` (the
compiled length; None is every one).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_laya.virtual_mac.state import Fault, State, claim_firing, log_event, read_state

_CALL = {"after": 0, "times": None}
_ANE_CALL = {**_CALL, "bucket": None}
_POLL_S = 0.02

FAULTS: Mapping[str, Mapping[str, Any]] = {
    # Core ML, when a model loads
    "ane_compile_failed": {"bucket": None},
    "load_error": {
        **_ANE_CALL,
        "message": "the virtual Mac refuses to load this model",
        "units": "CPU_AND_NE",
    },
    "load_hang": {**_ANE_CALL, "units": "CPU_AND_NE"},
    "load_kills": {**_ANE_CALL, "signal": int(signal.SIGKILL), "units": "CPU_AND_NE"},
    # the compute plan
    "ops_on_cpu": {"bucket": None, "ops": ("gelu",)},
    "ops_on_gpu": {"bucket": None, "ops": ("gelu",)},
    "plan_without_device": {"bucket": None, "ops": ("gelu",)},
    # Core ML, when a model predicts on CPU_AND_NE
    "wrong_outputs": {**_ANE_CALL, "output": "logits"},
    "nonfinite_outputs": {**_ANE_CALL, "output": "logits", "value": "nan"},
    "prediction_error": {**_ANE_CALL, "message": "the virtual Neural Engine failed this prediction"},
    "prediction_hang": _ANE_CALL,
    "worker_killed": {**_ANE_CALL, "signal": int(signal.SIGKILL)},
    "compile_evicted": {"after": 0, "bucket": None},
    "output_changed": {**_ANE_CALL, "output": "logits", "name": None, "shape": None, "dtype": None},
    # the asynchronous path
    "async_load_error": {**_ANE_CALL, "message": "the virtual Mac refuses to load this model"},
    "async_slow": {**_ANE_CALL, "ms": 5.0, "hold_gil": True},
    "async_error": {**_ANE_CALL, "message": "the virtual Neural Engine failed this prediction"},
    "async_no_completion": _ANE_CALL,
    "async_wrong_outputs": {**_ANE_CALL, "output": "logits"},
    "async_other_array": {**_ANE_CALL, "output": "logits"},
    # the machine
    "coremltools_missing": {},
    "pyobjc_missing": {},
    "other_platform": {"soc": None, "macos": None, "macos_build": None, "memory_bytes": None},
    "other_coremltools": {"version": "8.3.0"},
    "disk_full": {"at": 1, "times": None, "under": None},
    "killed_at_step": {"at": 1, "under": None, "signal": int(signal.SIGKILL)},
    "steps_logged": {"under": None},
    # the GPU
    "gpu_hang": _CALL,
    "gpu_kill": {**_CALL, "signal": int(signal.SIGKILL)},
    "gpu_error": {**_CALL, "message": "the virtual GPU failed this forward"},
    "gpu_nonfinite": {**_CALL, "value": "nan"},
}
"""Fault name -> its arguments with their defaults."""


class VirtualMacError(RuntimeError):
    """A fault of the virtual Mac that shows as an error of the device's own."""


def make_fault(number: int, name: str, args: Mapping[str, Any]) -> Fault:
    """A fault with its defaults filled in. Raises ValueError for an unknown name or argument."""
    if name not in FAULTS:
        raise ValueError(f"unknown fault {name!r}; known: {', '.join(sorted(FAULTS))}")
    unknown = set(args) - set(FAULTS[name])
    if unknown:
        raise ValueError(
            f"fault {name} takes {sorted(FAULTS[name]) or 'no arguments'}, not {sorted(unknown)}"
        )
    return Fault(number, name, {**FAULTS[name], **args})


@dataclass
class _Counts:
    """Matching calls so far in this process, by fault."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    calls: dict[tuple[str, int], int] = field(default_factory=dict)

    def next(self, state: State, fault: Fault) -> int:
        key = (str(state.directory), fault.id)
        with self.lock:
            self.calls[key] = self.calls.get(key, 0) + 1
            return self.calls[key]


_COUNTS = _Counts()


def standing(name: str, bucket: int | None = None) -> Fault | None:
    """The first fault of that name that concerns this bucket; nothing is counted."""
    for fault in read_state().faults:
        if fault.name == name and fault.args.get("bucket") in (None, bucket):
            return fault
    return None


def fires(name: str, bucket: int | None = None, **match: Any) -> Fault | None:
    """The fault if it fires on this call: counts it, honours ``after`` and ``times``, logs it."""
    state = read_state()
    for fault in state.faults:
        if fault.name != name or fault.args.get("bucket") not in (None, bucket):
            continue
        if any(fault.args.get(key) not in (None, value) for key, value in match.items()):
            continue
        count = _COUNTS.next(state, fault)
        if count > fault.args.get("after", 0) and claim_firing(fault, state.directory):
            log_event("fault", name=name, bucket=bucket)
            return fault
    return None


def hang(fault: Fault) -> None:
    """Never return while the fault stands; raises once it is cleared, so that no thread outlives its test."""
    while any(f.id == fault.id for f in read_state().faults):
        time.sleep(_POLL_S)
    raise VirtualMacError(f"the virtual Mac's fault {fault.name} was cleared while it held this call")


def kill_process(fault: Fault) -> None:
    """End this process by the fault's signal. The test's own process is spared: it raises instead."""
    if os.getpid() == read_state().owner_pid:
        raise VirtualMacError(
            f"fault {fault.name} would kill the test's own process; load in a worker instead"
        )
    os.kill(os.getpid(), fault.args["signal"])
    time.sleep(60)  # the signal is on its way
