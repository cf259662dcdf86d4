"""A limit for each phase of a test, so that a hang is a failure with a name and not a stuck session."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from pytest_laya import markers
from pytest_laya.options import DEFAULT_TIMEOUT_S

# A round has its own drain limit, 600 s; it must be the one that speaks.
ROUND_ALLOWANCE_S = 2 * 600.0

# Two clocks that end this close together are one clock.
SAME_CLOCK_S = 0.05


def limit_s(item: pytest.Item, timeout_s: float | None, duration_s: float) -> float:
    """Seconds a phase of ``item`` may take; 0 for no limit.

    ``timeout_s`` is the ini value, ``duration_s`` a round's timed window.
    """
    if timeout_s is None:
        timeout_s = DEFAULT_TIMEOUT_S if markers.is_laya_test(item) else 0.0
    if timeout_s and item.get_closest_marker("laya_round"):
        return timeout_s + ROUND_ALLOWANCE_S + 2 * duration_s
    return timeout_s


@contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """Fail the running phase after ``seconds``. Does nothing for 0, off the main thread, or when another
    plugin already watches the clock.
    """
    watched = (
        seconds > 0
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    )
    if not watched:
        yield
        return

    def expire(signum: int, frame: FrameType | None) -> None:
        pytest.fail(f"{what} took longer than laya_timeout = {seconds:g} s")

    signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    ends_s = time.monotonic() + seconds
    try:
        yield
    finally:
        left_s = signal.getitimer(signal.ITIMER_REAL)[0]
        # A phase may have set a handler or a clock of its own; neither is ours to take away.
        if abs(left_s - (ends_s - time.monotonic())) < SAME_CLOCK_S:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if signal.getsignal(signal.SIGALRM) is expire:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
