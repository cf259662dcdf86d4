"""The layout's rules: arrows point down, importing is cheap, every except clause says why."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEAVY = (
    "mlx",
    "coremltools",
    "transformers",
    "numpy",
    "torch",
    "tokenizers",
    "huggingface_hub",
    "jsonschema",
)

# Package -> what it may not import.
FORBIDDEN = {
    "laya_apple": ("pytest_laya", "pytest", "fixtures", "suites", "benchmarks"),
    "laya_apple.prompt": (
        "laya_apple.backends",
        "laya_apple.routing",
        "laya_apple.execution",
        "laya_apple.demos",
    ),
    "laya_apple.models": (
        "laya_apple.backends",
        "laya_apple.routing",
        "laya_apple.execution",
        "laya_apple.demos",
    ),
    "laya_apple.routing": ("laya_apple.backends", "laya_apple.execution", "laya_apple.demos"),
    "laya_apple.backends": (
        "laya_apple.routing",
        "laya_apple.execution",
        "laya_apple.demos",
        "laya_apple.cli",
    ),
    "laya_apple.artifacts": ("laya_apple.execution", "laya_apple.demos", "laya_apple.cli"),
    "laya_apple.parity": ("laya_apple.routing", "laya_apple.execution", "laya_apple.demos", "laya_apple.cli"),
    "laya_apple.execution": ("laya_apple.demos", "laya_apple.cli"),
    "laya_apple.demos": ("laya_apple.backends", "laya_apple.models", "laya_apple.cli"),
}

TAGS = ("reraise:", "closed:", "warned:", "cleanup:")

LONGEST_MODULE_LINES = 450


def modules(package):
    folder = ROOT / package.replace(".", "/")
    return sorted(path for path in folder.rglob("*.py") if path.is_file())


def runtime_imports(path):
    """(line, absolute name) of every import but those under ``if TYPE_CHECKING``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for block in [node for node in ast.walk(tree) if isinstance(node, ast.If)]:
        if "TYPE_CHECKING" in ast.dump(block.test):
            block.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide where an arrow points"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_arrows_point_down(package):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules(package)
        for line, name in runtime_imports(path)
        if any(name == other or name.startswith(other + ".") for other in FORBIDDEN[package])
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "unloaded"),
    [
        ("laya_apple", HEAVY),
        ("laya_apple.cli", HEAVY),
        ("pytest_laya.plugin", (*HEAVY, "laya_apple", "pytest_laya.virtual_mac")),
        ("pytest_laya.virtual_mac", (*HEAVY, "laya_apple")),
    ],
)
def test_importing_loads_nothing_heavy(module, unloaded):
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    # -I: no user site, no PYTHONPATH, so only what the import itself asks for is loaded.
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert module in loaded
    assert loaded.intersection(unloaded) == set()


def test_every_except_clause_says_why():
    untagged = []
    for path in modules("laya_apple"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.ExceptHandler):
                _, _, comment = lines[node.lineno - 1].partition("# ")
                if not comment.startswith(TAGS) or not comment.partition(":")[2].strip():
                    untagged.append(
                        f"{path.relative_to(ROOT)}:{node.lineno}: {lines[node.lineno - 1].strip()}"
                    )
    assert untagged == []


@pytest.mark.parametrize("package", ["laya_apple", "pytest_laya"])
def test_no_module_does_two_jobs(package):
    long = {
        str(path.relative_to(ROOT)): count
        for path in modules(package)
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST_MODULE_LINES
    }
    assert long == {}
