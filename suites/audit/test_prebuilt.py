"""Row 23: a fetched archive passes its hash, the import's checks and the probe, or nothing is registered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from audit_case import CLEAR, MODEL, SHORT, Home, edit_json, without_canary

from laya_apple import (
    ArtifactIntegrityError,
    ArtifactMissingError,
    ArtifactParityError,
    BackendUnavailableError,
    ComputeUnitMismatchError,
)
from laya_apple.artifacts.fetch import REPO_VARIABLE, FetchResult, fetch_artifact, open_repository, repository
from laya_apple.artifacts.index import make_index
from laya_apple.artifacts.transfer import export_artifact
from laya_apple.checkpoint import open_checkpoint
from laya_apple.cli import main


@pytest.fixture
def hub(home: Home, tmp_path: Path) -> Path:
    """A directory with the archive of the 64 bucket and its index; nothing is registered for it any more."""
    folder = tmp_path / "hub"
    export_artifact(home.spec, 64, folder, platform=home.mac.platform)
    make_index(folder)
    home.remove(64)
    return folder


def _fetch(home: Home, hub: Path, **options: object) -> FetchResult:
    with without_canary():
        return fetch_artifact(
            open_checkpoint(MODEL),
            64,
            open_repository(repository(str(hub))),
            platform=home.mac.platform,
            **options,
        )


def _nothing_registered(home: Home) -> None:
    assert not home.artifact(64).exists()
    assert list(home.locations.staging.glob("*")) == []
    with pytest.raises(ArtifactMissingError):
        home.load("ane").predict(SHORT, CLEAR)


@pytest.mark.laya_audit(23)
def test_a_fetched_artifact_is_probed_at_its_registered_path_and_serves(home: Home, hub):
    probe = _fetch(home, hub).imported.probe
    assert probe is not None
    assert probe["verdict"] == "PLACED"
    probed = [one["path"] for one in home.mac.events("load") if one["units"] == "CPU_ONLY"]
    assert probed == [str(home.model(64))]
    assert home.load("ane").predict(SHORT, CLEAR).runtime.buckets == (64,)


@pytest.mark.laya_audit(23)
def test_an_archive_of_another_hash_is_refused(home: Home, hub):
    (archive,) = hub.glob("*.tar.gz")
    home.mac.change_file(archive)
    with pytest.raises(ArtifactIntegrityError, match=r"hashes to .* the index says .*nothing was registered"):
        _fetch(home, hub)
    _nothing_registered(home)


@pytest.mark.laya_audit(23)
def test_an_index_that_names_another_artifact_is_refused(home: Home, hub):
    edit_json(hub / "index.json", ("artifacts", 0, "artifact_sha256"), "0" * 64)
    with pytest.raises(ArtifactIntegrityError, match="nothing was registered"):
        _fetch(home, hub)
    _nothing_registered(home)


@pytest.mark.laya_audit(23)
@pytest.mark.parametrize(
    ("fault", "arguments", "kind", "why"),
    [
        ("ane_compile_failed", {}, ComputeUnitMismatchError, "the placement probe .FELL_BACK"),
        ("ops_on_cpu", {}, ComputeUnitMismatchError, "the compute plan"),
        ("wrong_outputs", {}, ArtifactParityError, "the parity gate failed"),
    ],
    ids=["probe", "plan", "parity"],
)
def test_what_fails_on_this_machine_is_not_registered(home: Home, hub, fault, arguments, kind, why):
    home.mac.profile({"gpu_ms": {"1": {"64": 0.1}}, "ane_ms": {"64": 10.0}})
    home.mac.fault(fault, bucket=64, **arguments)
    with pytest.raises(kind, match=why):
        _fetch(home, hub)
    home.mac.clear()
    _nothing_registered(home)


@pytest.mark.laya_audit(23)
def test_a_replace_that_fails_keeps_the_registered_artifact(home: Home, hub):
    _fetch(home, hub)
    before = json.loads((home.artifact(64) / "manifest.json").read_text(encoding="utf-8"))
    home.mac.fault("wrong_outputs", bucket=64)
    with pytest.raises(ArtifactParityError):
        _fetch(home, hub, force=True)
    home.mac.clear()
    after = json.loads((home.artifact(64) / "manifest.json").read_text(encoding="utf-8"))
    assert after == before
    assert home.load("ane").predict(SHORT, CLEAR).runtime.buckets == (64,)


@pytest.mark.laya_audit(23)
@pytest.mark.parametrize("field", ["soc", "coremltools"])
def test_an_archive_of_another_platform_is_never_selected(home: Home, hub, field):
    edit_json(hub / "index.json", ("artifacts", 0, "platform", field), "another")
    with pytest.raises(ArtifactMissingError, match="artifacts build --model laya-mini --bucket 64"):
        _fetch(home, hub)
    _nothing_registered(home)


@pytest.mark.laya_audit(23)
def test_without_a_repository_nothing_is_guessed(home: Home, monkeypatch, capsys):
    monkeypatch.delenv(REPO_VARIABLE, raising=False)
    with pytest.raises(BackendUnavailableError, match="no repository of prebuilt artifacts is named"):
        repository(None)
    assert main(["artifacts", "fetch", "--model", MODEL]) == 2
    assert "no repository of prebuilt artifacts is named" in capsys.readouterr().err
