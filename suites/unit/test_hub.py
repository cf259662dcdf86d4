"""Checkpoints of the hub: cache, stamp, offline, tampering, and real downloads from a local server."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_files import AGENT, write_checkpoint, write_json
from hub_server import FakeHub

from laya_apple import cli, registry
from laya_apple.checkpoint import CHECKPOINT_FILES, open_checkpoint
from laya_apple.errors import BackendUnavailableError, UnsupportedModelError
from laya_apple.hashing import file_sha256
from laya_apple.registry import ModelSpec, resolve

REPO = "someone/tiny"
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What the hub holds: a checkpoint, and files that are no part of one."""
    folder = write_checkpoint(tmp_path / "source")
    (folder / "README.md").write_text("read me")
    (folder / "pytorch_model.bin").write_bytes(b"\0" * 100)
    return folder


@pytest.fixture
def spec(source: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    """A registered model of the hub whose weights are small."""
    tiny = dataclasses.replace(
        resolve("laya"),
        name="tiny",
        repo=REPO,
        revision=REVISION,
        weights_sha256=file_sha256(source / "model.safetensors"),
    )
    monkeypatch.setattr(registry, "MODELS", (*registry.MODELS, tiny))
    return tiny


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches of our own; returns the hub's."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME", "LAYA_APPLE_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("LAYA_APPLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "hub"


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Creating any socket fails and is noted; the test ends with none noted."""
    created: list[str] = []

    class Refused(socket.socket):
        def __init__(self, *args: object, **kwargs: object) -> None:
            created.append("socket")
            raise OSError("no sockets in this test")

    monkeypatch.setattr(socket, "socket", Refused)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: created.append("lookup"))
    yield created
    assert created == []


def put_in_cache(source: Path, hub_cache: Path, leave_out: tuple[str, ...] = ()) -> Path:
    """Lay the checkpoint out as the client library's cache does: blobs, and a snapshot of links to them."""
    root = hub_cache / f"models--{REPO.replace('/', '--')}"
    snapshot = root / "snapshots" / REVISION
    (root / "blobs").mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(REVISION)
    for name in CHECKPOINT_FILES:
        if name in leave_out:
            continue
        blob = root / "blobs" / file_sha256(source / name)
        shutil.copy(source / name, blob)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def stamps(caches: Path) -> list[Path]:
    return sorted((caches.parent / "cache" / "verified").glob("*"))


@pytest.mark.usefixtures("no_sockets")
def test_a_cached_checkpoint_opens_without_the_network_and_is_stamped(
    source: Path, spec: ModelSpec, caches: Path
) -> None:
    snapshot = put_in_cache(source, caches)
    checkpoint = open_checkpoint("tiny")
    assert checkpoint.path == snapshot
    assert checkpoint.spec == spec
    weights = (snapshot / "model.safetensors").resolve()
    (stamp,) = stamps(caches)
    assert stamp.name == "tiny-0123456789ab.json"
    assert json.loads(stamp.read_text()) == {
        "path": str(weights),
        "size_bytes": weights.stat().st_size,
        "mtime_ns": weights.stat().st_mtime_ns,
        "sha256": spec.weights_sha256,
    }


@pytest.mark.usefixtures("no_sockets", "spec")
def test_stamped_weights_are_not_hashed_again_until_they_change(source: Path, caches: Path) -> None:
    snapshot = put_in_cache(source, caches)
    open_checkpoint("tiny")
    weights = (snapshot / "model.safetensors").resolve()
    status = weights.stat()
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    # Same path, size and time: the stamp holds, which shows that nothing was hashed.
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    open_checkpoint("tiny")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(BackendUnavailableError):
        open_checkpoint("tiny")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"sha256": 1}'])
@pytest.mark.usefixtures("no_sockets", "spec")
def test_an_unreadable_stamp_means_hashing_again(source: Path, caches: Path, content: bytes) -> None:
    put_in_cache(source, caches)
    open_checkpoint("tiny")
    (stamp,) = stamps(caches)
    good = stamp.read_bytes()
    stamp.write_bytes(content)
    open_checkpoint("tiny")
    assert stamp.read_bytes() == good


