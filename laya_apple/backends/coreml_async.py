"""Core ML's asynchronous prediction of the verified artifacts, through PyObjC, with arrays bound once.

Same artifact, same compute units, same precision as coremltools' ``predict``. It is used only after its
outputs were found equal to coremltools', value by value, and its placement probe passed.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laya_apple.artifacts.bucket import check_outputs
from laya_apple.artifacts.graph import MAX_OPTIONS
from laya_apple.artifacts.manifest import ArraySpec
from laya_apple.artifacts.probe import run_probe
from laya_apple.artifacts.runtime import Float32
from laya_apple.backends.base import BackendInfo, RowOutput
from laya_apple.backends.coreml import CoreMLBackend
from laya_apple.errors import ArtifactError, BackendUnavailableError
from laya_apple.prompt.sequence import Row

ASYNC_TIMEOUT_S = 5.0
"""How long a completion may take before its forward is run again on coremltools' predict."""


class AsyncPredictionError(ArtifactError):
    """An asynchronous prediction failed or did not complete in time; the synchronous path may still work."""


@dataclass(frozen=True, slots=True)
class PyObjC:
    """The three modules that the asynchronous path calls."""

    coreml: Any
    foundation: Any
    objc: Any

    @classmethod
    def load(cls) -> PyObjC:
        """Raises BackendUnavailableError without pyobjc-framework-CoreML."""
        try:
            return cls(*map(importlib.import_module, ("CoreML", "Foundation", "objc")))
        except ImportError as error:  # reraise: the path is unavailable, and says what to install
            raise BackendUnavailableError(
                f"pyobjc-framework-CoreML cannot be imported ({error}); install it with: "
                "pip install 'laya-apple[ane]'"
            ) from error


