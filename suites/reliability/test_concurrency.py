"""Threads and asyncio submit to both devices while workers are killed at random: nothing is lost or left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from reliability_case import CHOICE, TWO, Case, child_processes, eventually, own_threads, text

from laya_apple import BackendUnavailableError, Laya
from laya_apple.result import Result

THREADS = 8
TEXTS = 24
WAVE = 3
"""Requests a thread has under way at once."""
RESOLVE_S = 120.0
"""Far beyond what any request takes; a Future still pending then is a lost one."""

INSTANCES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("auto", {"ane_placement": "process"}),
    ("auto", {}),
    ("gpu", {}),
    ("ane", {"ane_placement": "process"}),
)
"""The ways an instance can spread over processes; the second one's Neural Engine is adaptive, on a thread."""

Outcomes = list["Result | BaseException"]


@dataclass
class Traffic:
    """What the submitters of one instance got."""

    laya: Laya
    seed: int
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    outcomes: list[tuple[int, int, Result | BaseException]] = field(default_factory=list)
    """(number of the text, questions, what came of it)."""
    trouble: list[BaseException] = field(default_factory=list)
    """What a submitter did not expect."""

    def pick(self, rng: random.Random) -> tuple[int, dict[str, Any]]:
        return rng.randrange(TEXTS), rng.choice((CHOICE, CHOICE, TWO))

    def keep(self, number: int, questions: Mapping[str, Any], outcome: Result | BaseException) -> None:
        with self.lock:
            self.outcomes.append((number, len(questions), outcome))

    def submitter(self, index: int) -> None:
        """One thread: waves of requests, each Future waited for."""
        rng = random.Random(f"{self.seed}/{index}")
        try:
            while not self.stop.is_set():
                wave: list[tuple[int, dict[str, Any], Future[Result]]] = []
                for _ in range(WAVE):
                    number, questions = self.pick(rng)
                    try:
                        wave.append((number, questions, self.laya.submit(text(number), questions)))
                    except BackendUnavailableError as error:
                        self.keep(number, questions, error)
                        time.sleep(0.005)  # a dead device refuses at once; the others go on
                for number, questions, future in wave:
                    error = future.exception(RESOLVE_S)
                    self.keep(number, questions, error if error is not None else future.result())
        except BaseException as error:
            self.trouble.append(error)

    async def event_loop(self) -> None:
        """asyncio: three requests at a time."""
        rng = random.Random(f"{self.seed}/asyncio")
        while not self.stop.is_set():
            wave = [self.pick(rng) for _ in range(WAVE)]
            found = await asyncio.wait_for(
                asyncio.gather(
                    *(self.laya.apredict(text(number), questions) for number, questions in wave),
                    return_exceptions=True,
                ),
                RESOLVE_S,
            )
            for (number, questions), outcome in zip(wave, found, strict=True):
                self.keep(number, questions, outcome)
            await asyncio.sleep(0.005)

    def asynchronous(self) -> None:
        try:
            asyncio.run(self.event_loop())
        except BaseException as error:
            self.trouble.append(error)

    def run(self, rng: random.Random) -> set[str]:
        """Everything at once; kill a worker or two; returns the devices whose worker was killed."""
        threads = [threading.Thread(target=self.submitter, args=(i,)) for i in range(THREADS)]
        threads.append(threading.Thread(target=self.asynchronous))
        for thread in threads:
            thread.start()
        try:
            killed = self.kill_some(rng)
            answered = len(self.outcomes)
            eventually(
                lambda: len(self.outcomes) >= answered + 2 * THREADS or self.trouble, "traffic goes on"
            )
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(2 * RESOLVE_S)
        assert not any(thread.is_alive() for thread in threads)
        return killed

    def kill_some(self, rng: random.Random) -> set[str]:
        eventually(lambda: len(self.outcomes) >= 2 * THREADS or self.trouble, "traffic starts")
        processes = [
            (device, worker["pid"])
            for device, worker in sorted(self.laya.info()["workers"].items())
            if worker["placement"] == "process"
        ]
        killed = set()
        for device, pid in rng.sample(processes, rng.randint(1, len(processes))):
            time.sleep(rng.uniform(0.0, 0.2))
            os.kill(pid, signal.SIGKILL)
            killed.add(device)
        return killed


def expected_answers(case: Case) -> dict[tuple[str, int, int], Any]:
    """(device, number of the text, questions) -> the answers of inline execution."""
    found = {}
    for device in ("gpu", "ane"):
        with case.load(device) as inline:
            for number in range(TEXTS):
                for questions in (CHOICE, TWO):
                    result = inline.predict(text(number), questions)
                    found[device, number, len(questions)] = result.answers
    return found


def hold_up(case: Case, rounds: int, seconds: float) -> tuple[int, Counter[str]]:
    """Run at least ``rounds`` instances, and more until ``seconds`` are over."""
    expected = expected_answers(case)
    threads, children = own_threads(), child_processes()
    seen: Counter[str] = Counter()
    end, number = time.monotonic() + seconds, 0
    while number < rounds or time.monotonic() < end:
        device, arguments = INSTANCES[number % len(INSTANCES)]
        laya = case.workers(device, **arguments)
        traffic = Traffic(laya, seed=number)
        killed = traffic.run(random.Random(f"kills/{number}"))
        laya.close()
        assert traffic.trouble == []
        for text_number, questions, outcome in traffic.outcomes:
            if isinstance(outcome, Result):
                ran_on = outcome.runtime.device
                assert outcome.answers == expected[ran_on, text_number, questions]
                seen[ran_on] += 1
            else:
                assert isinstance(outcome, BackendUnavailableError), outcome
                assert any(f"the {dead} worker" in str(outcome) for dead in killed), outcome
                seen["refused"] += 1
        eventually(lambda: own_threads() <= threads, "the runtime's threads end")
        eventually(lambda: child_processes() <= children, "the worker processes end")
        number += 1
    return number, seen


@pytest.mark.filterwarnings("ignore:the Neural Engine is unavailable:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:the asynchronous Core ML path is disabled:RuntimeWarning")
def test_nothing_is_lost_and_nothing_is_left(case: Case) -> None:
    rounds, seen = hold_up(case, rounds=len(INSTANCES), seconds=0.0)
    assert rounds == len(INSTANCES)
    assert min(seen["gpu"], seen["ane"], seen["refused"]) > 0, seen


@pytest.mark.laya_slow
@pytest.mark.filterwarnings("ignore:the Neural Engine is unavailable:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:the asynchronous Core ML path is disabled:RuntimeWarning")
def test_nothing_is_lost_and_nothing_is_left_in_five_minutes(case: Case) -> None:
    rounds, seen = hold_up(case, rounds=len(INSTANCES), seconds=300.0)
    assert rounds >= len(INSTANCES)
    assert min(seen["gpu"], seen["ane"], seen["refused"]) > 0, seen
