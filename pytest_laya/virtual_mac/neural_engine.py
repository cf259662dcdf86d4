"""A model loaded by the virtual Core ML: declared times, faults, and the executor underneath.

Both ways in use it: the bridge under Core ML Tools, and the PyObjC stand-ins.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_laya.virtual_mac.compiled import load_model
from pytest_laya.virtual_mac.declared import CPU_SLOWDOWN, current_times, sleep_until
from pytest_laya.virtual_mac.executor import Program
from pytest_laya.virtual_mac.faults import VirtualMacError, fires, hang, kill_process, standing
from pytest_laya.virtual_mac.program import ProgramError, parse
from pytest_laya.virtual_mac.state import log_event

COMPUTE_UNITS = ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL")
NEURAL_ENGINE_UNITS = ("CPU_AND_NE", "ALL")

Arrays = dict[str, NDArray[Any]]


def bucket_of(spec: Any) -> int | None:
    """The compiled length of a specification: the last dimension of its first input; None without inputs."""
    inputs = list(spec.description.input)
    shape = list(inputs[0].type.multiArrayType.shape) if inputs else []
    return int(shape[-1]) if shape else None


class LoadedModel:
    """One loaded model on the named compute units.

    Raises what the faults say, and RuntimeError for a model that can't be read or run.
    """

    def __init__(self, path: str, compute_units: str, *, way: str = "coremltools") -> None:
        started = time.perf_counter()
        self.spec, weights = load_model(path)
        self.bucket = bucket_of(self.spec)
        self.compute_units = compute_units
        self.on_neural_engine = compute_units in NEURAL_ENGINE_UNITS
        self._fail_load(way)
        self.program = Program.from_parsed(parse(self.spec, weights))
        self._fell_back = self.on_neural_engine and standing("ane_compile_failed", self.bucket) is not None
        load_ms = (time.perf_counter() - started) * 1e3
        log_event("load", path=path, units=compute_units, bucket=self.bucket, way=way, load_ms=load_ms)

    def predict(self, features: Mapping[str, NDArray[Any]], *, way: str = "coremltools") -> Arrays:
        """Outputs by name in the program's types, no sooner than declared. Logged; faults apply."""
        started = time.perf_counter()
        self._fail_prediction()
        outputs = self.program.run(features)
        worked_ms = (time.perf_counter() - started) * 1e3
        declared_ms = current_times().ane_ms(self.bucket) if self.bucket else 0.0
        cpu_speed = self._runs_on_cpu()
        takes_ms = CPU_SLOWDOWN * max(declared_ms, worked_ms) if cpu_speed else declared_ms
        outputs = self._spoil(outputs)
        log_event(
            "predict",
            units=self.compute_units,
            bucket=self.bucket,
            way=way,
            worked_ms=worked_ms,
            takes_ms=takes_ms,
            cpu_speed=cpu_speed,
            over=0 < declared_ms < worked_ms,
        )
        sleep_until(started + takes_ms / 1e3)
        return outputs

    def _runs_on_cpu(self) -> bool:
        if not self.on_neural_engine:
            return True
        if not self._fell_back and fires("compile_evicted", self.bucket) is not None:
            self._fell_back = True
        return self._fell_back

    def _fail_load(self, way: str) -> None:
        names = ("load_kills", "load_hang", "load_error")
        for name in (*names, "async_load_error") if way == "pyobjc" else names:
            match = {} if name == "async_load_error" else {"units": self.compute_units}
            if (fault := fires(name, self.bucket, **match)) is not None:
                if name == "load_kills":
                    kill_process(fault)
                elif name == "load_hang":
                    hang(fault)
                else:
                    raise VirtualMacError(fault.args["message"])

    def _fail_prediction(self) -> None:
        if not self.on_neural_engine:
            return
        if (fault := fires("worker_killed", self.bucket)) is not None:
            kill_process(fault)
        if (fault := fires("prediction_hang", self.bucket)) is not None:
            hang(fault)
        if (fault := fires("prediction_error", self.bucket)) is not None:
            raise VirtualMacError(fault.args["message"])

    def _spoil(self, outputs: Arrays) -> Arrays:
        """What faults make of the outputs on the Neural Engine."""
        if not self.on_neural_engine:
            return outputs
        if (fault := fires("wrong_outputs", self.bucket)) is not None:
            outputs = spoil_output(outputs, fault.args["output"])
        if (fault := fires("nonfinite_outputs", self.bucket)) is not None:
            name = fault.args["output"]
            outputs = {**outputs, name: np.full_like(outputs[name], float(fault.args["value"]))}
        if (fault := fires("output_changed", self.bucket)) is not None:
            args, name = fault.args, fault.args["output"]
            array = outputs[name]
            if args["shape"] is not None:
                array = np.resize(array, tuple(args["shape"]))
            if args["dtype"] is not None:
                array = array.astype(args["dtype"])
            outputs = {
                (args["name"] or n) if n == name else n: array if n == name else a for n, a in outputs.items()
            }
        return outputs


def spoil_output(outputs: Arrays, name: str) -> Arrays:
    """The named output with its values negated: finite, plausible and wrong."""
    return {**outputs, name: -outputs[name]}


__all__ = ["COMPUTE_UNITS", "LoadedModel", "ProgramError", "bucket_of", "spoil_output"]
