"""Rows 24 to 26, 28 and 29: stand-ins, default devices, namesakes, crashes at load, foreign outputs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from audit_case import (
    CLEAR,
    HOSTS,
    INLINE_AND_THREAD,
    LONG,
    SHORT,
    Home,
    edit_json,
    link_tree,
    without_canary,
)

from laya_apple import (
    ArtifactError,
    ArtifactMissingError,
    ArtifactRevisionError,
    BackendUnavailableError,
    LayaAppleError,
)
from laya_apple.artifacts.build import build_artifact, goldens_path
from laya_apple.artifacts.locations import Locations
from laya_apple.artifacts.store import load_verified
from laya_apple.checkpoint import open_checkpoint
from laya_apple.cli import main
from laya_apple.platform import Platform
from laya_apple.registry import resolve
from laya_apple.routing.profiles import coremltools_version, load_profile, profile_path

# Row 24


def _real(home: Home) -> Platform:
    """The virtual Mac's facts, said of a real machine."""
    facts = home.mac.platform
    return Platform(facts.soc, facts.macos, facts.macos_build, facts.machine, facts.memory_bytes)


@pytest.mark.laya_audit(24)
@pytest.mark.parametrize("device", ["cpu", "gpu", "ane"])
@pytest.mark.parametrize("execution", ["inline", "workers"])
def test_everything_from_the_virtual_mac_says_so(home: Home, device, execution):
    laya = home.load(device, execution=execution)
    assert laya.predict(SHORT, CLEAR).runtime.synthetic is True
    assert laya.predict(SHORT, {}).runtime.synthetic is True
    assert laya.info()["synthetic"] is True


@pytest.mark.laya_audit(24)
def test_the_command_line_says_so(home: Home, capsys):
    command = ["predict", "--model", "laya-mini", "--device", "gpu", SHORT, "--noul", "Is platform A clear?"]
    assert main(command) == 0
    assert capsys.readouterr().out.endswith(", synthetic: a virtual machine\n")
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runtime"]["synthetic"] is True


@pytest.mark.laya_audit(24)
def test_a_real_machine_refuses_a_synthetic_artifact(home: Home):
    real = _real(home)
    with pytest.raises(ArtifactMissingError):  # its cache is another one
        load_verified(home.spec, 64, platform=real)
    link_tree(home.artifact(64), Locations.of(real).artifact(home.spec, 64))
    with pytest.raises(ArtifactRevisionError, match="it is a synthetic artifact on a real platform"):
        load_verified(home.spec, 64, platform=real)


@pytest.mark.laya_audit(24)
def test_the_virtual_mac_refuses_a_real_artifact(home: Home):
    assert json.loads((home.artifact(64) / "manifest.json").read_text(encoding="utf-8"))["synthetic"] is True
    home.edit(("synthetic",), False)
    with pytest.raises(ArtifactRevisionError, match="it is a real artifact on a synthetic platform"):
        home.load("ane")


@pytest.mark.laya_audit(24)
def test_a_real_machine_ignores_a_synthetic_profile(home: Home):
    real, path = _real(home), home.calibrate(64)
    assert json.loads(path.read_text(encoding="utf-8"))["synthetic"] is True
    place = profile_path(real, coremltools_version())
    assert place != path
    place.parent.mkdir(parents=True)
    shutil.copy(path, place)
    with pytest.warns(RuntimeWarning, match="a virtual machine's profile never counts on a real one"):
        assert load_profile(real, home.spec, coremltools_version()) is None


# Row 25


@pytest.mark.laya_audit(25)
@pytest.mark.parametrize("execution", ["inline", "workers"])
def test_a_gpu_that_mlx_lacks_is_never_its_default_device_instead(home: Home, monkeypatch, execution):
    import mlx.core as mx

    if mx.is_available(mx.Device(mx.gpu)):
        pytest.skip("MLX has a GPU here, so a missing one cannot be had")
    assert mx.default_device() == mx.Device(mx.cpu)
    monkeypatch.setenv("LAYA_APPLE_PLATFORM", "audit_gpu_claimed:platform")
    with pytest.raises(LayaAppleError, match="Cannot make gpu stream without gpu backend"):
        home.load("gpu", execution=execution).predict(SHORT, CLEAR)


@pytest.mark.laya_audit(25)
@pytest.mark.parametrize("device", ["gpu", "auto"])
def test_without_a_gpu_the_cpu_is_named_and_not_taken(home: Home, monkeypatch, device):
    monkeypatch.setenv("LAYA_APPLE_PLATFORM", "audit_gpu_claimed:without_gpu")
    with pytest.raises(BackendUnavailableError, match='MLX has no GPU on this machine; device="cpu" runs'):
        home.load(device)


@pytest.mark.laya_audit(25)
def test_the_process_s_default_is_neither_used_nor_changed(home: Home):
    import mlx.core as mx

    laya = home.load("gpu")
    expected = laya.predict(SHORT, CLEAR).answers
    device, stream = mx.default_device(), mx.default_stream(mx.default_device())
    with mx.stream(mx.new_stream(mx.cpu)):
        assert laya.predict(SHORT, CLEAR).answers == expected
        assert home.load("gpu").predict(SHORT, CLEAR).answers == expected
    assert (mx.default_device(), mx.default_stream(device)) == (device, stream)


# Row 26


@pytest.fixture
def namesake(home: Home, tmp_path: Path) -> Path:
    """A checkpoint directory named laya-mini whose weights differ in their last byte."""
    folder = tmp_path / "elsewhere" / "laya-mini"
    shutil.copytree(home.spec.path, folder)
    home.mac.change_file(folder / "model.safetensors")
    return folder


