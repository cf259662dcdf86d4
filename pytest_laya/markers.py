"""The markers: registered always, their arguments checked, and the skips that follow from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

import pytest


# The signatures that marker arguments are checked against.
def laya_slow() -> None: ...
def laya_audit(row: int, *rows: int) -> None: ...
def laya_parity(model: str | None = None, device: str | None = None, dtype: str | None = None) -> None: ...
def laya_probe(bucket: int) -> None: ...
def laya_round(config: str) -> None: ...
def laya_hardware() -> None: ...
def laya_exclusive() -> None: ...


_MARKERS: dict[Callable[..., None], str] = {
    laya_slow: "slow tier; skipped without --laya-slow",
    laya_audit: "evidence for rows of the no-silent-fallback audit",
    laya_parity: "compares answers with the goldens of a model, on a device, in a dtype",
    laya_probe: "measures where a Neural Engine bucket ran",
    laya_round: "a Switchyard round: gpu_only or hybrid",
    laya_hardware: "real Apple silicon only; skipped elsewhere",
    laya_exclusive: "needs the device to itself; takes the cross-process device lock",
}

SIGNATURES = {function.__name__: inspect.signature(function) for function in _MARKERS}

EXCLUSIVE = ("laya_exclusive", "laya_probe", "laya_round")
"""Markers whose tests hold the device lock."""

ROUND_CONFIGS = ("gpu_only", "hybrid")

LAYA_TEST = "laya_test"
"""Keyword set on every test that uses one of our markers or fixtures; reports carry it between processes."""

FIXTURES = frozenset(
    {
        "laya",
        "laya_factory",
        "laya_platform",
        "virtual_mac",
        "laya_cache",
        "laya_goldens",
        "laya_probe",
        "laya_conditions",
        "laya_trace",
        "laya_benchmark",
        "switchyard",
    }
)


def register(config: pytest.Config) -> None:
    """Make the markers known to pytest, with their signatures in ``--markers``."""
    for function, meaning in _MARKERS.items():
        config.addinivalue_line("markers", f"{spelled(function.__name__)}: {meaning}")


def spelled(name: str) -> str:
    """The marker with the names of its arguments, as ``laya_audit(row, *rows)``."""
    parameters = ", ".join(
        f"*{argument}" if parameter.kind is parameter.VAR_POSITIONAL else argument
        for argument, parameter in SIGNATURES[name].parameters.items()
    )
    return f"{name}({parameters})" if parameters else name


def check(items: Iterable[pytest.Item]) -> None:
    """Refuse unknown ``laya_…`` markers and arguments, and tag our tests. Raises pytest.UsageError."""
    for item in items:
        ours = False
        for mark in item.iter_markers():
            if mark.name.startswith("laya_"):
                ours = ours or mark.name != "laya_slow"
                problem = _problem(mark)
                if problem:
                    raise pytest.UsageError(f"{item.nodeid}: {problem}")
        if ours or FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.keywords[LAYA_TEST] = True


def _problem(mark: pytest.Mark) -> str | None:
    signature = SIGNATURES.get(mark.name)
    if signature is None:
        return f"unknown marker {mark.name}; the plugin has {', '.join(sorted(SIGNATURES))}"
    try:
        bound = signature.bind(*mark.args, **mark.kwargs)
    except TypeError as error:
        return f"marker {spelled(mark.name) if signature.parameters else mark.name + '()'}: {error}"
    if mark.name == "laya_round" and bound.arguments["config"] not in ROUND_CONFIGS:
        return f"marker laya_round: config must be {' or '.join(ROUND_CONFIGS)}, not {mark.args[0]!r}"
    if mark.name == "laya_audit":
        rows = (bound.arguments["row"], *bound.arguments.get("rows", ()))
        if not all(type(row) is int and row > 0 for row in rows):
            return f"marker laya_audit: rows are positive whole numbers, not {rows!r}"
    return None


def is_laya_test(item: pytest.Item) -> bool:
    """Whether ``check`` found one of our markers or fixtures on the test."""
    return LAYA_TEST in item.keywords


def is_exclusive(item: pytest.Item) -> bool:
    """Whether the test needs the device to itself."""
    return any(item.get_closest_marker(name) for name in EXCLUSIVE)
