"""Calibration: the rule on injected samples, and the whole command on a virtual Mac with declared times."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifact_files import Registered, tiny_checkpoint

from laya_apple import ArtifactMissingError, ComputeUnitMismatchError, Laya, LayaAppleError
from laya_apple.artifacts.build import build_artifact
from laya_apple.backends.base import BackendInfo, RowOutput
from laya_apple.cli import main
from laya_apple.execution.calibration import Calibrated, Effort, calibrate, service_table, time_forwards
from laya_apple.prompt.sequence import Row
from laya_apple.routing import ServiceTable
from laya_apple.routing.derivation import derive_auto_buckets
from laya_apple.routing.profiles import coremltools_version, load_profile, profile_path
from pytest_laya.virtual_mac.control import VirtualMac

OFFERED = (64, 96, 128)
GPU = {(1, 64): [9.0, 30.0, 9.2], (1, 96): [11.0, 11.0, 11.0], (1, 128): [12.0, 12.0, 12.0]}
QUESTION = {"q": {"type": "choice", "instructions": "word1", "criteria": ["word3", "word4"]}}
QUICK = Effort(warmups=1, repeats=3, enough=3)

# At least 2x between any two times that the rule compares.
FAST_ENGINE = {
    "gpu_ms": {"1": {"64": 40.0, "96": 60.0, "128": 80.0}},
    "ane_ms": {"64": 12.0, "96": 12.5, "128": 13.0},
}
ONLY_THE_FIRST = {**FAST_ENGINE, "ane_ms": {"64": 12.0, "96": 80.0, "128": 13.0}}
SLOW_ENGINE = {**FAST_ENGINE, "ane_ms": {"64": 80.0, "96": 12.0, "128": 12.0}}


def derived(ane: dict[int, list[float]], passed: tuple[int, ...] = OFFERED) -> tuple[int, ...]:
    return derive_auto_buckets(OFFERED, service_table(GPU, ane, source="injected"), passed)


def test_the_table_holds_the_median_of_each_shape() -> None:
    samples = {**GPU, (4, 64): [20.0, 22.0], (8, 64): [40.0]}
    table = service_table(samples, {64: [8.0, 8.5, 100.0]}, source="injected")
    assert table.to_dict() == {
        "gpu_ms": {
            "1": {"64": 9.2, "96": 11.0, "128": 12.0},
            "4": {"64": 21.0},
            "8": {"64": 40.0},
        },
        "ane_ms": {"64": 8.5},
    }
    assert table.source == "injected"


@pytest.mark.parametrize(
    ("ane", "auto"),
    [
        ({64: [8.0], 96: [9.0], 128: [10.9]}, (64, 96, 128)),
        # Bucket 64 is held against the GPU at 64: equal is not faster.
        ({64: [9.2], 96: [1.0], 128: [1.0]}, ()),
        # 96 against the GPU at 64, although it beats the GPU at 96.
        ({64: [8.0], 96: [9.2], 128: [1.0]}, (64,)),
        # 128 against the GPU at 96, although it beats the GPU at 128.
        ({64: [8.0], 96: [9.0], 128: [11.0]}, (64, 96)),
        # One outlier moves no median.
        ({64: [8.0, 8.0, 900.0], 96: [9.0], 128: [10.0]}, (64, 96, 128)),
        # A bucket that was not measured ends the list.
        ({64: [8.0], 128: [1.0]}, (64,)),
        ({96: [1.0], 128: [1.0]}, ()),
    ],
)
def test_the_list_ends_at_the_first_bucket_that_is_not_faster(
    ane: dict[int, list[float]], auto: tuple[int, ...]
) -> None:
    assert derived(ane) == auto


@pytest.mark.parametrize(
    ("passed", "auto"), [((96, 128), ()), ((64, 128), (64,)), ((64, 96), (64, 96)), ((), ())]
)
def test_the_list_ends_at_the_first_bucket_without_parity(
    passed: tuple[int, ...], auto: tuple[int, ...]
) -> None:
    assert derived({64: [8.0], 96: [9.0], 128: [10.0]}, passed) == auto


class Scripted:
    """A backend whose forward moves the clock."""

    def __init__(self, times_ms: list[float], value: float = 0.5) -> None:
        self.now_ns = 0
        self.calls = 0
        self._times_ms, self._value = times_ms, value

    info = BackendInfo("mlx", "gpu", "float16", "ab" * 32)

    def forward(self, rows: Any) -> list[RowOutput]:
        self.now_ns += round(self._times_ms[min(self.calls, len(self._times_ms) - 1)] * 1e6)
        self.calls += 1
        value = np.full(2, self._value, np.float32)
        return [RowOutput(value, value) for _ in rows]

    def warm(self) -> None: ...

    def close(self) -> None: ...


ROWS = [Row((1, 2, 3), (1,), 0)]


def test_warm_ups_are_run_and_not_counted() -> None:
    backend = Scripted([500.0, 400.0, 3.0, 4.0, 5.0])
    effort = Effort(warmups=2, repeats=3, enough=3)
    assert time_forwards(backend, "gpu", ROWS, effort, clock_ns=lambda: backend.now_ns) == [3.0, 4.0, 5.0]


def test_a_slow_shape_stops_once_it_has_enough_samples() -> None:
    backend = Scripted([300.0])
    effort = Effort(warmups=1, repeats=25, enough=5, budget_s=0.5)
    assert len(time_forwards(backend, "gpu", ROWS, effort, clock_ns=lambda: backend.now_ns)) == 5
    quick = Scripted([10.0])
    assert len(time_forwards(quick, "gpu", ROWS, effort, clock_ns=lambda: quick.now_ns)) == 25


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    backend = Scripted([1.0], value)
    with pytest.raises(LayaAppleError, match=r"^the gpu backend returned values that are not finite$"):
        time_forwards(backend, "gpu", ROWS, QUICK, clock_ns=lambda: backend.now_ns)


@dataclass(frozen=True)
class Ready:
    """A virtual Mac with every bucket built and nothing calibrated."""

    mac: VirtualMac
    checkpoint: Any

    @property
    def path(self) -> Path:
        return profile_path(self.mac.platform, coremltools_version())

    def calibrate(self, **options: Any) -> Any:
        options = {"lengths": (64, 128), "question_counts": (1, 2), "effort": QUICK, **options}
        return calibrate(self.checkpoint.spec, platform=self.mac.platform, **options)

    def load(self) -> Any:
        return load_profile(self.mac.platform, self.checkpoint.spec, coremltools_version())

    def edit(self, **changes: Any) -> None:
        """Change the model's entry; None removes a key."""
        document = json.loads(self.path.read_text())
        entry = document["models"][self.checkpoint.spec.name]
        entry |= changes
        self.path.write_text(json.dumps(document))


