"""A Laya that answers in virtual time, for tests of everything around it. No model runs here."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laya_apple.demos.switchyard import ane_state, driver, run, world
from laya_apple.platform import Platform
from laya_apple.result import Result, RuntimeInfo
from laya_apple.trace import QueueSnapshot, RequestTrace
from laya_apple.workload import Request

VIRTUAL_MAC = Platform("Test M9", "26.1", "25B1", "arm64", 16 * 2**30, virtual=True)
REAL_MAC = Platform("Test M9", "26.1", "25B1", "arm64", 16 * 2**30)
LINUX = Platform("Some CPU", "", "", "x86_64", 8 * 2**30)

BACKGROUND = {name: Request(f"ticket {name}", {}) for name in world.BACKGROUND}
SHA = "ab" * 32


class VirtualTime:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def clock(self) -> driver.Clock:
        return driver.Clock(lambda: self.now_ns, self.sleep)


@dataclass
class Behaviour:
    """What the fake does. Counts are of one Laya's requests, the warm-up's included, from 0.

    ``service_ms`` is by device; a background class named in it has a time of its own.
    """

    train_target: str = "gpu"
    reason: Callable[[int], str] = lambda count: "gpu_requested"
    target: Callable[[int], str] | None = None
    service_ms: dict[str, float] = field(default_factory=lambda: {"gpu": 9.0, "ane": 8.0})
    answer: Callable[[int, str], str] = lambda count, oracle: oracle
    fail_load: Exception | None = None
    fail_submit: Callable[[int], BaseException | None] = lambda count: None
    fail_future: Callable[[int], BaseException | None] = lambda count: None
    silent: Callable[[int], bool] = lambda count: False
    untraced: Callable[[int], bool] = lambda count: False
    traced_twice: Callable[[int], bool] = lambda count: False
    info: dict[str, Any] = field(default_factory=dict)


class FakeLaya:
    """The public face of ``Laya`` that a round uses; every request is finished inside ``submit``."""

    def __init__(
        self, time: VirtualTime, behaviour: Behaviour, trace: Callable[[RequestTrace], None]
    ) -> None:
        self.time, self.behaviour, self.trace = time, behaviour, trace
        self.free_ns = {"gpu": 0, "ane": 0}
        self.count = 0
        self.closed = False
        self.warmup = -1

    def submit(self, context: Any, questions: Any) -> Future[Result]:
        does, count = self.behaviour, self.count
        if count == self.warmup:
            self.free_ns = {"gpu": 0, "ane": 0}  # the warm-up has been drained
        self.count += 1
        if (error := does.fail_submit(count)) is not None:
            raise error
        future: Future[Result] = Future()
        if (error := does.fail_future(count)) is not None:
            future.set_exception(error)
            return future
        if does.silent(count):
            return future
        is_train = world.QUESTION_ID in questions
        target = does.train_target if is_train else "gpu"
        if is_train and does.target is not None:
            target = does.target(count)
        now = self.time.now_ns
        start = max(now + 30_000, self.free_ns[target])
        service_ms = does.service_ms.get(str(context).removeprefix("ticket "), does.service_ms[target])
        end = start + round(service_ms * 1e6)
        self.free_ns[target] = end
        snapshot = QueueSnapshot(0.0, 0, False)
        trace = RequestTrace(
            count, 64 if is_train else 512, 1, target, does.reason(count), service_ms,
            snapshot, None, now, now + 10_000, now + 20_000, now + 30_000, start, start, end,
            end + 10_000, end + 20_000,
        )  # fmt: skip
        if not does.untraced(count):
            self.trace(trace)
        if does.traced_twice(count):
            self.trace(trace)
        future.set_result(self._result(count, context, target, is_train))
        return future

    def _result(self, count: int, context: str, target: str, is_train: bool) -> Result:
        answers: dict[str | int, dict[str, Any]] = {}
        if is_train:
            clear = re.search(r"Platform (\w) is clear and open", context)
            assert clear is not None
            choice = self.behaviour.answer(count, clear.group(1))
            answers["platform"] = {
                "type": "choice",
                "choice": choice,
                "probabilities": {one: 0.9 if one == choice else 0.05 for one in world.PLATFORMS},
            }
        runtime = RuntimeInfo(
            backend="mlx", device=target, model="fake", model_revision="0" * 40, sequence_length=64,
            question_count=1, routing_reason="", artifact_revision="", latency_ms=1.0, compute_units=None,
            buckets=(), dtype="float16", execution="workers", request_id=count,
        )  # fmt: skip
        return Result(answers, {"input_tokens": 64, "output_tokens": 0}, runtime)

    def info(self) -> dict[str, Any]:
        return self.behaviour.info

    def close(self, timeout: float) -> None:
        self.closed = True


@dataclass
class Stage:
    """Everything a run needs, with one behaviour a device."""

    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    time: VirtualTime = field(default_factory=VirtualTime)
    loaded: list[tuple[str, FakeLaya]] = field(default_factory=list)
    arguments: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    seed: int = world.SEED

    def factory(self, model: str, **arguments: Any) -> FakeLaya:
        assert all(laya.closed for _, laya in self.loaded), "two instances share the machine"
        behaviour = self.behaviours.get(arguments["device"]) or default_behaviour(arguments["device"])
        if behaviour.fail_load is not None:
            raise behaviour.fail_load
        laya = FakeLaya(self.time, behaviour, arguments["trace"])
        laya.warmup = len(world.warmup_schedule(self.seed))
        self.loaded.append((arguments["device"], laya))
        self.arguments.append({"model": model, **arguments})
        return laya

    def run(self, out: Path, **changes: Any) -> run.Outcome:
        """A 3 s run into ``out`` on the virtual Mac, unless told otherwise."""
        known = {"platform", "checks", "steps", "background", "drain_timeout_s"}
        asked = {"duration_s": 3, "out": out, **{k: v for k, v in changes.items() if k not in known}}
        self.seed = asked.get("seed", world.SEED)
        given = {"platform": VIRTUAL_MAC, "checks": ready_checks(), "background": BACKGROUND}
        given |= {key: value for key, value in changes.items() if key in known}
        return run.run(
            run.Options(**asked),
            laya_factory=self.factory,
            clock=self.time.clock(),
            progress=self.lines.append,
            **given,
        )


def default_behaviour(device: str) -> Behaviour:
    if device == "gpu":
        return Behaviour()
    return Behaviour(train_target="ane", reason=lambda count: "validated_short_single_question_path")


def ready_checks(**changes: Any) -> ane_state.Checks:
    """Checks that all pass, but for ``changes``."""
    checks: dict[str, Any] = {
        "coremltools_available": lambda: True,
        "auto_buckets": lambda: (64, 96, 128),
        "load_verified": lambda bucket: SHA,
        **changes,
    }
    return ane_state.Checks(**checks)


def raising(error: Exception, only: int | None = None) -> Callable[[int], str]:
    """A ``load_verified`` that raises, for one bucket or for all."""

    def load_verified(bucket: int) -> str:
        if only is None or bucket == only:
            raise error
        return SHA

    return load_verified


def linux() -> Platform:
    """For ``LAYA_APPLE_PLATFORM``: a machine that is no Mac."""
    return LINUX
