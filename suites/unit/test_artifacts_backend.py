"""The Neural Engine backend: which bucket answers, what is refused before any work, and what is dropped."""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifact_files import STEADY, Built, Registered, tiny_checkpoint
from checkpoint_files import random_rows
from straight_forward import straight_forward, worst

from laya_apple.artifacts.bucket import check_outputs
from laya_apple.artifacts.build import build_artifact
from laya_apple.artifacts.features import HostSide
from laya_apple.artifacts.locations import Locations
from laya_apple.artifacts.manifest import ArraySpec
from laya_apple.backends.coreml import CoreMLBackend, check_rows, fitting_bucket
from laya_apple.backends.host import HostNetwork
from laya_apple.errors import (
    ArtifactError,
    ArtifactMissingError,
    BackendUnavailableError,
    ComputeUnitMismatchError,
    UnsupportedModelError,
    UnsupportedShapeError,
)
from laya_apple.prompt.sequence import Row
from pytest_laya.virtual_mac.control import VirtualMac


def _backend(
    registered: Registered, *, strict: bool = True, buckets: tuple[int, ...] = (64,)
) -> CoreMLBackend:
    return CoreMLBackend(
        registered.checkpoint, buckets=buckets, strict=strict, platform=registered.mac.platform
    )


def _row(tokens: int, options: int = 2) -> Row:
    return Row(ids=(2,) + (7,) * (tokens - 1), markers=tuple(range(1, options + 1)), qtype=0)


@pytest.fixture(scope="module")
def loaded(
    built: Built, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Registered, CoreMLBackend]]:
    """One backend that every test of its forwards shares; faults are taken back after each."""
    folder = tmp_path_factory.mktemp("serving")
    shutil.copytree(built.cache, folder / "cache")
    with pytest.MonkeyPatch.context() as patch, VirtualMac(folder / "mac", patch) as mac:
        patch.setenv("LAYA_APPLE_CACHE", str(folder / "cache"))
        mac.profile(STEADY)
        registered = Registered(mac, built.checkpoint, Locations.of(mac.platform))
        yield registered, _backend(registered, buckets=(64, 96))


@pytest.fixture
def serving(loaded: tuple[Registered, CoreMLBackend]) -> Iterator[tuple[Registered, CoreMLBackend]]:
    yield loaded
    loaded[0].mac.clear()


def test_answers_are_the_network_s(serving: tuple[Registered, CoreMLBackend]) -> None:
    registered, backend = serving
    rows = [*random_rows(6, seed=4, longest=64), _row(64, 32), _row(3, 1)]
    found = backend.forward(rows)
    assert [len(output.options) for output in found] == [len(row.markers) for row in rows]
    for row, output, expected in zip(
        rows, found, HostNetwork(registered.checkpoint).forward(rows), strict=True
    ):
        logits, _ = straight_forward(registered.checkpoint, row)
        # Logits here reach 10; FP16 keeps eleven bits.
        assert worst(output.options, logits) < 0.1
        assert worst(output.action, expected.action) < 0.2
        assert output.options.dtype == output.action.dtype == np.float32


def test_two_identical_calls_are_bitwise_equal(serving: tuple[Registered, CoreMLBackend]) -> None:
    _, backend = serving
    rows = random_rows(4, seed=9, longest=64)
    for first, second in zip(backend.forward(rows), backend.forward(rows), strict=True):
        assert first.options.tobytes() == second.options.tobytes()
        assert first.action.tobytes() == second.action.tobytes()


def test_info(serving: tuple[Registered, CoreMLBackend]) -> None:
    registered, backend = serving
    info = pickle.loads(pickle.dumps(backend.info))
    assert (info.backend, info.device, info.dtype, info.compute_units) == (
        "coreml",
        "ane",
        "float16",
        "CPU_AND_NE",
    )
    assert info.buckets == (64,)
    assert info.artifact_sha256 == {64: registered.load()[1].artifact_sha256}
    assert set(info.probes) == {64}
    assert info.probes[64]["verdict"] == "PLACED"
    assert info.probes[64]["ratio"] == pytest.approx(info.probes[64]["ane_ms"] / info.probes[64]["cpu_ms"])
    assert info.dropped[96].startswith("ArtifactMissingError: local:tiny L96: no Neural Engine artifact")
    assert info.weights_sha256 == registered.checkpoint.spec.weights_sha256


def test_fitting_bucket() -> None:
    assert fitting_bucket(1, (64, 96)) == 64
    assert fitting_bucket(64, (96, 64)) == 64
    assert fitting_bucket(65, (64, 96)) == 96
    assert fitting_bucket(97, (64, 96)) is None
    assert fitting_bucket(1, ()) is None


