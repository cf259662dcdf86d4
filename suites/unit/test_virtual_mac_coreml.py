"""The bridge under Core ML Tools' own code: compile, load, predict, plan, and the faults of each."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import virtual_mac_models as models

from pytest_laya.virtual_mac import platform
from pytest_laya.virtual_mac.control import VirtualMac

LENGTH = 16


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    platform()
    return models.save(tmp_path_factory.mktemp("model") / "model.mlpackage", LENGTH)


@pytest.fixture(scope="module")
def compiled(package: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    import coremltools as ct

    destination = str(tmp_path_factory.mktemp("compiled") / "model.mlmodelc")
    assert ct.models.utils.compile_model(str(package), destination) == destination
    return destination


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with VirtualMac(tmp_path / "virtual-mac", monkeypatch) as virtual_mac:
        yield virtual_mac


def load(path: str, units: str = "CPU_AND_NE") -> Any:
    import coremltools as ct

    return ct.models.CompiledMLModel(path, compute_units=ct.ComputeUnit[units])


def timed_prediction(model: Any, mac: VirtualMac) -> dict[str, Any]:
    """One prediction's event; checks that the call took at least what the event says."""
    started = time.perf_counter()
    model.predict(models.features(LENGTH))
    elapsed_ms = (time.perf_counter() - started) * 1e3
    event = mac.events("predict")[-1]
    assert elapsed_ms >= event["takes_ms"]
    return event


def device_counts(path: str, units: str = "CPU_AND_NE") -> Counter[str]:
    import coremltools as ct
    from coremltools.models.compute_plan import MLComputePlan

    plan = MLComputePlan.load_from_path(path, compute_units=ct.ComputeUnit[units])
    counts: Counter[str] = Counter()
    for op in plan.model_structure.program.functions["main"].block.operations:
        if op.operator_name == "const":
            assert plan.get_compute_device_usage_for_mlprogram_operation(op) is None
            continue
        usage = plan.get_compute_device_usage_for_mlprogram_operation(op)
        device = "none" if usage is None else type(usage.preferred_compute_device).__name__
        counts[f"{device} {op.operator_name.removeprefix('ios18.')}"] += 1
    return counts


# --- the contract


def test_prediction_agrees_with_an_independent_evaluation(compiled: str, mac: VirtualMac) -> None:
    want = models.evaluate(models.features(LENGTH))
    out = load(compiled).predict(models.features(LENGTH))
    assert {name: (a.shape, a.dtype) for name, a in out.items()} == {
        "logits": ((1, 1, 1, models.OPTIONS), np.float32),
        "cls": ((1, models.CHANNELS, 1, 1), np.float32),
    }
    assert np.abs(out["logits"].ravel() - want["logits"]).max() < 2e-2
    assert np.abs(out["cls"].ravel() - want["cls"]).max() < 2e-2


def test_outputs_are_float16_values_and_repeat_bit_for_bit(compiled: str, mac: VirtualMac) -> None:
    model = load(compiled)
    first, second = (model.predict(models.features(LENGTH)) for _ in range(2))
    for name, array in first.items():
        assert np.array_equal(array, array.astype(np.float16).astype(np.float32))
        assert array.tobytes() == second[name].tobytes()


def test_predict_rewrites_float16_in_the_callers_dictionary(compiled: str, mac: VirtualMac) -> None:
    given = models.features(LENGTH)
    load(compiled).predict(given)
    assert {array.dtype for array in given.values()} == {np.dtype(np.float32)}


def test_a_batch_is_predicted_in_order(compiled: str, mac: VirtualMac) -> None:
    model = load(compiled)
    rows = [models.features(LENGTH, seed) for seed in (1, 2)]
    batch = model.predict([dict(row) for row in rows])
    for row, out in zip(rows, batch, strict=True):
        assert np.array_equal(model.predict(dict(row))["logits"], out["logits"])


