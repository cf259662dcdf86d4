"""Evaluates a built MIL program at FP32 in NumPy, for the layout check.

It walks the very program that is converted, operation by operation, and puts each weight's FP32 values in the
place of the FP16 ones. Only the operations of ``bc1s-masked`` are known; any other raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laya_apple.artifacts.graph import Graph
from laya_apple.backends.host import gelu
from laya_apple.errors import ArtifactError

Float32 = NDArray[np.float32]
Arguments = dict[str, Any]


def evaluate(
    graph: Graph, batch: Sequence[Mapping[str, Float32]]
) -> tuple[list[dict[str, Float32]], dict[str, float]]:
    """Run every feature dict of ``batch`` and return (outputs a dict, abs-max of each LayerNorm's input).

    Each dict holds the program's inputs by name, float32, in the shapes of ``GraphShape.input_shapes``.
    Weights are widened once for the whole batch, one operation at a time, so memory stays near the program's.
    Raises ArtifactError for an operation or a result shape that the graph should not have.
    """
    main = graph.program.functions["main"]
    operations = [op for op in main.operations if op.op_type != "const"]
    last_use = {
        var.name: index for index, op in enumerate(operations) for var in _variables(op.inputs.values())
    }
    outputs = [var.name for var in main.outputs]
    labels = {name: label for label, name in graph.norm_inputs.items()}
    abs_max: dict[str, float] = {}
    frames: list[dict[str, Float32]] = [dict(features) for features in batch]

    def note(name: str) -> None:
        if name in labels:
            abs_max[labels[name]] = max(float(np.abs(frame[name]).max()) for frame in frames)

    for name in main.inputs:
        note(name)
    for index, op in enumerate(operations):
        run = _OPERATIONS.get(op.op_type)
        if run is None:
            raise ArtifactError(f"the graph holds {op.op_type} ({op.name}), which bc1s-masked does not use")
        constants = {
            var.name: graph.sources[var.name]() if var.name in graph.sources else var.val
            for var in _variables(op.inputs.values())
            if var.val is not None
        }
        for frame in frames:
            results = run(_resolve(op.inputs, frame, constants))
            for var, value in zip(op.outputs, results, strict=True):
                if value.shape != tuple(var.shape):
                    raise ArtifactError(f"{var.name} came out as {value.shape}, declared {tuple(var.shape)}")
                frame[var.name] = value
        for var in op.outputs:
            note(var.name)
        for var in _variables(op.inputs.values()):
            if last_use[var.name] == index and var.name not in outputs:
                for frame in frames:
                    frame.pop(var.name, None)
    return [{name: frame[name] for name in outputs} for frame in frames], abs_max


def _variables(inputs: Any) -> list[Any]:
    found: list[Any] = []
    for value in inputs:
        found.extend(value if isinstance(value, (list, tuple)) else [value])
    return found


def _resolve(
    inputs: Mapping[str, Any], frame: Mapping[str, Float32], constants: Mapping[str, Any]
) -> Arguments:
    def one(var: Any) -> Any:
        return constants[var.name] if var.name in constants else frame[var.name]

    return {
        key: [one(var) for var in value] if isinstance(value, (list, tuple)) else one(value)
        for key, value in inputs.items()
    }


def _conv(a: Arguments) -> Float32:
    weight, x = a["weight"], a["x"]
    out, into = weight.shape[:2]
    if weight.shape[2:] != (1, 1) or a["groups"] != 1 or x.shape[:3] != (1, into, 1):
        raise ArtifactError(f"a convolution of {weight.shape} over {x.shape} is not a Linear")
    y = weight.reshape(out, into) @ x.reshape(into, -1)
    if "bias" in a:
        y += a["bias"].reshape(out, 1)
    return np.asarray(y.reshape(1, out, 1, -1), np.float32)


def _einsum(a: Arguments) -> Float32:
    if a["equation"] != "nchw,nwhu->nchu":
        raise ArtifactError(f"einsum {a['equation']} is not used by bc1s-masked")
    x, y = a["values"]
    product = np.matmul(x.transpose(0, 2, 1, 3), y.transpose(0, 2, 1, 3))
    return np.asarray(product.transpose(0, 2, 1, 3), np.float32)


def _softmax(a: Arguments) -> Float32:
    axis = int(a["axis"])
    e = np.exp(a["x"] - a["x"].max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True), np.float32)


def _layer_norm(a: Arguments) -> Float32:
    axes = tuple(int(axis) for axis in a["axes"])
    shape = [n if axis in axes else 1 for axis, n in enumerate(a["x"].shape)]
    centred = a["x"] - a["x"].mean(axes, keepdims=True)
    variance = np.square(centred).mean(axes, keepdims=True)
    y = centred / np.sqrt(variance + np.float32(a["epsilon"])) * a["gamma"].reshape(shape)
    return np.asarray(y + a["beta"].reshape(shape) if "beta" in a else y, np.float32)


def _gelu(a: Arguments) -> Float32:
    if a["mode"] != "EXACT":
        raise ArtifactError(f"gelu {a['mode']} is not used by bc1s-masked")
    return gelu(a["x"])


def _slice(a: Arguments) -> Float32:
    window = tuple(slice(int(b), int(e)) for b, e in zip(a["begin"], a["end"], strict=True))
    return np.asarray(a["x"][window], np.float32)


def _reduce_mean(a: Arguments) -> Float32:
    axes = tuple(int(axis) for axis in a["axes"])
    return np.asarray(a["x"].mean(axes, keepdims=bool(a["keep_dims"])), np.float32)


def _rsqrt(a: Arguments) -> Float32:
    return np.asarray(1.0 / np.sqrt(a["x"] + np.float32(a["epsilon"])), np.float32)


_OPERATIONS: Mapping[str, Callable[[Arguments], Sequence[Float32]]] = {
    "add": lambda a: [a["x"] + a["y"]],
    "concat": lambda a: [np.concatenate(a["values"], int(a["axis"]))],
    "conv": lambda a: [_conv(a)],
    "einsum": lambda a: [_einsum(a)],
    "gelu": lambda a: [_gelu(a)],
    "layer_norm": lambda a: [_layer_norm(a)],
    "mul": lambda a: [a["x"] * a["y"]],
    "reduce_mean": lambda a: [_reduce_mean(a)],
    "relu": lambda a: [np.maximum(a["x"], 0)],
    "reshape": lambda a: [a["x"].reshape([int(n) for n in a["shape"]])],
    "rsqrt": lambda a: [_rsqrt(a)],
    "slice_by_index": lambda a: [_slice(a)],
    "softmax": lambda a: [_softmax(a)],
    "split": lambda a: np.split(a["x"], int(a["num_splits"]), int(a["axis"])),
    "sub": lambda a: [a["x"] - a["y"]],
    "transpose": lambda a: [a["x"].transpose([int(n) for n in a["perm"]])],
}
