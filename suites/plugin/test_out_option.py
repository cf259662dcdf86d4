"""--laya-out: what a session writes, when, and what is in it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from recording import recording

from pytest_laya import results

MEASURED = recording('"hybrid.late.rate", 0.004, 0.001, 0.008')


def session_of(folder):
    import jsonschema

    document = json.loads((folder / "session.json").read_text())
    jsonschema.validate(document, results.schema("session"), cls=jsonschema.Draft202012Validator)
    return document


def test_an_unrelated_project_gets_no_files(inner, pytester):
    before = set(pytester.path.iterdir())
    inner("def test_it(): pass").assert_outcomes(passed=1)
    made = {path.name for path in set(pytester.path.iterdir()) - before}
    assert made <= {"test_inner.py", "__pycache__"}


def test_the_default_folder_is_named_by_time_and_chip(inner, pytester):
    inner(MEASURED, "--laya-platform", "virtual").assert_outcomes(passed=1)
    (folder,) = (pytester.path / "laya-results").iterdir()
    assert folder.name.endswith("Z-virtual-mac")
    assert {path.name for path in folder.iterdir()} == {"session.json", "conditions.json", "report.html"}


def test_session_json_says_what_ran_and_where(inner, pytester):
    result = inner(
        MEASURED + "\n    def test_no(laya_conditions):\n        pytest.skip('not today')\n",
        *("--laya-out=out", "--laya-platform=virtual"),
        *("--laya-device=gpu", "--laya-gate=hybrid.late.rate <= 0.01"),
    )
    result.assert_outcomes(passed=2, skipped=1)
    document = session_of(pytester.path / "out")
    assert document["state"] == "finished"
    assert document["exit_status"] == 0
    assert document["synthetic"] is True
    assert document["platform"]["virtual"] is True
    assert document["versions"]["pytest"] == pytest.__version__
    assert document["options"]["--laya-device"] == "gpu"
    assert document["options"]["--laya-gate"] == ["hybrid.late.rate <= 0.01"]
    assert document["tests"] == {"passed": 2, "failed": 0, "error": 0, "skipped": 1}
    assert document["laya_tests"] == [
        {"test": "test_inner.py::test_measured", "outcome": "passed", "reason": None},
        {"test": "test_inner.py::test_no", "outcome": "skipped", "reason": "not today"},
    ]
    assert [one["verdict"] for one in document["verdicts"]] == ["PASS"]
    assert document["files"] == {"conditions.json": "conditions.json", "report.html": "report.html"}
    report = (pytester.path / "out" / "report.html").read_text()
    assert "Synthetic: this ran on the virtual Mac." in report
    assert 'href="conditions.json"' in report


def test_files_hold_no_path_of_the_machine_and_no_argument(inner, pytester, monkeypatch):
    home = pytester.mkdir("home-of-someone")
    monkeypatch.setenv("HOME", str(home))
    secret = home / "secret-folder" / "out"
    inner(MEASURED, f"--laya-out={secret}", f"--junitxml={home}/private-name.xml").assert_outcomes(passed=1)
    for path in secret.iterdir():
        text = path.read_text()
        assert str(pytester.path) not in text
        assert "private-name" not in text
    assert session_of(secret)["options"]["--laya-out"] == "<ROOT>/home-of-someone/secret-folder/out"


def test_an_existing_folder_is_overwritten_file_by_file(inner, pytester):
    out = pytester.mkdir("out")
    (out / "mine.txt").write_text("keep me")
    (out / "session.json").write_text("old")
    inner(MEASURED, "--laya-out=out").assert_outcomes(passed=1)
    assert (out / "mine.txt").read_text() == "keep me"
    assert session_of(out)["state"] == "finished"


def test_conditions_json_has_both_ends_of_the_test(inner, pytester):
    import jsonschema

    inner(MEASURED, "--laya-out=out").assert_outcomes(passed=1)
    document = json.loads((pytester.path / "out" / "conditions.json").read_text())
    jsonschema.validate(document, results.schema("conditions"), cls=jsonschema.Draft202012Validator)
    (record,) = document["records"]
    assert record["test"] == "test_inner.py::test_measured"
    assert record["start"]["cpu_count"] == record["end"]["cpu_count"] == os.cpu_count()


def test_ctrl_c_keeps_what_finished(inner, pytester):
    result = inner(
        MEASURED + "\n    def test_stop(): raise KeyboardInterrupt\n", "--laya-out=out", subprocess=True
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    document = session_of(pytester.path / "out")
    assert (document["state"], document["exit_status"]) == ("interrupted", 2)
    result.stdout.fnmatch_lines(["results: out (the session was interrupted; what finished is kept)"])
    assert document["tests"]["passed"] == 1
    assert [one["name"] for one in document["metrics"]] == ["hybrid.late.rate"]
    assert (
        "The session was interrupted; what finished is kept."
        in (pytester.path / "out" / "report.html").read_text()
    )


def test_a_killed_session_says_unfinished(inner, pytester):
    killed = MEASURED + "\n    def test_die():\n        import os\n        os.kill(os.getpid(), 9)\n"
    result = inner(killed, "--laya-out=out", subprocess=True)
    assert result.ret == -9
    document = session_of(pytester.path / "out")
    assert (document["state"], document["exit_status"]) == ("unfinished", None)
    assert [one["name"] for one in document["metrics"]] == ["hybrid.late.rate"]
    assert (pytester.path / "out" / "conditions.json").is_file()


def test_the_git_revision_is_the_project_s(inner, pytester):
    def git(*arguments):
        command = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", *arguments]
        return subprocess.run(command, cwd=pytester.path, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    Path(pytester.path / "tracked").write_text("1")
    git("add", "tracked")
    git("commit", "-qm", "one")
    inner(MEASURED, "--laya-out=out").assert_outcomes(passed=1)
    assert session_of(pytester.path / "out")["git"] == {
        "commit": git("rev-parse", "HEAD").strip(),
        "modified": False,
    }
    Path(pytester.path / "tracked").write_text("2")
    inner(MEASURED, "--laya-out=out").assert_outcomes(passed=1)
    assert session_of(pytester.path / "out")["git"]["modified"] is True


def test_traces_are_written_one_file_a_test(inner, pytester):
    inner(
        """
        from laya_apple import RequestTrace
        def test_traced(laya_trace):
            stamps = dict.fromkeys(
                ("submit_ns", "prepared_ns", "routed_ns", "queue_enter_ns", "dispatch_ns", "service_start_ns",
                 "service_end_ns", "received_ns", "response_ns"), 5)
            laya_trace(RequestTrace(7, 64, 1, "gpu", "gpu_requested", 9.5, None, None, **stamps))
            assert [one.request_id for one in laya_trace.collected] == [7]
        """,
        "--laya-out=out",
    ).assert_outcomes(passed=1)
    (line,) = (pytester.path / "out" / "traces" / "test_inner.py-test_traced.jsonl").read_text().splitlines()
    assert json.loads(line)["request_id"] == 7
    files = session_of(pytester.path / "out")["files"]
    assert files["traces/test_inner.py-test_traced.jsonl"] == "traces/test_inner.py-test_traced.jsonl"


def test_a_run_without_a_finished_round_is_written_down_too(inner, pytester):
    result = inner(
        """
        from pytest_laya import session, switchyard
        def test_failed(request):
            ane = dict.fromkeys(("reason", "reason_text", "detail", "setup_command"))
            failures = {"gpu_only": "BackendUnavailableError: the worker died"}
            ours = session.of(request.config)
            run = switchyard.SwitchyardRun(None, (), None, None, ane, failures, None, ours)
            switchyard.record(run, None)
            run.round("gpu_only")
        """,
        "--laya-out=out",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gpu_only: failed: BackendUnavailableError: the worker died"])
    (run,) = session_of(pytester.path / "out")["switchyard"]
    assert (run["folder"], run["files"]) == (None, [])
    assert run["failures"] == {"gpu_only": "BackendUnavailableError: the worker died"}


def test_a_session_that_measures_nothing_still_tells_its_conditions(inner, pytester):
    import jsonschema

    inner("def test_ours(laya_platform): assert laya_platform.machine", "--laya-out=out").assert_outcomes(
        passed=1
    )
    document = json.loads((pytester.path / "out" / "conditions.json").read_text())
    jsonschema.validate(document, results.schema("conditions"), cls=jsonschema.Draft202012Validator)
    (record,) = document["records"]
    assert record["test"] == ""
    assert record["start"]["utc"] <= record["end"]["utc"]
    assert session_of(pytester.path / "out")["files"]["conditions.json"] == "conditions.json"
