"""Gives the suite the benchmark's own options: --seed --duration --out --no-open --setup-ane --replay."""

import pytest

from pytest_laya.options import add_switchyard_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_switchyard_options(parser)
