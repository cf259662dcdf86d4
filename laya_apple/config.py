"""A checkpoint's two configuration files, read and checked. Loads no NumPy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from laya_apple.errors import UnsupportedModelError

WEIGHTS_FILE = "model.safetensors"
AGENT_FILE = "rl_agent_config.json"
ENCODER_FILE = "encoder/config.json"
CHECKPOINT_FILES = (
    WEIGHTS_FILE,
    AGENT_FILE,
    ENCODER_FILE,
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
)

LayerKind = Literal["full", "sliding"]
_KINDS: dict[str, LayerKind] = {"full_attention": "full", "sliding_attention": "sliding"}


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What the runtime reads of ``rl_agent_config.json``. Lengths are tokens."""

    max_len: int
    head_max_len: int
    """Most tokens of a row's head and options together."""
    head_layers: int
    """Decision layers after the encoder."""
    n_actions: int
    """Action logits: one more than there are action costs."""
    temperature: object
    """As written; judged by ``laya_apple.prompt.answers``."""
    temperature_by_options: object
    """As written; judged by ``laya_apple.prompt.answers``."""

    @classmethod
    def from_dict(cls, raw: object) -> AgentConfig:
        """Read and check. Raises UnsupportedModelError naming the key and what it must be."""
        reader = _Reader(AGENT_FILE, raw)
        layout = reader.raw.get("option_layout", "sequential")
        if layout != "sequential":
            raise reader.error("option_layout", 'must be "sequential", the only layout this runtime builds')
        costs = reader.raw.get("act_costs")
        if not isinstance(costs, list):
            raise reader.error("act_costs", "must be a list, one cost an action")
        return cls(
            max_len=reader.integer("max_len", minimum=16),
            head_max_len=reader.integer("head_max_len", default=192, minimum=16),
            head_layers=reader.integer("head_layers", default=2, minimum=0),
            n_actions=len(costs) + 1,
            temperature=reader.raw.get("temperature", [1.0, 1.0, 1.0]),
            temperature_by_options=reader.raw.get("temperature_by_options", {}),
        )


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """A ModernBERT encoder's shape and constants."""

    hidden_size: int
    heads: int
    intermediate_size: int
    vocab_size: int
    norm_eps: float
    """Of the encoder's LayerNorms; head and scorer use 1e-5."""
    attention_bias: bool
    mlp_bias: bool
    norm_bias: bool
    layer_kinds: tuple[LayerKind, ...]
    """One a layer; full attention or a sliding window."""
    window: int
    """In a sliding layer key j is visible to query i iff |i - j| <= window."""
    full_rope_theta: float
    sliding_rope_theta: float
    pad_token_id: int

    @property
    def layers(self) -> int:
        return len(self.layer_kinds)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def decision_heads(self) -> int:
        """Attention heads of a decision layer."""
        return max(1, self.hidden_size // 64)

    def rope_theta(self, kind: LayerKind) -> float:
        """Base of the rotary embedding in layers of this kind."""
        return self.full_rope_theta if kind == "full" else self.sliding_rope_theta

    @classmethod
    def from_dict(cls, raw: object) -> EncoderConfig:
        """Read a transformers ModernBERT config of any vintage.

        Raises UnsupportedModelError naming the key and what it must be.
        """
        reader = _Reader(ENCODER_FILE, raw)
        if reader.raw.get("model_type", "modernbert") != "modernbert":
            raise reader.error("model_type", 'must be "modernbert"')
        if reader.raw.get("hidden_activation", "gelu") != "gelu":
            raise reader.error("hidden_activation", 'must be "gelu" (exact)')
        hidden_size = reader.integer("hidden_size", default=768, minimum=1)
        heads = reader.integer("num_attention_heads", default=12, minimum=1)
        if hidden_size % heads or (hidden_size // heads) % 2:
            raise reader.error("num_attention_heads", f"must split hidden_size {hidden_size} into even heads")
        if hidden_size % max(1, hidden_size // 64):
            raise reader.error(
                "hidden_size", "must be a multiple of its decision heads (one per 64 channels)"
            )
        full_theta, sliding_theta = _rope_thetas(reader)
        return cls(
            hidden_size=hidden_size,
            heads=heads,
            intermediate_size=reader.integer("intermediate_size", default=1152, minimum=1),
            vocab_size=reader.integer("vocab_size", default=50368, minimum=1),
            norm_eps=reader.positive("norm_eps", default=1e-5),
            attention_bias=reader.flag("attention_bias"),
            mlp_bias=reader.flag("mlp_bias"),
            norm_bias=reader.flag("norm_bias"),
            layer_kinds=_layer_kinds(reader),
            window=reader.integer("local_attention", default=128, minimum=0) // 2,
            full_rope_theta=full_theta,
            sliding_rope_theta=sliding_theta,
            pad_token_id=reader.integer("pad_token_id", default=0, minimum=0),
        )


def read_agent_config(checkpoint_dir: Path) -> AgentConfig:
    """Read ``rl_agent_config.json``. Raises UnsupportedModelError naming the file and the mend."""
    return AgentConfig.from_dict(_read_json(checkpoint_dir / AGENT_FILE))


def read_encoder_config(checkpoint_dir: Path) -> EncoderConfig:
    """Read ``encoder/config.json``. Raises UnsupportedModelError naming the file and the mend."""
    return EncoderConfig.from_dict(_read_json(checkpoint_dir / ENCODER_FILE))


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:  # reraise: a checkpoint file is missing
        raise UnsupportedModelError(
            f"{path} is missing; restore it or download the checkpoint again"
        ) from error
    except (OSError, ValueError, RecursionError) as error:  # reraise: the file cannot be read
        raise UnsupportedModelError(
            f"{path} cannot be read as JSON ({error}); restore it or download the checkpoint again"
        ) from error


def _layer_kinds(reader: _Reader) -> tuple[LayerKind, ...]:
    layers = reader.integer("num_hidden_layers", default=22, minimum=1)
    explicit = reader.raw.get("layer_types")
    if explicit is None:
        every = reader.integer("global_attn_every_n_layers", default=3, minimum=1)
        return tuple("sliding" if layer % every else "full" for layer in range(layers))
    wrong = f"must hold num_hidden_layers = {layers} entries, each one of {', '.join(_KINDS)}"
    if not isinstance(explicit, list) or len(explicit) != layers:
        raise reader.error("layer_types", wrong)
    if not all(isinstance(kind, str) and kind in _KINDS for kind in explicit):
        raise reader.error("layer_types", wrong)
    return tuple(_KINDS[kind] for kind in explicit)


def _rope_thetas(reader: _Reader) -> tuple[float, float]:
    """Bases (full, sliding): ``rope_parameters`` by kind, else flat, else the older two keys."""
    if reader.raw.get("rope_scaling") is not None:
        raise reader.error("rope_scaling", "must be null: this runtime has no scaled rotary embedding")
    full = reader.positive("global_rope_theta", default=160000.0)
    # An explicit null meant "as the full layers" in the first ModernBERT configs.
    null_local = reader.raw.get("local_rope_theta", 0) is None
    sliding = full if null_local else reader.positive("local_rope_theta", default=10000.0)
    parameters = reader.raw.get("rope_parameters")
    if parameters is None:
        return full, sliding
    if not isinstance(parameters, dict):
        raise reader.error("rope_parameters", "must be an object")
    flat = not any(kind in parameters for kind in _KINDS)
    thetas = []
    for kind, fallback in zip(_KINDS, (full, sliding), strict=True):
        part = parameters if flat else parameters.get(kind)
        if part is None:
            part = {}
        key = "rope_parameters" if flat else f"rope_parameters.{kind}"
        if not isinstance(part, dict):
            raise reader.error(key, "must be an object")
        inner = _Reader(ENCODER_FILE, part, prefix=key + ".")
        if part.get("rope_type", "default") != "default":
            raise inner.error("rope_type", 'must be "default"')
        thetas.append(inner.positive("rope_theta", default=fallback))
    return thetas[0], thetas[1]


class _Reader:
    """Typed look-ups in one JSON object, with errors that name the file and the key."""

    def __init__(self, file: str, raw: object, prefix: str = "") -> None:
        if not isinstance(raw, Mapping):
            raise UnsupportedModelError(f"{file}: must be a JSON object, not {type(raw).__name__}")
        self.file = file
        self.raw: Mapping[str, Any] = raw
        self.prefix = prefix

    def error(self, key: str, must: str) -> UnsupportedModelError:
        value = repr(self.raw[key]) if key in self.raw else "missing"
        if len(value) > 80:
            value = value[:77] + "..."
        return UnsupportedModelError(f"{self.file}: {self.prefix}{key} is {value}; it {must}")

    def integer(self, key: str, *, minimum: int, default: int | None = None) -> int:
        value = self.raw.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(key, f"must be an integer of at least {minimum}")
        return value

    def positive(self, key: str, *, default: float) -> float:
        value = self.raw.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.error(key, "must be a positive number")
        if not math.isfinite(value) or value <= 0:
            raise self.error(key, "must be a positive number")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.raw.get(key, False)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value
