"""Building an artifact on the machine that will run it: convert, compile, check, register in one rename."""

from __future__ import annotations

import platform as _python_platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from laya_apple import __version__
from laya_apple.artifacts.bucket import BucketModel
from laya_apple.artifacts.canary import run_canary
from laya_apple.artifacts.convert import convert
from laya_apple.artifacts.features import HostSide
from laya_apple.artifacts.graph import MAX_OPTIONS, GraphShape, LayerNormSpelling, build_graph
from laya_apple.artifacts.layout import check_layout, expected_outputs
from laya_apple.artifacts.locations import MANIFEST_FILE, MODEL_DIRECTORY, Locations, build_command, locked
from laya_apple.artifacts.manifest import (
    FORMAT,
    FORMAT_VERSION,
    PRECISION,
    REJECTED,
    VALIDATED,
    Manifest,
    artifact_section,
    check_manifest,
    now,
    platform_section,
    source_section,
)
from laya_apple.artifacts.placement import inspect_placement
from laya_apple.artifacts.probe import run_probe
from laya_apple.artifacts.recovery import Place, recover
from laya_apple.artifacts.registration import publish, reject, staged
from laya_apple.artifacts.runtime import (
    COMPUTE_UNITS,
    compile_package,
    coremltools_version,
    load_on_neural_engine,
    require_coremltools,
)
from laya_apple.artifacts.store import load_verified
from laya_apple.artifacts.tensors import TensorFile
from laya_apple.backends.base import RowOutput
from laya_apple.checkpoint import Checkpoint
from laya_apple.errors import (
    ArtifactError,
    ArtifactParityError,
    BackendUnavailableError,
    ComputeUnitMismatchError,
    LayaAppleError,
)
from laya_apple.hashing import tree_hash
from laya_apple.parity.gate import run_gate
from laya_apple.parity.goldens import Goldens, load_goldens
from laya_apple.platform import Platform, current_platform
from laya_apple.prompt.sequence import Row
from laya_apple.prompt.tokenizer import Tokenizer
from laya_apple.registry import ModelSpec

GOLDENS_FILE = "goldens.json"
"""Where the goldens of a local checkpoint lie, in its directory."""
TARGET = "macOS15"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A registered artifact."""

    model: str
    bucket: int
    path: Path
    built: bool
    """False when it was there already and verified."""
    manifest: Manifest


def goldens_path(spec: ModelSpec) -> Path:
    """Where the goldens of a model are expected: shipped data, or a local checkpoint's own directory."""
    if spec.path is not None and not spec.embedded:
        return spec.path / GOLDENS_FILE
    return Path(str(files("laya_apple").joinpath(f"data/goldens/{spec.name}.json")))


def build_artifact(
    checkpoint: Checkpoint,
    bucket: int,
    *,
    goldens: Path | None = None,
    force: bool = False,
    layer_norm: LayerNormSpelling = "decomposed",
    platform: Platform | None = None,
    progress: Progress = lambda line: None,
) -> BuildResult:
    """Build, validate and register one bucket, or find that a valid one is registered (unless ``force``).

    One process at a time builds a bucket; others wait, then find it. Nothing is registered until all checks
    passed, and registering is one rename.

    Raises BackendUnavailableError (no Core ML here), LayaAppleError (no goldens, with the command that makes
    them), ArtifactParityError (layout check or parity gate), ComputeUnitMismatchError (compute plan or
    probe), ArtifactError (Core ML or the disk failed). A parity or placement failure leaves a manifest under
    ``artifacts/rejected``.
    """
    platform = platform or current_platform()
    require_coremltools(platform)
    spec = checkpoint.spec
    locations = Locations.of(platform)
    try:
        with locked(locations.lock(spec, bucket)):
            for note in recover(Place.of(locations, spec, bucket)):
                progress(f"{spec.name} L{bucket}: {note}")
            found = None if force else _registered(spec, bucket, platform)
            if found is not None:
                progress(f"{spec.name} L{bucket}: already built and valid")
                return BuildResult(spec.name, bucket, locations.artifact(spec, bucket), False, found)
            # Without goldens nothing can pass, so this comes before the minutes of work.
            golden = load_goldens(goldens or goldens_path(spec), weights_sha256=spec.weights_sha256)
            with staged(locations, spec, bucket) as directory:
                build = _Build(
                    checkpoint, bucket, golden, layer_norm, platform, locations, directory, progress
                )
                artifact, manifest = build.run()
                path = publish(locations, spec, bucket, artifact)
    except OSError as error:  # reraise: a full disk, or one that cannot be written
        raise ArtifactError(
            f"{spec.name} L{bucket}: {error}; nothing was registered, make room below {locations.root} and "
            f"run: {build_command(spec, bucket)}"
        ) from error
    return BuildResult(spec.name, bucket, path, True, manifest)


def _registered(spec: ModelSpec, bucket: int, platform: Platform) -> Manifest | None:
    try:
        return load_verified(spec, bucket, platform=platform)[1]
    except BackendUnavailableError:  # reraise: nothing can be built here either
        raise
    except LayaAppleError:  # closed: it is missing or does not verify, so it is built
        return None


