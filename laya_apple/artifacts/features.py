"""The host's side of a Core ML prediction: a token row's input arrays, and outputs back to logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laya_apple.artifacts.graph import MASKED, MAX_OPTIONS
from laya_apple.backends.base import RowOutput
from laya_apple.backends.host import action_head
from laya_apple.checkpoint import Checkpoint
from laya_apple.errors import UnsupportedModelError
from laya_apple.prompt.sequence import Row

Float32 = NDArray[np.float32]

_EMBEDDINGS = "encoder.embeddings.tok_embeddings.weight"
_TYPES = "type_emb.weight"
_ACTION = ("act_head.0.weight", "act_head.0.bias", "act_head.2.weight", "act_head.2.bias")


class HostSide:
    """Embedding table, masks and the FP32 action head of one checkpoint; shared by all its buckets.

    Arrays are float32 that hold FP16 values: coremltools widens FP16 input before it calls Core ML anyway.
    Without ``rounded`` they hold the checkpoint's own values, for the layout check at FP32.
    """

    def __init__(self, checkpoint: Checkpoint, *, rounded: bool = True) -> None:
        tensors = checkpoint.tensors([_EMBEDDINGS, _TYPES, *_ACTION])
        self.hidden = checkpoint.encoder.hidden_size
        self._window = checkpoint.encoder.window
        self._pad_id = min(checkpoint.encoder.pad_token_id, checkpoint.encoder.vocab_size - 1)
        precision = np.float16 if rounded else np.float32
        self._embeddings = tensors[_EMBEDDINGS].astype(precision, copy=False)
        self.vocab_size = len(self._embeddings)
        self._types = tensors[_TYPES].astype(precision).astype(np.float32)
        self._action = {name: tensors[name].astype(np.float32) for name in _ACTION}

    def features(self, row: Row, length: int) -> dict[str, Float32]:
        """The program's inputs for ``row`` padded to ``length`` tokens, fresh arrays by name.

        The row must fit: at most ``length`` tokens and 32 options (the backend has checked). Raises
        UnsupportedModelError for a token id beyond the embedding table.
        """
        ids = np.asarray(row.ids, dtype=np.int64)
        valid = len(ids)
        if int(ids.max()) >= len(self._embeddings) or int(ids.min()) < 0:
            raise UnsupportedModelError(
                f"token id {int(ids.max())} is beyond the embedding table ({len(self._embeddings)} tokens); "
                "tokenizer and weights do not belong together, so restore both from one checkpoint"
            )
        embeddings = np.zeros((1, self.hidden, 1, length), np.float32)
        embeddings[0, :, 0, :valid] = self._embeddings[ids].T
        # [key, query]. A padding query sees every valid key, so that no query has all keys masked.
        full = np.zeros((1, length, 1, length), np.float32)
        full[0, valid:] = MASKED
        local = full.copy()
        positions = np.arange(valid)
        distant = np.abs(positions[:, None] - positions[None, :]) > self._window
        local[0, :valid, 0, :valid][distant] = MASKED
        marker_map = np.zeros((1, length, 1, MAX_OPTIONS), np.float32)
        marker_map[0, list(row.markers), 0, range(len(row.markers))] = 1.0
        return {
            "embeddings": embeddings,
            "full_mask": full,
            "local_mask": local,
            "type_vectors": self._types[row.qtype].reshape(1, self.hidden, 1, 1),
            "marker_map": marker_map,
        }

    def probe_features(self, length: int) -> dict[str, Float32]:
        """The inputs of the row the placement probe and warming use: ``length`` pad tokens, two options."""
        return self.features(Row(ids=(self._pad_id,) * length, markers=(0, 1), qtype=0), length)

    def finish(self, row: Row, outputs: Mapping[str, NDArray[Any]]) -> RowOutput:
        """The row's option logits and, through the FP32 action head, its action logits.

        The program scores 32 slots; those without an option never reach a softmax, as if they held -1e4.
        """
        options = np.array(outputs["logits"], np.float32).reshape(-1)[: len(row.markers)]
        cls = np.array(outputs["cls"], np.float32).reshape(-1)
        return RowOutput(options=options, action=action_head(cls, options, self._action))