def test_missing_input_and_wrong_shape_are_named(compiled: str, mac: VirtualMac) -> None:
    model, given = load(compiled), models.features(LENGTH)
    missing = {name: a for name, a in given.items() if name != "marker_map"}
    with pytest.raises(RuntimeError, match=r"^Feature marker_map is required but not specified\.$"):
        model.predict(missing)
    short = {**given, "marker_map": given["marker_map"][:, :-1]}
    with pytest.raises(RuntimeError, match=r"shape \(1, 15, 1, 4\) of feature marker_map"):
        model.predict(short)


def test_compiling_into_an_existing_folder_nests_the_model(
    package: Path, tmp_path: Path, mac: VirtualMac
) -> None:
    import coremltools as ct

    destination = tmp_path / "model.mlmodelc"
    destination.mkdir()
    ct.models.utils.compile_model(str(package), str(destination))
    assert [path.name for path in destination.iterdir()] == ["model.mlmodelc"]


def test_a_compiled_model_says_it_is_synthetic(compiled: str) -> None:
    assert '"synthetic": true' in (Path(compiled) / "metadata.json").read_text(encoding="utf-8")
    files = {str(p.relative_to(compiled)) for p in Path(compiled).rglob("*") if p.is_file()}
    assert files == {"coremldata.bin", "metadata.json", "model.mil", "weights/weight.bin"}


@pytest.mark.parametrize("damaged", ["coremldata.bin", "model.mil", "weights/weight.bin"])
def test_damaged_files_do_not_load(compiled: str, tmp_path: Path, mac: VirtualMac, damaged: str) -> None:
    import shutil

    copy = tmp_path / "copy.mlmodelc"
    shutil.copytree(compiled, copy)
    (copy / damaged).write_bytes(b"damaged")
    with pytest.raises(RuntimeError):
        load(str(copy))


def test_a_package_loads_through_mlmodel_too(package: Path, mac: VirtualMac) -> None:
    import coremltools as ct

    model = ct.models.MLModel(str(package), compute_units=ct.ComputeUnit.CPU_AND_NE)
    assert model.predict(models.features(LENGTH))["cls"].shape == (1, models.CHANNELS, 1, 1)
    assert model.get_compiled_model_path().endswith(".mlmodelc")


def test_every_compute_device_is_there(mac: VirtualMac) -> None:
    from coremltools.models.compute_device import MLComputeDevice

    devices = MLComputeDevice.get_all_compute_devices()
    assert [type(d).__name__ for d in devices] == [
        "MLCPUComputeDevice",
        "MLGPUComputeDevice",
        "MLNeuralEngineComputeDevice",
    ]
    assert devices[2].total_core_count == 16


def test_the_plan_places_every_operation_on_the_neural_engine(compiled: str, mac: VirtualMac) -> None:
    counts = device_counts(compiled)
    assert {key.split()[0] for key in counts} == {"MLNeuralEngineComputeDevice"}
    assert counts["MLNeuralEngineComputeDevice gelu"] == 1
    assert {key.split()[0] for key in device_counts(compiled, "CPU_ONLY")} == {"MLCPUComputeDevice"}


def test_costs_add_up_to_one(compiled: str, mac: VirtualMac) -> None:
    import coremltools as ct
    from coremltools.models.compute_plan import MLComputePlan

    plan = MLComputePlan.load_from_path(compiled, compute_units=ct.ComputeUnit.CPU_AND_NE)
    operations = plan.model_structure.program.functions["main"].block.operations
    costs = [plan.get_estimated_cost_for_mlprogram_operation(op) for op in operations]
    assert sum(c.weight for c in costs if c is not None) == pytest.approx(1)


def test_events_say_what_was_loaded_planned_and_predicted(compiled: str, mac: VirtualMac) -> None:
    device_counts(compiled)
    load(compiled).predict(models.features(LENGTH))
    load(compiled, "CPU_ONLY")
    seen = [(e["event"], e["units"], e["bucket"]) for e in mac.events()]
    assert seen == [
        ("plan", "CPU_AND_NE", LENGTH),
        ("load", "CPU_AND_NE", LENGTH),
        ("predict", "CPU_AND_NE", LENGTH),
        ("load", "CPU_ONLY", LENGTH),
    ]