def test_shapes_are_refused_before_any_work(serving: tuple[Registered, CoreMLBackend]) -> None:
    registered, backend = serving
    before = len(registered.mac.events("predict"))
    with pytest.raises(UnsupportedShapeError, match=r"97 tokens exceed 96, .*use device=\"gpu\""):
        backend.forward([_row(10), _row(97)])
    with pytest.raises(UnsupportedShapeError, match="33 options exceed 32"):
        backend.forward([_row(10), _row(64, 33)])
    with pytest.raises(UnsupportedShapeError):
        check_rows([_row(129)], registered.checkpoint.spec, (64, 96, 128))
    assert check_rows([_row(70), _row(3)], registered.checkpoint.spec, (64, 96, 128)) == (96, 64)
    assert len(registered.mac.events("predict")) == before


def test_a_missing_bucket_raises_its_own_error_and_never_pads_up(registered: Registered) -> None:
    build_artifact(registered.checkpoint, 128, platform=registered.mac.platform)
    backend = _backend(registered, buckets=(64, 96, 128))
    before = len(registered.mac.events("predict"))
    with pytest.raises(ArtifactMissingError, match=r"L96: no .*artifacts build --model .* --bucket 96"):
        backend.forward([_row(10), _row(96)])
    assert len(registered.mac.events("predict")) == before
    assert backend.buckets_of([_row(128), _row(64)]) == (128, 64)


def test_explicit_ane_without_any_artifact_raises_at_load(registered: Registered) -> None:
    with pytest.raises(ArtifactMissingError, match="L96"):
        _backend(registered, buckets=(96, 128))


def test_auto_without_any_artifact_loads_empty_and_warns_nothing(registered: Registered) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend = _backend(registered, strict=False, buckets=(96, 128))
    assert backend.info.buckets == ()
    assert set(backend.info.dropped) == {96, 128}
    with pytest.raises(ArtifactMissingError, match="L96"):
        backend.forward([_row(70)])


FAULTS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "ops_on_cpu": (ComputeUnitMismatchError, "compute plan", {}),
    "plan_without_device": (ComputeUnitMismatchError, "no device for", {}),
    "ane_compile_failed": (ComputeUnitMismatchError, "FELL_BACK", {}),
    "load_kills": (ArtifactError, "SIGKILL", {}),
    "load_error": (ArtifactError, "refuses to load", {}),
    "prediction_error": (ArtifactError, "failed this prediction", {}),
    "output_changed": (ArtifactError, "the manifest declares", {"name": "logitz"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_explicit_ane_raises_what_auto_drops(registered: Registered, fault: str) -> None:
    error, says, args = FAULTS[fault]
    registered.mac.fault(fault, **args)
    with pytest.raises(error, match=f"(?s){says}") as caught:
        _backend(registered)
    assert type(caught.value) is error
    with pytest.warns(RuntimeWarning, match=f"(?s)L64 was dropped .*{error.__name__}: .*{says}") as seen:
        backend = _backend(registered, strict=False)
    assert len([w for w in seen if issubclass(w.category, RuntimeWarning)]) == 1
    assert backend.info.buckets == ()
    assert backend.info.dropped[64].startswith(f"{error.__name__}: ")
    with pytest.raises(ArtifactMissingError, match="L64 is not loaded"):
        backend.forward([_row(10)])


def test_the_probe_of_a_dropped_bucket_is_reported(registered: Registered) -> None:
    registered.mac.fault("ane_compile_failed")
    with pytest.warns(RuntimeWarning, match="FELL_BACK"):
        backend = _backend(registered, strict=False)
    assert backend.info.probes[64]["verdict"] == "FELL_BACK"
    assert backend.info.probes[64]["ratio"] > 0.8


def test_a_probe_that_cannot_be_made_is_unknown_and_never_passes(registered: Registered) -> None:
    registered.mac.fault("load_error", units="CPU_ONLY")
    with pytest.raises(
        ComputeUnitMismatchError, match=r"\(UNKNOWN\): placement unknown: the CPU_ONLY instance"
    ):
        _backend(registered)
    with pytest.warns(RuntimeWarning, match="UNKNOWN"):
        backend = _backend(registered, strict=False)
    assert backend.info.probes[64]["verdict"] == "UNKNOWN"
    assert backend.info.probes[64]["cpu_ms"] is None


@pytest.mark.parametrize("strict", [True, False])
def test_without_core_ml_both_modes_raise(registered: Registered, strict: bool) -> None:
    registered.mac.fault("coremltools_missing")
    with pytest.raises(BackendUnavailableError):
        _backend(registered, strict=strict)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "logitz"}, r"outputs \['cls', 'logitz'\], the manifest declares \['cls', 'logits'\]"),
        ({"shape": [1, 32]}, r"logits as float32 \[1, 32\], the manifest declares float16 \[1, 1, 1, 32\]"),
        ({"dtype": "float64"}, "logits as float64"),
        ({"dtype": "int32"}, "logits as int32"),
    ],
)
def test_every_prediction_is_held_against_the_manifest(
    serving: tuple[Registered, CoreMLBackend], change: dict[str, Any], says: str
) -> None:
    registered, backend = serving
    backend.forward([_row(9)])
    registered.mac.fault("output_changed", **change)
    with pytest.raises(ArtifactError, match=says):
        backend.forward([_row(9)])
    with pytest.raises(ArtifactError, match=says):
        backend.warm()
    registered.mac.clear()
    backend.forward([_row(9)])


