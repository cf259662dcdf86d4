"""The caller's questions, checked and rendered. A malformed one is refused with its id and the mend."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from laya_apple.errors import InvalidRequestError

QuestionType: TypeAlias = Literal["choice", "score", "noul"]
QuestionId: TypeAlias = str | int
Label: TypeAlias = str | int | float | bool

QTYPES: dict[str, int] = {"choice": 0, "score": 1, "noul": 2}
NOUL_FALSE = "no, the statement does not hold"
NOUL_TRUE = "yes, the statement holds"


@dataclass(frozen=True, slots=True)
class Question:
    """One checked question. ``labels`` and ``option_texts`` are in the caller's order, one an option."""

    id: QuestionId
    type: QuestionType
    qtype: int
    """0 choice, 1 score, 2 noul."""
    instructions: str
    labels: tuple[Label, ...]
    """choice: the caller's labels; score: the text of each level; noul: the false and the true label."""
    option_texts: tuple[str, ...]
    """What the model reads, one an option."""
    option_order: tuple[int, ...] | None = None
    """Slot s shows option ``option_order[s]``; None is the caller's order."""

    @property
    def slot_texts(self) -> tuple[str, ...]:
        """``option_texts`` in the order the model reads them."""
        if self.option_order is None:
            return self.option_texts
        return tuple(self.option_texts[index] for index in self.option_order)


def parse_questions(questions: object) -> tuple[Question, ...]:
    """Check ``questions`` and render what the model reads; ``{}`` gives ``()``.

    ``questions`` is a dict id -> definition, or a list of distinct strings, each a ``noul`` that asks itself.
    Raises InvalidRequestError naming the question id and the mend.
    """
    if isinstance(questions, list):
        return _from_list(questions)
    if not isinstance(questions, dict):
        raise InvalidRequestError(
            f"questions is {_kind(questions)}; pass a dict of id -> definition, or a list of distinct strings"
        )
    return tuple(_question(key, definition) for key, definition in questions.items())


def _from_list(questions: list[object]) -> tuple[Question, ...]:
    texts: dict[str, None] = {}
    for item in questions:
        if not isinstance(item, str) or not item.strip():
            raise InvalidRequestError(
                f"questions holds {shown(item)}; a list of questions holds non-blank strings only"
            )
        if item in texts:
            raise InvalidRequestError(f"question {shown(item)} is asked twice; remove one")
        texts[item] = None
    return tuple(_question(text, {"type": "noul", "instructions": text}) for text in texts)


def _question(key: object, definition: object) -> Question:
    if not isinstance(key, str | int) or (isinstance(key, str) and not key.strip()):
        raise InvalidRequestError(
            f"question id {shown(key)} is refused; use a non-blank string or an integer"
        )
    if not isinstance(definition, dict):
        raise _refused(key, f"its definition is {_kind(definition)}; pass a dict with type and instructions")
    kind = definition.get("type")
    if not isinstance(kind, str) or kind not in QTYPES:
        raise _refused(key, f"type is {shown(kind)}; use 'choice', 'score' or 'noul'")
    instructions = _instructions(key, definition.get("instructions"))
    if kind != "noul" and "labels" in definition:
        raise _refused(key, "labels belongs to noul questions; remove it")
    labels: tuple[Label, ...]
    if kind == "choice":
        labels, texts = _choice(key, definition.get("criteria"))
        question_type: QuestionType = "choice"
    elif kind == "score":
        labels, texts = _score(key, definition.get("criteria"))
        question_type = "score"
    else:
        labels, texts = _noul(key, definition.get("criteria"), definition.get("labels"))
        question_type = "noul"
    order = _order(key, definition["option_order"], len(texts)) if "option_order" in definition else None
    return Question(key, question_type, QTYPES[kind], instructions, labels, texts, order)


def _instructions(key: QuestionId, value: object) -> str:
    mend = "write what the model shall decide, as a string or a JSON value"
    if isinstance(value, str):
        if not value.strip():
            raise _refused(key, f"instructions is blank; {mend}")
        return value
    if not isinstance(value, dict | list | int | float) or (isinstance(value, dict | list) and not value):
        raise _refused(key, f"instructions is {shown(value)}; {mend}")
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:  # reraise: names the question
        raise _refused(key, f"instructions cannot be encoded as JSON: {error}; {mend}") from error


