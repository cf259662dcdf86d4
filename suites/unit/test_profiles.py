"""Local profiles: written, read back, and ignored with a warning when they do not hold up."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace

import pytest

from laya_apple.platform import Platform
from laya_apple.routing import ServiceTable
from laya_apple.routing.profiles import load_profile, profile_path, save_profile

MAC = Platform("Apple M4 Max", "26.6.2", "25G80", "arm64", 64 << 30)
TABLE = ServiceTable(
    "calibrated in a test",
    {1: ((64, 9.0), (96, 11.0), (128, 12.0)), 4: ((64, 20.0),)},
    {64: 8.0, 96: 8.5, 128: 10.0},
)


@dataclass(frozen=True)
class Spec:
    name: str = "laya-mini"
    revision: str = "a" * 40
    weights_sha256: str = "b" * 64
    ane_buckets: tuple[int, ...] = (64, 96, 128)


SPEC = Spec()


@pytest.fixture
def saved(tmp_path):
    return save_profile(
        MAC,
        SPEC,
        "9.0",
        auto_buckets=(64, 96),
        table=TABLE,
        created_at="2026-01-01T00:00:00Z",
        cache=tmp_path,
    )


def quietly(tmp_path, platform=MAC, spec=SPEC, coremltools="9.0"):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_profile(platform, spec, coremltools, cache=tmp_path)


def test_a_profile_is_read_back(tmp_path, saved):
    profile = quietly(tmp_path)
    assert profile is not None
    assert profile.path == saved
    assert profile.auto_buckets == (64, 96)
    assert profile.table == replace(TABLE, source=f"local profile {saved.name}")
    assert saved.name == "Apple_M4_Max-macos26-coremltools9.0.json"


def test_hostile_names_stay_inside_the_folder(tmp_path):
    odd = replace(MAC, soc="../../Apple/M4 (x)")
    assert profile_path(odd, "9.0b1+x", cache=tmp_path) == (
        tmp_path / "profiles" / ".._.._Apple_M4__x_-macos26-coremltools9.0b1+x.json"
    )


def test_another_model_or_machine_has_no_profile_and_no_warning(tmp_path, saved):
    assert quietly(tmp_path, spec=replace(SPEC, name="laya")) is None
    assert quietly(tmp_path, platform=replace(MAC, soc="Apple M1")) is None
    assert quietly(tmp_path, coremltools="9.1") is None


def test_two_models_share_a_file(tmp_path, saved):
    other = replace(SPEC, name="laya")
    save_profile(MAC, other, "9.0", auto_buckets=(64,), table=TABLE, created_at="x", cache=tmp_path)
    first, second = quietly(tmp_path), quietly(tmp_path, spec=other)
    assert first is not None
    assert second is not None
    assert (first.auto_buckets, second.auto_buckets) == ((64, 96), (64,))


def test_a_broken_file_is_replaced_by_the_next_calibration(tmp_path, saved):
    saved.write_text("{", encoding="utf-8")
    save_profile(MAC, SPEC, "9.0", auto_buckets=(64,), table=TABLE, created_at="x", cache=tmp_path)
    profile = quietly(tmp_path)
    assert profile is not None
    assert profile.auto_buckets == (64,)


def edit(path, **changes):
    document = json.loads(path.read_text(encoding="utf-8"))
    for dotted, value in changes.items():
        target = document
        *parents, last = dotted.split("__")
        for key in parents:
            target = target[key.replace("laya_mini", "laya-mini")]
        target[last.replace("laya_mini", "laya-mini")] = value
    path.write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": "other"}, "it is not a laya-apple-profile file"),
        ({"format_version": 2}, "its format_version is 2, this version reads 1"),
        ({"models": []}, "it has no models or no platform"),
        ({"platform__soc": "Apple M1"}, "it was measured with soc 'Apple M1', this is 'Apple M4 Max'"),
        ({"platform__coremltools": "8.0"}, "it was measured with coremltools '8.0', this is '9.0'"),
        ({"platform__macos": "15.1"}, "it was measured on macOS 15, this is macOS 26"),
        ({"synthetic": True}, "a virtual machine's profile never counts on a real one"),
        ({"models__laya_mini": 3}, "its entry for laya-mini is not an object"),
        ({"models__laya_mini__revision": "c" * 40}, "stale: it was measured for another revision"),
        (
            {"models__laya_mini__weights_sha256": "c" * 64},
            "stale: it was measured for another weights_sha256",
        ),
        ({"models__laya_mini__auto_buckets": "64"}, "its auto_buckets for laya-mini are '64'"),
        ({"models__laya_mini__auto_buckets": [64, 256]}, "buckets [256] that are not offered for laya-mini"),
        ({"models__laya_mini__auto_buckets": [96]}, "its buckets [96] are not a prefix of the offered"),
        ({"models__laya_mini__auto_buckets": [64, 64]}, "its buckets [64, 64] are not a prefix"),
        ({"models__laya_mini__auto_buckets": [True]}, "not a list of lengths"),
        (
            {"models__laya_mini__ane_ms": {"64": 99.0}},
            "its buckets [64, 96] do not follow from its own times",
        ),
        ({"models__laya_mini__gpu_ms": {}}, "a service table needs gpu_ms times for one question"),
    ],
)
def test_a_profile_that_does_not_hold_up_is_ignored_with_a_warning(tmp_path, saved, changes, why):
    edit(saved, **changes)
    with pytest.warns(RuntimeWarning) as caught:
        assert load_profile(MAC, SPEC, "9.0", cache=tmp_path) is None
    (warning,) = caught
    assert why in str(warning.message)
    assert str(saved) in str(warning.message)
    assert "laya-apple calibrate" in str(warning.message)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 200_000])
def test_an_unreadable_profile_is_ignored_with_a_warning(tmp_path, saved, content):
    saved.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="is ignored, so device='auto' uses MLX only"):
        assert load_profile(MAC, SPEC, "9.0", cache=tmp_path) is None


def test_a_profile_that_is_a_folder_is_ignored_with_a_warning(tmp_path, saved):
    saved.unlink()
    saved.mkdir()
    with pytest.warns(RuntimeWarning, match="it cannot be read"):
        assert load_profile(MAC, SPEC, "9.0", cache=tmp_path) is None
