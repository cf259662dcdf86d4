"""The compute plan: a model's structure in Core ML Tools' own dataclasses, and where each operation goes.

Policy: a float16 operation of a type the Neural Engine runs prefers it; everything else prefers the CPU.
Constants have no device. Faults move operations, or leave them without a device.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_laya.virtual_mac.faults import standing
from pytest_laya.virtual_mac.operations import MAKERS
from pytest_laya.virtual_mac.program import FLOAT16, tensor_of

NEURAL_ENGINE_OPERATIONS = frozenset(MAKERS) - {"cast"}

_OPSET_PREFIX = {
    "CoreML5": "ios15.",
    "CoreML6": "ios16.",
    "CoreML7": "ios17.",
    "CoreML8": "ios18.",
    "CoreML9": "ios26.",
}
_NE, _CPU, _GPU = "MLNeuralEngineComputeDevice", "MLCPUComputeDevice", "MLGPUComputeDevice"


class _MLModelStructureProgramOperationProxy:
    """What Core ML Tools treats as an opaque handle of one operation."""

    __slots__ = ("dtypes", "flops", "type")

    def __init__(self, type_: str, dtypes: tuple[int, ...], flops: int) -> None:
        self.type, self.dtypes, self.flops = type_, dtypes, flops


class _MLModelStructureNeuralNetworkLayerProxy:
    """Named by the bridge; ML Programs have no layers."""


class _MLCPUComputeDeviceProxy:
    """Handle of the CPU."""


class _MLGPUComputeDeviceProxy:
    """Handle of the GPU."""


class _MLNeuralEngineComputeDeviceProxy:
    """Handle of the Neural Engine."""

    def get_total_core_count(self) -> int:
        return 16


_DEVICE_PROXIES: dict[str, type] = {
    _NE: _MLNeuralEngineComputeDeviceProxy,
    _CPU: _MLCPUComputeDeviceProxy,
    _GPU: _MLGPUComputeDeviceProxy,
}


def compute_devices() -> list[Any]:
    """Every device of the machine, in Core ML Tools' classes."""
    return [_device(name) for name in (_CPU, _GPU, _NE)]


def _device(name: str) -> Any:
    module = importlib.import_module("coremltools.models.compute_device")
    return getattr(module, name)(_DEVICE_PROXIES[name]())


def _structures() -> Any:
    return importlib.import_module("coremltools.models.compute_plan")


def model_structure(spec: Any) -> Any:
    """Core ML Tools' ``MLModelStructure`` of a specification."""
    classes = _structures()
    if spec.WhichOneof("Type") != "mlProgram":
        return classes.MLModelStructure(None, None, None)
    functions = {}
    for name, function in spec.mlProgram.functions.items():
        prefix = _OPSET_PREFIX.get(function.opset, "")
        block = _block(classes, function.block_specializations[function.opset], prefix)
        functions[name] = classes.MLModelStructureProgramFunction(_named(classes, function.inputs), block)
    return classes.MLModelStructure(None, classes.MLModelStructureProgram(functions), None)


def _named(classes: Any, values: Any) -> list[Any]:
    kind = classes.MLModelStructureProgramValueType
    return [classes.MLModelStructureProgramNamedValueType(v.name, kind()) for v in values]


def _block(classes: Any, block: Any, prefix: str) -> Any:
    sizes: dict[str, int] = {}
    operations = []
    for op in block.operations:
        types = [tensor_of(o.type) for o in op.outputs]
        sizes.update({o.name: math.prod(t.shape) for o, t in zip(op.outputs, types, strict=True)})
        proxy = _MLModelStructureProgramOperationProxy(
            op.type, tuple(t.dtype for t in types), _flops(op, types[0].shape, sizes)
        )
        operations.append(
            classes.MLModelStructureProgramOperation(
                {name: _argument(classes, a) for name, a in op.inputs.items()},
                op.type if op.type == "const" else prefix + op.type,
                _named(classes, op.outputs),
                [_block(classes, inner, prefix) for inner in op.blocks],
                proxy,
            )
        )
    return classes.MLModelStructureProgramBlock(
        _named(classes, block.inputs), operations, list(block.outputs)
    )


def _argument(classes: Any, argument: Any) -> Any:
    binding, value = classes.MLModelStructureProgramBinding, classes.MLModelStructureProgramValue
    return classes.MLModelStructureProgramArgument(
        [
            binding(a.name, None) if a.WhichOneof("binding") == "name" else binding(None, value())
            for a in argument.arguments
        ]
    )


def _flops(op: Any, shape: Sequence[int], sizes: dict[str, int]) -> int:
    """Multiply-adds of a convolution, elements of anything else: what the relative costs are made from."""
    elements = math.prod(shape)
    if op.type == "conv":
        weights = sizes.get(op.inputs["weight"].arguments[0].name, 1)
        return weights * elements // max(1, shape[1])
    return elements


@dataclass(frozen=True)
class Policy:
    """Where operations of one load prefer to run."""

    compute_units: str
    bucket: int | None

    def place(self, op: _MLModelStructureProgramOperationProxy) -> tuple[str, list[str]] | None:
        """(preferred, supported) device class names; None for constants, and where a fault says so."""
        if op.type == "const" or op.type.startswith("constexpr_"):
            return None
        if _named_by("plan_without_device", self.bucket, op.type):
            return None
        if self.compute_units == "CPU_ONLY":
            return _CPU, [_CPU]
        if _named_by("ops_on_cpu", self.bucket, op.type):
            return _CPU, [_CPU]
        if _named_by("ops_on_gpu", self.bucket, op.type):
            return _GPU, [_GPU, _CPU]
        if op.type in NEURAL_ENGINE_OPERATIONS and all(d == FLOAT16 for d in op.dtypes):
            return (_NE, [_NE, _CPU]) if self.compute_units != "CPU_AND_GPU" else (_GPU, [_GPU, _CPU])
        return _CPU, [_CPU]


def _named_by(fault_name: str, bucket: int | None, op_type: str) -> bool:
    fault = standing(fault_name, bucket)
    return fault is not None and op_type in fault.args["ops"]


class _MLComputePlanProxy:
    """What ``MLComputePlan`` asks: the structure, and each operation's device and share of the cost."""

    def __init__(self, structure: Any = None, policy: Policy | None = None) -> None:
        self._structure, self._policy = structure, policy
        self._total = 0
        if structure is not None and structure.program is not None:
            blocks = [f.block for f in structure.program.functions.values()]
            self._total = sum(
                op.__proxy__.flops for b in blocks for op in b.operations if op.__proxy__.type != "const"
            )

    @property
    def model_structure(self) -> Any:
        return self._structure

    def get_compute_device_usage_for_mlprogram_operation(self, operation: Any) -> Any:
        placed = self._place(operation)
        if placed is None:
            return None
        preferred, supported = placed
        usage = _structures().MLComputePlanDeviceUsage
        return usage(_device(preferred), [_device(name) for name in supported])

    def get_compute_device_usage_for_neuralnetwork_layer(self, layer: Any) -> Any:
        return None

    def get_estimated_cost_for_mlprogram_operation(self, operation: Any) -> Any:
        if self._place(operation) is None:
            return None
        return _structures().MLComputePlanCost(operation.__proxy__.flops / max(1, self._total))

    def _place(self, operation: Any) -> tuple[str, list[str]] | None:
        proxy = operation.__proxy__
        if not isinstance(proxy, _MLModelStructureProgramOperationProxy) or self._policy is None:
            raise RuntimeError("Unable to cast Python instance to an operation of this plan")
        return self._policy.place(proxy)
