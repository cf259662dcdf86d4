"""Building: all or nothing, once, reproducible, and every refusal leaves its record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from artifact_files import Built, Registered, read_json, tiny_checkpoint

from laya_apple.artifacts.build import BuildResult, build_artifact, goldens_path
from laya_apple.artifacts.locations import Locations, build_command
from laya_apple.artifacts.manifest import read_manifest
from laya_apple.artifacts.store import load_verified
from laya_apple.checkpoint import Checkpoint, open_checkpoint
from laya_apple.errors import (
    ArtifactError,
    ArtifactMissingError,
    ArtifactParityError,
    ComputeUnitMismatchError,
    LayaAppleError,
)
from laya_apple.hashing import tree_hash
from laya_apple.registry import MODELS
from pytest_laya.virtual_mac.control import VirtualMac


def _build(checkpoint: Checkpoint, mac: VirtualMac, **options: Any) -> BuildResult:
    return build_artifact(checkpoint, 64, platform=mac.platform, **options)


def _left(locations: Locations) -> list[str]:
    """Everything in staging, as relative names."""
    return sorted(path.name for path in locations.staging.glob("*"))


BUILD = """
    import sys
    from laya_apple.artifacts.build import build_artifact
    from laya_apple.checkpoint import open_checkpoint
    from laya_apple.platform import current_platform
    platform = current_platform()
    force = "force" in sys.argv[2:]
    print(build_artifact(open_checkpoint(sys.argv[1]), 64, platform=platform, force=force).built)
