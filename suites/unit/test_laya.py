"""``Laya`` on the caller's thread: arguments, answers, and the record of where each request ran."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import warnings

import pytest
from exec_case import CHOICE, LONG, TEXT, TWO, Machine, checkpoint, machine

from laya_apple import (
    ArtifactIntegrityError,
    ArtifactMissingError,
    BackendUnavailableError,
    InvalidRequestError,
    Laya,
    LayaAppleError,
    UnsupportedModelError,
    UnsupportedShapeError,
    routing,
)

__all__ = ["checkpoint", "machine"]

AUTO_READY = "validated_short_single_question_path"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "npu"}, "device must be one of auto, gpu, ane, cpu, not 'npu'"),
        ({"dtype": "bfloat16"}, "dtype must be one of float16, float32, not 'bfloat16'"),
        ({"dtype": "int8", "device": "ane"}, "dtype must be one of"),
        ({"dtype": "float32", "device": "ane"}, "device='ane' runs in float16 only, not float32"),
        ({"execution": "threads"}, "execution must be one of inline, workers"),
        ({"ane_placement": "gpu"}, "ane_placement must be one of auto, thread, process"),
        ({"ane_startup": "later"}, "ane_startup must be one of wait, background"),
        ({"batch_size": 0}, "batch_size must be a positive number of rows, not 0"),
        ({"batch_size": True}, "batch_size must be a positive number"),
        ({"ane_handoff": "yes"}, "ane_handoff must be None, True or False"),
        ({"ane_handoff": 1}, "ane_handoff must be None, True or False, not 1"),
        ({"local_files_only": "x"}, "local_files_only must be True or False, not 'x'"),
        ({"ane_reprobe": 1}, "ane_reprobe must be True or False, not 1"),
        ({"request_timeout": 0}, "request_timeout must be a positive time in s, not 0"),
        ({"request_timeout": float("nan")}, "request_timeout must be a positive"),
        ({"max_pending": 0, "execution": "workers"}, "max_pending must be None or a positive number"),
        ({"max_pending": 5}, "max_pending= needs execution='workers'"),
        ({"trace": print}, "trace= needs execution='workers'"),
        ({"trace": 3, "execution": "workers"}, "trace must be a function"),
        ({"ane_placement": "thread"}, "ane_placement='thread' needs execution='workers'"),
        ({"ane_startup": "background"}, "ane_startup='background' needs execution='workers'"),
        (
            {"ane_startup": "background", "execution": "workers", "device": "ane"},
            "ane_startup='background' needs device='auto'",
        ),
        ({"ane_reprobe": True, "device": "gpu"}, "ane_reprobe=True needs device='ane' or 'auto'"),
    ],
)
def test_arguments_are_checked_before_the_model_is_looked_at(arguments, message):
    with pytest.raises(ValueError) as caught:
        Laya.from_pretrained("no-such-model", **arguments)
    assert message in str(caught.value)
    assert not isinstance(caught.value, LayaAppleError)


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("laya", {}),
        ("laya", {"execution": "workers", "device": "gpu"}),
        ("laya", {"execution": "workers", "ane_placement": "thread"}),
        ("laya-multilingual", {"execution": "workers"}),
        ("laya", {"execution": "workers", "ane_startup": "background"}),
    ],
)
def test_an_ineligible_handoff_is_refused(model, arguments):
    with pytest.raises(ValueError, match="ane_handoff=True needs"):
        Laya.from_pretrained(model, ane_handoff=True, **arguments)


def test_an_unknown_model_names_the_known_ones():
    with pytest.raises(UnsupportedModelError, match="laya-typed-decisions"):
        Laya.from_pretrained("no-such-model")


def test_the_answer_and_where_it_ran(machine: Machine):
    laya = machine.load("cpu", dtype="float32")
    result = laya.predict(TEXT, TWO)
    assert list(result.answers) == ["q", "p"]
    assert result.answers["q"]["choice"] in ("word3", "word4", "word5")
    assert result.model == "laya-rl-agent"
    runtime = result.runtime
    assert (runtime.backend, runtime.device, runtime.dtype) == ("mlx", "cpu", "float32")
    assert (runtime.routing_reason, runtime.execution) == ("cpu_requested", "inline")
    assert (runtime.question_count, runtime.buckets, runtime.compute_units) == (2, (), None)
    info = laya.info()
    assert runtime.artifact_revision == f"mlx:{info['weights_sha256'][:12]}:float32"
    assert (runtime.model, runtime.model_revision) == ("local:tiny", info["model_revision"])
    assert len(runtime.model_revision) == 40
    assert runtime.placement is None
    assert runtime.synthetic is True
    assert runtime.truncated is False
    assert runtime.latency_ms >= runtime.device_ms > 0
    assert (runtime.queue_wait_ms, runtime.request_id) == (None, None)
    assert result.usage["output_tokens"] == 0
    assert result.usage["input_tokens"] > runtime.sequence_length
    assert json.loads(json.dumps(result.to_dict()))["runtime"]["device"] == "cpu"


def test_a_cut_text_is_said_to_be_cut(machine: Machine):
    runtime = machine.load("cpu").predict(" ".join(["word1"] * 1000), CHOICE).runtime
    assert runtime.truncated is True
    assert runtime.sequence_length == 256


def test_a_request_runs_the_same_through_every_entry(machine: Machine):
    laya = machine.load("cpu")
    expected = laya.predict(TEXT, CHOICE).answers
    assert laya.predict(state=TEXT, questions=CHOICE).answers == expected
    assert laya.submit(TEXT, CHOICE).result().answers == expected
    assert asyncio.run(laya.apredict(TEXT, CHOICE)).answers == expected


@pytest.mark.parametrize("execution", ["inline", "workers"])
def test_no_questions_is_no_work(machine: Machine, execution):
    laya = machine.load("cpu", execution=execution)
    before = machine.forwards("cpu")
    for result in (laya.predict(TEXT, {}), laya.submit(TEXT, questions={}).result()):
        assert result.answers == {}
        assert result.usage == {"input_tokens": 0, "output_tokens": 0}
        runtime = result.runtime
        assert (runtime.backend, runtime.device, runtime.routing_reason) == ("none", "none", "no_questions")
        assert (runtime.artifact_revision, runtime.sequence_length, runtime.question_count) == ("", 0, 0)
    assert machine.forwards("cpu") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": TEXT}, "questions is missing"),
        ({"context": TEXT, "state": TEXT, "questions": CHOICE}, "context and state name the same thing"),
        ({"questions": CHOICE}, "context is None"),
        ({"context": TEXT, "questions": {"odd": {"type": "guess"}}}, "'odd'"),
    ],
)
def test_a_malformed_request_is_refused(machine: Machine, arguments, message):
    laya = machine.load("cpu")
    with pytest.raises(InvalidRequestError, match=message):
        laya.predict(**arguments)
    with pytest.raises(InvalidRequestError, match=message):
        laya.submit(**arguments)


def test_a_closed_laya_says_so(machine: Machine):
    with machine.load("cpu") as laya:
        laya.predict(TEXT, CHOICE)
    laya.close()
    for use in (
        lambda: laya.predict(TEXT, CHOICE),
        lambda: laya.submit(TEXT, {}),
        laya.info,
        laya.queue_snapshots,
        laya.wait_for_ane,
        lambda: asyncio.run(laya.apredict(TEXT, CHOICE)),
    ):
        with pytest.raises(BackendUnavailableError, match="this Laya is closed"):
            use()


def test_a_gpu_that_does_not_exist_raises_and_names_the_cpu(monkeypatch, checkpoint):
    monkeypatch.delenv("LAYA_APPLE_PLATFORM", raising=False)
    if sys.platform == "darwin":
        pytest.skip("this machine has a GPU")
    for device in ("gpu", "auto"):
        for execution in ("inline", "workers"):
            with pytest.raises(BackendUnavailableError, match='device="cpu"'):
                Laya.from_pretrained(checkpoint, device, execution=execution)


@pytest.mark.parametrize("execution", ["inline", "workers"])
@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ({"nan": True}, LayaAppleError, "non-finite option logit"),
        ({"short": True}, LayaAppleError, "the gpu backend returned 0 rows for 1"),
        (
            {"raise": "RuntimeError", "message": "boom"},
            LayaAppleError,
            "the gpu backend failed: RuntimeError: boom",
        ),
        ({"raise": "UnsupportedModelError", "message": "token"}, UnsupportedModelError, r"^token$"),
    ],
)
def test_a_forward_that_fails_fails_its_request_alone(machine: Machine, execution, script, error, message):
    laya = machine.load("gpu", execution=execution)
    machine.steer("gpu", **script)
    with pytest.raises(error, match=message):
        laya.predict(TEXT, CHOICE)
    machine.steer("gpu")
    assert laya.predict(TEXT, CHOICE).runtime.device == "gpu"


# Two devices, still inline


def test_auto_without_a_profile_uses_mlx_and_says_why(machine: Machine):
    laya = machine.load("auto")
    assert laya.predict(TEXT, CHOICE).runtime.routing_reason == "platform_not_validated"
    assert laya.info()["ane_unavailable"] == "platform_not_validated"
    assert laya.wait_for_ane() is False


def test_auto_with_a_profile_sends_short_single_questions_to_the_engine(machine: Machine):
    machine.calibrate(64, 96)
    machine.steer("ane-load", verdicts={"64": "PLACED", "96": "UNKNOWN"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laya = machine.load("auto", dtype="float32")
    short = laya.predict(TEXT, CHOICE).runtime
    assert (short.backend, short.device, short.routing_reason) == ("coreml", "ane", AUTO_READY)
    assert (short.dtype, short.compute_units, short.buckets) == ("float16", "CPU_AND_NE", (64,))
    assert short.artifact_revision == "L64:000000000000"
    assert short.placement == "PLACED"
    middle = laya.predict(" ".join(["word1"] * 60), CHOICE).runtime
    assert (middle.buckets, middle.placement) == ((96,), "UNKNOWN")
    for text, questions, reason in (
        (TEXT, TWO, "multiple_questions"),
        (LONG, CHOICE, "sequence_exceeds_ane_auto_range"),
    ):
        there = laya.predict(text, questions).runtime
        assert (there.device, there.dtype, there.routing_reason) == ("gpu", "float32", reason)
        assert there.placement is None
    assert laya.info()["ane_auto_buckets"] == [64, 96]
    assert laya.wait_for_ane() is True


def test_auto_never_pads_past_a_dropped_bucket(machine: Machine):
    machine.calibrate(64, 96)
    machine.steer("ane-load", dropped={"64": "ArtifactIntegrityError: rotten"})
    laya = machine.load("auto")
    assert laya.predict(TEXT, CHOICE).runtime.routing_reason == "ane_artifact_unavailable"
    assert laya.predict(" ".join(["word1"] * 60), CHOICE).runtime.device == "ane"
    assert laya.info()["ane_dropped"] == {64: "ArtifactIntegrityError: rotten"}


def test_auto_whose_engine_does_not_load_warns_once_and_records_why(machine: Machine):
    machine.calibrate(64)
    machine.steer("ane-load", error="BackendUnavailableError", message="no Core ML")
    with pytest.warns(RuntimeWarning) as caught:
        laya = machine.load("auto")
    (warning,) = caught
    assert "ane_runtime_unavailable): BackendUnavailableError: no Core ML" in str(warning.message)
    assert warning.filename.endswith("exec_case.py")
    assert laya.predict(TEXT, CHOICE).runtime.routing_reason == "ane_runtime_unavailable"
    assert laya.info()["ane_error"] == "BackendUnavailableError: no Core ML"


@pytest.mark.parametrize("execution", ["inline", "workers"])
def test_explicit_engine_runs_its_bucket_or_raises(machine: Machine, execution):
    machine.steer("ane-load", dropped={"64": "ArtifactMissingError: build bucket 64"})
    laya = machine.load("ane", execution=execution)
    for use in (laya.predict, laya.submit):
        with pytest.raises(ArtifactMissingError, match=r"^build bucket 64$"):
            use(TEXT, CHOICE)
        with pytest.raises(
            UnsupportedShapeError, match="exceeds local:tiny's largest Neural Engine shape, 128"
        ):
            use(LONG, CHOICE)
        many = {"q": {"type": "choice", "instructions": "word1", "criteria": [f"word{i}" for i in range(33)]}}
        with pytest.raises(UnsupportedShapeError, match="33 options"):
            use("word1", many)
    assert machine.forwards("ane") == 0
    middle = " ".join(["word1"] * 60)
    runtime = laya.predict(middle, TWO).runtime
    assert (runtime.device, runtime.routing_reason) == ("ane", "ane_requested")
    assert runtime.buckets == (96, 96)
    assert runtime.artifact_revision == "L96:000000000000"


@pytest.mark.parametrize("execution", ["inline", "workers"])
def test_explicit_engine_refuses_a_corrupt_artifact_at_load(machine: Machine, execution):
    machine.steer("ane-load", error="ArtifactIntegrityError", message="rotten")
    with pytest.raises(ArtifactIntegrityError, match=r"^rotten$"):
        machine.load("ane", execution=execution)


@pytest.mark.parametrize("execution", ["inline", "workers"])
def test_a_route_to_a_device_that_is_not_loaded_raises(machine: Machine, execution, monkeypatch):
    laya = machine.load("gpu", execution=execution)
    monkeypatch.setattr(routing, "decide", lambda *_, **__: routing.Decision("ane", "a bug"))
    with pytest.raises(LayaAppleError, match=r"routing chose ane \(a bug\), whose backend is not loaded"):
        laya.predict(TEXT, CHOICE)
    assert machine.forwards("gpu") == 0


def test_a_forked_child_may_not_use_it(machine: Machine):
    laya = machine.load("cpu")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            laya.predict(TEXT, CHOICE)
        except BackendUnavailableError as error:
            laya.close()
            code = 0 if "forked child" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert laya.predict(TEXT, CHOICE).runtime.device == "cpu"


def test_importing_the_package_loads_no_backend():
    code = (
        "import sys, laya_apple\n"
        "heavy = {'numpy', 'mlx', 'coremltools', 'transformers', 'tokenizers', 'huggingface_hub'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "laya_apple.Laya\n"
        "heavy = {'mlx', 'coremltools', 'transformers', 'torch', 'asyncio'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
