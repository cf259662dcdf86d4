"""The layout check: the graph at FP32 against the FP32 network, before anything is converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laya_apple.artifacts.evaluate import evaluate
from laya_apple.artifacts.features import HostSide
from laya_apple.artifacts.graph import MAX_OPTIONS, Graph
from laya_apple.backends.base import RowOutput
from laya_apple.backends.host import HostNetwork
from laya_apple.checkpoint import Checkpoint
from laya_apple.prompt.sequence import Row

LAYOUT_TOLERANCE = 1e-3
FP16_SQUARE_LIMIT = 256.0
"""Beyond this |x| a square overflows FP16."""


@dataclass(frozen=True, slots=True)
class LayoutCheck:
    """How far the graph, evaluated at FP32, is from the FP32 network."""

    max_logit_difference: float
    """Over the option logits of all rows."""
    max_action_difference: float
    """Over the action logits, which rest on the ``cls`` output."""
    tolerance: float
    rows: int
    norm_abs_max: Mapping[str, float]
    """LayerNorm -> abs-max of its input over all rows, FP32."""

    @property
    def passed(self) -> bool:
        """True when both differences are below the tolerance; NaN is not."""
        return self.max_logit_difference < self.tolerance and self.max_action_difference < self.tolerance

    @property
    def square_overflow(self) -> tuple[str, ...]:
        """LayerNorms whose input was seen where its square would overflow FP16."""
        return tuple(name for name, seen in self.norm_abs_max.items() if seen > FP16_SQUARE_LIMIT)

    def to_dict(self) -> dict[str, Any]:
        """The manifest's ``conversion.layout_check``."""
        return {
            **asdict(self),
            "norm_abs_max": dict(self.norm_abs_max),
            "square_overflow": list(self.square_overflow),
            "passed": self.passed,
        }


def expected_outputs(checkpoint: Checkpoint, length: int) -> list[RowOutput]:
    """What the FP32 network answers to ``check_rows``; it holds all weights at FP32, so it goes first."""
    return HostNetwork(checkpoint).forward(check_rows(length, checkpoint.encoder.vocab_size))


def check_layout(graph: Graph, checkpoint: Checkpoint, expected: Sequence[RowOutput]) -> LayoutCheck:
    """Evaluate ``graph`` at FP32 on ``check_rows`` and hold it against ``expected_outputs`` of its length."""
    rows = check_rows(graph.shape.length, checkpoint.encoder.vocab_size)
    host = HostSide(checkpoint, rounded=False)
    outputs, norm_abs_max = evaluate(graph, [host.features(row, graph.shape.length) for row in rows])
    found = [host.finish(row, output) for row, output in zip(rows, outputs, strict=True)]
    pairs = list(zip(found, expected, strict=True))
    return LayoutCheck(
        max_logit_difference=_furthest([a.options - b.options for a, b in pairs]),
        max_action_difference=_furthest([a.action - b.action for a, b in pairs]),
        tolerance=LAYOUT_TOLERANCE,
        rows=len(rows),
        norm_abs_max=norm_abs_max,
    )


def _furthest(differences: list[NDArray[np.float32]]) -> float:
    return float(np.abs(np.concatenate(differences)).max())  # NumPy's max keeps a NaN, Python's may not


def check_rows(length: int, vocab_size: int) -> list[Row]:
    """Three rows that fit ``length`` tokens, one a question type, the same on every machine.

    Random token ids from a fixed seed: full length, about half, and short with a lone option.
    """
    random = np.random.default_rng(0)
    rows = []
    for qtype, (tokens, options) in enumerate(
        ((length, min(MAX_OPTIONS, length // 2)), (length // 2 + 1, 3), (max(2, length // 8), 1))
    ):
        markers = np.sort(random.choice(tokens, size=options, replace=False))
        rows.append(
            Row(
                ids=tuple(int(i) for i in random.integers(0, vocab_size, tokens)),
                markers=tuple(int(m) for m in markers),
                qtype=qtype,
            )
        )
    return rows
