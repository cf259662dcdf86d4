"""--laya-slow: the slow tier runs when asked for."""

SLOW = """
    import pytest
    @pytest.mark.laya_slow
    def test_long():
        pass
    def test_short():
        pass
"""


def test_slow_tests_are_skipped_with_the_way_to_run_them(inner):
    result = inner(SLOW, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * test_inner.py:*: slow tier: runs with --laya-slow"])


def test_the_option_and_the_ini_run_them(inner):
    inner(SLOW, "--laya-slow").assert_outcomes(passed=2)
    inner(SLOW, ini="laya_slow = true\n").assert_outcomes(passed=2)
