"""The fixtures. Each imports what it needs when it is used, never when the plugin loads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_laya import conditions, measure, session

if TYPE_CHECKING:
    from laya_apple import Laya
    from laya_apple.platform import Platform
    from pytest_laya.goldens import Goldens
    from pytest_laya.measure import Benchmark, Probe, Traces
    from pytest_laya.switchyard import SwitchyardRun
    from pytest_laya.virtual_mac.control import VirtualMac


@pytest.fixture(scope="session")
def laya(pytestconfig: pytest.Config) -> Iterator[Laya]:
    """A loaded ``Laya`` for the session: device, model, dtype and execution as the options say.

    Skips where the machine lacks the device (``--laya-require`` makes that a failure).
    """
    found = measure.load(session.of(pytestconfig))
    yield found
    found.close()


@pytest.fixture
def laya_factory(pytestconfig: pytest.Config) -> Iterator[Callable[..., Laya]]:
    """``factory(model_id=None, **arguments)``: as ``Laya.from_pretrained``, closed after the test.

    What is not given comes from the options.
    """
    opened: list[Laya] = []

    def factory(model_id: Any = None, **arguments: Any) -> Laya:
        opened.append(measure.load(session.of(pytestconfig), model_id, **arguments))
        return opened[-1]

    yield factory
    for one in reversed(opened):
        one.close()


@pytest.fixture(scope="session")
def laya_platform() -> Platform:
    """The platform this process uses, real or virtual."""
    from laya_apple.platform import current_platform

    return current_platform()


@pytest.fixture
def virtual_mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualMac]:
    """A virtual Mac of the test's own, with faults that its processes see too; all undone after the test."""
    from pytest_laya.virtual_mac.control import VirtualMac

    with VirtualMac(tmp_path / "virtual-mac", monkeypatch) as mac:
        yield mac


@pytest.fixture
def laya_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private ``LAYA_APPLE_CACHE``, empty; child processes see it too."""
    folder = tmp_path / "laya-cache"
    folder.mkdir()
    monkeypatch.setenv("LAYA_APPLE_CACHE", str(folder))
    return folder


@pytest.fixture
def laya_goldens(pytestconfig: pytest.Config) -> Goldens:
    """Goldens by checkpoint, and the parity gate over them, whose report goes to parity.json."""
    from pytest_laya.goldens import Goldens

    return Goldens(session.of(pytestconfig))


@pytest.fixture
def laya_probe(pytestconfig: pytest.Config) -> Probe:
    """The placement verdicts of a loaded ``Laya``, bucket by bucket; they go to probe.json."""
    return measure.Probe(session.of(pytestconfig))


@pytest.fixture
def laya_conditions(pytestconfig: pytest.Config) -> Iterator[conditions.Conditions]:
    """The machine's conditions as the test starts; those at its end are recorded beside them."""
    start = conditions.collect()
    yield start
    end = conditions.collect()
    session.of(pytestconfig).record("conditions", {"start": start.to_dict(), "end": end.to_dict()})


@pytest.fixture
def laya_trace(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Iterator[Traces]:
    """Collects RequestTraces: pass it as ``trace=``. Written as ``traces/<test>.jsonl`` after the test."""
    traces = measure.Traces()
    yield traces
    if traces.collected:
        name = re.sub(r"[^\w.\-]+", "-", request.node.nodeid).strip("-")
        traces.write(session.of(pytestconfig), f"traces/{name}.jsonl")


@pytest.fixture
def laya_benchmark(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Benchmark:
    """pytest-benchmark's ``benchmark``, called as ``laya_benchmark(laya, function, *arguments)``.

    Its JSON gets device, dtype, conditions and placement verdict in ``extra_info``.
    """
    return measure.Benchmark(request.getfixturevalue("benchmark"))


@pytest.fixture(scope="session")
def switchyard(pytestconfig: pytest.Config) -> SwitchyardRun:
    """The Switchyard rounds, run once a session as the options say."""
    from pytest_laya.switchyard import perform

    return perform(session.of(pytestconfig))
