"""The wheel, installed elsewhere, runs the suites that ship in it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A virtual environment with the wheel in it and this one's other packages behind it; no network."""
    root = tmp_path_factory.mktemp("elsewhere")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(root / "dist")],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = (root / "dist").glob("laya_apple-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / "venv")], check=True)
    python = root / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--quiet", "--disable-pip-version-check", str(wheel)], check=True)
    (site,) = (root / "venv" / "lib").glob("python3*/site-packages")
    others = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "others.pth").write_text("\n".join(others) + "\n")
    return python, root


def test_the_installed_package_is_the_wheel_s(elsewhere):
    python, root = elsewhere
    code = (
        "import laya_apple, pytest_laya.suites.switchyard as s; print(laya_apple.__file__); print(s.__file__)"
    )
    done = subprocess.run([python, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert all(Path(line).is_relative_to(root / "venv") for line in done.stdout.splitlines())


def test_the_wheel_holds_the_product_and_no_tests_of_ours(elsewhere):
    _, root = elsewhere
    (site,) = (root / "venv" / "lib").glob("python3*/site-packages")
    shipped = {
        path.name for path in (site / "pytest_laya" / "suites").iterdir() if path.name != "__pycache__"
    }
    assert shipped == {"__init__.py", "audit", "parity", "probe", "switchyard"}
    assert (site / "laya_apple" / "data" / "switchyard-result.schema.json").is_file()
    assert (site / "laya_apple" / "demos" / "switchyard" / "static" / "index.html").is_file()
    assert (site / "laya_apple" / "py.typed").is_file()
    assert (site / "pytest_laya" / "data" / "session.schema.json").is_file()


def test_the_shipped_suite_runs_a_round(elsewhere):
    python, root = elsewhere
    done = subprocess.run(
        [
            python, "-m", "pytest", "--pyargs", "pytest_laya.suites.switchyard", "-p", "no:cacheprovider",
            "--seed", "11", "--duration", "3",
            "--laya-platform", "virtual", "--laya-device", "gpu",
        ],
        cwd=root, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (root / "switchyard-results").iterdir()
    assert folder.name.endswith("Z-virtual-mac")
    result = json.loads((folder / "result.json").read_text())
    assert (result["synthetic"], result["workload"]["duration_s"]) == (True, 3)
    assert len((folder / "trace.jsonl").read_text().splitlines()) == result["workload"]["offered"]["requests"]


def test_the_shipped_parity_suite_holds_laya_mini_to_its_goldens(elsewhere):
    python, root = elsewhere
    done = subprocess.run(
        [
            python, "-m", "pytest", "--pyargs", "pytest_laya.suites.parity", "-p", "no:cacheprovider",
            "-k", "TestGoldensHold and laya-mini and (prompts or numpy)",
        ],
        cwd=root, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
