"""The state machine that chooses the Core ML path, against a model that replays its whole history."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from laya_apple.execution.handoff import Handoff

MS = 1_000_000
SECOND = 1_000 * MS


@dataclass
class Clock:
    now_ns: int = 10 * SECOND

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class Rig:
    """A machine with a clock and a GPU in the test's hands."""

    clock: Clock = field(default_factory=Clock)
    told: list[str] = field(default_factory=list)
    gpu_last_ns: int | None = None
    """As the machine is told: None is busy."""
    machine: Handoff = field(init=False)

    def __post_init__(self) -> None:
        self.machine = Handoff(clock_ns=self.clock, on_disabled=self.told.append)

    def forward(self, prepare_ms: float = 0.1, takes_ns: int = MS) -> str:
        path = self.machine.decide(self.gpu_last_ns)
        self.clock.now_ns += takes_ns
        self.machine.observe(prepare_ms)
        return path

    def forwards(self, count: int, prepare_ms: float = 0.1) -> list[str]:
        return [self.forward(prepare_ms) for _ in range(count)]

    def wait(self, ns: int) -> None:
        self.clock.now_ns += ns

    @property
    def state(self) -> str:
        return self.machine.snapshot().state


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def healthy(rig: Rig) -> Rig:
    rig.forwards(65)
    assert rig.state == "async_healthy"
    return rig


def test_without_a_busy_gpu_it_stays_armed(rig: Rig) -> None:
    rig.gpu_last_ns = 0  # never active, which is no moment within the last second
    rig.clock.now_ns = SECOND // 2
    assert rig.forwards(200) == ["sync"] * 200
    snapshot = rig.machine.snapshot()
    assert (snapshot.state, snapshot.episodes, snapshot.sync_forwards) == ("armed", 0, 200)


def test_sixty_four_forwards_are_synchronous_then_it_hands_over(rig: Rig) -> None:
    assert rig.forwards(64) == ["sync"] * 64
    assert rig.state == "safe_sync"
    assert rig.forwards(3) == ["async"] * 3
    assert rig.machine.snapshot().to_dict() == {
        "state": "async_healthy",
        "disabled_reason": None,
        "episodes": 1,
        "breaker_openings": 0,
        "sync_forwards": 64,
        "async_forwards": 3,
        "episode_forwards": 64,
        "slow_requests": 0,
    }


@pytest.mark.parametrize(("slow_ms", "opens"), [(0.3, False), (0.300001, True)])
def test_three_slow_requests_in_a_row_open_the_breaker(healthy: Rig, slow_ms: float, opens: bool) -> None:
    assert healthy.forwards(2, slow_ms) == ["async", "async"]
    assert healthy.state == "async_healthy"
    assert healthy.forward(slow_ms) == "async"
    assert healthy.state == ("breaker_open" if opens else "async_healthy")
    assert healthy.forwards(100) == (["sync"] if opens else ["async"]) * 100


def test_a_quick_request_between_slow_ones_starts_the_count_again(healthy: Rig) -> None:
    for _ in range(5):
        healthy.forwards(2, 9.0)
        healthy.forward(0.1)
    assert healthy.state == "async_healthy"


def test_slow_synchronous_requests_do_not_count(rig: Rig) -> None:
    rig.forwards(64, 9.0)
    assert rig.forwards(2, 9.0) == ["async", "async"]
    assert rig.machine.snapshot().slow_requests == 2


@pytest.mark.parametrize("pause_ns", [SECOND, SECOND + 1])
def test_a_pause_of_forwards_longer_than_a_second_re_arms(healthy: Rig, pause_ns: int) -> None:
    healthy.wait(pause_ns)
    assert healthy.forward() == ("async" if pause_ns == SECOND else "sync")
    assert healthy.machine.snapshot().episodes == (1 if pause_ns == SECOND else 2)


@pytest.mark.parametrize("pause_ns", [SECOND, SECOND + 1])
def test_a_pause_of_the_gpu_longer_than_a_second_re_arms(healthy: Rig, pause_ns: int) -> None:
    healthy.gpu_last_ns = healthy.clock.now_ns - pause_ns
    assert healthy.forward() == ("async" if pause_ns == SECOND else "sync")
    assert healthy.state == ("async_healthy" if pause_ns == SECOND else "armed")


def test_a_pause_of_the_gpu_that_is_over_before_the_next_forward_re_arms_too(healthy: Rig) -> None:
    healthy.machine.gpu(healthy.clock.now_ns - SECOND - 1)
    assert healthy.state == "armed"
    assert healthy.forward() == "sync"
    assert healthy.machine.snapshot().episodes == 2


