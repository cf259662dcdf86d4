"""The network in NumPy float32, spelt apart from the others, and what backends share on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laya_apple.backends.base import RowOutput
from laya_apple.checkpoint import Checkpoint
from laya_apple.config import LayerKind
from laya_apple.errors import UnsupportedModelError
from laya_apple.prompt.sequence import Row

Floats = NDArray[np.float32]

HEAD_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows padded to one length L and one option count K (at least 2)."""

    ids: NDArray[np.int32]
    """[B, L], zero where padded."""
    lengths: NDArray[np.int32]
    """[B]."""
    markers: NDArray[np.int32]
    """[B, K], zero where a row has no option."""
    active: NDArray[np.bool_]
    """[B, K]."""
    qtypes: NDArray[np.int32]
    """[B]."""

    @property
    def padded(self) -> bool:
        """True when any row is shorter than L."""
        return bool((self.lengths != self.ids.shape[1]).any())


def pack(rows: Sequence[Row], vocab_size: int) -> Packed:
    """Pad rows to the longest. Raises UnsupportedModelError when a token id is beyond the embedding table."""
    lengths = np.array([len(row.ids) for row in rows], dtype=np.int32)
    options = max(2, *(len(row.markers) for row in rows))
    ids = np.zeros((len(rows), int(lengths.max())), dtype=np.int32)
    markers = np.zeros((len(rows), options), dtype=np.int32)
    active = np.zeros((len(rows), options), dtype=np.bool_)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = row.ids
        markers[i, : len(row.markers)] = row.markers
        active[i, : len(row.markers)] = True
    if int(ids.max()) >= vocab_size or int(ids.min()) < 0:
        raise UnsupportedModelError(
            f"token id {int(ids.max())} is beyond the embedding table ({vocab_size} tokens); tokenizer and "
            "weights do not belong together, so restore both from one checkpoint"
        )
    qtypes = np.array([row.qtype for row in rows], dtype=np.int32)
    return Packed(ids, lengths, markers, active, qtypes)


def erf(x: NDArray[Any]) -> Floats:
    """The error function of float32 values, within 3e-7; NaN stays NaN.

    The rational approximation of degree 13 / 8 in x that Eigen uses for float32, on [-4, 4].
    """
    x = np.clip(np.asarray(x, dtype=np.float32), np.float32(-4), np.float32(4))
    square = x * x
    return np.asarray(x * _horner(_ERF_ALPHA, square) / _horner(_ERF_BETA, square), dtype=np.float32)


_ERF_ALPHA = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_BETA = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def _horner(coefficients: Sequence[float], x: Floats) -> Floats:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += np.float32(coefficient)
    return total


def gelu(x: Floats) -> Floats:
    """Exact GELU, x (1 + erf(x / sqrt 2)) / 2, float32."""
    half = np.float32(0.5) * x
    return np.asarray(half * (1 + erf(x * np.float32(1 / math.sqrt(2)))), dtype=np.float32)


