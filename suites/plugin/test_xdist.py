"""pytest-xdist: device work takes turns, facts reach the controller, a round never shares its host."""

import json

import pytest

TURNS = """
    import os, time
    from pathlib import Path
    import pytest
    @pytest.mark.laya_exclusive
    @pytest.mark.parametrize("number", range(6))
    def test_turn(number):
        mark = Path(os.environ["TURN_FILE"])
        mark.open("x").close()   # fails when another test is inside
        time.sleep(0.05)
        mark.unlink()
"""


def test_exclusive_tests_take_turns_over_all_processes(inner, pytester, monkeypatch):
    monkeypatch.setenv("TURN_FILE", str(pytester.path / "inside"))
    inner(TURNS, "-n3", plugins=True, subprocess=True).assert_outcomes(passed=6)


def test_facts_of_all_workers_reach_the_controller(inner, pytester):
    source = """
        import pytest
        @pytest.mark.parametrize("number", range(4))
        def test_it(laya_conditions, number):
            pass
    """
    inner(source, "-n2", "--laya-out=out", plugins=True, subprocess=True).assert_outcomes(passed=4)
    document = json.loads((pytester.path / "out" / "conditions.json").read_text())
    assert sorted(one["test"] for one in document["records"]) == [
        f"test_inner.py::test_it[{number}]" for number in range(4)
    ]
    session = json.loads((pytester.path / "out" / "session.json").read_text())
    assert session["tests"] == {"passed": 4, "failed": 0, "error": 0, "skipped": 0}
    assert len(session["laya_tests"]) == 4


ROUND = """
    import pytest
    @pytest.mark.laya_round("gpu_only")
    def test_round():
        pass
"""


def test_a_round_among_several_workers_is_an_error(inner):
    result = inner(ROUND, "-n2", plugins=True, subprocess=True)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*a Switchyard round needs the host to itself, and 2 xdist workers share it; *"]
    )


@pytest.mark.parametrize("workers", ["-n0", "-n1"])
def test_a_round_alone_on_its_host_runs(inner, workers):
    inner(ROUND, workers, plugins=True, subprocess=True).assert_outcomes(passed=1)


def test_one_worker_a_machine_gives_one_result_a_machine(inner, pytester):
    """Two workers that say they are elsewhere (another interpreter process over execnet's own protocol)."""
    source = """
        import pytest
        def test_it(laya_conditions, laya_trace, request):
            from pytest_laya import session
            mine = session.of(request.config)
            assert mine.worker.workers_here == 1
            assert mine.machine in ("gw0", "gw1")
            from pytest_laya import results
            results.write_text(mine.folder / "measured.txt", mine.machine)
    """
    pytester.makeconftest(
        """
        import pytest
        from pytest_laya import distributed
        @pytest.hookimpl(trylast=True)
        def pytest_configure_node(node):
            node.workerinput["laya"].update(base="", machine=node.gateway.id, workers_here=1)
        """
    )
    result = inner(source, "--dist=each", "--tx=2*popen", "--laya-out=out", plugins=True, subprocess=True)
    result.assert_outcomes(passed=2)
    out = pytester.path / "out"
    assert [(out / name / "measured.txt").read_text() for name in ("gw0", "gw1")] == ["gw0", "gw1"]
    session = json.loads((out / "session.json").read_text())
    assert sorted(session["machines"]) == ["gw0", "gw1"]
    records = json.loads((out / "conditions.json").read_text())["records"]
    assert sorted(one["machine"] for one in records) == ["gw0", "gw1"]
