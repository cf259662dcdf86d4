"""``laya-apple parity``: the gate from the command line, its verdict as an exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from laya_apple.artifacts.build import goldens_path
from laya_apple.cli import main
from laya_apple.registry import resolve

CPU = ["parity", "--model", "laya-mini", "--device", "cpu"]


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """The shipped goldens, but for all cases save three."""
    document = json.loads(goldens_path(resolve("laya-mini")).read_text(encoding="utf-8"))
    document["cases"] = document["cases"][:3]
    path = tmp_path / "goldens.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_model_that_holds(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CPU, "--dtype", "float32", "--goldens", str(short)]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(
        r"laya-mini float32: \d+ rows, largest difference \S+ of 0.0001 allowed.*, on cpu\n", out
    )


def test_answers_that_are_not_upstreams_are_exit_1(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(short.read_text(encoding="utf-8"))
    row = document["cases"][0]["rows"][0]
    row["act_probability"] = 1.0 - row["act_probability"] if abs(row["act_probability"] - 0.5) > 0.05 else 0.9
    short.write_text(json.dumps(document), encoding="utf-8")
    assert main([*CPU, "--goldens", str(short), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["model"], report["device"], report["passed"]) == ("laya-mini", "cpu", False)
    assert report["out_of_tolerance"]["count"] == 1


def test_without_goldens_nothing_is_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CPU, "--goldens", str(tmp_path / "none.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"laya-apple: no goldens at {tmp_path / 'none.json'}; make it with ")