def softmax(x: Floats) -> Floats:
    """Over the last axis, float32."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True), dtype=np.float32)


def action_features(logits: Floats, k: int) -> Floats:
    """The four numbers beside the CLS state: top1, top1 - top2, normalised entropy, k / 255.

    ``logits`` [n] of a row's n options; ``k`` = max(n, 2), so a lone option counts as certain of two.
    """
    p = softmax(logits.astype(np.float32))
    ordered = np.sort(np.concatenate([p, np.zeros(1, np.float32)]))[::-1]
    entropy = -float((p * np.log(np.maximum(p, 1e-9))).sum()) / math.log(k)
    return np.array([ordered[0], ordered[0] - ordered[1], entropy, k / 255], dtype=np.float32)


def action_head(cls: Floats, logits: Floats, tensors: dict[str, NDArray[Any]]) -> Floats:
    """Action logits [n_actions] float32, from the CLS state [d] after the decision layers and a row's option
    logits [n]; ``tensors`` holds ``act_head.0`` and ``act_head.2``, weight and bias.
    """
    x = np.concatenate([cls.astype(np.float32), action_features(logits, max(len(logits), 2))])
    x = gelu(_affine(x, tensors["act_head.0.weight"], tensors["act_head.0.bias"]))
    return _affine(x, tensors["act_head.2.weight"], tensors["act_head.2.bias"])


def _affine(x: Floats, weight: NDArray[Any], bias: NDArray[Any] | None) -> Floats:
    y = x @ weight.astype(np.float32).T
    return np.asarray(y if bias is None else y + bias.astype(np.float32), dtype=np.float32)


class HostNetwork:
    """The whole network in NumPy float32, one row at a time, unpadded: what the others are held to."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.encoder = checkpoint.encoder
        self.config = checkpoint.config
        self.tensors: dict[str, Floats] = {
            name: np.asarray(tensor, dtype=np.float32) for name, tensor in checkpoint.tensors().items()
        }

    def forward(self, rows: Sequence[Row]) -> list[RowOutput]:
        """Outputs of all rows, in order. Raises UnsupportedModelError for an id beyond the table."""
        outputs = []
        for row in rows:
            pack([row], self.encoder.vocab_size)
            h = self.decide(self.encode(np.array(row.ids)), row.qtype)
            options = self._score(h[list(row.markers)])
            outputs.append(RowOutput(options, action_head(h[0], options, self.tensors)))
        return outputs

    def encode(self, ids: NDArray[Any]) -> Floats:
        """Encoder states [L, d] of token ids [L]."""
        eps = self.encoder.norm_eps
        h = self._norm(
            "encoder.embeddings.norm", self.tensors["encoder.embeddings.tok_embeddings.weight"][ids], eps
        )
        for i, kind in enumerate(self.encoder.layer_kinds):
            name = f"encoder.layers.{i}"
            x = h if i == 0 else self._norm(f"{name}.attn_norm", h, eps)
            q, k, v = np.split(self._linear(f"{name}.attn.Wqkv", x), 3, axis=1)
            h = h + self._linear(f"{name}.attn.Wo", self._encoder_attention(q, k, v, kind))
            value, gate = np.split(
                self._linear(f"{name}.mlp.Wi", self._norm(f"{name}.mlp_norm", h, eps)), 2, axis=1
            )
            h = h + self._linear(f"{name}.mlp.Wo", gelu(value) * gate)
        return self._norm("encoder.final_norm", h, eps)

    def decide(self, h: Floats, qtype: int) -> Floats:
        """States [L, d] after the type vector and the decision layers."""
        h = h + self.tensors["type_emb.weight"][qtype]
        for j in range(self.config.head_layers):
            name = f"head.layers.{j}"
            x = self._norm(f"{name}.norm1", h, HEAD_EPS)
            weight, bias = (self.tensors[f"{name}.self_attn.in_proj_{part}"] for part in ("weight", "bias"))
            q, k, v = np.split(_affine(x, weight, bias), 3, axis=1)
            x = _attention(q, k, v, self.encoder.decision_heads, None)
            h = h + self._linear(f"{name}.self_attn.out_proj", x)
            x = np.maximum(self._linear(f"{name}.linear1", self._norm(f"{name}.norm2", h, HEAD_EPS)), 0)
            h = h + self._linear(f"{name}.linear2", x)
        return h

    def _score(self, h: Floats) -> Floats:
        x = gelu(self._linear("scorer.1", self._norm("scorer.0", h, HEAD_EPS)))
        return self._linear("scorer.3", x)[:, 0]

    def _encoder_attention(self, q: Floats, k: Floats, v: Floats, kind: LayerKind) -> Floats:
        length = len(q)
        cos, sin = rope_tables(length, self.encoder.head_dim, self.encoder.rope_theta(kind))
        heads = self.encoder.heads
        cos, sin = np.tile(cos, heads), np.tile(sin, heads)
        q, k = (x * cos + _rotate_half(x, heads) * sin for x in (q, k))
        hidden = None
        if kind == "sliding":
            positions = np.arange(length)
            hidden = np.abs(positions[:, None] - positions[None, :]) > self.encoder.window
        return _attention(q, k, v, heads, hidden)

    def _linear(self, name: str, x: Floats) -> Floats:
        return _affine(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def _norm(self, name: str, x: Floats, eps: float) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        y = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(eps))
        y = y * self.tensors[f"{name}.weight"]
        bias = self.tensors.get(f"{name}.bias")
        return np.asarray(y if bias is None else y + bias, dtype=np.float32)


def rope_tables(length: int, head_dim: int, theta: float) -> tuple[Floats, Floats]:
    """Cosines and sines [L, head_dim] of the rotary embedding; both halves alike, float32."""
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    angles = np.arange(length)[:, None] * frequencies
    angles = np.concatenate([angles, angles], axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotate_half(x: Floats, heads: int) -> Floats:
    """[L, d] -> per head (-second half, first half)."""
    first, second = np.split(x.reshape(len(x), heads, -1), 2, axis=2)
    return np.concatenate([-second, first], axis=2).reshape(x.shape)


def _attention(q: Floats, k: Floats, v: Floats, heads: int, hidden: NDArray[np.bool_] | None) -> Floats:
    """[L, d] each -> [L, d]; ``hidden`` [L, L] is True where a query does not see a key."""
    parts = []
    for qh, kh, vh in zip(*(np.split(x, heads, axis=1) for x in (q, k, v)), strict=True):
        scores = qh @ kh.T * np.float32(qh.shape[1] ** -0.5)
        if hidden is not None:
            scores = np.where(hidden, np.float32(-np.inf), scores)
        parts.append(softmax(scores) @ vh)
    return np.concatenate(parts, axis=1)
