"""The asynchronous Core ML path on the virtual Mac: load checks, one prediction, and what may go wrong."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifact_files import Built, Registered
from checkpoint_files import random_rows

from laya_apple.artifacts.locations import Locations
from laya_apple.backends.coreml import CoreMLBackend
from laya_apple.backends.coreml_async import AsyncPath, AsyncPredictionError
from laya_apple.errors import BackendUnavailableError, UnsupportedShapeError
from laya_apple.prompt.sequence import Row
from pytest_laya.virtual_mac.control import VirtualMac

ROWS = random_rows(8, seed=5, longest=60)
TIMES = {"gpu_ms": {"1": {"64": 9.0}}, "ane_ms": {"64": 15.0}}
"""Declared, so that a busy machine's thread switches do not decide the probe."""


@pytest.fixture
def registered(built: Built, mac: VirtualMac, monkeypatch: pytest.MonkeyPatch) -> Registered:
    """The built artifact where it was built, so that its stamp holds; no test here changes a file."""
    monkeypatch.setenv("LAYA_APPLE_CACHE", str(built.cache))
    mac.profile(TIMES)
    return Registered(mac, built.checkpoint, Locations.of(mac.platform))


def load(registered: Registered, **options: Any) -> tuple[CoreMLBackend, AsyncPath]:
    backend = CoreMLBackend(
        registered.checkpoint, buckets=(64,), strict=True, platform=registered.mac.platform
    )
    return backend, AsyncPath.load(backend, **options)


def bits(outputs: Any) -> list[tuple[bytes, bytes]]:
    return [(output.options.tobytes(), output.action.tobytes()) for output in outputs]


def ways(registered: Registered) -> list[str]:
    """How the Neural Engine was asked, prediction by prediction."""
    return [e["way"] for e in registered.mac.events("predict") if e["units"] == "CPU_AND_NE"]


def refusal(registered: Registered) -> str:
    with pytest.raises(BackendUnavailableError) as caught:
        load(registered)
    return str(caught.value)


def test_outputs_are_those_of_coremltools_bit_for_bit(registered: Registered) -> None:
    backend, path = load(registered)
    assert bits(path.forward(ROWS)) == bits(backend.forward(ROWS))
    assert bits(path.forward(ROWS[::-1])) == bits(path.forward(ROWS))[::-1]


def test_every_forward_goes_through_the_completion_handler(registered: Registered) -> None:
    _, path = load(registered)
    before = len(ways(registered))
    path.forward(ROWS[:3])
    assert ways(registered)[before:] == ["async"] * 3


def test_it_runs_the_verified_artifact_on_the_same_compute_units(registered: Registered) -> None:
    backend, path = load(registered)
    loads = [e for e in registered.mac.events("load") if e["pid"] == os.getpid()]
    assert {e["path"] for e in loads} == {str(backend.model_path(64))}
    assert [(e["way"], e["units"]) for e in loads] == [
        ("coremltools", "CPU_AND_NE"),
        ("coremltools", "CPU_ONLY"),
        ("pyobjc", "CPU_AND_NE"),
        ("coremltools", "CPU_ONLY"),
    ]
    assert path.info == backend.info


def test_it_is_probed(registered: Registered) -> None:
    _, path = load(registered)
    assert path.probes[64]["verdict"] == "PLACED"
    assert set(path.probes[64]) == {"ane_ms", "cpu_ms", "ratio", "verdict"}


def test_outputs_are_fresh_arrays(registered: Registered) -> None:
    _, path = load(registered)
    first = path.forward(ROWS[:1])
    kept = bits(first)
    path.forward(ROWS[1:])
    assert bits(first) == kept


def test_rows_that_do_not_fit_are_refused_before_any_work(registered: Registered) -> None:
    _, path = load(registered)
    before = len(ways(registered))
    with pytest.raises(UnsupportedShapeError):
        path.forward([ROWS[0], Row(ids=(2,) * 65, markers=(1, 2), qtype=0)])
    assert len(ways(registered)) == before


def test_an_array_that_is_not_the_backing_is_read_itself(registered: Registered) -> None:
    backend, path = load(registered)
    expected = bits(backend.forward(ROWS))
    path.forward(ROWS[:1])  # the backing now holds the first row's logits
    registered.mac.fault("async_other_array", output="logits")
    assert bits(path.forward(ROWS)) == expected
    registered.mac.clear()
    registered.mac.fault("async_other_array", output="cls")
    assert bits(path.forward(ROWS)) == expected


# What keeps it from loading


def test_without_pyobjc_it_says_what_to_install(registered: Registered) -> None:
    registered.mac.fault("pyobjc_missing")
    message = refusal(registered)
    assert message.startswith("pyobjc-framework-CoreML cannot be imported (")
    assert message.endswith("install it with: pip install 'laya-apple[ane]'")


