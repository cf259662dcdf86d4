"""Artifacts between machines: export what verifies, import what passes every check here.

An import is all or nothing. A first install is validated at its registered path with the manifest withheld,
because Core ML compiles a model for each path it is loaded from; one rename of the manifest publishes it. A
replace validates its staged copy first, then swaps and loads again at the registered path.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laya_apple import __version__
from laya_apple.artifacts import recovery, stamps
from laya_apple.artifacts.archive import (
    ARCHIVE_SUFFIX,
    read_archive_manifest,
    require_safe_extraction,
    unpack,
    write_archive,
)
from laya_apple.artifacts.build import goldens_path
from laya_apple.artifacts.locations import (
    MANIFEST_FILE,
    MODEL_DIRECTORY,
    Locations,
    build_command,
    locked,
    slug,
)
from laya_apple.artifacts.manifest import Manifest, now
from laya_apple.artifacts.recovery import WITHHELD_FILE, Place
from laya_apple.artifacts.registration import staged
from laya_apple.artifacts.runtime import COMPUTE_UNITS, coremltools_version, require_coremltools
from laya_apple.artifacts.store import Check, load_verified
from laya_apple.artifacts.validation import Validation, validate
from laya_apple.checkpoint import Checkpoint
from laya_apple.errors import (
    ArtifactError,
    ArtifactIntegrityError,
    BackendUnavailableError,
    LayaAppleError,
    UnsupportedShapeError,
)
from laya_apple.parity.goldens import load_goldens
from laya_apple.platform import Platform, current_platform
from laya_apple.registry import ModelSpec

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """An archive of one verified artifact."""

    bucket: int
    archive: Path
    archive_sha256: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Expected:
    """What an index says about an archive."""

    archive_sha256: str
    bytes: int
    artifact_sha256: str


@dataclass(frozen=True, slots=True)
class ImportResult:
    """A registered artifact."""

    model: str
    bucket: int
    path: Path
    imported: bool
    """False when one was registered already and verified."""
    replaced: bool
    """True when another artifact stood there and is gone."""
    manifest: Manifest
    probe: dict[str, Any] | None
    """The placement probe at the registered path; None when none was asked for or nothing was imported."""
    notes: tuple[str, ...] = ()
    """What a killed import had left, and was put right first."""


def archive_name(spec: ModelSpec, bucket: int, manifest: Manifest) -> str:
    """File name of an export: what it is, and the machine it was built on."""
    built = manifest.section("platform")
    major = str(built["macos"]).partition(".")[0]
    machine = f"{built['soc']}-macos{major}-coremltools{built['coremltools']}"
    return f"{slug(spec, bucket)}-{re.sub(r'[^A-Za-z0-9.+-]', '_', machine)}{ARCHIVE_SUFFIX}"


def export_artifact(
    spec: ModelSpec,
    bucket: int,
    directory: Path,
    *,
    platform: Platform | None = None,
    progress: Progress = lambda line: None,
) -> ExportResult:
    """Write the registered artifact of one bucket to an archive in ``directory``, if it verifies in full.

    Raises what ``load_verified`` raises, and ArtifactError when the archive cannot be written.
    """
    platform = platform or current_platform()
    locations = Locations.of(platform)
    # Held throughout, so that what was verified is what is packed.
    with locked(locations.lock(spec, bucket)):
        progress(f"{spec.name} L{bucket}: verifying")
        _, manifest = load_verified(spec, bucket, full=True, platform=platform)
        archive = directory / archive_name(spec, bucket, manifest)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            progress(f"{spec.name} L{bucket}: packing {archive.name}")
            sha256 = write_archive(locations.artifact(spec, bucket), archive)
        except OSError as error:  # reraise: no room, or a place that cannot be written
            raise ArtifactError(f"{archive} could not be written: {error}") from error
    return ExportResult(bucket, archive, sha256, manifest)


def registered(spec: ModelSpec, bucket: int, platform: Platform) -> Manifest | None:
    """The manifest of the registered artifact, if it passes ``load_verified``.

    A corrupt one is quarantined by that. Raises BackendUnavailableError where there is no Core ML.
    """
    try:
        return load_verified(spec, bucket, platform=platform)[1]
    except BackendUnavailableError:  # reraise: nothing can be imported here either
        raise
    except LayaAppleError:  # closed: it is missing or does not verify, so it is not taken as registered
        return None


def import_archive(
    checkpoint: Checkpoint,
    archive: Path,
    *,
    force: bool = False,
    probe: bool = False,
    goldens: Path | None = None,
    expected: Expected | None = None,
    platform: Platform | None = None,
    progress: Progress = lambda line: None,
) -> ImportResult:
    """Check the artifact in ``archive`` on this machine and register it.

    Where a verified one is registered nothing is done, unless ``force``. ``probe`` adds the placement probe
    at the registered path, and on the staged copy of a replace. ``expected`` is what an index says of the
    archive.

    Raises BackendUnavailableError (no Core ML, or a Python that cannot unpack safely),
    ArtifactIntegrityError (archive or files are not what they should be), ArtifactRevisionError (another
    model or platform), UnsupportedShapeError (a length the model does not offer), ArtifactParityError,
    ComputeUnitMismatchError, ArtifactError (Core ML or the disk failed), LayaAppleError (no goldens). After
    any of them the new artifact is gone and what was registered before is in its place.
    """
    platform = platform or current_platform()
    require_coremltools(platform)
    require_safe_extraction()
    spec = checkpoint.spec
    bucket = _bucket(spec, archive, platform)
    locations = Locations.of(platform)
    place = Place.of(locations, spec, bucket)
    with bucket_locked(place, build_command(spec, bucket)):
        notes, found = look(place, spec, bucket, platform, force=force, progress=progress)
        if found is not None:
            return ImportResult(spec.name, bucket, place.artifact, False, False, found, None, notes)
        # Without goldens nothing can pass, so this comes before the work.
        golden = goldens or goldens_path(spec)
        load_goldens(golden, weights_sha256=spec.weights_sha256)
        with staged(locations, spec, bucket) as directory:
            work = _Import(checkpoint, bucket, place, golden, probe, platform, progress, directory)
            return work.run(archive, expected, notes)


@contextmanager
def bucket_locked(place: Place, mend: str) -> Iterator[None]:
    """Hold the bucket's lock; a disk that refuses comes out as ArtifactError, with what to do."""
    try:
        with locked(place.lock):
            yield
    except OSError as error:  # reraise: a full disk, or one that cannot be written
        raise ArtifactError(
            f"{place.slug}: {error}; the new artifact was not registered; make room below "
            f"{place.locations.root} and try again, or run: {mend}"
        ) from error