@dataclass
class _Build:
    """One build in its staging directory."""

    checkpoint: Checkpoint
    bucket: int
    goldens: Goldens
    layer_norm: LayerNormSpelling
    platform: Platform
    locations: Locations
    directory: Path
    progress: Progress
    timings: dict[str, float] = field(default_factory=dict)

    def run(self) -> tuple[Path, Manifest]:
        """Every step; returns the complete artifact directory and its manifest."""
        spec = self.checkpoint.spec
        host = HostSide(self.checkpoint)
        artifact = self.directory / "artifact"
        artifact.mkdir()
        model_path = artifact / MODEL_DIRECTORY
        data = self._convert(model_path)
        with self._timed("plan"):
            report = inspect_placement(model_path)
        data["placement"] = {**report.to_dict(), "probe": None}
        if not report.passed:
            raise self._rejected(data, ComputeUnitMismatchError, f"the compute plan: {report.why()}")
        with self._timed("load"):
            provisional = Manifest(data)
            run_canary(model_path, {array.name: array.shape for array in provisional.inputs})
            bucket_model = BucketModel(load_on_neural_engine(model_path), provisional, host)
        with self._timed("parity"):
            gate = run_gate(
                _forward(bucket_model),
                Tokenizer.from_dir(self.checkpoint.path),
                self.checkpoint.config,
                self.goldens,
                dtype=PRECISION,
                weights_sha256=spec.weights_sha256,
                max_length=self.bucket,
                max_options=MAX_OPTIONS,
            )
        data["parity"] = gate.to_dict()
        if not gate.passed:
            raise self._rejected(data, ArtifactParityError, f"the parity gate failed: {gate.summary}")
        with self._timed("probe"):
            probe = run_probe(bucket_model.model, model_path, host.probe_features(self.bucket))
        data["placement"]["probe"] = probe.to_dict()
        if probe.verdict != "PLACED":
            raise self._rejected(
                data, ComputeUnitMismatchError, f"the placement probe ({probe.verdict}): {probe.why()}"
            )
        data["status"] = VALIDATED
        data["timings"] = dict(self.timings)
        manifest = check_manifest(data)
        (artifact / MANIFEST_FILE).write_text(manifest.text(), encoding="utf-8")
        return artifact, manifest

    def _convert(self, model_path: Path) -> dict[str, Any]:
        """Graph, layout check, conversion, compilation; returns the manifest as far as it is known."""
        shape = GraphShape.of(self.checkpoint, self.bucket, self.layer_norm)
        with self._timed("reference"):
            expected = expected_outputs(self.checkpoint, self.bucket)
        with self._timed("graph"):
            graph = build_graph(shape, TensorFile(self.checkpoint))
        with self._timed("layout"):
            layout = check_layout(graph, self.checkpoint, expected)
        if not layout.passed:
            raise ArtifactParityError(
                f"{self.checkpoint.spec.name} L{self.bucket}: the graph at FP32 differs from the network by "
                f"{layout.max_logit_difference:.2e} (options), {layout.max_action_difference:.2e} (action); "
                f"the limit is {layout.tolerance:g}; nothing was converted"
            )
        package = self.directory / "model.mlpackage"
        with self._timed("convert"):
            program = convert(graph, package)
        del graph
        with self._timed("compile"):
            compile_package(package, model_path)
        sections = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "status": REJECTED,
            "created_at": now(),
            "synthetic": self.platform.virtual,
            "source": source_section(self.checkpoint.spec),
            "conversion": {
                "versions": _versions(),
                "target": TARGET,
                "precision": PRECISION,
                "layer_norm": self.layer_norm,
                "program": program.to_dict(),
                "layout_check": layout.to_dict(),
            },
            "artifact": artifact_section(shape),
            "placement": {"compute_units": COMPUTE_UNITS},
            "platform": platform_section(self.platform, coremltools_version()),
            "parity": {"passed": False},
            "integrity": {"artifact_sha256": tree_hash(model_path)},
        }
        return sections

    def _rejected(self, data: dict[str, Any], kind: type[ArtifactError], reason: str) -> ArtifactError:
        """The error to raise, after the manifest is kept under ``rejected``."""
        spec = self.checkpoint.spec
        data["timings"] = dict(self.timings)
        record = reject(self.locations, spec, self.bucket, data, reason)
        return kind(f"{spec.name} L{self.bucket}: {reason}; nothing was registered, the record is {record}")

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        start_ns = time.perf_counter_ns()
        yield
        took_ms = (time.perf_counter_ns() - start_ns) / 1e6
        self.timings[f"{step}_ms"] = round(took_ms, 3)
        self.progress(f"{self.checkpoint.spec.name} L{self.bucket}: {step} {took_ms / 1e3:.2f} s")


def _forward(model: BucketModel) -> Callable[[Sequence[Row]], list[RowOutput]]:
    return lambda rows: [model.forward(row) for row in rows]


def _versions() -> dict[str, str]:
    return {
        "laya_apple": __version__,
        "coremltools": coremltools_version(),
        "numpy": version("numpy"),
        "python": _python_platform.python_version(),
    }
