"""The whole benchmark: the one entry that the command and the pytest suite share."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from laya_apple import registry, workload
from laya_apple.demos.switchyard import (
    ane_state,
    conditions,
    driver,
    messages,
    metrics,
    replay,
    report,
    result,
    runtime,
    world,
)
from laya_apple.demos.switchyard.redact import Redactor
from laya_apple.errors import LayaAppleError
from laya_apple.platform import Platform, current_platform
from laya_apple.workload import Request

OUT_ROOT = "switchyard-results"
VIRTUAL_MODEL = "laya-mini"


class UsageProblem(LayaAppleError):
    """The run cannot start as asked (exit code 2); the message is one line."""


@dataclass(frozen=True)
class Options:
    """What a run is asked to do. Anything but the defaults makes it non-standard."""

    seed: int = world.SEED
    duration_s: float = world.DURATION_S
    out: Path | None = None
    """None means ``./switchyard-results/<UTC>-<soc>/``."""
    setup_ane: bool = False
    model: str | None = None
    """None means laya-typed-decisions on a real Mac and laya-mini on the virtual one."""
    dtype: str = "float16"
    configs: tuple[str, ...] = metrics.CONFIGS
    """Configurations that may run; without ``hybrid`` the GPU + ANE round is left out on purpose."""
    local_files_only: bool = False

    def check(self) -> None:
        """Raise UsageProblem unless a run could be made of these options."""
        if not world.is_whole_cycles(self.duration_s):
            raise UsageProblem(
                f"--duration must be a whole number of {workload.BURST_PERIOD_S} s burst cycles "
                f"(3, 6, 9, … s), not {self.duration_s:g}"
            )
        if metrics.GPU_ONLY not in self.configs or not set(self.configs) <= set(metrics.CONFIGS):
            raise UsageProblem(f"configs must hold {metrics.GPU_ONLY} and may hold {metrics.HYBRID}")


@dataclass(frozen=True)
class Failure:
    """A round that did not finish."""

    config: str
    error: str


@dataclass(frozen=True)
class Outcome:
    """What a run left behind. ``exit_code`` is 1 when the GPU-only round failed, else 0."""

    exit_code: int
    result: dict[str, Any] | None
    """As written; None when no round finished, and then nothing was written."""
    records: tuple[dict[str, Any], ...]
    result_dir: Path | None
    page: Path | None
    ane: dict[str, Any]
    host: dict[str, Any]
    """How the host kept up, round by round: submit lag, and device time by device and request shape."""
    failures: tuple[Failure, ...]
    interrupted: bool = False


@dataclass
class _Rounds:
    """Rounds as they finish."""

    finished: list[tuple[metrics.Round, driver.RoundData]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    interrupted: bool = False


def sequence(seed: int, configs: tuple[str, ...] = metrics.CONFIGS) -> tuple[str, ...]:
    """The round order: GPU-only first with an even seed, hybrid first with an odd one."""
    ordered = metrics.CONFIGS if seed % 2 == 0 else metrics.CONFIGS[::-1]
    return tuple(config for config in ordered if config in configs)


def model_for(platform: Platform) -> str:
    """The benchmark's model: the pinned checkpoint, or the embedded one on a virtual Mac."""
    return VIRTUAL_MODEL if platform.virtual else world.MODEL


def run(
    options: Options,
    *,
    platform: Platform | None = None,
    laya_factory: driver.LayaFactory | None = None,
    background: Mapping[str, Request] | None = None,
    checks: ane_state.Checks | None = None,
    steps: ane_state.Steps | None = None,
    progress: Callable[[str], None] = lambda line: None,
    clock: driver.Clock | None = None,
    drain_timeout_s: float = driver.DRAIN_TIMEOUT_S,
) -> Outcome:
    """Measure, record and build the page.

    ``platform`` defaults to this process's, ``laya_factory`` to ``Laya.from_pretrained``, ``background`` to
    the workload's three requests in the model's own tokens, ``checks`` and ``steps`` to the runtime's.
    ``progress`` gets one line at a time, never inside a round.

    Raises UsageProblem before anything loads. A failing round is no exception but a recorded failure; a
    result that does not match its schema raises ``result.ResultInvalid``.
    """
    options.check()
    platform = platform or current_platform()
    if not platform.is_apple_silicon:
        raise UsageProblem(
            "this machine cannot run the benchmark: it needs MLX on an Apple silicon Mac "
            "(pytest suites/switchyard runs it anywhere, on a virtual Mac)"
        )
    spec = registry.resolve(options.model or model_for(platform))
    checks = checks or runtime.checks(spec, platform)
    status = _prepare_ane(options, spec, platform, checks, steps, progress)
    wanted = options.configs if status.state == messages.READY else (metrics.GPU_ONLY,)
    order = sequence(options.seed, tuple(config for config in options.configs if config in wanted))
    rounds = _Rounds()
    try:
        background = background or workload.make_requests(
            spec.name if not spec.path or spec.embedded else str(spec.path),
            world.BACKGROUND,
            local_files_only=options.local_files_only,
        )
    except LayaAppleError as error:  # closed: no round can run, which is a failed GPU-only round
        failure = Failure(metrics.GPU_ONLY, ane_state.describe(error))
        return Outcome(1, None, (), None, None, status.to_dict(), {"rounds": []}, (failure,))
    for config in order:
        plan = driver.RoundPlan(
            index=len(rounds.finished),
            config=config,
            model=options.model or model_for(platform),
            dtype=options.dtype,
            schedule=world.schedule(options.seed, options.duration_s),
            warmup=world.warmup_schedule(options.seed),
            background=background,
            local_files_only=options.local_files_only,
        )
        progress(
            f"{config}: {world.WARMUP_S} s warm-up, then {options.duration_s:g} s "
            f"({len(plan.schedule)} requests)"
        )
        status = _play(plan, status, rounds, laya_factory or runtime.laya_factory(), clock, drain_timeout_s)
        if rounds.interrupted:
            break
        progress(f"{config}: {'done' if _has(rounds, config) else 'did not finish'}")
    return _finish(options, platform, spec, status, order, rounds)


