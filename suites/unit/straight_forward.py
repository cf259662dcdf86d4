"""A second, independent checker: the network as spec 1 writes it, in plain NumPy float64, rows unpadded.

Written from the description of the network alone; shares no code with the graph or with any backend.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from laya_apple.checkpoint import Checkpoint
from laya_apple.prompt.sequence import Row

_erf = np.vectorize(math.erf, otypes=[np.float64])


def straight_forward(checkpoint: Checkpoint, row: Row) -> tuple[np.ndarray, np.ndarray]:
    """(option logits [k], CLS state [C] after the decision layers)."""
    w = {name: tensor.astype(np.float64) for name, tensor in checkpoint.tensors().items()}
    encoder = checkpoint.encoder

    def norm(x: np.ndarray, name: str, eps: float) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]
        return y + w.get(f"{name}.bias", 0.0)

    def linear(x: np.ndarray, name: str, joint: str = ".") -> np.ndarray:
        return x @ w[f"{name}{joint}weight"].T + w.get(f"{name}{joint}bias", 0.0)

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + _erf(x / math.sqrt(2)))

    def attention(qkv: np.ndarray, heads: int, theta: float | None, window: int | None) -> np.ndarray:
        length, size = len(qkv), qkv.shape[1] // 3 // heads
        q, k, v = (part.reshape(length, heads, size) for part in np.split(qkv, 3, 1))
        out = np.zeros((length, heads, size))
        for h in range(heads):
            qh, kh = (_rotate(x[:, h], theta) if theta else x[:, h] for x in (q, k))
            for i in range(length):
                near = [j for j in range(length) if window is None or abs(i - j) <= window]
                scores = np.array([qh[i] @ kh[j] for j in near]) / math.sqrt(size)
                weights = np.exp(scores - scores.max())
                out[i, h] = (weights / weights.sum()) @ v[near, h]
        return out.reshape(length, -1)

    x = norm(
        w["encoder.embeddings.tok_embeddings.weight"][list(row.ids)],
        "encoder.embeddings.norm",
        encoder.norm_eps,
    )
    for i, kind in enumerate(encoder.layer_kinds):
        p = f"encoder.layers.{i}"
        y = norm(x, f"{p}.attn_norm", encoder.norm_eps) if i else x
        window = None if kind == "full" else encoder.window
        y = attention(linear(y, f"{p}.attn.Wqkv"), encoder.heads, encoder.rope_theta(kind), window)
        x = x + linear(y, f"{p}.attn.Wo")
        value, gate = np.split(linear(norm(x, f"{p}.mlp_norm", encoder.norm_eps), f"{p}.mlp.Wi"), 2, 1)
        x = x + linear(gelu(value) * gate, f"{p}.mlp.Wo")
    x = norm(x, "encoder.final_norm", encoder.norm_eps) + w["type_emb.weight"][row.qtype]
    for j in range(checkpoint.config.head_layers):
        p = f"head.layers.{j}"
        y = linear(norm(x, f"{p}.norm1", 1e-5), f"{p}.self_attn.in_proj", "_")
        x = x + linear(attention(y, max(1, encoder.hidden_size // 64), None, None), f"{p}.self_attn.out_proj")
        y = np.maximum(linear(norm(x, f"{p}.norm2", 1e-5), f"{p}.linear1"), 0)
        x = x + linear(y, f"{p}.linear2")
    options = gelu(linear(norm(x[list(row.markers)], "scorer.0", 1e-5), "scorer.1"))
    return linear(options, "scorer.3")[:, 0], x[0]


def _rotate(x: np.ndarray, theta: float) -> np.ndarray:
    half = x.shape[1] // 2
    out = np.empty_like(x)
    for position in range(len(x)):
        for i in range(half):
            angle = position / theta ** (2 * i / x.shape[1])
            a, b = x[position, i], x[position, i + half]
            out[position, i] = a * math.cos(angle) - b * math.sin(angle)
            out[position, i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def worst(found: Any, expected: Any) -> float:
    """Largest |difference|; infinite when anything is not finite."""
    difference = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64)).max()
    return float(difference) if np.isfinite(difference) else math.inf
