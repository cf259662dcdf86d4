"""The parity gate: one backend against the goldens. Its tolerances are never loosened."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from laya_apple.errors import LayaAppleError
from laya_apple.parity.goldens import GoldenCase, GoldenRow, Goldens, check_weights
from laya_apple.prompt.answers import Calibration, act_probability, probabilities
from laya_apple.prompt.questions import Question
from laya_apple.prompt.sequence import Row, prepare
from laya_apple.prompt.tokenizer import Tokenizer

if TYPE_CHECKING:
    from laya_apple.backends.base import RowOutput
    from laya_apple.config import AgentConfig

TOLERANCES = {"float32": 1e-4, "float16": 0.02}
"""Largest allowed |difference| of a calibrated probability, by the precision that ran."""
LISTED = 20
"""Findings of one kind that a report names; it counts them all."""

Forward = Callable[[Sequence[Row]], Sequence["RowOutput"]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One row that is not as upstream's."""

    case: str
    question: str
    detail: str


@dataclass(frozen=True, slots=True)
class Findings:
    """Rows with one kind of trouble: how many, and the first of them."""

    count: int = 0
    first: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class GateReport:
    """What the gate found. It goes as ``to_dict()`` into parity.json and into artifact manifests."""

    checkpoint: str
    weights_sha256: str
    dtype: str
    tolerance: float
    cases: int
    """Cases with at least one row that was compared."""
    rows: int
    """Rows compared."""
    rows_left_out: int
    """Rows left out because they exceed ``max_length`` or ``max_options``."""
    max_option_difference: float
    max_act_difference: float
    prompt_mismatches: Findings
    """Ids, markers or type other than upstream's."""
    non_finite: Findings
    out_of_tolerance: Findings
    decision_mismatches: Findings
    """Another arg max where upstream's margin is at least twice the tolerance."""
    near_ties: Findings
    """Another arg max inside that band: listed, not a failure."""
    not_repeatable: Findings
    """Outputs that differed in any bit between two identical calls."""
    reference: dict[str, str] = field(default_factory=dict)
    """Package versions that made the goldens."""
    max_length: int | None = None

    @property
    def passed(self) -> bool:
        """True when at least one row was compared and nothing but near-ties was found."""
        return self.rows > 0 and not any(
            found.count
            for found in (
                self.prompt_mismatches,
                self.non_finite,
                self.out_of_tolerance,
                self.decision_mismatches,
                self.not_repeatable,
            )
        )

    @property
    def summary(self) -> str:
        """One line for people."""
        if not self.rows:
            return f"{self.checkpoint}: no golden row fits, so nothing was compared"
        troubles = [
            f"{found.count} {name}"
            for name, found in (
                ("prompt mismatches", self.prompt_mismatches),
                ("non-finite rows", self.non_finite),
                ("rows out of tolerance", self.out_of_tolerance),
                ("decision mismatches", self.decision_mismatches),
                ("rows not repeatable", self.not_repeatable),
                ("near-ties", self.near_ties),
            )
            if found.count
        ]
        return (
            f"{self.checkpoint} {self.dtype}: {self.rows} rows, largest difference "
            f"{max(self.max_option_difference, self.max_act_difference):.2e} of {self.tolerance:g} allowed"
            + (f"; {', '.join(troubles)}" if troubles else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON-able values, with ``passed``."""
        document: dict[str, Any] = {"passed": self.passed, **asdict(self)}
        for found in document.values():
            if isinstance(found, dict) and "first" in found:
                found["first"] = list(found["first"])
        return document


def run_gate(
    forward: Forward,
    tokenizer: Tokenizer,
    config: AgentConfig,
    goldens: Goldens,
    *,
    dtype: str,
    weights_sha256: str,
    max_length: int | None = None,
    max_options: int | None = None,
) -> GateReport:
    """Hold ``forward`` (rows -> outputs, called twice for each case) against the goldens.

    ``dtype`` is the precision that ``forward`` runs in and sets the tolerance. ``max_length`` (tokens) and
    ``max_options`` leave out the rows that a compiled shape cannot take.
    Raises LayaAppleError when the goldens were made from other weights, and ValueError for an unknown dtype.
    """
    if dtype not in TOLERANCES:
        raise ValueError(f"dtype is {dtype!r}; use one of {', '.join(TOLERANCES)}")
    check_weights(goldens, weights_sha256)
    gate = _Gate(TOLERANCES[dtype], Calibration.from_config(config))
    for case in goldens.cases:
        prepared = prepare(tokenizer, config, case.context, case.questions)
        if len(prepared.rows) != len(case.rows):
            raise LayaAppleError(f"golden case {case.name!r} has {len(case.rows)} rows for its questions")
        fitting = [
            (question, row, golden)
            for question, row, golden in zip(prepared.questions, prepared.rows, case.rows, strict=True)
            if (max_length is None or len(golden.ids) <= max_length)
            and (max_options is None or len(golden.markers) <= max_options)
        ]
        gate.rows_left_out += len(case.rows) - len(fitting)
        if fitting:
            gate.compare(case, fitting, forward)
    return GateReport(
        checkpoint=goldens.provenance.checkpoint,
        weights_sha256=weights_sha256,
        dtype=dtype,
        tolerance=gate.tolerance,
        cases=gate.cases,
        rows=gate.rows,
        rows_left_out=gate.rows_left_out,
        max_option_difference=gate.max_option_difference,
        max_act_difference=gate.max_act_difference,
        prompt_mismatches=gate.found("prompt"),
        non_finite=gate.found("non_finite"),
        out_of_tolerance=gate.found("tolerance"),
        decision_mismatches=gate.found("decision"),
        near_ties=gate.found("near_tie"),
        not_repeatable=gate.found("repeat"),
        reference=dict(goldens.provenance.packages),
        max_length=max_length,
    )


class _Gate:
    """Counts while the cases go by."""

    def __init__(self, tolerance: float, calibration: Calibration) -> None:
        self.tolerance = tolerance
        self.calibration = calibration
        self.cases = self.rows = self.rows_left_out = 0
        self.max_option_difference = self.max_act_difference = 0.0
        self._found: dict[str, list[Finding]] = {}

    def found(self, kind: str) -> Findings:
        findings = self._found.get(kind, [])
        return Findings(len(findings), tuple(findings[:LISTED]))

    def compare(
        self, case: GoldenCase, fitting: list[tuple[Question, Row, GoldenRow]], forward: Forward
    ) -> None:
        rows = [row for _, row, _ in fitting]
        outputs, again = forward(rows), forward(rows)
        if len(outputs) != len(rows) or len(again) != len(rows):
            raise LayaAppleError(f"the backend returned {len(outputs)} rows for {len(rows)}")
        self.cases += 1
        for (question, row, golden), output, repeat in zip(fitting, outputs, again, strict=True):
            self.rows += 1
            self._prompt(case, question, row, golden)
            if _bits(output) != _bits(repeat):
                self._note("repeat", case, question, "two identical calls differ")
            self._outputs(case, question, golden, output)

    def _prompt(self, case: GoldenCase, question: Question, row: Row, golden: GoldenRow) -> None:
        for name, ours, theirs in (
            ("ids", row.ids, golden.ids),
            ("markers", row.markers, golden.markers),
            ("qtype", row.qtype, golden.qtype),
        ):
            if ours != theirs:
                self._note("prompt", case, question, f"{name} {ours} instead of {theirs}")

    def _outputs(self, case: GoldenCase, question: Question, golden: GoldenRow, output: RowOutput) -> None:
        try:
            p = probabilities(question, output, self.calibration)
            act = act_probability(question, output)
        except LayaAppleError as error:  # closed: a row without an answer fails the gate
            self._note("non_finite", case, question, str(error))
            return
        difference = max(abs(ours - theirs) for ours, theirs in zip(p, golden.probabilities, strict=True))
        act_difference = abs(act - golden.act_probability)
        self.max_option_difference = max(self.max_option_difference, difference)
        self.max_act_difference = max(self.max_act_difference, act_difference)
        if max(difference, act_difference) > self.tolerance:
            self._note("tolerance", case, question, f"option {difference:.3e}, action {act_difference:.3e}")
        ours, theirs = p.index(max(p)), golden.probabilities.index(max(golden.probabilities))
        if ours != theirs:
            margin = _margin(golden.probabilities)
            kind = "decision" if margin >= 2 * self.tolerance else "near_tie"
            self._note(kind, case, question, f"option {ours} instead of {theirs}, margin {margin:.3e}")

    def _note(self, kind: str, case: GoldenCase, question: Question, detail: str) -> None:
        finding = Finding(case.name, repr(question.id), detail[:500])
        self._found.setdefault(kind, []).append(finding)


def _bits(output: RowOutput) -> tuple[bytes, bytes]:
    return output.options.tobytes(), output.action.tobytes()


def _margin(values: Sequence[float]) -> float:
    """Top 1 - top 2; infinite for a single option."""
    if len(values) < 2:
        return math.inf
    first, second = sorted(values, reverse=True)[:2]
    return first - second
