"""The audit's censuses, taken from the source of ``laya_apple``: who catches, who decides.

Both walk the syntax tree, so a comment in a string or a docstring counts for nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAGS = ("reraise", "closed", "warned", "cleanup")
_TAG = re.compile(r"#\s*(\w+): (\S.*)$")
_ROWS = re.compile(r"\brows? (\d+(?:(?:, | and )\d+)*)")
RELEASING = frozenset({"close", "stop", "abandon", "release", "__del__", "__exit__"})
"""Functions in which ``cleanup`` is allowed: they cannot change where a request runs."""
WARNERS = frozenset({"warn", "warn_caller", "warn_from_thread", "disable", "print", "_lose_ane"})

UNITS = re.compile(r"\b(?:CPU_ONLY|CPU_AND_GPU|CPU_AND_NE)\b|^ALL$|^MLComputeUnits\w+$")
KINDS: Mapping[str, frozenset[str]] = {
    "device": frozenset({"auto", "gpu", "ane", "cpu", "mlx", "coreml"}),
    "precision": frozenset({"float16", "float32", "fp16"}),
}
_BUCKET_NAMES = frozenset(
    {
        "fitting_bucket",
        "previous_bucket",
        "row_buckets",
        "buckets_of",
        "_BUCKETS",
        "ane_buckets",
        "auto_buckets",
    }
)


@dataclass(frozen=True)
class Except:
    """One place that catches an exception."""

    file: str
    line: int
    where: str
    """Qualified name of the function; empty at module level."""
    tag: str
    """One of TAGS, or empty."""
    reason: str
    rows: tuple[int, ...]
    acts: bool
    """Whether the handler warns, raises or records something."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def to_dict(self) -> dict[str, Any]:
        """As audit.json lists it."""
        return {
            "file": self.file,
            "line": self.line,
            "where": self.where,
            "tag": self.tag,
            "reason": self.reason,
            "rows": list(self.rows),
        }


@dataclass(frozen=True)
class Decision:
    """One function that names devices, compute units, buckets or precisions."""

    file: str
    line: int
    where: str
    kind: str
    """``device``, ``compute units``, ``bucket`` or ``precision``."""
    names: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def to_dict(self, rows: Sequence[int]) -> dict[str, Any]:
        """As audit.json lists it, with the rows that cover it."""
        return {
            "file": self.file,
            "line": self.line,
            "where": self.where,
            "kind": self.kind,
            "names": list(self.names),
            "rows": list(rows),
        }


@dataclass(frozen=True)
class Source:
    """One module's text and tree."""

    file: str
    """Path below the package, with ``/``."""
    lines: tuple[str, ...]
    tree: ast.Module


def package_folder() -> Path:
    """The folder of the installed ``laya_apple``."""
    import laya_apple

    return Path(laya_apple.__file__).parent


def sources(package: Path) -> list[Source]:
    """Every module below ``package``."""
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(package).as_posix()
        found.append(Source(name, tuple(text.splitlines()), ast.parse(text)))
    return found


def excepts(modules: Iterable[Source]) -> list[Except]:
    """Every ``except`` clause and every ``suppress`` block."""
    found = []
    for module in modules:
        for where, node in _scoped(module.tree):
            if isinstance(node, ast.ExceptHandler):
                found.append(_except(module, where, node.lineno, node.body))
            elif isinstance(node, ast.With):
                for item in node.items:
                    call = item.context_expr
                    if isinstance(call, ast.Call) and _name(call.func) == "suppress":
                        found.append(_except(module, where, node.lineno, []))
    return found


def except_problems(found: Iterable[Except]) -> list[str]:
    """What breaks the tags' rules, each with its place."""
    problems = []
    for one in found:
        if one.tag not in TAGS:
            problems.append(f"{one.place}: an exception is caught without a tag ({', '.join(TAGS)}: reason)")
        elif one.tag == "warned" and not one.rows:
            problems.append(f"{one.place}: 'warned' names no row of the audit")
        elif one.tag == "warned" and not one.acts:
            problems.append(f"{one.place}: 'warned' neither warns nor records anything")
        elif one.tag == "cleanup" and one.where.rpartition(".")[2].lstrip("_") not in {
            name.strip("_") for name in RELEASING
        }:
            problems.append(f"{one.place}: 'cleanup' outside of close, __del__ and release code")
    return problems


