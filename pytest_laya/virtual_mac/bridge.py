"""Stands in for ``coremltools.libcoremlpython``, the native bridge between Core ML Tools and Core ML.

Every Python line of Core ML Tools above it is the real one. The contract, taken from Core ML Tools 9.0's own
calls: positional constructor ``_MLModelProxy(path, units, function, hints, asset)``; ``predict(dict, state)``
returns float32 arrays by name and never sees float16, because the layer above rewrites float16 inputs to
float32 in the caller's dictionary; ``compileModel`` makes a folder that the layer above moves to its
destination; plans and structures are Core ML Tools' own dataclasses.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_laya.virtual_mac.compiled import (
    MAX_SPECIFICATION_VERSION,
    compile_package,
    is_compiled,
    load_model,
)
from pytest_laya.virtual_mac.neural_engine import COMPUTE_UNITS, LoadedModel, bucket_of
from pytest_laya.virtual_mac.plan import (
    Policy,
    _MLComputePlanProxy,
    _MLCPUComputeDeviceProxy,
    _MLGPUComputeDeviceProxy,
    _MLModelStructureNeuralNetworkLayerProxy,
    _MLModelStructureProgramOperationProxy,
    _MLNeuralEngineComputeDeviceProxy,
    compute_devices,
    model_structure,
)
from pytest_laya.virtual_mac.state import log_event

__all__ = [
    "_MLCPUComputeDeviceProxy",
    "_MLComputePlanProxy",
    "_MLGPUComputeDeviceProxy",
    "_MLModelAssetProxy",
    "_MLModelProxy",
    "_MLModelStructureNeuralNetworkLayerProxy",
    "_MLModelStructureProgramOperationProxy",
    "_MLNeuralEngineComputeDeviceProxy",
]


class _MLModelAssetProxy:
    """Named by the bridge; the virtual Mac loads from paths only."""


class _MLModelProxy:
    """A loaded model, as the native bridge offers it."""

    def __init__(
        self,
        path: str,
        compute_units: str,
        function_name: str,
        optimization_hints: dict[str, str],
        asset: Any = None,
    ) -> None:
        if not (
            all(isinstance(v, str) for v in (path, compute_units, function_name))
            and isinstance(optimization_hints, dict)
        ):
            raise TypeError("_MLModelProxy(): incompatible constructor arguments")
        if compute_units not in COMPUTE_UNITS:
            raise RuntimeError(f"unknown compute units {compute_units}")
        if asset is not None:
            raise RuntimeError("the virtual Mac loads models from paths, not from assets")
        if function_name not in ("", "main"):
            raise RuntimeError(f"the model has no function {function_name}")
        self._own_folder: str | None = None
        if not is_compiled(path):
            path = compile_package(path)
            self._own_folder = str(Path(path).parent)
        self._path = path
        self._model = LoadedModel(path, compute_units)

    def __del__(self) -> None:
        if getattr(self, "_own_folder", None):
            shutil.rmtree(self._own_folder, ignore_errors=True)  # type: ignore[arg-type]

    def predict(self, data: dict[str, Any], state: Any) -> dict[str, NDArray[Any]]:
        """Outputs by name; float16 outputs come back as float32."""
        if state is not None:
            raise RuntimeError("the model has no state")
        features = {}
        for name, tensor in self._model.program.inputs.items():
            if name not in data:
                raise RuntimeError(f"Feature {name} is required but not specified.")
            array = data[name]
            if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.float64, np.int32):
                raise RuntimeError(f"value type not convertible for feature {name}")
            if array.shape != tensor.shape:
                raise RuntimeError(
                    f"MultiArray shape {array.shape} of feature {name} does not match the shape "
                    f"{tensor.shape} specified in the model description"
                )
            features[name] = array
        outputs = self._model.predict(features)
        return {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in outputs.items()}

    def batchPredict(self, batch: list[dict[str, Any]]) -> list[dict[str, NDArray[Any]]]:
        return [self.predict(data, None) for data in batch]

    def get_compiled_model_path(self) -> str:
        return self._path

    def get_load_duration_in_nano_seconds(self) -> int | None:
        return None

    def get_last_predict_duration_in_nano_seconds(self) -> int | None:
        return None

    def newState(self) -> Any:
        raise RuntimeError("the model has no state")

    @staticmethod
    def auto_set_specification_version(spec: bytes) -> bytes:
        return spec

    @staticmethod
    def maximum_supported_specification_version() -> int:
        return MAX_SPECIFICATION_VERSION

    @staticmethod
    def compileModel(path: str) -> str:
        return compile_package(path)

    @staticmethod
    def get_model_structure(path: str) -> Any:
        return model_structure(load_model(path)[0])

    @staticmethod
    def get_compute_plan(path: str, compute_units: str) -> Any:
        spec, _ = load_model(path)
        bucket = bucket_of(spec)
        log_event("plan", path=path, units=compute_units, bucket=bucket)
        plan = importlib.import_module("coremltools.models.compute_plan")
        return plan.MLComputePlan(_MLComputePlanProxy(model_structure(spec), Policy(compute_units, bucket)))

    @staticmethod
    def get_all_compute_devices() -> list[Any]:
        return compute_devices()

    @staticmethod
    def get_available_compute_devices() -> list[Any]:
        return compute_devices()

    @staticmethod
    def create_model_asset_from_path(path: str) -> Any:
        raise RuntimeError("the virtual Mac loads models from paths, not from assets")

    @staticmethod
    def create_model_asset_from_memory(spec: bytes, blobs: Any) -> Any:
        raise RuntimeError("the virtual Mac loads models from paths, not from assets")
