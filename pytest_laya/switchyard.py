"""The Switchyard benchmark under pytest: options checked first, rounds run once a session, facts recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_laya import conditions, metrics
from pytest_laya.options import SwitchyardOptions, read_switchyard_options
from pytest_laya.session import LayaSession

if TYPE_CHECKING:
    from laya_apple.demos.switchyard.run import Options


def check_options(session: LayaSession) -> None:
    """Refuse bad Switchyard options before anything loads. Raises pytest.UsageError."""
    asked = read_switchyard_options(session.config)
    from laya_apple.demos.switchyard.run import UsageProblem

    try:
        benchmark_options(session, asked).check()
    except UsageProblem as error:
        raise pytest.UsageError(str(error)) from None
    if asked.replay is not None:
        from laya_apple.demos.switchyard import result

        try:
            result.read(session.base / asked.replay)
        except result.ResultUnreadable as error:
            raise pytest.UsageError(f"--replay: {error}") from None


def benchmark_options(session: LayaSession, asked: SwitchyardOptions) -> Options:
    """The benchmark's own options for this session."""
    from laya_apple.demos.switchyard import run, world

    settings = session.settings
    gpu_alone = settings.device == "gpu"
    out = session.folder if session.machine else asked.out or (session.folder if settings.out else None)
    return run.Options(
        seed=world.SEED if asked.seed is None else asked.seed,
        duration_s=world.DURATION_S if asked.duration_s is None else asked.duration_s,
        out=None if out is None else session.base / out,
        # The stand-in is prepared without asking: its Neural Engine path costs seconds, and nothing of it
        # is a claim about this machine.
        setup_ane=(asked.setup_ane or session.choice.virtual) and not gpu_alone,
        model=settings.model or None,
        dtype=settings.dtype,
        configs=("gpu_only",) if gpu_alone else ("gpu_only", "hybrid"),
        local_files_only=settings.offline,
    )


@dataclass(frozen=True)
class SwitchyardRun:
    """What the ``switchyard`` fixture gives: the run's result, its trace and where they were written."""

    result: Mapping[str, Any] | None
    """result.json as written; None when no round finished."""
    records: Sequence[Mapping[str, Any]]
    """The lines of trace.jsonl."""
    folder: Path | None
    page: Path | None
    """The replay page."""
    ane: Mapping[str, Any]
    """State of the Neural Engine path, with its reason."""
    failures: Mapping[str, str]
    """Configuration -> why its round did not finish."""
    left_out: str | None
    """Why no GPU + ANE round was asked for, if none was."""
    session: LayaSession = field(repr=False)

    def round(self, config: str) -> Mapping[str, Any]:
        """The finished round of ``config``.

        A failed ``gpu_only`` round fails the test. A missing, failed or demoted ``hybrid`` round skips it
        with the reason, or fails it where the options require the Neural Engine.
        """
        found = None
        if self.result is not None:
            found = next((one for one in self.result["rounds"] if one["config"] == config), None)
        if config == "hybrid":
            reason = self.hybrid_reason()
            if reason is not None:
                self._cannot(reason)
        if found is None:
            pytest.fail(
                f"the {config} round failed: {self.failures.get(config, 'it did not run')}", pytrace=False
            )
        return dict(found)

    def hybrid_reason(self) -> str | None:
        """Why there is no GPU + ANE round to count, or None."""
        if self.left_out is not None:
            return self.left_out
        rounds = self.result["rounds"] if self.result is not None else ()
        counted = any(one["config"] == "hybrid" and one["ane_verified"] for one in rounds)
        if counted:
            return None
        reason = (
            self.ane.get("reason_text") or self.failures.get("hybrid") or "the GPU + ANE round did not run"
        )
        code = f" ({self.ane['reason']})" if self.ane.get("reason") else ""
        detail = f": {self.ane['detail']}" if self.ane.get("detail") else ""
        command = f"; set it up with: {self.ane['setup_command']}" if self.ane.get("setup_command") else ""
        return f"{reason}{code}{detail}{command}"

    def _cannot(self, reason: str) -> None:
        if self.session.settings.device == "ane":
            pytest.fail(f"--laya-device ane requires a verified GPU + ANE round: {reason}", pytrace=False)
        self.session.cannot(reason, "ane")


