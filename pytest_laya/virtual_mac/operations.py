"""The MIL operations a program of ours uses, each made once into a function of its variable inputs.

``make`` receives an operation and its constants and returns a callable; arithmetic is float32 and results are
rounded to float16 where the program says float16. Operations that only move values round nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_laya.virtual_mac.half import Float, round_to_half
from pytest_laya.virtual_mac.program import FLOAT16, Operation, ProgramError, Tensor

Apply = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """An operation ready to run: the names of its variable inputs, and the function of their arrays."""

    variables: tuple[str, ...]
    apply: Apply
    rounds: bool
    """False where the values are moved, selected or clamped only: they are float16 values already."""


class _Site:
    """One operation's arguments: which are constants, which vary."""

    def __init__(self, op: Operation, constants: Mapping[str, Any], types: Mapping[str, Tensor]) -> None:
        self.op = op
        self.types = types
        self._constants = constants

    def constant(self, name: str, default: Any = None) -> Any:
        """A parameter's value. Raises ProgramError when it is computed at run time."""
        given = self.op.args.get(name)
        if given is None:
            return default
        if isinstance(given, tuple) or given not in self._constants:
            raise ProgramError(f"{self.where}: argument {name} must be a constant")
        value = self._constants[given]
        return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value

    def numbers(self, name: str) -> tuple[int, ...]:
        return tuple(int(v) for v in np.ravel(self.constant(name)))

    def weight(self, name: str) -> Float | None:
        value = self.constant(name)
        return None if value is None else np.asarray(value, np.float32)

    def operand(self, name: str) -> tuple[str | None, Any]:
        """(variable name, None) or (None, constant array) of a tensor operand."""
        given = self.op.args[name]
        if isinstance(given, tuple):
            raise ProgramError(f"{self.where}: argument {name} is a list")
        if given in self._constants:
            return None, np.asarray(self._constants[given], np.float32)
        return given, None

    def variable(self, name: str) -> str:
        found, _ = self.operand(name)
        if found is None:
            raise ProgramError(f"{self.where}: argument {name} is a constant")
        return found

    def variables(self, name: str) -> tuple[str, ...]:
        given = self.op.args[name]
        names = given if isinstance(given, tuple) else (given,)
        if any(n in self._constants for n in names):
            raise ProgramError(f"{self.where}: argument {name} holds a constant")
        return names

    @property
    def where(self) -> str:
        return f"operation {self.op.type} ({self.op.outputs[0]})"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.op.types[0].shape

    def require(self, ok: bool, what: str) -> None:
        if not ok:
            raise ProgramError(f"{self.where}: {what} is not supported")


def _conv(site: _Site) -> Call:
    weight = site.weight("weight")
    assert weight is not None
    site.require(weight.ndim == 4 and weight.shape[2:] == (1, 1), f"a kernel of shape {weight.shape}")
    site.require(int(site.constant("groups", 1)) == 1, "a grouped convolution")
    site.require(all(s == 1 for s in np.ravel(site.constant("strides", 1))), "a strided convolution")
    bias = site.weight("bias")
    matrix = np.ascontiguousarray(weight[:, :, 0, 0])
    column = None if bias is None else bias.reshape(-1, 1)
    shape, channels = site.shape, matrix.shape[1]

    def apply(x: Float) -> Float:
        y = matrix @ x.reshape(channels, -1)
        if column is not None:
            y += column
        return y.reshape(shape)

    site.require(site.shape[0] == 1, f"a batch of {site.shape[0]}")
    return Call((site.variable("x"),), apply, rounds=True)


