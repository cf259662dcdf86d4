"""Devices with a queue each: real worker processes, real threads, and all that can go wrong with them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import pytest
from exec_case import CHOICE, LONG, TEXT, TWO, Machine, checkpoint, eventually, is_running, machine

from laya_apple import (
    BackendUnavailableError,
    Laya,
    LayaAppleError,
    QueueSnapshot,
    RequestTrace,
    UnsupportedModelError,
)

__all__ = ["checkpoint", "machine"]

STAMPS = (
    "submit_ns",
    "prepared_ns",
    "routed_ns",
    "queue_enter_ns",
    "dispatch_ns",
    "service_start_ns",
    "service_end_ns",
    "received_ns",
    "response_ns",
)


def pid_of(laya: Laya, device: str) -> int:
    return laya.info()["workers"][device]["pid"]


def laya_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("laya-")]


def test_a_worker_answers_like_inline(machine: Machine):
    inline = machine.load("gpu")
    laya = machine.workers("gpu")
    for text, questions in ((TEXT, CHOICE), (LONG, TWO), ("", CHOICE), (["word1", {"word2": 3}], TWO)):
        there, here = laya.predict(text, questions), inline.predict(text, questions)
        assert there.answers == here.answers
        assert there.usage == here.usage
        assert there.runtime.sequence_length == here.runtime.sequence_length
    runtime = laya.predict(TEXT, CHOICE).runtime
    assert (runtime.execution, runtime.device, runtime.routing_reason) == ("workers", "gpu", "gpu_requested")
    assert runtime.queue_wait_ms >= 0
    assert runtime.device_ms > 0
    assert runtime.latency_ms >= runtime.device_ms
    assert runtime.gpu_backlog_ms == 0.0
    assert runtime.ane_backlog_ms is None
    assert runtime.synthetic is True
    assert pid_of(laya, "gpu") != os.getpid()


def test_the_main_module_is_not_imported_again_and_the_path_is_ours(machine: Machine, tmp_path: Path):
    (tmp_path / "random.py").write_text("raise SystemExit('shadowed')", encoding="utf-8")
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from laya_apple import Laya
            print("main ran")
            laya = Laya.from_pretrained({str(machine.checkpoint)!r}, "gpu", execution="workers")
            print(laya.predict({TEXT!r}, {CHOICE!r}).runtime.device)
            """
        ),
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, "-P", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("main ran\ngpu\n", 0), done.stderr


def test_the_trace_of_every_request(machine: Machine):
    traces: list[RequestTrace] = []
    laya = machine.workers("gpu", trace=traces.append)
    futures = [laya.submit(TEXT, CHOICE) for _ in range(8)]
    results = [future.result() for future in futures]
    laya.predict(TEXT, {})
    machine.steer("gpu", nan=True)
    with pytest.raises(LayaAppleError):
        laya.predict(TEXT, CHOICE)
    assert len(traces) == 8
    assert [trace.request_id for trace in traces] == [result.runtime.request_id for result in results]
    assert len({trace.request_id for trace in traces}) == 8
    previous_end = 0
    for trace, result in zip(traces, results, strict=True):
        stamps = [getattr(trace, name) for name in STAMPS]
        assert stamps == sorted(stamps)
        # The device serves one at a time, and a job waits until it is free.
        assert trace.dispatch_ns >= previous_end
        previous_end = trace.service_end_ns
        assert (trace.target, trace.routing_reason) == ("gpu", "gpu_requested")
        assert trace.gpu is not None
        assert trace.ane is None
        assert result.runtime.latency_ms == trace.e2e_ms
        assert result.runtime.queue_wait_ms == trace.queue_ms
        assert result.runtime.device_ms == trace.service_ms
        assert result.runtime.gpu_backlog_ms == trace.gpu.backlog_ms
        assert trace.service_estimate_ms == 9.3909
        assert list(trace.to_dict()) == list(trace.__slots__)
        json.dumps(trace.to_dict())
    assert traces[0].gpu == QueueSnapshot(0.0, 0, False)


def test_a_trace_is_handed_over_before_its_future_resolves(machine: Machine):
    seen: list[bool] = []
    futures: list[concurrent.futures.Future] = []
    handed = threading.Event()

    def trace(_: RequestTrace) -> None:
        handed.wait(20)
        seen.append(futures[0].done())

    laya = machine.workers("cpu", trace=trace)
    futures.append(laya.submit(TEXT, CHOICE))
    handed.set()
    futures[0].result()
    assert seen == [False]


