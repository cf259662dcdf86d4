"""``load_verified``: every change to an artifact is caught, by the error that says what it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from artifact_files import REMOVED, Registered, read_json

from laya_apple.artifacts.manifest import read_manifest
from laya_apple.artifacts.store import load_verified
from laya_apple.errors import (
    ArtifactIntegrityError,
    ArtifactMissingError,
    ArtifactParityError,
    ArtifactRevisionError,
    BackendUnavailableError,
    ComputeUnitMismatchError,
)
from laya_apple.platform import Platform

OTHER_HASH = "0" * 64

CHANGES: dict[str, tuple[Any, type[Exception] | None]] = {
    "format": ("something-else", ArtifactIntegrityError),
    "format_version": (2, ArtifactRevisionError),
    "status": ("rejected", ArtifactParityError),
    "created_at": ("2020-01-01T00:00:00Z", None),
    "synthetic": (False, ArtifactRevisionError),
    "source/model": ("laya", ArtifactRevisionError),
    "source/repo": ("someone/else", ArtifactRevisionError),
    "source/revision": ("0" * 40, ArtifactRevisionError),
    "source/weights_sha256": (OTHER_HASH, ArtifactRevisionError),
    "artifact/graph": ("bc1s", ArtifactRevisionError),
    "artifact/length": (96, ArtifactRevisionError),
    "artifact/batch": (2, ArtifactRevisionError),
    "artifact/precision": ("float32", ArtifactRevisionError),
    "artifact/max_options": (16, ArtifactRevisionError),
    "artifact/inputs/0/name": ("embedding", ArtifactRevisionError),
    "artifact/inputs/0/shape/1": (33, ArtifactRevisionError),
    "artifact/inputs/1/shape/3": (65, ArtifactRevisionError),
    "artifact/inputs/0/dtype": ("float32", ArtifactRevisionError),
    "artifact/outputs/0/name": ("logit", ArtifactRevisionError),
    "artifact/outputs/1/shape/1": (33, ArtifactRevisionError),
    "artifact/outputs/1/dtype": ("float32", ArtifactRevisionError),
    "placement/compute_units": ("ALL", ComputeUnitMismatchError),
    "placement/ops/ane": (0, ComputeUnitMismatchError),
    "placement/ops/gpu": (1, ComputeUnitMismatchError),
    "placement/ops/cpu": (1, ComputeUnitMismatchError),
    "placement/transitions": (2, ComputeUnitMismatchError),
    "platform/soc": ("Apple M9", ArtifactRevisionError),
    "platform/macos": ("15.5", ArtifactRevisionError),
    "platform/coremltools": ("8.3.0", ArtifactRevisionError),
    "conversion/precision": ("float32", ArtifactRevisionError),
    "conversion/layout_check/passed": (False, ArtifactParityError),
    "placement/probe/verdict": ("FELL_BACK", ComputeUnitMismatchError),
    "parity/passed": (False, ArtifactParityError),
    "parity/weights_sha256": (OTHER_HASH, ArtifactParityError),
    "parity/tolerance": (0.2, ArtifactParityError),
    "parity/cases": (0, ArtifactParityError),
    "integrity/artifact_sha256": (OTHER_HASH, ArtifactIntegrityError),
}
"""Path -> (another value, the error it must raise; None: recorded for people, judged nowhere)."""

RECORDS = (
    "conversion/",
    "placement/probe/",
    "placement/cost_share/",
    "placement/unplaced",
    "platform/macos_build",
    "parity/",
    "timings/",
    "artifact/inputs/",
    "artifact/outputs/",
)
"""Sections whose other values record what happened, or repeat what CHANGES names; their types are checked."""


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, str(index)))
    else:
        yield "/".join(path)


def _keys(path: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in path.split("/"))


def test_every_manifest_field_has_its_case(registered: Registered) -> None:
    leaves = set(_leaves(read_json(registered.manifest_path)))
    assert CHANGES.keys() <= leaves
    unjudged = {leaf for leaf in leaves - CHANGES.keys() if not leaf.startswith(RECORDS)}
    assert unjudged == set()


@pytest.mark.parametrize("path", CHANGES)
def test_a_changed_manifest_value(registered: Registered, path: str) -> None:
    value, error = CHANGES[path]
    registered.edit(_keys(path), value)
    if error is None:
        registered.load()
        return
    with pytest.raises(error) as caught:
        registered.load()
    assert type(caught.value) is error
    assert registered.mend in str(caught.value)
    assert bool(registered.quarantined()) == (error is ArtifactIntegrityError)
    assert registered.directory.exists() == (error is not ArtifactIntegrityError)


def _required(schema: dict[str, Any], whole: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    for key in schema.get("required", ()):
        yield "/".join((*path, key))
        yield from _required(schema["properties"][key], whole, (*path, key))


def _all_required() -> list[str]:
    from importlib.resources import files

    text = files("laya_apple").joinpath("data/artifact-manifest.schema.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    return list(_required(schema, schema))


@pytest.mark.parametrize("path", _all_required())
def test_a_missing_or_mistyped_manifest_key_is_corruption(registered: Registered, path: str) -> None:
    data = read_json(registered.manifest_path)
    for value in (REMOVED, [{"of": "no type any key has"}]):
        registered.directory.mkdir(parents=True, exist_ok=True)
        registered.model.mkdir(exist_ok=True)
        registered.manifest_path.write_text(json.dumps(data), encoding="utf-8")
        registered.edit(_keys(path), value)
        with pytest.raises(ArtifactIntegrityError, match="the manifest is corrupt") as caught:
            registered.load()
        assert registered.mend in str(caught.value)
    assert len(registered.quarantined()) == 2


@pytest.mark.parametrize("contents", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_an_unreadable_manifest_is_quarantined_with_a_note(registered: Registered, contents: bytes) -> None:
    registered.manifest_path.write_bytes(contents)
    with pytest.raises(ArtifactIntegrityError) as caught:
        registered.load()
    [moved] = registered.quarantined()
    assert str(moved) in str(caught.value)
    assert (moved / "model.mlmodelc").is_dir()
    note = (moved / "QUARANTINE.txt").read_text(encoding="utf-8")
    assert registered.mend in note
    assert str(registered.directory) in note
    with pytest.raises(ArtifactMissingError):
        registered.load()


@pytest.mark.parametrize("missing", ["manifest.json", "model.mlmodelc", "."])
def test_a_missing_part_is_a_missing_artifact(registered: Registered, missing: str) -> None:
    target = registered.directory / missing
    target.unlink() if target.is_file() else shutil.rmtree(target)
    with pytest.raises(ArtifactMissingError) as caught:
        registered.load()
    assert registered.mend in str(caught.value)
    assert registered.quarantined() == []


def test_a_withheld_manifest_is_a_missing_artifact_and_never_quarantined(registered: Registered) -> None:
    os.rename(registered.manifest_path, registered.directory / "manifest.pending.json")
    with pytest.raises(ArtifactMissingError):
        registered.load()
    assert registered.quarantined() == []
    assert registered.directory.is_dir()


def _files(model: Path) -> list[str]:
    return sorted(path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file())


def test_every_file_of_the_model_is_covered_by_the_hash(registered: Registered) -> None:
    names = _files(registered.model)
    assert "weights/weight.bin" in names
    assert len(names) > 2
    registered.load()
    for name in names:
        path = registered.model / name
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]) if before else b"x")
        with pytest.raises(ArtifactIntegrityError, match=r"hash to .*; the artifact was moved to ") as caught:
            registered.load()
        assert registered.mend in str(caught.value)
        [moved] = registered.quarantined()
        (moved / "QUARANTINE.txt").unlink()
        os.rename(moved, registered.directory)
        path.write_bytes(before)


@pytest.mark.parametrize("change", ["added", "removed", "renamed"])
def test_the_set_of_files_is_covered_by_the_hash(registered: Registered, change: str) -> None:
    weights = registered.model / "weights" / "weight.bin"
    if change == "added":
        (registered.model / "extra").write_bytes(b"")
    elif change == "removed":
        weights.unlink()
    else:
        os.rename(weights, weights.with_name("weights.bin"))
    with pytest.raises(ArtifactIntegrityError):
        registered.load()
    assert len(registered.quarantined()) == 1


@pytest.mark.parametrize("linked", ["model.mlmodelc/weights/weight.bin", "model.mlmodelc"])
def test_a_link_is_refused_also_under_a_stamp(registered: Registered, tmp_path: Path, linked: str) -> None:
    # What a link leads to can change with no file of the artifact changing.
    registered.load()
    inside = registered.directory / linked
    os.rename(inside, tmp_path / "elsewhere")
    inside.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        ArtifactIntegrityError, match=f"{linked} is a symbolic link; the artifact was moved to "
    ):
        registered.load()
    assert len(registered.quarantined()) == 1
    assert (tmp_path / "elsewhere").exists()


def _plans(registered: Registered) -> int:
    return len(registered.mac.events("plan"))


def test_a_stamp_skips_hash_plan_and_canary_until_something_changes(registered: Registered) -> None:
    mac = registered.mac
    registered.load()
    assert _plans(registered) == 1
    assert len(mac.events("load")) == 2  # the canary's and this process's
    registered.load()
    assert _plans(registered) == 1
    assert len(mac.events("load")) == 3
    registered.load(full=True)
    assert _plans(registered) == 2
    assert len(mac.events("load")) == 5


@pytest.mark.parametrize(
    ("file", "what"), [("manifest.json", "mtime"), ("model.mlmodelc/weights/weight.bin", "inode")]
)
def test_a_touched_file_is_verified_again(registered: Registered, file: str, what: str) -> None:
    registered.load()
    registered.mac.change_file(registered.directory / file, what)
    registered.load()
    assert _plans(registered) == 2


def test_a_grown_file_under_a_stamp_is_caught(registered: Registered) -> None:
    registered.load()
    registered.mac.change_file(registered.model / "weights" / "weight.bin", "size")
    with pytest.raises(ArtifactIntegrityError):
        registered.load()


def test_a_changed_file_that_kept_size_mtime_and_inode_is_caught_by_full(registered: Registered) -> None:
    registered.load()
    registered.mac.change_file(registered.model / "weights" / "weight.bin", "content")
    with pytest.raises(ArtifactIntegrityError):
        registered.load(full=True)


def test_another_macos_build_is_verified_again(registered: Registered) -> None:
    registered.load()
    registered.mac.fault("other_platform", macos_build="VIRTUAL2")
    registered.load()
    assert _plans(registered) == 2


@pytest.mark.parametrize("contents", [b"[]", b'{"key": "other"}'])
def test_an_unreadable_or_foreign_stamp_means_full_verification(
    registered: Registered, contents: bytes
) -> None:
    registered.load()
    registered.locations.stamp(registered.checkpoint.spec, 64).write_bytes(contents)
    registered.load()
    assert _plans(registered) == 2


def test_without_a_writable_stamp_directory_the_load_succeeds(registered: Registered) -> None:
    registered.locations.verified.parent.mkdir(exist_ok=True)
    registered.locations.verified.write_text("a file in the place of the directory", encoding="utf-8")
    registered.load()
    registered.load()
    assert _plans(registered) == 2


@pytest.mark.parametrize("facts", [{"soc": "Apple M9"}, {"macos": "27.0"}], ids=["soc", "macos"])
def test_another_machine(registered: Registered, facts: dict[str, str]) -> None:
    registered.load()
    registered.mac.fault("other_platform", **facts)
    with pytest.raises(ArtifactRevisionError) as caught:
        registered.load()
    assert registered.mend in str(caught.value)
    assert registered.quarantined() == []


def test_another_minor_version_of_macos_is_accepted(registered: Registered) -> None:
    registered.mac.fault("other_platform", macos="26.7.1")
    _, manifest = registered.load()
    assert manifest.section("platform")["macos"] == "26.0"
    assert registered.quarantined() == []


def test_another_coremltools(registered: Registered) -> None:
    registered.load()
    registered.mac.fault("other_coremltools", version="8.3.0")
    with pytest.raises(ArtifactRevisionError, match=r"coremltools is '9.0', not '8.3.0'"):
        registered.load()


def test_without_coremltools(registered: Registered) -> None:
    registered.mac.fault("coremltools_missing")
    with pytest.raises(BackendUnavailableError, match=r"pip install 'laya-apple\[ane\]'"):
        registered.load()


def test_off_apple_silicon(registered: Registered) -> None:
    linux = Platform(soc="x86", macos="", macos_build="", machine="x86_64", memory_bytes=1)
    with pytest.raises(BackendUnavailableError, match="needs an Apple silicon Mac"):
        load_verified(registered.checkpoint.spec, 64, platform=linux)


def test_before_macos_15(registered: Registered) -> None:
    registered.mac.fault("other_platform", macos="14.7.1")
    with pytest.raises(BackendUnavailableError, match=r"needs macOS 15 or newer; this Mac runs 14\.7\.1"):
        registered.load()


def test_a_manifest_that_is_no_file_is_a_missing_artifact(registered: Registered) -> None:
    registered.manifest_path.unlink()
    registered.manifest_path.mkdir()
    with pytest.raises(ArtifactMissingError):
        registered.load()


def test_a_quarantine_that_fails_still_refuses(registered: Registered) -> None:
    registered.locations.quarantine.write_text("a file in the place of the folder", encoding="utf-8")
    registered.manifest_path.write_text("{", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(ArtifactIntegrityError, match="could not be moved away"):
            registered.load()


def test_a_real_platform_refuses_a_synthetic_artifact(registered: Registered) -> None:
    facts = registered.mac.platform
    real = Platform(facts.soc, facts.macos, facts.macos_build, facts.machine, facts.memory_bytes)
    cache = registered.locations.root.parent
    shutil.copytree(registered.locations.artifacts, cache / "artifacts")
    with pytest.raises(ArtifactRevisionError, match="a synthetic artifact on a real platform"):
        load_verified(registered.checkpoint.spec, 64, platform=real)


def test_a_virtual_platform_refuses_a_real_artifact(registered: Registered) -> None:
    registered.edit(("synthetic",), False)
    with pytest.raises(ArtifactRevisionError, match="a real artifact on a synthetic platform"):
        registered.load()


@pytest.mark.parametrize("units", ["ALL", "CPU_AND_GPU", "CPU_ONLY", "cpu_and_ne", ""])
def test_other_compute_units_are_refused(registered: Registered, units: str) -> None:
    with pytest.raises(ComputeUnitMismatchError, match=r"only CPU_AND_NE is allowed"):
        registered.load(compute_units=units)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("ops_on_cpu", "not on the Neural Engine: "),
        ("ops_on_gpu", "not on the Neural Engine: "),
        ("plan_without_device", "no device for "),
    ],
)
def test_a_plan_that_leaves_the_neural_engine(registered: Registered, fault: str, says: str) -> None:
    registered.mac.fault(fault, ops=("gelu",))
    with pytest.raises(ComputeUnitMismatchError) as caught:
        registered.load()
    assert says in str(caught.value)
    assert "gelu" in str(caught.value)
    assert registered.mend in str(caught.value)
    assert registered.quarantined() == []


def test_another_spec_is_missing_not_mistaken(registered: Registered) -> None:
    other = replace(registered.checkpoint.spec, revision="f" * 40)
    with pytest.raises(ArtifactMissingError):
        load_verified(other, 64, platform=registered.mac.platform)


def test_the_manifest_that_is_returned_is_the_file(registered: Registered) -> None:
    model, manifest = registered.load()
    assert manifest == read_manifest(registered.manifest_path)
    assert type(model).__name__ == "CompiledMLModel"
    assert model.compute_unit.name == "CPU_AND_NE"
