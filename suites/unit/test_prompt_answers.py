"""Answers: calibration, rounding, field order, and no answer from numbers that are not finite."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_files import agent_config

from laya_apple import LayaAppleError, UnsupportedModelError
from laya_apple.backends.base import RowOutput
from laya_apple.prompt.answers import Calibration, format_answers
from laya_apple.prompt.questions import parse_questions

PLAIN = Calibration((1.0, 1.0, 1.0), {})


def output(options: Sequence[float], action: Sequence[float] = (0.0, 0.0)) -> RowOutput:
    return RowOutput(np.array(options, np.float32), np.array(action, np.float32))


def answer(question: dict[str, Any], row: RowOutput, calibration: Calibration = PLAIN) -> dict[str, Any]:
    questions = parse_questions({"q": {"instructions": "x", **question}})
    return format_answers(questions, [row], calibration)["q"]


def test_choice() -> None:
    question = {"type": "choice", "criteria": {"A": "first", 2: "second", False: "third"}}
    logits = [math.log(0.2), math.log(0.7), math.log(0.1)]
    found = answer(question, output(logits, [math.log(0.75), math.log(0.25)]))
    entropy = -(0.2 * math.log(0.2) + 0.7 * math.log(0.7) + 0.1 * math.log(0.1))
    assert list(found.items()) == [
        ("type", "choice"),
        ("choice", 2),
        ("probabilities", {"A": 0.2, 2: 0.7, False: 0.1}),
        ("confidence", round(1 - entropy / math.log(3), 4)),
        ("answer_confidence", 0.7),
        ("action", {"act_probability": 0.75}),
    ]
    assert [type(label) for label in found["probabilities"]] == [str, int, bool]
    assert found["confidence"] == 0.2702


def test_score() -> None:
    found = answer({"type": "score", "criteria": ["low", {"x": 1}, 9]}, output([0.0, 0.0, math.log(2)]))
    assert list(found.items()) == [
        ("type", "score"),
        ("score", 1.25),
        ("legend", {"0": "low", "1": '{"x": 1}', "2": "9"}),
        ("probabilities", {"0": 0.25, "1": 0.25, "2": 0.5}),
        ("confidence", 0.0536),
        ("answer_confidence", 0.5),
        ("action", {"act_probability": 0.5}),
    ]


@pytest.mark.parametrize(("p", "confidence"), [(0.8, 0.8), (0.3, 0.7)])
def test_noul(p: float, confidence: float) -> None:
    found = answer({"type": "noul"}, output([math.log(1 - p), math.log(p)], [0.0]))
    assert list(found.items()) == [
        ("type", "noul"),
        ("noul", p),
        ("confidence", confidence),
        ("answer_confidence", confidence),
        ("action", {"act_probability": 1.0}),
    ]


def test_a_single_option_is_certain() -> None:
    found = answer({"type": "choice", "criteria": ["only"]}, output([-7.0]))
    assert found["probabilities"] == {"only": 1.0}
    assert (found["choice"], found["confidence"], found["answer_confidence"]) == ("only", 1.0, 1.0)


def test_even_odds_have_no_confidence_and_the_first_option_wins() -> None:
    found = answer({"type": "choice", "criteria": ["a", "b"]}, output([3.0, 3.0]))
    assert (found["choice"], found["confidence"]) == ("a", 0.0)
    assert math.copysign(1.0, found["confidence"]) == 1.0


def test_slots_go_back_to_the_callers_order_before_the_arg_max() -> None:
    question = {"type": "choice", "criteria": ["a", "b", "c"], "option_order": [2, 0, 1]}
    found = answer(question, output([math.log(0.5), math.log(0.2), math.log(0.3)]))
    assert found["choice"] == "c"
    assert found["probabilities"] == {"a": 0.2, "b": 0.3, "c": 0.5}
    tied = answer(question, output([1.0, 1.0, 0.0]))
    assert tied["choice"] == "a"


def test_logits_beyond_the_options_are_ignored() -> None:
    found = answer({"type": "choice", "criteria": ["a", "b"]}, output([0.0, 0.0, 99.0, -1e4]))
    assert found["probabilities"] == {"a": 0.5, "b": 0.5}


def test_extreme_logits_do_not_overflow() -> None:
    found = answer({"type": "choice", "criteria": ["a", "b"]}, output([3e38, -3e38], [-3e38, 3e38]))
    assert found["probabilities"] == {"a": 1.0, "b": 0.0}
    assert found["action"] == {"act_probability": 0.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_never_become_an_answer(bad: float) -> None:
    question = {"type": "choice", "criteria": ["a", "b"]}
    with pytest.raises(LayaAppleError) as refused:
        answer(question, output([0.0, bad]))
    assert str(refused.value) == (
        "question 'q': the backend returned a non-finite option logit; no answer was made"
    )
    with pytest.raises(LayaAppleError) as refused:
        answer(question, output([0.0, 0.0], [bad, 0.0]))
    assert str(refused.value) == (
        "question 'q': the backend returned a non-finite action logit; no answer was made"
    )


def test_missing_outputs_never_become_an_answer() -> None:
    question = {"type": "choice", "criteria": ["a", "b"]}
    with pytest.raises(LayaAppleError, match="the backend returned 1 option logits for 2 options"):
        answer(question, output([0.0]))
    with pytest.raises(LayaAppleError, match="non-finite action logit"):
        answer(question, output([0.0, 0.0], []))
    with pytest.raises(LayaAppleError, match="the backend returned 0 rows for 1 questions"):
        format_answers(parse_questions(["x"]), [], PLAIN)


@pytest.mark.parametrize(
    ("kind", "options", "temperature"),
    [
        ("choice", 1, 1.1),
        ("choice", 2, 1.1),
        ("choice", 3, 1.2),
        ("choice", 5, 1.2),
        ("choice", 6, 1.3),
        ("choice", 10, 1.3),
        ("choice", 11, 1.4),
        ("choice", 300, 1.4),
        ("score", 2, 1.5),
        ("score", 3, 2.0),
        ("noul", 2, 3.0),
    ],
)
def test_the_temperature_of_a_question(kind: str, options: int, temperature: float) -> None:
    config = agent_config(
        temperature=[1.0, 2.0, 3.0],
        temperature_by_options={
            "choice:2": 1.1,
            "choice:3-5": 1.2,
            "choice:6-10": 1.3,
            "choice:11+": 1.4,
            "score:2": 1.5,
            "unknown": 4.0,
        },
    )
    assert Calibration.from_config(config).temperature(kind, options) == temperature


def test_probabilities_are_divided_by_the_temperature() -> None:
    calibration = Calibration((1.0, 1.0, 1.0), {"choice:2": 2.0})
    found = answer({"type": "choice", "criteria": ["a", "b"]}, output([0.0, math.log(9)]), calibration)
    assert found["probabilities"] == {"a": 0.25, "b": 0.75}


def test_sound_temperatures_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Calibration.from_config(
            agent_config(temperature=["0.5", " 5 ", 1], temperature_by_options={"noul:2": "1e0"})
        )
        assert found == Calibration((0.5, 5.0, 1.0), {"noul:2": 1.0})
        assert Calibration.from_config(agent_config(temperature_by_options=None)).by_options == {}


def test_one_warning_names_every_temperature_that_was_replaced() -> None:
    config = agent_config(
        temperature=[0.1, "x", True],
        temperature_by_options={"choice:2": 9, "choice:3-5": None, "noul:2": math.nan, "score:2": math.inf},
    )
    with pytest.warns(RuntimeWarning) as caught:
        found = Calibration.from_config(config)
    assert [str(item.message) for item in caught] == [
        "rl_agent_config.json holds temperatures outside [0.5, 5.0]; replaced: "
        "temperature[choice]=0.1 by 0.5, temperature[score]='x' by 1.0, temperature[noul]=True by 1.0, "
        "temperature_by_options[choice:2]=9 by 5.0, temperature_by_options[choice:3-5]=None by 1.0, "
        "temperature_by_options[noul:2]=nan by 1.0, temperature_by_options[score:2]=inf by 1.0"
    ]
    assert found == Calibration(
        (0.5, 1.0, 1.0), {"choice:2": 5.0, "choice:3-5": 1.0, "noul:2": 1.0, "score:2": 1.0}
    )


@pytest.mark.parametrize("value", [None, 1.0, "123", [], [1, 2], [1, 2, 3, 4], {"a": 1, "b": 2, "c": 3}])
def test_temperature_must_hold_three_entries(value: object) -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        Calibration.from_config(agent_config(temperature=value))
    assert str(refused.value) == (
        f"rl_agent_config.json: temperature is {value!r}; it must hold exactly 3 numbers, "
        "one for each of choice, score and noul"
    )


@pytest.mark.parametrize("value", [[], "x", 5])
def test_temperatures_by_options_must_be_an_object(value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=r"temperature_by_options is .*; it must map buckets"):
        Calibration.from_config(agent_config(temperature_by_options=value))


finite = st.floats(-1e4, 1e4, width=32)


@given(
    logits=st.lists(finite, min_size=1, max_size=40),
    action=st.lists(finite, min_size=1, max_size=4),
    temperature=st.floats(0.5, 5.0),
    kind=st.sampled_from(["choice", "score"]),
)
@settings(max_examples=200, deadline=None)
def test_answers_are_probabilities_for_any_finite_logits(
    logits: list[float], action: list[float], temperature: float, kind: str
) -> None:
    calibration = Calibration((temperature,) * 3, {})
    labels = [f"o{index}" for index in range(len(logits))]
    found = answer({"type": kind, "criteria": labels}, output(logits, action), calibration)
    p = list(found["probabilities"].values())
    assert all(0.0 <= value <= 1.0 for value in p)
    assert abs(sum(p) - 1.0) <= 5e-5 * len(p) + 1e-12
    assert 0.0 <= found["confidence"] <= 1.0
    assert found["answer_confidence"] == max(p)
    assert 0.0 <= found["action"]["act_probability"] <= 1.0
    if kind == "score":
        assert 0.0 <= found["score"] <= len(p) - 1
    else:
        assert found["probabilities"][found["choice"]] == max(p)
