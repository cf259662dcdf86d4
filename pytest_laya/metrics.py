"""The gate's metrics of a Switchyard result, each with the interval that its sample supports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_laya.gates import Metric

PERCENTILES = ("p50_ms", "p95_ms", "p99_ms")

Interval = tuple[float, float]


def of_result(
    result: Mapping[str, Any], records: Sequence[Mapping[str, Any]], adverse: Iterable[str] = ()
) -> list[Metric]:
    """Every metric of every configuration that may be counted; ``records`` are the lines of trace.jsonl.

    A demoted GPU + ANE round gives none. Percentiles and the late rate have a bootstrap interval over whole
    burst cycles, the late rate's widened to the exact binomial one (no miss drawn again is still no miss);
    correctness has the exact binomial interval, throughput the range over the run's burst cycles.
    """
    from laya_apple.demos.switchyard import intervals, metrics

    adverse = tuple(adverse)
    rounds = [one for one in metrics.rounds_of(result, records) if one.ane_verified is not False]
    found: list[Metric] = []
    for config in dict.fromkeys(one.config for one in rounds):
        mine = [one for one in rounds if one.config == config]
        trains = [(one, train) for one in mine for train in metrics.trains_of(one.records)]
        waits = [
            (one.index, int(train["arrival_ns"]) - one.round_start_ns, metrics.queue_wait_ms(train))
            for one, train in trains
        ]
        queue = intervals.statistics({config: waits})["configs"][config]
        latency = result["statistics"]["configs"][config]
        common: dict[str, Any] = {"synthetic": bool(result["synthetic"]), "adverse": adverse}
        found.append(_late_rate(f"{config}.late.rate", latency, common))
        for prefix, sample in (("decision_latency", latency), ("queue_wait", queue)):
            found += [_percentile(f"{config}.{prefix}.{name}", sample, name, common) for name in PERCENTILES]
        wrong = sum(train["answer"] != train["oracle"] for _, train in trains)
        accuracy = intervals.clopper_pearson(len(trains) - wrong, len(trains)) if trains else None
        found.append(
            Metric(
                f"{config}.route_accuracy",
                1 - wrong / len(trains) if trains else None,
                accuracy,
                len(trains),
                intervals.CONFIDENCE,
                f"exact binomial, {intervals.INDEPENDENT}" if trains else "no train",
                latency=False,
                lower_is_better=False,
                **common,
            )
        )
        found.append(_throughput(f"{config}.decisions_per_s", mine, common))
    disagreements = result["comparison"]["decision_disagreements"]
    if result["comparison"]["available"] and disagreements is not None:
        found.append(
            Metric(
                "comparison.decision_disagreements",
                float(disagreements),
                (float(disagreements), float(disagreements)),
                result["workload"]["offered"]["trains"],
                1.0,
                "count",
                latency=False,
                synthetic=bool(result["synthetic"]),
            )
        )
    return found


def _late_rate(name: str, sample: Mapping[str, Any], common: Mapping[str, Any]) -> Metric:
    from laya_apple.demos.switchyard import intervals

    drawn, exact = sample["late_rate"]["interval"], sample["late_rate"]["binomial"]["interval"]
    interval = None if drawn is None else (min(drawn[0], exact[0]), max(drawn[1], exact[1]))
    # All-or-nothing samples have no spread to resample, so the wider of two intervals is judged.
    also = f", widened by the exact binomial, {intervals.INDEPENDENT}"
    return _sampled(name, sample["late_rate"]["value"], interval, sample, common, also)


def _percentile(name: str, sample: Mapping[str, Any], key: str, common: Mapping[str, Any]) -> Metric:
    one = sample[key]
    interval = tuple(one["interval"]) if one["supported"] and one["interval"] is not None else None
    return _sampled(name, one["value"], interval, sample, common)


def _sampled(
    name: str,
    value: float | None,
    interval: Any,
    sample: Mapping[str, Any],
    common: Mapping[str, Any],
    also: str = "",
) -> Metric:
    from laya_apple.demos.switchyard import intervals

    cycles = sample["burst_cycles"]
    method = (
        f"too few samples: {sample['trains']} trains in {cycles} burst cycles"
        if interval is None
        else f"bootstrap over {cycles} burst cycles{also}"
    )
    return Metric(
        name, value, interval, sample["trains"], intervals.CONFIDENCE, method, latency=True, **common
    )


def _throughput(name: str, rounds: Sequence[Any], common: Mapping[str, Any]) -> Metric:
    """Decisions per second of makespan. It has one value a round, so its range is what it would have been
    had the last burst cycle taken as long to finish as any other cycle of the run did.
    """
    from laya_apple.demos.switchyard import intervals, metrics
    from laya_apple.workload import BURST_PERIOD_S

    period_ns = BURST_PERIOD_S * 1_000_000_000
    trains = sum(len(metrics.trains_of(one.records)) for one in rounds)
    span_s = sum(metrics.makespan_s(one) for one in rounds)
    shortest_s = longest_s = 0.0
    cycles = 0
    for one in rounds:
        finished: dict[int, int] = {}
        for record in one.records:
            cycle = (int(record["arrival_ns"]) - one.round_start_ns) // period_ns
            finished[cycle] = max(finished.get(cycle, 0), int(record["response_ns"]) - one.round_start_ns)
        took_s = [(end - cycle * period_ns) / 1e9 for cycle, end in finished.items()]
        before_last_s = max(finished, default=0) * BURST_PERIOD_S
        shortest_s += before_last_s + min(took_s, default=0.0)
        longest_s += before_last_s + max(took_s, default=0.0)
        cycles += len(finished)
    supported = cycles > 1 and shortest_s > 0
    return Metric(
        name,
        trains / span_s if span_s else None,
        (trains / longest_s, trains / shortest_s) if supported else None,
        cycles,
        intervals.CONFIDENCE,
        f"range over {cycles} burst cycles" if supported else f"too few burst cycles: {cycles}",
        latency=True,
        lower_is_better=False,
        **common,
    )
