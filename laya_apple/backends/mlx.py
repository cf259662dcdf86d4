"""The MLX backend: rows in padded batches through the network, on one named device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import mlx.core as mx
import numpy as np

from laya_apple.backends.base import BackendInfo, RowOutput
from laya_apple.backends.host import pack
from laya_apple.checkpoint import Checkpoint
from laya_apple.errors import BackendUnavailableError
from laya_apple.models.modernbert import Dtype, LayaNetwork
from laya_apple.platform import Platform, current_platform
from laya_apple.prompt.sequence import Row

_GPU_WARM_LENGTHS = ((64,), (100, 128))
_CPU_WARM_LENGTHS = ((8,),)


class MLXBackend:
    """A checkpoint loaded on MLX's GPU, or on its CPU when that is asked for.

    Work runs on a stream of its own; MLX's default device and stream are neither used nor changed. Two calls
    with the same rows return the same bits.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: Literal["gpu", "cpu"],
        dtype: Dtype = "float16",
        batch_size: int = 16,
        platform: Platform | None = None,
    ) -> None:
        """Load the weights. ``batch_size`` is the most rows in one forward.

        Raises BackendUnavailableError when ``device="gpu"`` and this machine has none for MLX, and
        UnsupportedModelError when the weights cannot be read.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if dtype not in ("float16", "float32"):
            raise ValueError(f'dtype must be "float16" or "float32", not {dtype!r}')
        mlx_device = _mlx_device(device, platform or current_platform())
        self._on_gpu = mlx_device == "gpu"
        self._batch_size = batch_size
        self._vocab_size = checkpoint.encoder.vocab_size
        self._network: LayaNetwork | None = LayaNetwork(
            checkpoint.config,
            checkpoint.encoder,
            checkpoint.tensors(),
            dtype=dtype,
            stream=_new_stream(mlx_device),
            widen_attention=not self._on_gpu,
        )
        self._info = BackendInfo(
            backend="mlx", device=device, dtype=dtype, weights_sha256=checkpoint.spec.weights_sha256
        )

    @property
    def info(self) -> BackendInfo:
        return self._info

    def forward(self, rows: Sequence[Row]) -> list[RowOutput]:
        """Outputs of all rows, in order, float32. Non-finite outputs are returned, not hidden.

        Raises UnsupportedModelError when a token id is beyond the embedding table, and
        BackendUnavailableError after :meth:`close`.
        """
        outputs: dict[int, RowOutput] = {}
        for places in self._batches(rows):
            batch = [rows[place] for place in places]
            outputs.update(zip(places, self._run(batch), strict=True))
        return [outputs[place] for place in range(len(rows))]

    def warm(self) -> None:
        """A single row, then a padded batch: MLX makes a GPU kernel ready at its first use, not once a shape.

        Its CPU has nothing to make ready, so a few tokens do there.
        """
        for lengths in _GPU_WARM_LENGTHS if self._on_gpu else _CPU_WARM_LENGTHS:
            self.forward([Row(ids=(0,) * length, markers=(1, 2), qtype=0) for length in lengths])

    def close(self) -> None:
        """Let go of the weights."""
        self._network = None

    def _batches(self, rows: Sequence[Row]) -> Iterator[list[int]]:
        """Places of rows, shortest first, so that a batch carries little padding."""
        order = sorted(range(len(rows)), key=lambda place: len(rows[place].ids))
        for start in range(0, len(order), self._batch_size):
            yield order[start : start + self._batch_size]

    def _run(self, rows: Sequence[Row]) -> list[RowOutput]:
        if self._network is None:
            raise BackendUnavailableError("this backend is closed")
        batch = pack(rows, self._vocab_size)
        lengths = mx.array(batch.lengths) if batch.padded else None
        logits, action = self._network(
            mx.array(batch.ids),
            lengths,
            mx.array(batch.markers),
            mx.array(batch.active),
            mx.array(batch.qtypes),
        )
        mx.eval(logits, action)
        all_logits, all_actions = np.array(logits), np.array(action)
        return [
            RowOutput(options=all_logits[i, : len(row.markers)].copy(), action=all_actions[i].copy())
            for i, row in enumerate(rows)
        ]


def _mlx_device(device: str, platform: Platform) -> str:
    """``gpu`` or ``cpu``: which of MLX's devices answers for the one asked for."""
    if device == "cpu":
        return "cpu"
    if device != "gpu":
        raise ValueError(f'device must be "gpu" or "cpu", not {device!r}')
    answers = platform.mlx_gpu_device()
    if answers is None:
        raise BackendUnavailableError(
            'MLX has no GPU on this machine; device="cpu" runs the model on the CPU'
        )
    return answers


def _new_stream(mlx_device: str) -> object:
    # A stream belongs to the thread that made it; a thread-local one follows the backend from the thread
    # that loads it to the one that runs it. Older MLX has no such rule and no such kind.
    make = getattr(mx, "new_thread_local_stream", mx.new_stream)
    stream: object = make(mx.gpu if mlx_device == "gpu" else mx.cpu)
    return stream
