"""``result.json`` from finished rounds, and the summary people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from laya_apple import __version__, registry, workload
from laya_apple.benchmark import stats
from laya_apple.demos.switchyard import conditions, driver, messages, metrics, result, runtime, world
from laya_apple.demos.switchyard.ane_state import AneStatus
from laya_apple.platform import Platform
from laya_apple.registry import ModelSpec


@dataclass(frozen=True)
class Asked:
    """The options that decide whether a run is standard."""

    seed: int
    duration_s: int
    dtype: str
    configs: tuple[str, ...]

    def is_standard(self, platform: Platform, spec: ModelSpec, rounds: Sequence[metrics.Round]) -> bool:
        """The preregistered workload, model and design on a real Mac, with its GPU-only round finished."""
        return (
            self.seed == world.SEED
            and self.duration_s == world.DURATION_S
            and self.dtype == "float16"
            and self.configs == metrics.CONFIGS
            and not platform.virtual
            and spec == registry.resolve(world.MODEL)
            and any(one.config == metrics.GPU_ONLY for one in rounds)
        )


def build(
    *,
    options: Asked,
    platform: Platform,
    spec: ModelSpec,
    status: AneStatus,
    ane: Mapping[str, Any],
    order: Sequence[str],
    rounds: Sequence[tuple[metrics.Round, driver.RoundData]],
    failures: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """The whole object, before redaction and validation."""
    played = [one for one, _ in rounds]
    numbers = metrics.recompute(played)
    standard = options.is_standard(platform, spec, played)
    placements = {one.config: data.info.get("ane_placement") for one, data in rounds}
    return {
        "schema": result.SCHEMA,
        "schema_version": result.SCHEMA_VERSION,
        "tool": result.TOOL,
        "laya_apple": __version__,
        "created_utc": conditions.now_utc(),
        "mode": "standard",
        "standard": standard,
        "submission_eligible": standard,
        "synthetic": platform.virtual,
        "workload": workload_block(options.seed, options.duration_s),
        "machine": runtime.machine(platform, status.auto_buckets),
        "model": {
            "name": spec.name,
            "revision": spec.revision,
            "weights_sha256": spec.weights_sha256,
            "ane_artifacts": {str(bucket): sha256 for bucket, sha256 in sorted(status.artifacts.items())},
        },
        "ane": dict(ane),
        "design": {"ordering": "seed_parity", "counterbalance": "none", "sequence": list(order)},
        "rounds": [
            {
                **computed,
                "started_utc": data.started_utc,
                "round_start_ns": one.round_start_ns,
                "conditions": data.conditions,
            }
            for (one, data), computed in zip(rounds, numbers["rounds"], strict=True)
        ],
        "configs": {
            config: {
                "device": driver.DEVICES[config],
                "execution": driver.EXECUTION,
                "ane_placement": placements[config] if config == metrics.HYBRID else None,
                **computed,
            }
            for config, computed in numbers["configs"].items()
        },
        "comparison": numbers["comparison"],
        "statistics": numbers["statistics"],
        "failed_rounds": [{"config": config, "error": error} for config, error in failures],
        "trace_file": result.TRACE_FILE,
    }


def workload_block(seed: int, duration_s: int) -> dict[str, Any]:
    """The ``workload`` block: the preregistered parameters and what this timetable offers."""
    schedule = world.schedule(seed, duration_s)
    return {
        "id": world.WORKLOAD_ID,
        "version": world.WORKLOAD_VERSION,
        "seed": seed,
        "duration_s": duration_s,
        "warmup_s": world.WARMUP_S,
        "warmup_seed": seed + world.WARMUP_SEED_OFFSET,
        "arrivals": "bursty",
        "burst_period_s": workload.BURST_PERIOD_S,
        "burst_on_s": workload.BURST_ON_S,
        "nominal_rate_req_s": world.RATE_REQ_S,
        "deadline_ms": world.DEADLINE_MS,
        "thresholds_ms": list(world.THRESHOLDS_MS),
        "mix": dict(world.MIX),
        "lengths": {
            world.TRAIN: f"<={world.TRAIN_MAX_TOKENS}",
            **{cls: shape.length for cls, shape in world.BACKGROUND.items()},
        },
        "prompt_template_sha256": world.prompt_template_sha256(),
        "schedule_sha256": world.schedule_sha256(schedule),
        "offered": {
            "requests": len(schedule),
            "trains": sum(arrival.train is not None for arrival in schedule),
            "req_s": len(schedule) / duration_s,
        },
    }


def host_facts(rounds: Sequence[metrics.Round]) -> dict[str, Any]:
    """How the host kept to the timetable and to its devices' times, round by round."""
    return {
        "rounds": [
            {
                "index": one.index,
                "config": one.config,
                "submit_lag_all_requests": stats([metrics.submit_lag_ms(record) for record in one.records]),
                "service": _service_times(one.records),
            }
            for one in rounds
        ]
    }


