"""The committed fixtures are what their recipes write in the reference environment (slow tier: torch)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fixtures.goldens.paths import SHIPPED, checkpoint_path, names
from laya_apple.config import CHECKPOINT_FILES
from suites.parity.reference_client import reference_python

ROOT = Path(__file__).parents[2]
STEPS = 4

pytestmark = pytest.mark.laya_slow


def recipe(*arguments: str) -> str:
    """Run a recipe's module in the reference environment and return what it printed."""
    done = subprocess.run(
        [reference_python(), "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in CHECKPOINT_FILES}


def test_parity_checkpoints_come_out_byte_equal(tmp_path: Path) -> None:
    recipe("fixtures.checkpoints.recipe", "--out", str(tmp_path))
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == [name for name in names() if name != SHIPPED]
    for name in made:
        assert files(tmp_path / name) == files(checkpoint_path(name))


def test_goldens_come_out_unchanged() -> None:
    printed = recipe("fixtures.goldens", "--check")
    assert [line.rpartition(", ")[2] for line in printed.splitlines()] == ["unchanged"] * len(names())


def test_training_is_deterministic(tmp_path: Path) -> None:
    for run in ("one", "two"):
        recipe("fixtures.laya_mini.train", "--steps", str(STEPS), "--out", str(tmp_path / run))
    one = files(tmp_path / "one")
    assert one == files(tmp_path / "two")
    committed = files(checkpoint_path(SHIPPED))
    del one["model.safetensors"], committed["model.safetensors"]
    assert one == committed
