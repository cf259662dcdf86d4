"""The PyObjC stand-ins: the asynchronous prediction with prebound arrays, and its faults."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import virtual_mac_models as models

from pytest_laya.virtual_mac import platform
from pytest_laya.virtual_mac.control import VirtualMac

LENGTH = 16
SENTINEL = np.float16(123)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    platform()
    import coremltools as ct

    folder = tmp_path_factory.mktemp("model")
    package = models.save(folder / "model.mlpackage", LENGTH)
    return str(ct.models.utils.compile_model(str(package), str(folder / "model.mlmodelc")))


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with VirtualMac(tmp_path / "virtual-mac", monkeypatch) as virtual_mac:
        yield virtual_mac


class Prebound:
    """A model with its input arrays and output backings bound once, used as the runtime would."""

    def __init__(self, path: str) -> None:
        import CoreML
        import Foundation

        configuration = CoreML.MLModelConfiguration.alloc().init()
        configuration.setComputeUnits_(CoreML.MLComputeUnitsCPUAndNeuralEngine)
        url = Foundation.NSURL.fileURLWithPath_(path)
        self.model, self.load_error = CoreML.MLModel.modelWithContentsOfURL_configuration_error_(
            url, configuration, None
        )
        self.inputs = models.features(LENGTH)
        self.arrays = {name: self._wrap(a) for name, a in self.inputs.items()}
        self.provider, error = CoreML.MLDictionaryFeatureProvider.alloc().initWithDictionary_error_(
            {n: CoreML.MLFeatureValue.featureValueWithMultiArray_(a) for n, a in self.arrays.items()}, None
        )
        assert error is None
        self.outputs = {
            "logits": np.full((1, 1, 1, models.OPTIONS), SENTINEL),
            "cls": np.full((1, models.CHANNELS, 1, 1), SENTINEL),
        }
        self.backings = {name: self._wrap(a) for name, a in self.outputs.items()}
        self.options = CoreML.MLPredictionOptions.alloc().init()
        self.options.setOutputBackings_(self.backings)

    @staticmethod
    def _wrap(array: Any) -> Any:
        import CoreML

        strides = [s // array.itemsize for s in array.strides]
        init = CoreML.MLMultiArray.alloc().initWithDataPointer_shape_dataType_strides_deallocator_error_
        wrapped, error = init(
            memoryview(array), list(array.shape), CoreML.MLMultiArrayDataTypeFloat16, strides, None, None
        )
        assert error is None
        return wrapped

    def predict(self, timeout: float = 30) -> tuple[Any, Any, int] | None:
        """(output, error, thread of the completion), or None when none came in time."""
        done, got = threading.Event(), []

        def completion(output: Any, error: Any) -> None:
            got.append((output, error, threading.get_ident()))
            done.set()

        self.model.predictionFromFeatures_options_completionHandler_(self.provider, self.options, completion)
        return got[0] if done.wait(timeout) else None


def synchronous(path: str) -> dict[str, Any]:
    import coremltools as ct

    model = ct.models.CompiledMLModel(path, compute_units=ct.ComputeUnit.CPU_AND_NE)
    return dict(model.predict(models.features(LENGTH)))


def test_completion_comes_from_another_thread_with_the_backings_filled(
    compiled: str, mac: VirtualMac
) -> None:
    bound = Prebound(compiled)
    assert bound.load_error is None
    output, error, thread = bound.predict()
    assert error is None
    assert thread != threading.get_ident()
    assert output.featureNames() == {"logits", "cls"}
    want = synchronous(compiled)
    for name, backing in bound.backings.items():
        assert output.featureValueForName_(name).multiArrayValue() is backing
        assert np.array_equal(bound.outputs[name].astype(np.float32), want[name])


def test_inputs_are_read_where_they_lie(compiled: str, mac: VirtualMac) -> None:
    bound = Prebound(compiled)
    bound.predict()
    first = bound.outputs["logits"].copy()
    bound.inputs["embeddings"][...] = 0
    bound.predict()
    assert not np.array_equal(bound.outputs["logits"], first)


def test_an_array_shows_its_memory_shape_and_type(mac: VirtualMac) -> None:
    import CoreML

    array, error = CoreML.MLMultiArray.alloc().initWithShape_dataType_error_(
        [2, 3], CoreML.MLMultiArrayDataTypeFloat16, None
    )
    assert error is None
    assert (array.shape(), array.strides(), array.count(), array.dataType()) == ((2, 3), (3, 1), 6, 65552)
    np.frombuffer(array.dataPointer().as_buffer(12), np.float16)[:] = 7
    assert np.frombuffer(array.dataPointer().as_buffer(12), np.float16).tolist() == [7] * 6


def test_errors_come_as_objects(compiled: str, tmp_path: Path, mac: VirtualMac) -> None:
    missing = Prebound(str(tmp_path / "none.mlmodelc"))
    assert missing.model is None
    assert "no compiled model" in missing.load_error.localizedDescription()
    bound = Prebound(compiled)
    bound.options.setOutputBackings_({"logits": bound.backings["cls"]})
    output, error, _ = bound.predict()
    assert output is None
    assert error.localizedDescription().startswith("the backing of logits is (1, 8, 1, 1)")


def test_a_missing_feature_is_named(compiled: str, mac: VirtualMac) -> None:
    import CoreML

    bound = Prebound(compiled)
    del bound.arrays["marker_map"]
    bound.provider, _ = CoreML.MLDictionaryFeatureProvider.alloc().initWithDictionary_error_(
        bound.arrays, None
    )
    output, error, _ = bound.predict()
    assert (output, error.localizedDescription()) == (
        None,
        "Feature marker_map is required but not specified.",
    )


def test_load_error_of_the_asynchronous_path_alone(compiled: str, mac: VirtualMac) -> None:
    mac.fault("async_load_error", message="refused")
    assert Prebound(compiled).load_error.localizedDescription() == "refused"
    assert set(synchronous(compiled)) == {"logits", "cls"}


def test_an_asynchronous_error_once(compiled: str, mac: VirtualMac) -> None:
    bound = Prebound(compiled)
    mac.fault("async_error", times=1, message="no luck")
    assert bound.predict()[1].localizedDescription() == "no luck"
    assert bound.predict()[1] is None


def test_a_missing_completion(compiled: str, mac: VirtualMac) -> None:
    bound = Prebound(compiled)
    mac.fault("async_no_completion", times=1)
    assert bound.predict(timeout=0.3) is None
    assert bound.predict()[1] is None


def test_a_prediction_error_reaches_the_handler(compiled: str, mac: VirtualMac) -> None:
    bound = Prebound(compiled)
    mac.fault("prediction_error", message="no luck")
    assert bound.predict()[1].localizedDescription() == "no luck"


def test_wrong_outputs_of_the_asynchronous_path_alone(compiled: str, mac: VirtualMac) -> None:
    right = synchronous(compiled)
    mac.fault("async_wrong_outputs")
    bound = Prebound(compiled)
    bound.predict()
    assert np.array_equal(bound.outputs["logits"].astype(np.float32), -right["logits"])
    assert np.array_equal(synchronous(compiled)["logits"], right["logits"])


def test_another_array_than_the_backing(compiled: str, mac: VirtualMac) -> None:
    mac.fault("async_other_array", output="logits")
    bound = Prebound(compiled)
    output, error, _ = bound.predict()
    assert error is None
    assert output.featureValueForName_("logits").multiArrayValue() is not bound.backings["logits"]
    assert (bound.outputs["logits"] == SENTINEL).all()
    assert output.featureValueForName_("cls").multiArrayValue() is bound.backings["cls"]


@pytest.mark.parametrize("hold_gil", [True, False])
def test_a_slow_asynchronous_path_still_answers(compiled: str, mac: VirtualMac, hold_gil: bool) -> None:
    import time

    mac.fault("async_slow", ms=20, hold_gil=hold_gil)
    bound = Prebound(compiled)
    started = time.perf_counter()
    assert bound.predict()[1] is None
    assert (time.perf_counter() - started) * 1e3 >= 20


def test_the_models_thread_ends_with_it(compiled: str, mac: VirtualMac) -> None:
    def serving() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name == "virtual-coreml"}

    before = serving()
    bound = Prebound(compiled)
    bound.predict()
    (thread,) = serving() - before
    bound.model = None
    thread.join(10)
    assert not thread.is_alive()


def test_pyobjc_can_be_missing_in_this_process(mac: VirtualMac) -> None:
    import CoreML

    assert CoreML.MLComputeUnitsCPUAndNeuralEngine == 3
    mac.fault("pyobjc_missing")
    with pytest.raises(ImportError):
        import CoreML
    mac.clear()
    import CoreML

    assert CoreML.MLComputeUnitsCPUOnly == 0
