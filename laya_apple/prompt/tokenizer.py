"""The checkpoint's tokenizer, read straight from its files (transformers costs a second to import)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from laya_apple.errors import InvalidRequestError, UnsupportedModelError

PIECE_CHARACTERS = 256
"""Heads and options up to this long are kept: questions repeat from request to request, states don't."""
PIECES_KEPT = 1024

_MEND = "download the checkpoint again, or point at a complete checkpoint directory"


class Tokenizer:
    """Text to token ids, without special tokens. Safe to call from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer, special: dict[str, str], source: str) -> None:
        """``special`` maps ``cls_token``, ``sep_token``, ``pad_token`` and ``mask_token`` to their text.

        Raises UnsupportedModelError when one of them is not in the vocabulary.
        """
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.cls_id = _special_id(backend, special, "cls_token", source)
        self.sep_id = _special_id(backend, special, "sep_token", source)
        self.pad_id = _special_id(backend, special, "pad_token", source)
        self.mask_id = _special_id(backend, special, "mask_token", source)
        self.mask_token = special["mask_token"]
        self.encode_piece: Callable[[str], tuple[int, ...]] = functools.lru_cache(PIECES_KEPT)(
            self._encode_piece
        )
        """As ``encode``, remembering the last pieces; for short texts that come back."""

    @classmethod
    def from_dir(cls, checkpoint_dir: Path) -> Tokenizer:
        """Read ``tokenizer/tokenizer.json`` and ``tokenizer/tokenizer_config.json`` below ``checkpoint_dir``.

        Raises UnsupportedModelError naming the file that is missing or unreadable.
        """
        folder = Path(checkpoint_dir) / "tokenizer"
        model_path = folder / "tokenizer.json"
        config_path = folder / "tokenizer_config.json"
        config = _read_json(config_path)
        if not isinstance(config, dict):
            raise UnsupportedModelError(f"{config_path} is not a JSON object; {_MEND}")
        text = _read_text(model_path)
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # reraise: the library raises a bare Exception for a malformed file
            raise UnsupportedModelError(f"{model_path} is not a tokenizer: {error}; {_MEND}") from error
        special = {}
        for name in ("cls_token", "sep_token", "pad_token", "mask_token"):
            entry = config.get(name)
            content = entry.get("content") if isinstance(entry, dict) else entry
            if not isinstance(content, str) or not content:
                raise UnsupportedModelError(f"{config_path} names no {name}; {_MEND}")
            special[name] = content
        return cls(backend, special, str(model_path))

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, no special tokens added.

        Raises InvalidRequestError for text that is not valid Unicode (a lone surrogate).
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError) as error:  # reraise: only a lone surrogate gets here
            raise _not_unicode() from error
        return ids

    def _encode_piece(self, text: str) -> tuple[int, ...]:
        return tuple(self.encode(text))


def _special_id(backend: tokenizers.Tokenizer, special: dict[str, str], name: str, source: str) -> int:
    token_id: int | None = backend.token_to_id(special[name])
    if token_id is None:
        raise UnsupportedModelError(f"{source} has no token {special[name]!r} for {name}; {_MEND}")
    return token_id


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:  # reraise: a checkpoint without it cannot be used
        raise UnsupportedModelError(f"cannot read {path}: {error}; {_MEND}") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except ValueError as error:  # reraise: names the file that is not JSON
        raise UnsupportedModelError(f"{path} is not JSON: {error}; {_MEND}") from error


def _not_unicode() -> InvalidRequestError:
    return InvalidRequestError(
        "the text holds a lone surrogate, which is not valid Unicode; "
        "decode the bytes with errors='replace' first"
    )
