"""Which device a request runs on, decided before it runs, with the reason recorded.

Pure functions: no backend is known here, and nothing here reacts to a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Target = Literal["gpu", "ane", "cpu"]
Unavailable = Literal["ane_runtime_unavailable", "platform_not_validated", "ane_starting"]

DEVICES = ("auto", "gpu", "ane", "cpu")
MAX_ANE_OPTIONS = 32
"""Options the one compiled graph has room for."""


class BucketSpec(Protocol):
    """The part of a model's registry entry that routing reads."""

    @property
    def ane_buckets(self) -> tuple[int, ...]:
        """Compiled lengths offered for this model, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class AneState:
    """What the router knows about the Neural Engine when a request arrives."""

    unavailable: Unavailable | None = None
    """Why auto cannot use it at all, or None."""
    auto_buckets: tuple[int, ...] = ()
    """Lengths at which it was measured faster than the GPU: auto may choose it there."""
    loaded_buckets: tuple[int, ...] = ()
    """Lengths whose artifact is verified and loaded; may hold some that auto does not choose."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A device and why."""

    target: Target
    reason: str


def fitting_bucket(buckets: Sequence[int], sequence_length: int) -> int | None:
    """The smallest of the ascending ``buckets`` that holds the row, or None."""
    return next((bucket for bucket in buckets if bucket >= sequence_length), None)


def decide(
    device: str,
    spec: BucketSpec,
    question_count: int,
    sequence_length: int,
    ane_state: AneState,
    *,
    option_count: int = 0,
) -> Decision:
    """Where a request of ``question_count`` rows, the longest of ``sequence_length`` tokens, runs.

    ``option_count`` is the most options in one row. Under ``auto`` only ``gpu`` and ``ane`` are chosen;
    a row is never padded past the bucket it fits, so a missing artifact sends it to the GPU.
    """
    if device == "gpu":
        return Decision("gpu", "gpu_requested")
    if device == "ane":
        return Decision("ane", "ane_requested")
    if device == "cpu":
        return Decision("cpu", "cpu_requested")
    if device != "auto":
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, not {device!r}")
    if ane_state.unavailable is not None:
        return Decision("gpu", ane_state.unavailable)
    if not ane_state.auto_buckets:
        return Decision("gpu", "platform_not_validated")
    if question_count > 1:
        return Decision("gpu", "multiple_questions")
    if sequence_length > ane_state.auto_buckets[-1]:
        return Decision("gpu", "sequence_exceeds_ane_auto_range")
    if option_count > MAX_ANE_OPTIONS:
        return Decision("gpu", "options_exceed_ane_shape")
    if fitting_bucket(spec.ane_buckets, sequence_length) not in ane_state.loaded_buckets:
        return Decision("gpu", "ane_artifact_unavailable")
    return Decision("ane", "validated_short_single_question_path")
