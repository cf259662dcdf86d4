"""Hooks only: each one asks the session object, which decides.

Loading this module imports none of MLX, Core ML Tools, transformers, NumPy or ``laya_apple``.
"""

from __future__ import annotations

import pytest

from pytest_laya import markers, options


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    markers.register(config)
    options.read_settings(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    markers.check(items)
    if not options.read_settings(config).slow:
        for item in items:
            if item.get_closest_marker("laya_slow"):
                item.add_marker(pytest.mark.skip(reason="slow tier: runs with --laya-slow"))