def look(
    place: Place, spec: ModelSpec, bucket: int, platform: Platform, *, force: bool, progress: Progress
) -> tuple[tuple[str, ...], Manifest | None]:
    """Put right what a killed import left; returns (what was done, what is registered and verifies).

    With ``force`` nothing counts as registered. Call with the lock held. Raises ArtifactError for leftovers
    that may not be deleted.
    """
    notes = tuple(recovery.recover(place))
    for note in notes:
        progress(f"{spec.name} L{bucket}: {note}")
    if recovery.is_pending(place.artifact):
        raise ArtifactError(
            f"{place.artifact} was left by an unfinished import and does not lie in {place.locations.root}, "
            "so it is not deleted; remove it yourself and try again"
        )
    return notes, None if force else registered(spec, bucket, platform)


def _bucket(spec: ModelSpec, archive: Path, platform: Platform) -> int:
    """The archive's length, after everything its manifest says was judged against this model and machine."""
    manifest = read_archive_manifest(archive)
    bucket = manifest.length
    if bucket not in spec.ane_buckets:
        raise UnsupportedShapeError(
            f"{archive.name} is of length {bucket}, {spec.name} offers "
            + ", ".join(map(str, spec.ane_buckets))
        )
    Check(spec, bucket, COMPUTE_UNITS, platform).judged(manifest)
    return bucket