# --- declared times

TABLE = {"gpu_ms": {"1": {"64": 1.0}}, "ane_ms": {str(LENGTH): 10.0}}


def test_a_prediction_takes_its_declared_time(compiled: str, mac: VirtualMac) -> None:
    mac.profile(TABLE)
    on_neural_engine = timed_prediction(load(compiled), mac)
    assert (on_neural_engine["takes_ms"], on_neural_engine["cpu_speed"]) == (10, False)
    on_cpu = timed_prediction(load(compiled, "CPU_ONLY"), mac)
    assert (on_cpu["takes_ms"], on_cpu["cpu_speed"]) == (2.5 * max(10, on_cpu["worked_ms"]), True)


def test_cpu_only_is_slower_under_the_instant_profile_too(compiled: str, mac: VirtualMac) -> None:
    assert timed_prediction(load(compiled), mac)["takes_ms"] == 0
    on_cpu = timed_prediction(load(compiled, "CPU_ONLY"), mac)
    assert on_cpu["takes_ms"] == 2.5 * on_cpu["worked_ms"] > 0


# --- faults


def test_a_failed_compile_runs_at_cpu_speed_while_the_plan_says_neural_engine(
    compiled: str, mac: VirtualMac
) -> None:
    mac.profile(TABLE)
    mac.fault("ane_compile_failed", bucket=LENGTH)
    event = timed_prediction(load(compiled), mac)
    assert event["cpu_speed"]
    assert event["takes_ms"] >= 25
    assert {key.split()[0] for key in device_counts(compiled)} == {"MLNeuralEngineComputeDevice"}


def test_a_fault_of_another_bucket_changes_nothing(compiled: str, mac: VirtualMac) -> None:
    mac.fault("ane_compile_failed", bucket=LENGTH + 1)
    assert not timed_prediction(load(compiled), mac)["cpu_speed"]


def test_an_evicted_compile_slows_a_loaded_model(compiled: str, mac: VirtualMac) -> None:
    mac.fault("compile_evicted", after=2)
    model = load(compiled)
    assert [timed_prediction(model, mac)["cpu_speed"] for _ in range(4)] == [False, False, True, True]
    assert [e["name"] for e in mac.events("fault")] == ["compile_evicted"]


@pytest.mark.parametrize(
    ("fault", "device"),
    [
        ("ops_on_cpu", "MLCPUComputeDevice"),
        ("ops_on_gpu", "MLGPUComputeDevice"),
        ("plan_without_device", "none"),
    ],
)
def test_the_plan_moves_the_named_operations(compiled: str, mac: VirtualMac, fault: str, device: str) -> None:
    mac.fault(fault, ops=["gelu", "softmax"])
    elsewhere = {key for key in device_counts(compiled) if not key.startswith("MLNeuralEngine")}
    assert elsewhere == {f"{device} gelu", f"{device} softmax"}


def test_wrong_outputs_are_finite_and_wrong(compiled: str, mac: VirtualMac) -> None:
    model = load(compiled)
    right = model.predict(models.features(LENGTH))
    mac.fault("wrong_outputs")
    wrong = model.predict(models.features(LENGTH))
    assert np.array_equal(wrong["logits"], -right["logits"])
    assert np.array_equal(wrong["cls"], right["cls"])
    mac.clear("wrong_outputs")
    assert np.array_equal(model.predict(models.features(LENGTH))["logits"], right["logits"])


def test_faults_of_outputs_leave_cpu_only_alone(compiled: str, mac: VirtualMac) -> None:
    mac.fault("nonfinite_outputs", value="inf")
    assert np.isinf(load(compiled).predict(models.features(LENGTH))["logits"]).all()
    assert np.isfinite(load(compiled, "CPU_ONLY").predict(models.features(LENGTH))["logits"]).all()