@pytest.mark.parametrize("strict", [False, True])
def test_a_failing_trace_callback_is_reported_once_and_fails_nothing(machine: Machine, strict, capfd):
    def trace(_: RequestTrace) -> None:
        raise KeyError("boom")

    laya = machine.workers("gpu", trace=trace)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error" if strict else "always")
        for _ in range(3):
            assert laya.predict(TEXT, CHOICE).runtime.device == "gpu"
    told = [str(one.message) for one in caught] + re.findall("laya-apple: (.*)", capfd.readouterr().err)
    (message,) = told
    assert "the trace callback failed at" in message
    assert "KeyError: 'boom'" in message


def test_the_queue_as_it_stands(machine: Machine):
    laya = machine.workers("gpu")
    assert laya.queue_snapshots() == {"gpu": QueueSnapshot(0.0, 0, False)}
    machine.steer("gpu", hold=True)
    futures = [laya.submit(TEXT, CHOICE) for _ in range(4)]
    eventually(lambda: machine.forwards("gpu"), "the first forward")
    snapshot = laya.queue_snapshots()["gpu"]
    assert snapshot.running is True
    assert snapshot.queued_jobs == 3
    assert 3 * 9.3909 <= snapshot.backlog_ms <= 4 * 9.3909
    machine.steer("gpu")
    concurrent.futures.wait(futures)
    assert laya.queue_snapshots() == {"gpu": QueueSnapshot(0.0, 0, False)}


def test_cancel_works_until_the_device_is_free(machine: Machine):
    laya = machine.workers("gpu")
    machine.steer("gpu", hold=True)
    first, second, third, last = (laya.submit(TEXT, CHOICE) for _ in range(4))
    eventually(lambda: machine.forwards("gpu"), "the first forward")
    assert first.cancel() is False
    # The second is with the worker already, but the device is not free for it yet.
    assert second.cancel() is True
    assert third.cancel() is True
    assert laya.queue_snapshots()["gpu"].backlog_ms < 2 * 9.3909 + 1e-6
    machine.steer("gpu")
    done, _ = concurrent.futures.wait([first, second, third, last], timeout=20)
    assert len(done) == 4
    assert first.result().runtime.device == "gpu"
    assert last.result().runtime.device == "gpu"
    for cancelled in (second, third):
        with pytest.raises(concurrent.futures.CancelledError):
            cancelled.result()
    assert laya.queue_snapshots() == {"gpu": QueueSnapshot(0.0, 0, False)}


def test_cancelling_a_task_cancels_its_waiting_request(machine: Machine):
    laya = machine.workers("gpu")
    machine.steer("gpu", hold=True)

    async def main() -> None:
        first = asyncio.create_task(laya.apredict(TEXT, CHOICE))
        waits = asyncio.create_task(laya.apredict(TEXT, CHOICE))
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        machine.steer("gpu")
        assert (await first).runtime.device == "gpu"

    asyncio.run(main())
    eventually(lambda: not laya.queue_snapshots()["gpu"].running, "an empty queue")


def test_a_full_queue_refuses(machine: Machine):
    laya = machine.workers("gpu", max_pending=2)
    machine.steer("gpu", hold=True)
    futures = [laya.submit(TEXT, CHOICE) for _ in range(2)]
    with pytest.raises(BackendUnavailableError, match="the gpu queue is full: 2 requests are pending"):
        laya.submit(TEXT, CHOICE)
    machine.steer("gpu")
    concurrent.futures.wait(futures)
    assert laya.predict(TEXT, CHOICE).runtime.device == "gpu"


def test_many_questions_in_a_row_larger_than_a_socket_buffer(machine: Machine):
    machine.steer("gpu", fixed=True)
    laya = machine.workers("gpu")
    many = {i: CHOICE["q"] for i in range(1000)}
    futures = [laya.submit(LONG, many) for _ in range(4)]
    expected = laya.predict(LONG, CHOICE).answers["q"]
    for future in futures:
        result = future.result()
        assert result.runtime.question_count == 1000
        assert list(result.answers.values()) == [expected] * 1000


# Death


