"""Archives: the same files give the same bytes, and what comes out is what went in."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from transfer_files import Importing, members_of

from laya_apple.artifacts.archive import read_archive_manifest, unpack, write_archive
from laya_apple.artifacts.manifest import read_manifest
from laya_apple.errors import BackendUnavailableError
from laya_apple.hashing import file_sha256, tree_hash


def _unpacked(archive: Path, folder: Path) -> Path:
    folder.mkdir()
    unpack(archive, folder)
    return folder


def test_what_comes_out_is_what_went_in(importing: Importing, tmp_path: Path) -> None:
    folder = _unpacked(importing.archive, tmp_path / "out")
    manifest = read_manifest(folder / "manifest.json")
    assert manifest == read_archive_manifest(importing.archive)
    assert tree_hash(folder / "model.mlmodelc") == manifest.artifact_sha256


def test_the_same_files_give_the_same_bytes(importing: Importing, tmp_path: Path) -> None:
    folder = _unpacked(importing.archive, tmp_path / "out")
    for path in folder.rglob("*"):
        os.utime(path, ns=(1, 1))
        path.chmod(0o700)
    sha256 = write_archive(folder, tmp_path / "again.tar.gz")
    assert sha256 == file_sha256(tmp_path / "again.tar.gz") == file_sha256(importing.archive)


def test_the_facts_are_those_of_the_file(importing: Importing, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    facts = unpack(importing.archive, tmp_path / "out")
    assert facts.archive_sha256 == file_sha256(importing.archive)
    assert facts.bytes == importing.archive.stat().st_size


def test_members_carry_no_owner_and_no_time(importing: Importing) -> None:
    members = [info for info, _ in members_of(importing.archive)]
    assert [info.name for info in members][:2] == ["manifest.json", "model.mlmodelc"]
    assert {(info.uid, info.gid, info.uname, info.gname, info.mtime) for info in members} == {
        (0, 0, "", "", 0)
    }
    assert {info.mode for info in members if info.isreg()} == {0o644}


def test_nothing_is_left_of_an_unfinished_archive(importing: Importing, tmp_path: Path) -> None:
    folder = _unpacked(importing.archive, tmp_path / "out")
    (folder / "model.mlmodelc" / "model.mil").unlink()
    (folder / "model.mlmodelc" / "model.mil").symlink_to("nowhere")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(OSError, match="No such file"):
        write_archive(folder, target / "a.tar.gz")
    assert list(target.iterdir()) == []


def test_a_python_without_the_data_filter_cannot_import(
    importing: Importing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(BackendUnavailableError, match=r"Python 3\.11\.4"):
        importing.run()
    with pytest.raises(BackendUnavailableError, match=r"Python 3\.11\.4"):
        read_archive_manifest(importing.archive)
    importing.assert_nothing_registered()