def test_outputs_that_are_no_arrays_are_refused() -> None:
    declared = (ArraySpec("logits", (2,), "float16"),)
    with pytest.raises(ArtifactError, match="Core ML returned a list for logits"):
        check_outputs(declared, {"logits": [1.0, 2.0]})


def test_non_finite_outputs_are_returned_not_hidden(serving: tuple[Registered, CoreMLBackend]) -> None:
    registered, backend = serving
    registered.mac.fault("nonfinite_outputs", value="nan")
    [output] = backend.forward([_row(9)])
    assert np.isnan(output.options).all()


def test_a_failed_prediction_names_itself(serving: tuple[Registered, CoreMLBackend]) -> None:
    registered, backend = serving
    registered.mac.fault("prediction_error", message="out of sorts")
    with pytest.raises(ArtifactError, match=r"the Core ML prediction failed: .*out of sorts"):
        backend.forward([_row(9)])


def test_an_artifact_of_another_width_is_refused(registered: Registered, tmp_path: Path) -> None:
    from dataclasses import replace

    wide = tiny_checkpoint(tmp_path / "wide", encoder={"hidden_size": 64})
    mixed = replace(wide, spec=registered.checkpoint.spec)
    with pytest.raises(ArtifactError, match="L64: the artifact has 32 channels, the checkpoint 64"):
        CoreMLBackend(mixed, buckets=(64,), strict=True, platform=registered.mac.platform)


def test_closing_lets_the_models_go(registered: Registered) -> None:
    backend = _backend(registered)
    backend.warm()
    backend.close()
    assert backend.info.buckets == ()


# --- the host's side


def test_features_of_a_padded_row(registered: Registered) -> None:
    checkpoint = registered.checkpoint
    row = Row(ids=(2, 9, 4, 11, 3), markers=(2, 4), qtype=1)
    made = HostSide(checkpoint).features(row, 8)
    window = checkpoint.encoder.window
    tensors = checkpoint.tensors()
    assert {name: array.dtype.name for name, array in made.items()} == dict.fromkeys(made, "float32")
    table = tensors["encoder.embeddings.tok_embeddings.weight"].astype(np.float16)
    gathered = table[list(row.ids)]
    assert (made["embeddings"][0, :, 0, :5] == gathered.T).all()
    assert (made["embeddings"][0, :, 0, 5:] == 0).all()
    for key in range(8):
        for query in range(8):
            seen = key < 5
            near = seen and (query >= 5 or abs(key - query) <= window)
            assert made["full_mask"][0, key, 0, query] == (0 if seen else -1e4)
            assert made["local_mask"][0, key, 0, query] == (0 if near else -1e4)
    assert made["marker_map"].sum() == 2
    assert made["marker_map"][0, 2, 0, 0] == made["marker_map"][0, 4, 0, 1] == 1
    types = tensors["type_emb.weight"].astype(np.float16)
    assert (made["type_vectors"][0, :, 0, 0] == types[1]).all()


def test_masks_are_exact_in_fp16_and_no_query_is_masked_everywhere(registered: Registered) -> None:
    made = HostSide(registered.checkpoint).features(_row(40), 64)
    for name in ("full_mask", "local_mask"):
        assert (made[name] == made[name].astype(np.float16)).all()
        assert (made[name].max(axis=1) == 0).all()


def test_a_token_beyond_the_table_is_refused(registered: Registered) -> None:
    with pytest.raises(UnsupportedModelError, match="token id 999 is beyond the embedding table"):
        HostSide(registered.checkpoint).features(Row(ids=(2, 999), markers=(1,), qtype=0), 64)
