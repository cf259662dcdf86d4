"""Stands in for ``CoreML``: models, their configuration, and predictions with prebound arrays.

Completion handlers are called from a thread of the model's own, as Core ML calls them from a dispatch queue.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping

import numpy as np

from pytest_laya.virtual_mac.faults import fires
from pytest_laya.virtual_mac.neural_engine import LoadedModel, spoil_output
from pytest_laya.virtual_mac.pyobjc.arrays import (
    DATA_TYPES,
    MLDictionaryFeatureProvider,
    MLFeatureTypeMultiArray,
    MLFeatureValue,
    MLMultiArray,
    MLMultiArrayDataTypeFloat16,
    MLMultiArrayDataTypeFloat32,
    MLMultiArrayDataTypeFloat64,
    MLMultiArrayDataTypeInt32,
    coreml_error,
    multi_array_of,
)
from pytest_laya.virtual_mac.pyobjc.foundation import NSURL, NSError
from pytest_laya.virtual_mac.pyobjc.objective_c import NSObject

__all__ = [
    "MLComputeUnitsAll",
    "MLComputeUnitsCPUAndGPU",
    "MLComputeUnitsCPUAndNeuralEngine",
    "MLComputeUnitsCPUOnly",
    "MLDictionaryFeatureProvider",
    "MLFeatureTypeMultiArray",
    "MLFeatureValue",
    "MLModel",
    "MLModelConfiguration",
    "MLMultiArray",
    "MLMultiArrayDataTypeFloat16",
    "MLMultiArrayDataTypeFloat32",
    "MLMultiArrayDataTypeFloat64",
    "MLMultiArrayDataTypeInt32",
    "MLPredictionOptions",
]

MLComputeUnitsCPUOnly = 0
MLComputeUnitsCPUAndGPU = 1
MLComputeUnitsAll = 2
MLComputeUnitsCPUAndNeuralEngine = 3

_UNIT_NAMES = {
    MLComputeUnitsCPUOnly: "CPU_ONLY",
    MLComputeUnitsCPUAndGPU: "CPU_AND_GPU",
    MLComputeUnitsAll: "ALL",
    MLComputeUnitsCPUAndNeuralEngine: "CPU_AND_NE",
}

Handler = Callable[[MLDictionaryFeatureProvider | None, NSError | None], None]
Outcome = tuple[MLDictionaryFeatureProvider | None, NSError | None]


class MLModelConfiguration(NSObject):
    """Which compute units a load may use."""

    _units: int = MLComputeUnitsAll

    def computeUnits(self) -> int:
        return self._units

    def setComputeUnits_(self, units: int) -> None:
        if units not in _UNIT_NAMES:
            raise ValueError(f"unknown compute units {units}")
        self._units = units


class MLPredictionOptions(NSObject):
    """Arrays that a prediction may write its outputs into."""

    _backings: Mapping[str, MLMultiArray] | None = None

    def outputBackings(self) -> dict[str, MLMultiArray]:
        return dict(self._backings or {})

    def setOutputBackings_(self, backings: Mapping[str, MLMultiArray]) -> None:
        self._backings = dict(backings)


class MLModel(NSObject):
    """A loaded model. Its thread ends when the model is let go."""

    _loaded: LoadedModel
    _jobs: queue.SimpleQueue[Callable[[], None] | None]

    @classmethod
    def modelWithContentsOfURL_configuration_error_(
        cls, url: NSURL, configuration: MLModelConfiguration, error: None
    ) -> tuple[MLModel | None, NSError | None]:
        """(model, None), or (None, error) for what can't be loaded."""
        made = cls.alloc()
        try:
            units = _UNIT_NAMES[configuration.computeUnits()]
            made._loaded = LoadedModel(url.path(), units, way="pyobjc")
        except RuntimeError as failure:
            return None, coreml_error(str(failure))
        made._jobs = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(made._jobs,), name="virtual-coreml", daemon=True).start()
        return made, None

    def __del__(self) -> None:
        jobs = getattr(self, "_jobs", None)
        if jobs is not None:
            jobs.put(None)

    def predictionFromFeatures_error_(self, features: MLDictionaryFeatureProvider, error: None) -> Outcome:
        return _predict(self._loaded, features, None)

    def predictionFromFeatures_options_error_(
        self, features: MLDictionaryFeatureProvider, options: MLPredictionOptions, error: None
    ) -> Outcome:
        return _predict(self._loaded, features, options)

    def predictionFromFeatures_completionHandler_(
        self, features: MLDictionaryFeatureProvider, handler: Handler
    ) -> None:
        self.predictionFromFeatures_options_completionHandler_(features, None, handler)

    def predictionFromFeatures_options_completionHandler_(
        self, features: MLDictionaryFeatureProvider, options: MLPredictionOptions | None, handler: Handler
    ) -> None:
        """Returns at once; another thread calls ``handler(output, error)``, one of them None."""
        if not callable(handler):
            raise ValueError("The completion handler cannot be nil.")
        loaded = self._loaded
        self._jobs.put(lambda: _predict_async(loaded, features, options, handler))


