"""The first load happens in a subprocess: whatever Core ML does there, this process lives and says so."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from artifact_files import Registered

from laya_apple.artifacts.canary import run_canary
from laya_apple.artifacts.graph import GraphShape
from laya_apple.errors import ArtifactError


def _shapes(registered: Registered) -> dict[str, tuple[int, ...]]:
    return GraphShape.of(registered.checkpoint, 64).input_shapes()


def test_a_model_that_kills_the_process_kills_only_the_canary(registered: Registered) -> None:
    registered.mac.fault("load_kills", signal=11)
    with pytest.raises(ArtifactError, match="killed its subprocess with SIGSEGV; ") as caught:
        registered.load()
    assert type(caught.value) is ArtifactError
    assert registered.mend in str(caught.value)
    assert registered.quarantined() == []
    registered.mac.clear()
    registered.load()


def test_the_end_of_the_canary_s_standard_error_is_in_the_message(registered: Registered) -> None:
    registered.mac.fault("load_error", message="refused for the test")
    with pytest.raises(ArtifactError, match=r"(?s)standard error ended: .*refused for the test") as caught:
        registered.load()
    assert registered.mend in str(caught.value)


def test_a_prediction_that_fails_is_found_by_the_canary(registered: Registered) -> None:
    registered.mac.fault("prediction_error", message="not this time")
    with pytest.raises(ArtifactError, match=r"(?s)in a subprocess failed; .*not this time"):
        registered.load()
    assert [event["units"] for event in registered.mac.events("load")] == ["CPU_AND_NE"]


def test_a_hang_ends_with_the_time_limit(registered: Registered) -> None:
    registered.mac.fault("load_hang")
    with pytest.raises(ArtifactError, match="took longer than 4 s"):
        run_canary(registered.model, _shapes(registered), timeout_s=4)


def test_under_a_stamp_no_canary_runs(registered: Registered) -> None:
    registered.load()
    before = {event["pid"] for event in registered.mac.events("load")}
    registered.load()
    after = {event["pid"] for event in registered.mac.events("load")}
    assert len(before) == 2
    assert after == before


def test_where_python_is_embedded_one_warning_says_so(registered: Registered) -> None:
    source = """
        import sys, warnings
        from pathlib import Path
        from laya_apple.artifacts.canary import run_canary
        sys.executable = "/Applications/Editor.app/Contents/MacOS/editor"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            print(run_canary(Path("m.mlmodelc"), {}), run_canary(Path("m.mlmodelc"), {}))
        print([(w.category.__name__, "no Python interpreter" in str(w.message)) for w in caught])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False False\n[('RuntimeWarning', True)]\n"


def test_the_canary_imports_nothing_from_the_working_directory(
    registered: Registered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "numpy.py").write_text("raise SystemExit('imported from the working directory')\n")
    monkeypatch.chdir(trap)
    assert run_canary(registered.model, _shapes(registered))
