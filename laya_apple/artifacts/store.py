"""Loading an artifact: nine checks in order, each with its own error, and none skipped silently."""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Never

from laya_apple.artifacts import stamps
from laya_apple.artifacts.canary import run_canary
from laya_apple.artifacts.graph import GRAPH_NAME, INPUT_NAMES, MAX_OPTIONS, OUTPUT_NAMES
from laya_apple.artifacts.locations import MANIFEST_FILE, MODEL_DIRECTORY, Locations, build_command, slug
from laya_apple.artifacts.manifest import (
    BATCH,
    FORMAT_VERSION,
    PRECISION,
    VALIDATED,
    Manifest,
    ManifestError,
    read_manifest,
)
from laya_apple.artifacts.placement import inspect_placement
from laya_apple.artifacts.runtime import (
    COMPUTE_UNITS,
    coremltools_version,
    load_on_neural_engine,
    require_coremltools,
)
from laya_apple.errors import (
    ArtifactError,
    ArtifactIntegrityError,
    ArtifactMissingError,
    ArtifactParityError,
    ArtifactRevisionError,
    ComputeUnitMismatchError,
)
from laya_apple.hashing import tree_hash
from laya_apple.parity.gate import TOLERANCES
from laya_apple.platform import Platform, current_platform
from laya_apple.registry import ModelSpec

NOTE_FILE = "QUARANTINE.txt"


def load_verified(
    spec: ModelSpec,
    bucket: int,
    *,
    compute_units: str = COMPUTE_UNITS,
    full: bool = False,
    platform: Platform | None = None,
) -> tuple[Any, Manifest]:
    """Verify the registered artifact of one bucket and load it: (CompiledMLModel on CPU_AND_NE, manifest).

    The file hash and the compute plan are skipped when a stamp says that these very files passed them;
    ``full`` runs them all the same. Where they run, a subprocess loads the model first (``canary``).

    Raises, in this order of checks: BackendUnavailableError (no Core ML here), ArtifactMissingError,
    ArtifactIntegrityError (unreadable manifest; the artifact is quarantined), ArtifactRevisionError (another
    model, revision, graph, shape or precision), ComputeUnitMismatchError, ArtifactParityError,
    ArtifactRevisionError (another platform), ArtifactIntegrityError (changed files; quarantined),
    ComputeUnitMismatchError (compute plan), ArtifactError (Core ML cannot load it). Every message but the
    first names the command that rebuilds the artifact.
    """
    platform = platform or current_platform()
    require_coremltools(platform)
    check = Check(spec, bucket, compute_units, platform)
    try:
        manifest = check.declared()
        key = check.key(manifest)
        stamped = not full and stamps.is_stamped(check.locations, spec, bucket, key)
        if not stamped:
            manifest = check.files(manifest)
            check.plan()
            run_canary(check.model, {array.name: array.shape for array in manifest.inputs})
            # The files were read after the key was taken: if they changed meanwhile, the stamp never matches.
            stamps.write_stamp(check.locations, spec, bucket, key)
        return load_on_neural_engine(check.model), manifest
    except FileNotFoundError as error:  # reraise: removed or replaced under our hands
        raise ArtifactMissingError(
            check.message(f"{error.filename} disappeared while it was read")
        ) from error
    except OSError as error:  # reraise: the files are there, but cannot be read
        raise ArtifactError(check.message(f"the artifact cannot be read: {error}")) from error
    except ArtifactError as error:  # reraise: with the mend
        if check.mend in str(error):
            raise
        raise type(error)(check.message(str(error))) from error


