"""Mutations: each deletes one guard of ``laya_apple`` in a copy, where a pin of the guard's row must fail.

A mutation is data in ``audit_mutations.toml``. Nothing of this process is changed: a mutant is a copy of the
package and of the audit's suite in a folder of its own, run by a pytest of its own.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

SMOKE = "audit/test_smoke.py"
AT_ONCE = 2
"""Mutants that run at a time."""
TIMEOUT_S = 240.0
TEST_TIMEOUT_S = 90.0
COPY_VARIABLE = "LAYA_AUDIT_COPY"
PREBUILT_VARIABLE = "LAYA_AUDIT_PREBUILT"


class AnchorError(Exception):
    """A mutation's snippet is not in its function exactly once: the code has moved on, so must it."""


@dataclass(frozen=True)
class Mutation:
    """One guard taken away."""

    name: str
    row: int
    file: str
    """Module below ``laya_apple``."""
    where: str
    """Qualified name of the function or class; empty for the module."""
    find: str
    replace: str
    pin: str
    """Node id below the suites' folder of the row's test that must fail."""


@dataclass(frozen=True)
class Outcome:
    """What a copy's run came to: test -> ``passed``, ``failed`` (in its call), ``error`` or ``skipped``."""

    tests: Mapping[str, str]
    output: str

    def smoke_passed(self) -> bool:
        """Whether every smoke test ran and passed."""
        smoke = [outcome for test, outcome in self.tests.items() if test.startswith(SMOKE)]
        return bool(smoke) and set(smoke) == {"passed"}


@lru_cache(maxsize=1)
def mutations() -> tuple[Mutation, ...]:
    """Every mutation of ``audit_mutations.toml``."""
    text = resources.files("pytest_laya").joinpath("audit_mutations.toml").read_text(encoding="utf-8")
    return tuple(
        Mutation(
            name=f"row{one['row']}-{one['name']}",
            row=one["row"],
            file=one["file"],
            where=one["where"],
            find=one["find"],
            replace=one["replace"],
            pin=one["pin"],
        )
        for one in tomllib.loads(text)["mutation"]
    )


def mutated(text: str, mutation: Mutation) -> str:
    """The module's text with the mutation applied. Raises AnchorError unless the snippet is there once."""
    lines = text.splitlines(keepends=True)
    first, last = 0, len(lines)
    if mutation.where:
        node = _find(ast.parse(text), mutation.where.split("."))
        if node is None:
            raise AnchorError(f"{mutation.name}: laya_apple/{mutation.file} has no {mutation.where}")
        first, last = node.lineno - 1, node.end_lineno or node.lineno
    scope = "".join(lines[first:last])
    times = scope.count(mutation.find)
    if times != 1:
        raise AnchorError(
            f"{mutation.name}: the snippet is {times} times in {mutation.where or 'the module'} of "
            f"laya_apple/{mutation.file}, not once: {mutation.find!r}"
        )
    return "".join(lines[:first]) + scope.replace(mutation.find, mutation.replace) + "".join(lines[last:])


def _find(
    tree: ast.AST, names: Sequence[str]
) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None:
    for child in ast.iter_child_nodes(tree):
        if (
            isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and child.name == names[0]
        ):
            return child if len(names) == 1 else _find(child, names[1:])
    return None


class Bench:
    """Runs copies of the package below ``folder``, two at a time.

    ``package``: the folder of ``laya_apple``; ``suites``: the folder that holds ``audit``; ``prebuilt``: a
    cache with the audit's artifacts, which every copy uses.
    """

    def __init__(self, folder: Path, package: Path, suites: Path, prebuilt: Path) -> None:
        self._folder = folder
        self._package = package
        self._suites = suites
        self._prebuilt = prebuilt
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="laya-mutant")
        self._running: dict[str, Future[Outcome]] = {}

    def unmutated(self, pins: Iterable[str]) -> Outcome:
        """The run of a copy in which nothing was changed."""
        return self._run("unmutated", None, sorted(set(pins)))

    def start(self, chosen: Iterable[Mutation]) -> None:
        """Queue the runs of these mutants."""
        for mutation in chosen:
            self._running[mutation.name] = self._pool.submit(
                self._run, mutation.name, mutation, [mutation.pin]
            )

    def outcome(self, mutation: Mutation) -> Outcome:
        """The run of this mutant; waits for it."""
        return self._running[mutation.name].result()

    def close(self) -> None:
        """Start no further mutant."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, name: str, mutation: Mutation | None, pins: Sequence[str]) -> Outcome:
        root = self._folder / name
        self._copy(root)
        if mutation is not None:
            place = root / "laya_apple" / mutation.file
            text = mutated(place.read_text(encoding="utf-8"), mutation)
            place.unlink()  # a link to the original
            place.write_text(text, encoding="utf-8")
        try:
            return _pytest(root, [SMOKE, *pins], self._prebuilt, TIMEOUT_S if mutation else 3 * TIMEOUT_S)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _copy(self, root: Path) -> None:
        """Links, not copies: files and compiled modules keep their times, so nothing is compiled again."""
        import pytest_laya

        plugin = Path(pytest_laya.__file__).parent
        _link(self._package, root / "laya_apple")
        _link(plugin, root / "pytest_laya", left_out=("suites",))
        _link(self._suites / "audit", root / "suites" / "audit")
        (root / "suites" / "__init__.py").write_text("", encoding="utf-8")
        (root / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n", encoding="utf-8")


def _link(source: Path, destination: Path, left_out: Sequence[str] = ()) -> None:
    def place(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except OSError:
            shutil.copy2(one, other)

    shutil.copytree(source, destination, copy_function=place, ignore=shutil.ignore_patterns(*left_out))


def _pytest(root: Path, tests: Sequence[str], prebuilt: Path, timeout_s: float) -> Outcome:
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--laya-platform", "virtual",
        "--laya-audit", "off", "--laya-out", "out", "--junitxml", "junit.xml",
        "-o", f"laya_timeout={TEST_TIMEOUT_S:g}", *(f"suites/{test}" for test in tests),
    ]  # fmt: skip
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LAYA_", "COV_"))
    }
    environment |= {
        "PYTHONPATH": str(root),
        COPY_VARIABLE: str(root),
        PREBUILT_VARIABLE: str(prebuilt),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(root),
    }
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return Outcome({}, f"it took longer than {timeout_s:g} s")
    report = root / "junit.xml"
    found = _read(report) if report.is_file() else {}
    return Outcome(found, (done.stdout + done.stderr)[-4000:])


def _read(report: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        module = case.get("classname", "").split(".")
        test = f"audit/{module[-1]}.py::{case.get('name')}"
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcome = "passed"
        if "failure" in kinds:
            outcome = "failed"
        elif kinds:
            outcome = "error" if "error" in kinds else "skipped"
        found[test] = outcome
    return found
