"""The same timetable, router and queues in virtual time, over a table of service times.

Plans a machine that is not at hand and checks the scheduler against published figures. A simulation is never
a result: it is written to ``simulation.json``.

    python -m laya_apple.demos.switchyard.simulate [--out FILE] [--gpu-factor F] [--ane-factor F] …
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laya_apple import registry
from laya_apple.benchmark import stats
from laya_apple.demos.switchyard import metrics, result, world
from laya_apple.routing.decide import AneState, fitting_bucket
from laya_apple.routing.queueing import ServiceTable, decide_queued, published_table
from laya_apple.trace import QueueSnapshot

SIMULATION_FILE = "simulation.json"
TRAIN_LENGTH = 64

REFERENCE = {
    "source": "published Switchyard runs of laya-typed-decisions on an Apple M4 Max, seed 11, 60 s",
    metrics.GPU_ONLY: {"late": [1407, 1408], "p99_ms": [3108, 3171]},
    metrics.HYBRID: {"late": [0, 0], "p99_ms": [54.5, 54.7]},
}
"""What real runs measured, as ranges: shown beside the simulated figures, never mixed with them."""


@dataclass(frozen=True)
class Factors:
    """How much longer each device takes in a run than the table's bare forward."""

    gpu: float = 1.0
    ane: float = 1.0


@dataclass(frozen=True)
class Job:
    """One simulated request. Times are ms since the round's start."""

    index: int
    cls: str
    device: str
    reason: str
    arrival_ms: float
    start_ms: float
    end_ms: float

    @property
    def latency_ms(self) -> float:
        return self.end_ms - self.arrival_ms


@dataclass
class _Queue:
    """One device's FIFO. Jobs are (start, end, estimate) in ms; the first one is running."""

    jobs: deque[tuple[float, float, float]] = field(default_factory=deque)
    free_ms: float = 0.0

    def snapshot(self, now_ms: float) -> QueueSnapshot:
        while self.jobs and self.jobs[0][1] <= now_ms:
            self.jobs.popleft()
        if not self.jobs:
            return QueueSnapshot(0.0, 0, False)
        # The router knows estimates only: the running job's remainder is its estimate less the time it ran.
        start_ms, _, estimate_ms = self.jobs[0]
        remainder_ms = max(0.0, start_ms + estimate_ms - now_ms)
        queued = sum(estimate for _, _, estimate in self.jobs) - estimate_ms
        return QueueSnapshot(remainder_ms + queued, len(self.jobs) - 1, True)

    def put(self, now_ms: float, service_ms: float, estimate_ms: float) -> tuple[float, float]:
        start_ms = max(now_ms, self.free_ms)
        self.free_ms = start_ms + service_ms
        self.jobs.append((start_ms, self.free_ms, estimate_ms))
        return start_ms, self.free_ms


def request_shape(cls: str, train_length: int = TRAIN_LENGTH) -> tuple[int, int]:
    """Row length in tokens and number of questions of a request class."""
    if cls == world.TRAIN:
        return train_length, 1
    shape = world.BACKGROUND[cls]
    return shape.length, shape.questions


def simulate(
    schedule: Sequence[world.Arrival],
    config: str,
    table: ServiceTable,
    *,
    spec: registry.ModelSpec,
    factors: Factors = Factors(),
    train_length: int = TRAIN_LENGTH,
) -> list[Job]:
    """Run one round in virtual time with no cost but the devices' service times."""
    auto = spec.auto_ane_buckets
    state = AneState(unavailable=None, auto_buckets=auto, loaded_buckets=auto)
    queues = {"gpu": _Queue(), "ane": _Queue()}
    hybrid = config == metrics.HYBRID
    jobs = []
    for index, arrival in enumerate(schedule):
        now_ms = arrival.offset_s * 1000
        length, questions = request_shape(arrival.cls, train_length)
        decision = decide_queued(
            "auto" if hybrid else "gpu",
            spec,
            questions,
            length,
            state,
            table=table,
            gpu=queues["gpu"].snapshot(now_ms),
            ane=queues["ane"].snapshot(now_ms) if hybrid else None,
        )
        estimate_ms = _table_ms(table, spec, decision.target, length, questions)
        service_ms = estimate_ms * (factors.gpu if decision.target == "gpu" else factors.ane)
        start_ms, end_ms = queues[decision.target].put(now_ms, service_ms, estimate_ms)
        jobs.append(Job(index, arrival.cls, decision.target, decision.reason, now_ms, start_ms, end_ms))
    return jobs


def _table_ms(
    table: ServiceTable, spec: registry.ModelSpec, target: str, length: int, questions: int
) -> float:
    if target == "gpu":
        return table.gpu_estimate_ms(length, questions)
    bucket = fitting_bucket(spec.ane_buckets, length)
    if bucket is None:
        raise ValueError(f"no Neural Engine bucket holds {length} tokens")
    return table.ane_estimate_ms([bucket] * questions)


def summarise(jobs: Sequence[Job]) -> dict[str, Any]:
    """Trains, late trains, decision latency and where trains ran."""
    trains = [job for job in jobs if job.cls == world.TRAIN]
    latencies = [job.latency_ms for job in trains]
    return {
        "trains": len(trains),
        "late": sum(latency > world.DEADLINE_MS for latency in latencies),
        "decision_latency": stats(latencies),
        "devices": dict(sorted(Counter(job.device for job in trains).items())),
        "routing_reasons": dict(sorted(Counter(job.reason for job in trains).items())),
    }


