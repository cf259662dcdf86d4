"""Every call of coremltools in the package, held against the signatures of the installed version."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from artifact_files import ONE_HEAD, TWO_LAYERS
from checkpoint_files import write_checkpoint

import laya_apple
from laya_apple.artifacts.graph import GraphShape, build_graph
from laya_apple.checkpoint import open_checkpoint

PACKAGE = Path(laya_apple.__file__).parent
METHODS = {
    "predict": "coremltools.models.CompiledMLModel.predict",
    "get_spec": "coremltools.models.MLModel.get_spec",
    "get_compute_device_usage_for_mlprogram_operation": (
        "coremltools.models.compute_plan.MLComputePlan.get_compute_device_usage_for_mlprogram_operation"
    ),
    "get_estimated_cost_for_mlprogram_operation": (
        "coremltools.models.compute_plan.MLComputePlan.get_estimated_cost_for_mlprogram_operation"
    ),
}
"""Methods of coremltools objects that we call, by name."""


def _modules() -> dict[str, ast.Module]:
    sources = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    return {
        name: ast.parse(path.read_text(encoding="utf-8"))
        for name, path in sources.items()
        if name.startswith("artifacts/") or "coremltools" in path.read_text(encoding="utf-8")
    }


def _imports(tree: ast.Module) -> dict[str, str]:
    """Local name -> dotted coremltools name."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "coremltools":
                    names[alias.asname or "coremltools"] = alias.name if alias.asname else "coremltools"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "coremltools":
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        stem = _dotted(node.value, names)
        return f"{stem}.{node.attr}" if stem else None
    return None


def _resolve(dotted: str) -> Any:
    parts = dotted.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:size]))
        except ImportError:
            continue
        for part in parts[size:]:
            found = getattr(found, part)
        return found
    raise ImportError(dotted)


def _calls() -> Iterator[tuple[str, ast.Call, str]]:
    """(file:line, call, dotted name) of every call into coremltools but the MIL Builder's operations."""
    for name, tree in _modules().items():
        names = _imports(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            where = f"{name}:{node.lineno}"
            dotted = _dotted(node.func, names)
            if dotted is not None and ".Builder." not in dotted:
                yield where, node, dotted
            elif isinstance(node.func, ast.Attribute) and _is_theirs(node.func.attr, name):
                yield where, node, METHODS[node.func.attr]


def _is_theirs(method: str, module: str) -> bool:
    """``predict`` is a method of our own classes too, but not in the module that wraps coremltools'."""
    return method in METHODS and (method != "predict" or module == "artifacts/runtime.py")


CALLS = list(_calls())


@pytest.mark.parametrize(
    ("call", "dotted"), [(c, d) for _, c, d in CALLS], ids=[f"{w}:{d}" for w, _, d in CALLS]
)
def test_the_call_fits_the_signature(call: ast.Call, dotted: str) -> None:
    target = _resolve(dotted)
    signature = inspect.signature(target)
    arguments: list[object] = [object() for _ in call.args]
    owner = _resolve(dotted.rpartition(".")[0])
    if inspect.isclass(owner) and not inspect.ismethod(target):
        arguments.insert(0, object())  # self
    assert not any(keyword.arg is None for keyword in call.keywords)
    signature.bind(*arguments, **{str(keyword.arg): object() for keyword in call.keywords})


def test_these_are_all_the_calls_there_are() -> None:
    assert Counter(dotted for _, _, dotted in CALLS) == {
        "coremltools.convert": 1,
        "coremltools.models.utils.compile_model": 1,
        "coremltools.models.CompiledMLModel": 2,
        "coremltools.models.CompiledMLModel.predict": 1,
        "coremltools.models.MLModel.get_spec": 1,
        "coremltools.models.compute_plan.MLComputePlan.load_from_path": 1,
        METHODS["get_compute_device_usage_for_mlprogram_operation"]: 1,
        METHODS["get_estimated_cost_for_mlprogram_operation"]: 1,
    }


def test_every_other_name_we_take_from_coremltools_exists() -> None:
    for name, tree in _modules().items():
        names = _imports(tree)
        for node in ast.walk(tree):
            dotted = _dotted(node, names) if isinstance(node, ast.Attribute) else None
            if dotted is not None and not dotted.startswith("coremltools.libcoremlpython"):
                assert _resolve(dotted) is not None, (name, dotted)


def test_only_four_modules_import_coremltools() -> None:
    importing = {name for name, tree in _modules().items() if _imports(tree)}
    assert importing == {f"artifacts/{name}.py" for name in ("convert", "graph", "probe", "runtime")}


def test_every_operation_the_builder_is_asked_for_is_built_by_the_tests(tmp_path: Path) -> None:
    # The Builder checks an operation's arguments when it makes it, so making each one is the check.
    folder = write_checkpoint(tmp_path / "c", encoder={**TWO_LAYERS, "norm_bias": True}, agent=ONE_HEAD)
    checkpoint = open_checkpoint(folder)
    made = set()
    for spelling in ("decomposed", "op"):
        graph = build_graph(GraphShape.of(checkpoint, 64, spelling), checkpoint.tensors())
        made |= {operation.op_type for operation in graph.program.functions["main"].operations}
    asked = {
        node.func.attr
        for node in ast.walk(_modules()["artifacts/graph.py"])
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            (isinstance(node.func.value, ast.Name) and node.func.value.id == "mb")
            or (isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "mb")
        )
    }
    assert asked - {"program", "TensorSpec"} == made


def test_compute_units_other_than_cpu_and_ne_are_named_in_the_probe_alone() -> None:
    named = Counter()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and _ends_with(node.value, "ComputeUnit"):
                named[path.relative_to(PACKAGE).as_posix(), node.attr] += 1
    assert named == {
        ("artifacts/runtime.py", "CPU_AND_NE"): 2,
        ("artifacts/probe.py", "CPU_ONLY"): 1,
    }


def _ends_with(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name
