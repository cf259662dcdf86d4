"""Core ML's multi-arrays, feature values and feature providers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_laya.virtual_mac.pyobjc.foundation import NSError
from pytest_laya.virtual_mac.pyobjc.objective_c import NSObject, varlist

MLMultiArrayDataTypeFloat16 = 65552
MLMultiArrayDataTypeFloat32 = 65568
MLMultiArrayDataTypeFloat64 = 65600
MLMultiArrayDataTypeInt32 = 131104
MLFeatureTypeMultiArray = 5

NUMPY_TYPES: Mapping[int, Any] = {
    MLMultiArrayDataTypeFloat16: np.float16,
    MLMultiArrayDataTypeFloat32: np.float32,
    MLMultiArrayDataTypeFloat64: np.float64,
    MLMultiArrayDataTypeInt32: np.int32,
}
DATA_TYPES = {np.dtype(t): number for number, t in NUMPY_TYPES.items()}


def coreml_error(message: str) -> NSError:
    """An error of Core ML's domain."""
    return NSError.errorWithDomain_code_userInfo_("com.apple.CoreML", 0, {"NSLocalizedDescription": message})


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class MLMultiArray(NSObject):
    """A typed block of memory; the stand-ins share ``view``, the NumPy array over it."""

    view: NDArray[Any]
    _data_type: int
    _owner: Any
    _deallocator: Callable[[Any], None] | None = None

    def initWithShape_dataType_error_(
        self, shape: Sequence[int], data_type: int, error: None
    ) -> tuple[MLMultiArray | None, NSError | None]:
        if data_type not in NUMPY_TYPES:
            return None, coreml_error(f"unsupported data type {data_type}")
        self.view = np.zeros(tuple(int(n) for n in shape), NUMPY_TYPES[data_type])
        self._data_type, self._owner = data_type, None
        return self, None

    def initWithDataPointer_shape_dataType_strides_deallocator_error_(
        self,
        pointer: Any,
        shape: Sequence[int],
        data_type: int,
        strides: Sequence[int],
        deallocator: Callable[[Any], None] | None,
        error: None,
    ) -> tuple[MLMultiArray | None, NSError | None]:
        """Shares the memory of ``pointer``, any writable buffer. Strides count elements."""
        if data_type not in NUMPY_TYPES:
            return None, coreml_error(f"unsupported data type {data_type}")
        dtype = np.dtype(NUMPY_TYPES[data_type])
        sizes, steps = tuple(int(n) for n in shape), tuple(int(n) for n in strides)
        memory = memoryview(pointer).cast("B")
        needed = (sum((n - 1) * s for n, s in zip(sizes, steps, strict=True)) + 1) * dtype.itemsize
        if memory.nbytes < needed:
            raise ValueError(f"the buffer holds {memory.nbytes} bytes, the array needs {needed}")
        self.view = np.ndarray(sizes, dtype, memory, strides=tuple(s * dtype.itemsize for s in steps))
        self._data_type, self._owner, self._deallocator = data_type, pointer, deallocator
        return self, None

    def __del__(self) -> None:
        if self._deallocator is not None:
            self._deallocator(self._owner)

    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    def strides(self) -> tuple[int, ...]:
        return tuple(s // self.view.itemsize for s in self.view.strides)

    def dataType(self) -> int:
        return self._data_type

    def count(self) -> int:
        return int(self.view.size)

    def dataPointer(self) -> varlist:
        if not self.view.flags.c_contiguous:
            raise ValueError("the array's memory is not contiguous")
        return varlist(self.view.reshape(-1).data.cast("B"))


def multi_array_of(array: NDArray[Any]) -> MLMultiArray:
    """A new multi-array with the values of a NumPy array."""
    made = MLMultiArray.alloc()
    made.initWithShape_dataType_error_(array.shape, DATA_TYPES[array.dtype], None)
    made.view[...] = array
    return made


class MLFeatureValue(NSObject):
    """One feature's value; only multi-arrays here."""

    _array: MLMultiArray

    @classmethod
    def featureValueWithMultiArray_(cls, array: MLMultiArray) -> MLFeatureValue:
        if not isinstance(array, MLMultiArray):
            raise TypeError(f"expected an MLMultiArray, got {type(array).__name__}")
        made = cls.alloc()
        made._array = array
        return made

    def multiArrayValue(self) -> MLMultiArray:
        return self._array

    def type(self) -> int:
        return MLFeatureTypeMultiArray


class MLDictionaryFeatureProvider(NSObject):
    """Feature values by name."""

    _values: dict[str, MLFeatureValue]

    def initWithDictionary_error_(
        self, dictionary: Mapping[str, MLFeatureValue | MLMultiArray], error: None
    ) -> tuple[MLDictionaryFeatureProvider | None, NSError | None]:
        values = {}
        for name, value in dictionary.items():
            if isinstance(value, MLMultiArray):
                value = MLFeatureValue.featureValueWithMultiArray_(value)
            if not isinstance(value, MLFeatureValue):
                return None, coreml_error(f"feature {name} is a {type(value).__name__}, not a feature value")
            values[name] = value
        self._values = values
        return self, None

    def featureNames(self) -> set[str]:
        return set(self._values)

    def featureValueForName_(self, name: str) -> MLFeatureValue | None:
        return self._values.get(name)

    def dictionary(self) -> dict[str, MLFeatureValue]:
        return dict(self._values)
