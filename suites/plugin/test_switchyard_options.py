"""Switchyard's own options, read like the command's; and what its suite makes of each kind of run."""

import json
import shutil
from pathlib import Path

import pytest
from recording import ON_MAC
from switchyard_fakes import Behaviour, Stage, ready_checks

from pytest_laya.locks import device_lock, device_lock_path

SUITE = Path(__file__).resolve().parents[1] / "switchyard"


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs the Switchyard suite, copied below the inner project; returns pytester's result."""
    shutil.copytree(
        SUITE, pytester.path / "suites" / "switchyard", ignore=shutil.ignore_patterns("__pycache__")
    )

    def run(*arguments, plugins=()):
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        loaded = [part for name in ("pytest_laya.plugin", *plugins) for part in ("-p", name)]
        runner = pytester.runpytest_subprocess if ON_MAC else pytester.runpytest_inprocess
        return runner(*loaded, "-rs", "-p", "no:cacheprovider", *arguments)

    return run


def refused(result, message):
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    assert len([line for line in result.errlines if line]) == 1
    result.stdout.no_fnmatch_line("collected *")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--duration", "4"], "--duration must be a whole number of 3 s burst cycles (3, 6, 9, … s), not 4"),
        (["--duration", "0"], "--duration must be a whole number of 3 s burst cycles (3, 6, 9, … s), not 0"),
        (["--duration", "long"], "--duration must be a number of seconds, not 'long'"),
        (["--seed", "x"], "--seed must be a whole number, not 'x'"),
        (["--replay", "nowhere"], "--replay: *nowhere was not written by a Switchyard run: *"),
        (["--laya-model", "laya-huge"], "--laya-model: 'laya-huge' is not a model this runtime knows; use *"),
    ],
)
def test_a_bad_value_is_refused_in_one_line_before_anything_loads(suite, arguments, message):
    refused(suite("suites/switchyard", "--laya-platform=virtual", *arguments), message)


def test_rounds_on_the_cpu_are_refused(suite):
    result = suite("suites/switchyard", "--laya-platform=virtual", "--laya-device=cpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --laya-device cpu: a Switchyard round runs on the GPU, or on GPU and *"]
    )


def test_the_options_exist_only_where_the_suite_is_named(pytester):
    result = pytester.runpytest_inprocess("--help")
    result.stdout.no_fnmatch_line("*--duration=S*")
    result = pytester.runpytest_inprocess("--help", "--pyargs", "pytest_laya.suites.switchyard")
    result.stdout.fnmatch_lines(["*--seed=N*", "*--duration=S*", "*--replay=DIR*"])


def test_a_name_that_another_plugin_owns_is_left_to_it(suite, pytester, tmp_path):
    pytester.makepyfile(
        other_replay="""
        def pytest_addoption(parser):
            parser.addoption("--replay", action="store_true", help="not ours")
        """
    )
    pytester.syspathinsert()
    Stage().run(tmp_path / "run")
    result = suite(
        "suites/switchyard", "--laya-platform=virtual", "--replay", f"--laya-replay={tmp_path / 'run'}",
        plugins=["other_replay"],
    )  # fmt: skip
    result.assert_outcomes(passed=4)


def test_replay_measures_nothing_and_rebuilds_the_page(suite, tmp_path):
    folder = tmp_path / "run"
    Stage().run(folder)
    (folder / "replay.html").unlink()
    # Held here, the device is free for nobody else; a replay does not ask for it.
    with device_lock(device_lock_path(), print):
        result = suite("suites/switchyard", "--laya-platform=virtual", "--replay", str(folder))
    result.assert_outcomes(passed=4)
    assert '"format":"switchyard-replay"' in (folder / "replay.html").read_text().replace(" ", "")
    result.stdout.fnmatch_lines(
        [
            "GPU + ANE: 0 of 73 trains late",
            "GPU only: 3 of 73 trains late",
            "an earlier run, read for --replay: nothing was measured",
            "wrote */run: replay.html",
        ]
    )


def replayed(suite, folder, *arguments, **changes):
    stage = Stage(behaviours=changes.pop("behaviours", {}))
    stage.run(folder, **changes)
    return suite("suites/switchyard", "--laya-platform=virtual", f"--replay={folder}", *arguments)


ON_ANE = "validated_short_single_question_path"
DEMOTED = {
    "behaviours": {
        "auto": Behaviour(
            target=lambda count: "ane" if count < 300 else "gpu",
            reason=lambda count: ON_ANE if count < 300 else "ane_runtime_unavailable",
        )
    }
}
UNBUILT = {"checks": ready_checks(auto_buckets=lambda: ())}
FAILED = {"behaviours": {"auto": Behaviour(fail_load=RuntimeError("the worker died"))}}


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (DEMOTED, "The Neural Engine stopped being used during the round (ane_lost_during_round)"),
        (
            UNBUILT,
            "This Mac has not been calibrated for the Neural Engine yet (platform_not_validated); set *",
        ),
        (FAILED, "The GPU + ANE round failed on this Mac (ane_round_failed): RuntimeError: the worker died"),
    ],
    ids=["demoted", "not set up", "failed"],
)
def test_a_round_that_does_not_count_is_a_skip_with_its_reason(suite, tmp_path, run, reason):
    result = replayed(suite, tmp_path / "run", **run)
    result.assert_outcomes(passed=2, skipped=2)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines([f"SKIPPED *: {reason}"])
    result.stdout.no_fnmatch_line("GPU + ANE: * trains late")


@pytest.mark.parametrize("option", ["--laya-require=ane", "--laya-device=ane"])
def test_a_required_round_that_does_not_count_is_red(suite, tmp_path, option):
    result = replayed(suite, tmp_path / "run", option, **FAILED)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        ["*--laya-* ane*: The GPU + ANE round failed on this Mac (ane_round_failed): *"]
    )


def test_a_failed_gpu_only_round_fails_and_the_other_is_kept(suite, tmp_path):
    failing = {"gpu": Behaviour(fail_load=RuntimeError("no such device"))}
    result = replayed(suite, tmp_path / "run", behaviours=failing)
    result.assert_outcomes(passed=1, failed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*the gpu_only round failed: RuntimeError: no such device"])
    assert [
        one["config"] for one in json.loads((tmp_path / "run" / "result.json").read_text())["rounds"]
    ] == ["hybrid"]


def test_a_real_machine_that_is_no_mac_skips_or_fails(suite, monkeypatch):
    result = suite("suites/switchyard", "--laya-platform=real")
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(
        ["SKIPPED *: this machine cannot run the benchmark: it needs MLX on an Apple silicon Mac *"]
    )
    result = suite("suites/switchyard", "--laya-platform=real", "--laya-require=hardware")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
