"""The fixtures that measure: goldens, probe, platform, cache, virtual Mac."""

import json
from pathlib import Path

import pytest

from pytest_laya import results

CHECKPOINT = Path(__file__).resolve().parents[2] / "fixtures" / "checkpoints" / "window16"


def checked(path, name):
    import jsonschema

    document = json.loads(path.read_text())
    jsonschema.validate(document, results.schema(name), cls=jsonschema.Draft202012Validator)
    return document["records"]


def test_the_parity_gate_runs_and_is_recorded(inner, pytester):
    inner(
        f"""
        def test_parity(laya_goldens):
            report = laya_goldens.gate("{CHECKPOINT}", "window16", device="cpu", dtype="float32")
            assert report.passed
            assert report.rows > 0
        """,
        "--laya-out=out",
    ).assert_outcomes(passed=1)
    (record,) = checked(pytester.path / "out" / "parity.json", "parity")
    assert (record["passed"], record["device"], record["dtype"]) == (True, "cpu", "float32")
    assert record["max_option_difference"] <= 1e-4
    assert record["synthetic"] is False


def test_missing_goldens_fail_with_the_command_that_makes_them(inner):
    result = inner("def test_parity(laya_goldens): laya_goldens.load('no-such-checkpoint')")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *LayaAppleError: no goldens at *; make it with `python -m fixtures.goldens`*"]
    )


def test_a_bucket_that_was_not_probed_is_unknown(inner, pytester):
    inner(
        """
        import pytest
        class Loaded:
            def info(self):
                probe = {"ane_ms": 8.0, "cpu_ms": 20.0, "ratio": 0.4, "verdict": "PLACED"}
                return {"ane_probes": {64: probe}}
        @pytest.mark.laya_probe(64)
        def test_probe(laya_probe):
            assert laya_probe.verdict(Loaded(), 64) == "PLACED"
            assert laya_probe.verdict(Loaded(), 96) == "UNKNOWN"
        """,
        "--laya-out=out",
    ).assert_outcomes(passed=1)
    placed, unknown = checked(pytester.path / "out" / "probe.json", "probe")
    assert (placed["bucket"], placed["verdict"], placed["ratio"]) == (64, "PLACED", 0.4)
    assert (unknown["bucket"], unknown["verdict"]) == (96, "UNKNOWN")


def test_platform_and_cache(inner, monkeypatch, tmp_path):
    monkeypatch.setenv("LAYA_APPLE_CACHE", str(tmp_path / "someone-s"))
    inner(
        """
        import os
        from laya_apple.platform import cache_root, current_platform
        def test_private(laya_cache, laya_platform):
            assert list(laya_cache.iterdir()) == []
            assert os.environ["LAYA_APPLE_CACHE"] == str(laya_cache)
            assert cache_root(laya_platform) == laya_cache / "virtual-mac"
            assert laya_platform is current_platform()
        def test_put_back():
            assert os.environ["LAYA_APPLE_CACHE"].endswith("someone-s")
        """,
        "--laya-platform=virtual", subprocess=True,
    ).assert_outcomes(passed=2)  # fmt: skip


@pytest.mark.parametrize("platform", ["real", "virtual"])
def test_the_virtual_mac_of_a_test_is_undone(inner, platform):
    inner(
        """
        import os
        import pytest
        from laya_apple.platform import current_platform
        before = os.environ.get("LAYA_APPLE_PLATFORM")
        def test_virtual(virtual_mac):
            virtual_mac.fault("gpu_error")
            assert current_platform().virtual is True
        def test_real():
            assert os.environ.get("LAYA_APPLE_PLATFORM") == before
            assert current_platform().virtual is (before is not None)
        """,
        f"--laya-platform={platform}", subprocess=True,
    ).assert_outcomes(passed=2)  # fmt: skip
