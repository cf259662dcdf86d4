"""--laya-update-goldens and --laya-update-new-goldens: upstream makes them, and a red run changes nothing."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = ROOT / "fixtures" / "checkpoints" / "window16"

PARITY = f"""
    def test_parity(laya_goldens):
        assert laya_goldens.gate("{CHECKPOINT}", "window16", device="cpu", dtype="float32").passed
"""
BROKEN = PARITY + "\n    def test_other(laya_conditions): assert False\n"


@pytest.fixture
def some_python(monkeypatch):
    """A reference environment that is one in name only; a run that uses it fails."""
    monkeypatch.setenv("LAYA_REFERENCE_PYTHON", sys.executable)


def test_a_red_run_leaves_goldens_as_they_are(inner, some_python):
    before = (ROOT / "fixtures" / "goldens" / "window16.json").read_bytes()
    result = inner(BROKEN, "--laya-update-goldens")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["FAIL    laya-goldens *: left as they are, since these failed: test_inner.py::test_other"]
    )
    assert (ROOT / "fixtures" / "goldens" / "window16.json").read_bytes() == before


def test_a_run_without_a_gate_makes_nothing(inner, some_python):
    result = inner("def test_it(laya_conditions): pass", "--laya-update-goldens")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["UNKNOWN laya-goldens *: no parity gate ran, so there is nothing to *"])


@pytest.mark.parametrize("option", ["--laya-update-goldens", "--laya-update-new-goldens"])
def test_without_upstream_it_is_refused(inner, monkeypatch, option):
    monkeypatch.delenv("LAYA_REFERENCE_PYTHON", raising=False)
    monkeypatch.setitem(sys.modules, "laya", None)  # as where it is not installed
    result = inner(PARITY, option, subprocess=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: goldens come from upstream laya, which is not installed here; pip install *"]
    )


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A copy of the tree that inner runs import from, so that no test writes into this one."""
    if not os.environ.get("LAYA_REFERENCE_PYTHON") and importlib.util.find_spec("laya") is None:
        pytest.fail("upstream laya is missing; pip install 'laya-apple[reference]'")
    copy = tmp_path / "clone"
    for name in ("laya_apple", "pytest_laya", "fixtures", "suites"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PYTHONPATH", str(copy))
    return copy


def goldens(root):
    return {path.name: path.read_bytes() for path in (root / "fixtures" / "goldens").glob("*.json")}


@pytest.mark.laya_slow
def test_the_same_upstream_makes_the_same_goldens(inner, clone):
    result = inner(PARITY, "--laya-update-goldens", subprocess=True)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["PASS    laya-goldens *: window16: * cases, unchanged"])
    assert goldens(clone) == goldens(ROOT)


@pytest.mark.laya_slow
def test_missing_goldens_are_made_and_no_other_is_touched(inner, clone):
    (clone / "fixtures" / "goldens" / "window16.json").unlink()
    kept = goldens(clone)
    result = inner(PARITY, "--laya-update-new-goldens", subprocess=True)
    result.assert_outcomes(passed=1)
    made = goldens(clone)
    assert made.pop("window16.json")
    assert made == kept
