"""The MLX backend on MLX's CPU, held against the NumPy network."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from checkpoint_files import VARIANTS, random_rows, write_checkpoint
from safetensors.numpy import load_file, save_file

from laya_apple.backends.base import RowOutput
from laya_apple.backends.host import HostNetwork
from laya_apple.backends.mlx import MLXBackend
from laya_apple.checkpoint import Checkpoint, open_checkpoint
from laya_apple.errors import BackendUnavailableError, UnsupportedModelError
from laya_apple.platform import Platform
from laya_apple.prompt.sequence import Row

FP32_TOLERANCE = 1e-5
FP16_TOLERANCE = 0.02


class Machine(Platform):
    """A platform that says which of MLX's devices answers as the GPU."""

    def __init__(self, gpu: str | None) -> None:
        super().__init__(soc="Test", macos="", macos_build="", machine="test", memory_bytes=0)
        object.__setattr__(self, "_gpu", gpu)

    def mlx_gpu_device(self) -> str | None:
        return self._gpu  # type: ignore[attr-defined,no-any-return]


def machine(gpu: str | None) -> Platform:
    return Machine(gpu)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(write_checkpoint(tmp_path_factory.mktemp("mlx") / "c"))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max())
    return e / e.sum()


def worst(ours: list[RowOutput], theirs: list[RowOutput]) -> float:
    """Largest difference of an option or action probability."""
    assert len(ours) == len(theirs)
    differences = [0.0]
    for a, b in zip(ours, theirs, strict=True):
        assert (a.options.shape, a.action.shape) == (b.options.shape, b.action.shape)
        differences.append(float(np.abs(softmax(a.options) - softmax(b.options)).max()))
        differences.append(float(np.abs(softmax(a.action) - softmax(b.action)).max()))
    return max(differences)


def same_bits(ours: list[RowOutput], theirs: list[RowOutput]) -> bool:
    return all(
        a.options.tobytes() == b.options.tobytes() and a.action.tobytes() == b.action.tobytes()
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_precisions_agree_with_the_numpy_network(tmp_path: Path, variant: str) -> None:
    encoder, agent = VARIANTS[variant]
    checkpoint = open_checkpoint(write_checkpoint(tmp_path / "c", encoder=encoder, agent=agent))
    rows = random_rows(24, seed=3)
    expected = HostNetwork(checkpoint).forward(rows)
    for dtype, tolerance in (("float32", FP32_TOLERANCE), ("float16", FP16_TOLERANCE)):
        outputs = MLXBackend(checkpoint, device="cpu", dtype=dtype).forward(rows)
        assert worst(outputs, expected) <= tolerance
        assert {out.options.dtype for out in outputs} == {np.dtype(np.float32)}
        assert {out.action.dtype for out in outputs} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    "change",
    [
        {"window": 9},
        {"full_rope_theta": 80000.0},
        {"sliding_rope_theta": 5000.0},
        {"layer_kinds": ("sliding", "full", "sliding", "full")},
    ],
)
def test_every_constant_of_the_encoder_moves_the_outputs(
    checkpoint: Checkpoint, change: dict[str, Any]
) -> None:
    """Else agreement between two networks would say nothing about it."""
    rows = random_rows(8, seed=3)
    changed = dataclasses.replace(checkpoint, encoder=dataclasses.replace(checkpoint.encoder, **change))
    expected = HostNetwork(changed).forward(rows)
    assert worst(MLXBackend(changed, device="cpu", dtype="float32").forward(rows), expected) <= FP32_TOLERANCE
    assert worst(HostNetwork(checkpoint).forward(rows), expected) > 100 * FP32_TOLERANCE


def test_half_precision_is_really_used(checkpoint: Checkpoint) -> None:
    rows = random_rows(4, seed=3)
    half = MLXBackend(checkpoint, device="cpu").forward(rows)
    assert worst(half, HostNetwork(checkpoint).forward(rows)) > FP32_TOLERANCE


def test_a_row_does_not_depend_on_its_batch_mates(checkpoint: Checkpoint) -> None:
    rows = random_rows(20, seed=5)
    alone = MLXBackend(checkpoint, device="cpu", dtype="float32", batch_size=1).forward(rows)
    for batch_size in (3, 16, 64):
        backend = MLXBackend(checkpoint, device="cpu", dtype="float32", batch_size=batch_size)
        assert worst(backend.forward(rows), alone) <= FP32_TOLERANCE
    backwards = backend.forward(rows[::-1])
    assert worst(backwards[::-1], alone) <= FP32_TOLERANCE


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_two_calls_and_two_backends_give_the_same_bits(checkpoint: Checkpoint, dtype: Any) -> None:
    rows = random_rows(12, seed=7)
    backend = MLXBackend(checkpoint, device="cpu", dtype=dtype)
    first = backend.forward(rows)
    assert same_bits(first, backend.forward(rows))
    assert same_bits(first, MLXBackend(checkpoint, device="cpu", dtype=dtype).forward(rows))