def test_dead_gpu_worker_fails_loudly_and_never_falls_back(machine: Machine):
    machine.calibrate(64)
    laya = machine.workers("auto")
    pid = pid_of(laya, "gpu")
    machine.steer("gpu", hold=True)
    futures = [laya.submit(LONG, CHOICE) for _ in range(5)]
    eventually(lambda: machine.forwards("gpu"), "the first forward")
    os.kill(pid, signal.SIGKILL)
    for future in futures:
        with pytest.raises(
            BackendUnavailableError, match=f"gpu worker .process {pid}. was killed by SIGKILL"
        ):
            future.result(20)
    for _ in range(2):
        with pytest.raises(BackendUnavailableError, match="killed by SIGKILL; load the model again"):
            laya.submit(LONG, CHOICE)
    assert machine.forwards("ane") == 0
    # What routing sends to the engine anyway is still served there.
    assert laya.predict(TEXT, CHOICE).runtime.device == "ane"
    assert not is_running(pid)
    assert "SIGKILL" in laya.info()["workers"]["gpu"]["dead"]


@pytest.mark.parametrize(
    ("script", "how"), [({"kill": True}, "killed by SIGKILL"), ({"exit": 3}, "exited with 3")]
)
def test_a_worker_that_dies_in_a_forward(machine: Machine, script, how):
    laya = machine.workers("gpu")
    machine.steer("gpu", **script)
    with pytest.raises(BackendUnavailableError, match=how):
        laya.predict(TEXT, CHOICE)
    with pytest.raises(BackendUnavailableError, match=how):
        laya.predict(TEXT, CHOICE)
    assert "gpu" not in laya.queue_snapshots()


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_a_hanging_engine_under_auto_is_given_up_and_mlx_goes_on(machine: Machine, placement):
    machine.calibrate(64)
    laya = machine.workers("auto", ane_placement=placement, request_timeout=0.5)
    machine.steer("ane", hold=True)
    futures = [laya.submit(TEXT, CHOICE) for _ in range(2)]
    for future in futures:
        if future is futures[0] or future.exception(20) is not None:
            with pytest.raises(
                BackendUnavailableError,
                match=r"the ane device did not answer within request_timeout=0\.5 s",
            ):
                future.result(20)
    with pytest.warns(RuntimeWarning, match="ane_runtime_unavailable") as caught:
        later = [laya.predict(TEXT, CHOICE).runtime for _ in range(3)]
    assert [(one.device, one.routing_reason) for one in later] == [("gpu", "ane_runtime_unavailable")] * 3
    assert len(caught) == 1


def test_a_hanging_gpu_is_killed(machine: Machine):
    laya = machine.workers("gpu", request_timeout=0.3)
    pid = pid_of(laya, "gpu")
    machine.steer("gpu", hold=True)
    for _ in range(2):
        with pytest.raises(BackendUnavailableError, match=r"did not answer within request_timeout=0\.3 s"):
            laya.predict(TEXT, CHOICE)
    eventually(lambda: not is_running(pid), "the worker's end")


def test_a_busy_queue_is_no_hang(machine: Machine):
    laya = machine.workers("gpu", request_timeout=1.0)
    machine.steer("gpu", sleep_s=0.15)
    futures = [laya.submit(TEXT, CHOICE) for _ in range(12)]
    assert [future.result(20).runtime.device for future in futures] == ["gpu"] * 12


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_dead_ane_worker_under_explicit_ane_keeps_raising(machine: Machine, placement):
    laya = machine.workers("ane", ane_placement=placement, request_timeout=0.5)
    assert laya.predict(TEXT, CHOICE).runtime.device == "ane"
    machine.steer("ane", **({"hold": True} if placement == "thread" else {"kill": True}))
    with pytest.raises(BackendUnavailableError):
        laya.predict(TEXT, CHOICE)
    machine.steer("ane")
    for _ in range(2):
        with pytest.raises(BackendUnavailableError):
            laya.submit(TEXT, CHOICE)
    assert laya.wait_for_ane(0) is False


def test_dead_ane_worker_under_auto_is_recorded_and_warned_once(machine: Machine):
    machine.calibrate(64)
    laya = machine.workers("auto", ane_placement="process")
    pid = pid_of(laya, "ane")
    assert laya.predict(TEXT, CHOICE).runtime.device == "ane"
    machine.steer("ane", kill=True)
    with pytest.raises(BackendUnavailableError, match=f"ane worker .process {pid}. was killed by SIGKILL"):
        laya.predict(TEXT, CHOICE)
    with pytest.warns(RuntimeWarning) as caught:
        later = [laya.predict(TEXT, CHOICE).runtime for _ in range(3)]
    assert [(one.device, one.routing_reason) for one in later] == [("gpu", "ane_runtime_unavailable")] * 3
    assert [one.ane_backlog_ms for one in later] == [None] * 3
    (warning,) = caught
    assert "killed by SIGKILL" in str(warning.message)
    assert warning.filename == __file__
    assert laya.info()["ane_unavailable"] == "ane_runtime_unavailable"


