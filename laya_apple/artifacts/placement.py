"""Where Core ML's compute plan places the operations of a compiled model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laya_apple.artifacts.runtime import COMPUTE_UNITS, read_compute_plan

_DEVICES = {
    "MLNeuralEngineComputeDevice": "ane",
    "MLGPUComputeDevice": "gpu",
    "MLCPUComputeDevice": "cpu",
}
_LISTED = 8


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """The compute plan in numbers. Operations that hold constants are not counted."""

    ane: int
    gpu: int
    cpu: int
    unplaced: tuple[str, ...]
    """Operations for which the plan names no device."""
    elsewhere: tuple[str, ...]
    """Operations whose preferred device is not the Neural Engine."""
    transitions: int
    """Changes of device from one operation to the next."""
    cost_share: dict[str, float] | None
    """Device -> share of the estimated cost; None when the plan gives no costs."""

    @property
    def passed(self) -> bool:
        """True when every operation prefers the Neural Engine."""
        return self.ane > 0 and not (self.unplaced or self.elsewhere or self.transitions)

    def why(self) -> str:
        """What is wrong, for an error message; empty when nothing is."""
        parts = []
        if self.unplaced:
            parts.append(f"no device for {_listing(self.unplaced)}")
        if self.elsewhere:
            parts.append(f"not on the Neural Engine: {_listing(self.elsewhere)}")
        if self.transitions:
            parts.append(f"{self.transitions} changes of device")
        if not self.ane and not parts:
            parts.append("the plan holds no operation")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The manifest's ``placement``."""
        return {
            "compute_units": COMPUTE_UNITS,
            "ops": {"ane": self.ane, "gpu": self.gpu, "cpu": self.cpu},
            "unplaced": list(self.unplaced),
            "cost_share": self.cost_share,
            "transitions": self.transitions,
        }


def inspect_placement(model: Path) -> PlacementReport:
    """Read the compute plan of the compiled model at ``model`` for CPU_AND_NE.

    The plan is a separate static compile: it says nothing about a model that is loaded (``probe`` does).
    Raises ArtifactError when Core ML gives no plan.
    """
    plan = read_compute_plan(model)
    program = plan.model_structure.program
    placed: list[tuple[str, str]] = []
    unplaced: list[str] = []
    costs: dict[str, float] = {"ane": 0.0, "gpu": 0.0, "cpu": 0.0}
    has_costs = True
    for operation in _operations(program.functions.values() if program is not None else ()):
        usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
        if usage is None:
            if not _is_constant(operation.operator_name):
                unplaced.append(_describe(operation))
            continue
        device = _DEVICES.get(type(usage.preferred_compute_device).__name__, "cpu")
        placed.append((device, _describe(operation)))
        cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
        if cost is None:
            has_costs = False
        else:
            costs[device] += float(cost.weight)
    devices = [device for device, _ in placed]
    total = sum(costs.values())
    return PlacementReport(
        ane=devices.count("ane"),
        gpu=devices.count("gpu"),
        cpu=devices.count("cpu"),
        unplaced=tuple(unplaced),
        elsewhere=tuple(f"{name} on {device}" for device, name in placed if device != "ane"),
        transitions=sum(a != b for a, b in itertools.pairwise(devices)),
        cost_share={k: v / total for k, v in costs.items()} if has_costs and total > 0 else None,
    )


def _operations(functions: Iterable[Any]) -> Iterator[Any]:
    blocks = [function.block for function in functions]
    while blocks:
        for operation in blocks.pop(0).operations:
            yield operation
            blocks.extend(operation.blocks)


def _is_constant(operator: str) -> bool:
    name = operator.rpartition(".")[2]
    return name == "const" or name.startswith("constexpr_")


def _describe(operation: Any) -> str:
    outputs = ", ".join(output.name for output in operation.outputs)
    return f"{operation.operator_name} ({outputs})"


def _listing(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_LISTED])
    return f"{len(names)} operations: {shown}" + (", …" if len(names) > _LISTED else "")