def test_outputs_of_another_name_shape_and_type(compiled: str, mac: VirtualMac) -> None:
    mac.fault("output_changed", output="logits", name="scores", shape=[1, 1, 1, 3], dtype="int32")
    out = load(compiled).predict(models.features(LENGTH))
    assert set(out) == {"scores", "cls"}
    assert (out["scores"].shape, out["scores"].dtype) == ((1, 1, 1, 3), np.int32)


def test_a_prediction_error_happens_once_after_two(compiled: str, mac: VirtualMac) -> None:
    mac.fault("prediction_error", after=2, times=1, message="no luck")
    model = load(compiled)
    outcomes = []
    for _ in range(4):
        try:
            model.predict(models.features(LENGTH))
            outcomes.append("ok")
        except RuntimeError as error:
            outcomes.append(str(error))
    assert outcomes == ["ok", "ok", "no luck", "ok"]


def test_a_hang_ends_when_the_fault_is_cleared(compiled: str, mac: VirtualMac) -> None:
    model = load(compiled)
    mac.fault("prediction_hang")
    errors: list[str] = []

    def run() -> None:
        try:
            model.predict(models.features(LENGTH))
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    mac.clear()
    thread.join(10)
    assert errors == ["the virtual Mac's fault prediction_hang was cleared while it held this call"]


def test_load_faults_name_their_compute_units(compiled: str, mac: VirtualMac) -> None:
    mac.fault("load_error", message="refused")
    with pytest.raises(RuntimeError, match=r"^refused$"):
        load(compiled)
    load(compiled, "CPU_ONLY")


def test_the_tests_own_process_is_never_killed(compiled: str, mac: VirtualMac) -> None:
    mac.fault("load_kills")
    with pytest.raises(RuntimeError, match="would kill the test's own process"):
        load(compiled)


# --- other processes

CHILD = """
    import sys
    from laya_apple.platform import current_platform
    here = current_platform()
    assert here.virtual
    import coremltools as ct
    import virtual_mac_models as models
    model = ct.models.CompiledMLModel(sys.argv[1], compute_units=ct.ComputeUnit.CPU_AND_NE)
    out = model.predict(models.features(16))
    print(sorted(out), float(out["logits"].ravel()[0]))
"""


def run_child(source: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(models.__file__).parent)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_child_process_sees_the_faults(compiled: str, mac: VirtualMac) -> None:
    mac.fault("worker_killed", signal=15)
    assert run_child(CHILD, compiled).returncode == -15
    assert [e["event"] for e in mac.events()] == ["load", "fault"]
    assert mac.events("load")[0]["pid"] != os.getpid()


def test_a_load_may_kill_a_child_once(compiled: str, mac: VirtualMac) -> None:
    mac.fault("load_kills", times=1)
    assert run_child(CHILD, compiled).returncode == -9
    done = run_child(CHILD, compiled)
    assert (done.returncode, done.stdout.startswith("['cls', 'logits']")) == (0, True), done.stderr


def test_missing_modules_and_other_versions_reach_a_child(mac: VirtualMac) -> None:
    source = """
        import importlib.metadata, importlib.util
        from laya_apple.platform import current_platform
        here = current_platform()
        print(here.soc, here.macos)
        for name in ("coremltools", "CoreML", "Foundation", "objc"):
            print(name, importlib.util.find_spec(name) is not None)
        try:
            import coremltools
            print(coremltools.__version__, importlib.metadata.version("coremltools"))
        except ImportError as error:
            print(type(error).__name__)
    """
    mac.fault("other_platform", soc="Virtual Mac 2", macos="27.1")
    mac.fault("pyobjc_missing")
    mac.fault("other_coremltools", version="8.3.0")
    assert run_child(source).stdout.splitlines() == [
        "Virtual Mac 2 27.1",
        "coremltools True",
        "CoreML False",
        "Foundation False",
        "objc False",
        "8.3.0 8.3.0",
    ]
    mac.clear()
    mac.fault("coremltools_missing")
    assert run_child(source).stdout.splitlines() == [
        "Virtual Mac 26.0",
        "coremltools False",
        "CoreML True",
        "Foundation True",
        "objc True",
        "ModuleNotFoundError",
    ]