@pytest.mark.usefixtures("no_sockets", "spec")
def test_a_cache_that_cannot_be_written_costs_only_the_stamp(
    source: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = put_in_cache(source, caches)
    blocked = caches.parent / "a-file"
    blocked.write_text("")
    monkeypatch.setenv("LAYA_APPLE_CACHE", str(blocked))
    assert open_checkpoint("tiny").path == snapshot


@pytest.mark.usefixtures("no_sockets")
def test_tampered_weights_are_refused_and_the_mend_is_named(
    source: Path, spec: ModelSpec, caches: Path
) -> None:
    snapshot = put_in_cache(source, caches)
    weights = (snapshot / "model.safetensors").resolve()
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(BackendUnavailableError) as caught:
        open_checkpoint("tiny")
    assert str(caught.value) == (
        f"tiny: the weights at {weights} hash to {file_sha256(weights)[:12]}…, not to the pinned "
        f"{spec.weights_sha256[:12]}…; run `laya-apple download tiny` to fetch them again"
    )
    assert stamps(caches) == []


@pytest.mark.parametrize("asked", ["local_files_only=True", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize("incomplete", [True, False])
@pytest.mark.usefixtures("no_sockets", "spec")
def test_offline_without_a_complete_checkpoint_names_the_download_command_and_opens_no_socket(
    source: Path, caches: Path, asked: str, incomplete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if incomplete:
        put_in_cache(source, caches, leave_out=("tokenizer/tokenizer.json",))
    if asked == "HF_HUB_OFFLINE":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BackendUnavailableError) as caught:
        open_checkpoint("tiny", local_files_only=asked != "HF_HUB_OFFLINE")
    assert str(caught.value) == (
        f"tiny is not complete in the cache ({caches}) and {asked} forbids the network; run "
        "`laya-apple download tiny` on a machine with network access first"
    )


@pytest.mark.usefixtures("spec")
def test_a_download_that_fails_names_the_cause_and_the_command(source: Path, caches: Path) -> None:
    with FakeHub(source, "someone/else", REVISION) as hub:
        done = client(hub, "open_checkpoint(spec)", source, caches)
    assert done.returncode == 1
    message = done.stderr.partition("laya_apple.errors.BackendUnavailableError: ")[2]
    assert message.startswith("tiny could not be downloaded from someone/tiny at 0123456789ab (")
    assert "404" in message
    assert message.endswith("; check the network and run `laya-apple download tiny`\n")


CLIENT = """
import dataclasses, sys
from pathlib import Path
from laya_apple import cli, registry
from laya_apple.checkpoint import open_checkpoint
from laya_apple.hashing import file_sha256
spec = dataclasses.replace(
    registry.resolve("laya"), name="tiny", repo={repo!r}, revision={revision!r},
    weights_sha256=file_sha256(Path({source!r}) / "model.safetensors"),
)
registry.MODELS = (*registry.MODELS, spec)
cli.COMMANDS = ("info", "download")
{statement}
"""


def client(hub: FakeHub, statement: str, source: Path, caches: Path) -> subprocess.CompletedProcess[str]:
    """Run a statement in a process whose hub is the local server: the library reads its address at import."""
    code = CLIENT.format(repo=REPO, revision=REVISION, source=str(source), statement=statement)
    environ = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(caches),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=120, check=False
    )


@pytest.mark.usefixtures("spec")
def test_a_download_fetches_the_five_files_at_the_pinned_revision_once(source: Path, caches: Path) -> None:
    with FakeHub(source, REPO, REVISION) as hub:
        first = client(hub, "print(open_checkpoint(spec).path)", source, caches)
        assert first.returncode == 0, first.stderr
        assert hub.downloaded() == sorted(CHECKPOINT_FILES)
        asked = len(hub.requests)
        second = client(hub, "print(open_checkpoint(spec).path)", source, caches)
        assert second.stdout == first.stdout
        assert len(hub.requests) == asked
    snapshot = Path(first.stdout.strip())
    assert snapshot == caches / "models--someone--tiny" / "snapshots" / REVISION
    assert open_checkpoint("tiny", local_files_only=True).path == snapshot


@pytest.mark.usefixtures("spec")
def test_the_download_command_mends_tampered_weights(source: Path, caches: Path) -> None:
    snapshot = put_in_cache(source, caches)
    weights = (snapshot / "model.safetensors").resolve()
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with FakeHub(source, REPO, REVISION) as hub:
        done = client(hub, "sys.exit(cli.main(['download', 'tiny']))", source, caches)
    assert (done.returncode, done.stdout) == (0, f"tiny @ 0123456789ab: {snapshot}\n"), done.stderr
    assert open_checkpoint("tiny", local_files_only=True).path == snapshot


@pytest.mark.usefixtures("spec")
def test_a_repository_that_lacks_a_file_is_reported_by_name(source: Path, caches: Path) -> None:
    (source / "tokenizer" / "tokenizer.json").unlink()
    with FakeHub(source, REPO, REVISION) as hub:
        done = client(hub, "sys.exit(cli.main(['download', 'tiny']))", source, caches)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "laya-apple: tiny: someone/tiny at 0123456789ab did not deliver tokenizer/tokenizer.json; run "
        "`laya-apple download tiny` again"
    )


@pytest.fixture
def two_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "COMMANDS", ("info", "download"))


