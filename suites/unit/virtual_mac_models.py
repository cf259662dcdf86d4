"""A small ML Program with every operation the Neural Engine graph uses, and a float64 evaluation of it.

The two share nothing but the weights: the program goes through Core ML Tools' Builder, the evaluation is
plain NumPy in row layout with the error function of the standard library.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

CHANNELS, HEADS, OPTIONS = 8, 2, 4
EPS = 1e-5


def weights(seed: int = 0) -> dict[str, Any]:
    """float16 weights by name; matrices are [out, in]."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 0.5) -> Any:
        return (scale * rng.standard_normal(shape)).astype(np.float16)

    c = CHANNELS
    return {
        "norm.g": (1 + normal(c, scale=0.1)).astype(np.float16),
        "qkv.w": normal(3 * c, c),
        "out.w": normal(c, c),
        "out.b": normal(c),
        "norm2.g": (1 + normal(c, scale=0.1)).astype(np.float16),
        "norm2.b": normal(c, scale=0.1),
        "up.w": normal(4 * c, c),
        "up.b": normal(4 * c),
        "down.w": normal(c, 2 * c),
        "cos": np.cos(np.arange(c // HEADS // 2)).astype(np.float16),
        "score.w": normal(1, c),
        "score.b": normal(1),
    }


def save(path: Path, length: int, seed: int = 0) -> Path:
    """Build the program for ``length`` and save it as a ``.mlpackage``."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    w, c, f16 = weights(seed), CHANNELS, np.float16
    head = c // HEADS

    def conv(x: Any, key: str, **extra: Any) -> Any:
        matrix = w[f"{key}.w"]
        if f"{key}.b" in w:
            extra["bias"] = w[f"{key}.b"]
        return mb.conv(x=x, weight=matrix.reshape(*matrix.shape, 1, 1), **extra)

    def spec(*shape: int) -> Any:
        return mb.TensorSpec(shape=shape, dtype=types.fp16)

    @mb.program(
        input_specs=[spec(1, c, 1, length), spec(1, length, 1, length), spec(1, length, 1, OPTIONS)],
        opset_version=ct.target.macOS15,
    )
    def program(embeddings, full_mask, marker_map):
        mean = mb.reduce_mean(x=embeddings, axes=[1], keep_dims=True)
        centred = mb.sub(x=embeddings, y=mean)
        variance = mb.reduce_mean(x=mb.mul(x=centred, y=centred), axes=[1], keep_dims=True)
        x = mb.mul(x=centred, y=mb.rsqrt(x=variance, epsilon=f16(EPS)))
        x = mb.mul(x=x, y=w["norm.g"].reshape(1, c, 1, 1))
        q, k, v = mb.split(x=conv(x, "qkv"), num_splits=3, axis=1)
        a, b = mb.split(x=mb.reshape(x=q, shape=[1, HEADS, head, length]), num_splits=2, axis=2)
        a = mb.mul(x=a, y=w["cos"].reshape(1, 1, -1, 1))
        q = mb.reshape(x=mb.concat(values=[a, b], axis=2), shape=[1, c, 1, length])
        kt = mb.transpose(x=k, perm=[0, 3, 2, 1])
        heads = []
        for qh, kh, vh in zip(
            mb.split(x=q, num_splits=HEADS, axis=1),
            mb.split(x=kt, num_splits=HEADS, axis=3),
            mb.split(x=v, num_splits=HEADS, axis=1),
            strict=True,
        ):
            scores = mb.einsum(values=[kh, qh], equation="nchw,nwhu->nchu")
            attention = mb.softmax(x=mb.add(x=scores, y=full_mask), axis=1)
            heads.append(mb.einsum(values=[vh, attention], equation="nchw,nwhu->nchu"))
        x = mb.add(x=x, y=conv(mb.concat(values=heads, axis=1), "out"))
        y = mb.layer_norm(x=x, axes=[1], gamma=w["norm2.g"], beta=w["norm2.b"], epsilon=f16(EPS))
        value, gate = mb.split(x=conv(y, "up"), num_splits=2, axis=1)
        y = mb.mul(x=mb.gelu(x=value, mode="EXACT"), y=mb.relu(x=gate))
        x = mb.add(x=x, y=conv(y, "down"))
        cls = mb.slice_by_index(x=x, begin=[0, 0, 0, 0], end=[1, c, 1, 1], name="cls")
        options = mb.einsum(values=[x, marker_map], equation="nchw,nwhu->nchu")
        return conv(options, "score", name="logits"), cls

    model = ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.macOS15,
        compute_precision=ct.precision.FLOAT32,
        pass_pipeline=ct.PassPipeline.EMPTY,
        skip_model_load=True,
    )
    model.save(str(path))
    return path


def features(length: int, seed: int = 1) -> dict[str, Any]:
    """float16 inputs: the last quarter of the positions is padding."""
    rng = np.random.default_rng(seed)
    valid = np.arange(length) < length - length // 4
    mask = np.where(valid[:, None], 0.0, -1e4) + np.zeros((length, length))
    markers = np.zeros((length, OPTIONS))
    markers[2 + 3 * np.arange(OPTIONS), np.arange(OPTIONS)] = 1
    return {
        "embeddings": rng.standard_normal((1, CHANNELS, 1, length)).astype(np.float16),
        "full_mask": mask.reshape(1, length, 1, length).astype(np.float16),
        "marker_map": markers.reshape(1, length, 1, OPTIONS).astype(np.float16),
    }


def evaluate(inputs: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """``logits`` [OPTIONS] and ``cls`` [CHANNELS] in float64."""
    w = {name: value.astype(np.float64) for name, value in weights(seed).items()}
    x = inputs["embeddings"][0, :, 0].T.astype(np.float64)
    mask = inputs["full_mask"][0, :, 0].T.astype(np.float64)
    head = CHANNELS // HEADS

    def norm(rows: Any) -> Any:
        centred = rows - rows.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)

    x = norm(x) * w["norm.g"]
    q, k, v = np.split(x @ w["qkv.w"].T, 3, -1)
    mixed = np.empty_like(x)
    for h in range(HEADS):
        part = slice(h * head, (h + 1) * head)
        rotated = np.concatenate([q[:, part][:, : head // 2] * w["cos"], q[:, part][:, head // 2 :]], -1)
        scores = rotated @ k[:, part].T + mask
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        mixed[:, part] = attention / attention.sum(-1, keepdims=True) @ v[:, part]
    x = x + mixed @ w["out.w"].T + w["out.b"]
    y = norm(x) * w["norm2.g"] + w["norm2.b"]
    value, gate = np.split(y @ w["up.w"].T + w["up.b"], 2, -1)
    gelu = 0.5 * value * (1 + np.vectorize(math.erf)(value / math.sqrt(2)))
    x = x + gelu * np.maximum(gate, 0) @ w["down.w"].T
    options = inputs["marker_map"][0, :, 0].T.astype(np.float64) @ x
    return {"logits": (options @ w["score.w"].T + w["score.b"])[:, 0], "cls": x[0]}
