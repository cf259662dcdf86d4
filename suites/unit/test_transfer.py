"""Export and import: what a Mac's artifact must pass on another, and what stands there after it did not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from artifact_files import Registered, read_json
from transfer_files import Importing

from laya_apple.artifacts.recovery import PENDING_FILE, WITHHELD_FILE, Place
from laya_apple.artifacts.store import load_verified
from laya_apple.artifacts.transfer import export_artifact
from laya_apple.errors import (
    ArtifactError,
    ArtifactIntegrityError,
    ArtifactMissingError,
    ArtifactParityError,
    BackendUnavailableError,
    ComputeUnitMismatchError,
    LayaAppleError,
)
from laya_apple.hashing import file_sha256

pytestmark = pytest.mark.filterwarnings("ignore:sys.executable")


def _files(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): file_sha256(path)
        for path in directory.rglob("*")
        if path.is_file()
    }


def _predictions(importing: Importing) -> list[dict[str, Any]]:
    return [event for event in importing.mac.events("predict") if event["units"] == "CPU_AND_NE"]


# --- export


@pytest.mark.usefixtures("embedded")
def test_an_export_imports_where_nothing_is_registered(registered: Registered, tmp_path: Path) -> None:
    spec, platform = registered.checkpoint.spec, registered.mac.platform
    result = export_artifact(spec, 64, tmp_path / "out", platform=platform)
    name = f"local_tiny-{spec.revision[:12]}-bc1s-masked-L64-B1-Virtual_Mac-macos26-coremltools9.0.tar.gz"
    assert result.archive == tmp_path / "out" / name
    assert result.archive_sha256 == file_sha256(result.archive)
    assert list((tmp_path / "out").iterdir()) == [result.archive]


@pytest.mark.usefixtures("embedded")
def test_only_what_verifies_is_exported(registered: Registered, tmp_path: Path) -> None:
    spec, platform = registered.checkpoint.spec, registered.mac.platform
    registered.load()
    registered.mac.change_file(registered.model / "weights" / "weight.bin")  # the stamp does not notice
    with pytest.raises(ArtifactIntegrityError):
        export_artifact(spec, 64, tmp_path / "out", platform=platform)
    with pytest.raises(ArtifactMissingError):
        export_artifact(spec, 64, tmp_path / "out", platform=platform)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("embedded")
def test_an_export_to_a_full_disk(registered: Registered, tmp_path: Path) -> None:
    out = tmp_path / "out"
    registered.mac.fault("disk_full", under=str(out))
    with pytest.raises(ArtifactError, match=r"could not be written: .*No space left"):
        export_artifact(registered.checkpoint.spec, 64, out, platform=registered.mac.platform)
    assert not out.exists() or list(out.iterdir()) == []


# --- a first install


def test_a_first_install_is_loaded_at_its_registered_path_alone(importing: Importing) -> None:
    result = importing.run()
    assert (result.imported, result.replaced, result.probe, result.notes) == (True, False, None, ())
    assert result.path == importing.directory
    loads = [event["path"] for event in importing.mac.events("load")]
    assert loads == [str(importing.directory / "model.mlmodelc")]
    assert sorted(path.name for path in importing.directory.iterdir()) == ["manifest.json", "model.mlmodelc"]
    assert importing.staged() == []


def test_an_import_runs_no_probe_and_records_what_it_measured(importing: Importing) -> None:
    importing.run()
    record = read_json(importing.directory / "manifest.json")["imported"]
    assert record["archive"] == importing.archive.name
    assert record["archive_sha256"] == file_sha256(importing.archive)
    assert record["probe"] is None
    assert record["parity"]["passed"] is True
    assert record["placement"]["ops"]["cpu"] == 0
    assert {event["units"] for event in importing.mac.events("load")} == {"CPU_AND_NE"}


def test_a_probe_is_run_where_it_is_asked_for(importing: Importing) -> None:
    result = importing.run(probe=True)
    assert result.probe is not None
    assert result.probe["verdict"] == "PLACED"
    assert read_json(importing.directory / "manifest.json")["imported"]["probe"] == result.probe


def test_the_first_load_after_an_import_repeats_no_check(importing: Importing) -> None:
    importing.run()
    plans = len(importing.mac.events("plan"))
    importing.load()
    assert len(importing.mac.events("plan")) == plans
    importing.mac.change_file(importing.directory / "manifest.json", "mtime")
    importing.load()
    assert len(importing.mac.events("plan")) == plans + 1


def test_while_it_is_validated_the_artifact_is_missing_and_not_quarantined(importing: Importing) -> None:
    """The fault stops the import in its validation, as a kill would; the directory is as it was then."""
    importing.run()
    os.rename(importing.directory / "manifest.json", importing.directory / WITHHELD_FILE)
    (importing.directory / PENDING_FILE).write_text(json.dumps({"pid": os.getpid()}), encoding="utf-8")
    before = _files(importing.directory)
    with pytest.raises(ArtifactMissingError) as caught:
        importing.load()
    assert importing.mend in str(caught.value)
    assert _files(importing.directory) == before
    assert not importing.locations.quarantine.exists()


FAULTS: dict[str, tuple[dict[str, Any], type[ArtifactError], str]] = {
    "ops_on_cpu": ({}, ComputeUnitMismatchError, "the compute plan"),
    "plan_without_device": ({}, ComputeUnitMismatchError, "no device for"),
    "load_error": ({}, ArtifactError, "could not load"),
    "prediction_error": ({}, ArtifactError, "the Core ML prediction failed"),
    "wrong_outputs": ({}, ArtifactParityError, "the parity gate failed"),
    "nonfinite_outputs": ({}, ArtifactParityError, "the parity gate failed"),
    "ane_compile_failed": ({"probe": True}, ComputeUnitMismatchError, "FELL_BACK"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_first_install_that_fails_leaves_nothing(importing: Importing, fault: str) -> None:
    options, error, says = FAULTS[fault]
    importing.mac.fault(fault)
    with pytest.raises(error, match=says) as caught:
        importing.run(**options)
    assert type(caught.value) is error
    assert importing.mend in str(caught.value)
    importing.assert_nothing_registered()
    importing.mac.clear()
    assert importing.run().imported


@pytest.mark.parametrize("fault", FAULTS)
def test_a_replace_that_fails_keeps_what_was_there(importing: Importing, fault: str) -> None:
    importing.run()
    before = _files(importing.directory)
    options, error, says = FAULTS[fault]
    importing.mac.fault(fault)
    with pytest.raises(error, match=says):
        importing.run(force=True, **options)
    assert _files(importing.directory) == before
    assert importing.staged() == []
    assert Place.of(importing.locations, importing.checkpoint.spec, 64).previous() == []
    importing.mac.clear()
    importing.load()


def test_a_replace_that_fails_at_the_registered_path_puts_the_old_one_back(importing: Importing) -> None:
    importing.run()
    before = _files(importing.directory)
    # The staged copy loads, is probed and passes; the load after the swap does not.
    importing.mac.fault("load_error", after=1)
    with pytest.raises(ArtifactError, match="could not load"):
        importing.run(force=True)
    loads = [Path(event["path"]).parent for event in importing.mac.events("load")]
    assert loads[-1] != importing.directory
    assert _files(importing.directory) == before
    importing.mac.clear()
    importing.load()


def test_an_evicted_compile_is_seen_by_the_probe_after_the_swap(importing: Importing) -> None:
    importing.run()
    start = len(_predictions(importing))
    importing.run(force=True, probe=True)
    before = _files(importing.directory)
    # The last probe's six predictions run at the CPU's speed.
    importing.mac.fault("compile_evicted", after=len(_predictions(importing)) - start - 6)
    with pytest.raises(ComputeUnitMismatchError, match="FELL_BACK"):
        importing.run(force=True, probe=True)
    assert _files(importing.directory) == before


def test_a_replace_validates_twice_and_probes_twice(importing: Importing) -> None:
    importing.run()
    start = len(importing.mac.events("load"))
    result = importing.run(force=True, probe=True)
    assert (result.imported, result.replaced) == (True, True)
    loads = [(event["units"], event["path"]) for event in importing.mac.events("load")[start:]]
    assert [units for units, _ in loads] == ["CPU_AND_NE", "CPU_ONLY"] * 2
    assert str(importing.locations.staging) in loads[0][1]
    assert loads[2][1] == str(importing.directory / "model.mlmodelc")


@pytest.mark.parametrize("at", range(1, 30, 4))
def test_a_full_disk_during_a_replace(importing: Importing, at: int) -> None:
    importing.run()
    before = _files(importing.directory)
    importing.mac.fault("disk_full", at=at, under=str(importing.locations.root))
    with contextlib.suppress(ArtifactError):
        importing.run(force=True)
        before = _files(importing.directory)  # that step was not needed, or its failure did not matter
    assert _files(importing.directory) == before
    importing.mac.clear()
    importing.load()


def test_a_full_disk_is_named(importing: Importing) -> None:
    importing.mac.fault("disk_full", under=str(importing.locations.staging))
    with pytest.raises(ArtifactError, match="No space left on device") as caught:
        importing.run()
    assert str(importing.locations.root) in str(caught.value)
    assert importing.mend in str(caught.value)
    importing.assert_nothing_registered()


# --- what is there already


def test_a_verified_one_is_found_and_the_archive_left_alone(importing: Importing) -> None:
    importing.run()
    before = _files(importing.directory)
    result = importing.run()
    assert (result.imported, result.replaced) == (False, False)
    assert _files(importing.directory) == before


def test_a_corrupt_one_is_quarantined_and_replaced(importing: Importing) -> None:
    importing.run()
    importing.mac.change_file(importing.directory / "model.mlmodelc" / "model.mil", "size")
    result = importing.run()
    assert result.imported
    assert len(list(importing.locations.quarantine.iterdir())) == 1
    importing.load()


def test_one_of_another_coremltools_is_replaced_without_force(importing: Importing) -> None:
    importing.run()
    path = importing.directory / "manifest.json"
    data = read_json(path)
    data["platform"]["coremltools"] = "8.3.0"
    path.write_text(json.dumps(data), encoding="utf-8")
    result = importing.run()
    assert (result.imported, result.replaced) == (True, True)
    importing.load()


def _left_by_a_dead_process(importing: Importing) -> None:
    importing.run()
    os.rename(importing.directory / "manifest.json", importing.directory / WITHHELD_FILE)
    (importing.directory / PENDING_FILE).write_text('{"pid": 999999999}', encoding="utf-8")


def test_what_a_killed_import_left_is_removed_by_the_next(importing: Importing) -> None:
    _left_by_a_dead_process(importing)
    result = importing.run()
    assert result.imported
    assert result.notes == (f"removed what an unfinished import left at {importing.directory}",)
    importing.load()


def test_what_lies_outside_the_cache_is_never_deleted(importing: Importing, tmp_path: Path) -> None:
    _left_by_a_dead_process(importing)
    elsewhere = tmp_path / "elsewhere"
    os.rename(importing.directory, elsewhere)
    importing.directory.symlink_to(elsewhere)
    before = _files(elsewhere)
    with pytest.raises(ArtifactError, match=r"does not lie in .* so it is not deleted"):
        importing.run()
    assert _files(elsewhere) == before


def test_goldens_that_are_missing_stop_it_before_any_work(importing: Importing) -> None:
    with pytest.raises(LayaAppleError, match=r"none\.json"):
        importing.run(goldens=importing.folder / "none.json")
    importing.assert_nothing_registered()
    assert importing.mac.events("load") == []


def test_without_coremltools(importing: Importing) -> None:
    importing.mac.fault("coremltools_missing")
    with pytest.raises(BackendUnavailableError, match=r"pip install 'laya-apple\[ane\]'"):
        importing.run()


# --- the subprocess that validates


def test_the_validating_subprocess_stands_in_the_canary_s_place(
    registered: Registered, archive: Path
) -> None:
    from laya_apple.artifacts.transfer import import_archive

    mac = registered.mac
    shutil.rmtree(registered.directory)
    result = import_archive(registered.checkpoint, archive, platform=mac.platform, probe=True)
    assert result.probe is not None
    assert {event["pid"] for event in mac.events("load")} != {os.getpid()}
    assert os.getpid() not in {event["pid"] for event in mac.events("load")}
    assert len({event["pid"] for event in mac.events("load")}) == 1
    load_verified(registered.checkpoint.spec, 64, platform=mac.platform)
    assert [event["pid"] for event in mac.events("load")].count(os.getpid()) == 1


def test_a_crash_in_core_ml_kills_only_the_subprocess(registered: Registered, archive: Path) -> None:
    from laya_apple.artifacts.transfer import import_archive

    shutil.rmtree(registered.directory)
    registered.mac.fault("load_kills")
    with pytest.raises(ArtifactError, match="killed its subprocess with SIGKILL") as caught:
        import_archive(registered.checkpoint, archive, platform=registered.mac.platform)
    assert registered.mend in str(caught.value)
    assert not registered.directory.exists()