class Check:
    """One artifact under examination; every method raises or returns what it established.

    ``directory`` is a copy that is not registered yet: then nothing is quarantined.
    """

    def __init__(
        self,
        spec: ModelSpec,
        bucket: int,
        compute_units: str,
        platform: Platform,
        directory: Path | None = None,
    ) -> None:
        self.spec = spec
        self.bucket = bucket
        self.compute_units = compute_units
        self.platform = platform
        self.locations = Locations.of(platform)
        self.registered = directory is None
        self.directory = directory or self.locations.artifact(spec, bucket)
        self.model = self.directory / MODEL_DIRECTORY
        self.mend = build_command(spec, bucket)

    def message(self, what: str) -> str:
        """``what``, and the command that mends it."""
        return f"{self.spec.name} L{self.bucket}: {what}; rebuild it with: {self.mend}"

    def declared(self) -> Manifest:
        """Checks 2 to 7: everything the manifest says."""
        return self.judged(self._present())

    def judged(self, manifest: Manifest) -> Manifest:
        """Checks 4 to 7 on a manifest that satisfies the schema."""
        self._revision(manifest)
        self._units(manifest)
        self._parity(manifest)
        self._platform(manifest)
        return manifest

    def key(self, manifest: Manifest) -> str:
        """The stamp key of the files as they are now."""
        return stamps.stamp_key(
            self.directory,
            manifest.artifact_sha256,
            self.compute_units,
            self.platform,
            coremltools_version(),
        )

    def files(self, manifest: Manifest) -> Manifest:
        """Check 8, the tree hash; on a mismatch all is read once more, since a replace can race."""
        if tree_hash(self.model) == manifest.artifact_sha256:
            return manifest
        manifest = self.declared()
        found = tree_hash(self.model)
        if found != manifest.artifact_sha256:
            self._corrupt(
                f"the files of {self.model.name} hash to {found[:12]}…, "
                f"the manifest says {manifest.artifact_sha256[:12]}…"
            )
        return manifest

    def plan(self) -> None:
        """Check 9: every operation is placed, and prefers the Neural Engine."""
        report = inspect_placement(self.model)
        if not report.passed:
            raise ComputeUnitMismatchError(self.message(f"the compute plan: {report.why()}"))

    def _present(self) -> Manifest:
        path = self.directory / MANIFEST_FILE
        if not path.is_file() or not self.model.is_dir():
            what = f"no Neural Engine artifact at {self.directory}"
            rejected = self.locations.rejected(self.spec, self.bucket)
            if rejected.is_file():
                what += f" (the last build was rejected, see {rejected})"
            raise ArtifactMissingError(f"{self.spec.name} L{self.bucket}: {what}; build it with: {self.mend}")
        for inside in self.directory.rglob("*"):
            if inside.is_symlink():  # what it leads to can change with no file here changing
                self._corrupt(f"{inside.relative_to(self.directory)} is a symbolic link")
        try:
            return read_manifest(path)
        except ManifestError as error:  # reraise: as corruption, after quarantine
            self._corrupt(f"the manifest is corrupt: {error}", error)

    def _revision(self, manifest: Manifest) -> None:
        wrong = _differences(
            {"format_version": manifest.data["format_version"]}, {"format_version": FORMAT_VERSION}
        )
        wrong += _differences(
            manifest.section("source"),
            {
                "model": self.spec.name,
                "repo": self.spec.repo,
                "revision": self.spec.revision,
                "weights_sha256": self.spec.weights_sha256,
            },
        )
        wrong += _differences(
            manifest.section("artifact"),
            {
                "graph": GRAPH_NAME,
                "length": self.bucket,
                "batch": BATCH,
                "precision": PRECISION,
                "max_options": MAX_OPTIONS,
            },
        )
        wrong += _differences(manifest.section("conversion"), {"precision": PRECISION}, prefix="conversion ")
        arrays = (*manifest.inputs, *manifest.outputs)
        if tuple(array.name for array in arrays) != (*INPUT_NAMES, *OUTPUT_NAMES):
            wrong.append("its inputs and outputs are not those of the graph")
        elif any(array.dtype != PRECISION for array in arrays) or not _consistent(manifest, self.bucket):
            wrong.append("the shapes or dtypes of its inputs and outputs are not those of the graph")
        if wrong:
            raise ArtifactRevisionError(self.message("; ".join(wrong)))

    def _units(self, manifest: Manifest) -> None:
        for what, units in (("asked for", self.compute_units), ("declared", manifest.compute_units)):
            if units != COMPUTE_UNITS:
                raise ComputeUnitMismatchError(
                    self.message(f"compute units {what} are {units}, only {COMPUTE_UNITS} is allowed")
                )
        placement = manifest.section("placement")
        operations = placement["ops"]
        if operations["gpu"] or operations["cpu"] or placement["transitions"] or not operations["ane"]:
            raise ComputeUnitMismatchError(
                self.message(
                    f"the manifest declares operations {dict(operations)} and {placement['transitions']} "
                    "changes of device, all must be on the Neural Engine"
                )
            )

        probe = placement.get("probe")  # an imported artifact has none
        if probe is not None and probe.get("verdict") != "PLACED":
            raise ComputeUnitMismatchError(
                self.message(f"the manifest declares a placement probe that says {probe.get('verdict')}")
            )

    def _parity(self, manifest: Manifest) -> None:
        gate, layout = manifest.section("parity"), manifest.section("conversion")["layout_check"]
        if gate["passed"] is not True or manifest.status != VALIDATED:
            raise ArtifactParityError(
                self.message(f"the artifact did not pass the parity gate (status {manifest.status})")
            )
        if layout.get("passed") is not True:
            raise ArtifactParityError(self.message("the artifact's graph did not pass the layout check"))
        wrong = _differences(
            gate,
            {"weights_sha256": self.spec.weights_sha256, "tolerance": TOLERANCES[PRECISION]},
            prefix="its parity gate's ",
        )
        if not gate.get("cases"):
            wrong.append("its parity gate compared no case")
        if wrong:
            raise ArtifactParityError(self.message("; ".join(wrong)))

    def _platform(self, manifest: Manifest) -> None:
        here, built = self.platform, manifest.section("platform")
        wrong = _differences(
            {
                "soc": built["soc"],
                "macOS major": built["macos"].partition(".")[0],
                "coremltools": built["coremltools"],
            },
            {"soc": here.soc, "macOS major": str(here.macos_major), "coremltools": coremltools_version()},
        )
        if manifest.synthetic != here.virtual:
            kinds = ("a synthetic", "a real") if manifest.synthetic else ("a real", "a synthetic")
            wrong.append(f"it is {kinds[0]} artifact on {kinds[1]} platform")
        if wrong:
            raise ArtifactRevisionError(self.message("; ".join(wrong)))

    def _corrupt(self, what: str, cause: BaseException | None = None) -> Never:
        if not self.registered:
            raise ArtifactIntegrityError(self.message(f"{what}; nothing was registered")) from cause
        where = quarantine(self.locations, self.spec, self.bucket, what)
        moved = f"the artifact was moved to {where}" if where else f"{self.directory} could not be moved away"
        raise ArtifactIntegrityError(self.message(f"{what}; {moved}")) from cause


