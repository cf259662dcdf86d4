"""Golden files: nothing is lost on the way, and nothing doubtful is read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laya_apple import LayaAppleError
from laya_apple.parity.goldens import (
    GoldenCase,
    GoldenRow,
    Goldens,
    Provenance,
    case_from_reference,
    decode_value,
    encode_value,
    load_goldens,
    write_goldens,
)

MEND = "make it with `python -m fixtures.goldens` (needs the reference extra)"
PROVENANCE = Provenance(
    checkpoint="tiny",
    weights_sha256="ab" * 32,
    packages={"laya": "0.4.15", "torch": "2.13.0"},
    command="python -m fixtures.goldens",
    created_utc="2025-01-31T12:00:00Z",
)
QUESTIONS: dict[Any, Any] = {
    7: {
        "type": "choice",
        "instructions": "x",
        "criteria": {1: "a", True and 2.5: "b"},
        "option_order": [1, 0],
    },
    "n": {"type": "noul", "instructions": "y"},
}
REPLY: dict[str, Any] = {
    "temperature": [2.0, 1.0, 1.0],
    "temperature_by_options": {"noul:2": 0.5},
    "usage": {"input_tokens": 17, "truncated": False},
    "rows": [
        {
            "ids": [2, 5, 3, 4, 6, 4, 7, 3, 3],
            "markers": [3, 5],
            "qtype": 0,
            "options": [0.0, 2.0],
            "action": [0.0],
        },
        {
            "ids": [2, 5, 3, 4, 4, 3, 9, 3],
            "markers": [3, 4],
            "qtype": 2,
            "options": [0.0, 1.0],
            "action": [1.0, 0.0],
        },
    ],
    "answers": {
        7: {
            "type": "choice",
            "choice": 1,
            "probabilities": {1: 0.7311, 2.5: 0.2689},
            "action": {"act_probability": 1.0},
        },
        "n": {"type": "noul", "noul": 0.8808, "action": {"act_probability": 0.7311}},
    },
}


@pytest.fixture
def goldens() -> Goldens:
    return Goldens(PROVENANCE, (case_from_reference("two questions", ["state"], QUESTIONS, REPLY),))


def test_a_case_from_upstreams_reply(goldens: Goldens) -> None:
    (case,) = goldens.cases
    sigmoid = 1 / (1 + math.exp(-1.0))
    assert case.rows[0] == GoldenRow(
        id=7,
        ids=(2, 5, 3, 4, 6, 4, 7, 3, 3),
        markers=(3, 5),
        qtype=0,
        options=(0.0, 2.0),
        action=(0.0,),
        probabilities=(pytest.approx(sigmoid, abs=1e-15), pytest.approx(1 - sigmoid, abs=1e-15)),  # type: ignore[arg-type]
        act_probability=1.0,
    )
    assert case.rows[1].probabilities[1] == pytest.approx(1 / (1 + math.exp(-2.0)), abs=1e-15)
    assert (case.truncated, case.input_tokens) == (False, 17)


@pytest.mark.parametrize("field", ["noul", "action"])
def test_a_case_that_upstream_did_not_publish_is_refused(field: str) -> None:
    reply = json.loads(json.dumps({**REPLY, "answers": None}))
    published = {"noul": 0.8808, "action": {"act_probability": 0.7311}}
    published[field] = 0.8810 if field == "noul" else {"act_probability": 0.7313}
    reply["answers"] = {7: REPLY["answers"][7], "n": {"type": "noul", **published}}
    with pytest.raises(LayaAppleError, match="case 'x', question 'n': upstream published"):
        case_from_reference("x", ["state"], QUESTIONS, reply)


def test_a_file_gives_back_what_was_written(goldens: Goldens, tmp_path: Path) -> None:
    path = tmp_path / "new" / "tiny.json"
    write_goldens(path, goldens)
    again = load_goldens(path, weights_sha256="ab" * 32)
    assert again == goldens
    (case,) = again.cases
    assert list(case.questions) == [7, "n"]
    assert list(case.answers[7]["probabilities"]) == [1, 2.5]
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.json"]
    assert path.read_text(encoding="utf-8").count("\n") == len(goldens.cases) + 2


def test_a_missing_file_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(LayaAppleError) as refused:
        load_goldens(tmp_path / "none.json")
    assert str(refused.value) == f"no goldens at {tmp_path / 'none.json'}; {MEND}"


def test_goldens_of_other_weights_are_refused(goldens: Goldens, tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    write_goldens(path, goldens)
    with pytest.raises(LayaAppleError) as refused:
        load_goldens(path, weights_sha256="cd" * 32)
    assert str(refused.value) == (
        "the goldens of tiny were made from weights abababababab, "
        f"but the checkpoint's weights are cdcdcdcdcdcd; {MEND}"
    )


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda document: document.update(format_version=2), "$.format_version"),
        (lambda document: document.update(format="other"), "$.format"),
        (lambda document: document.update(cases=[]), "$.cases"),
        (lambda document: document["provenance"].pop("weights_sha256"), "$.provenance"),
        (lambda document: document["provenance"]["packages"].pop("torch"), "$.provenance.packages"),
        (lambda document: document["cases"][0]["rows"][1].update(qtype=3), "$.cases[0].rows[1].qtype"),
        (lambda document: document["cases"][0]["rows"][0].pop("ids"), "$.cases[0].rows[0]"),
        (
            lambda document: document["cases"][0]["rows"][0].update(probabilities=[1.5]),
            "$.cases[0].rows[0].probabilities[0]",
        ),
    ],
)
def test_a_malformed_file_is_refused(goldens: Goldens, tmp_path: Path, change: Any, where: str) -> None:
    path = tmp_path / "tiny.json"
    write_goldens(path, goldens)
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(LayaAppleError) as refused:
        load_goldens(path)
    assert str(refused.value).startswith(f"the goldens at {path} are malformed: {where}: ")
    assert str(refused.value).endswith(MEND)


def test_a_truncated_file_is_refused(goldens: Goldens, tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    write_goldens(path, goldens)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(LayaAppleError, match="cannot read the goldens"):
        load_goldens(path)


def test_goldens_that_break_the_schema_are_not_written(goldens: Goldens, tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    broken = replace(goldens, provenance=replace(PROVENANCE, weights_sha256="short"))
    with pytest.raises(LayaAppleError, match=r"\$\.provenance\.weights_sha256"):
        write_goldens(path, broken)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(goldens: Goldens, tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    write_goldens(path, goldens)
    before = path.read_bytes()
    (case,) = goldens.cases
    unwritable: GoldenCase = replace(case, context={"x": object()})
    with pytest.raises(TypeError, match="a golden file cannot hold a object"):
        write_goldens(path, replace(goldens, cases=(unwritable,)))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.json"]


keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(keys, inner)
        | st.dictionaries(st.sampled_from(["$pairs", "$"]), inner)
    ),
    max_leaves=15,
)


@given(values)
def test_values_survive_json(value: Any) -> None:
    again = decode_value(json.loads(json.dumps(encode_value(value), allow_nan=False)))
    assert again == value
    assert repr(again) == repr(value)
