"""--laya-platform: which machine the session runs on, and how loudly it says so."""

import pytest
from recording import ON_MAC

SHOW_HOOK = """
    import os
    def test_hook():
        print("hook:", os.environ.get("LAYA_APPLE_PLATFORM"))
"""

VIRTUAL = "pytest_laya.virtual_mac:platform"


def hook_line(result):
    return next(line[line.index("hook:") :] for line in result.outlines if "hook:" in line)


def test_an_installed_plugin_uses_the_real_machine_and_stays_silent(inner):
    result = inner(SHOW_HOOK, "-s")
    assert hook_line(result) == "hook: None"
    result.stdout.no_fnmatch_line("laya:*")


def test_virtual_sets_the_hook_and_says_synthetic(inner):
    result = inner(SHOW_HOOK, "-s", "--laya-platform", "virtual")
    assert hook_line(result) == f"hook: {VIRTUAL}"
    result.stdout.fnmatch_lines(
        ["laya: virtual Mac, synthetic: a stand-in *", "laya: [*][*][*] virtual Mac, synthetic*"]
    )


def test_auto_is_the_virtual_mac_off_apple_silicon(inner):
    result = inner(SHOW_HOOK, "-s", ini="laya_platform = auto\n")
    assert hook_line(result) == ("hook: None" if ON_MAC else f"hook: {VIRTUAL}")


def test_a_hook_in_the_environment_stands_over_the_ini_file(inner, monkeypatch):
    monkeypatch.setenv("LAYA_APPLE_PLATFORM", "elsewhere:platform")
    result = inner(SHOW_HOOK, "-s", ini="laya_platform = virtual\n")
    assert hook_line(result) == "hook: elsewhere:platform"
    result.stdout.fnmatch_lines(["laya: LAYA_APPLE_PLATFORM=elsewhere:platform"])


def test_the_command_line_stands_over_a_hook_in_the_environment(inner, monkeypatch):
    monkeypatch.setenv("LAYA_APPLE_PLATFORM", "elsewhere:platform")
    result = inner(SHOW_HOOK, "-s", "--laya-platform", "real")
    assert hook_line(result) == "hook: None"


def test_the_environment_is_put_back_after_the_session(inner, monkeypatch):
    import os

    monkeypatch.setenv("LAYA_APPLE_PLATFORM", "elsewhere:platform")
    inner(SHOW_HOOK, "--laya-platform", "virtual").assert_outcomes(passed=1)
    assert os.environ["LAYA_APPLE_PLATFORM"] == "elsewhere:platform"


def test_conftests_and_xdist_workers_see_the_choice(inner, pytester):
    pytester.makeconftest(
        """
        from laya_apple.platform import current_platform
        AT_IMPORT = current_platform().virtual
        """
    )
    result = inner(
        """
        import conftest
        from laya_apple.platform import current_platform
        def test_virtual():
            assert conftest.AT_IMPORT is True
            assert current_platform().virtual is True
        """,
        "--laya-platform=virtual", "-n1", plugins=True, subprocess=True,
    )  # fmt: skip
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("how", ["command line", "ini"])
def test_an_unknown_platform_is_refused_in_one_line(inner, how):
    arguments = ["--laya-platform", "mac"] if how == "command line" else []
    result = inner(SHOW_HOOK, *arguments, ini="laya_platform = mac\n" if how == "ini" else "")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --laya-platform (ini laya_platform) must be one of real, virtual, auto, not 'mac'"]
    )
