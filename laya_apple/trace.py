"""One immutable trace for every request that completed on a worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One device's queue as the router saw it."""

    backlog_ms: float
    """Estimates of the queued jobs plus the running one's remainder."""
    queued_jobs: int
    running: bool


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Timestamps of one request on the ``time.monotonic_ns()`` axis, in the order they happen.

    ``gpu`` and ``ane`` are the very snapshots the router decided on, or None where that queue does not exist.
    """

    request_id: int
    sequence_length: int
    question_count: int
    target: str
    routing_reason: str
    service_estimate_ms: float
    gpu: QueueSnapshot | None
    ane: QueueSnapshot | None
    submit_ns: int
    prepared_ns: int
    routed_ns: int
    queue_enter_ns: int
    dispatch_ns: int
    service_start_ns: int
    service_end_ns: int
    received_ns: int
    response_ns: int

    @property
    def prepare_ms(self) -> float:
        """Tokenising and checking, on the caller's thread."""
        return (self.prepared_ns - self.submit_ns) / 1e6

    @property
    def routing_ms(self) -> float:
        return (self.routed_ns - self.prepared_ns) / 1e6

    @property
    def enqueue_ms(self) -> float:
        return (self.queue_enter_ns - self.routed_ns) / 1e6

    @property
    def queue_ms(self) -> float:
        """Time in the device's FIFO only."""
        return (self.dispatch_ns - self.queue_enter_ns) / 1e6

    @property
    def dispatch_ms(self) -> float:
        return (self.service_start_ns - self.dispatch_ns) / 1e6

    @property
    def service_ms(self) -> float:
        """Time in the backend's forward."""
        return (self.service_end_ns - self.service_start_ns) / 1e6

    @property
    def return_ms(self) -> float:
        return (self.received_ns - self.service_end_ns) / 1e6

    @property
    def postprocess_ms(self) -> float:
        return (self.response_ns - self.received_ns) / 1e6

    @property
    def e2e_ms(self) -> float:
        return (self.response_ns - self.submit_ns) / 1e6

    def to_dict(self) -> dict[str, Any]:
        """The raw fields as plain JSON-able values."""
        return asdict(self)
