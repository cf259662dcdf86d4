"""Which of its two Core ML paths the next Neural Engine forward takes: a state machine.

    armed --(GPU active)--> safe_sync --(64 forwards)--> async_healthy --(3 slow requests)--> breaker_open

An episode lasts while forwards and GPU activity go on; more than a second without either re-arms. Disabled
is final. Nothing here runs a forward or knows a device: the machine is told what happens, and names a path.
Both paths run the same artifact on the Neural Engine, so the choice is never one of device or precision.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

SAFE_SYNC_FORWARDS = 64
"""Forwards of an episode that stay synchronous before the asynchronous path is taken."""
BREAKER_REQUESTS = 3
"""Consecutive slow asynchronous requests that open the breaker."""
BREAKER_PREPARE_MS = 0.3
"""An asynchronous request is slow when preparing it took longer than this."""
QUIET_NS = 1_000_000_000
"""A pause longer than this, of forwards or of the GPU, ends the episode."""

State = Literal["armed", "safe_sync", "async_healthy", "breaker_open", "disabled"]
Path = Literal["sync", "async"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The machine as its last request left it. Counts are forwards unless named otherwise."""

    state: State
    disabled_reason: str | None
    episodes: int
    breaker_openings: int
    sync_forwards: int
    async_forwards: int
    episode_forwards: int
    """Of the current episode, the synchronous ones before the asynchronous path."""
    slow_requests: int
    """Consecutive slow asynchronous requests so far."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Handoff:
    """The machine. Thread-safe; one forward at a time.

    ``decide`` before each forward of a real request and ``observe`` after it; ``gpu`` before a request is
    given to the GPU. Times are ``clock_ns()``'s. ``on_disabled`` is called once, with the reason, by whoever
    disabled the machine: a caller of ``disable`` or a call that found the state inconsistent.
    """

    def __init__(
        self,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        on_disabled: Callable[[str], object] | None = None,
    ) -> None:
        self._clock_ns = clock_ns
        self._on_disabled = on_disabled
        self._lock = threading.Lock()
        self._state: State = "armed"
        self._reason: str | None = None
        self._outstanding: Path | None = None
        self._now_ns: int | None = None
        self._forward_ns: int | None = None
        self._episodes = self._breaker_openings = 0
        self._sync_forwards = self._async_forwards = 0
        self._episode_forwards = self._slow_requests = 0

    def gpu(self, last_active_ns: int | None) -> None:
        """The GPU is about to get a job. ``last_active_ns`` as for :meth:`decide`, without that job."""
        with self._lock:
            if self._state == "disabled":
                return
            problem = self._advance(last_active_ns)
            self._disable(problem)
        self._tell(problem)

    def decide(self, last_active_ns: int | None) -> Path:
        """The path of the forward that starts now.

        ``last_active_ns``: None while a GPU job is queued or running, else when the last one ended, 0 for
        never.
        """
        with self._lock:
            if self._state == "disabled":
                return "sync"
            problem = self._advance(last_active_ns)
            if problem is None and self._outstanding is not None:
                problem = "a forward started before the one before it was observed"
            path: Path = "sync"
            if problem is None:
                path = self._take(last_active_ns)
            self._disable(problem)
        self._tell(problem)
        return path

    def observe(self, prepare_ms: float) -> None:
        """The decided forward is over, whatever became of it; preparing its request took ``prepare_ms``."""
        with self._lock:
            if self._state == "disabled":
                return
            path, self._outstanding = self._outstanding, None
            problem = self._tick()
            if problem is None and path is None:
                problem = "a forward was observed that was never decided"
            if problem is None:
                self._forward_ns = self._now_ns
                if path == "async" and self._state == "async_healthy":
                    self._count_slow(prepare_ms)
            self._disable(problem)
        self._tell(problem)

    def disable(self, reason: str) -> bool:
        """Stay synchronous from now on. False when the machine was disabled already."""
        with self._lock:
            if self._state == "disabled":
                return False
            self._disable(reason)
        self._tell(reason)
        return True

    def snapshot(self) -> Snapshot:
        """What happened so far. Looking changes nothing, however long ago the last request was."""
        with self._lock:
            return Snapshot(
                self._state,
                self._reason,
                self._episodes,
                self._breaker_openings,
                self._sync_forwards,
                self._async_forwards,
                self._episode_forwards,
                self._slow_requests,
            )

    # The lock is held below.

    def _tick(self) -> str | None:
        """Read the clock. Returns what is wrong with it."""
        now_ns = self._clock_ns()
        before_ns, self._now_ns = self._now_ns, now_ns
        if before_ns is not None and now_ns < before_ns:
            return f"the clock went back by {before_ns - now_ns} ns"
        return None

    def _advance(self, last_active_ns: int | None) -> str | None:
        """Read the clock and re-arm after a pause. Returns what is inconsistent."""
        problem = self._tick()
        if problem is None:
            problem = self._inconsistency()
        if problem is None and self._state != "armed" and self._paused(last_active_ns):
            self._rearm()
        return problem

    def _paused(self, last_active_ns: int | None) -> bool:
        assert self._now_ns is not None
        forwards_paused = (
            self._outstanding is None
            and self._forward_ns is not None
            and self._now_ns - self._forward_ns > QUIET_NS
        )
        return forwards_paused or not _gpu_active(self._now_ns, last_active_ns)

    def _rearm(self) -> None:
        self._state = "armed"
        self._episode_forwards = self._slow_requests = 0

    def _take(self, last_active_ns: int | None) -> Path:
        assert self._now_ns is not None
        if self._state == "armed" and _gpu_active(self._now_ns, last_active_ns):
            self._state = "safe_sync"
            self._episodes += 1
        if self._state == "safe_sync" and self._episode_forwards == SAFE_SYNC_FORWARDS:
            self._state = "async_healthy"
        path: Path = "async" if self._state == "async_healthy" else "sync"
        if self._state == "safe_sync":
            self._episode_forwards += 1
        if path == "async":
            self._async_forwards += 1
        else:
            self._sync_forwards += 1
        self._outstanding = path
        self._forward_ns = self._now_ns
        return path

    def _count_slow(self, prepare_ms: float) -> None:
        self._slow_requests = self._slow_requests + 1 if prepare_ms > BREAKER_PREPARE_MS else 0
        if self._slow_requests == BREAKER_REQUESTS:
            self._state = "breaker_open"
            self._breaker_openings += 1

    def _inconsistency(self) -> str | None:
        """What cannot be true of the state together with its counts; None when all of it can."""
        forwards, slow = self._episode_forwards, self._slow_requests
        possible = {
            "armed": forwards == 0 and slow == 0,
            "safe_sync": 1 <= forwards <= SAFE_SYNC_FORWARDS and slow == 0,
            "async_healthy": forwards == SAFE_SYNC_FORWARDS and 0 <= slow < BREAKER_REQUESTS,
            "breaker_open": forwards == SAFE_SYNC_FORWARDS and slow == BREAKER_REQUESTS,
        }
        if possible.get(self._state, False):
            return None
        return f"the state is {self._state} after {forwards} forwards and {slow} slow requests"

    def _disable(self, reason: str | None) -> None:
        if reason is not None:
            self._state, self._reason, self._outstanding = "disabled", reason, None

    # Without the lock: the callback may take its time, or look at the machine.

    def _tell(self, reason: str | None) -> None:
        if reason is not None and self._on_disabled is not None:
            self._on_disabled(reason)


def _gpu_active(now_ns: int, last_active_ns: int | None) -> bool:
    if last_active_ns is None:
        return True
    return last_active_ns > 0 and now_ns - last_active_ns <= QUIET_NS