# Loading


def test_a_worker_that_cannot_load_raises_its_own_error(machine: Machine, checkpoint: Path, tmp_path: Path):
    machine.steer("gpu-load", kill=True)
    with pytest.raises(BackendUnavailableError, match=r"the gpu worker .* was killed by SIGKILL"):
        machine.workers("gpu")
    assert laya_threads() == []


def test_a_failed_load_leaves_no_worker_behind(machine: Machine):
    machine.steer("ane-load", error="UnsupportedModelError", message="odd weights")
    with pytest.raises(UnsupportedModelError, match=r"^odd weights$"):
        machine.workers("ane", ane_placement="process")
    assert laya_threads() == []


def test_worker_load_warnings_are_issued_again_here(machine: Machine, capfd):
    machine.steer("ane-load", warn=["bucket 96 was dropped"])
    with pytest.warns(RuntimeWarning, match="bucket 96 was dropped") as caught:
        laya = machine.workers("ane", ane_placement="process")
    assert [warning.filename.endswith("exec_case.py") for warning in caught] == [True]
    assert "bucket 96" not in capfd.readouterr().err
    machine.steer("ane", warn="a warning of a library")
    laya.predict(TEXT, CHOICE)
    laya.close()
    assert "a warning of a library" in capfd.readouterr().err


def test_both_devices_of_auto_serve_and_record_their_queues(machine: Machine):
    machine.calibrate(64)
    traces: list[RequestTrace] = []
    laya = machine.workers("auto", trace=traces.append)
    short, long = laya.predict(TEXT, CHOICE).runtime, laya.predict(LONG, CHOICE).runtime
    assert (short.device, short.routing_reason) == ("ane", "validated_short_single_question_path")
    assert (long.device, long.routing_reason) == ("gpu", "sequence_exceeds_ane_auto_range")
    assert (short.gpu_backlog_ms, short.ane_backlog_ms) == (0.0, 0.0)
    assert [trace.target for trace in traces] == ["ane", "gpu"]
    assert traces[0].service_estimate_ms == 8.0
    info = laya.info()
    assert info["workers"]["ane"]["placement"] == "thread"
    assert info["workers"]["gpu"]["placement"] == "process"
    assert info["ane_placement"] == "thread"
    assert info["ane_buckets"] == [64, 96, 128]
    assert machine.log().count(f"ane warm {os.getpid()}") == 1


def test_a_busy_engine_hands_the_next_request_to_the_gpu(machine: Machine):
    machine.calibrate(64)
    laya = machine.workers("auto")
    machine.steer("ane", hold=True)
    machine.steer("gpu", hold=True)
    futures = [laya.submit(TEXT, CHOICE) for _ in range(2)]
    machine.steer("ane")
    machine.steer("gpu")
    first, second = (future.result().runtime for future in futures)
    assert (first.device, first.ane_backlog_ms) == ("ane", 0.0)
    # 9 on the GPU against what is left of 8 plus 8.
    assert (second.device, second.routing_reason) == ("gpu", "ane_backlog_shorter_on_gpu")
    assert second.gpu_backlog_ms == 0.0
    assert 1.0 < second.ane_backlog_ms <= 8.0


def test_a_busy_gpu_hands_its_next_request_to_an_explicit_only_bucket(machine: Machine):
    machine.calibrate(64)
    laya = machine.workers("auto")
    machine.steer("gpu", hold=True)
    long = laya.submit(LONG, CHOICE)
    middle = laya.predict(" ".join(["word1"] * 60), CHOICE).runtime
    machine.steer("gpu")
    assert (middle.device, middle.routing_reason) == ("ane", "gpu_backlog_shorter_on_ane")
    assert middle.buckets == (96,)
    assert middle.gpu_backlog_ms > 0
    assert long.result().runtime.device == "gpu"