class AsyncModel:
    """One artifact loaded through PyObjC on CPU_AND_NE, its FP16 inputs and output backings bound once.

    ``inputs`` and ``outputs`` as its manifest declares them. Raises ArtifactError when Core ML refuses.
    Not thread-safe.
    """

    def __init__(
        self,
        pyobjc: PyObjC,
        path: Path,
        inputs: Sequence[ArraySpec],
        outputs: Sequence[ArraySpec],
        *,
        timeout_s: float = ASYNC_TIMEOUT_S,
    ) -> None:
        self._pyobjc = pyobjc
        self._declared = tuple(outputs)
        self._timeout_s = timeout_s
        coreml, foundation = pyobjc.coreml, pyobjc.foundation
        with pyobjc.objc.autorelease_pool():
            configuration = coreml.MLModelConfiguration.alloc().init()
            configuration.setComputeUnits_(coreml.MLComputeUnitsCPUAndNeuralEngine)
            url = foundation.NSURL.fileURLWithPath_(str(path))
            model, error = coreml.MLModel.modelWithContentsOfURL_configuration_error_(
                url, configuration, None
            )
            if model is None:
                raise ArtifactError(f"Core ML could not load {path}: {_describe(error)}")
            self._model = model
            self._inputs = {array.name: np.zeros(array.shape, _dtype(array)) for array in inputs}
            self._outputs = {array.name: np.zeros(array.shape, _dtype(array)) for array in outputs}
            values = {
                name: coreml.MLFeatureValue.featureValueWithMultiArray_(self._bind(array))
                for name, array in self._inputs.items()
            }
            provider, error = coreml.MLDictionaryFeatureProvider.alloc().initWithDictionary_error_(
                self._dictionary(values), None
            )
            if provider is None:
                raise ArtifactError(f"Core ML refused the bound inputs of {path}: {_describe(error)}")
            self._provider = provider
            self._backings = {name: self._bind(array) for name, array in self._outputs.items()}
            self._options = coreml.MLPredictionOptions.alloc().init()
            self._options.setOutputBackings_(self._dictionary(self._backings))

    def predict(self, features: Mapping[str, Float32]) -> dict[str, NDArray[Any]]:
        """One prediction: input name -> float32 array of FP16 values in, output name -> fresh array out.

        Arrays have the dtypes that coremltools returns. Raises AsyncPredictionError when Core ML fails, does
        not complete within the timeout, or returns other arrays than the manifest declares.
        """
        for name, bound in self._inputs.items():
            np.copyto(bound, features[name], casting="same_kind")
        try:
            with self._pyobjc.objc.autorelease_pool():
                outputs = self._read(self._complete())
            return check_outputs(self._declared, outputs)
        except AsyncPredictionError:  # reraise: it already says what happened
            raise
        except Exception as error:  # reraise: PyObjC raises Objective-C exceptions as errors of its own
            raise AsyncPredictionError(
                f"the asynchronous prediction failed: {type(error).__name__}: {error}"
            ) from error

    def _complete(self) -> Any:
        """Send the prediction and wait for its completion; the feature provider of its outputs."""
        done = threading.Event()
        box: list[tuple[Any, Any, AsyncModel]] = []

        def completed(output: Any, error: Any) -> None:
            # Core ML holds this function, and through it the model and its memory, until the prediction is
            # over: one that completes after its timeout still writes into arrays that exist.
            box.append((output, error, self))
            done.set()

        self._model.predictionFromFeatures_options_completionHandler_(
            self._provider, self._options, completed
        )
        if not done.wait(self._timeout_s):
            raise AsyncPredictionError(
                f"the asynchronous prediction did not complete within {self._timeout_s:g} s"
            )
        output, error, _ = box[0]
        if output is None:
            raise AsyncPredictionError(f"the asynchronous prediction failed: {_describe(error)}")
        return output

    def _read(self, provider: Any) -> dict[str, NDArray[Any]]:
        outputs: dict[str, NDArray[Any]] = {}
        for name in map(str, provider.featureNames()):
            value = provider.featureValueForName_(name)
            array = value.multiArrayValue() if value is not None else None
            if array is None:
                raise AsyncPredictionError(f"Core ML returned no array for {name}")
            # Core ML may leave a backing untouched and return an array of its own.
            ours = array is self._backings.get(name)
            found = self._outputs[name] if ours else self._view(array, name)
            # FP16 comes out as float32, as coremltools hands it over; always a copy, the backing is reused.
            outputs[name] = found.astype(np.float32 if found.dtype == np.float16 else found.dtype)
        return outputs

    def _view(self, array: Any, name: str) -> NDArray[Any]:
        """The memory of a multi-array that is not ours, whose rows may be padded."""
        dtype = self._numpy_type(array.dataType(), name)
        shape = tuple(int(size) for size in array.shape())
        strides = tuple(int(stride) * dtype.itemsize for stride in array.strides())
        span = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + dtype.itemsize
        return np.ndarray(shape, dtype, array.dataPointer().as_buffer(span), strides=strides)

    def _numpy_type(self, data_type: int, name: str) -> np.dtype[Any]:
        coreml = self._pyobjc.coreml
        known = {
            coreml.MLMultiArrayDataTypeFloat16: np.float16,
            coreml.MLMultiArrayDataTypeFloat32: np.float32,
            coreml.MLMultiArrayDataTypeFloat64: np.float64,
            coreml.MLMultiArrayDataTypeInt32: np.int32,
        }
        if data_type not in known:
            raise AsyncPredictionError(f"Core ML returned {name} in an array of data type {data_type}")
        return np.dtype(known[data_type])

    def _bind(self, array: NDArray[Any]) -> Any:
        """A multi-array over the memory of ``array``, which this model keeps."""
        coreml = self._pyobjc.coreml
        data_type = {
            np.dtype(np.float16): coreml.MLMultiArrayDataTypeFloat16,
            np.dtype(np.float32): coreml.MLMultiArrayDataTypeFloat32,
        }[array.dtype]
        strides = [stride // array.itemsize for stride in array.strides]
        init = coreml.MLMultiArray.alloc().initWithDataPointer_shape_dataType_strides_deallocator_error_
        bound, error = init(
            array.data, self._numbers(array.shape), data_type, self._numbers(strides), None, None
        )
        if bound is None:
            raise ArtifactError(f"Core ML could not bind an array of shape {array.shape}: {_describe(error)}")
        return bound

    # Foundation's own containers: Core ML reads them during every prediction, and would have to take the
    # interpreter lock to read Python's.

    def _numbers(self, numbers: Sequence[int]) -> Any:
        foundation = self._pyobjc.foundation
        return foundation.NSArray.arrayWithArray_(
            [foundation.NSNumber.numberWithInteger_(number) for number in numbers]
        )

    def _dictionary(self, values: Mapping[str, Any]) -> Any:
        return self._pyobjc.foundation.NSDictionary.dictionaryWithDictionary_(dict(values))


class AsyncPath:
    """The loaded buckets of a Neural Engine backend, on the asynchronous path. A Backend of its own.

    Make one with :meth:`load`.
    """

    def __init__(
        self,
        backend: CoreMLBackend,
        models: Mapping[int, AsyncModel],
        probes: Mapping[int, Mapping[str, Any]],
    ) -> None:
        self._backend = backend
        self._models = dict(models)
        self.probes = probes
        """Bucket -> {ane_ms, cpu_ms, ratio, verdict} of the asynchronous prediction."""

    @classmethod
    def load(cls, backend: CoreMLBackend, *, timeout_s: float = ASYNC_TIMEOUT_S) -> AsyncPath:
        """Every loaded bucket of ``backend`` through PyObjC, each held against coremltools and probed.

        Raises BackendUnavailableError, naming the bucket and what is wrong, unless all of them pass.
        """
        pyobjc = PyObjC.load()
        if not backend.loaded:
            raise BackendUnavailableError("no bucket of the Neural Engine is loaded")
        models, probes = {}, {}
        for bucket, loaded in backend.loaded.items():
            try:
                path = backend.model_path(bucket)
                manifest = loaded.manifest
                model = AsyncModel(pyobjc, path, manifest.inputs, manifest.outputs, timeout_s=timeout_s)
                _check_equal(backend, bucket, model)
                probe = run_probe(model, path, backend.host.probe_features(bucket))
                if probe.verdict != "PLACED":
                    raise ArtifactError(f"its placement probe says {probe.verdict}: {probe.why()}")
            except Exception as error:  # reraise: one reason for the whole path
                raise BackendUnavailableError(
                    f"the asynchronous path of L{bucket} did not load: {error}"
                ) from error
            models[bucket], probes[bucket] = model, probe.to_dict()
        return cls(backend, models, probes)

    @property
    def info(self) -> BackendInfo:
        """The facts of the backend whose artifacts these are."""
        return self._backend.info

    def forward(self, rows: Sequence[Row]) -> list[RowOutput]:
        """Run each row on its bucket, in order.

        Raises UnsupportedShapeError and ArtifactMissingError before any work, AsyncPredictionError when a
        prediction fails.
        """
        chosen = self._backend.buckets_of(rows)
        return [
            self._backend.loaded[bucket].forward(row, self._models[bucket].predict)
            for bucket, row in zip(chosen, rows, strict=True)
        ]

    def warm(self) -> None:
        """Nothing to do: every model has predicted while it was loaded."""

    def close(self) -> None:
        """Let the models go."""
        self._models.clear()


def _check_equal(backend: CoreMLBackend, bucket: int, model: AsyncModel) -> None:
    """Hold the model against coremltools on the check inputs. Raises ArtifactError where they differ."""
    for row in _check_rows(bucket, backend.host.vocab_size):
        features = backend.host.features(row, bucket)
        expected = backend.loaded[bucket].predict(features)
        found = model.predict(features)
        for name, array in expected.items():
            other = found.get(name)
            if other is None or other.dtype != array.dtype or not np.array_equal(other, array):
                raise ArtifactError(f"{name} of the asynchronous path differs from coremltools'")
        if len(found) != len(expected):
            raise ArtifactError(f"the asynchronous path returns {sorted(found)}, not {sorted(expected)}")


def _check_rows(length: int, vocab_size: int) -> list[Row]:
    """Rows that reach every input: full and short, many options and few, each question type."""

    def ids(count: int, step: int) -> tuple[int, ...]:
        return tuple((step * i + 3) % vocab_size for i in range(count))

    half = max(length // 2, 2)
    return [
        Row(ids(length, 7), tuple(range(min(MAX_OPTIONS, length))), 0),
        Row(ids(half, 11), (0, half - 1), 1),
        Row(ids(3, 5), (1, 2), 2),
    ]


def _dtype(array: ArraySpec) -> type[np.float16] | type[np.float32]:
    return np.float16 if array.dtype == "float16" else np.float32


def _describe(error: Any) -> str:
    return str(error.localizedDescription()) if error is not None else "no error was given"