def _prepare_ane(
    options: Options,
    spec: registry.ModelSpec,
    platform: Platform,
    checks: ane_state.Checks,
    steps: ane_state.Steps | None,
    progress: Callable[[str], None],
) -> ane_state.AneStatus:
    if options.setup_ane:
        failed = ane_state.set_up(spec, checks, steps or runtime.steps(spec, platform, progress), progress)
        if failed is not None:
            return failed
    return ane_state.decide(spec, platform, checks)


def _has(rounds: _Rounds, config: str) -> bool:
    return any(one.config == config for one, _ in rounds.finished)


def _play(
    plan: driver.RoundPlan,
    status: ane_state.AneStatus,
    rounds: _Rounds,
    laya_factory: driver.LayaFactory,
    clock: driver.Clock | None,
    drain_timeout_s: float,
) -> ane_state.AneStatus:
    """Run one round into ``rounds``; returns the Neural Engine's state after it."""
    try:
        data = driver.run_round(
            plan,
            laya_factory,
            sample_conditions=conditions.sample,
            other_processes=conditions.other_laya_processes,
            now_utc=conditions.now_utc,
            clock=clock,
            drain_timeout_s=drain_timeout_s,
        )
    except driver.AneUnusedInWarmup:  # closed: recorded as the state; the GPU-only round still runs
        return replace(status, reason="ane_unused_in_warmup", detail=None)
    except KeyboardInterrupt:  # closed: recorded as a failed round; what finished is written
        rounds.interrupted = True
        rounds.failures.append(Failure(plan.config, "interrupted"))
        return _dropped(plan, status, "interrupted")
    except Exception as error:  # closed: recorded as a failed round
        rounds.failures.append(Failure(plan.config, ane_state.describe(error)))
        return _dropped(plan, status, ane_state.describe(error))
    one = metrics.Round(plan.index, plan.config, data.played.round_start_ns, data.played.records)
    verified = metrics.ane_verified(one)
    rounds.finished.append((replace(one, ane_verified=verified), data))
    if verified is False:
        return replace(status, reason="ane_lost_during_round", detail=None)
    return status


def _dropped(plan: driver.RoundPlan, status: ane_state.AneStatus, error: str) -> ane_state.AneStatus:
    if plan.config != metrics.HYBRID:
        return status
    return replace(status, reason="ane_round_failed", detail=error)


def _finish(
    options: Options,
    platform: Platform,
    spec: registry.ModelSpec,
    status: ane_state.AneStatus,
    order: tuple[str, ...],
    rounds: _Rounds,
) -> Outcome:
    played = [one for one, _ in rounds.finished]
    failed = rounds.interrupted or not _has(rounds, metrics.GPU_ONLY)
    hybrid = next((data for one, data in rounds.finished if one.config == metrics.HYBRID), None)
    ane = status.to_dict(None if hybrid is None else hybrid.warmup_ane_trains)
    if status.reason == "ane_unused_in_warmup":
        ane["warmup_ane_requests"] = 0
    probes = None if hybrid is None else hybrid.info.get("ane_probes")
    if probes:
        ane["probes"] = {str(bucket): probe for bucket, probe in probes.items()}
    host = report.host_facts(played)
    failures = tuple(rounds.failures)
    if not played:
        return Outcome(1, None, (), None, None, ane, host, failures, rounds.interrupted)
    built = report.build(
        options=report.Asked(options.seed, int(options.duration_s), options.dtype, options.configs),
        platform=platform,
        spec=spec,
        status=status,
        ane=ane,
        order=order,
        rounds=rounds.finished,
        failures=[(one.config, one.error) for one in failures],
    )
    redactor = Redactor()
    records = [redactor.value(record) for one in played for record in one.records]
    out = options.out or default_out(platform)
    written = result.write(out, redactor.value(built), records)
    page = replay.write_page(out, written, records)
    return Outcome(
        1 if failed else 0,
        written,
        tuple(records),
        out,
        page,
        written["ane"],
        host,
        failures,
        rounds.interrupted,
    )


def default_out(platform: Platform, now: datetime.datetime | None = None) -> Path:
    """``switchyard-results/<UTC YYYYmmddTHHMMSSZ>-<soc>`` below the current folder."""
    stamp = (now or datetime.datetime.now(datetime.UTC)).strftime("%Y%m%dT%H%M%SZ")
    return Path(OUT_ROOT) / f"{stamp}-{result.soc_slug(platform.soc)}"