def test_background_startup_serves_from_mlx_first(machine: Machine):
    machine.calibrate(64)
    machine.steer("ane-load", hold=True)
    laya = machine.workers("auto", ane_startup="background")
    assert laya.predict(TEXT, CHOICE).runtime.routing_reason == "ane_starting"
    assert laya.info()["ane_unavailable"] == "ane_starting"
    assert laya.wait_for_ane(0.01) is False
    machine.steer("ane-load")
    assert laya.wait_for_ane(20) is True
    assert laya.predict(TEXT, CHOICE).runtime.device == "ane"
    assert laya.info()["ane_unavailable"] is None


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_background_startup_failure_is_warned_and_recorded(machine: Machine, placement):
    machine.calibrate(64)
    machine.steer("ane-load", error="BackendUnavailableError", message="no Core ML")
    laya = machine.workers("auto", ane_startup="background", ane_placement=placement)
    with pytest.warns(RuntimeWarning, match="no Core ML") as caught:
        assert laya.wait_for_ane(20) is False
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert laya.predict(TEXT, CHOICE).runtime.routing_reason == "ane_runtime_unavailable"


def test_closing_while_the_engine_still_starts(machine: Machine):
    machine.calibrate(64)
    machine.steer("ane-load", hold=True)
    laya = machine.workers("auto", ane_startup="background", ane_placement="process")
    pid = pid_of(laya, "ane")
    laya.close()
    assert not is_running(pid)


# The end


def test_close_finishes_what_is_queued(machine: Machine):
    laya = machine.workers("gpu")
    pid = pid_of(laya, "gpu")
    machine.steer("gpu", sleep_s=0.02)
    futures = [laya.submit(TEXT, CHOICE) for _ in range(10)]
    laya.close()
    assert [future.result(0).runtime.device for future in futures] == ["gpu"] * 10
    assert not is_running(pid)
    assert laya_threads() == []


@pytest.mark.parametrize(("device", "placement"), [("gpu", "auto"), ("ane", "thread"), ("ane", "process")])
def test_close_fails_what_does_not_finish_in_time(machine: Machine, device, placement):
    laya = machine.workers(device, ane_placement=placement)
    machine.steer(device, hold=True)
    futures = [laya.submit(TEXT, CHOICE) for _ in range(5)]
    eventually(lambda: machine.forwards(device), "the first forward")
    laya.close(timeout=0.05)
    for future in futures:
        with pytest.raises(BackendUnavailableError, match="closed before the request was answered"):
            future.result(0)
    machine.steer(device)
    eventually(lambda: laya_threads() == [], "no thread left")


def test_a_dropped_laya_leaves_nothing_behind(machine: Machine):
    laya = Laya.from_pretrained(machine.checkpoint, "gpu", execution="workers")
    pid = pid_of(laya, "gpu")
    future = laya.submit(TEXT, CHOICE)
    del laya
    gc.collect()
    assert future.result(20).runtime.device == "gpu"
    eventually(lambda: not is_running(pid), "the worker's end")
    eventually(lambda: laya_threads() == [], "no thread left")


def test_waiting_in_a_callback_is_refused_instead_of_deadlocking(machine: Machine):
    laya = machine.workers("gpu")
    seen: list[object] = []

    def callback(_: object) -> None:
        try:
            laya.predict(TEXT, CHOICE)
        except LayaAppleError as error:
            seen.append(str(error))
        seen.append(laya.submit(TEXT, CHOICE))

    laya.submit(TEXT, CHOICE).add_done_callback(callback)
    eventually(lambda: len(seen) == 2, "the callback")
    assert "use submit there" in seen[0]
    assert seen[1].result(20).runtime.device == "gpu"


def run_parent(machine: Machine, body: str) -> subprocess.Popen[str]:
    code = f"""
import os, signal, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from laya_apple import Laya
TEXT, CHOICE = {TEXT!r}, {CHOICE!r}
def load():
    laya = Laya.from_pretrained({str(machine.checkpoint)!r}, "gpu", execution="workers")
    print(laya.info()["workers"]["gpu"]["pid"], flush=True)
    return laya
{textwrap.dedent(body)}
"""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("hang", [False, True])
def test_a_worker_ends_when_its_parent_is_killed(machine: Machine, hang):
    with run_parent(
        machine, "laya = load(); laya.predict(TEXT, CHOICE); laya.submit(TEXT, CHOICE).result()"
    ) as parent:
        pid = int(parent.stdout.readline())
        parent.wait(20)
    eventually(lambda: not is_running(pid), "the worker's end after a normal exit")
    machine.steer("gpu", hold=hang)
    before = machine.forwards("gpu")
    with run_parent(machine, "laya = load(); future = laya.submit(TEXT, CHOICE); time.sleep(60)") as parent:
        pid = int(parent.stdout.readline())
        eventually(lambda: machine.forwards("gpu") > before or not hang, "the forward")
        parent.kill()
    eventually(lambda: not is_running(pid), "the worker's end")


