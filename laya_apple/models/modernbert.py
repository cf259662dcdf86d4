"""Laya's network in MLX: a ModernBERT encoder, decision layers, a scorer and an action head.

Every operation names its stream, so nothing depends on, or changes, MLX's default device, which belongs to
the program this runs in. That rules out operators and indexing on arrays: they run on the default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from laya_apple.config import AgentConfig, EncoderConfig, LayerKind

Dtype = Literal["float16", "float32"]

HEAD_EPS = 1e-5
"""LayerNorm epsilon of the decision layers and the scorer."""
NO_OPTION = -1e4
"""Logit where a row has no option."""

_FLOAT32_PREFIXES = ("scorer.", "act_head.")


def rope_angles(length: int, head_dim: int, theta: float) -> NDArray[np.float32]:
    """Rotation angles [length, head_dim / 2] in radians, rounded to float32 where PyTorch rounds them."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = (theta ** exponents.astype(np.float64)).astype(np.float32)
    positions = np.arange(length, dtype=np.float32)
    return np.outer(positions, np.float32(1) / powers)


@dataclass(frozen=True)
class Masks:
    """Attention masks of a batch, True where a key is visible, broadcastable to [B, heads, L, L]; or None."""

    full: mx.array | None
    sliding: mx.array | None


class LayaNetwork:
    """The network at one precision on one stream.

    The scorer and the action head are small and run in float32 at either precision; LayerNorm and softmax
    accumulate in float32 inside MLX.
    """

    def __init__(
        self,
        config: AgentConfig,
        encoder: EncoderConfig,
        tensors: Mapping[str, NDArray[Any]],
        *,
        dtype: Dtype,
        stream: Any,
        widen_attention: bool = False,
    ) -> None:
        """``tensors`` are in PyTorch's layout (:func:`laya_apple.weights.expected_shapes`).

        ``widen_attention`` runs attention in float32: MLX's CPU has no fused kernel, and its float16 softmax
        is several times slower than converting (on the GPU the fused kernel keeps scores in float32 anyway).
        """
        self.config = config
        self.encoder = encoder
        self.stream = stream
        self.widen_attention = widen_attention
        self.dtype = mx.float16 if dtype == "float16" else mx.float32
        self.weights: dict[str, mx.array] = {}
        for name, tensor in tensors.items():
            numpy_dtype = np.float32 if name.startswith(_FLOAT32_PREFIXES) else np.dtype(dtype)
            array = np.asarray(tensor, dtype=numpy_dtype)
            # Linear weights are kept transposed: x @ W.T is how PyTorch lays them out.
            if array.ndim == 2 and "emb" not in name:
                array = np.ascontiguousarray(array.T)
            self.weights[name] = mx.array(array)
        # Upstream's angles carry float32 rounding that grows with the position. Rotating by the same angles
        # keeps float32 within 3e-6 of its probabilities on the fixture checkpoints; MLX's fused rotation,
        # which rounds otherwise, within 1.5e-5 only.
        self._angles: dict[float, NDArray[np.float32]] = {}
        if dtype == "float32":
            thetas = {encoder.rope_theta(kind) for kind in encoder.layer_kinds}
            self._angles = {theta: rope_angles(config.max_len, encoder.head_dim, theta) for theta in thetas}

    def __call__(
        self, ids: mx.array, lengths: mx.array | None, markers: mx.array, active: mx.array, qtypes: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Option logits [B, K] and action logits [B, n_actions], both float32.

        ``ids`` [B, L] int32; ``lengths`` [B] int32 counts each row's real tokens, None when no row is padded;
        ``markers`` [B, K] int32 positions; ``active`` [B, K] bool, False where a row has no such option, with
        K at least 2; ``qtypes`` [B] int32.
        """
        s = self.stream
        masks = self.masks(ids.shape[1], lengths)
        h = self.encode(ids, masks)
        type_vectors = mx.take(self.weights["type_emb.weight"], qtypes, axis=0, stream=s)
        h = mx.add(h, mx.expand_dims(type_vectors, 1, stream=s), stream=s)
        for j in range(self.config.head_layers):
            h = self._decision_layer(f"head.layers.{j}", h, masks.full)
        h = h.astype(mx.float32, stream=s)
        logits = self._score(h, markers, active)
        cls = mx.take(h, mx.array(0), axis=1, stream=s)
        return logits, self._action(cls, logits, active)

    def masks(self, length: int, lengths: mx.array | None) -> Masks:
        """Masks for rows of ``length`` tokens; a padding query sees itself, so that no row is all masked."""
        s = self.stream
        window = self.encoder.window
        needs_band = "sliding" in self.encoder.layer_kinds and window < length - 1
        if lengths is None and not needs_band:
            return Masks(None, None)
        positions = mx.arange(length, stream=s)
        distance = mx.abs(
            mx.subtract(
                mx.expand_dims(positions, 1, stream=s), mx.expand_dims(positions, 0, stream=s), stream=s
            ),
            stream=s,
        )
        band = mx.less_equal(distance, mx.array(window), stream=s)
        if lengths is None:
            return Masks(None, mx.expand_dims(band, (0, 1), stream=s))
        real = mx.less(positions, mx.expand_dims(lengths, 1, stream=s), stream=s)
        real = mx.expand_dims(real, (1, 2), stream=s)
        if not needs_band:
            return Masks(real, real)
        itself = mx.equal(distance, mx.array(0), stream=s)
        return Masks(real, mx.logical_or(mx.logical_and(band, real, stream=s), itself, stream=s))

    def encode(self, ids: mx.array, masks: Masks) -> mx.array:
        """Hidden states [B, L, d] of token ids [B, L]."""
        s = self.stream
        eps = self.encoder.norm_eps
        h = mx.take(self.weights["encoder.embeddings.tok_embeddings.weight"], ids, axis=0, stream=s)
        h = self._norm("encoder.embeddings.norm", h, eps)
        for i, kind in enumerate(self.encoder.layer_kinds):
            layer = f"encoder.layers.{i}"
            x = self._norm(f"{layer}.attn_norm", h, eps) if i else h
            mask = masks.full if kind == "full" else masks.sliding
            h = mx.add(h, self._encoder_attention(f"{layer}.attn", x, mask, kind), stream=s)
            x = self._linear(f"{layer}.mlp.Wi", self._norm(f"{layer}.mlp_norm", h, eps))
            value, gate = mx.split(x, 2, axis=-1, stream=s)
            x = mx.multiply(self._gelu(value), gate, stream=s)
            h = mx.add(h, self._linear(f"{layer}.mlp.Wo", x), stream=s)
        return self._norm("encoder.final_norm", h, eps)

    def _encoder_attention(self, name: str, x: mx.array, mask: mx.array | None, kind: LayerKind) -> mx.array:
        q, k, v = self._heads(self._linear(f"{name}.Wqkv", x), self.encoder.heads)
        theta = self.encoder.rope_theta(kind)
        q, k = (self._rotate(t, theta) for t in (q, k))
        return self._linear(f"{name}.Wo", self._attend(q, k, v, mask))

    def _rotate(self, x: mx.array, theta: float) -> mx.array:
        """Rotary position embedding of [B, heads, L, head_dim]; the halves of a head are the pairs."""
        s = self.stream
        if not self._angles:
            return mx.fast.rope(
                x, self.encoder.head_dim, traditional=False, base=theta, scale=1.0, offset=0, stream=s
            )
        angles = self._angles[theta][: x.shape[2]]
        cos, sin = mx.array(np.cos(angles)), mx.array(np.sin(angles))
        first, second = mx.split(x, 2, axis=-1, stream=s)
        return mx.concatenate(
            [
                mx.subtract(mx.multiply(first, cos, stream=s), mx.multiply(second, sin, stream=s), stream=s),
                mx.add(mx.multiply(second, cos, stream=s), mx.multiply(first, sin, stream=s), stream=s),
            ],
            axis=-1,
            stream=s,
        )

    def _decision_layer(self, name: str, h: mx.array, mask: mx.array | None) -> mx.array:
        s = self.stream
        x = self._norm(f"{name}.norm1", h, HEAD_EPS)
        x = self._affine(
            x,
            self.weights[f"{name}.self_attn.in_proj_weight"],
            self.weights[f"{name}.self_attn.in_proj_bias"],
        )
        q, k, v = self._heads(x, self.encoder.decision_heads)
        h = mx.add(h, self._linear(f"{name}.self_attn.out_proj", self._attend(q, k, v, mask)), stream=s)
        x = self._linear(f"{name}.linear1", self._norm(f"{name}.norm2", h, HEAD_EPS))
        x = mx.maximum(x, mx.array(0, dtype=x.dtype), stream=s)
        return mx.add(h, self._linear(f"{name}.linear2", x), stream=s)

    def _score(self, h: mx.array, markers: mx.array, active: mx.array) -> mx.array:
        s = self.stream
        x = mx.take_along_axis(h, mx.expand_dims(markers, 2, stream=s), axis=1, stream=s)
        x = self._linear("scorer.1", self._norm("scorer.0", x, HEAD_EPS))
        logits = mx.squeeze(self._linear("scorer.3", self._gelu(x)), axis=2, stream=s)
        return mx.where(active, logits, mx.array(NO_OPTION, dtype=mx.float32), stream=s)

    def _action(self, cls: mx.array, logits: mx.array, active: mx.array) -> mx.array:
        s = self.stream
        p = mx.softmax(logits, axis=1, precise=True, stream=s)
        options = mx.maximum(mx.sum(active, axis=1, keepdims=True, stream=s), mx.array(2), stream=s)
        k = options.astype(mx.float32, stream=s)
        ordered = mx.sort(p, axis=1, stream=s)
        last = p.shape[1] - 1
        top1 = mx.take(ordered, mx.array([last]), axis=1, stream=s)
        top2 = mx.take(ordered, mx.array([last - 1]), axis=1, stream=s)
        floor = mx.array(1e-9, dtype=mx.float32)
        terms = mx.multiply(p, mx.log(mx.maximum(p, floor, stream=s), stream=s), stream=s)
        entropy = mx.negative(mx.sum(terms, axis=1, keepdims=True, stream=s), stream=s)
        entropy = mx.divide(entropy, mx.log(k, stream=s), stream=s)
        count = mx.divide(k, mx.array(255.0), stream=s)
        margin = mx.subtract(top1, top2, stream=s)
        x = mx.concatenate([cls, top1, margin, entropy, count], axis=1, stream=s)
        return self._linear("act_head.2", self._gelu(self._linear("act_head.0", x)))

    def _heads(self, qkv: mx.array, heads: int) -> list[mx.array]:
        """[B, L, 3 d] -> three of [B, heads, L, head_dim]."""
        s = self.stream
        batch, length, width = qkv.shape
        x = mx.reshape(qkv, (batch, length, 3, heads, width // (3 * heads)), stream=s)
        x = mx.transpose(x, (2, 0, 3, 1, 4), stream=s)
        return [mx.squeeze(part, axis=0, stream=s) for part in mx.split(x, 3, axis=0, stream=s)]

    def _attend(self, q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None) -> mx.array:
        """[B, heads, L, head_dim] each -> [B, L, d]."""
        s = self.stream
        batch, heads, length, head_dim = q.shape
        if self.widen_attention:
            q, k, v = (x.astype(mx.float32, stream=s) for x in (q, k, v))
        x = mx.fast.scaled_dot_product_attention(q, k, v, scale=head_dim**-0.5, mask=mask, stream=s)
        x = x.astype(self.dtype, stream=s)
        x = mx.transpose(x, (0, 2, 1, 3), stream=s)
        return mx.reshape(x, (batch, length, heads * head_dim), stream=s)

    def _linear(self, name: str, x: mx.array) -> mx.array:
        return self._affine(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _affine(self, x: mx.array, weight: mx.array, bias: mx.array | None) -> mx.array:
        if bias is None:
            return mx.matmul(x, weight, stream=self.stream)
        return mx.addmm(bias, x, weight, stream=self.stream)

    def _norm(self, name: str, x: mx.array, eps: float) -> mx.array:
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        return mx.fast.layer_norm(x, weight, bias, eps, stream=self.stream)

    def _gelu(self, x: mx.array) -> mx.array:
        """Exact GELU: x (1 + erf(x / sqrt 2)) / 2."""
        s = self.stream
        scaled = mx.multiply(x, mx.array(1 / math.sqrt(2), dtype=x.dtype), stream=s)
        cdf2 = mx.add(mx.array(1, dtype=x.dtype), mx.erf(scaled, stream=s), stream=s)
        return mx.multiply(mx.multiply(x, mx.array(0.5, dtype=x.dtype), stream=s), cdf2, stream=s)
