"""What ``prune`` removes, what it puts back, and what it never touches."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from artifact_files import Registered

from laya_apple.artifacts.locations import Locations
from laya_apple.artifacts.prune import PruneReport, prune
from laya_apple.artifacts.recovery import PENDING_FILE, WITHHELD_FILE, Place
from laya_apple.hashing import tree_hash

pytestmark = [pytest.mark.usefixtures("embedded"), pytest.mark.filterwarnings("ignore:sys.executable")]

HOUR_S = 3600.0
PYTHON = sys.executable
"""Taken before the fixtures take it away."""


@pytest.fixture
def place(registered: Registered) -> Place:
    return Place.of(registered.locations, registered.checkpoint.spec, 64)


@pytest.fixture
def exited_pid() -> int:
    child = subprocess.Popen([PYTHON, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture
def running_pid() -> Iterator[int]:
    child = subprocess.Popen([PYTHON, "-c", "input()"], stdin=subprocess.PIPE)
    yield child.pid
    child.communicate(b"\n")


def make_pending(place: Place, pid: object, *, aged: bool = True) -> Path:
    os.rename(place.artifact / "manifest.json", place.artifact / WITHHELD_FILE)
    marker = place.artifact / PENDING_FILE
    marker.write_text(json.dumps({"pid": pid}), encoding="utf-8")
    return age(marker) if aged else marker


def age(path: Path) -> Path:
    """An hour and a second old."""
    then = path.lstat().st_mtime - HOUR_S - 1
    os.utime(path, (then, then), follow_symlinks=False)
    return path


def make_staged(locations: Locations, name: str, *, aged: bool = True) -> Path:
    path = locations.staging / name
    (path / "artifact").mkdir(parents=True)
    (path / "artifact" / "half").write_bytes(b"x" * 10)
    return age(path) if aged else path


def run(registered: Registered) -> PruneReport:
    return prune(registered.locations)


def test_a_clean_store_is_left_alone(registered: Registered) -> None:
    before = tree_hash(registered.locations.root)
    assert run(registered) == PruneReport()
    assert tree_hash(registered.locations.root) == before
    registered.load()


def test_no_store_is_none(tmp_path: Path) -> None:
    assert prune(Locations(tmp_path / "nothing")) == PruneReport()
    assert not (tmp_path / "nothing").exists()


def test_a_pending_artifact_of_an_exited_import(
    registered: Registered, place: Place, exited_pid: int
) -> None:
    make_pending(place, exited_pid)
    report = run(registered)
    assert report.removed == [place.artifact]
    assert report.freed_bytes > 100_000
    assert not place.artifact.exists()
    assert place.staged() == []


def test_a_pending_artifact_of_a_running_import(
    registered: Registered, place: Place, running_pid: int
) -> None:
    make_pending(place, running_pid)
    report = run(registered)
    assert report.removed == []
    assert report.kept == {place.artifact: f"process {running_pid}, which is importing it, still runs"}
    assert place.artifact.is_dir()


def test_a_pending_artifact_younger_than_an_hour(
    registered: Registered, place: Place, exited_pid: int
) -> None:
    marker = make_pending(place, exited_pid, aged=False)
    assert run(registered).kept == {place.artifact: "less than 60 minutes old"}
    young = marker.stat().st_mtime
    assert prune(registered.locations, now_s=young + HOUR_S - 1).removed == []
    assert prune(registered.locations, now_s=young + HOUR_S).removed == [place.artifact]


@pytest.mark.parametrize("contents", ["", "[]", "{", '{"pid": "1"}', '{"pid": -1}', '{"pid": true}'])
def test_a_pending_mark_that_names_no_process(registered: Registered, place: Place, contents: str) -> None:
    make_pending(place, 1).write_text(contents, encoding="utf-8")
    age(place.artifact / PENDING_FILE)
    assert run(registered).removed == [place.artifact]


def test_a_withheld_manifest_without_a_mark(registered: Registered, place: Place) -> None:
    make_pending(place, 1).unlink()
    assert run(registered).kept == {place.artifact: "less than 60 minutes old"}
    age(place.artifact)
    assert run(registered).removed == [place.artifact]


def test_a_mark_beside_a_published_manifest_goes_alone(registered: Registered, place: Place) -> None:
    (place.artifact / PENDING_FILE).write_text("{}", encoding="utf-8")
    report = run(registered)
    assert report == PruneReport()
    assert not (place.artifact / PENDING_FILE).exists()
    registered.load()


def test_a_bucket_in_use_is_not_waited_for(registered: Registered, place: Place, exited_pid: int) -> None:
    make_pending(place, exited_pid)
    staged = make_staged(registered.locations, f"{place.slug}~work")
    place.lock.parent.mkdir(parents=True, exist_ok=True)
    with place.lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        report = run(registered)
    assert report.removed == []
    assert report.kept == {place.artifact: "in use", staged: "in use"}
    assert run(registered).removed == [place.artifact, staged]


def test_staging_directories_by_age(registered: Registered, place: Place) -> None:
    old = make_staged(registered.locations, f"{place.slug}~old")
    young = make_staged(registered.locations, f"{place.slug}~young", aged=False)
    report = run(registered)
    assert (report.removed, report.kept) == ([old], {young: "less than 60 minutes old"})
    assert report.freed_bytes == 10


def test_names_that_are_not_ours_stay(registered: Registered) -> None:
    stranger = make_staged(registered.locations, "holiday-photos")
    assert run(registered).kept == {stranger: "not ours"}
    assert stranger.is_dir()


def test_previous_artifacts_are_never_deleted(registered: Registered, place: Place) -> None:
    aside = registered.locations.previous / f"{place.slug}~00000000000000000001-aaaaaaaa"
    aside.parent.mkdir()
    os.rename(place.artifact, aside)
    other = registered.locations.previous / f"{place.slug}~00000000000000000000-bbbbbbbb"
    other.mkdir()
    age(aside), age(other)
    report = run(registered)
    # The newest one is put back, since nothing is registered; the other one stays.
    assert report.restored == [place.artifact]
    assert report.kept == {other: "a previous artifact, which a replace had set aside"}
    assert other.is_dir()
    registered.load()
    assert run(registered).kept == report.kept


def test_a_previous_one_is_put_back_in_a_pending_one_s_place(
    registered: Registered, place: Place, exited_pid: int
) -> None:
    aside = registered.locations.previous / f"{place.slug}~00000000000000000001-aaaaaaaa"
    aside.parent.mkdir()
    os.rename(place.artifact, aside)
    place.artifact.mkdir()
    (place.artifact / "manifest.json").write_text("{}", encoding="utf-8")
    make_pending(place, exited_pid)
    report = run(registered)
    assert (report.removed, report.restored) == ([place.artifact], [place.artifact])
    registered.load()


def test_quarantined_and_rejected_ones_stay(registered: Registered) -> None:
    kept = [registered.locations.quarantine / "x", registered.locations.artifacts / "rejected" / "y"]
    for path in kept:
        path.mkdir(parents=True)
        (path / "manifest.json").write_text("{}", encoding="utf-8")
        age(path)
    assert run(registered) == PruneReport()
    assert all((path / "manifest.json").is_file() for path in kept)


def test_half_written_stamps_and_records_by_age(registered: Registered) -> None:
    verified = registered.locations.verified
    verified.mkdir()
    record = registered.locations.artifacts / "rejected" / "y"
    record.mkdir(parents=True)
    drafts = [
        verified / "a-L64-B1.json.4711",
        verified / f".laya-0123456789ab.json.{'0' * 32}",
        record / "manifest.json.0123abcd",
    ]
    finished = [verified / "a-L64-B1.json", record / "manifest.json", verified / "notes.txt"]
    for path in (*drafts, *finished):
        path.write_text("{}", encoding="utf-8")
    assert run(registered).removed == []
    for path in (*drafts, *finished):
        age(path)
    assert sorted(run(registered).removed) == sorted(drafts)
    assert all(path.is_file() for path in finished)


def test_links_are_not_followed_out_of_the_cache(
    registered: Registered, place: Place, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept", encoding="utf-8")
    staged = make_staged(registered.locations, f"{place.slug}~old")
    (staged / "link").symlink_to(outside)
    age(staged)
    link = registered.locations.staging / f"{place.slug}~link"
    link.symlink_to(outside)
    age(link)
    report = run(registered)
    assert report.removed == [staged]
    assert report.kept == {link: "not in the cache"}
    assert (outside / "precious").read_text(encoding="utf-8") == "kept"


def test_a_store_directory_that_is_a_link_is_not_emptied(
    registered: Registered, place: Place, tmp_path: Path, exited_pid: int
) -> None:
    make_pending(place, exited_pid)
    outside = tmp_path / "outside"
    os.rename(place.artifact.parent, outside)
    place.artifact.parent.symlink_to(outside)
    staging = tmp_path / "staging"
    make_staged(registered.locations, f"{place.slug}~old")
    os.rename(registered.locations.staging, staging)
    registered.locations.staging.symlink_to(staging)
    before = tree_hash(outside), tree_hash(staging)
    report = run(registered)
    assert report.removed == []
    assert set(report.kept.values()) == {"not in the cache"}
    assert (tree_hash(outside), tree_hash(staging)) == before
