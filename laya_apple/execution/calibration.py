"""Measuring this machine for the router: forward times of both devices, and what follows from them.

One process at a time measures a machine, with nothing else running in it: two calibrations at once would
measure each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from laya_apple.artifacts.locations import locked
from laya_apple.backends.base import Backend
from laya_apple.benchmark import stats
from laya_apple.checkpoint import open_checkpoint
from laya_apple.errors import ArtifactMissingError, LayaAppleError
from laya_apple.execution.loading import LoadRequest, load_backend, run_forward
from laya_apple.platform import Platform, cache_root, current_platform
from laya_apple.prompt.sequence import Row
from laya_apple.registry import ModelSpec
from laya_apple.routing import ServiceTable
from laya_apple.routing.derivation import derive_auto_buckets
from laya_apple.routing.profiles import coremltools_version, save_profile

QUESTION_COUNTS = (1, 4, 8)
LENGTHS = (64, 96, 128, 256, 512, 1024)
"""Tokens of a row; with the model's offered buckets, and up to its longest row."""
_BATCH_SIZE = 16

Progress = Callable[[str], None]
GpuSamples = Mapping[tuple[int, int], Sequence[float]]
"""(questions, length) -> forward times, milliseconds."""
AneSamples = Mapping[int, Sequence[float]]
"""Bucket -> forward times, milliseconds."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How often one shape is measured. A slow shape stops early: its share of noise is small."""

    warmups: int = 2
    repeats: int = 25
    enough: int = 5
    """Samples after which ``budget_s`` may end a shape."""
    budget_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What a calibration found and where it is written."""

    model: str
    path: Path
    auto_buckets: tuple[int, ...]
    """Buckets auto may send to the Neural Engine; empty when it is no faster than the GPU here."""
    table: ServiceTable


def calibrate(
    spec: ModelSpec,
    *,
    platform: Platform | None = None,
    dtype: str = "float16",
    lengths: Sequence[int] = LENGTHS,
    question_counts: Sequence[int] = QUESTION_COUNTS,
    effort: Effort | None = None,
    local_files_only: bool = False,
    progress: Progress = lambda line: None,
) -> Calibrated:
    """Measure the model's forward times on MLX and on every offered bucket, and write the local profile.

    ``dtype`` is MLX's. All offered buckets must verify and probe as PLACED here, as for ``device="ane"``.

    Raises BackendUnavailableError (no GPU, or no Core ML), ArtifactMissingError or another ArtifactError for
    a bucket that is not built or does not hold up, LayaAppleError when a device fails or returns values that
    are not finite; nothing is written then.
    """
    platform = platform or current_platform()
    effort = effort or Effort()
    with locked(cache_root(platform) / "profiles" / ".calibrating.lock"):
        ane = _ane_samples(spec, platform, dtype, effort, local_files_only, progress)
        gpu = _gpu_samples(
            spec, platform, dtype, lengths, question_counts, effort, local_files_only, progress
        )
        created_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        table = service_table(gpu, ane, source=f"calibrated on {platform.soc} at {created_at}")
        # Every bucket was loaded by the strict backend, which refuses one that did not pass its parity gate.
        auto_buckets = derive_auto_buckets(spec.ane_buckets, table, spec.ane_buckets)
        path = save_profile(
            platform,
            spec,
            coremltools_version(),
            auto_buckets=auto_buckets,
            table=table,
            created_at=created_at,
        )
    return Calibrated(spec.name, path, auto_buckets, table)


def service_table(gpu: GpuSamples, ane: AneSamples, *, source: str) -> ServiceTable:
    """The P50 of every measured shape."""
    counts = sorted({count for count, _ in gpu})
    return ServiceTable(
        source=source,
        gpu_ms={
            count: tuple(
                (length, _p50(samples)) for (asked, length), samples in sorted(gpu.items()) if asked == count
            )
            for count in counts
        },
        ane_ms={bucket: _p50(samples) for bucket, samples in sorted(ane.items())},
    )


def time_forwards(
    backend: Backend, device: str, rows: Sequence[Row], effort: Effort, *, clock_ns: Callable[[], int]
) -> list[float]:
    """Forward times of one request on a loaded backend, milliseconds, after the warm-ups.

    Raises LayaAppleError when the backend fails or its outputs are not finite.
    """
    for _ in range(effort.warmups):
        _forward(backend, device, rows)
    samples: list[float] = []
    started_ns = clock_ns()
    while len(samples) < effort.repeats:
        spent_s = (clock_ns() - started_ns) / 1e9
        if len(samples) >= effort.enough and spent_s > effort.budget_s:
            break
        start_ns = clock_ns()
        _forward(backend, device, rows)
        samples.append((clock_ns() - start_ns) / 1e6)
    return samples


def _p50(samples: Sequence[float]) -> float:
    return float(stats(list(samples))["p50_ms"])


def _forward(backend: Backend, device: str, rows: Sequence[Row]) -> None:
    for output in run_forward(backend, device, rows):
        if not (np.isfinite(output.options).all() and np.isfinite(output.action).all()):
            raise LayaAppleError(f"the {device} backend returned values that are not finite")


def _rows(length: int, count: int, vocab_size: int) -> list[Row]:
    """``count`` rows of exactly ``length`` tokens with three options; which tokens they are costs nothing."""
    return [
        Row(
            ids=tuple((17 * place + 31 * number + 1) % vocab_size for place in range(length)),
            markers=(1, 3, 5),
            qtype=0,
        )
        for number in range(count)
    ]


def _ane_samples(
    spec: ModelSpec,
    platform: Platform,
    dtype: str,
    effort: Effort,
    local_files_only: bool,
    progress: Progress,
) -> dict[int, list[float]]:
    checkpoint = open_checkpoint(spec, local_files_only=local_files_only, platform=platform)
    request = LoadRequest("ane", checkpoint, dtype, _BATCH_SIZE, strict=True, buckets=spec.ane_buckets)
    backend = load_backend(request, platform)
    try:
        for bucket in spec.ane_buckets:
            if bucket not in backend.info.buckets:
                raise ArtifactMissingError(
                    backend.info.dropped[bucket].removeprefix(f"{ArtifactMissingError.__name__}: ")
                )
        samples = {}
        for bucket in spec.ane_buckets:
            rows = _rows(bucket, 1, checkpoint.encoder.vocab_size)
            samples[bucket] = time_forwards(backend, "ane", rows, effort, clock_ns=time.perf_counter_ns)
            progress(f"{spec.name} ane L{bucket}: P50 {_p50(samples[bucket]):.3f} ms")
        return samples
    finally:
        backend.close()


def _gpu_samples(
    spec: ModelSpec,
    platform: Platform,
    dtype: str,
    lengths: Sequence[int],
    question_counts: Sequence[int],
    effort: Effort,
    local_files_only: bool,
    progress: Progress,
) -> dict[tuple[int, int], list[float]]:
    checkpoint = open_checkpoint(spec, local_files_only=local_files_only, platform=platform)
    backend = load_backend(LoadRequest("gpu", checkpoint, dtype, _BATCH_SIZE, strict=True), platform)
    measured = sorted({n for n in (*lengths, *spec.ane_buckets) if n <= checkpoint.config.max_len})
    try:
        backend.warm()
        samples = {}
        for count in sorted(question_counts):
            for length in measured:
                rows = _rows(length, count, checkpoint.encoder.vocab_size)
                found = time_forwards(backend, "gpu", rows, effort, clock_ns=time.perf_counter_ns)
                samples[count, length] = found
                progress(f"{spec.name} gpu L{length} x {count}: P50 {_p50(found):.3f} ms")
        return samples
    finally:
        backend.close()
