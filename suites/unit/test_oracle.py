"""The oracle's evidence: the wordings of the seed's table, and what is kept of every case."""

from __future__ import annotations

import re
from typing import Any

import pytest
from switchyard_fakes import VIRTUAL_MAC

from laya_apple import registry
from laya_apple.demos.switchyard import oracle, world
from laya_apple.result import Result, RuntimeInfo

TRAIN = world.Train(3, 4127, world.PATTERNS.index(("occupied", "closed", "clear")), (2290, None, None))


class Reader:
    """Answers from the text, wrong for chosen patterns of platform sentences."""

    def __init__(self, wrong: str | None = None) -> None:
        self.wrong = wrong

    def predict(self, context: Any, questions: Any) -> Result:
        clear = re.search(r"Platform (\w) is clear", context)
        assert clear is not None
        choice = clear.group(1)
        if self.wrong is not None and self.wrong in context:
            choice = "ABC"["ABC".index(choice) - 1]
        probabilities = {one: 0.8 if one == choice else 0.1 for one in "ABC"}
        runtime = RuntimeInfo(
            "mlx", "gpu", "m", "0" * 40, 63, 1, "gpu_requested", "", 1.0, None, (), "float16", "inline"
        )
        return Result({"platform": {"choice": choice, "probabilities": probabilities}}, {}, runtime)


def test_there_are_14_wordings_and_the_last_is_the_frozen_one() -> None:
    assert [wording.number for wording in oracle.WORDINGS] == list(range(1, 15))
    for train in world.oracle_cases():
        assert oracle.FROZEN.request(train) == world.prompt(train)
    assert [wording.number for wording in oracle.DEVICE_WORDINGS["ane"]] == [1, 14]
    assert oracle.DEVICE_WORDINGS["gpu"] == oracle.WORDINGS


@pytest.mark.parametrize(
    ("number", "context", "instructions", "criteria"),
    [
        (1, "is clear.", "Which platform should train 4127 be routed to?", ["A", "B", "C"]),
        (2, "is clear.", "Which platform is clear for train 4127?", ["A", "B", "C"]),
        (3, "is clear.", "Which platform is clear?", ["A", "B", "C"]),
        (5, "is clear.", "Which platform is free for train 4127 to enter?", ["A", "B", "C"]),
        (7, "is clear and available for train arrivals.", "Which platform should", ["A", "B", "C"]),
        (8, "Platform B is closed. ", "Which platform should", ["A", "B", "C"]),
        (9, "Platform A is blocked by train 2290. Platform B is closed. ", "Which", ["A", "B", "C"]),
        (
            10,
            "is clear.",
            "Which platform should train 4127 be routed to?",
            {"A": "platform A", "B": "platform B", "C": "platform C"},
        ),
        (12, "Platform A is blocked by train 2290. Platform B is closed for maint", "Which", ["A", "B", "C"]),
        (13, "is clear and open.", "Which platform is clear and open for train 4127?", ["A", "B", "C"]),
    ],
)
def test_wordings_change_the_named_sentences(
    number: int, context: str, instructions: str, criteria: Any
) -> None:
    request = oracle.WORDINGS[number - 1].request(TRAIN)
    question = request.questions["platform"]
    assert context in request.context
    assert question["instructions"].startswith(instructions)
    assert question["criteria"] == criteria


def test_all_wordings_differ() -> None:
    assert len({str(wording.request(TRAIN)) for wording in oracle.WORDINGS}) == 14


def test_every_case_is_kept_and_the_margin_is_of_the_oracle() -> None:
    wrong = "Platform A is closed"
    found = oracle.check(Reader(wrong), oracle.FROZEN, world.oracle_cases())
    wrong_cases = sum(train.states[0] == "closed" for train in world.oracle_cases())
    assert (found["cases"], found["correct"]) == (240, 240 - wrong_cases)
    assert found["min_margin"] == 0.7
    assert found["max_tokens"] == 63
    first = found["every_case"][0]
    assert set(first) == {"pattern", "line", "train_id", "oracle", "answer", "margin", "tokens"}
    assert {case["margin"] for case in found["every_case"] if case["answer"] != case["oracle"]} == {-0.7}


def test_held_out_cases_are_run_only_for_wordings_that_pass() -> None:
    spec = registry.resolve("laya-mini")
    found = oracle.evidence(Reader("blocked"), "gpu", spec, VIRTUAL_MAC)
    assert found["synthetic"] is True
    assert found["device"] == "gpu"
    assert found["model"]["revision"] == spec.revision
    passed = {row["number"]: row["passed"] for row in found["wordings"]}
    assert [number for number, good in passed.items() if not good] == [9, 12]
    for row in found["wordings"]:
        assert (row["held_out"] is not None) is row["passed"]
        if row["passed"]:
            assert row["held_out"]["cases"] == 600


def test_the_device_must_be_named() -> None:
    with pytest.raises(SystemExit) as caught:
        oracle.main([])
    assert caught.value.code == 2