def perform(session: LayaSession) -> SwitchyardRun:
    """Run the rounds, or read an earlier run for ``--replay``; record what they gave."""
    from laya_apple.demos.switchyard import replay, run

    asked = read_switchyard_options(session.config)
    if asked.replay is not None:
        replay.rebuild(session.base / asked.replay)
        stored = read_run(session, session.base / asked.replay)
        record(stored, None)
        return stored
    options = benchmark_options(session, asked)
    before = conditions.collect()
    try:
        outcome = run.run(options, progress=session.say)
    except run.UsageProblem as error:
        session.cannot(str(error), "gpu", "hardware")
    gpu_alone = session.settings.device == "gpu"
    done = SwitchyardRun(
        outcome.result,
        outcome.records,
        None if outcome.result_dir is None else outcome.result_dir.absolute(),
        None if outcome.page is None else outcome.page.absolute(),
        outcome.ane,
        {one.config: one.error for one in outcome.failures},
        "--laya-device gpu: no GPU + ANE round was asked for" if gpu_alone else None,
        session,
    )
    record(done, (before, conditions.collect()), outcome.host)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return done


def read_run(session: LayaSession, folder: Path) -> SwitchyardRun:
    """An earlier run from its files. Raises ``result.ResultUnreadable``."""
    from laya_apple.demos.switchyard import result

    found, records = result.read(folder)
    failures = {one["config"]: one["error"] for one in found.get("failed_rounds", ())}
    page = folder / result.REPLAY_FILE
    return SwitchyardRun(found, records, folder.absolute(), page, found["ane"], failures, None, session)


def record(
    done: SwitchyardRun,
    looked: tuple[conditions.Conditions, conditions.Conditions] | None,
    host: Mapping[str, Any] | None = None,
) -> None:
    """Record a run for summary, files, gates and baseline.

    ``looked``: the conditions before and after; None for a run that was not measured now, which is shown
    and judged by nothing. ``host``: how the host kept up, round by round.
    """
    facts = _fact(done, {**(host or {}), "limits": _host_limits(done)}, looked)
    done.session.record("switchyard", facts)
    if done.result is not None and looked is not None:
        measured = metrics.of_result(done.result, done.records, facts["conditions"]["adverse"])
        done.session.record("metrics", {"metrics": [metric.to_dict() for metric in measured]})


def _fact(
    done: SwitchyardRun,
    host: Mapping[str, Any],
    looked: tuple[conditions.Conditions, conditions.Conditions] | None,
) -> dict[str, Any]:
    from laya_apple.demos.switchyard import report

    wrote = done.result is not None and done.folder is not None
    return {
        "folder": str(_told(done)) if wrote else None,
        "files": ["result.json", "trace.jsonl", "replay.html"] if wrote else [],
        "page": str(done.page) if done.page else None,
        "replayed": looked is None,
        "lines": report.summary(done.result) if done.result is not None else [],
        "summary": {} if done.result is None else {
            config: _numbers(found) for config, found in done.result["configs"].items()
        },
        "hybrid_reason": done.hybrid_reason(),
        "failures": dict(done.failures),
        "host": dict(host),
        "conditions": {
            "start": looked[0].to_dict() if looked else None,
            "end": looked[1].to_dict() if looked else None,
            "adverse": sorted({*looked[0].adverse(), *looked[1].adverse()}) if looked else [],
        },
    }  # fmt: skip


def _told(done: SwitchyardRun) -> Path:
    """The run's folder; on another host relative to the folder whose files travel to the controller."""
    assert done.folder is not None
    return done.folder.relative_to(done.session.folder) if done.session.machine else done.folder


def _numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    latency = found["summary"]["decision_latency"]
    return {
        "trains": found["game"]["trains"],
        "late": found["game"]["late"],
        "late rate": found["summary"]["late"]["rate"],
        "P50 ms": latency.get("p50_ms"),
        "P95 ms": latency.get("p95_ms"),
        "P99 ms": latency.get("p99_ms"),
        "misrouted": found["game"]["misrouted"],
    }


def _host_limits(done: SwitchyardRun) -> list[dict[str, Any]]:
    """How far the virtual Mac's host fell behind its declared times, round by round; empty on a real one."""
    if done.result is None or not done.result["synthetic"]:
        return []
    from pytest_laya.virtual_mac.declared import current_times
    from pytest_laya.virtual_mac.overruns import judge_round

    buckets = [int(bucket) for bucket in done.result["model"]["ane_artifacts"]]
    return [
        {"config": one["config"], "index": one["index"]}
        | judge_round(
            [record for record in done.records if record["round"] == one["index"]], current_times(), buckets
        ).to_dict()
        for one in done.result["rounds"]
    ]
