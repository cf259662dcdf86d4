"""Hooks only: each one asks the session object, which decides.

Loading this module imports none of MLX, Core ML Tools, transformers, NumPy or ``laya_apple``.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from pytest_laya import distributed, locks, markers, options, platforms, terminal, timeouts, verdicts
from pytest_laya.session import KEY, LayaSession, of

_ENVIRON_BEFORE = pytest.StashKey[str | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    # Conftests may import the runtime, and a suite named by package gets its conftest too late for options.
    _choose_platform(early_config, early_config.known_args_namespace)
    if options.names_switchyard(args):
        options.add_switchyard_options(parser)


def _choose_platform(config: pytest.Config, namespace: Any) -> platforms.Choice:
    before = config.stash.setdefault(_ENVIRON_BEFORE, os.environ.get(platforms.HOOK_VARIABLE))
    value, given = options.platform_option(config, namespace)
    choice = platforms.choose(value, given, before)
    platforms.set_hook(choice.hook, os.environ)
    return choice


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    markers.register(config)
    choice = _choose_platform(config, config.option)
    config.stash[KEY] = LayaSession(config, options.read_settings(config), choice)
    from pytest_laya import fixtures

    config.pluginmanager.register(fixtures, "laya-fixtures")
    if not config.stash[KEY].is_worker:
        config.pluginmanager.register(Reports(config.stash[KEY]), "laya-reports")


class Reports:
    """Reads every report on the controller, before the reporters do; that hook is given no config."""

    def __init__(self, ours: LayaSession) -> None:
        self._ours = ours

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ours.absorb(report)


def pytest_sessionstart(session: pytest.Session) -> None:
    of(session.config).check_options()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _ENVIRON_BEFORE in config.stash:
        platforms.set_hook(config.stash[_ENVIRON_BEFORE] or "", os.environ)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    distributed.brief(of(node.config), node)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    distributed.debrief(of(node.config), node)


def pytest_report_header(config: pytest.Config) -> list[str]:
    return terminal.header(of(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    markers.check(items)
    of(config).mark_skips(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    of(session.config).check_selection(session.items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    ours = of(session.config)
    try:
        ran = yield
    except session.Failed:  # -x or --maxfail: what ran is judged
        verdicts.emit(session, ours.judge())
        raise
    verdicts.emit(session, ours.judge())
    return ran


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if of(item.config).needs_device(item):
        with locks.device_lock(locks.device_lock_path(), of(item.config).say):
            return (yield)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    of(item.config).before_test(item)
    with timeouts.limited(of(item.config).limit_s(item), "setup"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with timeouts.limited(of(item.config).limit_s(item), "the test"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with timeouts.limited(of(item.config).limit_s(item), "teardown"):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> None:
    of(item.config).hand_over(item)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    of(session.config).finish(int(exitstatus))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    terminal.summary(terminalreporter, of(config), int(exitstatus))