def estimate_factors(
    records: Sequence[metrics.Record], table: ServiceTable, spec: registry.ModelSpec
) -> Factors:
    """Per device, the median ratio of the time a request held it to the table's, over a recorded trace.

    A request holds its device from dispatch to the end of its service. A device that the trace does not
    use has 1.0.
    """
    ratios: dict[str, list[float]] = {"gpu": [], "ane": []}
    for record in records:
        expected_ms = _table_ms(
            table, spec, record["target"], record["sequence_length"], record["question_count"]
        )
        held_ms = (record["service_end_ns"] - record["dispatch_ns"]) / 1e6
        ratios[record["target"]].append(held_ms / expected_ms)
    return Factors(**{device: statistics.median(found) if found else 1.0 for device, found in ratios.items()})


def highest_rate(
    config: str,
    table: ServiceTable,
    spec: registry.ModelSpec,
    *,
    low_req_s: float,
    high_req_s: float,
    factors: Factors = Factors(),
    seed: int = world.SEED,
    duration_s: float = world.DURATION_S,
    step_req_s: float = 0.5,
) -> float | None:
    """The highest mean rate in the range, on a grid, whose train P99 is within the deadline; None if none is.

    Every rate has a timetable of its own, so P99 is not monotonic in the rate: the grid is searched from the
    top and the first rate that holds is the answer.
    """
    for step in range(round((high_req_s - low_req_s) / step_req_s), -1, -1):
        rate = low_req_s + step * step_req_s
        schedule = world.schedule(seed, duration_s, rate)
        found = summarise(simulate(schedule, config, table, spec=spec, factors=factors))
        if found["trains"] and found["decision_latency"]["p99_ms"] <= world.DEADLINE_MS:
            return rate
    return None


def load_table(path: Path | None) -> ServiceTable:
    """A service table from a JSON file (``gpu_ms``, ``ane_ms``, ``source``), or the published one."""
    if path is None:
        return published_table()
    data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return ServiceTable.from_dict(str(data.get("source", path.name)), data)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m laya_apple.demos.switchyard.simulate")
    parser.add_argument("--seed", type=int, default=world.SEED)
    parser.add_argument("--duration", type=int, default=world.DURATION_S, help="seconds, whole 3 s cycles")
    parser.add_argument("--table", type=Path, help="service times as JSON; default the published M4 Max ones")
    parser.add_argument("--gpu-factor", type=float, default=1.0, help="time in the GPU over the table's")
    parser.add_argument("--ane-factor", type=float, default=1.0, help="time in the Neural Engine over it")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="take the factors from this run's trace")
    parser.add_argument(
        "--rates", type=float, nargs=2, metavar=("LOW", "HIGH"), help="search the highest rate that holds"
    )
    parser.add_argument("--out", type=Path, default=Path(SIMULATION_FILE), help="default ./simulation.json")
    return parser


def main(argv: Sequence[str] | None = None, echo: Callable[[str], None] = print) -> int:
    """Simulate both configurations and write the file. Exit code 2 for a usage problem."""
    parser = _parser()
    args = parser.parse_args(argv)
    if not world.is_whole_cycles(args.duration):
        parser.error("--duration must be a whole number of 3 s burst cycles")
    spec = registry.resolve(world.MODEL)
    factors = Factors(args.gpu_factor, args.ane_factor)
    try:
        table = load_table(args.table)
        if args.trace is not None:
            factors = estimate_factors(result.read(args.trace)[1], table, spec)
    except (OSError, ValueError, result.ResultUnreadable) as error:  # reraise: as a usage problem
        parser.error(str(error))
    schedule = world.schedule(args.seed, args.duration)
    rounds = {
        config: summarise(simulate(schedule, config, table, spec=spec, factors=factors))
        for config in metrics.CONFIGS
    }
    found: dict[str, Any] = {
        "format": "switchyard-simulation",
        "format_version": 1,
        "simulated": True,
        "table": table.source,
        "factors": {"gpu": factors.gpu, "ane": factors.ane},
        "seed": args.seed,
        "duration_s": args.duration,
        "schedule_sha256": world.schedule_sha256(schedule),
        "rounds": rounds,
        "measured_reference": REFERENCE,
    }
    if args.rates:
        low, high = args.rates
        found["highest_rate_req_s"] = {
            config: highest_rate(
                config,
                table,
                spec,
                low_req_s=low,
                high_req_s=high,
                factors=factors,
                seed=args.seed,
                duration_s=args.duration,
            )
            for config in metrics.CONFIGS
        }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=2, allow_nan=False) + "\n"
    result.write_files(args.out.parent, {args.out.name: text})
    for config, one in rounds.items():
        p99_ms = one["decision_latency"].get("p99_ms", 0.0)
        echo(
            f"{config}: {one['late']} of {one['trains']} trains late, P99 {p99_ms:,.1f} ms, {one['devices']}"
        )
    for config, rate in found.get("highest_rate_req_s", {}).items():
        holds = "at no rate of the range" if rate is None else f"up to {rate:g} req/s"
        echo(f"{config}: P99 within {world.DEADLINE_MS:g} ms {holds}")
    echo(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
