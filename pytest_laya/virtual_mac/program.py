"""Reads the ``main`` function of a saved ML Program: its specification and the weight file beside it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FLOAT16, FLOAT32, STRING = 10, 11, 2

_NUMPY_TYPES: Mapping[int, Any] = {
    1: np.bool_,
    FLOAT16: np.float16,
    FLOAT32: np.float32,
    12: np.float64,
    21: np.int8,
    22: np.int16,
    23: np.int32,
    24: np.int64,
    31: np.uint8,
    32: np.uint16,
}
_BLOB_READERS: Mapping[int, str] = {
    FLOAT16: "read_fp16_data",
    FLOAT32: "read_float_data",
    21: "read_int8_data",
    22: "read_int16_data",
    23: "read_int32_data",
    31: "read_uint8_data",
    32: "read_uint16_data",
}


class ProgramError(RuntimeError):
    """The program uses something the virtual Mac does not run, or its files can't be read."""


@dataclass(frozen=True)
class Tensor:
    """A tensor's declared type: MIL data type number and shape."""

    dtype: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Operation:
    """One operation; an argument is the name of a value, or a tuple of names."""

    type: str
    args: Mapping[str, str | tuple[str, ...]]
    outputs: tuple[str, ...]
    types: tuple[Tensor, ...]


@dataclass(frozen=True)
class Parsed:
    """A program's inputs, constants, operations in order, and outputs."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    constants: Mapping[str, Any]
    operations: tuple[Operation, ...]


def tensor_of(value_type: Any) -> Tensor:
    """The tensor type of a MIL ``ValueType``."""
    tensor = value_type.tensorType
    return Tensor(tensor.dataType, tuple(d.constant.size for d in tensor.dimensions))


class _Values:
    """Turns MIL values into NumPy arrays and Python values."""

    def __init__(self, weights: Path) -> None:
        self._weights = weights
        self._readers: dict[str, Any] = {}

    def read(self, value: Any) -> Any:
        if value.type.WhichOneof("type") == "listType":
            return [self.read(item) for item in value.immediateValue.list.values]
        tensor = tensor_of(value.type)
        if value.WhichOneof("value") == "blobFileValue":
            return self._blob(value.blobFileValue, tensor)
        stored = value.immediateValue.tensor
        kind = stored.WhichOneof("value")
        raw = getattr(stored, kind).values
        if tensor.dtype == STRING:
            return raw[0]
        dtype = _NUMPY_TYPES[tensor.dtype]
        array = np.frombuffer(raw, dtype) if kind == "bytes" else np.array(list(raw), dtype)
        array = array.reshape(tensor.shape)
        return array[()].item() if tensor.shape == () and array.dtype != np.float16 else array

    def _blob(self, blob: Any, tensor: Tensor) -> Any:
        path = str(self._weights / os.path.basename(blob.fileName))  # "@model_path/weights/weight.bin"
        if path not in self._readers:
            storage = importlib.import_module("coremltools.libmilstoragepython")
            self._readers[path] = storage._BlobStorageReader(path)
        if tensor.dtype not in _BLOB_READERS:
            raise ProgramError(f"weights of MIL data type {tensor.dtype} are not supported")
        array = getattr(self._readers[path], _BLOB_READERS[tensor.dtype])(blob.offset)
        if tensor.dtype == FLOAT16:
            array = array.view(np.float16)
        return array.reshape(tensor.shape)


def parse(spec: Any, weights: Path, function: str = "main") -> Parsed:
    """Read one function of a model specification; ``weights`` is the folder of its weight file.

    Raises ProgramError for a model that is no ML Program, a missing function, control flow or unreadable
    weights.
    """
    if spec.WhichOneof("Type") != "mlProgram":
        raise ProgramError(f"the virtual Mac runs ML Programs, not {spec.WhichOneof('Type')}")
    functions = spec.mlProgram.functions
    if function not in functions:
        raise ProgramError(f"the program has no function {function!r}, only {sorted(functions)}")
    found = functions[function]
    block = found.block_specializations[found.opset]
    values = _Values(weights)
    constants: dict[str, Any] = {}
    operations: list[Operation] = []
    types: dict[str, Tensor] = {}
    try:
        for op in block.operations:
            outputs = tuple(o.name for o in op.outputs)
            if op.blocks:
                raise ProgramError(f"operation {op.type} ({outputs[0]}) has a nested block: control flow")
            if op.type == "const":
                constants[outputs[0]] = values.read(op.attributes["val"])
                continue
            args = {name: _argument(outputs[0], name, a, constants, values) for name, a in op.inputs.items()}
            operation = Operation(op.type, args, outputs, tuple(tensor_of(o.type) for o in op.outputs))
            operations.append(operation)
            types.update(zip(operation.outputs, operation.types, strict=True))
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        if isinstance(error, ProgramError):
            raise
        raise ProgramError(f"the program's values can't be read: {error}") from error
    inputs = {i.name: tensor_of(i.type) for i in found.inputs}
    return Parsed(inputs, {n: types[n] for n in block.outputs}, constants, tuple(operations))


def _argument(
    output: str, name: str, argument: Any, constants: dict[str, Any], values: _Values
) -> str | tuple[str, ...]:
    names = []
    for index, binding in enumerate(argument.arguments):
        if binding.WhichOneof("binding") == "name":
            names.append(binding.name)
            continue
        inline = f"{output}.{name}.{index}"
        constants[inline] = values.read(binding.value)
        names.append(inline)
    return tuple(names) if name == "values" or len(names) > 1 else names[0]