def test_outputs_keep_the_rows_order_and_no_rows_give_none(checkpoint: Checkpoint) -> None:
    backend = MLXBackend(checkpoint, device="cpu")
    rows = random_rows(10, seed=9)
    assert [len(out.options) for out in backend.forward(rows)] == [len(row.markers) for row in rows]
    assert backend.forward([]) == []


@pytest.mark.parametrize("mates", [[], random_rows(2, seed=1, longest=120)])
def test_a_sliding_layer_sees_exactly_half_the_window_each_way(tmp_path: Path, mates: list[Row]) -> None:
    folder = write_checkpoint(
        tmp_path / "c",
        encoder={"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "local_attention": 16},
        agent={"head_layers": 0},
    )
    backend = MLXBackend(open_checkpoint(folder), device="cpu", dtype="float32")

    def logits(place: int, token: int) -> bytes:
        ids = [2, *([7] * 58), 3]
        ids[place] = token
        row = Row(tuple(ids), (30, 31), 0)
        return backend.forward([row, *mates])[0].options[:1].tobytes()

    plain = logits(30, 7)
    for place in (30 - 9, 30 + 9):
        assert logits(place, 11) == plain
    for place in (30 - 8, 30 + 8):
        assert logits(place, 11) != plain


def in_thread(work: Callable[[], Any]) -> Any:
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(work())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]


def test_a_backend_loaded_on_one_thread_runs_on_another(checkpoint: Checkpoint) -> None:
    rows = random_rows(4, seed=11)
    backend = in_thread(lambda: MLXBackend(checkpoint, device="cpu"))
    assert same_bits(in_thread(lambda: backend.forward(rows)), backend.forward(rows))


@pytest.mark.skipif(not hasattr(mx, "new_thread_local_stream"), reason="this MLX binds no stream to a thread")
def test_no_operation_runs_on_the_process_default_stream(checkpoint: Checkpoint) -> None:
    """The default is made one that cannot run here: whatever strays onto it raises."""
    rows = random_rows(6, seed=13)
    foreign = in_thread(lambda: mx.new_stream(mx.cpu))

    def work() -> tuple[list[RowOutput], str]:
        mx.set_default_stream(foreign)
        with pytest.raises(RuntimeError):
            mx.eval(mx.add(mx.array(1), mx.array(1)))
        outputs = MLXBackend(checkpoint, device="cpu").forward(rows)
        return outputs, str(mx.default_stream(mx.default_device()))

    outputs, default_after = in_thread(work)
    assert default_after == str(foreign)
    assert same_bits(outputs, MLXBackend(checkpoint, device="cpu").forward(rows))


def test_loading_and_running_leave_the_defaults_alone(checkpoint: Checkpoint) -> None:
    device = mx.default_device()
    stream = str(mx.default_stream(device))
    backend = MLXBackend(checkpoint, device="cpu")
    backend.warm()
    backend.forward(random_rows(2, seed=15))
    assert mx.default_device() == device
    assert str(mx.default_stream(device)) == stream


def test_gpu_where_there_is_none_raises_and_names_the_cpu(checkpoint: Checkpoint) -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        MLXBackend(checkpoint, device="gpu", platform=machine(None))
    assert str(caught.value) == ('MLX has no GPU on this machine; device="cpu" runs the model on the CPU')


def test_the_platform_says_which_device_answers_as_the_gpu(checkpoint: Checkpoint) -> None:
    rows = random_rows(3, seed=17)
    backend = MLXBackend(checkpoint, device="gpu", platform=machine("cpu"))
    assert (backend.info.backend, backend.info.device, backend.info.dtype) == ("mlx", "gpu", "float16")
    assert backend.info.weights_sha256 == checkpoint.spec.weights_sha256
    assert same_bits(backend.forward(rows), MLXBackend(checkpoint, device="cpu").forward(rows))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "ane"}, 'device must be "gpu" or "cpu", not \'ane\''),
        ({"device": "cpu", "dtype": "bfloat16"}, 'dtype must be "float16" or "float32", not \'bfloat16\''),
        ({"device": "cpu", "batch_size": 0}, "batch_size must be at least 1, not 0"),
    ],
)
def test_bad_arguments_are_refused(checkpoint: Checkpoint, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        MLXBackend(checkpoint, **arguments)
    assert str(caught.value) == message


def test_an_id_beyond_the_table_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(UnsupportedModelError, match="token id 65 is beyond the embedding table"):
        MLXBackend(checkpoint, device="cpu").forward([Row((2, 65, 3), (1,), 0)])


def test_non_finite_outputs_are_returned_not_hidden(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    tensors = load_file(folder / "model.safetensors")
    tensors["scorer.3.bias"] = np.array([np.nan], np.float32)
    save_file(tensors, folder / "model.safetensors")
    (output,) = MLXBackend(open_checkpoint(folder), device="cpu").forward(random_rows(1, seed=1))
    assert np.isnan(output.options).all()


def test_a_closed_backend_says_so(checkpoint: Checkpoint) -> None:
    backend = MLXBackend(checkpoint, device="cpu")
    backend.close()
    backend.close()
    with pytest.raises(BackendUnavailableError, match="this backend is closed"):
        backend.forward(random_rows(1, seed=1))
