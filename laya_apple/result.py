"""What a request returns: answers, usage and the facts about where it ran."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Placement = Literal["PLACED", "FELL_BACK", "UNKNOWN"]

MODEL_LABEL = "laya-rl-agent"


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """Where and how one request ran. Times are milliseconds."""

    backend: str
    """``mlx``, ``coreml`` or ``none`` (no questions)."""
    device: str
    """``gpu``, ``ane``, ``cpu`` or ``none``."""
    model: str
    model_revision: str
    sequence_length: int
    """Tokens of the longest row, without padding."""
    question_count: int
    routing_reason: str
    artifact_revision: str
    """``mlx:<weights sha256[:12]>:<dtype>``; on the ANE ``L64:<sha[:12]>``, comma-joined; or empty."""
    latency_ms: float
    compute_units: str | None
    """``CPU_AND_NE`` on the ANE, else None."""
    buckets: tuple[int, ...]
    """Compiled lengths used on the ANE, one a row; empty elsewhere."""
    dtype: str
    execution: str
    """``inline`` or ``workers``."""
    queue_wait_ms: float | None = None
    device_ms: float | None = None
    gpu_backlog_ms: float | None = None
    ane_backlog_ms: float | None = None
    request_id: int | None = None
    truncated: bool = False
    """True when any state token was cut."""
    placement: Placement | None = None
    """Verdict of the placement probe; None off the ANE."""
    synthetic: bool = False
    """True on the virtual Mac."""


@dataclass(frozen=True, slots=True)
class Result:
    """The answers to one request.

    ``answers`` maps each question id to its answer; ``usage`` holds ``input_tokens`` (sum of row lengths
    without padding) and ``output_tokens`` (always 0).
    """

    answers: dict[str | int, dict[str, Any]]
    usage: dict[str, int]
    runtime: RuntimeInfo
    model: str = MODEL_LABEL

    def to_dict(self) -> dict[str, Any]:
        """The whole result as plain JSON-able values."""
        return {
            "model": self.model,
            "answers": self.answers,
            "usage": self.usage,
            "runtime": asdict(self.runtime),
        }
