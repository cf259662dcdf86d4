"""Seeded open-loop workloads: when requests arrive, and requests of an exact token length."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laya_apple.checkpoint import AgentConfig
    from laya_apple.prompt.tokenizer import Tokenizer

BURST_PERIOD_S = 3
BURST_ON_S = 1
BURST_FACTOR = 3.0

# The rate inside the off-part. Not zero: a gap is drawn there too before the clock jumps, and that draw
# is part of the random sequence.
_OFF_RATE = 1e-9


def arrivals(rate: float, seconds: float, seed: int, bursty: bool) -> list[float]:
    """Arrival offsets in seconds, ascending, all below ``seconds``.

    ``rate`` is the mean in requests per second. Steady arrivals are a Poisson process. Bursty ones are a
    Poisson process at 3x the rate in the first second of every 3 s period, and none in the other two.
    """
    rng = random.Random(seed)
    offsets: list[float] = []
    t = 0.0
    while t < seconds:
        on = not bursty or t % BURST_PERIOD_S < BURST_ON_S
        now_rate = rate if not bursty else rate * BURST_FACTOR if on else _OFF_RATE
        gap = rng.expovariate(now_rate)
        if not on:
            t = (t // BURST_PERIOD_S + 1) * BURST_PERIOD_S
            continue
        t += gap
        offsets.append(t)
    return [offset for offset in offsets if offset < seconds]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as ``Laya.predict`` and ``Laya.submit`` take it."""

    context: str
    questions: dict[str, dict[str, Any]]


_SENTENCE_STARTS = (
    "The customer writes that",
    "Support replied that",
    "A second agent noted that",
    "The latest log shows that",
    "According to the account page,",
    "After the call we saw that",
)
_SENTENCE_SUBJECTS = (
    "the invoice for the last order",
    "the delivery of the new phone",
    "the password reset mail",
    "the refund for the second item",
    "the app on the old tablet",
    "the yearly plan of the team",
)
_SENTENCE_VERBS = (
    "did not arrive",
    "was charged two times",
    "stopped working again",
    "needs one more check",
    "came back with an error",
    "is still waiting for an answer",
)
_SENTENCE_ENDS = (
    "before the end of the week.",
    "although the order was paid.",
    "since the last update.",
    "and nobody called back.",
    "on both of the devices.",
    "as the first message said.",
)
# Tried, in this order, where the next word of the text would overshoot the asked length. Those without a
# space continue the last word, so that every tokenizer has one of a single token.
_SHORT_ENDS = (
    " a",
    " it",
    " the",
    " is",
    " on",
    " we",
    " to",
    " in",
    " no",
    ".",
    "!",
    "s",
    "1",
    "?",
    "x",
    ";",
)

_QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "queue",
        {
            "type": "choice",
            "instructions": "Which queue should handle this ticket?",
            "criteria": ["billing", "shipping", "account", "technical"],
        },
    ),
    (
        "urgency",
        {
            "type": "score",
            "instructions": "How urgent is this ticket?",
            "criteria": ["can wait", "this week", "today", "at once"],
        },
    ),
    ("refund", {"type": "noul", "instructions": "The customer asks for money back."}),
    (
        "mood",
        {
            "type": "choice",
            "instructions": "What is the mood of the customer?",
            "criteria": ["calm", "worried", "angry"],
        },
    ),
)


def _ticket_words(rng: random.Random) -> list[str]:
    parts = (_SENTENCE_STARTS, _SENTENCE_SUBJECTS, _SENTENCE_VERBS, _SENTENCE_ENDS)
    return " ".join(rng.choice(part) for part in parts).split()


def make_request(
    tokenizer: Tokenizer, config: AgentConfig, length: int, questions: int, seed: int
) -> Request:
    """A support ticket with ``questions`` questions whose longest row is exactly ``length`` tokens.

    The text is grown word by word and never padded or cut, so the same seed and tokenizer always give the
    same request. Raises ValueError when ``questions`` is not 1 to 4 or when no text of that length exists
    (shorter than the questions themselves, or longer than the model reads).
    """
    from laya_apple.prompt.sequence import prepare

    if not 1 <= questions <= len(_QUESTIONS):
        raise ValueError(f"questions must be 1 to {len(_QUESTIONS)}, not {questions}")
    asked = dict(_QUESTIONS[:questions])
    if length > config.max_len:
        raise ValueError(f"the model reads at most {config.max_len} tokens, so none of {length} exists")

    def size(text: str) -> int:
        prepared = prepare(tokenizer, config, text, asked)
        # A cut row says nothing about the text's own length; it counts as too long.
        return length + 1 if prepared.truncated else prepared.sequence_length

    rng = random.Random(seed)
    text = f"Ticket {rng.randint(1000, 9999)}:"
    if size(text) > length:
        raise ValueError(f"{questions} questions do not fit in {length} tokens")
    pending: list[str] = []
    while (now := size(text)) < length:
        if not pending:
            pending = _ticket_words(rng)
        # A word is at least one token, so this many words come close without passing the length; the
        # shrinking steps keep the number of tokenisations small.
        step = max(1, (length - now) // 8)
        for taken in (step, 1):
            longer = " ".join([text, *pending[:taken]])
            if size(longer) <= length:
                text, pending = longer, pending[taken:]
                break
        else:
            text += _end(text, size, length)
    return Request(text, asked)


def _end(text: str, size: Callable[[str], int], length: int) -> str:
    now = size(text)
    for end in _SHORT_ENDS:
        if now < size(text + end) <= length:
            return end
    raise ValueError(f"no text of exactly {length} tokens could be grown with this tokenizer")


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Length in tokens of the longest row, number of questions and seed of one background class."""

    length: int
    questions: int
    seed: int


def make_requests(
    model_id: str, shapes: dict[str, RequestShape], *, local_files_only: bool = False
) -> dict[str, Request]:
    """The request of each named shape for a registered model or checkpoint directory.

    Opens the checkpoint (and downloads it first unless ``local_files_only``). Raises what
    ``open_checkpoint`` and ``make_request`` raise.
    """
    from laya_apple.checkpoint import open_checkpoint
    from laya_apple.prompt.tokenizer import Tokenizer

    checkpoint = open_checkpoint(model_id, local_files_only=local_files_only)
    tokenizer = Tokenizer.from_dir(checkpoint.path)
    return {
        name: make_request(tokenizer, checkpoint.config, shape.length, shape.questions, shape.seed)
        for name, shape in shapes.items()
    }
