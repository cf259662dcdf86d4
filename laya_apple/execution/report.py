"""From a request and the backend that ran it to the RuntimeInfo in its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laya_apple import errors
from laya_apple.backends.base import BackendInfo
from laya_apple.errors import ArtifactMissingError, LayaAppleError, UnsupportedShapeError
from laya_apple.result import Placement, RuntimeInfo
from laya_apple.routing import MAX_ANE_OPTIONS, Decision, fitting_bucket

if TYPE_CHECKING:
    from laya_apple.prompt.sequence import Prepared, Row
    from laya_apple.registry import ModelSpec

NO_QUESTIONS = "no_questions"


@dataclass(frozen=True, slots=True)
class Identity:
    """What every result of one Laya has in common."""

    spec: ModelSpec
    execution: str
    dtype: str
    synthetic: bool


@dataclass(frozen=True, slots=True)
class Ran:
    """The parts of a RuntimeInfo that the backend and its artifacts decide."""

    backend: str
    device: str
    dtype: str
    artifact_revision: str
    compute_units: str | None
    buckets: tuple[int, ...]
    placement: Placement | None


def row_buckets(spec: ModelSpec, rows: Sequence[Row]) -> tuple[int, ...]:
    """The compiled length each row fits, one a row.

    Raises UnsupportedShapeError when a row is longer, or has more options, than any offered shape.
    """
    found = []
    for row in rows:
        bucket = fitting_bucket(spec.ane_buckets, len(row.ids))
        if bucket is None:
            raise UnsupportedShapeError(
                f"a row of {len(row.ids)} tokens exceeds {spec.name}'s largest Neural Engine shape, "
                f"{spec.ane_buckets[-1]}; shorten the text, or use device='gpu' or 'auto'"
            )
        if len(row.markers) > MAX_ANE_OPTIONS:
            raise UnsupportedShapeError(
                f"a question with {len(row.markers)} options exceeds the Neural Engine graph's "
                f"{MAX_ANE_OPTIONS}; ask with fewer options, or use device='gpu' or 'auto'"
            )
        found.append(bucket)
    return tuple(found)


def check_loaded(spec: ModelSpec, info: BackendInfo, buckets: Sequence[int]) -> None:
    """Raise the error of the first bucket that did not load; a row is never padded up to a larger one."""
    for bucket in buckets:
        if bucket in info.buckets:
            continue
        name, _, message = info.dropped.get(bucket, "").partition(": ")
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, LayaAppleError):
            raise kind(message)
        from laya_apple.artifacts.locations import build_command

        raise ArtifactMissingError(
            f"{spec.name} L{bucket} is not loaded on the Neural Engine; build it with: "
            f"{build_command(spec, bucket)}"
        )


def ran_on(info: BackendInfo, buckets: tuple[int, ...]) -> Ran:
    """What ran, from the backend's facts and, on the Neural Engine, the rows' buckets."""
    if info.backend != "coreml":
        revision = f"mlx:{info.weights_sha256[:12]}:{info.dtype}"
        return Ran(info.backend, info.device, info.dtype, revision, info.compute_units, (), None)
    used = sorted(set(buckets))
    return Ran(
        backend=info.backend,
        device=info.device,
        dtype=info.dtype,
        artifact_revision=",".join(f"L{bucket}:{info.artifact_sha256[bucket][:12]}" for bucket in used),
        compute_units=info.compute_units,
        buckets=buckets,
        placement=_worst([_verdict(info, bucket) for bucket in used]),
    )


def runtime_info(
    identity: Identity,
    ran: Ran,
    prepared: Prepared,
    decision: Decision,
    *,
    latency_ms: float,
    device_ms: float,
    queue_wait_ms: float | None = None,
    gpu_backlog_ms: float | None = None,
    ane_backlog_ms: float | None = None,
    request_id: int | None = None,
) -> RuntimeInfo:
    """The record of one request that ran."""
    return RuntimeInfo(
        backend=ran.backend,
        device=ran.device,
        model=identity.spec.name,
        model_revision=identity.spec.revision,
        sequence_length=prepared.sequence_length,
        question_count=len(prepared.rows),
        routing_reason=decision.reason,
        artifact_revision=ran.artifact_revision,
        latency_ms=latency_ms,
        compute_units=ran.compute_units,
        buckets=ran.buckets,
        dtype=ran.dtype,
        execution=identity.execution,
        queue_wait_ms=queue_wait_ms,
        device_ms=device_ms,
        gpu_backlog_ms=gpu_backlog_ms,
        ane_backlog_ms=ane_backlog_ms,
        request_id=request_id,
        truncated=prepared.truncated,
        placement=ran.placement,
        synthetic=identity.synthetic,
    )


def nothing_ran(identity: Identity, latency_ms: float) -> RuntimeInfo:
    """The record of a request without questions: no device did anything."""
    return RuntimeInfo(
        backend="none",
        device="none",
        model=identity.spec.name,
        model_revision=identity.spec.revision,
        sequence_length=0,
        question_count=0,
        routing_reason=NO_QUESTIONS,
        artifact_revision="",
        latency_ms=latency_ms,
        compute_units=None,
        buckets=(),
        dtype=identity.dtype,
        execution=identity.execution,
        synthetic=identity.synthetic,
    )


def plain(info: BackendInfo | None) -> dict[str, object] | None:
    """A backend's facts as JSON-able values."""
    if info is None:
        return None
    return {key: list(value) if isinstance(value, tuple) else value for key, value in _fields(info).items()}


def _fields(info: BackendInfo) -> dict[str, object]:
    facts = {field.name: getattr(info, field.name) for field in dataclasses.fields(info)}
    for name in ("artifact_sha256", "probes", "dropped"):
        facts[name] = {key: dict(value) if name == "probes" else value for key, value in facts[name].items()}
    return facts


def _verdict(info: BackendInfo, bucket: int) -> Placement:
    verdict = info.probes.get(bucket, {}).get("verdict", "UNKNOWN")
    return verdict if verdict in ("PLACED", "FELL_BACK") else "UNKNOWN"


def _worst(verdicts: Sequence[Placement]) -> Placement:
    if "FELL_BACK" in verdicts:
        return "FELL_BACK"
    return "UNKNOWN" if "UNKNOWN" in verdicts else "PLACED"