def _service_times(records: Sequence[metrics.Record]) -> list[dict[str, Any]]:
    samples: dict[tuple[str, int, int], list[float]] = {}
    for record in records:
        shape = (record["target"], record["question_count"], record["sequence_length"])
        samples.setdefault(shape, []).append(metrics.inference_ms(record))
    return [
        {"target": target, "question_count": count, "sequence_length": length, "service_ms": stats(found)}
        for (target, count, length), found in sorted(samples.items())
    ]


LABELS = {metrics.GPU_ONLY: "GPU only", metrics.HYBRID: "GPU + ANE"}


def summary(found: Mapping[str, Any]) -> list[str]:
    """The terminal's lines. A demoted round is named but gives no numbers: it is no comparison."""
    asked = found["workload"]
    title = f"Switchyard {asked['id']}, seed {asked['seed']}, {asked['duration_s']} s"
    lines = [f"{title} (virtual Mac, synthetic)" if found["synthetic"] else title]
    lines.append(
        f"{found['model']['name']} on {found['machine']['platform']['soc']}, "
        f"{asked['offered']['requests']} requests, {asked['offered']['trains']} trains"
        + ("" if found["standard"] else ", not a standard run")
    )
    for one in found["rounds"]:
        if one["ane_verified"] is False:
            lines.append(
                f"{LABELS[one['config']]}: not counted, its trains did not stay on the Neural Engine"
            )
            continue
        lines.extend(_round_lines(one))
    lines.extend(f"{LABELS[one['config']]}: failed: {one['error']}" for one in found["failed_rounds"])
    return lines + ane_lines(found["ane"])


def _round_lines(one: Mapping[str, Any]) -> list[str]:
    systems, game = one["systems"], one["game"]
    latency, secondary = systems["decision_latency"], systems["secondary"]
    lines = [f"{LABELS[one['config']]}: {game['late']} of {game['trains']} trains late"]
    if latency["n"] == 0:
        return lines
    wait = systems["queue_wait"]
    lines.append(
        f"  decision latency P50 {latency['p50_ms']:.1f}, P95 {latency['p95_ms']:.1f}, "
        f"P99 {latency['p99_ms']:.1f} ms; queue wait P50 {wait['p50_ms']:.1f}, P99 {wait['p99_ms']:.1f} ms"
    )
    lines.append(
        f"  misrouted {game['misrouted']}, route accuracy {game['route_accuracy']:.4f}; "
        f"{secondary['decisions_per_s']:.1f} decisions/s, {secondary['completed_req_s']:.1f} requests/s"
    )
    devices = ", ".join(f"{count} on {device}" for device, count in secondary["devices"].items())
    lines.append(
        f"  trains: {devices}; submit lag P99 {secondary['submit_lag_all_requests']['p99_ms']:.2f} ms"
    )
    return lines


def ane_lines(ane: Mapping[str, Any]) -> list[str]:
    """Why there is no GPU + ANE round, and the command that mends it."""
    if ane["state"] == messages.READY:
        return []
    lines = [f"Neural Engine: {ane['reason_text']} ({ane['reason']})"]
    if ane["detail"]:
        lines.append(f"  {ane['detail']}")
    if ane["setup_command"]:
        lines.append(f"  set it up with: {ane['setup_command']}")
    return lines
