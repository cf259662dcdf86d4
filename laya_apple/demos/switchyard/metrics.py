"""Every number of ``result.json``, computed from the lines of ``trace.jsonl``.

A *record* is one line of the trace as a dict. Latency is always counted from the scheduled arrival, never
from ``Laya.submit``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from laya_apple.benchmark import stats
from laya_apple.demos.switchyard import world
from laya_apple.demos.switchyard.intervals import statistics

GPU_ONLY, HYBRID = "gpu_only", "hybrid"
CONFIGS = (GPU_ONLY, HYBRID)

DELIVERED, LATE, MISROUTED = "delivered", "late", "misrouted"

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Round:
    """One finished round and its records, in schedule order."""

    index: int
    config: str
    round_start_ns: int
    records: Sequence[Record]
    ane_verified: bool | None = None
    """Whether trains stayed on the Neural Engine; None for a GPU-only round."""


def latency_ms(record: Record) -> float:
    """Decision latency: scheduled arrival to response."""
    return (int(record["response_ns"]) - int(record["arrival_ns"])) / 1e6


def queue_wait_ms(record: Record) -> float:
    """Time in the device's FIFO only."""
    return (int(record["dispatch_ns"]) - int(record["queue_enter_ns"])) / 1e6


def inference_ms(record: Record) -> float:
    """Time in the backend's forward."""
    return (int(record["service_end_ns"]) - int(record["service_start_ns"])) / 1e6


def submit_lag_ms(record: Record) -> float:
    """How far the submitter ran behind the timetable; includes tokenising earlier requests."""
    return (int(record["submit_ns"]) - int(record["arrival_ns"])) / 1e6


def overhead_ms(record: Record) -> float:
    """Decision latency that is neither queue wait nor inference."""
    return latency_ms(record) - queue_wait_ms(record) - inference_ms(record)


def outcome(latency: float, answer: str, oracle: str) -> str:
    """``late`` wins over ``misrouted``: a late train counts as late whatever its answer."""
    if latency > world.DEADLINE_MS:
        return LATE
    return DELIVERED if answer == oracle else MISROUTED


def is_train(record: Record) -> bool:
    return bool(record["class"] == world.TRAIN)


def trains_of(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if is_train(record)]


def makespan_s(one: Round) -> float:
    """Round start to the last response of any request, background included."""
    last_ns = max((int(record["response_ns"]) for record in one.records), default=one.round_start_ns)
    return (last_ns - one.round_start_ns) / 1e9


def game(rounds: Sequence[Round]) -> dict[str, Any]:
    """Trains by outcome, and the share of all trains (late ones too) answered as the oracle."""
    trains = [train for one in rounds for train in trains_of(one.records)]
    outcomes = Counter(outcome(latency_ms(t), t["answer"], t["oracle"]) for t in trains)
    correct = sum(train["answer"] == train["oracle"] for train in trains)
    return {
        "trains": len(trains),
        DELIVERED: outcomes[DELIVERED],
        LATE: outcomes[LATE],
        MISROUTED: outcomes[MISROUTED],
        "route_accuracy": correct / len(trains) if trains else None,
    }


def _share(count: int, total: int) -> float | None:
    return count / total if total else None


def _background(records: Sequence[Record]) -> dict[str, Any]:
    found = {}
    for cls in world.BACKGROUND:
        chosen = [record for record in records if record["class"] == cls]
        found[cls] = {
            "decision_latency": stats([latency_ms(r) for r in chosen]),
            "queue_wait": stats([queue_wait_ms(r) for r in chosen]),
            "devices": dict(sorted(Counter(r["target"] for r in chosen).items())),
        }
    return found


