"""Archives of the built artifact, and a cache to import them into."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from artifact_files import Built

from laya_apple.artifacts.locations import Locations, build_command
from laya_apple.artifacts.manifest import Manifest
from laya_apple.artifacts.store import load_verified
from laya_apple.artifacts.transfer import ImportResult, export_artifact, import_archive
from laya_apple.checkpoint import Checkpoint
from pytest_laya.virtual_mac.control import VirtualMac

Members = list[tuple[tarfile.TarInfo, bytes]]


@dataclass(frozen=True)
class Importing:
    """A virtual Mac with an empty cache, and an archive that it accepts."""

    mac: VirtualMac
    checkpoint: Checkpoint
    archive: Path
    folder: Path

    @property
    def locations(self) -> Locations:
        return Locations.of(self.mac.platform)

    @property
    def directory(self) -> Path:
        """The registered path."""
        return self.locations.artifact(self.checkpoint.spec, 64)

    @property
    def mend(self) -> str:
        return build_command(self.checkpoint.spec, 64)

    def run(self, archive: Path | None = None, **options: Any) -> ImportResult:
        return import_archive(self.checkpoint, archive or self.archive, platform=self.mac.platform, **options)

    def load(self) -> Manifest:
        return load_verified(self.checkpoint.spec, 64, platform=self.mac.platform)[1]

    def load_expected(self) -> str:
        """The artifact's hash, as the good archive's manifest says it."""
        return str(json.loads(members_of(self.archive)[0][1])["integrity"]["artifact_sha256"])

    def staged(self) -> list[str]:
        return sorted(path.name for path in self.locations.staging.glob("*"))

    def assert_nothing_registered(self) -> None:
        """No artifact, nothing staged, nothing set aside, nothing quarantined."""
        assert not self.directory.exists()
        assert self.staged() == []
        assert list((self.locations.artifacts / ".previous").glob("*")) == []
        assert list(self.locations.quarantine.glob("*")) == []

    def write(self, members: Members, name: str = "crafted.tar.gz") -> Path:
        return write_archive_of(self.folder / name, members)

    def with_manifest(self, **changes: Any) -> Path:
        """The archive with values of its manifest changed; keys are paths with ``__`` between the parts."""
        members = members_of(self.archive)
        data = json.loads(members[0][1])
        for path, value in changes.items():
            inner, keys = data, path.split("__")
            for key in keys[:-1]:
                inner = inner[key]
            inner[keys[-1]] = value
        return self.write([(members[0][0], json.dumps(data).encode()), *members[1:]])


def members_of(archive: Path) -> Members:
    """Every member with its contents."""
    with tarfile.open(archive) as tar:
        return [
            (member, tar.extractfile(member).read() if member.isreg() else b"")  # type: ignore[union-attr]
            for member in tar.getmembers()
        ]


def tar_of(members: Members) -> bytes:
    """An uncompressed tar of members and contents."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, contents in members:
            if member.isreg():
                member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents) if member.isreg() else None)
    return file.getvalue()


def write_archive_of(path: Path, members: Members) -> Path:
    path.write_bytes(gzip.compress(tar_of(members), 1))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


@pytest.fixture(scope="session")
def archive(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built artifact's archive; never changed."""
    folder = tmp_path_factory.mktemp("archive")
    with pytest.MonkeyPatch.context() as patch, VirtualMac(folder / "mac", patch) as mac:
        without_canary(patch)
        patch.setenv("LAYA_APPLE_CACHE", str(built.cache))
        return export_artifact(built.checkpoint.spec, 64, folder / "out", platform=mac.platform).archive


def without_canary(patch: pytest.MonkeyPatch) -> None:
    """As in an application that embeds Python: no subprocess is started, and one warning says so."""
    patch.setattr(sys, "executable", "an-application")


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    without_canary(monkeypatch)


@pytest.fixture
def importing(mac: VirtualMac, built: Built, archive: Path, tmp_path: Path, embedded: None) -> Importing:
    """An empty cache and a copy of the archive of the test's own; validation runs in this process."""
    # Declared times, so that a probe's ratio does not depend on what else this machine does.
    mac.profile("m4max")
    folder = tmp_path / "archives"
    folder.mkdir()
    shutil.copy(archive, folder)
    return Importing(mac, built.checkpoint, folder / archive.name, folder)
