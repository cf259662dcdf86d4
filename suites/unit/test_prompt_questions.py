"""Questions: what is accepted and how it reads, what is refused and how the message mends it."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laya_apple import InvalidRequestError
from laya_apple.prompt.questions import Question, parse_questions


def choice(criteria: Any, **more: Any) -> dict[Any, Any]:
    return {"q": {"type": "choice", "instructions": "Which?", "criteria": criteria, **more}}


def score(criteria: Any, **more: Any) -> dict[Any, Any]:
    return {"q": {"type": "score", "instructions": "How?", "criteria": criteria, **more}}


def noul(**more: Any) -> dict[Any, Any]:
    return {"q": {"type": "noul", "instructions": "Is it?", **more}}


def only(questions: object) -> Question:
    (question,) = parse_questions(questions)
    return question


def test_no_questions() -> None:
    assert parse_questions({}) == ()
    assert parse_questions([]) == ()


def test_a_choice_keeps_the_callers_labels_and_renders_them_as_text() -> None:
    question = only(choice({"A": "first", 2: None, 2.5: "", True: 0, "": False}))
    assert question == Question(
        id="q",
        type="choice",
        qtype=0,
        instructions="Which?",
        labels=("A", 2, 2.5, True, ""),
        option_texts=("A: first", "2", "2.5", "True: 0", ": false"),
    )
    assert [type(label) for label in question.labels] == [str, int, float, bool, str]


def test_a_choice_from_a_list_of_labels() -> None:
    question = only(choice(["A", 1, False, 1.5]))
    assert question.labels == ("A", 1, False, 1.5)
    assert question.option_texts == ("A", "1", "False", "1.5")


def test_structured_descriptions_are_one_line_of_json() -> None:
    day = datetime.date(2024, 2, 29)
    question = only(choice({"A": {"ü": [1, None]}, "B": [], "C": {"on": day}, "D": "two\nlines"}))
    assert question.option_texts == (
        'A: {"ü": [1, null]}',
        "B: []",
        'C: {"on": "2024-02-29"}',
        "D: two\nlines",
    )


def test_a_score_numbers_its_levels_and_keeps_their_text_as_legend() -> None:
    question = only(score(["low", {"x": 1}, 0, ""]))
    assert (question.type, question.qtype) == ("score", 1)
    assert question.labels == ("low", '{"x": 1}', "0", "")
    assert question.option_texts == ("level 0: low", 'level 1: {"x": 1}', "level 2: 0", "level 3: ")


@pytest.mark.parametrize(
    ("more", "texts"),
    [
        ({}, ("false: no, the statement does not hold", "true: yes, the statement holds")),
        (
            {"criteria": {"TRUE": "it does"}, "labels": None},
            ("false: no, the statement does not hold", "true: it does"),
        ),
        (
            {"criteria": {True: 0, False: ""}},
            ("false: no, the statement does not hold", "true: 0"),
        ),
        (
            {"criteria": {}, "labels": {"true": " ja ", "false": "nein"}},
            ("nein: no, the statement does not hold", "ja: yes, the statement holds"),
        ),
        ({"criteria": {"true": "a", "True": "b"}}, ("false: no, the statement does not hold", "true: b")),
    ],
)
def test_a_noul_is_always_false_then_true(more: dict[str, Any], texts: tuple[str, str]) -> None:
    question = only(noul(**more))
    assert (question.type, question.qtype) == ("noul", 2)
    assert question.option_texts == texts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (" as is\n", " as is\n"),
        ({"ü": [1, True]}, '{"ü": [1, true]}'),
        ([None], "[null]"),
        (0, "0"),
        (False, "false"),
        (math.nan, "NaN"),
    ],
)
def test_instructions(value: object, text: str) -> None:
    assert only({"q": {"type": "noul", "instructions": value}}).instructions == text


def test_a_list_of_strings_asks_each_of_them_as_a_noul() -> None:
    first, second = parse_questions(["Is it late?", "Is it clear?"])
    assert (first.id, first.type, first.instructions) == ("Is it late?", "noul", "Is it late?")
    assert (second.id, second.type, second.instructions) == ("Is it clear?", "noul", "Is it clear?")


def test_ids_may_be_integers_and_unknown_keys_are_ignored() -> None:
    questions = {7: {"type": "noul", "instructions": "x", "weight": object()}, False: noul()["q"]}
    assert [question.id for question in parse_questions(questions)] == [7, False]


def test_option_order_says_which_option_each_slot_shows() -> None:
    question = only(choice(["a", "b", "c"], option_order=[2, 0, 1]))
    assert question.option_texts == ("a", "b", "c")
    assert question.slot_texts == ("c", "a", "b")
    assert only(choice(["a", "b"], option_order=(1, 0))).option_order == (1, 0)
    assert only(choice(["a", "b"])).slot_texts == ("a", "b")


REFUSED: list[tuple[object, str]] = [
    (None, "questions is None; pass a dict of id -> definition, or a list of distinct strings"),
    ("x", "questions is a str; pass a dict of id -> definition, or a list of distinct strings"),
    (("x",), "questions is a tuple; pass a dict of id -> definition, or a list of distinct strings"),
    (["x", 1], "questions holds 1; a list of questions holds non-blank strings only"),
    (["x", " "], "questions holds ' '; a list of questions holds non-blank strings only"),
    (["x", "y", "x"], "question 'x' is asked twice; remove one"),
    ({" ": noul()["q"]}, "question id ' ' is refused; use a non-blank string or an integer"),
    ({1.5: noul()["q"]}, "question id 1.5 is refused; use a non-blank string or an integer"),
    ({None: noul()["q"]}, "question id None is refused; use a non-blank string or an integer"),
    (
        {"q": "noul"},
        "question 'q': its definition is a str; pass a dict with type and instructions",
    ),
    ({3: {"instructions": "x"}}, "question 3: type is None; use 'choice', 'score' or 'noul'"),
    ({"q": {"type": "CHOICE"}}, "question 'q': type is 'CHOICE'; use 'choice', 'score' or 'noul'"),
    (
        {"q": {"type": "noul"}},
        "question 'q': instructions is None; write what the model shall decide, as a string or a JSON value",
    ),
    (
        {"q": {"type": "noul", "instructions": "\n"}},
        "question 'q': instructions is blank; write what the model shall decide, as a string or a JSON value",
    ),
    (
        {"q": {"type": "noul", "instructions": {}}},
        "question 'q': instructions is {}; write what the model shall decide, as a string or a JSON value",
    ),
    (
        {"q": {"type": "noul", "instructions": ()}},
        "question 'q': instructions is (); write what the model shall decide, as a string or a JSON value",
    ),
    (
        {"q": {"type": "noul", "instructions": {"x": {1}}}},
        "question 'q': instructions cannot be encoded as JSON: Object of type set is not JSON serializable; "
        "write what the model shall decide, as a string or a JSON value",
    ),
    (
        choice([]),
        "question 'q': criteria is []; "
        "pass a non-empty dict of label -> description, or a list of distinct labels",
    ),
    (
        choice(("a", "b")),
        "question 'q': criteria is ('a', 'b'); "
        "pass a non-empty dict of label -> description, or a list of distinct labels",
    ),
    (
        choice(["a", None]),
        "question 'q': label None is refused; a label is a string, number or boolean",
    ),
    (
        choice({("a",): "b"}),
        "question 'q': label ('a',) is refused; a label is a string, number or boolean",
    ),
    (
        choice([1, "1", True]),
        "question 'q': criteria names a label twice (1, 1.0 and True are one); make them distinct",
    ),
    (
        choice(["a", "b"], labels=None),
        "question 'q': labels belongs to noul questions; remove it",
    ),
    (
        score({"a": "b"}),
        "question 'q': criteria is {'a': 'b'}; pass a non-empty list of level descriptions",
    ),
    (score(["a", None]), "question 'q': criteria holds null; describe every level"),
    (
        noul(criteria=[]),
        "question 'q': criteria is []; leave it out, or pass a dict with the keys 'true' and 'false'",
    ),
    (
        noul(criteria={"maybe": "x"}),
        "question 'q': criteria has the key 'maybe'; "
        "leave it out, or pass a dict with the keys 'true' and 'false'",
    ),
    (
        noul(criteria={1: "x"}),
        "question 'q': criteria has the key 1; leave it out, or pass a dict with the keys 'true' and 'false'",
    ),
    (
        noul(labels={"true": "a"}),
        "question 'q': labels is {'true': 'a'}; "
        "map exactly 'false' and 'true' to two distinct non-blank strings",
    ),
    (
        noul(labels={"true": "a", "false": 0}),
        "question 'q': labels holds 0; map exactly 'false' and 'true' to two distinct non-blank strings",
    ),
    (
        noul(labels={"true": "a ", "false": "a"}),
        "question 'q': labels are both 'a'; map exactly 'false' and 'true' to two distinct non-blank strings",
    ),
    (
        choice(["a", "b"], option_order=None),
        "question 'q': option_order is None; pass a permutation of range(2) as a list",
    ),
    (
        choice(["a", "b"], option_order=[True, False]),
        "question 'q': option_order is [True, False]; pass a permutation of range(2) as a list",
    ),
    (
        choice(["a", "b"], option_order=[0, 0]),
        "question 'q': option_order is [0, 0]; pass a permutation of range(2) as a list",
    ),
]


@pytest.mark.parametrize(("questions", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_malformed_question_is_refused_with_its_id_and_the_mend(questions: object, message: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_questions(questions)
    assert str(refused.value) == message
    assert isinstance(refused.value, ValueError)


def test_a_circular_description_is_refused() -> None:
    circular: list[Any] = []
    circular.append(circular)
    with pytest.raises(InvalidRequestError, match="question 'q': criteria cannot be encoded as JSON"):
        parse_questions(score(["a", circular]))


@pytest.mark.parametrize(
    "questions",
    [
        {10**5000: {"type": "noul"}},
        {"q": {"type": "noul", "instructions": 10**5000}},
        {"q": {"type": "noul", "instructions": [10**5000]}},
        choice([10**5000]),
        choice({10**5000: "x"}),
        choice({"a": 10**5000}),
        score([10**5000]),
    ],
)
def test_an_integer_too_long_to_write_is_refused(questions: object) -> None:
    # Python itself refuses to write out more than 4,300 digits.
    with pytest.raises(InvalidRequestError, match=r"^question ('q'|a int): "):
        parse_questions(questions)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_questions({"q": {"type": "x" * 1000}})
    assert len(str(refused.value)) < 150


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["choice", "score", "noul", "true", "false", "TRUE", "[MASK]", " ", ""])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(scalars, inner, max_size=4) | st.tuples(inner)
    ),
    max_leaves=12,
)
definitions = st.fixed_dictionaries(
    {"type": st.sampled_from(["choice", "score", "noul"]) | values, "instructions": scalars | values},
    optional={"criteria": values, "labels": values, "option_order": values, "extra": values},
)


@given(st.dictionaries(scalars, definitions | values, max_size=3) | values)
@settings(max_examples=400, deadline=None)
def test_any_value_either_parses_or_is_refused(questions: object) -> None:
    try:
        parsed = parse_questions(questions)
    except InvalidRequestError:
        return
    assert [question.id for question in parsed] == list(questions)  # type: ignore[call-overload]
    for question in parsed:
        assert len(question.option_texts) == len(question.labels) >= 1
        assert sorted(question.slot_texts) == sorted(question.option_texts)
        assert question.instructions.strip()
