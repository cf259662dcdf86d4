"""A tokenizer whose tokens are bytes, so that a test can count them by eye."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from laya_apple.config import AgentConfig

SPECIALS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
PAD, UNK, CLS, SEP, MASK = range(5)


def write_byte_tokenizer(folder: Path) -> Path:
    """Write ``tokenizer/`` below ``folder``: specials 0 to 4, then one token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIALS.values(), *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS.values()))
    # A file may ask for both; a row must be neither padded nor cut by them.
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(4)
    (folder / "tokenizer").mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIALS}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def agent_config(**changes: Any) -> AgentConfig:
    """An AgentConfig as a checkpoint would give it, with some fields changed."""
    fields: dict[str, Any] = {
        "max_len": 256,
        "head_max_len": 192,
        "head_layers": 1,
        "n_actions": 2,
        "temperature": [1.0, 1.0, 1.0],
        "temperature_by_options": {},
    }
    return AgentConfig(**{**fields, **changes})
