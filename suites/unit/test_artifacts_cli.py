"""``laya-apple artifacts``: lines for people on standard error, JSON on standard output, and exit codes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from artifact_files import Built, Registered, tiny_checkpoint

from laya_apple.cli.artifacts import add_parser
from laya_apple.errors import BackendUnavailableError, UnsupportedModelError, UnsupportedShapeError
from pytest_laya.virtual_mac.control import VirtualMac


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="laya-apple")
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["artifacts", *arguments])
    code: int = args.run(args)
    return code


def test_build_says_what_it_does_and_that_it_is_synthetic(
    built: Built, mac: VirtualMac, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(built.checkpoint.path)
    assert _run("build", "--model", model, "--bucket", "64", "--json") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["synthetic"] is True
    assert document["model"] == "local:tiny"
    [fact] = document["buckets"]
    assert (fact["bucket"], fact["ok"], fact["built"]) == (64, True, True)
    assert Path(fact["path"], "manifest.json").is_file()
    assert "synthetic: Virtual Mac, not a real Mac" in err
    assert "local:tiny L64: parity " in err
    assert _run("build", "--model", model, "--bucket", "64") == 0
    assert "local:tiny L64: found in " in capsys.readouterr().err


def test_a_build_that_fails_names_why_and_exits_1(
    tmp_path: Path, mac: VirtualMac, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "tiny")
    (checkpoint.path / "goldens.json").unlink()
    assert _run("build", "--model", str(checkpoint.path), "--json") == 1
    out, err = capsys.readouterr()
    facts = json.loads(out)["buckets"]
    assert [(fact["bucket"], fact["ok"], fact["error"]) for fact in facts] == [
        (bucket, False, "LayaAppleError") for bucket in (64, 96, 128)
    ]
    assert err.count("laya-apple: no goldens at ") == 3


def test_verify_probes_and_reports_what_is_missing(
    registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(registered.checkpoint.path)
    assert _run("verify", "--model", model, "--bucket", "64") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "local:tiny L64: verified, PLACED: fastest of 5 predictions" in err
    assert _run("verify", "--model", model, "--bucket", "64", "--bucket", "96", "--json") == 1
    out, err = capsys.readouterr()
    first, second = json.loads(out)["buckets"]
    assert first["probe"]["verdict"] == "PLACED"
    assert second["error"] == "ArtifactMissingError"
    assert f"{registered.mend.replace('64', '96')}\n" in err


def test_verify_fails_on_a_bucket_that_fell_back(
    registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    registered.mac.fault("ane_compile_failed")
    assert _run("verify", "--model", str(registered.checkpoint.path), "--bucket", "64") == 1
    assert "verified, FELL_BACK: " in capsys.readouterr().err


def test_warm_predicts_once_and_leaves_a_stamp(
    registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(registered.checkpoint.path)
    assert _run("warm", "--model", model, "--bucket", "64") == 0
    assert "local:tiny L64: warm (" in capsys.readouterr().err
    before = len(registered.mac.events("plan"))
    registered.load()
    assert len(registered.mac.events("plan")) == before


def test_list_shows_registered_rejected_and_unreadable(
    registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    registered.mac.fault("ops_on_cpu")
    assert _run("build", "--model", str(registered.checkpoint.path), "--bucket", "96") == 1
    broken = registered.directory.with_name("bc1s-masked-L32-B1")
    broken.mkdir()
    (broken / "manifest.json").write_text("{", encoding="utf-8")
    capsys.readouterr()
    assert _run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"unreadable  {broken}: it cannot be read as JSON")
    assert lines[1].startswith("validated  local:tiny L64  ")
    assert lines[1].endswith("  synthetic")
    assert lines[2].startswith("rejected   local:tiny L96  ")
    assert "the compute plan: " in lines[3]
    assert _run("list", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [entry["registered"] for entry in document["artifacts"]] == [True, True, False]


def test_list_of_an_empty_cache(mac: VirtualMac, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("list") == 0
    assert capsys.readouterr().out.startswith("no artifacts below ")


def test_usage_problems(built: Built, mac: VirtualMac) -> None:
    with pytest.raises(UnsupportedShapeError, match="offers the lengths 64, 96, 128, not 100"):
        _run("build", "--model", str(built.checkpoint.path), "--bucket", "100")
    with pytest.raises(UnsupportedModelError):
        _run("verify", "--model", "no-such-model")
    mac.fault("coremltools_missing")
    with pytest.raises(BackendUnavailableError):
        _run("warm", "--model", str(built.checkpoint.path))