def test_a_model_that_does_not_load(registered: Registered) -> None:
    registered.mac.fault("async_load_error", message="no room")
    path = registered.model
    assert refusal(registered) == (
        f"the asynchronous path of L64 did not load: Core ML could not load {path}: no room"
    )


@pytest.mark.parametrize("output", ["logits", "cls"])
def test_other_values_than_coremltools(registered: Registered, output: str) -> None:
    registered.mac.fault("async_wrong_outputs", output=output)
    assert refusal(registered) == (
        f"the asynchronous path of L64 did not load: {output} of the asynchronous path differs from "
        "coremltools'"
    )


def test_values_that_differ_on_the_last_check_input_alone(registered: Registered) -> None:
    registered.mac.fault("async_wrong_outputs", output="cls", after=2, times=1)
    assert refusal(registered).endswith("cls of the asynchronous path differs from coremltools'")


def test_a_prediction_that_fails(registered: Registered) -> None:
    registered.mac.fault("async_error", message="no luck", times=1)
    assert refusal(registered) == (
        "the asynchronous path of L64 did not load: the asynchronous prediction failed: no luck"
    )


def test_a_completion_that_does_not_come(registered: Registered) -> None:
    registered.mac.fault("async_no_completion", times=1)
    backend = CoreMLBackend(
        registered.checkpoint, buckets=(64,), strict=True, platform=registered.mac.platform
    )
    with pytest.raises(BackendUnavailableError, match=r"did not complete within 0\.2 s$"):
        AsyncPath.load(backend, timeout_s=0.2)


def test_a_path_at_cpu_speed_fails_its_probe(registered: Registered) -> None:
    backend = CoreMLBackend(
        registered.checkpoint, buckets=(64,), strict=True, platform=registered.mac.platform
    )
    registered.mac.fault("ane_compile_failed")  # loads from now on run at the CPU's speed
    with pytest.raises(BackendUnavailableError) as caught:
        AsyncPath.load(backend)
    assert str(caught.value).startswith(
        "the asynchronous path of L64 did not load: its placement probe says FELL_BACK: fastest of 5"
    )


def test_without_a_bucket_there_is_nothing_to_load(registered: Registered) -> None:
    registered.mac.fault("load_error", units="CPU_AND_NE")
    with pytest.warns(RuntimeWarning, match="was dropped from the Neural Engine"):
        backend = CoreMLBackend(
            registered.checkpoint, buckets=(64,), strict=False, platform=registered.mac.platform
        )
    with pytest.raises(BackendUnavailableError, match=r"^no bucket of the Neural Engine is loaded$"):
        AsyncPath.load(backend)


# What may go wrong later


@pytest.mark.parametrize(
    ("fault", "arguments", "message"),
    [
        ("async_error", {"message": "no luck"}, "the asynchronous prediction failed: no luck"),
        ("prediction_error", {"message": "no luck"}, "the asynchronous prediction failed: no luck"),
        ("async_no_completion", {}, "the asynchronous prediction did not complete within 0.5 s"),
        ("output_changed", {"name": "other"}, "Core ML returned outputs ['cls', 'other'], the manifest"),
        ("output_changed", {"shape": [1, 1, 1, 31]}, "the asynchronous prediction failed: the backing of"),
        ("output_changed", {"dtype": "float64"}, "the asynchronous prediction failed: the backing of logits"),
    ],
)
def test_a_failed_prediction_raises_and_the_next_one_works(
    registered: Registered, fault: str, arguments: dict[str, Any], message: str
) -> None:
    backend, path = load(registered, timeout_s=0.5)
    expected = bits(backend.forward(ROWS))
    registered.mac.fault(fault, times=1, **arguments)
    with pytest.raises(AsyncPredictionError) as caught:
        path.forward(ROWS[:1])
    assert message in str(caught.value)
    assert bits(path.forward(ROWS)) == expected


def test_a_completion_after_its_timeout_hurts_nobody(registered: Registered) -> None:
    backend, path = load(registered, timeout_s=0.5)
    expected = bits(backend.forward(ROWS))
    registered.mac.fault("prediction_hang", times=1)
    with pytest.raises(AsyncPredictionError, match=r"did not complete within 0\.5 s"):
        path.forward(ROWS[:1])
    path.close()
    del path
    gc.collect()
    registered.mac.clear()  # the held call ends now, with the path gone
    assert bits(backend.forward(ROWS)) == expected


def test_the_models_are_let_go(registered: Registered) -> None:
    def serving() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name == "virtual-coreml"}

    gc.collect()
    before = serving()
    _, path = load(registered)
    path.forward(ROWS[:2])
    (thread,) = serving() - before
    path.close()
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_inputs_reach_the_program_unchanged(registered: Registered, tmp_path: Path) -> None:
    """FP16 in the bound arrays holds exactly what coremltools is given in float32."""
    backend, _ = load(registered)
    for row in ROWS:
        for name, array in backend.host.features(row, 64).items():
            assert np.array_equal(array.astype(np.float16).astype(np.float32), array), name
