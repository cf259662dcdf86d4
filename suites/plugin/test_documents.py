"""README and CONTRIBUTING tell the truth: options, markers, fixtures and links are what the code has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_laya import markers, options

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_option_is_in_the_readme_and_no_other():
    named = set(re.findall(r"--laya-[a-z-]+", README))
    known = {option.flag for option in options.OPTIONS}
    switchyard = {
        f"--laya-{name}" for name in ("seed", "duration", "switchyard-out", "no-open", "setup-ane", "replay")
    }
    assert named == known | switchyard


def test_every_fixture_and_marker_is_in_the_readme():
    named = set(re.findall(r"`(laya\w*|virtual_mac|switchyard)(?:\([^)`]*\))?`", README))
    assert named >= markers.FIXTURES | set(markers.SIGNATURES)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_ci_runs_the_readme_s_own_command():
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert commands[0].endswith("pytest suites/switchyard --seed 11")
    assert commands[1].endswith("pip install -e '.[test]' && .venv/bin/pytest -n 2")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "README.md | grep '^python3 '" in ci


def code_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_readme_s_first_answer_is_right():
    (asking, _) = code_blocks("python")
    done = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer, ran = done.stdout.splitlines()
    assert answer.startswith("shipping {'billing': ")
    assert ran == "cpu cpu_requested"


def test_the_readme_s_test_passes_on_the_virtual_mac(inner):
    (_, testing) = code_blocks("python")
    result = inner(testing, "--laya-platform=virtual", subprocess=True)
    result.assert_outcomes(passed=1)