@pytest.mark.laya_audit(26)
def test_goldens_of_a_namesake_are_refused(home: Home, namesake):
    shutil.copy(goldens_path(home.spec), namesake / "goldens.json")
    with (
        without_canary(),
        pytest.raises(
            LayaAppleError,
            match=f"goldens of laya-mini were made from weights {home.spec.weights_sha256[:12]}",
        ),
    ):
        build_artifact(open_checkpoint(namesake), 64, platform=home.mac.platform)
    assert not Locations.of(home.mac.platform).artifact(resolve(namesake), 64).exists()


@pytest.mark.laya_audit(26)
def test_a_profile_of_a_namesake_is_ignored(home: Home, namesake):
    home.calibrate(64)
    edit = json.loads(home.profile_path.read_text(encoding="utf-8"))
    edit["models"]["local:laya-mini"] = edit["models"]["laya-mini"]
    home.profile_path.write_text(json.dumps(edit), encoding="utf-8")
    with pytest.warns(RuntimeWarning, match="stale: it was measured for another revision"):
        laya = home.load("auto", model=namesake)
    assert laya.predict(SHORT, CLEAR).runtime.routing_reason == "platform_not_validated"


@pytest.mark.laya_audit(26)
def test_a_profile_of_other_weights_is_ignored(home: Home):
    edit_json(home.calibrate(64), ("models", "laya-mini", "weights_sha256"), "0" * 64)
    with pytest.warns(RuntimeWarning, match="stale: it was measured for another weights_sha256"):
        laya = home.load("auto")
    assert laya.predict(SHORT, CLEAR).runtime.routing_reason == "platform_not_validated"


@pytest.mark.laya_audit(26)
def test_an_artifact_of_a_namesake_is_refused(home: Home, namesake):
    spec = resolve(namesake)
    with pytest.raises(ArtifactMissingError):
        home.load("ane", model=namesake)
    place = home.locations.artifact(spec, 64)
    shutil.copytree(home.artifact(64), place)
    for field, value in (("model", spec.name), ("revision", spec.revision)):
        edit_json(place / "manifest.json", ("source", field), value)
    with pytest.raises(ArtifactRevisionError, match=f"weights_sha256 is '{home.spec.weights_sha256[:12]}"):
        home.load("ane", model=namesake)


@pytest.mark.laya_audit(26)
def test_an_artifact_of_another_revision_is_refused(home: Home):
    home.edit(("source", "revision"), "0" * 40)
    with pytest.raises(ArtifactRevisionError, match=f"revision is '{'0' * 40}', not "):
        home.load("ane")


# Row 28


@pytest.mark.laya_audit(28)
@pytest.mark.parametrize("arguments", INLINE_AND_THREAD)
def test_a_model_that_kills_its_process_at_load_kills_the_canary_alone(home: Home, arguments):
    home.own(64)
    home.mac.fault("load_kills", bucket=64)
    with pytest.raises(ArtifactError, match=r"L64: loading .* killed its subprocess with SIGKILL"):
        home.load("ane", **arguments)
    died = [one["pid"] for one in home.mac.events("fault")]
    assert len(died) == 1
    assert os.getpid() not in died


@pytest.mark.laya_audit(28)
def test_a_model_that_kills_its_process_at_load_is_dropped_under_auto(home: Home):
    home.calibrate(64)
    home.own(64)
    home.mac.fault("load_kills", bucket=64)
    with pytest.warns(RuntimeWarning, match="L64 was dropped .*killed its subprocess with SIGKILL"):
        laya = home.load("auto")
    assert laya.predict(SHORT, CLEAR).runtime.routing_reason == "ane_artifact_unavailable"


# Row 29

CHANGES = {
    "shape": ({"shape": [1, 1, 1, 16]}, r"returned logits as float32 \[1, 1, 1, 16\], the manifest declares"),
    "dtype": ({"dtype": "float64"}, "returned logits as float64"),
    "name": ({"name": "other"}, r"returned outputs \['cls', 'other'\], the manifest declares"),
}


@pytest.mark.laya_audit(29)
@pytest.mark.parametrize("arguments", HOSTS)
@pytest.mark.parametrize("what", CHANGES)
def test_an_output_that_is_not_the_manifest_s_is_no_answer(home: Home, arguments, what):
    home.calibrate(64)
    home.remove(96)
    laya = home.load("ane", **arguments)
    change, why = CHANGES[what]
    home.mac.fault("output_changed", **change)
    with pytest.raises(ArtifactError, match=why):
        laya.predict(SHORT, CLEAR)
    assert home.gpu_forwards() == 0
    home.mac.clear()
    assert laya.predict(SHORT, CLEAR).runtime.device == "ane"


@pytest.mark.laya_audit(29)
def test_an_output_that_is_not_the_manifest_s_is_found_at_load(home: Home):
    home.calibrate(64)
    home.mac.fault("output_changed", bucket=64, shape=[1, 1, 1, 16])
    with pytest.raises(ArtifactError, match="returned logits as float32"):
        home.load("ane")
    with pytest.warns(RuntimeWarning, match="L64 was dropped .*returned logits as float32"):
        laya = home.load("auto")
    assert laya.predict(SHORT, CLEAR).runtime.routing_reason == "ane_artifact_unavailable"
    assert laya.predict(LONG, CLEAR).runtime.device == "gpu"
