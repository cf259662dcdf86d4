"""The plugin beside others, and out of the way of projects that do not use it."""

import json

import pytest


def test_no_laya_leaves_nothing_behind(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "")
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess("-p", "no:laya", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    result = pytester.runpytest_subprocess("-p", "no:laya", "--laya-device=gpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --laya-device=gpu*"])


def test_an_unrelated_session_loads_none_of_the_runtime(inner):
    inner(
        """
        import sys
        def test_it():
            heavy = {"laya_apple", "mlx", "coremltools", "numpy", "transformers", "tokenizers", "jsonschema"}
            assert heavy.intersection(sys.modules) == set()
        """,
        subprocess=True,
    ).assert_outcomes(passed=1)


def test_strict_markers_and_strict_config(inner):
    source = """
        import pytest
        @pytest.mark.laya_exclusive
        @pytest.mark.laya_slow
        def test_it():
            pass
    """
    inner(source, "--strict-markers", "--strict-config", "--laya-slow").assert_outcomes(passed=1)


def test_record_property_and_our_properties_share_the_junit_file(inner, pytester):
    inner(
        """
        def test_it(record_property, laya_conditions):
            record_property("mine", 5)
        """,
        "--junitxml=out.xml",
    ).assert_outcomes(passed=1)
    text = (pytester.path / "out.xml").read_text()
    assert '<property name="mine" value="5"' in text
    assert "laya_facts" not in text


def test_benchmark_json_says_where_it_ran(inner, pytester):
    """The fixture asks ``laya.info()``; a stand-in that answers it is enough to see what is recorded."""
    result = inner(
        """
        class Loaded:
            def info(self):
                return {"device": "auto", "dtype": "float16", "model": "laya-mini",
                        "ane_probes": {64: {"verdict": "PLACED"}}}
        def test_speed(laya_benchmark):
            assert laya_benchmark(Loaded(), pow, 3, 4) == 81
        """,
        "--benchmark-json=out.json", "--laya-platform=virtual", plugins=True,
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    (benchmark,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    extra = benchmark["extra_info"]
    assert {key: extra[key] for key in ("device", "dtype", "model", "placement", "synthetic")} == {
        "device": "auto",
        "dtype": "float16",
        "model": "laya-mini",
        "placement": {"64": "PLACED"},
        "synthetic": True,
    }
    assert set(extra["conditions"]) == {"start", "end"}


def test_last_failed_runs_again_after_a_red_gate(pytester):
    pytester.makepyfile("def test_one(): pass\ndef test_two(): pass")
    arguments = ("--laya-gate", "hybrid.late.rate <= 0.01")
    pytester.runpytest_inprocess(*arguments).assert_outcomes(passed=2, failed=1)
    result = pytester.runpytest_inprocess(*arguments, "--lf")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["UNKNOWN laya-gate hybrid.late.rate <= 0.01: *"])