def test_the_breaker_is_closed_by_a_new_episode(healthy: Rig) -> None:
    healthy.forwards(3, 9.0)
    assert healthy.state == "breaker_open"
    healthy.wait(SECOND + 1)
    assert healthy.forwards(65) == ["sync"] * 64 + ["async"]
    assert healthy.machine.snapshot().breaker_openings == 1


def test_a_long_forward_is_no_pause(healthy: Rig) -> None:
    assert healthy.machine.decide(None) == "async"
    healthy.wait(4 * SECOND)
    healthy.machine.gpu(None)
    healthy.machine.observe(0.1)
    assert healthy.forward() == "async"


def test_looking_changes_nothing(healthy: Rig) -> None:
    healthy.wait(60 * SECOND)
    assert healthy.state == healthy.state == "async_healthy"


def test_disabled_is_final_and_told_once(healthy: Rig) -> None:
    assert healthy.machine.disable("it hung") is True
    assert healthy.machine.disable("again") is False
    healthy.wait(5 * SECOND)
    healthy.machine.gpu(None)
    assert healthy.forwards(200) == ["sync"] * 200
    snapshot = healthy.machine.snapshot()
    assert (snapshot.state, snapshot.disabled_reason, healthy.told) == ("disabled", "it hung", ["it hung"])


def test_disabling_during_a_forward_is_consistent(healthy: Rig) -> None:
    assert healthy.machine.decide(None) == "async"
    healthy.machine.disable("it hung")
    healthy.machine.observe(0.1)
    assert healthy.told == ["it hung"]


@pytest.mark.parametrize(
    ("misuse", "reason"),
    [
        (
            lambda rig: (rig.machine.decide(None), rig.machine.decide(None)),
            "a forward started before the one",
        ),
        (lambda rig: rig.machine.observe(0.1), "a forward was observed that was never decided"),
        (lambda rig: (rig.wait(-5), rig.machine.decide(None)), "the clock went back by 5 ns"),
        (lambda rig: (rig.wait(-5), rig.machine.gpu(None)), "the clock went back by 5 ns"),
        (lambda rig: (rig.machine.decide(None), rig.wait(-5), rig.machine.observe(0)), "the clock went back"),
    ],
)
def test_an_inconsistent_state_disables_and_is_told_once(healthy: Rig, misuse, reason: str) -> None:
    misuse(healthy)
    assert healthy.state == "disabled"
    assert [one.startswith(reason) for one in healthy.told] == [True]
    misuse(healthy)
    assert healthy.forwards(70) == ["sync"] * 70
    assert len(healthy.told) == 1


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("_episode_forwards", 63), ("_slow_requests", 3), ("_slow_requests", -1), ("_state", "broken")],
)
def test_a_state_that_cannot_be_disables(healthy: Rig, attribute: str, value: object) -> None:
    setattr(healthy.machine, attribute, value)
    assert healthy.forward() == "sync"
    (told,) = healthy.told
    assert told.startswith("the state is ")


def test_whoever_is_told_may_look_at_the_machine() -> None:
    seen: list[str] = []
    machine = Handoff(on_disabled=lambda reason: seen.append(machine.snapshot().state))
    machine.disable("a reason")
    assert seen == ["disabled"]


# The model: no state but the history; every answer is worked out from the beginning.


@dataclass(frozen=True)
class Event:
    kind: str
    at_ns: int
    gpu_last_ns: int | None = None
    prepare_ms: float = 0.0


def replay(history: list[Event]) -> tuple[str, str, list[str]]:
    """(state, the disabled reason's first word or "", the paths of all forwards) after ``history``."""
    paths: list[str] = []
    episode: list[str] | None = None
    """The paths and slow marks of the episode that is on; None while armed."""
    opened = False
    ended_ns: int | None = None
    running = False
    for event in history:
        active = event.gpu_last_ns is None or (
            event.gpu_last_ns > 0 and event.at_ns <= event.gpu_last_ns + SECOND
        )
        if event.kind == "disable":
            return "disabled", "asked", paths + ["sync"] * _decisions_after(history, event)
        if event.kind in ("decide", "gpu"):
            quiet = not running and ended_ns is not None and event.at_ns > ended_ns + SECOND
            if quiet or not active:
                episode, opened = None, False
        if event.kind == "decide":
            if running:
                return "disabled", "a", [*paths, "sync"] + ["sync"] * _decisions_after(history, event)
            if episode is None and active:
                episode = []
            path = "sync"
            if episode is not None:
                path = "async" if len(episode) >= 64 and not opened else "sync"
                episode.append("running")
            paths.append(path)
            running, ended_ns = True, event.at_ns
        if event.kind == "observe":
            if not running:
                return "disabled", "a", paths + ["sync"] * _decisions_after(history, event)
            running, ended_ns = False, event.at_ns
            if episode is not None:
                slow = paths[-1] == "async" and event.prepare_ms > 0.3
                episode[-1] = "slow" if slow else paths[-1]
                opened = opened or episode[-3:] == ["slow"] * 3
    if episode is None:
        return "armed", "", paths
    if opened:
        return "breaker_open", "", paths
    return ("async_healthy" if "async" in episode or _slow(episode, paths) else "safe_sync"), "", paths


