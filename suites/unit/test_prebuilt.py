"""``artifacts index``, and the command line of moving artifacts, end to end."""

from __future__ import annotations

import json
import os
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from transfer_files import Importing

from laya_apple.artifacts.index import Entry, make_index, read_index, select
from laya_apple.cli import main
from laya_apple.errors import ArtifactError, ArtifactIntegrityError, ArtifactMissingError
from laya_apple.hashing import file_sha256
from laya_apple.platform import Platform

pytestmark = pytest.mark.filterwarnings("ignore:sys.executable")


# --- the index


def test_an_index_says_what_the_archive_is(importing: Importing) -> None:
    [entry] = make_index(importing.folder)
    spec = importing.checkpoint.spec
    assert entry == Entry(
        path=importing.archive.name,
        model=spec.name,
        revision=spec.revision,
        weights_sha256=spec.weights_sha256,
        graph="bc1s-masked",
        length=64,
        platform={
            "soc": "Virtual Mac",
            "macos": "26.0",
            "macos_build": "VIRTUAL1",
            "coremltools": "9.0",
        },
        archive_sha256=file_sha256(importing.archive),
        bytes=importing.archive.stat().st_size,
        artifact_sha256=importing.load_expected(),
        synthetic=True,
    )
    assert read_index(importing.folder / "index.json", "here") == (entry,)