def systems(rounds: Sequence[Round]) -> dict[str, Any]:
    """Latency, queue wait, misses and throughput of trains, pooled over ``rounds``.

    Percentiles are of the concatenated samples, never averages of percentiles. Rates are None where there
    is no train.
    """
    records = [record for one in rounds for record in one.records]
    trains = trains_of(records)
    latencies = [latency_ms(train) for train in trains]
    late = sum(latency > world.DEADLINE_MS for latency in latencies)
    span_s = sum(makespan_s(one) for one in rounds)
    return {
        "late": {"count": late, "rate": _share(late, len(trains)), "deadline_ms": world.DEADLINE_MS},
        "decision_latency": stats(latencies),
        "queue_wait": stats([queue_wait_ms(train) for train in trains]),
        "miss_rate_at_ms": {
            str(threshold): _share(sum(latency > threshold for latency in latencies), len(trains))
            for threshold in world.THRESHOLDS_MS
        },
        "secondary": {
            "decisions_per_s": len(trains) / span_s if span_s else None,
            "completed_req_s": len(records) / span_s if span_s else None,
            "makespan_s": span_s,
            "submit_lag": stats([submit_lag_ms(train) for train in trains]),
            "submit_lag_all_requests": stats([submit_lag_ms(record) for record in records]),
            "inference": stats([inference_ms(train) for train in trains]),
            "overhead": stats([overhead_ms(train) for train in trains]),
            "devices": dict(sorted(Counter(train["target"] for train in trains).items())),
            "routing_reasons": dict(sorted(Counter(train["routing_reason"] for train in trains).items())),
            "background": _background(records),
        },
    }


def timetable(one: Round) -> str:
    """``timetable_sha256`` of what the round really submitted."""
    rows = [
        (
            int(record["index"]),
            str(record["class"]),
            int(record["arrival_ns"]) - one.round_start_ns,
            record.get("train_id"),
            record.get("pattern"),
            record.get("line"),
        )
        for record in sorted(one.records, key=lambda record: int(record["index"]))
    ]
    return world.timetable_sha256(rows)


def disagreements(rounds: Sequence[Round]) -> list[int]:
    """Indices of the trains whose answer differs between any two rounds."""
    answers: dict[int, set[str]] = {}
    for one in rounds:
        for train in trains_of(one.records):
            answers.setdefault(int(train["index"]), set()).add(str(train["answer"]))
    return sorted(index for index, given in answers.items() if len(given) > 1)


def comparison(rounds: Sequence[Round]) -> dict[str, Any]:
    """Whether the two configurations may be compared, and whether they saw and decided the same.

    ``decision_disagreements`` counts the train indices listed in ``disagreeing_trains``. The last three
    values are None when fewer than two rounds ran.
    """
    verified = [one.ane_verified for one in rounds if one.config == HYBRID]
    several = len(rounds) > 1
    differing = disagreements(rounds) if several else None
    return {
        "available": any(one.config == GPU_ONLY for one in rounds) and bool(verified) and all(verified),
        "same_schedule_sha256": len({timetable(one) for one in rounds}) == 1 if several else None,
        "decision_disagreements": None if differing is None else len(differing),
        "disagreeing_trains": differing,
    }


def ane_verified(one: Round) -> bool | None:
    """False when no train ran on the Neural Engine or any found it dead; None for a GPU-only round."""
    if one.config != HYBRID:
        return None
    trains = trains_of(one.records)
    reached = any(train["target"] == "ane" for train in trains)
    lost = any(train["routing_reason"] == "ane_runtime_unavailable" for train in trains)
    return reached and not lost


def rounds_of(result: Mapping[str, Any], records: Sequence[Record]) -> list[Round]:
    """The rounds of a stored result, with their records from its trace."""
    return [
        Round(
            index=int(one["index"]),
            config=str(one["config"]),
            round_start_ns=int(one["round_start_ns"]),
            records=[record for record in records if record["round"] == one["index"]],
            ane_verified=one["ane_verified"],
        )
        for one in result["rounds"]
    ]


def recompute(rounds: Sequence[Round]) -> dict[str, Any]:
    """All measured numbers of a result: ``rounds`` (game, systems, hashes), ``configs`` (game, summary),
    ``comparison`` and ``statistics``.
    """
    present = [config for config in CONFIGS if any(one.config == config for one in rounds)]
    return {
        "rounds": [
            {
                "index": one.index,
                "config": one.config,
                "timetable_sha256": timetable(one),
                "ane_verified": ane_verified(one),
                "game": game([one]),
                "systems": systems([one]),
            }
            for one in rounds
        ],
        "configs": {
            config: {
                "rounds": [one.index for one in rounds if one.config == config],
                "game": game([one for one in rounds if one.config == config]),
                "summary": systems([one for one in rounds if one.config == config]),
            }
            for config in present
        },
        "comparison": comparison(rounds),
        "statistics": statistics({config: _samples(rounds, config) for config in present}),
    }


def _samples(rounds: Sequence[Round], config: str) -> list[tuple[int, int, float]]:
    return [
        (one.index, int(train["arrival_ns"]) - one.round_start_ns, latency_ms(train))
        for one in rounds
        if one.config == config
        for train in trains_of(one.records)
    ]