def _slow(episode: list[str], paths: list[str]) -> bool:
    return "slow" in episode or (bool(episode) and episode[-1] == "running" and paths[-1] == "async")


def _decisions_after(history: list[Event], event: Event) -> int:
    place = next(i for i, other in enumerate(history) if other is event)
    return sum(other.kind == "decide" for other in history[place + 1 :])


class Agreement(RuleBasedStateMachine):
    """Hypothesis drives both; after every step they must agree."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(SECOND // 2)
        self.told: list[str] = []
        self.machine = Handoff(clock_ns=self.clock, on_disabled=self.told.append)
        self.history: list[Event] = []
        self.paths: list[str] = []
        self.gpu_last_ns: int | None = 0
        self.running = False

    def _add(self, kind: str, prepare_ms: float = 0.0) -> None:
        self.history.append(Event(kind, self.clock.now_ns, self.gpu_last_ns, prepare_ms))

    def _decide(self) -> None:
        self.running = True
        self._add("decide")
        self.paths.append(self.machine.decide(self.gpu_last_ns))

    def _observe(self, prepare_ms: float) -> None:
        self.running = False
        self._add("observe", prepare_ms)
        self.machine.observe(prepare_ms)

    @rule(count=st.sampled_from([1, 2, 3, 62, 64, 65]), prepare_ms=st.sampled_from([0.1, 0.3, 0.31]))
    @precondition(lambda self: not self.running)
    def forwards(self, count: int, prepare_ms: float) -> None:
        for _ in range(count):
            self._decide()
            self.clock.now_ns += MS
            self._observe(prepare_ms)

    @rule()
    @precondition(lambda self: not self.running)
    def decide(self) -> None:
        self._decide()

    @rule(prepare_ms=st.floats(0, 1))
    @precondition(lambda self: self.running)
    def observe(self, prepare_ms: float) -> None:
        self._observe(prepare_ms)

    @rule(ns=st.sampled_from([MS, SECOND // 2, SECOND, SECOND, SECOND + 1]))
    def idle(self, ns: int) -> None:
        self.clock.now_ns += ns

    @initialize(busy=st.integers(0, 3))
    def begin(self, busy: int) -> None:
        if busy:
            self.gpu_job()

    @rule()
    def gpu_job(self) -> None:
        self._add("gpu")
        self.machine.gpu(self.gpu_last_ns)
        self.gpu_last_ns = None

    @rule(paths=st.sampled_from(["healthy", "slow", "open"]))
    @precondition(lambda self: not self.running)
    def deep(self, paths: str) -> None:
        """Far into an episode, where single steps rarely get."""
        self.gpu_job()
        self.forwards(64, 0.1)
        self.forwards({"healthy": 1, "slow": 2, "open": 3}[paths], 0.1 if paths == "healthy" else 0.31)

    @rule()
    @precondition(lambda self: self.gpu_last_ns is None)
    def gpu_ends(self) -> None:
        self.gpu_last_ns = self.clock.now_ns

    # Rare, or most runs would be over before they get anywhere.
    @rule(which=st.integers(0, 60))
    def trouble(self, which: int) -> None:
        if which == 0:
            self._add("disable")
            self.machine.disable("asked")
        elif which == 1 and self.running:
            self._decide()
        elif which == 2 and not self.running:
            self._observe(0.1)

    @invariant()
    def agree(self) -> None:
        type(self).steps += 1
        state, reason, paths = replay(self.history)
        snapshot = self.machine.snapshot()
        assert (snapshot.state, self.paths) == (state, paths)
        assert (snapshot.disabled_reason or "").partition(" ")[0] == reason
        assert len(self.told) == (state == "disabled")
        assert snapshot.sync_forwards + snapshot.async_forwards <= len(paths)
        assert snapshot.async_forwards == paths.count("async")


def _agree(examples: int, steps: int) -> int:
    Agreement.steps = 0
    run_state_machine_as_test(
        Agreement,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return Agreement.steps


def test_it_agrees_with_the_model() -> None:
    assert _agree(examples=40, steps=40) >= 1_000


@pytest.mark.laya_slow
def test_it_agrees_with_the_model_for_ten_thousand_steps() -> None:
    assert _agree(examples=300, steps=60) >= 10_000
