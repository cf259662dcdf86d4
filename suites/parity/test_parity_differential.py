"""Upstream and this runtime on the same generated requests: thousands of them, over every checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from parity_checkpoints import ParityCheckpoint, parity_checkpoints
from parity_comparison import differences
from reference_client import ReferenceClient
from requests_strategy import hostile_questions, hostile_states, questions, states

from laya_apple import InvalidRequestError
from laya_apple.backends.base import RowOutput
from laya_apple.backends.mlx import MLXBackend
from laya_apple.parity.gate import TOLERANCES
from laya_apple.parity.goldens import case_from_reference
from laya_apple.prompt.answers import Calibration, act_probability, format_answers, probabilities
from laya_apple.prompt.sequence import prepare
from laya_apple.prompt.tokenizer import Tokenizer

REQUESTS = 2000
"""At least so many over all checkpoints, and as many hostile ones."""
PARTS = 8
"""Tests that a checkpoint's requests are spread over, so that each of them stays far below the time limit."""
FLOAT32_AIM = 1e-5
NAMED = r"^(question .+: |question id .+ is refused|questions (is|holds) |context |the text holds )"
"""A refusal names the question it is about, unless it is about the context or the questions as a whole."""

CHECKPOINTS = parity_checkpoints()
# Shrinking costs hundreds of forwards through three networks, so a failing request is shown as it came.
EACH = settings(
    max_examples=-(-REQUESTS // (PARTS * len(CHECKPOINTS))),
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

pytestmark = [
    pytest.mark.laya_slow,
    pytest.mark.filterwarnings("ignore:rl_agent_config.json holds temperatures:RuntimeWarning"),
]


@pytest.fixture(scope="module")
def upstream() -> Iterator[ReferenceClient]:
    with ReferenceClient() as client:
        assert client.versions()["laya"] == "0.4.15"
        yield client


@dataclass
class Side:
    """This runtime's half of one checkpoint, and what was seen of it."""

    fixture: ParityCheckpoint
    tokenizer: Tokenizer
    config: Any
    calibration: Calibration
    backends: dict[str, MLXBackend]
    requests: int = 0
    refused: int = 0
    worst: dict[str, float] = field(default_factory=lambda: {"float32": 0.0, "float16": 0.0})
    near_ties: dict[str, int] = field(default_factory=lambda: {"float32": 0, "float16": 0})


@pytest.fixture(scope="module", params=CHECKPOINTS, ids=lambda checkpoint: checkpoint.name)
def side(request: pytest.FixtureRequest) -> Side:
    fixture: ParityCheckpoint = request.param
    checkpoint = fixture.open()
    return Side(
        fixture,
        Tokenizer.from_dir(fixture.path),
        checkpoint.config,
        Calibration.from_config(checkpoint.config),
        {
            "float32": MLXBackend(checkpoint, device="cpu", dtype="float32"),
            "float16": MLXBackend(checkpoint, device="cpu", dtype="float16"),
        },
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_answers_are_upstreams(
    side: Side, upstream: ReferenceClient, part: int, record_property: Any
) -> None:
    asked_before = side.requests + side.refused

    @EACH
    @seed(part)
    @given(states, questions)
    def compare(context: Any, asked: dict[Any, Any]) -> None:
        reply = upstream.predict(side.fixture.path, context, asked)
        if "error" in reply:
            # A row whose markers do not fit is the one thing that a sound question can be refused for.
            with pytest.raises(InvalidRequestError, match="options need more than"):
                prepare(side.tokenizer, side.config, context, asked)
            side.refused += 1
            return
        side.requests += 1
        compare_answers(side, context, asked, reply)

    compare()
    assert side.requests + side.refused - asked_before >= EACH.max_examples
    record_property(
        f"differential[{side.fixture.name}]",
        json.dumps(
            {
                "requests": side.requests,
                "refused_by_both": side.refused,
                "max_difference": side.worst,
                "near_ties": side.near_ties,
            }
        ),
    )


def compare_answers(side: Side, context: Any, asked: dict[Any, Any], reply: dict[str, Any]) -> None:
    prepared = prepare(side.tokenizer, side.config, context, asked)
    case = case_from_reference("generated", context, asked, reply)
    assert [(row.ids, row.markers, row.qtype) for row in prepared.rows] == [
        (row.ids, row.markers, row.qtype) for row in case.rows
    ]
    assert prepared.truncated is case.truncated
    assert prepared.input_tokens == case.input_tokens

    outputs = [
        RowOutput(np.array(row.options, np.float32), np.array(row.action, np.float32)) for row in case.rows
    ]
    formatted = format_answers(prepared.questions, outputs, side.calibration)
    assert differences(formatted, dict(case.answers)) == []

    for dtype, backend in side.backends.items():
        tolerance = FLOAT32_AIM if dtype == "float32" else TOLERANCES[dtype]
        ours = backend.forward(prepared.rows)
        for question, output, row in zip(prepared.questions, ours, case.rows, strict=True):
            p = probabilities(question, output, side.calibration)
            act = act_probability(question, output)
            worst = max(
                abs(act - row.act_probability),
                *(abs(one - other) for one, other in zip(p, row.probabilities, strict=True)),
            )
            side.worst[dtype] = max(side.worst[dtype], worst)
            assert worst <= tolerance, (dtype, question)
            decision, expected = p.index(max(p)), row.probabilities.index(max(row.probabilities))
            if decision != expected:
                assert margin(row.probabilities) < 2 * tolerance, (dtype, question)
                side.near_ties[dtype] += 1


def margin(p: Sequence[float]) -> float:
    first, second = sorted(p, reverse=True)[:2]
    return first - second


@pytest.mark.parametrize("part", range(PARTS))
def test_both_sides_refuse_the_same_requests(
    side: Side, upstream: ReferenceClient, part: int, record_property: Any
) -> None:
    counts = {"refused": 0, "accepted": 0}

    @EACH
    @seed(part)
    @given(hostile_states, hostile_questions)
    def compare(context: Any, asked: Any) -> None:
        reply = upstream.predict(side.fixture.path, context, asked)
        if "error" in reply:
            with pytest.raises(InvalidRequestError, match=NAMED):
                prepare(side.tokenizer, side.config, context, asked)
            counts["refused"] += 1
            return
        prepared = prepare(side.tokenizer, side.config, context, asked)
        counts["accepted"] += 1
        assert [list(row.ids) for row in prepared.rows] == [row["ids"] for row in reply["rows"]]

    compare()
    record_property(f"refusals[{side.fixture.name}]", json.dumps(counts))
    assert min(counts.values()) >= EACH.max_examples // 10


def test_the_reference_gets_a_copy(upstream: ReferenceClient, tmp_path: Path) -> None:
    # Upstream may rewrite a tokenizer's files in place; ours must stay as they are.
    for fixture in CHECKPOINTS:
        before = {path: path.read_bytes() for path in fixture.path.rglob("*.json")}
        upstream.predict(fixture.path, "s", {"q": {"type": "noul", "instructions": "x"}})
        assert {path: path.read_bytes() for path in before} == before
