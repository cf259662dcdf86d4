"""--laya-require: what would be skipped fails instead."""

import pytest

HARDWARE = """
    import pytest
    @pytest.mark.laya_hardware
    def test_it():
        pass
"""

SKIPPED = """
    import pytest
    def test_it(laya_conditions):
        pytest.skip("for a reason of its own")
"""


@pytest.mark.parametrize("how", ["command line", "ini"])
def test_missing_hardware_fails_when_it_is_required(inner, how):
    arguments = ["--laya-require", "hardware"] if how == "command line" else []
    ini = "laya_platform = virtual\n" + ("laya_require = hardware\n" if how == "ini" else "")
    result = inner(HARDWARE, *arguments, ini=ini)
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*--laya-require hardware: needs real Apple silicon; this is: virtual Mac*"])


def test_requiring_something_else_leaves_the_skip_and_fails_the_empty_session(inner):
    result = inner(HARDWARE, "--laya-platform=virtual", "--laya-require", "ane")
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(["FAIL    laya-require ane: every laya test was skipped"])


def test_a_session_whose_laya_tests_were_all_skipped_fails(inner):
    result = inner(SKIPPED + "\n    def test_other(): pass\n", "--laya-require=gpu", "--laya-require=ane")
    result.assert_outcomes(skipped=1, passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAIL    laya-require gpu, ane: every laya test was skipped"])


def test_a_session_without_a_laya_test_fails_too(inner):
    result = inner("def test_other(): pass", "--laya-require=gpu")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAIL    laya-require gpu: no laya test ran"])


def test_one_laya_test_that_ran_is_enough(inner):
    inner(SKIPPED + "\n    def test_ran(laya_conditions): pass\n", "--laya-require=gpu").assert_outcomes(
        skipped=1, passed=1
    )


def test_without_the_option_a_skipped_session_passes(inner):
    inner(SKIPPED).assert_outcomes(skipped=1)


def test_an_unknown_requirement_is_refused(inner):
    result = inner(SKIPPED, "--laya-require", "tpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --laya-require (ini laya_require) must be one of gpu, ane, hardware, not 'tpu'"]
    )
