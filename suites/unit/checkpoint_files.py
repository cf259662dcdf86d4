"""Throw-away checkpoints with random weights, in every spelling of the encoder configuration."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from laya_apple.config import AgentConfig, EncoderConfig
from laya_apple.prompt.sequence import Row
from laya_apple.weights import expected_shapes

SPECIALS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
MASK = "[MASK]"
WORDS = [f"word{i}" for i in range(60)]

AGENT: dict[str, Any] = {
    "encoder": "random",
    "max_len": 256,
    "head_max_len": 96,
    "head_layers": 2,
    "act_costs": [0.1, 0.2],
    "temperature": [1.0, 1.3, 0.8],
    "temperature_by_options": {"choice:2": 0.9, "choice:3-5": 1.2},
    "option_layout": "sequential",
}

ENCODER: dict[str, Any] = {
    "model_type": "modernbert",
    "architectures": ["ModernBertModel"],
    "vocab_size": len(WORDS) + 5,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "local_attention": 16,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "hidden_activation": "gelu",
    "pad_token_id": 0,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "max_position_embeddings": 512,
}

_ROPE_BY_KIND = {
    "full_attention": {"rope_theta": 50000.0, "rope_type": "default"},
    "sliding_attention": {"rope_theta": 700.0, "rope_type": "default"},
}

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "heads32_old_theta_keys": ({}, {}),
    "heads64_all_biases": (
        {"hidden_size": 128, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "norm_eps": 1e-6},
        {"head_layers": 1},
    ),
    "explicit_layers_rope_by_kind": (
        {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
            "global_attn_every_n_layers": None,
            "global_rope_theta": None,
            "local_rope_theta": None,
            "rope_parameters": _ROPE_BY_KIND,
        },
        {"act_costs": []},
    ),
    "heads32_of_128_defaults": (
        {
            "hidden_size": 128,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "norm_bias": True,
            "local_attention": 128,
        },
        {"head_layers": 1},
    ),
}
"""Name -> (encoder keys, agent keys) laid over the defaults; a None removes the key."""


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = {**base, **over}
    return {key: value for key, value in both.items() if not (key in over and value is None)}


def random_tensors(config: AgentConfig, encoder: EncoderConfig, seed: int) -> dict[str, np.ndarray]:
    """Weights large enough that attention, the window and every bias matter to the outputs."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_shapes(config, encoder).items():
        noise = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 2:
            noise *= 0.6 if "emb" in name else 1.2 / np.sqrt(shape[1])
        elif name.endswith("weight"):
            noise = 1 + 0.2 * noise
        else:
            noise *= 0.2
        tensors[name] = noise.astype(np.float32)
    tensors["temperature"] = np.array([1.0, 1.3, 0.8], np.float32)
    return tensors


def write_checkpoint(
    folder: Path,
    *,
    encoder: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
    seed: int = 0,
    dtype: str = "float32",
) -> Path:
    """A complete checkpoint directory; ``encoder`` and ``agent`` are laid over the defaults."""
    agent_json = _merged(AGENT, agent or {})
    encoder_json = _merged(ENCODER, encoder or {})
    tensors = random_tensors(AgentConfig.from_dict(agent_json), EncoderConfig.from_dict(encoder_json), seed)
    (folder / "encoder").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    save_file(
        {name: tensor.astype(dtype) for name, tensor in tensors.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    write_json(folder / "rl_agent_config.json", agent_json)
    write_json(folder / "encoder" / "config.json", encoder_json)
    specials = [*SPECIALS.values(), MASK]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate([*specials, *WORDS])}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    write_json(
        folder / "tokenizer" / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": MASK, **SPECIALS},
    )
    return folder


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def random_rows(count: int, *, seed: int, longest: int = 90, vocab: int = ENCODER["vocab_size"]) -> list[Row]:
    """Rows of mixed lengths, option counts (1 to 9) and question types."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        options = rng.randint(1, 9)
        length = rng.randint(2 * options + 4, longest)
        ids = [2, *(rng.randrange(5, vocab) for _ in range(length - 2)), 3]
        markers = sorted(rng.sample(range(1, length - 1), options))
        for marker in markers:
            ids[marker] = 4
        rows.append(Row(ids=tuple(ids), markers=tuple(markers), qtype=rng.randrange(3)))
    return rows
