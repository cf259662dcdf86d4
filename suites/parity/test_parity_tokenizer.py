"""Our tokenizer gives the ids of transformers' AutoTokenizer, on every fixture checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from parity_checkpoints import ParityCheckpoint, parity_checkpoints
from requests_strategy import SCRIPTS, long_texts, texts

from laya_apple.prompt.tokenizer import Tokenizer

Encode = Callable[[str], list[int]]


@pytest.fixture(scope="module", params=parity_checkpoints(), ids=lambda checkpoint: checkpoint.name)
def fixture(request: pytest.FixtureRequest) -> ParityCheckpoint:
    found: ParityCheckpoint = request.param
    return found


@pytest.fixture(scope="module")
def ours(fixture: ParityCheckpoint) -> Tokenizer:
    return Tokenizer.from_dir(fixture.path)


@pytest.fixture(scope="module")
def theirs(fixture: ParityCheckpoint) -> Encode:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(fixture.path / "tokenizer", local_files_only=True)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    encode.tokenizer = tokenizer  # type: ignore[attr-defined]
    return encode


def test_special_tokens(ours: Tokenizer, theirs: Encode) -> None:
    tokenizer = theirs.tokenizer  # type: ignore[attr-defined]
    assert (ours.cls_id, ours.sep_id, ours.pad_id, ours.mask_id, ours.mask_token) == (
        tokenizer.cls_token_id,
        tokenizer.sep_token_id,
        tokenizer.pad_token_id,
        tokenizer.mask_token_id,
        tokenizer.mask_token,
    )


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example("".join(SCRIPTS))
@example(" choice question: [CLS] Which [MASK]one?[SEP][PAD][UNK] ")
@example("\x00\x7f\u200b\ufeff\u0301 \n\r\t e\u0301 é ﬁ \U0010ffff")
@given(texts | long_texts | st.text())
def test_ids(ours: Tokenizer, theirs: Encode, text: str) -> None:
    assert ours.encode(text) == theirs(text)