"""


def _child(checkpoint: Checkpoint, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(BUILD), str(checkpoint.path), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_registered_artifact_holds_manifest_and_model_and_nothing_else(built: Built) -> None:
    directory = built.result.path
    assert sorted(path.name for path in directory.iterdir()) == ["manifest.json", "model.mlmodelc"]
    assert built.result.built
    manifest = read_manifest(directory / "manifest.json")
    assert manifest == built.result.manifest
    data = read_json(directory / "manifest.json")
    assert data["status"] == "validated"
    assert data["synthetic"] is True
    assert data["integrity"]["artifact_sha256"] == tree_hash(directory / "model.mlmodelc")
    assert data["conversion"]["layout_check"]["passed"] is True
    assert data["parity"]["passed"] is True
    assert data["parity"]["rows"] == 3
    assert data["parity"]["rows_left_out"] == 1
    assert data["placement"]["ops"] == {
        "ane": data["conversion"]["program"]["operations"],
        "gpu": 0,
        "cpu": 0,
    }
    assert data["placement"]["probe"]["verdict"] == "PLACED"
    assert data["placement"]["transitions"] == 0
    assert set(data["timings"]) == {
        f"{step}_ms"
        for step in ("reference", "graph", "layout", "convert", "compile", "plan", "load", "parity", "probe")
    }
    root = built.cache / "virtual-mac" / "artifacts"
    revision = built.checkpoint.spec.revision[:12]
    assert directory == root / "local_tiny" / revision / "bc1s-masked-L64-B1"


def test_a_valid_artifact_is_found_not_built(registered: Registered) -> None:
    before = registered.manifest_path.stat()
    lines: list[str] = []
    result = _build(registered.checkpoint, registered.mac, progress=lines.append)
    assert not result.built
    assert lines == ["local:tiny L64: already built and valid"]
    assert registered.manifest_path.stat().st_ino == before.st_ino
    assert registered.mac.events("compile") == []


def test_force_builds_the_same_program_again(registered: Registered) -> None:
    before = read_json(registered.manifest_path)
    inode = registered.manifest_path.stat().st_ino
    assert _build(registered.checkpoint, registered.mac, force=True).built
    after = read_json(registered.manifest_path)
    assert registered.manifest_path.stat().st_ino != inode
    assert after["conversion"]["program"] == before["conversion"]["program"]
    assert _left(registered.locations) == []


def test_an_artifact_that_does_not_verify_is_replaced(registered: Registered) -> None:
    registered.edit(("source", "weights_sha256"), "0" * 64)
    assert _build(registered.checkpoint, registered.mac).built
    registered.load()


def test_a_parity_failure_is_recorded_and_registers_nothing(tmp_path: Path, mac: VirtualMac) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    goldens = read_json(checkpoint.path / "goldens.json")
    row = goldens["cases"][0]["rows"][0]
    row["probabilities"] = list(reversed(row["probabilities"]))
    (tmp_path / "wrong.json").write_text(json.dumps(goldens), encoding="utf-8")
    with pytest.raises(ArtifactParityError, match="1 decision mismatches") as caught:
        _build(checkpoint, mac, goldens=tmp_path / "wrong.json")
    locations = Locations.of(mac.platform)
    record = locations.rejected(checkpoint.spec, 64)
    assert str(record) in str(caught.value)
    data = read_json(record)
    assert data["status"] == "rejected"
    assert data["parity"]["passed"] is False
    assert "parity gate failed" in data["rejection"]
    assert not locations.artifact(checkpoint.spec, 64).exists()
    assert _left(locations) == []
    with pytest.raises(ArtifactMissingError, match="the last build was rejected"):
        load_verified(checkpoint.spec, 64, platform=mac.platform)
    assert _build(checkpoint, mac).built
    assert not record.exists()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("ops_on_cpu", "the compute plan: .*not on the Neural Engine"),
        ("ops_on_gpu", "the compute plan: .*not on the Neural Engine"),
        ("plan_without_device", "the compute plan: no device for"),
        ("ane_compile_failed", r"the placement probe \(FELL_BACK\)"),
    ],
)
def test_a_placement_failure_is_recorded_and_registers_nothing(
    built: Built, mac: VirtualMac, fault: str, says: str
) -> None:
    mac.fault(fault)
    with pytest.raises(ComputeUnitMismatchError, match=says):
        _build(built.checkpoint, mac)
    locations = Locations.of(mac.platform)
    assert read_json(locations.rejected(built.checkpoint.spec, 64))["status"] == "rejected"
    assert not locations.artifact(built.checkpoint.spec, 64).exists()
    assert _left(locations) == []


def test_a_failed_rebuild_keeps_the_old_artifact(registered: Registered) -> None:
    registered.mac.fault("ops_on_cpu")
    with pytest.raises(ComputeUnitMismatchError):
        _build(registered.checkpoint, registered.mac, force=True)
    registered.mac.clear()
    registered.load()


@pytest.mark.parametrize("fault", ["load_kills", "wrong_outputs", "nonfinite_outputs", "prediction_error"])
def test_a_model_that_cannot_be_trusted_is_not_registered(built: Built, mac: VirtualMac, fault: str) -> None:
    mac.fault(fault)
    with pytest.raises(ArtifactError):
        _build(built.checkpoint, mac)
    locations = Locations.of(mac.platform)
    assert not locations.artifact(built.checkpoint.spec, 64).exists()
    assert _left(locations) == []


def test_without_goldens_nothing_is_converted(tmp_path: Path, mac: VirtualMac) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    (checkpoint.path / "goldens.json").unlink()
    with pytest.raises(LayaAppleError, match=r"no goldens at .*goldens.json; make it with"):
        _build(checkpoint, mac)
    assert mac.events("compile") == []


def test_goldens_of_other_weights_are_refused(tmp_path: Path, mac: VirtualMac) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    other = tiny_checkpoint(tmp_path / "other", seed=5)
    with pytest.raises(LayaAppleError, match="were made from weights"):
        _build(checkpoint, mac, goldens=other.path / "goldens.json")


def test_where_goldens_are_expected(built: Built) -> None:
    assert goldens_path(built.checkpoint.spec) == built.checkpoint.path / "goldens.json"
    laya = next(spec for spec in MODELS if spec.name == "laya")
    assert goldens_path(laya).as_posix().endswith("laya_apple/data/goldens/laya.json")


def test_a_full_disk_registers_nothing(built: Built, mac: VirtualMac) -> None:
    locations = Locations.of(mac.platform)
    mac.fault("disk_full", at=4, under=str(locations.staging))
    with pytest.raises(ArtifactError) as caught:
        _build(built.checkpoint, mac)
    assert "No space left" in str(caught.value)
    assert not locations.artifact(built.checkpoint.spec, 64).exists()
    mac.clear()
    assert _left(locations) == []
    assert _build(built.checkpoint, mac).built


def test_two_processes_build_once(built: Built, mac: VirtualMac) -> None:
    children = [_child(built.checkpoint), _child(built.checkpoint)]
    outputs = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    assert sorted(out.strip() for out, _ in outputs) == ["False", "True"]
    assert len(mac.events("compile")) == 1


def _steps(built: Built, mac: VirtualMac, *arguments: str) -> list[dict[str, Any]]:
    mac.fault("steps_logged", under=str(Locations.of(mac.platform).artifacts))
    child = _child(built.checkpoint, *arguments)
    assert child.wait(120) == 0
    mac.clear("steps_logged")
    return mac.events("step")


def test_sigkill_during_a_build_registers_nothing_and_the_next_build_succeeds(
    built: Built, mac: VirtualMac
) -> None:
    locations = Locations.of(mac.platform)
    spec = built.checkpoint.spec
    for at in (10, 5):  # the manifest; a leftover of the first
        mac.fault("killed_at_step", at=at, under=str(locations.artifacts))
        child = _child(built.checkpoint)
        assert child.wait(120) == -9
        mac.clear()
        assert not locations.artifact(spec, 64).exists()
        with pytest.raises(ArtifactMissingError):
            load_verified(spec, 64, platform=mac.platform)
    assert _build(built.checkpoint, mac).built
    assert _left(locations) == []
    load_verified(spec, 64, platform=mac.platform)


@pytest.mark.laya_slow
@pytest.mark.parametrize("force", [False, True], ids=["first", "replace"])
def test_sigkill_at_every_step_leaves_the_old_artifact_the_new_one_or_none(
    built: Built, mac: VirtualMac, force: bool
) -> None:
    locations = Locations.of(mac.platform)
    spec = built.checkpoint.spec
    arguments = ["force"] if force else []
    if force:
        _build(built.checkpoint, mac)
    steps = _steps(built, mac, *arguments)
    assert len(steps) > 15
    for at in range(1, len(steps) + 1):
        if not force:
            for path in sorted(locations.artifacts.rglob("manifest.json")):
                path.unlink()
        mac.fault("killed_at_step", at=at, under=str(locations.artifacts))
        child = _child(built.checkpoint, *arguments)
        code = child.wait(120)
        mac.clear()
        assert code in (0, -9)
        try:
            load_verified(spec, 64, platform=mac.platform)
        except ArtifactMissingError:
            assert not (locations.artifact(spec, 64) / "manifest.json").exists()
    assert _build(built.checkpoint, mac, force=True).built
    assert _left(locations) == []


@pytest.mark.laya_slow
def test_sigkill_by_the_clock(built: Built, mac: VirtualMac) -> None:
    locations = Locations.of(mac.platform)
    child = _child(built.checkpoint)
    deadline = time.monotonic() + 60
    while not list(locations.staging.glob("*/model.mlpackage")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, 9)
    child.communicate()
    assert not locations.artifact(built.checkpoint.spec, 64).exists()
    assert len(_left(locations)) == 1
    assert _build(built.checkpoint, mac).built
    assert _left(locations) == []


@pytest.mark.parametrize("name", ["biases", "scripts", "two-heads", "window16"])
def test_fixture_checkpoints_pass_the_gate_against_upstream(mac: VirtualMac, name: str) -> None:
    fixtures = Path(__file__).parents[2] / "fixtures"
    checkpoint = open_checkpoint(fixtures / "checkpoints" / name)
    result = build_artifact(
        checkpoint, 128, platform=mac.platform, goldens=fixtures / "goldens" / f"{name}.json"
    )
    parity = result.manifest.section("parity")
    assert parity["rows"] >= 40
    assert parity["dtype"] == "float16"
    assert parity["decision_mismatches"]["count"] == 0
    assert "torch" in parity["reference"]


def test_the_build_command_names_a_local_checkpoint_by_its_path(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "my model")
    assert build_command(checkpoint.spec, 96) == (
        f"laya-apple artifacts build --model '{tmp_path}/my model' --bucket 96"
    )
