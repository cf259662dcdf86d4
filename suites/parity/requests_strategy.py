"""Requests for the differential test: every question type and everything upstream has a rule for."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SCRIPTS = (
    "The parcel is late and the box is wet. ",
    "Der Zug fährt über Köln; die Tür klemmt. ",
    "電車が遅れています。",
    "Поезд опаздывает. ",
    "القطار متأخر ",
    "रेलगाड़ी देर से है ",
    "🚆🧾 ",
    "def f(x): return {'a': [1, 2]}\n\t",
)
# Surrogates and NUL are left to the refusals.
characters = st.characters(exclude_categories=["Cs"])
words = st.one_of(
    st.sampled_from(SCRIPTS),
    st.sampled_from(["[MASK]", " [MASK] ", "[CLS]", "[SEP]", "<mask>", "[MA[MASK]SK]", "<|mask|>"]),
    st.text(characters, max_size=12),
)


def _repeat(pieces: list[str], times: int) -> str:
    return "".join(pieces) * times


short_texts = st.lists(words, max_size=3).map("".join)
texts = st.builds(_repeat, st.lists(words, max_size=4), st.sampled_from([1, 1, 1, 2, 5]))
long_texts = st.builds(_repeat, st.lists(words, min_size=1, max_size=3), st.sampled_from([5, 10, 40]))

json_scalars = (
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False) | short_texts
)
json_values = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short_texts, inner, max_size=3),
    max_leaves=6,
)

conversations = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "agent"]), "content": texts | long_texts}),
    max_size=6,
)
states = (
    texts | texts | long_texts | conversations | st.dictionaries(short_texts, texts | json_values, max_size=4)
)

instructions = st.one_of(
    texts.filter(str.strip),
    st.dictionaries(short_texts, json_values, min_size=1, max_size=3),
    st.lists(json_values, min_size=1, max_size=3),
    st.integers(-100, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
labels = short_texts | st.integers(-100, 100) | st.booleans() | st.floats(allow_nan=False)
descriptions = texts | long_texts | json_values
ids = st.text(characters, min_size=1, max_size=8).filter(str.strip) | st.integers(-100, 100) | st.booleans()


@st.composite
def _ordered(draw: st.DrawFn, definition: dict[str, Any], count: int) -> dict[str, Any]:
    if draw(st.booleans()):
        definition["option_order"] = draw(st.permutations(range(count)))
    if draw(st.integers(0, 9)) == 0:
        definition["comment"] = draw(json_values)
    return definition


@st.composite
def choices(draw: st.DrawFn) -> dict[str, Any]:
    most = draw(st.sampled_from([3, 3, 6, 12, 32]))
    listed = draw(st.lists(labels, min_size=1, max_size=most, unique_by=lambda label: label))
    criteria: Any = listed
    if draw(st.booleans()):
        criteria = {label: draw(descriptions) for label in listed}
    definition = {"type": "choice", "instructions": draw(instructions), "criteria": criteria}
    return draw(_ordered(definition, len(listed)))


@st.composite
def scores(draw: st.DrawFn) -> dict[str, Any]:
    most = draw(st.sampled_from([3, 5, 11, 20]))
    levels = draw(st.lists(descriptions.filter(lambda level: level is not None), min_size=1, max_size=most))
    definition = {"type": "score", "instructions": draw(instructions), "criteria": levels}
    return draw(_ordered(definition, len(levels)))


@st.composite
def nouls(draw: st.DrawFn) -> dict[str, Any]:
    definition: dict[str, Any] = {"type": "noul", "instructions": draw(instructions)}
    if draw(st.booleans()):
        sides = draw(st.lists(st.sampled_from(["true", "FALSE", "True", "false", True, False]), max_size=3))
        definition["criteria"] = {side: draw(descriptions) for side in sides}
    if draw(st.booleans()):
        names = draw(st.lists(short_texts.filter(str.strip), min_size=2, max_size=2, unique_by=str.strip))
        definition["labels"] = dict(zip(("true", "false"), names, strict=True))
    return draw(_ordered(definition, 2))


questions = st.dictionaries(ids, choices() | scores() | nouls(), min_size=1, max_size=3)

# Malformed, or perhaps not: both sides must agree which.
hostile_scalars = (
    json_scalars
    | st.floats()
    | st.sampled_from(
        ["", " ", "\n", "true", "false", "TRUE", "choice", "score", "noul", "\ud800", 2**70, b"x"]
    )
)
hashable = hostile_scalars | st.tuples(hostile_scalars)
hostile_values = st.recursive(
    hostile_scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.tuples(inner)
        | st.sets(st.integers(0, 2), max_size=2)
    ),
    max_leaves=5,
)
hostile_definitions = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["choice", "score", "noul"]) | hostile_values,
        "instructions": st.just("Is it?") | hostile_values,
        "criteria": hostile_values
        | st.lists(hostile_values, max_size=3)
        | st.dictionaries(hashable, hostile_values, max_size=3)
        | st.dictionaries(st.sampled_from(["true", "false", True, "TRUE", "no"]), hostile_values, max_size=2),
        "labels": hostile_values
        | st.dictionaries(st.sampled_from(["true", "false", True, "TRUE"]), hostile_values, max_size=2),
        "option_order": hostile_values | st.lists(st.integers(-1, 2) | st.booleans(), max_size=3),
        "other": hostile_values,
    },
)


@st.composite
def spoiled_definitions(draw: st.DrawFn) -> Any:
    """A sound definition with one field made hostile, or dropped."""
    definition = draw(choices() | scores() | nouls())
    field = draw(st.sampled_from(["type", "instructions", "criteria", "labels", "option_order"]))
    if draw(st.integers(0, 4)) == 0:
        definition.pop(field, None)
    else:
        definition[field] = draw(hostile_values)
    return definition


hostile_questions = st.dictionaries(
    hashable, hostile_definitions | spoiled_definitions() | hostile_values, max_size=2
) | st.dictionaries(ids, hostile_definitions | spoiled_definitions(), min_size=1, max_size=2)
hostile_states = states | hostile_values
