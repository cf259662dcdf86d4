"""Runs a saved ML Program in NumPy: the virtual Neural Engine, and a reference executor of the built graph.

The program is compiled once to a list of calls over slots, with float32 constants. Arithmetic is float32;
every value the program types float16 is rounded to float16, exactly. Nothing here sleeps or fails on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_laya.virtual_mac.operations import make_call
from pytest_laya.virtual_mac.program import FLOAT16, FLOAT32, Parsed, ProgramError, Tensor, parse

_NUMPY = {FLOAT16: np.float16, FLOAT32: np.float32}


class Program:
    """A program ready to run.

    ``Program(path)`` reads a ``.mlpackage`` or a ``.mlmodelc`` of the virtual Mac. ``run`` may be called from
    several threads. Raises ProgramError for what it can't read or run, before anything runs.
    """

    def __init__(self, path: str | Path) -> None:
        from pytest_laya.virtual_mac.compiled import load_model

        spec, weights = load_model(str(path))
        self._prepare(parse(spec, weights))

    @classmethod
    def from_parsed(cls, parsed: Parsed) -> Program:
        """From a program already read."""
        made = cls.__new__(cls)
        made._prepare(parsed)
        return made

    def _prepare(self, parsed: Parsed) -> None:
        self.inputs: Mapping[str, Tensor] = parsed.inputs
        """Input name -> type and shape, in the program's order."""
        self.outputs: Mapping[str, Tensor] = parsed.outputs
        self.operation_types = frozenset(op.type for op in parsed.operations)
        self._slots = {name: index for index, name in enumerate(parsed.inputs)}
        types = dict(parsed.inputs)
        steps: list[tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = []
        for op in parsed.operations:
            call = make_call(op, parsed.constants, types)
            for name, tensor in zip(op.outputs, op.types, strict=True):
                types[name] = tensor
                self._slots[name] = len(self._slots)
            missing = [name for name in call.variables if name not in self._slots]
            if missing:
                raise ProgramError(
                    f"operation {op.type} ({op.outputs[0]}) reads {missing}, which nothing made"
                )
            outputs = tuple(self._slots[name] for name in op.outputs)
            steps.append((call.apply, tuple(self._slots[name] for name in call.variables), outputs))
        self._steps = tuple(steps)
        self._last_use = self._frees(steps)

    def _frees(self, steps: list[Any]) -> tuple[tuple[int, ...], ...]:
        """After each step, the slots nothing reads any more, so that a large program fits in memory."""
        kept = {self._slots[name] for name in self.outputs}
        last = {slot: at for at, (_, reads, _) in enumerate(steps) for slot in reads}
        frees: list[list[int]] = [[] for _ in steps]
        for slot, at in last.items():
            if slot not in kept:
                frees[at].append(slot)
        return tuple(tuple(f) for f in frees)

    def run(self, features: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Outputs by name, in the program's own types (float16 stays float16).

        ``features`` maps every input name to an array of its shape; values are rounded to the input's type.
        Raises ProgramError naming a missing input or a wrong shape.
        """
        slots: list[Any] = [None] * len(self._slots)
        for name, tensor in self.inputs.items():
            if name not in features:
                raise ProgramError(f"input {name} is missing")
            array = np.asarray(features[name])
            if array.shape != tensor.shape:
                raise ProgramError(f"input {name} has shape {array.shape}, not {tensor.shape}")
            if tensor.dtype == FLOAT16 and array.dtype != np.float16:
                array = array.astype(np.float16)
            slots[self._slots[name]] = array.astype(np.float32)
        with np.errstate(all="ignore"):
            for (apply, reads, writes), frees in zip(self._steps, self._last_use, strict=True):
                made = apply(*[slots[i] for i in reads])
                if len(writes) == 1 and not isinstance(made, list):
                    slots[writes[0]] = made
                else:
                    for slot, part in zip(writes, made, strict=True):
                        slots[slot] = part
                for slot in frees:
                    slots[slot] = None
            return {
                name: np.ascontiguousarray(slots[self._slots[name]].reshape(t.shape), _NUMPY[t.dtype])
                for name, t in self.outputs.items()
            }
