"""The Neural Engine backend: validated Core ML artifacts of fixed lengths, on CPU_AND_NE in FP16."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from laya_apple.artifacts.bucket import BucketModel
from laya_apple.artifacts.features import HostSide
from laya_apple.artifacts.graph import MAX_OPTIONS
from laya_apple.artifacts.locations import Locations, build_command
from laya_apple.artifacts.probe import ProbeResult, run_probe
from laya_apple.artifacts.runtime import COMPUTE_UNITS, require_coremltools
from laya_apple.artifacts.store import load_verified
from laya_apple.backends.base import BackendInfo, RowOutput
from laya_apple.checkpoint import Checkpoint
from laya_apple.errors import (
    ArtifactError,
    ArtifactMissingError,
    ComputeUnitMismatchError,
    UnsupportedShapeError,
)
from laya_apple.platform import Platform
from laya_apple.prompt.sequence import Row
from laya_apple.registry import ModelSpec


def fitting_bucket(length: int, buckets: Sequence[int]) -> int | None:
    """The smallest of ``buckets`` that takes ``length`` tokens; None when none does."""
    return min((bucket for bucket in buckets if bucket >= length), default=None)


def check_rows(rows: Sequence[Row], spec: ModelSpec, buckets: Sequence[int]) -> tuple[int, ...]:
    """The bucket of each row among the offered ``buckets``; touches no device, so it can run before queueing.

    Raises UnsupportedShapeError for a row longer than the largest bucket or with more than 32 options.
    """
    chosen = []
    for row in rows:
        bucket = fitting_bucket(len(row.ids), buckets)
        if bucket is None:
            raise UnsupportedShapeError(
                f"{len(row.ids)} tokens exceed {max(buckets, default=0)}, the longest that {spec.name} "
                'is compiled for on the Neural Engine; shorten the request or use device="gpu"'
            )
        if len(row.markers) > MAX_OPTIONS:
            raise UnsupportedShapeError(
                f"{len(row.markers)} options exceed {MAX_OPTIONS}, the most that the Neural Engine graph "
                'takes; use fewer options or device="gpu"'
            )
        chosen.append(bucket)
    return tuple(chosen)


class CoreMLBackend:
    """Every loadable bucket of ``buckets``, verified, probed and ready.

    ``strict`` (explicit ``ane``): a bucket that exists but fails raises its error here; one that is missing
    raises its ArtifactMissingError when a request needs it, or here when no bucket is there at all. Tolerant
    (``auto``): a bucket that fails is dropped, with a RuntimeWarning naming the error (none for a bucket that
    was never built), and the reason is in ``info.dropped``.

    Raises BackendUnavailableError in both modes where Core ML cannot be reached.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, buckets: Sequence[int], strict: bool, platform: Platform
    ) -> None:
        require_coremltools(platform)
        self._spec = checkpoint.spec
        self._offered = tuple(sorted(buckets))
        self.host = HostSide(checkpoint)
        self._platform = platform
        self._loaded: dict[int, BucketModel] = {}
        self._missing: dict[int, ArtifactMissingError] = {}
        self._probes: dict[int, ProbeResult] = {}
        self._dropped: dict[int, str] = {}
        for bucket in self._offered:
            self._load(bucket, strict)
        if strict and self._missing and not self._loaded:
            raise self._missing[self._offered[0]]

    @property
    def info(self) -> BackendInfo:
        """Facts about the loaded buckets; picklable."""
        return BackendInfo(
            backend="coreml",
            device="ane",
            dtype="float16",
            weights_sha256=self._spec.weights_sha256,
            compute_units=COMPUTE_UNITS,
            buckets=tuple(sorted(self._loaded)),
            artifact_sha256={b: m.manifest.artifact_sha256 for b, m in sorted(self._loaded.items())},
            probes={bucket: probe.to_dict() for bucket, probe in sorted(self._probes.items())},
            dropped=dict(sorted(self._dropped.items())),
        )

    @property
    def loaded(self) -> Mapping[int, BucketModel]:
        """Bucket -> its verified and probed model."""
        return self._loaded

    def model_path(self, bucket: int) -> Path:
        """Where the verified model of a bucket lies."""
        return Locations.of(self._platform).model(self._spec, bucket)

    def buckets_of(self, rows: Sequence[Row]) -> tuple[int, ...]:
        """The loaded bucket that takes each row: the smallest offered one that fits, never a larger one.

        Raises UnsupportedShapeError (too long, too many options) and ArtifactMissingError (that bucket is not
        loaded), both before any work.
        """
        chosen = check_rows(rows, self._spec, self._offered)
        for bucket in chosen:
            if bucket not in self._loaded:
                if bucket in self._missing:
                    raise ArtifactMissingError(str(self._missing[bucket]))
                raise ArtifactMissingError(
                    f"{self._spec.name} L{bucket} is not loaded ({self._dropped[bucket]}); rebuild it with: "
                    f"{build_command(self._spec, bucket)}"
                )
        return chosen

    def forward(self, rows: Sequence[Row]) -> list[RowOutput]:
        """Run each row on its bucket, in order.

        Raises UnsupportedShapeError and ArtifactMissingError before any work, ArtifactError when a prediction
        fails or its outputs are not those the manifest declares.
        """
        chosen = self.buckets_of(rows)
        return [self._loaded[bucket].forward(row) for bucket, row in zip(chosen, rows, strict=True)]

    def warm(self) -> None:
        """One prediction on every loaded bucket."""
        for bucket, model in self._loaded.items():
            model.predict(self.host.probe_features(bucket))

    def close(self) -> None:
        """Let the compiled models go."""
        self._loaded.clear()

    def _load(self, bucket: int, strict: bool) -> None:
        try:
            model, manifest = load_verified(self._spec, bucket, platform=self._platform)
            loaded = BucketModel(model, manifest, self.host)
            self._probe(bucket, loaded)
        except ArtifactMissingError as error:  # warned: row 6 in info.dropped; row 4 raises it later
            self._missing[bucket] = error
            self._dropped[bucket] = _reason(error)
        except ArtifactError as error:  # warned: row 6
            if strict:
                raise
            self._dropped[bucket] = _reason(error)
            warnings.warn(
                f"{self._spec.name} L{bucket} was dropped from the Neural Engine, its requests go to MLX: "
                f"{_reason(error)}",
                RuntimeWarning,
                stacklevel=4,
            )
        else:
            self._loaded[bucket] = loaded

    def _probe(self, bucket: int, loaded: BucketModel) -> None:
        features = self.host.probe_features(bucket)
        loaded.predict(features)  # the outputs are checked once before they are timed
        probe = run_probe(loaded.model, self.model_path(bucket), features)
        self._probes[bucket] = probe
        if probe.verdict != "PLACED":
            raise ComputeUnitMismatchError(
                f"{self._spec.name} L{bucket}: the loaded model does not run on the Neural Engine "
                f"({probe.verdict}): {probe.why()}; rebuild it with: "
                f"{build_command(self._spec, bucket, force=True)}"
            )


def _reason(error: ArtifactError) -> str:
    return f"{type(error).__name__}: {error}"