def decisions(modules: Iterable[Source]) -> list[Decision]:
    """Every function (or module level) that names a device, compute unit, bucket or precision."""
    found: dict[tuple[str, str, str], tuple[int, dict[str, None]]] = {}
    for module in modules:
        for where, node in _scoped(module.tree):
            for kind, name in _named(node):
                entry = found.setdefault((module.file, where, kind), (node.lineno, {}))
                entry[1].setdefault(name)
    return [
        Decision(file, line, where, kind, tuple(names))
        for (file, where, kind), (line, names) in sorted(
            found.items(), key=lambda one: (one[0][0], one[1][0])
        )
    ]


def units(modules: Iterable[Source]) -> list[tuple[str, str, str, int]]:
    """Every literal compute unit: (file, where, name, line), one entry a mention."""
    found = []
    for module in modules:
        for where, node in _scoped(module.tree):
            for kind, name in _named(node):
                if kind == "compute units":
                    found.append((module.file, where, name, node.lineno))
    return found


def unit_problems(
    found: Iterable[tuple[str, str, str, int]], allowed: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Mentions beyond those that ``audit.toml`` allows, each with its place."""
    left = {(one["file"], one["where"], one["name"]): one["times"] for one in allowed}
    problems = []
    for file, where, name, line in found:
        key = (file, where, name)
        left[key] = left.get(key, 0) - 1
        if left[key] < 0:
            problems.append(f"{file}:{line}: a literal compute unit, {name}, that the audit does not list")
    gone = [
        f"{file}: {name} in {where or 'the module'} is listed and gone"
        for (file, where, name), n in left.items()
        if n > 0
    ]
    return problems + gone


def rows_of(decision: Decision, covers: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """The audit's rows that cover a decision: those of the longest matching ``file`` of ``[[covers]]``."""
    best: Mapping[str, Any] = {}
    for one in covers:
        if decision.file.startswith(one["file"]) and len(one["file"]) > len(best.get("file", "")):
            best = one
    return tuple(best.get("rows", ()))


def reasons(modules: Iterable[Source]) -> set[str]:
    """Every routing reason that the source can give: literals of ``Decision(…, reason)`` and their like."""
    found = set()
    for module in modules:
        for _, node in _scoped(module.tree):
            if isinstance(node, ast.Call) and _name(node.func) == "Decision" and len(node.args) == 2:
                found.update(_text(node.args[1]))
            elif isinstance(node, ast.Assign) and _name(node.targets[0]) in ("Unavailable", "NO_QUESTIONS"):
                for inner in ast.walk(node.value):
                    found.update(_text(inner))
    return found


def _except(module: Source, where: str, line: int, body: Sequence[ast.stmt]) -> Except:
    match = _TAG.search(module.lines[line - 1])
    tag, reason = match.groups() if match else ("", "")
    numbers = [int(n) for group in _ROWS.findall(reason) for n in re.findall(r"\d+", group)]
    return Except(module.file, line, where, tag if tag in TAGS else "", reason, tuple(numbers), _acts(body))


def _acts(body: Sequence[ast.stmt]) -> bool:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _name(node.func) in WARNERS:
                return True
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets
            ):
                return True
    return False


def _scoped(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Every node with the qualified name of the function or class it is in; docstrings left out."""

    def walk(node: ast.AST, where: str) -> Iterator[tuple[str, Any]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{where}.{child.name}" if where else child.name
                yield where, child
                yield from walk(child, inner)
            else:
                yield where, child
                yield from walk(child, where)

    return walk(tree, "")


def _named(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        for match in UNITS.finditer(node.value):
            yield "compute units", match.group()
        for kind, names in KINDS.items():
            if node.value in names:
                yield kind, node.value
    elif isinstance(node, ast.Attribute):
        if UNITS.search(node.attr):
            yield "compute units", node.attr
        elif node.attr in KINDS["precision"]:
            yield "precision", node.attr
    if isinstance(node, ast.Name | ast.Attribute):
        name = _name(node)
        if name in _BUCKET_NAMES:
            yield "bucket", name


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST) -> list[str]:
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