def _serve(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception:  # a failing handler is reported, as an uncaught exception on a dispatch queue is
            traceback.print_exc()
        del job  # it holds the arrays of its prediction


def _predict_async(
    loaded: LoadedModel,
    features: MLDictionaryFeatureProvider,
    options: MLPredictionOptions | None,
    handler: Handler,
) -> None:
    bucket = loaded.bucket
    if fires("async_no_completion", bucket) is not None:
        return
    if (fault := fires("async_error", bucket)) is not None:
        handler(None, coreml_error(fault.args["message"]))
        return
    output, failure = _predict(loaded, features, options, asynchronous=True)
    if (fault := fires("async_slow", bucket)) is not None:
        _delay(float(fault.args["ms"]), hold_gil=bool(fault.args["hold_gil"]))
    handler(output, failure)


def _delay(ms: float, *, hold_gil: bool) -> None:
    end = time.perf_counter() + ms / 1e3
    if not hold_gil:
        time.sleep(ms / 1e3)
    while time.perf_counter() < end:  # keeps taking the GIL from the threads that prepare requests
        pass


def _predict(
    loaded: LoadedModel,
    features: MLDictionaryFeatureProvider,
    options: MLPredictionOptions | None,
    *,
    asynchronous: bool = False,
) -> Outcome:
    inputs = {}
    for name, tensor in loaded.program.inputs.items():
        value = features.featureValueForName_(name)
        if value is None:
            return None, coreml_error(f"Feature {name} is required but not specified.")
        view = value.multiArrayValue().view
        if view.shape != tensor.shape:
            return None, coreml_error(
                f"MultiArray shape {view.shape} of {name} does not match {tensor.shape}"
            )
        inputs[name] = view
    try:
        outputs = loaded.predict(inputs, way="async" if asynchronous else "pyobjc")
    except RuntimeError as failure:
        return None, coreml_error(str(failure))
    if asynchronous and (fault := fires("async_wrong_outputs", loaded.bucket)) is not None:
        outputs = spoil_output(outputs, fault.args["output"])
    backings = options.outputBackings() if options is not None else {}
    unused = fires("async_other_array", loaded.bucket) if asynchronous and backings else None
    values: dict[str, MLFeatureValue] = {}
    for name, array in outputs.items():
        if array.dtype not in DATA_TYPES:
            array = array.astype(np.float32)
        backing = backings.get(name)
        if backing is None or (unused is not None and unused.args["output"] == name):
            values[name] = MLFeatureValue.featureValueWithMultiArray_(multi_array_of(array))
            continue
        if backing.view.shape != array.shape or backing.view.dtype != array.dtype:
            return None, coreml_error(
                f"the backing of {name} is {backing.view.shape} {backing.view.dtype}, the output is "
                f"{array.shape} {array.dtype}"
            )
        backing.view[...] = array
        values[name] = MLFeatureValue.featureValueWithMultiArray_(backing)
    return MLDictionaryFeatureProvider.alloc().initWithDictionary_error_(values, None)