def test_the_index_satisfies_its_schema(importing: Importing) -> None:
    make_index(importing.folder)
    schema = json.loads(files("laya_apple.data").joinpath("prebuilt-index.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    document = json.loads((importing.folder / "index.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    assert document["format"] == "laya-apple-prebuilt-index"
    assert document["format_version"] == 1


def test_no_archives(tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissingError, match=r"holds no \.tar\.gz archive"):
        make_index(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_of_the_same_bucket_and_platform(importing: Importing) -> None:
    shutil.copy(importing.archive, importing.folder / "again.tar.gz")
    with pytest.raises(ArtifactError, match=r"again\.tar\.gz and local_tiny-.* are of the same bucket"):
        make_index(importing.folder)
    assert not (importing.folder / "index.json").exists()


def test_a_tampered_archive_is_not_indexed(importing: Importing) -> None:
    importing.with_manifest(integrity__artifact_sha256="0" * 64)
    importing.archive.unlink()
    with pytest.raises(ArtifactIntegrityError, match="its manifest says 000000000000…; export it again"):
        make_index(importing.folder)


def test_what_did_not_pass_is_not_indexed(importing: Importing) -> None:
    importing.with_manifest(parity__passed=False)
    importing.archive.unlink()
    with pytest.raises(ArtifactError, match="did not pass the parity gate"):
        make_index(importing.folder)


def _entries(importing: Importing, *platforms: dict[str, str]) -> list[Entry]:
    [entry] = make_index(importing.folder)
    facts = {name: getattr(entry, name) for name in Entry.__dataclass_fields__}
    return [
        Entry(**facts | {"platform": dict(entry.platform) | platform, "path": f"{index}.tar.gz"})
        for index, platform in enumerate(platforms)
    ]


@pytest.mark.parametrize(
    ("platforms", "chosen"),
    [
        ([{"macos_build": "OTHER", "macos": "26.5"}, {}], "1.tar.gz"),
        ([{"macos_build": "OTHER", "macos": "26.5"}, {"macos_build": "OTHER"}], "1.tar.gz"),
        ([{"macos_build": "A", "macos": "26.5"}, {"macos_build": "B", "macos": "26.6"}], "0.tar.gz"),
        ([{"soc": "Apple M9"}, {"macos_build": "OTHER", "macos": "26.9"}], "1.tar.gz"),
    ],
)
def test_of_several_that_fit_the_nearest_is_taken(
    importing: Importing, platforms: list[dict[str, str]], chosen: str
) -> None:
    entries = _entries(importing, *platforms)
    found = select(entries, importing.checkpoint.spec, 64, importing.mac.platform, "9.0", "here")
    assert found.path == chosen


def test_a_real_platform_is_never_given_a_synthetic_one(importing: Importing) -> None:
    facts = importing.mac.platform
    real = Platform(facts.soc, facts.macos, facts.macos_build, facts.machine, facts.memory_bytes)
    with pytest.raises(ArtifactMissingError):
        select(_entries(importing, {}), importing.checkpoint.spec, 64, real, "9.0", "here")


# --- the command line


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    code = main(["artifacts", *arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.startswith("{") else out, err


def test_from_one_mac_to_another(importing: Importing, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", str(importing.checkpoint.path)]
    hub = importing.folder / "hub"

    code, done, err = _run(capsys, "import", *model, "--json", str(importing.archive))
    assert (code, done["action"], done["synthetic"]) == (0, "import", True)
    assert done["buckets"][0]["imported"] is True
    assert done["buckets"][0]["probe"] is None
    assert err.splitlines()[0].startswith("synthetic: Virtual Mac")
    assert "L64: registered in" in err
    assert "unpacking" not in err  # steps are shown on a terminal only

    code, done, _ = _run(capsys, "export", *model, "--bucket", "64", "--out", str(hub), "--json")
    assert code == 0
    assert Path(done["buckets"][0]["archive"]).parent == hub

    code, done, _ = _run(capsys, "index", str(hub), "--json")
    assert (code, len(done["artifacts"]), done["synthetic"]) == (0, 1, True)

    code, done, err = _run(capsys, "fetch", *model, "--bucket", "64", "--repo", str(hub), "--json")
    assert (code, done["buckets"][0]["imported"]) == (0, False)
    assert "L64: found in" in err

    shutil.rmtree(importing.directory)
    code, done, err = _run(capsys, "fetch", *model, "--bucket", "64", "--repo", str(hub), "--json")
    assert (code, done["repository"]) == (0, str(hub))
    assert done["buckets"][0]["probe"]["verdict"] == "PLACED"
    assert "PLACED (ratio " in err
    importing.load()


def test_a_fetch_of_all_buckets_says_what_it_could_not_have(
    importing: Importing, capsys: pytest.CaptureFixture[str]
) -> None:
    make_index(importing.folder)
    arguments = ("--model", str(importing.checkpoint.path), "--repo", str(importing.folder), "--json")
    code, done, err = _run(capsys, "fetch", *arguments)
    assert code == 1
    assert {fact["bucket"]: fact["ok"] for fact in done["buckets"]} == {64: True, 96: False, 128: False}
    assert [fact.get("error") for fact in done["buckets"][1:]] == ["ArtifactMissingError"] * 2
    assert err.count("laya-apple: local:tiny L") == 2


def test_a_fetch_without_a_repository(
    importing: Importing, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAYA_APPLE_PREBUILT_REPO", raising=False)
    code, out, err = _run(capsys, "fetch", "--model", str(importing.checkpoint.path))
    assert (code, out) == (2, "")
    assert err.startswith("laya-apple: no repository of prebuilt artifacts is named")


def test_a_broken_archive_fails_alone(importing: Importing, capsys: pytest.CaptureFixture[str]) -> None:
    broken = importing.folder / "broken.tar.gz"
    broken.write_bytes(b"")
    arguments = ("--model", str(importing.checkpoint.path), "--json")
    code, done, _ = _run(capsys, "import", *arguments, str(broken), str(importing.archive))
    assert code == 1
    assert [fact["ok"] for fact in done["buckets"]] == [False, True]
    assert done["buckets"][0]["error"] == "ArtifactIntegrityError"
    importing.load()


def test_prune_prints_what_it_did(importing: Importing, capsys: pytest.CaptureFixture[str]) -> None:
    left = importing.locations.staging / f"{'-'.join(importing.directory.parts[-3:])}~dead"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x" * 1000)
    code, done, _ = _run(capsys, "prune", "--json")
    assert code == 0
    assert done["kept"] == [{"path": str(left), "reason": "less than 60 minutes old"}]
    os.utime(left, (0, 0))
    code, out, err = _run(capsys, "prune")
    assert out.splitlines() == [
        f"removed   {left}",
        f"1 removed, 0.0 MB freed below {importing.locations.root}",
    ]
    assert err.startswith("synthetic: ")
