"""The weights file: which tensors a checkpoint must hold, and reading them without PyTorch."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from laya_apple.config import AgentConfig, EncoderConfig
from laya_apple.errors import UnsupportedModelError

ACTION_HIDDEN = 256
ACTION_FEATURES = 4
"""Numbers appended to the CLS state: top1, top1 - top2, normalised entropy, options / 255."""
QUESTION_TYPES = 3

_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def expected_shapes(config: AgentConfig, encoder: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the network reads, by name, with its shape in PyTorch's layout."""
    d, inner = encoder.hidden_size, encoder.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, out: int, into: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (out, into)
        if bias:
            shapes[f"{name}.bias"] = (out,)

    def norm(name: str, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (d,)
        if bias:
            shapes[f"{name}.bias"] = (d,)

    shapes["encoder.embeddings.tok_embeddings.weight"] = (encoder.vocab_size, d)
    norm("encoder.embeddings.norm", encoder.norm_bias)
    for i in range(encoder.layers):
        layer = f"encoder.layers.{i}"
        if i:
            norm(f"{layer}.attn_norm", encoder.norm_bias)
        linear(f"{layer}.attn.Wqkv", 3 * d, d, encoder.attention_bias)
        linear(f"{layer}.attn.Wo", d, d, encoder.attention_bias)
        norm(f"{layer}.mlp_norm", encoder.norm_bias)
        linear(f"{layer}.mlp.Wi", 2 * inner, d, encoder.mlp_bias)
        linear(f"{layer}.mlp.Wo", d, inner, encoder.mlp_bias)
    norm("encoder.final_norm", encoder.norm_bias)
    for j in range(config.head_layers):
        layer = f"head.layers.{j}"
        shapes[f"{layer}.self_attn.in_proj_weight"] = (3 * d, d)
        shapes[f"{layer}.self_attn.in_proj_bias"] = (3 * d,)
        linear(f"{layer}.self_attn.out_proj", d, d)
        norm(f"{layer}.norm1")
        norm(f"{layer}.norm2")
        linear(f"{layer}.linear1", 4 * d, d)
        linear(f"{layer}.linear2", d, 4 * d)
    shapes["type_emb.weight"] = (QUESTION_TYPES, d)
    norm("scorer.0")
    linear("scorer.1", d, d)
    linear("scorer.3", 1, d)
    linear("act_head.0", ACTION_HIDDEN, d + ACTION_FEATURES)
    linear("act_head.2", config.n_actions, ACTION_HIDDEN)
    return shapes


def check_weights(path: Path, expected: dict[str, tuple[int, ...]]) -> None:
    """Hold the file's names, shapes and number formats against ``expected``; reads the header only.

    Tensors beyond those are ignored, but a bias that the configuration switches off is refused: leaving it
    out would compute something else than the checkpoint says. Raises UnsupportedModelError.
    """
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, entry in _header(path).items():
        found[name] = (tuple(entry["shape"]), entry["dtype"])
    missing = [name for name in expected if name not in found]
    if missing:
        raise UnsupportedModelError(
            f"{path}: {len(missing)} of {len(expected)} tensors are missing, first {missing[0]}; the weights "
            "do not belong to these configuration files, so restore all of them from one checkpoint"
        )
    for name, shape in expected.items():
        actual, dtype = found[name]
        if actual != shape:
            raise UnsupportedModelError(
                f"{path}: {name} has shape {list(actual)}, the configuration asks for {list(shape)}; restore "
                "weights and configuration from one checkpoint"
            )
        if dtype not in _DTYPES:
            raise UnsupportedModelError(
                f"{path}: {name} is stored as {dtype}; use one of {', '.join(_DTYPES)}"
            )
    for name in sorted(found.keys() - expected.keys()):
        stem, _, last = name.rpartition(".")
        if last == "bias" and f"{stem}.weight" in expected:
            raise UnsupportedModelError(
                f"{path}: holds {name}, which the configuration switches off; restore weights and "
                "configuration from one checkpoint"
            )


def read_weights(path: Path, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """All tensors (or the named ones), float32 or float16 as stored; bfloat16 is widened to float32, exactly.

    Tensors of other formats are left out. Raises UnsupportedModelError when the file cannot be read.
    """
    header = _header(path)
    tensors: dict[str, NDArray[Any]] = {}
    with path.open("rb") as file:
        data_start = 8 + struct.unpack("<Q", file.read(8))[0]
        for name in header if names is None else names:
            dtype = _DTYPES.get(header[name]["dtype"])
            if dtype is None:
                continue
            first, last = header[name]["data_offsets"]
            file.seek(data_start + first)
            flat = np.frombuffer(file.read(last - first), dtype=dtype)
            if header[name]["dtype"] == "BF16":
                flat = (flat.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = flat.reshape(header[name]["shape"])
    return tensors


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """Name -> {dtype, shape, data_offsets}, after the safetensors library has checked the whole header."""
    try:
        with safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header: dict[str, dict[str, Any]] = json.loads(file.read(size))
    except FileNotFoundError as error:  # reraise: a checkpoint file is missing
        raise UnsupportedModelError(
            f"{path} is missing; restore it or download the checkpoint again"
        ) from error
    except (OSError, ValueError, SafetensorError) as error:  # reraise: the file cannot be read
        raise UnsupportedModelError(
            f"{path} cannot be read as safetensors ({error}); restore it or download the checkpoint again"
        ) from error
    header.pop("__metadata__", None)
    return header