@dataclass(frozen=True)
class _Import:
    """One import, with the bucket's lock held."""

    checkpoint: Checkpoint
    bucket: int
    place: Place
    goldens: Path
    probe: bool
    platform: Platform
    progress: Progress
    directory: Path

    def run(self, archive: Path, expected: Expected | None, notes: tuple[str, ...]) -> ImportResult:
        """Every step after the look at what is registered."""
        artifact = self.directory / "artifact"
        artifact.mkdir()
        self._say(f"unpacking {archive.name}")
        facts = unpack(archive, artifact, self.progress)
        if expected is not None and facts.archive_sha256 != expected.archive_sha256:
            raise ArtifactIntegrityError(
                f"{archive.name} hashes to {facts.archive_sha256[:12]}…, the index says "
                f"{expected.archive_sha256[:12]}…; nothing was registered"
            )
        manifest = self._staged_checks(artifact, expected)
        replaces = self.place.artifact.exists()
        tested: Validation | None = None
        if replaces:
            self._say("validating the staged copy")
            tested = self._validate(artifact, MANIFEST_FILE, goldens=self.goldens)
        recovery.withhold(artifact, archive=archive.name)
        self.place.artifact.parent.mkdir(parents=True, exist_ok=True)
        aside = recovery.set_aside(self.place) if replaces else None
        with recovery.undone_on_failure(self.place, aside):
            os.rename(artifact, self.place.artifact)
            self._say("validating at the registered path")
            before = self._files_key(manifest)
            self._unchanged(manifest)
            goldens = self.goldens if tested is None else None  # the gate has run on the staged copy
            final = self._validate(self.place.artifact, WITHHELD_FILE, goldens=goldens)
            record = {
                "at": now(),
                "by": f"laya-apple {__version__}",
                "archive": archive.name,
                "archive_sha256": facts.archive_sha256,
                "placement": final.placement,
                "parity": (tested or final).parity,
                "probe": final.probe,
            }
            published = Manifest({**manifest.data, "imported": record})
            recovery.publish(self.place.artifact, published.text())
        self._stamp(published, before)
        if aside is not None:
            recovery.discard(self.place, aside)
        locations = self.place.locations
        shutil.rmtree(locations.rejected(self.checkpoint.spec, self.bucket).parent, ignore_errors=True)
        self._say(f"registered at {self.place.artifact}")
        return ImportResult(
            self.checkpoint.spec.name,
            self.bucket,
            self.place.artifact,
            True,
            replaces,
            published,
            final.probe,
            notes,
        )

    def _staged_checks(self, artifact: Path, expected: Expected | None) -> Manifest:
        """Manifest, platform and file hash of the staged copy."""
        check = Check(self.checkpoint.spec, self.bucket, COMPUTE_UNITS, self.platform, artifact)
        manifest = check.files(check.declared())
        if expected is not None and manifest.artifact_sha256 != expected.artifact_sha256:
            raise ArtifactIntegrityError(
                check.message(
                    f"the artifact hashes to {manifest.artifact_sha256[:12]}…, the index says "
                    f"{expected.artifact_sha256[:12]}…; nothing was registered"
                )
            )
        return manifest

    def _unchanged(self, manifest: Manifest) -> None:
        """The file hash again, at the registered path."""
        from laya_apple.hashing import tree_hash

        found = tree_hash(self.place.artifact / MODEL_DIRECTORY)
        if found != manifest.artifact_sha256:
            raise ArtifactIntegrityError(
                f"{self.checkpoint.spec.name} L{self.bucket}: the files changed while they were imported; "
                "nothing was registered"
            )

    def _validate(self, artifact: Path, manifest_file: str, *, goldens: Path | None) -> Validation:
        spec = self.checkpoint.spec
        try:
            return validate(self.checkpoint, artifact, manifest_file, goldens=goldens, probe=self.probe)
        except ArtifactError as error:  # reraise: with the mend
            raise type(error)(
                f"{spec.name} L{self.bucket}: {error}; the archive's artifact was not registered, build one "
                f"with: {build_command(spec, self.bucket)}"
            ) from error

    def _files_key(self, manifest: Manifest) -> str:
        return self._key(self.place.artifact / MODEL_DIRECTORY, manifest)

    def _stamp(self, manifest: Manifest, before: str) -> None:
        """Hash, plan and first load have passed here, so the next load need not repeat them."""
        # Only if the files are still those that passed.
        if self._files_key(manifest) == before:
            key = self._key(self.place.artifact, manifest)
            stamps.write_stamp(self.place.locations, self.checkpoint.spec, self.bucket, key)

    def _key(self, directory: Path, manifest: Manifest) -> str:
        return stamps.stamp_key(
            directory, manifest.artifact_sha256, COMPUTE_UNITS, self.platform, coremltools_version()
        )

    def _say(self, line: str) -> None:
        self.progress(f"{self.checkpoint.spec.name} L{self.bucket}: {line}")
