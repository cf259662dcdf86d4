"""laya_timeout: a hang is a failure with a name."""

import pytest

HANG = """
    import time
    import pytest
    @pytest.fixture
    def slow_setup():
        time.sleep(30)
    {mark}
    def test_hang():
        time.sleep(30)
    def test_hang_in_setup(slow_setup):
        pass
    def test_quick():
        pass
"""


def test_every_phase_is_limited_when_the_ini_says_so(inner):
    result = inner(HANG.format(mark=""), ini="laya_timeout = 0.2\n", subprocess=True)
    result.assert_outcomes(failed=1, errors=1, passed=1)
    text = result.stdout.str()
    assert "the test took longer than laya_timeout = 0.2 s" in text
    assert "setup took longer than laya_timeout = 0.2 s" in text


QUICK = """
    import signal
    def test_watched(laya_conditions):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > {above}
    def test_left_alone():
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
"""


def test_unset_it_watches_only_tests_of_the_plugin(inner):
    inner(QUICK.format(above=500), subprocess=True).assert_outcomes(passed=2)


def test_another_clock_is_left_alone(inner):
    inner(
        """
        import signal
        import pytest
        @pytest.fixture
        def own_alarm():
            signal.signal(signal.SIGALRM, lambda *_: None)
            yield
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        def test_own(own_alarm):
            assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        """,
        ini="laya_timeout = 5\n",
        subprocess=True,
    ).assert_outcomes(passed=1)


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf"])
def test_a_bad_value_is_refused(inner, value):
    result = inner("def test_it(): pass", ini=f"laya_timeout = {value}\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: ini laya_timeout must be a number of seconds, 0 or more, not '{value}'"]
    )