def quarantine(locations: Locations, spec: ModelSpec, bucket: int, reason: str) -> Path | None:
    """Move a corrupt artifact out of its place, with a note; None when it is gone or cannot be moved."""
    source = locations.artifact(spec, bucket)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    target = locations.quarantine / f"{slug(spec, bucket)}-{stamp}-{uuid.uuid4().hex[:8]}"
    note = f"{reason}\nmoved from {source} at {stamp}\nrebuild it with: {build_command(spec, bucket)}\n"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)
        (target / NOTE_FILE).write_text(note, encoding="utf-8")
    except OSError:  # closed: the artifact is refused all the same, and the message says where it is
        return target if target.exists() else None
    return target


def _differences(found: Any, wanted: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        f"{prefix}{name} is {found.get(name)!r}, not {value!r}"
        for name, value in wanted.items()
        if found.get(name) != value
    ]


def _consistent(manifest: Manifest, bucket: int) -> bool:
    """True when all shapes follow from the bucket and one channel count, as in ``GraphShape``."""
    shapes = [array.shape for array in (*manifest.inputs, *manifest.outputs)]
    hidden = shapes[0][1] if len(shapes[0]) == 4 else 0
    return shapes == [
        (1, hidden, 1, bucket),
        (1, bucket, 1, bucket),
        (1, bucket, 1, bucket),
        (1, hidden, 1, 1),
        (1, bucket, 1, MAX_OPTIONS),
        (1, 1, 1, MAX_OPTIONS),
        (1, hidden, 1, 1),
    ]
