"""Token rows, one a question: ``[CLS] head [SEP] [MASK] option0 [MASK] option1 ... [SEP] state [SEP]``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laya_apple.errors import InvalidRequestError
from laya_apple.prompt.questions import Question, parse_questions, shown
from laya_apple.prompt.tokenizer import PIECE_CHARACTERS, Tokenizer

if TYPE_CHECKING:
    from laya_apple.config import AgentConfig

OPTION_TOKENS = 48
"""Tokens of one option's text that are kept, without its marker."""
MIN_BUDGET = 16
MIN_OPTION_TOKENS = 4
MIN_HEAD_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One question's token sequence, unpadded."""

    ids: tuple[int, ...]
    markers: tuple[int, ...]
    """Positions of the option markers, one an option, in slot order."""
    qtype: int
    """0 choice, 1 score, 2 noul."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready for a backend: one row a question, in the caller's order."""

    questions: tuple[Question, ...]
    rows: tuple[Row, ...]
    truncated: bool
    """True when any state token was cut from any row."""
    input_tokens: int
    """Sum of the row lengths, without padding."""
    sequence_length: int
    """Tokens of the longest row; 0 without questions."""


def prepare(tokenizer: Tokenizer, config: AgentConfig, context: object, questions: object) -> Prepared:
    """Check a request and turn it into token rows; the context is tokenised once.

    Raises InvalidRequestError, naming the question and the mend, for a malformed question, a context
    that is None or that JSON cannot encode, text that is not Unicode, or options past ``config.max_len``.
    """
    if context is None:
        raise InvalidRequestError("context is None; pass a string (it may be empty) or a JSON value")
    parsed = parse_questions(questions)
    if not parsed:
        return Prepared((), (), False, 0, 0)
    state = tokenizer.encode(render_context(context).replace(tokenizer.mask_token, " "))
    keep_newest = isinstance(context, list)
    rows: list[Row] = []
    truncated = False
    longest = total = 0
    for question in parsed:
        row, cut = _row(tokenizer, config, question, state, keep_newest)
        rows.append(row)
        truncated |= cut
        length = len(row.ids)
        total += length
        if length > longest:
            longest = length
    return Prepared(parsed, tuple(rows), truncated, total, longest)


def render_context(context: object) -> str:
    """The context as the model reads it: a string as is, anything else as JSON.

    Raises InvalidRequestError for what JSON cannot encode.
    """
    if isinstance(context, str):
        return context
    try:
        return json.dumps(context, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:  # reraise: names the mend
        raise InvalidRequestError(
            f"context cannot be encoded as JSON: {error}; pass a string or plain JSON values"
        ) from error


def _row(
    tokenizer: Tokenizer, config: AgentConfig, question: Question, state: list[int], keep_newest: bool
) -> tuple[Row, bool]:
    try:
        head = _piece(tokenizer, f"{question.type} question: {question.instructions}")
        options = [_piece(tokenizer, f" {text}")[:OPTION_TOKENS] for text in question.slot_texts]
    except InvalidRequestError as error:  # reraise: names the question
        raise InvalidRequestError(f"question {shown(question.id)}: {error}") from error
    budget = config.head_max_len - sum(map(len, options)) - len(options)
    if budget < MIN_BUDGET:
        # The marker counts as one of the option's tokens here.
        keep = max(MIN_OPTION_TOKENS, (config.head_max_len - MIN_BUDGET) // len(options)) - 1
        options = [option[:keep] for option in options]
        budget = config.head_max_len - sum(map(len, options)) - len(options)
    ids = [tokenizer.cls_id, *head[: max(MIN_HEAD_TOKENS, budget)], tokenizer.sep_id]
    markers = []
    for option in options:
        markers.append(len(ids))
        ids.append(tokenizer.mask_id)
        ids += option
    ids.append(tokenizer.sep_id)
    if markers[-1] >= config.max_len:
        raise InvalidRequestError(
            f"question {shown(question.id)}: its {len(options)} options need more than the model's "
            f"{config.max_len} tokens; ask with fewer or shorter options"
        )
    room = max(0, config.max_len - 1 - len(ids))
    cut = len(state) > room
    if cut:
        ids += state[len(state) - room :] if keep_newest else state[:room]
    else:
        ids += state
    ids.append(tokenizer.sep_id)
    # Only options that overflow the sequence by themselves get here; upstream drops the final SEP then.
    del ids[config.max_len :]
    return Row(tuple(ids), tuple(markers), question.qtype), cut


def _piece(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    text = text.replace(tokenizer.mask_token, " ")
    if len(text) <= PIECE_CHARACTERS:
        return tokenizer.encode_piece(text)
    return tuple(tokenizer.encode(text))