@pytest.mark.usefixtures("no_sockets", "two_commands", "spec", "caches")
def test_the_download_command_offline_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cli.main(["download", "tiny"]) == 1
    assert capsys.readouterr().err == (
        "laya-apple: tiny cannot be downloaded while HF_HUB_OFFLINE is set; unset it and run "
        "`laya-apple download tiny` again\n"
    )


@pytest.mark.usefixtures("no_sockets", "two_commands", "spec")
def test_the_download_command_on_a_cached_model_only_checks_it(
    source: Path, caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = put_in_cache(source, caches)
    assert cli.main(["download", REPO]) == 0
    assert capsys.readouterr().out == f"tiny @ 0123456789ab: {snapshot}\n"


@pytest.mark.usefixtures("no_sockets", "two_commands", "caches")
def test_the_download_command_with_an_unknown_model_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["download", "laya-huge"]) == 2
    assert capsys.readouterr().err.startswith("laya-apple: 'laya-huge' is not a model this runtime knows;")


@pytest.mark.usefixtures("no_sockets", "two_commands", "spec")
def test_info_tells_what_is_cached_and_what_is_not(
    source: Path, caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_in_cache(source, caches)
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    states = {model["name"]: model["checkpoint"] for model in facts["models"]}
    assert states == {
        "laya": "not cached; run `laya-apple download laya`",
        "laya-multilingual": "not cached; run `laya-apple download laya-multilingual`",
        "laya-typed-decisions": "not cached; run `laya-apple download laya-typed-decisions`",
        "laya-mini": "embedded",
        "tiny": "cached",
    }
    assert facts["caches"] == {"laya_apple": str(caches.parent / "cache"), "hub": str(caches)}
    assert facts["devices"]["cpu"] == {"available": True, "reason": None}
    assert facts["synthetic"] is False
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert "model      tiny @ 0123456789ab: cached; ANE buckets built: none" in text.splitlines()


@pytest.mark.usefixtures("no_sockets")
def test_embedded_weights_that_changed_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "embedded")
    spec = dataclasses.replace(resolve("laya-mini"), path=folder, weights_sha256="f" * 64)
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(spec)
    weights = folder / "model.safetensors"
    assert str(caught.value) == (
        f"{weights} hashes to {file_sha256(weights)[:12]}…, not to the pinned ffffffffffff…; "
        "reinstall laya-apple"
    )


@pytest.mark.usefixtures("no_sockets")
def test_any_other_embedded_file_that_changed_is_refused_too(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "embedded")
    spec = dataclasses.replace(resolve(folder), embedded=True)
    assert open_checkpoint(spec).path == folder
    write_json(folder / "rl_agent_config.json", {**AGENT, "temperature": [2, 2, 2]})
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(spec)
    assert str(caught.value) == (
        f"the files in {folder} are of revision {resolve(folder).revision[:12]}, not the pinned "
        f"{spec.revision[:12]}; reinstall laya-apple"
    )


@pytest.mark.usefixtures("no_sockets")
def test_an_embedded_file_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "embedded")
    spec = dataclasses.replace(resolve("laya-mini"), path=folder)
    (folder / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(spec)
    assert str(caught.value) == f"{folder / 'tokenizer/tokenizer.json'} is missing; reinstall laya-apple"
