"""Token rows, written out by hand: in these tests a token is a byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_files import CLS, MASK, SEP, agent_config, write_byte_tokenizer

from laya_apple import InvalidRequestError
from laya_apple.prompt.sequence import Prepared, prepare
from laya_apple.prompt.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    return Tokenizer.from_dir(write_byte_tokenizer(folder))


def noul(instructions: object = "x") -> dict[str, Any]:
    return {"q": {"type": "noul", "instructions": instructions}}


def choice(criteria: object, instructions: str = "x", **more: Any) -> dict[str, Any]:
    return {"q": {"type": "choice", "instructions": instructions, "criteria": criteria, **more}}


def row_of(tokenizer: Tokenizer, *parts: str | int) -> tuple[int, ...]:
    """Ids of the parts: an int is a special token, a string its bytes."""
    ids: list[int] = []
    for part in parts:
        ids += [part] if isinstance(part, int) else tokenizer.encode(part)
    return tuple(ids)


def only_ids(prepared: Prepared) -> tuple[int, ...]:
    (row,) = prepared.rows
    return row.ids


def test_one_row_for_each_question(tokenizer: Tokenizer) -> None:
    questions = {
        "where": {"type": "choice", "instructions": "Which?", "criteria": {"A": "first", 2: None}},
        1: {"type": "score", "instructions": {"ü": 1}, "criteria": ["low", ["b"]]},
        "late": {"type": "noul", "instructions": "Is it?"},
    }
    prepared = prepare(tokenizer, agent_config(), "a train", questions)
    where, level, late = prepared.rows
    assert where.ids == row_of(
        tokenizer,
        *(CLS, "choice question: Which?", SEP),
        *(MASK, " A: first", MASK, " 2", SEP, "a train", SEP),
    )
    assert (where.markers, where.qtype) == ((25, 35), 0)
    assert level.ids == row_of(
        tokenizer,
        *(CLS, 'score question: {"ü": 1}', SEP),
        *(MASK, " level 0: low", MASK, ' level 1: ["b"]', SEP, "a train", SEP),
    )
    assert (level.markers, level.qtype) == ((27, 41), 1)
    assert late.ids == row_of(
        tokenizer,
        *(CLS, "noul question: Is it?", SEP, MASK, " false: no, the statement does not hold"),
        *(MASK, " true: yes, the statement holds", SEP, "a train", SEP),
    )
    assert (late.markers, late.qtype) == ((23, 63), 2)
    assert [question.id for question in prepared.questions] == ["where", 1, "late"]
    assert prepared.input_tokens == len(where.ids) + len(level.ids) + len(late.ids)
    assert prepared.sequence_length == len(late.ids)
    assert not prepared.truncated


def test_slots_follow_the_option_order(tokenizer: Tokenizer) -> None:
    prepared = prepare(tokenizer, agent_config(), "", choice(["a", "b", "c"], option_order=[2, 0, 1]))
    assert only_ids(prepared) == row_of(
        tokenizer, CLS, "choice question: x", SEP, MASK, " c", MASK, " a", MASK, " b", SEP, SEP
    )


def test_the_mask_tokens_text_is_replaced_everywhere(tokenizer: Tokenizer) -> None:
    questions = choice({"a[MASK]": "[MASK]b"}, "which[MASK]one?")
    assert only_ids(prepare(tokenizer, agent_config(), {"[MASK]": "c[MASK]"}, questions)) == row_of(
        tokenizer,
        *(CLS, "choice question: which one?", SEP, MASK, " a :  b", SEP, '{" ": "c "}', SEP),
    )


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ("", ""),
        ("  as is\n", "  as is\n"),
        ({"ü": [1, None, True]}, '{"ü": [1, null, true]}'),
        (["a", {"b": 1.5}], '["a", {"b": 1.5}]'),
        (0, "0"),
        (("a", 1), '["a", 1]'),
    ],
)
def test_the_context_as_text(tokenizer: Tokenizer, context: object, text: str) -> None:
    prepared = prepare(tokenizer, agent_config(), context, choice(["a"]))
    assert only_ids(prepared) == row_of(tokenizer, CLS, "choice question: x", SEP, MASK, " a", SEP, text, SEP)


def test_an_option_keeps_48_tokens(tokenizer: Tokenizer) -> None:
    prepared = prepare(tokenizer, agent_config(), "s", choice(["b" * 100, "c" * 47]))
    assert only_ids(prepared) == row_of(
        tokenizer,
        *(CLS, "choice question: x", SEP, MASK, " " + "b" * 47, MASK, " " + "c" * 47, SEP, "s", SEP),
    )


def test_long_options_are_cut_alike_to_leave_the_head_16_tokens(tokenizer: Tokenizer) -> None:
    # 5 options of 1 + 21 tokens leave 100 - 110 < 16, so each keeps (100 - 16) // 5 = 16, marker included.
    labels = [f"{letter * 20}" for letter in "abcde"]
    prepared = prepare(tokenizer, agent_config(head_max_len=100), "s", choice(labels))
    options: list[str | int] = []
    for label in labels:
        options += [MASK, f" {label[:14]}"]
    # The head keeps 100 - 5 * 16 = 20 tokens, so all its 18 fit.
    assert only_ids(prepared) == row_of(tokenizer, CLS, "choice question: x", SEP, *options, SEP, "s", SEP)


def test_options_keep_at_least_4_tokens_and_the_head_at_least_8(tokenizer: Tokenizer) -> None:
    labels = [f"{number:02}long" for number in range(20)]
    prepared = prepare(tokenizer, agent_config(head_max_len=40), "s", choice(labels))
    options: list[str | int] = []
    for label in labels:
        options += [MASK, f" {label[:2]}"]
    assert only_ids(prepared) == row_of(tokenizer, CLS, "choice q", SEP, *options, SEP, "s", SEP)


@pytest.mark.parametrize(
    ("context", "kept", "truncated"),
    [
        ("0123456789", "0123456789", False),
        ("0123456789a", "0123456789", True),
        (["01234567"], '01234567"]', True),
        (["012345"], '["012345"]', False),
    ],
)
def test_what_does_not_fit_of_the_context_is_cut(
    tokenizer: Tokenizer, context: object, kept: str, truncated: bool
) -> None:
    # 1 + 18 + 1 head, 3 option and 1 separator tokens, then 10 of the context and the final separator.
    prepared = prepare(tokenizer, agent_config(max_len=35), context, choice(["a"]))
    assert only_ids(prepared) == row_of(tokenizer, CLS, "choice question: x", SEP, MASK, " a", SEP, kept, SEP)
    assert prepared.truncated is truncated
    assert prepared.sequence_length == prepared.input_tokens == 25 + len(kept)


def test_a_conversation_keeps_its_newest_turns(tokenizer: Tokenizer) -> None:
    turns = [{"user": "old " * 50}, {"user": "new"}]
    prepared = prepare(tokenizer, agent_config(max_len=64), turns, choice(["a"]))
    assert only_ids(prepared)[-16:] == row_of(tokenizer, ' {"user": "new"}]'[-15:], SEP)
    assert prepared.truncated


def test_a_conversation_without_room_keeps_nothing(tokenizer: Tokenizer) -> None:
    for context in (["turn"], "turn"):
        prepared = prepare(tokenizer, agent_config(max_len=25), context, choice(["a"]))
        assert only_ids(prepared) == row_of(tokenizer, CLS, "choice question: x", SEP, MASK, " a", SEP, SEP)
        assert prepared.truncated


def test_options_past_the_end_lose_their_tail(tokenizer: Tokenizer) -> None:
    prepared = prepare(tokenizer, agent_config(max_len=25), "s", choice(["abcdef"]))
    assert only_ids(prepared) == row_of(tokenizer, CLS, "choice question: x", SEP, MASK, " abc")
    assert prepared.truncated


def test_a_marker_past_the_end_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        prepare(tokenizer, agent_config(max_len=25), "s", choice(["abc", "def"]))
    assert str(refused.value) == (
        "question 'q': its 2 options need more than the model's 25 tokens; ask with fewer or shorter options"
    )


def test_truncated_when_any_row_is_cut(tokenizer: Tokenizer) -> None:
    questions = {**choice(["a"]), "long": {"type": "noul", "instructions": "x" * 50}}
    prepared = prepare(tokenizer, agent_config(max_len=140), "0123456789", questions)
    assert prepared.truncated
    assert [len(row.ids) for row in prepared.rows] == [35, 140]


def test_no_questions_cost_no_tokens(tokenizer: Tokenizer) -> None:
    assert prepare(tokenizer, agent_config(), "s", {}) == Prepared((), (), False, 0, 0)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (None, "context is None; pass a string (it may be empty) or a JSON value"),
        (
            {"a": {1}},
            "context cannot be encoded as JSON: Object of type set is not JSON serializable; "
            "pass a string or plain JSON values",
        ),
        (
            {("a",): 1},
            "context cannot be encoded as JSON: keys must be str, int, float, bool or None, not tuple; "
            "pass a string or plain JSON values",
        ),
        (
            "\udfff",
            "the text holds a lone surrogate, which is not valid Unicode; "
            "decode the bytes with errors='replace' first",
        ),
    ],
)
def test_a_context_that_cannot_be_read_is_refused(
    tokenizer: Tokenizer, context: object, message: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        prepare(tokenizer, agent_config(), context, noul())
    assert str(refused.value) == message


def test_a_lone_surrogate_in_a_question_is_refused_with_its_id(tokenizer: Tokenizer) -> None:
    for questions in (noul("\ud800"), choice(["\ud800"]), choice(["\ud800" * 600])):
        with pytest.raises(InvalidRequestError, match=r"^question 'q': the text holds a lone surrogate"):
            prepare(tokenizer, agent_config(), "s", questions)


texts = st.text(max_size=60) | st.text("x[MASK] ", max_size=30)


@given(
    context=texts | st.lists(texts, max_size=6),
    labels=st.lists(texts, min_size=1, max_size=40, unique=True),
    instructions=texts.filter(str.strip),
    max_len=st.integers(16, 300),
    head_max_len=st.integers(16, 300),
)
@settings(max_examples=150, deadline=None)
def test_every_row_is_well_formed(
    tokenizer: Tokenizer,
    context: object,
    labels: Sequence[str],
    instructions: str,
    max_len: int,
    head_max_len: int,
) -> None:
    config = agent_config(max_len=max_len, head_max_len=head_max_len)
    try:
        prepared = prepare(tokenizer, config, context, choice(list(labels), instructions))
    except InvalidRequestError as refused:
        assert "options need more than" in str(refused)  # noqa: PT017 - either outcome is right
        return
    (row,) = prepared.rows
    assert len(row.ids) <= max_len
    assert row.ids[0] == CLS
    assert row.ids.count(MASK) == len(row.markers) == len(labels)
    assert all(row.ids[marker] == MASK for marker in row.markers)
    assert list(row.markers) == sorted(row.markers)
    assert prepared.input_tokens == prepared.sequence_length == len(row.ids)