@dataclass(frozen=True)
class Measured:
    """One calibration with FAST_ENGINE declared, made once; tests copy its cache."""

    checkpoint: Any
    cache: Path
    found: Any


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("buckets")
    with pytest.MonkeyPatch.context() as patch, VirtualMac(folder / "mac", patch) as mac:
        patch.setenv("LAYA_APPLE_CACHE", str(folder / "cache"))
        checkpoint = tiny_checkpoint(folder / "tiny")
        for bucket in checkpoint.spec.ane_buckets:
            build_artifact(checkpoint, bucket, platform=mac.platform)
        mac.profile(FAST_ENGINE)
        found = Ready(mac, checkpoint).calibrate()
    return Measured(checkpoint, folder / "cache", found)


@pytest.fixture
def calibrated(measured: Measured, mac: VirtualMac, tmp_path: Path) -> Ready:
    # Linked, so that the artifacts' stamps hold; but for the profile, which tests change.
    shutil.copytree(measured.cache, tmp_path / "cache", dirs_exist_ok=True, copy_function=os.link)
    found = Ready(mac, measured.checkpoint)
    profile = found.path.read_bytes()
    found.path.unlink()
    found.path.write_bytes(profile)
    return found


@pytest.fixture
def ready(calibrated: Ready) -> Ready:
    calibrated.path.unlink()
    return calibrated


