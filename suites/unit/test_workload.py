"""Seeded arrivals, and requests of an exact token length."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laya_apple.checkpoint import open_checkpoint
from laya_apple.demos.switchyard import world
from laya_apple.prompt.sequence import prepare
from laya_apple.prompt.tokenizer import Tokenizer
from laya_apple.workload import RequestShape, arrivals, make_request, make_requests

CHECKPOINTS = Path(__file__).resolve().parents[2] / "fixtures" / "checkpoints"
NAMES = sorted(path.name for path in CHECKPOINTS.iterdir() if (path / "rl_agent_config.json").exists())


def test_bursty_arrivals_come_in_the_first_second_of_every_three() -> None:
    offsets = arrivals(40, 60, 11, bursty=True)
    # An offset may lie just past the second in which its gap was drawn.
    assert sum(offset % 3 > 1 for offset in offsets) <= 20
    assert len(offsets) == 2410
    assert offsets == sorted(offsets)


def test_steady_arrivals_have_the_mean_rate() -> None:
    offsets = arrivals(40, 300, 5, bursty=False)
    assert len(offsets) == pytest.approx(12_000, rel=0.03)


@given(st.integers(0, 10**6), st.floats(1, 200), st.integers(1, 12), st.booleans())
def test_arrivals_are_ascending_below_the_end_and_repeatable(
    seed: int, rate: float, seconds: int, bursty: bool
) -> None:
    offsets = arrivals(rate, seconds, seed, bursty)
    assert offsets == sorted(offsets) == arrivals(rate, seconds, seed, bursty)
    assert all(0 < offset < seconds for offset in offsets)


def test_there_are_fixture_checkpoints() -> None:
    assert len(NAMES) >= 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("length", "questions", "seed"), [(512, 1, 2), (1024, 1, 3), (128, 4, 4), (96, 2, 9)]
)
def test_the_longest_row_is_exactly_as_long_as_asked(
    name: str, length: int, questions: int, seed: int
) -> None:
    checkpoint = open_checkpoint(CHECKPOINTS / name)
    tokenizer = Tokenizer.from_dir(checkpoint.path)
    if length > checkpoint.config.max_len:
        with pytest.raises(ValueError, match="reads at most"):
            make_request(tokenizer, checkpoint.config, length, questions, seed)
        return
    request = make_request(tokenizer, checkpoint.config, length, questions, seed)
    prepared = prepare(tokenizer, checkpoint.config, request.context, request.questions)
    assert prepared.sequence_length == length
    assert len(prepared.rows) == questions
    assert not prepared.truncated
    assert request == make_request(tokenizer, checkpoint.config, length, questions, seed)
    assert request.context != make_request(tokenizer, checkpoint.config, length, questions, seed + 1).context


def test_what_does_not_fit_is_refused() -> None:
    checkpoint = open_checkpoint(CHECKPOINTS / NAMES[0])
    tokenizer = Tokenizer.from_dir(checkpoint.path)
    with pytest.raises(ValueError, match="4 questions do not fit in 8 tokens"):
        make_request(tokenizer, checkpoint.config, 8, 4, 1)
    with pytest.raises(ValueError, match="questions must be 1 to 4, not 5"):
        make_request(tokenizer, checkpoint.config, 128, 5, 1)


def test_requests_of_a_model_by_name_of_their_shape() -> None:
    found = make_requests(
        str(CHECKPOINTS / NAMES[0]), {"small": RequestShape(length=100, questions=1, seed=2)}
    )
    assert list(found) == ["small"]


def test_background_shapes_are_the_seeds() -> None:
    assert [
        (name, shape.length, shape.questions, shape.seed) for name, shape in world.BACKGROUND.items()
    ] == [
        ("medium_1q", 512, 1, 2),
        ("long_1q", 1024, 1, 3),
        ("short_4q", 128, 4, 4),
    ]