def _choice(key: QuestionId, criteria: object) -> tuple[tuple[Label, ...], tuple[str, ...]]:
    mend = "pass a non-empty dict of label -> description, or a list of distinct labels"
    if not isinstance(criteria, dict | list) or not criteria:
        raise _refused(key, f"criteria is {shown(criteria)}; {mend}")
    for label in criteria:
        if not isinstance(label, str | int | float):
            raise _refused(key, f"label {shown(label)} is refused; a label is a string, number or boolean")
    if isinstance(criteria, list):
        if len(set(criteria)) < len(criteria):
            raise _refused(key, "criteria names a label twice (1, 1.0 and True are one); make them distinct")
        return tuple(criteria), tuple(_label_text(key, label) for label in criteria)
    return tuple(criteria), tuple(
        _described(key, _label_text(key, label), description) for label, description in criteria.items()
    )


def _label_text(key: QuestionId, label: object) -> str:
    try:
        return str(label)
    except ValueError as error:  # reraise: an integer of thousands of digits; names the question
        raise _refused(key, f"a label cannot be written as text: {error}; use a shorter label") from error


def _score(key: QuestionId, criteria: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not isinstance(criteria, list) or not criteria:
        raise _refused(key, f"criteria is {shown(criteria)}; pass a non-empty list of level descriptions")
    if any(level is None for level in criteria):
        raise _refused(key, "criteria holds null; describe every level")
    legend = tuple(_text(key, level) for level in criteria)
    return legend, tuple(f"level {index}: {text}" for index, text in enumerate(legend))


def _noul(key: QuestionId, criteria: object, labels: object) -> tuple[tuple[str, str], tuple[str, str]]:
    descriptions: dict[str, object] = {}
    if criteria is not None:
        mend = "leave it out, or pass a dict with the keys 'true' and 'false'"
        if not isinstance(criteria, dict):
            raise _refused(key, f"criteria is {shown(criteria)}; {mend}")
        for name, description in criteria.items():
            side = str(name).lower() if isinstance(name, str | bool) else None
            if side not in ("true", "false"):
                raise _refused(key, f"criteria has the key {shown(name)}; {mend}")
            descriptions[side] = description
    false_label, true_label = ("false", "true") if labels is None else _noul_labels(key, labels)
    texts = (
        _described(key, false_label, descriptions.get("false"), NOUL_FALSE),
        _described(key, true_label, descriptions.get("true"), NOUL_TRUE),
    )
    return (false_label, true_label), texts


def _noul_labels(key: QuestionId, labels: object) -> tuple[str, str]:
    mend = "map exactly 'false' and 'true' to two distinct non-blank strings"
    if not isinstance(labels, dict) or set(labels) != {"false", "true"}:
        raise _refused(key, f"labels is {shown(labels)}; {mend}")
    for label in labels.values():
        if not isinstance(label, str) or not label.strip():
            raise _refused(key, f"labels holds {shown(label)}; {mend}")
    false_label, true_label = labels["false"].strip(), labels["true"].strip()
    if false_label == true_label:
        raise _refused(key, f"labels are both {true_label!r}; {mend}")
    return false_label, true_label


def _order(key: QuestionId, order: object, count: int) -> tuple[int, ...]:
    if (
        not isinstance(order, list | tuple)
        or any(isinstance(index, bool) or not isinstance(index, int) for index in order)
        or sorted(order) != list(range(count))
    ):
        raise _refused(key, f"option_order is {shown(order)}; pass a permutation of range({count}) as a list")
    return tuple(order)


def _described(key: QuestionId, label: str, description: object, default: str | None = None) -> str:
    if description is None or (isinstance(description, str) and not description):
        return label if default is None else f"{label}: {default}"
    return f"{label}: {_text(key, description)}"


def _text(key: QuestionId, value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError) as error:  # reraise: names the question
        raise _refused(
            key, f"criteria cannot be encoded as JSON: {error}; use strings or plain JSON values"
        ) from error


def _refused(key: QuestionId, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"question {shown(key)}: {reason}")


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def shown(value: object) -> str:
    """A short repr that never fails."""
    try:
        text = repr(value)
    except Exception:  # closed: the message then names the type alone
        return _kind(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