def test_a_profile_holds_what_was_measured(measured: Measured, calibrated: Ready) -> None:
    found = measured.found
    profile = calibrated.load()
    assert profile.auto_buckets == found.auto_buckets == (64, 96, 128)
    assert profile.table == replace(found.table, source=f"local profile {found.path.name}")
    document = json.loads(calibrated.path.read_text())
    assert document["synthetic"] is True
    assert document["models"][measured.checkpoint.spec.name]["source"] == found.table.source
    assert found.table.source.startswith("calibrated on Virtual Mac at 20")
    # A virtual forward takes at least its declared time.
    assert [length for length, _ in found.table.gpu_ms[1]] == [64, 96, 128]
    assert all(ms >= FAST_ENGINE["gpu_ms"]["1"][str(length)] for length, ms in found.table.gpu_ms[1])
    assert all(ms >= FAST_ENGINE["ane_ms"][str(bucket)] for bucket, ms in found.table.ane_ms.items())


@pytest.mark.parametrize(
    ("declared", "auto"), [(ONLY_THE_FIRST, (64,)), (SLOW_ENGINE, ())], ids=["the first bucket", "no bucket"]
)
def test_a_slower_engine_gets_fewer_buckets_or_none(
    ready: Ready, declared: dict[str, Any], auto: tuple[int, ...]
) -> None:
    ready.mac.profile(declared)
    assert ready.calibrate().auto_buckets == auto
    assert ready.load().auto_buckets == auto


def test_auto_routes_by_what_was_measured(calibrated: Ready) -> None:
    with Laya.from_pretrained(calibrated.checkpoint.path, "auto") as laya:
        runtime = laya.predict("word8", QUESTION).runtime
    assert (runtime.device, runtime.routing_reason) == ("ane", "validated_short_single_question_path")


def test_auto_without_its_profile_uses_mlx_only(calibrated: Ready) -> None:
    calibrated.path.write_text("{")
    with pytest.warns(RuntimeWarning, match="is ignored, so device='auto' uses MLX only: it cannot be read"):
        laya = Laya.from_pretrained(calibrated.checkpoint.path, "auto")
    with laya:
        runtime = laya.predict("word8", QUESTION).runtime
    assert (runtime.device, runtime.routing_reason) == ("gpu", "platform_not_validated")


def test_a_model_is_calibrated_beside_another(calibrated: Ready) -> None:
    document = json.loads(calibrated.path.read_text())
    document["models"]["another"] = {"kept": True}
    calibrated.path.write_text(json.dumps(document))
    calibrated.calibrate(question_counts=(1,))
    assert json.loads(calibrated.path.read_text())["models"]["another"] == {"kept": True}
    assert set(calibrated.load().table.gpu_ms) == {1}


def test_every_offered_bucket_must_be_built(registered: Registered) -> None:
    spec = registered.checkpoint.spec
    with pytest.raises(
        ArtifactMissingError,
        match=r"L96: no Neural Engine artifact at .*; build it with: laya-apple artifacts",
    ):
        calibrate(spec, platform=registered.mac.platform, effort=QUICK)
    assert not profile_path(registered.mac.platform, coremltools_version()).exists()


