"""The tokenizer: the checkpoint's own ids, and clear errors for files it cannot use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prompt_files import CLS, MASK, PAD, SEP, write_byte_tokenizer

from laya_apple import InvalidRequestError, UnsupportedModelError
from laya_apple.prompt.tokenizer import PIECES_KEPT, Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_byte_tokenizer(tmp_path / "checkpoint")


def test_special_tokens_come_from_the_files(folder: Path) -> None:
    tokenizer = Tokenizer.from_dir(folder)
    assert (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (PAD, CLS, SEP, MASK)
    assert tokenizer.mask_token == "[MASK]"


def test_a_special_token_may_be_written_as_an_object(folder: Path) -> None:
    path = folder / "tokenizer" / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["mask_token"] = {"content": "[MASK]", "lstrip": True}
    path.write_text(json.dumps(config), encoding="utf-8")
    assert Tokenizer.from_dir(folder).mask_id == MASK


def test_text_is_neither_padded_nor_cut_nor_framed(folder: Path) -> None:
    tokenizer = Tokenizer.from_dir(folder)
    assert tokenizer.encode("") == []
    assert len(tokenizer.encode("abc")) == 3
    assert len(tokenizer.encode("ü" * 50)) == 100
    assert tokenizer.encode_piece("ab") == tuple(tokenizer.encode("ab"))


def test_kept_pieces_stay_bounded_and_right(folder: Path) -> None:
    tokenizer = Tokenizer.from_dir(folder)
    for number in range(PIECES_KEPT + 10):
        tokenizer.encode_piece(str(number))
    assert tokenizer.encode_piece("0") == tuple(tokenizer.encode("0"))


def test_a_lone_surrogate_is_refused(folder: Path) -> None:
    tokenizer = Tokenizer.from_dir(folder)
    message = (
        "the text holds a lone surrogate, which is not valid Unicode; "
        "decode the bytes with errors='replace' first"
    )
    for encode in (tokenizer.encode, tokenizer.encode_piece):
        with pytest.raises(InvalidRequestError) as refused:
            encode("a\ud800b")
        assert str(refused.value) == message


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("fault", ["missing", "truncated", "not utf-8"])
def test_a_file_that_cannot_be_used_is_named(folder: Path, name: str, fault: str) -> None:
    path = folder / "tokenizer" / name
    if fault == "missing":
        path.unlink()
    elif fault == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UnsupportedModelError) as refused:
        Tokenizer.from_dir(folder)
    assert str(path) in str(refused.value)
    assert str(refused.value).endswith(
        "download the checkpoint again, or point at a complete checkpoint directory"
    )


@pytest.mark.parametrize("config", ["[]", '{"cls_token": "[CLS]"}', '{"cls_token": 3}'])
def test_a_configuration_without_the_special_tokens_is_refused(folder: Path, config: str) -> None:
    path = folder / "tokenizer" / "tokenizer_config.json"
    path.write_text(config, encoding="utf-8")
    with pytest.raises(
        UnsupportedModelError, match=r"tokenizer_config\.json (is not a JSON object|names no )"
    ):
        Tokenizer.from_dir(folder)


def test_a_special_token_outside_the_vocabulary_is_refused(folder: Path) -> None:
    path = folder / "tokenizer" / "tokenizer_config.json"
    path.write_text(path.read_text(encoding="utf-8").replace("[SEP]", "[END]"), encoding="utf-8")
    with pytest.raises(UnsupportedModelError, match=r"has no token '\[END\]' for sep_token"):
        Tokenizer.from_dir(folder)