def test_ctrl_c_is_the_parents_to_handle(machine: Machine):
    body = """
    laya = load()
    try:
        with laya:
            future = laya.submit(TEXT, CHOICE)
            time.sleep(60)
    except KeyboardInterrupt:
        print(type(future.exception(0)).__name__, flush=True)
    """
    machine.steer("gpu", hold=True)
    with run_parent(machine, body) as parent:
        pid = int(parent.stdout.readline())
        eventually(lambda: machine.forwards("gpu"), "the forward")
        os.kill(pid, signal.SIGINT)
        time.sleep(0.2)
        assert is_running(pid)
        parent.send_signal(signal.SIGINT)
        out, err = parent.communicate(timeout=30)
    assert out == "BackendUnavailableError\n"
    assert "Traceback" not in err
    assert not is_running(pid)


def text_of(number: int) -> str:
    """Short texts and long ones, each with an answer of its own."""
    return " ".join([f"word{number % 60}"] * (3 if number % 2 else 100))


def test_threads_and_asyncio_share_both_devices_while_requests_are_cancelled(machine: Machine):
    machine.calibrate(64)
    machine.steer("gpu", fixed=True)
    laya = machine.workers("auto", trace=lambda _: None)
    inline = machine.load("gpu")
    expected = {number: inline.predict(text_of(number), CHOICE).answers for number in range(60)}
    assert len({json.dumps(answers) for answers in expected.values()}) > 40
    futures: list[tuple[int, concurrent.futures.Future]] = []
    lock = threading.Lock()

    def caller(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(50):
            number = rng.randrange(60)
            future = laya.submit(text_of(number), CHOICE)
            if rng.random() < 0.2:
                future.cancel()
            with lock:
                futures.append((number, future))

    async def tasks() -> list[object]:
        return await asyncio.gather(*(laya.apredict(text_of(number), CHOICE) for number in range(60)))

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    gathered = asyncio.run(tasks())
    for thread in threads:
        thread.join()
    _, left = concurrent.futures.wait([future for _, future in futures], timeout=60)
    assert (len(futures), left) == (400, set())
    served = [(number, future.result()) for number, future in futures if not future.cancelled()]
    assert len(served) > 250
    for number, result in [*served, *enumerate(gathered)]:
        assert result.answers == expected[number]
    assert {result.runtime.device for _, result in served} == {"gpu", "ane"}
    assert laya.queue_snapshots() == {
        "gpu": QueueSnapshot(0.0, 0, False),
        "ane": QueueSnapshot(0.0, 0, False),
    }


@pytest.mark.parametrize("killed", ["gpu", "ane"])
def test_every_future_resolves_while_a_worker_is_killed_under_load(machine: Machine, killed):
    machine.calibrate(64)
    machine.steer("gpu", fixed=True, sleep_s=0.001)
    machine.steer("ane", sleep_s=0.001)
    laya = machine.workers("auto", ane_placement="process")
    pid = pid_of(laya, killed)
    futures: list[concurrent.futures.Future] = []
    errors: list[BackendUnavailableError] = []
    lock = threading.Lock()

    def caller(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            try:
                future = laya.submit(text_of(rng.randrange(60)), CHOICE)
            except BackendUnavailableError as error:
                errors.append(error)
                continue
            with lock:
                futures.append(future)

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for thread in threads:
            thread.start()
        eventually(lambda: machine.forwards(killed) > 3, "work on the device")
        os.kill(pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
    _, left = concurrent.futures.wait(futures, timeout=60)
    assert left == set()
    assert len(futures) + len(errors) == 240
    failed = [future.exception() for future in futures if future.exception() is not None] + errors
    assert failed
    for error in failed:
        assert isinstance(error, BackendUnavailableError)
        assert f"the {killed} worker (process {pid}) was killed by SIGKILL" in str(error)
    laya.close()
    assert laya_threads() == []
