"""Fetching from a local directory that stands for the hub, and from a hub on the loopback interface."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_server import FakeHub
from transfer_files import Importing

from laya_apple.artifacts.fetch import (
    REPO_VARIABLE,
    FetchResult,
    fetch_artifact,
    open_repository,
    repository,
)
from laya_apple.artifacts.index import make_index
from laya_apple.errors import (
    ArtifactIntegrityError,
    ArtifactMissingError,
    BackendUnavailableError,
    ComputeUnitMismatchError,
)

pytestmark = pytest.mark.filterwarnings("ignore:sys.executable")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whoever connects to anything fails, and is recorded."""
    asked: list[Any] = []

    def refuse(*address: Any, **more: Any) -> Any:
        asked.append(address)
        raise OSError("the network is forbidden in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv(REPO_VARIABLE, raising=False)
    return asked


@pytest.fixture
def hub(importing: Importing) -> Path:
    """A directory with the archive and its index."""
    folder = importing.folder / "hub"
    (folder / "artifacts").mkdir(parents=True)
    shutil.copy(importing.archive, folder / "artifacts")
    make_index(folder)
    return folder


def fetch(importing: Importing, hub: Path, bucket: int = 64, **options: Any) -> FetchResult:
    opened = open_repository(repository(str(hub)))
    return fetch_artifact(importing.checkpoint, bucket, opened, platform=importing.mac.platform, **options)


def edit_index(hub: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((hub / "index.json").read_text(encoding="utf-8"))
    change(document["artifacts"][0])
    (hub / "index.json").write_text(json.dumps(document), encoding="utf-8")


def test_a_fetched_artifact_is_probed_at_its_registered_path(
    importing: Importing, hub: Path, no_network: list[Any]
) -> None:
    result = fetch(importing, hub)
    assert result.entry is not None
    assert result.entry.path == f"artifacts/{importing.archive.name}"
    assert result.imported.imported
    assert result.imported.probe is not None
    assert result.imported.probe["verdict"] == "PLACED"
    cpu = [event["path"] for event in importing.mac.events("load") if event["units"] == "CPU_ONLY"]
    assert cpu == [str(importing.directory / "model.mlmodelc")]
    importing.load()
    assert no_network == []


def test_a_registered_one_is_skipped_only_if_it_verifies(importing: Importing, hub: Path) -> None:
    fetch(importing, hub)
    again = fetch(importing, hub)
    assert (again.entry, again.imported.imported, again.imported.probe) == (None, False, None)
    importing.mac.change_file(importing.directory / "model.mlmodelc" / "model.mil", "size")
    third = fetch(importing, hub)
    assert third.imported.imported
    assert third.entry is not None


def test_nothing_is_read_from_the_repository_for_a_registered_one(importing: Importing, hub: Path) -> None:
    fetch(importing, hub)

    def opened() -> Any:
        raise AssertionError("the repository was opened")

    result = fetch_artifact(importing.checkpoint, 64, opened, platform=importing.mac.platform)
    assert result.entry is None


def test_force_replaces_a_registered_one(importing: Importing, hub: Path) -> None:
    fetch(importing, hub)
    again = fetch(importing, hub, force=True)
    assert (again.imported.imported, again.imported.replaced) == (True, True)
    assert again.imported.probe is not None


def test_a_model_that_fell_back_is_not_registered(importing: Importing, hub: Path) -> None:
    importing.mac.fault("ane_compile_failed")
    with pytest.raises(ComputeUnitMismatchError, match="FELL_BACK"):
        fetch(importing, hub)
    importing.assert_nothing_registered()


# --- each refusal is its own


def test_another_hash(importing: Importing, hub: Path) -> None:
    [archive] = hub.glob("artifacts/*")
    importing.mac.change_file(archive)
    with pytest.raises(ArtifactIntegrityError) as caught:
        fetch(importing, hub)
    assert re.search(r"hashes to [0-9a-f]{12}…, the index says [0-9a-f]{12}…; nothing was", str(caught.value))
    importing.assert_nothing_registered()


def test_another_size(importing: Importing, hub: Path) -> None:
    size = importing.archive.stat().st_size
    edit_index(hub, lambda entry: entry.update(bytes=size + 1))
    with pytest.raises(ArtifactIntegrityError, match=f"has {size} bytes, the index says {size + 1}; nothing"):
        fetch(importing, hub)


def test_an_index_that_says_another_artifact(importing: Importing, hub: Path) -> None:
    edit_index(hub, lambda entry: entry.update(artifact_sha256="0" * 64))
    with pytest.raises(ArtifactIntegrityError, match=r"the artifact hashes to .*the index says 000000000000"):
        fetch(importing, hub)
    importing.assert_nothing_registered()


def test_a_missing_bucket(importing: Importing, hub: Path) -> None:
    with pytest.raises(ArtifactMissingError) as caught:
        fetch(importing, hub, bucket=96)
    spec = importing.checkpoint.spec
    assert str(caught.value) == (
        f"local:tiny L96: {hub} has no artifact of revision {spec.revision[:12]}; build it with: "
        f"laya-apple artifacts build --model {spec.path} --bucket 96"
    )


@pytest.mark.parametrize(
    ("platform", "there"),
    [
        ({"soc": "Apple M9"}, "Apple M9, macOS 26, coremltools 9.0"),
        ({"macos": "27.1"}, "Virtual Mac, macOS 27, coremltools 9.0"),
        ({"coremltools": "8.3.0"}, "Virtual Mac, macOS 26, coremltools 8.3.0"),
    ],
)
def test_another_platform_is_never_selected(
    importing: Importing, hub: Path, platform: dict[str, str], there: str
) -> None:
    edit_index(hub, lambda entry: entry["platform"].update(platform))
    with pytest.raises(ArtifactMissingError) as caught:
        fetch(importing, hub)
    assert str(caught.value) == (
        f"local:tiny L64: {hub} has no artifact for Virtual Mac, macOS 26, coremltools 9.0, "
        f"only for {there}; build it with: {importing.mend}"
    )


def test_a_real_mac_s_artifact_is_not_selected_on_a_virtual_one(importing: Importing, hub: Path) -> None:
    edit_index(hub, lambda entry: entry.update(synthetic=False))
    with pytest.raises(ArtifactMissingError, match="has no artifact of revision"):
        fetch(importing, hub)


def test_an_index_that_lies_about_the_platform_is_caught(importing: Importing, hub: Path) -> None:
    crafted = importing.with_manifest(platform__soc="Apple M9")
    [archive] = hub.glob("artifacts/*")
    shutil.copy(crafted, archive)
    make_index(hub)
    edit_index(hub, lambda entry: entry["platform"].update(soc="Virtual Mac"))
    with pytest.raises(Exception, match="soc is 'Apple M9', not 'Virtual Mac'"):
        fetch(importing, hub)
    importing.assert_nothing_registered()


def test_no_index(importing: Importing, hub: Path) -> None:
    (hub / "index.json").unlink()
    with pytest.raises(ArtifactMissingError, match=r"holds no index\.json"):
        fetch(importing, hub)


def test_an_archive_that_is_not_there(importing: Importing, hub: Path) -> None:
    shutil.rmtree(hub / "artifacts")
    with pytest.raises(ArtifactMissingError, match=r"holds no artifacts/local_tiny-.*\.tar\.gz"):
        fetch(importing, hub)


# --- which repository


def test_none_named_is_an_error_and_none_is_guessed(no_network: list[Any]) -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        repository(None, environ={})
    assert str(caught.value) == (
        "no repository of prebuilt artifacts is named, and there is no default one; pass --repo or set "
        "LAYA_APPLE_PREBUILT_REPO, or build the artifacts with: laya-apple artifacts build"
    )
    assert no_network == []


def test_the_variable_names_one_and_the_option_wins(tmp_path: Path) -> None:
    environ = {REPO_VARIABLE: "someone/artifacts"}
    assert repository(None, environ=environ).where == "someone/artifacts@main"
    assert repository("other/one", revision="v2", environ=environ).where == "other/one@v2"
    assert repository(str(tmp_path), environ=environ).directory == tmp_path


@pytest.mark.parametrize("named", ["no-such-directory", "./a/b", "/no/such", "a/b/c", "https://x/y"])
def test_what_is_neither_a_repository_nor_a_directory(named: str) -> None:
    with pytest.raises(BackendUnavailableError, match="is neither a repository"):
        repository(named, environ={})


def test_offline_and_not_cached(
    importing: Importing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[Any]
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    asked = repository("someone/artifacts", local_files_only=True, environ={})
    with pytest.raises(BackendUnavailableError) as caught:
        open_repository(asked)
    assert str(caught.value) == (
        "index.json of someone/artifacts@main is not in the hub's cache, and offline was asked for; fetch it "
        "once without --offline and HF_HUB_OFFLINE"
    )
    assert repository("a/b", environ={"HF_HUB_OFFLINE": "1"}).local_files_only
    assert no_network == []


REVISION = "a" * 40
PYTHON = sys.executable
"""Taken before the fixtures take it away."""
CHILD = """
    import json, sys
    from pathlib import Path
    from laya_apple.platform import current_platform
    platform = current_platform()
    import os
    from laya_apple.artifacts.fetch import fetch_artifact, open_repository, repository
    from laya_apple.checkpoint import open_checkpoint
    from laya_apple.errors import LayaAppleError
    sys.executable = "an-application"
    checkpoint = open_checkpoint(sys.argv[1])
    revision = sys.argv[2]

    def fetch(name, offline, revision=revision):
        try:
            opened = open_repository(repository(name, revision=revision, local_files_only=offline))
            done = fetch_artifact(checkpoint, 64, opened, force=True, platform=platform)
        except LayaAppleError as error:
            return [type(error).__name__, str(error)]
        return [opened.commit, done.imported.probe["verdict"]]

    replies = [fetch("someone/artifacts", False), fetch("someone/nothing", False)]
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
    replies += [fetch("someone/artifacts", True), fetch("someone/artifacts", True, "b" * 40)]
    print(json.dumps(replies))
"""


def test_through_the_hub_s_own_client(importing: Importing, hub: Path, tmp_path: Path) -> None:
    with FakeHub(hub, "someone/artifacts", REVISION) as server:
        done = subprocess.run(
            [PYTHON, "-c", textwrap.dedent(CHILD), str(importing.checkpoint.path), REVISION],
            env={**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_CACHE": str(tmp_path / "hub-cache")},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert server.downloaded() == [f"artifacts/{importing.archive.name}", "index.json"]
    online, nothing, cached, uncached = json.loads(done.stdout)
    assert online == [REVISION, "PLACED"]
    assert nothing[0] == "BackendUnavailableError"
    assert "could not be downloaded from someone/nothing@" in nothing[1]
    assert cached == [REVISION, "PLACED"]
    assert uncached[0] == "BackendUnavailableError"
    assert "is not in the hub's cache, and offline was asked for" in uncached[1]
    importing.load()