@pytest.mark.parametrize(
    ("fault", "arguments", "error", "message"),
    [
        (
            "ane_compile_failed",
            {"bucket": 96},
            ComputeUnitMismatchError,
            "L96: the loaded model does not run",
        ),
        ("prediction_error", {"bucket": 128}, LayaAppleError, "the Core ML prediction failed"),
        ("gpu_error", {}, LayaAppleError, "the gpu backend failed"),
        ("gpu_nonfinite", {}, LayaAppleError, "the gpu backend returned values that are not finite"),
    ],
)
def test_a_device_that_fails_leaves_no_profile(
    ready: Ready, fault: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    ready.mac.fault(fault, **arguments)
    with pytest.raises(error, match=message):
        ready.calibrate()
    assert not ready.path.exists()


def ignored(calibrated: Ready) -> str:
    """The one warning's text; the profile counts for nothing."""
    with pytest.warns(RuntimeWarning) as caught:
        assert calibrated.load() is None
    (warning,) = caught
    message = str(warning.message)
    assert message.startswith(
        f"the local profile {calibrated.path} is ignored, so device='auto' uses MLX only"
    )
    assert message.endswith("run `laya-apple calibrate` to measure this machine again")
    return message


def test_an_unreadable_profile_is_ignored(calibrated: Ready) -> None:
    calibrated.path.write_text("{")
    assert "it cannot be read" in ignored(calibrated)


def test_a_profile_of_an_unknown_format_is_ignored(calibrated: Ready) -> None:
    document = json.loads(calibrated.path.read_text())
    calibrated.path.write_text(json.dumps({**document, "format_version": 7}))
    assert "its format_version is 7, this version reads 1" in ignored(calibrated)


def test_a_stale_profile_is_ignored(calibrated: Ready) -> None:
    calibrated.edit(weights_sha256="0" * 64)
    assert "is stale: it was measured for another weights_sha256" in ignored(calibrated)


def test_a_profile_of_another_machine_is_ignored(calibrated: Ready) -> None:
    document = json.loads(calibrated.path.read_text())
    document["platform"]["soc"] = "Apple M9"
    calibrated.path.write_text(json.dumps(document))
    assert "it was measured with soc 'Apple M9', this is 'Virtual Mac'" in ignored(calibrated)


def test_buckets_that_are_no_prefix_are_ignored(calibrated: Ready) -> None:
    calibrated.edit(auto_buckets=[64, 128])
    assert "its buckets [64, 128] are not a prefix of the offered [64, 96, 128]" in ignored(calibrated)


def test_buckets_that_are_not_offered_are_ignored(calibrated: Ready) -> None:
    calibrated.edit(auto_buckets=[64, 96, 128, 256])
    assert "it lists buckets [256] that are not offered" in ignored(calibrated)


def test_the_command_writes_a_profile_and_names_the_buckets(
    ready: Ready, capsys: pytest.CaptureFixture[str]
) -> None:
    ready.mac.profile({"gpu_ms": {"1": {"64": 8.0}}, "ane_ms": {"64": 12.0, "96": 12.0, "128": 12.0}})
    assert main(["calibrate", "--model", str(ready.checkpoint.path), "--offline", "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["synthetic"] is True
    assert document["profile"] == str(ready.path)
    assert document["auto_buckets"] == list(ready.load().auto_buckets)
    # 256 is this checkpoint's longest row.
    assert {count: list(times) for count, times in document["gpu_ms"].items()} == {
        count: ["64", "96", "128", "256"] for count in ("1", "4", "8")
    }
    assert "synthetic: Virtual Mac, not a real Mac; its profile is refused by one" in err
    assert "ane L64: P50 " in err
    assert "gpu L256 x 8: P50 " in err


def test_the_command_ends_with_1_and_one_line_when_it_cannot_measure(
    registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--model", str(registered.checkpoint.path)]) == 1
    err = capsys.readouterr().err.strip().splitlines()
    assert err[-1].startswith("laya-apple: ")
    assert "laya-apple artifacts build" in err[-1]


def test_off_a_mac_the_command_says_why() -> None:
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith(("LAYA_APPLE_PLATFORM", "LAYA_VIRTUAL"))
    }
    if sys.platform == "darwin":
        environ["LAYA_APPLE_PLATFORM"] = "switchyard_fakes:linux"
        environ["PYTHONPATH"] = str(Path(__file__).parent)
    checkpoint = Path(__file__).parents[2] / "fixtures" / "checkpoints" / "window16"
    done = subprocess.run(
        [sys.executable, "-m", "laya_apple", "calibrate", "--model", str(checkpoint)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("laya-apple: the Neural Engine needs an Apple silicon Mac")
    assert done.stdout == ""


def test_times_that_fall_as_rows_grow_are_doubted() -> None:
    table = ServiceTable("injected", {1: ((64, 34.0), (96, 32.0), (128, 20.0)), 4: ((64, 20.0),)}, {64: 8.0})
    found = Calibrated("laya-mini", Path("profile.json"), (64,), table)
    assert found.doubts == (
        "laya-mini gpu L96 x 1 took 32.0 ms, longer than L128 with 20.0 ms; run `laya-apple calibrate` again "
        "with the machine left alone",
    )