def _einsum(site: _Site) -> Call:
    equation = site.constant("equation")
    names, shape = site.variables("values"), site.shape

    def columns(x: Float, y: Float) -> Float:
        # [1, c, 1, w] x [1, w, 1, u] -> [1, c, 1, u]
        product: Float = x[0, :, 0, :] @ y[0, :, 0, :]
        return product.reshape(shape)

    def general(x: Float, y: Float) -> Float:
        return np.ascontiguousarray(np.einsum(equation, x, y, optimize=True))

    if equation == "nchw,nwhu->nchu" and shape[0] == shape[2] == 1:
        return Call(names, columns, rounds=True)
    return Call(names, general, rounds=True)


def _binary(function: np.ufunc) -> Callable[[_Site], Call]:
    def make(site: _Site) -> Call:
        (x_name, x), (y_name, y) = site.operand("x"), site.operand("y")
        if x_name is not None and y_name is not None:
            return Call((x_name, y_name), function, rounds=True)
        if x_name is not None:
            return Call((x_name,), lambda a: function(a, y), rounds=True)
        assert y_name is not None
        return Call((y_name,), lambda b: function(x, b), rounds=True)

    return make


def _layer_norm(site: _Site) -> Call:
    axes = site.numbers("axes")
    epsilon = np.float32(site.constant("epsilon", 1e-5))
    shape = site.shape
    normed = tuple(a % len(shape) for a in axes)
    spread = tuple(n if i in normed else 1 for i, n in enumerate(shape))
    gamma, beta = site.weight("gamma"), site.weight("beta")
    scale = None if gamma is None else gamma.reshape(spread)
    shift = None if beta is None else beta.reshape(spread)

    def apply(x: Float) -> Float:
        centred: Float = x - x.mean(normed, keepdims=True)
        y: Float = centred / np.sqrt((centred * centred).mean(normed, keepdims=True) + epsilon)
        if scale is not None:
            y *= scale
        return y if shift is None else y + shift

    return Call((site.variable("x"),), apply, rounds=True)


def _reduce_mean(site: _Site) -> Call:
    name, axes = site.variable("x"), site.numbers("axes")
    keep = bool(site.constant("keep_dims", False))
    shape = site.types[name].shape
    count = np.float32(math.prod(shape[a] for a in axes))

    def apply(x: Float) -> Float:
        # np.mean costs twice its sum at these sizes.
        return np.asarray(np.sum(x, axis=axes, keepdims=keep) / count)

    return Call((name,), apply, rounds=True)


def _rsqrt(site: _Site) -> Call:
    epsilon = np.float32(site.constant("epsilon", 1e-12))

    def apply(x: Float) -> Float:
        y: Float = np.sqrt(x + epsilon)
        np.divide(np.float32(1), y, out=y)
        return y

    return Call((site.variable("x"),), apply, rounds=True)


def _softmax(site: _Site) -> Call:
    axis = int(site.constant("axis", -1))

    def apply(x: Float) -> Float:
        y: Float = x - np.maximum.reduce(x, axis=axis, keepdims=True)
        np.exp(y, out=y)
        y /= np.add.reduce(y, axis=axis, keepdims=True)
        return y

    return Call((site.variable("x"),), apply, rounds=True)


_ERF = tuple(
    np.float32(c) for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.3275911)
)


def erf(x: Float) -> Float:
    """The error function in float32; absolute error below 3e-7 (Abramowitz and Stegun 7.1.26)."""
    a5, a4, a3, a2, a1, p = _ERF
    size = np.abs(x)
    t = size * p
    t += np.float32(1)
    np.divide(np.float32(1), t, out=t)
    y = t * a5
    for coefficient in (a4, a3, a2, a1):
        y += coefficient
        y *= t
    size *= size
    np.negative(size, out=size)
    np.exp(size, out=size)
    y *= size
    np.subtract(np.float32(1), y, out=y)
    np.copysign(y, x, out=y)
    return y


def _gelu(site: _Site) -> Call:
    mode = site.constant("mode", "EXACT")
    site.require(mode == "EXACT", f"mode {mode}")
    root_half, half = np.float32(1 / math.sqrt(2)), np.float32(0.5)

    def apply(x: Float) -> Float:
        y: Float = erf(x * root_half)
        y += np.float32(1)
        y *= x
        y *= half
        return y

    return Call((site.variable("x"),), apply, rounds=True)


