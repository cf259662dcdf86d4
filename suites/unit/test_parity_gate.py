"""The gate: each kind of difference is found, named, and fails (near-ties are listed only)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prompt_files import agent_config, write_byte_tokenizer

from laya_apple import LayaAppleError
from laya_apple.backends.base import RowOutput
from laya_apple.parity.gate import GateReport, run_gate
from laya_apple.parity.goldens import Goldens, Provenance, case_from_reference
from laya_apple.prompt.sequence import Row, prepare
from laya_apple.prompt.tokenizer import Tokenizer

WEIGHTS = "ab" * 32
CONFIG = agent_config(temperature=[2.0, 1.0, 1.0], temperature_by_options={"noul:2": 0.5})
REQUESTS: dict[str, tuple[Any, dict[Any, Any]]] = {
    "short": (
        "s",
        {
            "pick": {
                "type": "choice",
                "instructions": "x",
                "criteria": ["a", "b", "c"],
                "option_order": [2, 0, 1],
            },
            1: {"type": "noul", "instructions": "y"},
        },
    ),
    "long": ("t" * 150, {"rate": {"type": "score", "instructions": "z", "criteria": ["low", "high"]}}),
}
LOGITS = {
    "pick": ([0.0, 3.0, 1.0], [1.0, 0.0]),
    1: ([0.0, 0.01], [0.0, 2.0]),
    "rate": ([5.0, -5.0], [0.5, 0.5]),
}


def _softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    weights = [math.exp(value / temperature) for value in logits]
    return [weight / sum(weights) for weight in weights]


def _answer(key: str | int, definition: dict[str, Any]) -> dict[str, Any]:
    options, action = LOGITS[key]
    p = _softmax(options, {"choice": 2.0, "score": 1.0, "noul": 0.5}[definition["type"]])
    order = definition.get("option_order", range(len(p)))
    ordered = [p[list(order).index(option)] for option in range(len(p))]
    shown = (
        {"noul": ordered[1]} if definition["type"] == "noul" else {"probabilities": dict(enumerate(ordered))}
    )
    return {**shown, "action": {"act_probability": _softmax(action)[0]}}


@dataclass
class Bench:
    """Goldens, and a backend that answers as they say unless told otherwise."""

    tokenizer: Tokenizer
    goldens: Goldens
    outputs: dict[tuple[int, ...], RowOutput]
    calls: int = 0

    def gate(
        self, forward: Callable[[Sequence[Row]], list[RowOutput]] | None = None, **more: Any
    ) -> GateReport:
        options = {"dtype": "float32", "weights_sha256": WEIGHTS, **more}
        return run_gate(forward or self.forward, self.tokenizer, CONFIG, self.goldens, **options)

    def forward(self, rows: Sequence[Row]) -> list[RowOutput]:
        self.calls += 1
        return [self.outputs[row.ids] for row in rows]

    def shifted(self, row: int, options: Sequence[float] = (), action: Sequence[float] = ()) -> GateReport:
        """The report when the logits of one row (0 pick, 1, 2 rate) are off by these."""

        def forward(rows: Sequence[Row]) -> list[RowOutput]:
            return [
                self._moved(self.outputs[item.ids], options, action)
                if item.ids == list(self.outputs)[row]
                else self.outputs[item.ids]
                for item in rows
            ]

        return self.gate(forward)

    @staticmethod
    def _moved(output: RowOutput, options: Sequence[float], action: Sequence[float]) -> RowOutput:
        return RowOutput(
            output.options + np.array(options or [0.0], np.float32),
            output.action + np.array(action or [0.0], np.float32),
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    tokenizer = Tokenizer.from_dir(write_byte_tokenizer(tmp_path))
    cases = []
    outputs = {}
    for name, (context, questions) in REQUESTS.items():
        prepared = prepare(tokenizer, CONFIG, context, questions)
        rows = []
        for key, row in zip(questions, prepared.rows, strict=True):
            options, action = LOGITS[key]
            outputs[row.ids] = RowOutput(np.array(options, np.float32), np.array(action, np.float32))
            rows.append(
                {
                    "ids": row.ids,
                    "markers": row.markers,
                    "qtype": row.qtype,
                    "options": outputs[row.ids].options.tolist(),
                    "action": action,
                }
            )
        reply = {
            "temperature": CONFIG.temperature,
            "temperature_by_options": CONFIG.temperature_by_options,
            "usage": {"truncated": prepared.truncated, "input_tokens": prepared.input_tokens},
            "rows": rows,
            "answers": {key: _answer(key, definition) for key, definition in questions.items()},
        }
        cases.append(case_from_reference(name, context, questions, reply))
    provenance = Provenance(
        "tiny", WEIGHTS, {"laya": "0.4.15", "torch": "2.13.0"}, "x", "2025-01-31T12:00:00Z"
    )
    return Bench(tokenizer, Goldens(provenance, tuple(cases)), outputs)


def test_the_same_outputs_pass(bench: Bench) -> None:
    report = bench.gate()
    assert report.passed
    assert (report.cases, report.rows, report.rows_left_out) == (2, 3, 0)
    assert report.max_option_difference == report.max_act_difference == 0.0
    assert bench.calls == 4
    assert report.summary == "tiny float32: 3 rows, largest difference 0.00e+00 of 0.0001 allowed"


def test_a_report_is_plain_json(bench: Bench) -> None:
    document = bench.shifted(0, [0.0, 1.0, 0.0]).to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["passed"] is False
    assert document["tolerance"] == 1e-4
    assert document["weights_sha256"] == WEIGHTS
    assert document["reference"] == {"laya": "0.4.15", "torch": "2.13.0"}
    assert document["out_of_tolerance"]["count"] == 1
    (finding,) = document["out_of_tolerance"]["first"]
    assert (finding["case"], finding["question"]) == ("short", "'pick'")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float16", 0.02)])
def test_the_tolerance_is_exactly_the_published_one(bench: Bench, dtype: str, tolerance: float) -> None:
    assert bench.gate(dtype=dtype).tolerance == tolerance


def test_an_option_probability_out_of_tolerance_fails(bench: Bench) -> None:
    # At p = 0.5 a probability moves by a quarter of the logit's shift over the temperature 0.5.
    inside = bench.shifted(1, [0.0, 1.9e-4])
    assert inside.passed
    assert inside.max_option_difference == pytest.approx(9.5e-5, rel=0.01)
    outside = bench.shifted(1, [0.0, 2.1e-4])
    assert not outside.passed
    assert outside.out_of_tolerance.count == 1
    assert outside.decision_mismatches.count == outside.near_ties.count == 0
    assert outside.summary.endswith("; 1 rows out of tolerance")


def test_an_action_probability_out_of_tolerance_fails(bench: Bench) -> None:
    report = bench.shifted(2, action=[0.01, 0.0])
    assert not report.passed
    assert report.max_act_difference == pytest.approx(0.0025, rel=0.01)
    assert report.out_of_tolerance.first[0].question == "'rate'"


def test_another_decision_is_a_mismatch_outside_the_band_and_a_near_tie_inside(bench: Bench) -> None:
    flipped = bench.shifted(0, [5.0, 0.0, 0.0])
    assert not flipped.passed
    assert (flipped.decision_mismatches.count, flipped.near_ties.count) == (1, 0)
    assert flipped.decision_mismatches.first[0].detail.startswith("option 2 instead of 0, margin ")
    # The noul's margin is 0.01: inside 2 x 0.02, outside 2 x 1e-4.
    outputs = dict(bench.outputs)
    ids = list(outputs)[1]
    outputs[ids] = replace(outputs[ids], options=np.array([0.01, 0.0], np.float32))
    half = bench.gate(lambda rows: [outputs[row.ids] for row in rows], dtype="float16")
    assert half.passed
    assert (half.decision_mismatches.count, half.near_ties.count) == (0, 1)
    assert half.summary.endswith("; 1 near-ties")
    full = bench.gate(lambda rows: [outputs[row.ids] for row in rows])
    assert (full.decision_mismatches.count, full.near_ties.count) == (1, 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_fail(bench: Bench, bad: float) -> None:
    for report in (bench.shifted(0, [bad, 0.0, 0.0]), bench.shifted(0, action=[bad, 0.0])):
        assert not report.passed
        assert report.non_finite.count == 1
        assert json.dumps(report.to_dict(), allow_nan=False)


def test_calls_that_differ_in_one_bit_fail(bench: Bench) -> None:
    def forward(rows: Sequence[Row]) -> list[RowOutput]:
        bench.calls += 1
        outputs = [bench.outputs[row.ids] for row in rows]
        if bench.calls == 2:
            action = outputs[0].action.copy()
            action[1] = np.nextafter(action[1], np.float32(1))
            outputs[0] = replace(outputs[0], action=action)
        return outputs

    report = bench.gate(forward)
    assert not report.passed
    assert report.not_repeatable.count == 1
    assert report.out_of_tolerance.count == 0


@pytest.mark.parametrize("field", ["ids", "markers", "qtype"])
def test_another_prompt_fails(bench: Bench, field: str) -> None:
    first, *rest = bench.goldens.cases
    row, *rows = first.rows
    changed = {"ids": (*row.ids[:-1], 9), "markers": (*row.markers[:-1], 3), "qtype": 1}
    row = replace(row, **{field: changed[field]})  # type: ignore[arg-type]
    bench.goldens = replace(bench.goldens, cases=(replace(first, rows=(row, *rows)), *rest))
    report = bench.gate()
    assert not report.passed
    assert report.prompt_mismatches.count == 1
    assert report.prompt_mismatches.first[0].detail.startswith(f"{field} ")


def test_rows_that_a_compiled_shape_cannot_take_are_left_out_and_counted(bench: Bench) -> None:
    assert [len(row.ids) for case in bench.goldens.cases for row in case.rows] == [32, 93, 200]
    report = bench.gate(max_length=93)
    assert report.passed
    assert (report.cases, report.rows, report.rows_left_out, report.max_length) == (1, 2, 1, 93)
    report = bench.gate(max_options=2)
    assert (report.cases, report.rows, report.rows_left_out) == (2, 2, 1)


def test_nothing_compared_is_not_a_pass(bench: Bench) -> None:
    report = bench.gate(max_length=16)
    assert not report.passed
    assert bench.calls == 0
    assert report.summary == "tiny: no golden row fits, so nothing was compared"


def test_goldens_of_other_weights_are_refused(bench: Bench) -> None:
    with pytest.raises(LayaAppleError, match="were made from weights abababababab"):
        bench.gate(weights_sha256="cd" * 32)
    assert bench.calls == 0


def test_a_backend_that_loses_rows_is_refused(bench: Bench) -> None:
    with pytest.raises(LayaAppleError, match="the backend returned 1 rows for 2"):
        bench.gate(lambda rows: bench.forward(rows)[:1])


def test_an_unknown_precision_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="dtype is 'bfloat16'; use one of float32, float16"):
        bench.gate(dtype="bfloat16")
