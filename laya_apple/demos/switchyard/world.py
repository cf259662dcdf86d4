"""The junction: its timetable, its trains, the frozen wording and the oracle.

Everything here is fixed for workload ``switchyard-v1``; any change is a new workload version.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from laya_apple import workload
from laya_apple.workload import Request, RequestShape

WORKLOAD_ID = "switchyard-v1"
WORKLOAD_VERSION = 1
MODEL = "laya-typed-decisions"
SEED = 11
DURATION_S = 60
WARMUP_S = 5
WARMUP_SEED_OFFSET = 100
RATE_REQ_S = 40.0
DEADLINE_MS = 100.0
THRESHOLDS_MS = (25, 50, 100, 250, 500)
TRAIN_MAX_TOKENS = 128

TRAIN = "train"
MIX = {TRAIN: 0.6, "medium_1q": 0.2, "long_1q": 0.1, "short_4q": 0.1}
BACKGROUND = {
    "medium_1q": RequestShape(length=512, questions=1, seed=2),
    "long_1q": RequestShape(length=1024, questions=1, seed=3),
    "short_4q": RequestShape(length=128, questions=4, seed=4),
}

PLATFORMS = ("A", "B", "C")
LINES = 6
CLEAR, OCCUPIED, CLOSED = "clear", "occupied", "closed"

QUESTION_ID = "platform"
HEADER = "Line {line} inbound. Train {train} is approaching the junction."
SENTENCES = {
    OCCUPIED: "Platform {platform} is occupied by train {other}.",
    CLOSED: "Platform {platform} is closed for maintenance.",
    CLEAR: "Platform {platform} is clear and open.",
}
QUESTION = "Train {train} must be routed to the clear platform. Which platform is clear?"


def _patterns() -> tuple[tuple[str, str, str], ...]:
    found = []
    for clear in PLATFORMS:
        for states in itertools.product((OCCUPIED, CLOSED), repeat=2):
            others = iter(states)
            a, b, c = (CLEAR if platform == clear else next(others) for platform in PLATFORMS)
            found.append((a, b, c))
    return tuple(found)


PATTERNS = _patterns()
"""The 12 core patterns: the state of platforms A, B and C."""


@dataclass(frozen=True, slots=True)
class Train:
    """One train at the signal. ``occupants`` names the train at each platform, None where there is none."""

    line: int
    train_id: int
    pattern: int
    occupants: tuple[int | None, int | None, int | None]

    @property
    def states(self) -> tuple[str, str, str]:
        """``clear``, ``occupied`` or ``closed`` for platforms A, B and C."""
        return PATTERNS[self.pattern]

    @property
    def oracle(self) -> str:
        """The clear platform: the correct answer."""
        return PLATFORMS[self.states.index(CLEAR)]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One scheduled request: seconds after the round's start, its class, and its train if it is one."""

    offset_s: float
    cls: str
    train: Train | None = None


def draw_train(rng: random.Random, pattern: int) -> Train:
    """Line, train id and occupying trains, in the order that the timetable's random sequence fixes."""
    line = rng.randint(1, LINES)
    train_id = rng.randint(1000, 9999)
    taken = {train_id}
    occupants: list[int | None] = []
    for state in PATTERNS[pattern]:
        if state != OCCUPIED:
            occupants.append(None)
            continue
        other = rng.randint(1000, 9999)
        while other in taken:
            other = rng.randint(1000, 9999)
        taken.add(other)
        occupants.append(other)
    a, b, c = occupants
    return Train(line, train_id, pattern, (a, b, c))


def schedule(
    seed: int = SEED, duration_s: float = DURATION_S, rate_req_s: float = RATE_REQ_S
) -> tuple[Arrival, ...]:
    """The timetable of one round, ascending in time."""
    offsets = workload.arrivals(rate_req_s, duration_s, seed, bursty=True)
    class_rng = random.Random(seed + 1)
    train_rng = random.Random(seed + 2)
    names, weights = list(MIX), list(MIX.values())
    found = []
    for offset in offsets:
        cls = class_rng.choices(names, weights)[0]
        train = draw_train(train_rng, train_rng.randrange(len(PATTERNS))) if cls == TRAIN else None
        found.append(Arrival(offset, cls, train))
    return tuple(found)


def warmup_schedule(seed: int = SEED, warmup_s: float = WARMUP_S) -> tuple[Arrival, ...]:
    """The warm-up's own timetable, not measured."""
    return schedule(seed + WARMUP_SEED_OFFSET, warmup_s)


def oracle_cases(seed: int = 0, variants: int = 20) -> tuple[Train, ...]:
    """``variants`` trains of each of the 12 patterns, pattern by pattern (240 by default)."""
    rng = random.Random(seed)
    return tuple(draw_train(rng, pattern) for pattern in range(len(PATTERNS)) for _ in range(variants))


def prompt(train: Train) -> Request:
    """The frozen train request: platform sentences in the order A, B, C."""
    lines = [HEADER.format(line=train.line, train=train.train_id)]
    for platform, state, other in zip(PLATFORMS, train.states, train.occupants, strict=True):
        lines.append(SENTENCES[state].format(platform=platform, other=other))
    question = {
        "type": "choice",
        "instructions": QUESTION.format(train=train.train_id),
        "criteria": list(PLATFORMS),
    }
    return Request(" ".join(lines), {QUESTION_ID: question})


def _sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def schedule_sha256(arrivals: Sequence[Arrival]) -> str:
    """Fingerprint of a timetable: offsets, classes and trains."""
    rows = []
    for arrival in arrivals:
        train = arrival.train
        described = train and {
            "line": train.line,
            "train_id": train.train_id,
            "pattern": train.pattern,
            "occupants": list(train.occupants),
        }
        rows.append([arrival.offset_s, arrival.cls, described])
    return _sha256(rows)


def prompt_template_sha256() -> str:
    """Fingerprint of the frozen wording."""
    return _sha256(
        {
            "header": HEADER,
            "sentences": SENTENCES,
            "question_id": QUESTION_ID,
            "question": QUESTION,
            "criteria": list(PLATFORMS),
        }
    )


def timetable_sha256(rows: Sequence[tuple[int, str, int, int | None, int | None, int | None]]) -> str:
    """Fingerprint of what a round submitted.

    Each row is (index, class, arrival_ns - round_start_ns, train_id, pattern, line), in index order, with
    None for the last three of a background request.
    """
    return _sha256([list(row) for row in rows])


def is_whole_cycles(duration_s: float) -> bool:
    """Whether a duration is a whole, positive number of burst cycles, so that it offers the nominal rate."""
    return duration_s > 0 and duration_s % workload.BURST_PERIOD_S == 0