def _relu(site: _Site) -> Call:
    return Call((site.variable("x"),), lambda x: np.maximum(x, np.float32(0)), rounds=False)


def _reshape(site: _Site) -> Call:
    shape = site.shape
    return Call((site.variable("x"),), lambda x: x.reshape(shape), rounds=False)


def _transpose(site: _Site) -> Call:
    perm = site.numbers("perm")
    return Call((site.variable("x"),), lambda x: x.transpose(perm), rounds=False)


def _concat(site: _Site) -> Call:
    axis = int(site.constant("axis"))
    site.require(not site.constant("interleave", False), "an interleaved concat")
    return Call(site.variables("values"), lambda *xs: np.concatenate(xs, axis), rounds=False)


def _split(site: _Site) -> Call:
    axis = int(site.constant("axis"))
    ends = np.cumsum([t.shape[axis] for t in site.op.types])
    ranges = [(int(end) - t.shape[axis], int(end)) for end, t in zip(ends, site.op.types, strict=True)]
    rank = len(site.shape)
    parts = [tuple(slice(a, b) if i == axis % rank else slice(None) for i in range(rank)) for a, b in ranges]
    return Call((site.variable("x"),), lambda x: [x[part] for part in parts], rounds=False)


def _slice_by_index(site: _Site) -> Call:
    begin, end = site.numbers("begin"), site.numbers("end")
    count = len(begin)
    stride = np.ravel(site.constant("stride", [1] * count))
    begin_mask = np.ravel(site.constant("begin_mask", [False] * count))
    end_mask = np.ravel(site.constant("end_mask", [False] * count))
    squeeze = np.ravel(site.constant("squeeze_mask", [False] * count))
    index = tuple(
        begin[i]
        if squeeze[i]
        else slice(None if begin_mask[i] else begin[i], None if end_mask[i] else end[i], int(stride[i]))
        for i in range(count)
    )
    return Call((site.variable("x"),), lambda x: x[index], rounds=False)


def _cast(site: _Site) -> Call:
    dtype = site.constant("dtype")
    site.require(dtype in ("fp16", "fp32"), f"a cast to {dtype}")
    return Call((site.variable("x"),), lambda x: x.copy(), rounds=True)


MAKERS: Mapping[str, Callable[[_Site], Call]] = {
    "add": _binary(np.add),
    "cast": _cast,
    "concat": _concat,
    "conv": _conv,
    "einsum": _einsum,
    "gelu": _gelu,
    "layer_norm": _layer_norm,
    "mul": _binary(np.multiply),
    "real_div": _binary(np.divide),
    "reduce_mean": _reduce_mean,
    "relu": _relu,
    "reshape": _reshape,
    "rsqrt": _rsqrt,
    "slice_by_index": _slice_by_index,
    "softmax": _softmax,
    "split": _split,
    "sub": _binary(np.subtract),
    "transpose": _transpose,
}
"""MIL operation type -> its maker."""


def make_call(op: Operation, constants: Mapping[str, Any], types: Mapping[str, Tensor]) -> Call:
    """Compile one operation. Raises ProgramError naming it where it, or how it is used, is not supported."""
    maker = MAKERS.get(op.type)
    if maker is None:
        raise ProgramError(
            f"operation {op.type} ({op.outputs[0]}) is not one the virtual Mac runs: "
            f"{', '.join(sorted(MAKERS))}"
        )
    call = maker(_Site(op, constants, types))
    if not call.rounds or any(t.dtype != FLOAT16 for t in op.types):
        return call
    inner = call.apply

    def rounded(*args: NDArray[Any]) -> Float:
        return round_to_half(inner(*args))

    return Call(call.variables, rounded, rounds=True)
