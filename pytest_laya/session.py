"""The session object: holds what is known, decides, and has the results folder written.

One lives in every process: on the controller (or the only process) it gathers facts and judges; on an xdist
worker it only records facts, which travel in the tests' reports.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_laya import audit, conditions, distributed, facts, gates, markers, platforms, results, timeouts
from pytest_laya.facts import Fact
from pytest_laya.options import Settings, read_switchyard_options
from pytest_laya.verdicts import Verdict


class LayaSession:
    """State of one pytest session in one process."""

    def __init__(self, config: pytest.Config, settings: Settings, choice: platforms.Choice) -> None:
        self.config = config
        self.settings = settings
        self.choice = choice
        self.claims = [gates.Claim.parse(text) for text in settings.gate]
        sent = getattr(config, "workerinput", {}).get("laya")
        self.is_worker = hasattr(config, "workerinput")
        self.worker = distributed.WorkerInput(**sent) if sent else None
        self.started = self.worker.started if self.worker else results.utc_stamp()
        self.machine = self.worker.machine if self.worker else ""
        self.facts: list[Fact] = []
        self.verdicts: list[Verdict] = []
        self.audited: list[audit.Judged] = []
        self.outcomes: Counter[str] = Counter()
        self.laya_outcomes: dict[str, str] = {}
        self.skip_reasons: dict[str, str] = {}
        self.machines: dict[str, Any] = {}
        self._pending: list[Fact] = []
        self._recorded = 0
        self._seen: set[str] = set()
        self._written = False
        self._at_start: conditions.Conditions | None = None
        self.used = False

    # -- where things go ---------------------------------------------------------------------------------

    @property
    def base(self) -> Path:
        """The folder that relative results folders are below."""
        if self.worker:
            return Path(self.worker.base) if self.worker.base else self.worker.remote_base
        return Path(self.config.invocation_params.dir)

    @property
    def folder(self) -> Path:
        """The results folder; made when something is written."""
        if self.machine:  # another host: the controller takes all files below this folder home
            return self.base
        if self.settings.out:
            return self.base / Path(self.settings.out).expanduser()
        from laya_apple.demos.switchyard.result import soc_slug
        from laya_apple.platform import current_platform

        return self.base / "laya-results" / f"{self.started}-{soc_slug(current_platform().soc)}"

    @property
    def active(self) -> bool:
        """Whether there is anything to write: a test of ours ran, a claim was judged, a folder asked for."""
        return bool(self.laya_outcomes or self.facts or self.verdicts or self.settings.out)

    # -- the test's process ------------------------------------------------------------------------------

    def record(self, kind: str, data: dict[str, Any]) -> None:
        """Record a fact; it leaves with the running test's next report."""
        self.used = True
        self._recorded += 1
        worker_id = getattr(self.config, "workerinput", {}).get("workerid", "")
        self._pending.append(
            Fact(f"{worker_id}.{os.getpid()}.{self._recorded}", kind, data, machine=self.machine)
        )

    def hand_over(self, item: pytest.Item) -> None:
        """Put what was recorded so far on the test, whose reports carry it."""
        if self._pending:
            named = [Fact(one.id, one.kind, one.data, item.nodeid, one.machine) for one in self._pending]
            item.user_properties.append(facts.encode(named))
            self._pending.clear()

    def cannot(self, reason: str, *wants: str) -> NoReturn:
        """Skip for want of ``wants`` (gpu, ane, hardware), or fail where ``--laya-require`` names one."""
        for want in wants:
            if want in self.settings.require:
                pytest.fail(f"--laya-require {want}: {reason}", pytrace=False)
        pytest.skip(reason)

    def needs_device(self, item: pytest.Item) -> bool:
        """Whether the test needs the device to itself; a round that is only replayed measures nothing."""
        replayed = item.get_closest_marker("laya_round") and read_switchyard_options(self.config).replay
        return markers.is_exclusive(item) and not replayed

    def limit_s(self, item: pytest.Item) -> float:
        """Seconds a phase of the test may take; 0 for no limit."""
        duration_s = read_switchyard_options(self.config).duration_s
        return timeouts.limit_s(item, self.settings.timeout_s, 60.0 if duration_s is None else duration_s)

    def mark_skips(self, items: Sequence[pytest.Item]) -> None:
        """Skip the slow tier unless it was asked for; ``--laya-mutate`` asks for the mutants alone."""
        if not self.settings.slow:
            for item in items:
                mutant = self.settings.mutate and "mutants" in getattr(item, "fixturenames", ())
                if item.get_closest_marker("laya_slow") and not mutant:
                    item.add_marker(pytest.mark.skip(reason="slow tier: runs with --laya-slow"))

    def say(self, line: str) -> None:
        """Print a line at once, past pytest's capturing; silent with -q and on xdist workers."""
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        capture = self.config.pluginmanager.getplugin("capturemanager")
        if reporter is None or self.is_worker or self.config.option.verbose < 0:
            return
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            reporter.write_line(line)
            reporter.flush()

    def before_test(self, item: pytest.Item) -> None:
        """Skips and refusals that follow from the test's markers."""
        if item.get_closest_marker("laya_hardware") and (
            self.choice.hook or not platforms.is_apple_silicon_mac()
        ):
            self.cannot(f"needs real Apple silicon; this is: {self.choice.line}", "hardware")
        if item.get_closest_marker("laya_round") and self.worker and self.worker.workers_here > 1:
            pytest.fail(
                f"a Switchyard round needs the host to itself, and {self.worker.workers_here} xdist workers "
                "share it; run rounds with -n0, or with one worker a machine (--dist each --tx ssh=…)",
                pytrace=False,
            )

    # -- the controller ----------------------------------------------------------------------------------

    def check_options(self) -> None:
        """Refuse, before anything is collected, what the options name and cannot be. Raises UsageError."""
        if self.is_worker:
            return
        if self.settings.model:
            from laya_apple import UnsupportedModelError
            from laya_apple.registry import resolve

            try:
                resolve(self.settings.model)
            except UnsupportedModelError as error:
                raise pytest.UsageError(f"--laya-model: {error}") from None
        if self.settings.update_goldens or self.settings.update_new_goldens:
            from pytest_laya import goldens

            goldens.check_can_update()
        if self.settings.baseline:
            from pytest_laya import baselines

            baselines.read(self.baseline_folder)
        if read_switchyard_options(self.config).any_given:
            from pytest_laya import switchyard

            switchyard.check_options(self)

    def check_selection(self, items: Sequence[pytest.Item]) -> None:
        """Refuse options that the selected tests cannot follow. Raises pytest.UsageError."""
        rounds = [item for item in items if item.get_closest_marker("laya_round")]
        if rounds and self.settings.device == "cpu" and not self.is_worker:
            raise pytest.UsageError(
                "--laya-device cpu: a Switchyard round runs on the GPU, or on GPU and Neural Engine; "
                "leave suites/switchyard out, or use --laya-device auto"
            )

    def absorb(self, report: pytest.TestReport) -> None:
        """Take the facts out of a report, count its outcome, write what is new."""
        carried = [self.brought_home(fact) for fact in facts.take(report.user_properties)]
        new = [fact for fact in carried if fact.id not in self._seen]
        self._seen.update(fact.id for fact in new)
        self.facts.extend(new)
        for fact in carried:
            if fact.kind == "metrics":  # readable in JUnit and whatever else reads properties
                report.user_properties.extend(
                    (f"laya.{metric['name']}", metric["value"]) for metric in fact.data["metrics"]
                )
        self._count(report)
        if new or (self.active and not self._written):
            self._written = True
            self._at_start = self._at_start or conditions.collect()
            self.write(state="unfinished", kinds={fact.kind for fact in new})

    def brought_home(self, fact: Fact) -> Fact:
        """A fact of another host with its folder as it will be here, once that host's files have come."""
        if fact.machine and fact.data.get("folder") is not None:
            folder = str(self.folder / fact.machine / fact.data["folder"])
            return replace(fact, data=fact.data | {"folder": folder, "page": None})
        return fact

    def _count(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            broken = report.outcome == "failed" and report.when != "call"
            outcome = "error" if broken else report.outcome
            self.outcomes[outcome] += 1
            if markers.LAYA_TEST in report.keywords:
                self.laya_outcomes[report.nodeid] = outcome
                if report.skipped and isinstance(report.longrepr, tuple):
                    self.skip_reasons[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def recorded(self, kind: str) -> list[Fact]:
        """The facts of one kind, in the order they arrived."""
        return [fact for fact in self.facts if fact.kind == kind]

    def metrics(self) -> list[gates.Metric]:
        """Every metric that any test recorded."""
        return [
            gates.Metric.from_dict(one | {"machine": fact.machine})
            for fact in self.recorded("metrics")
            for one in fact.data["metrics"]
        ]

    def judge(self) -> list[Verdict]:
        """Gates, baseline and requirement, once, over the whole session; none where nothing was run."""
        if self.is_worker or self.config.option.collectonly:
            return []
        self.absorb_rest()
        verdicts = gates.judge_all(self.claims, self.metrics(), self.settings.allow_synthetic)
        if self.settings.baseline:
            from pytest_laya import baselines

            verdicts += baselines.judge(
                self.baseline_folder, self.recorded("switchyard"), self.settings.allow_synthetic
            )
        if self.settings.update_goldens:
            from pytest_laya import goldens

            verdicts.append(goldens.update_used(self))
        verdicts += self._audit()
        ran = [nodeid for nodeid, outcome in self.laya_outcomes.items() if outcome != "skipped"]
        if self.settings.require and not ran:
            why = "every laya test was skipped" if self.laya_outcomes else "no laya test ran"
            verdicts.append(Verdict("laya-require", ", ".join(self.settings.require), "FAIL", why))
        self.verdicts = verdicts
        return verdicts

    def _audit(self) -> list[Verdict]:
        """Judge the audit's rows where one of its tests ran, or always when strict; red only when strict."""
        strict = self.settings.audit == "strict"
        if self.settings.audit == "off" or not (strict or audit.outcomes_of(self.laya_outcomes)):
            return []
        self.audited = audit.judge(self.laya_outcomes)
        return audit.verdicts(self.audited) if strict else []

    @property
    def baseline_folder(self) -> Path:
        """The folder ``--laya-baseline`` names."""
        return self.base / Path(self.settings.baseline).expanduser()

    def absorb_rest(self) -> None:
        """Take facts that no report carries any more (recorded while the session ended)."""
        self.facts.extend(self._pending)
        self._pending.clear()

    def pending(self) -> list[Fact]:
        """Facts that no report has taken along yet."""
        return list(self._pending)

    def finish(self, exit_status: int) -> None:
        """Write everything for the last time; a worker hands its rest to the controller."""
        if self.is_worker:
            distributed.report_back(self)
            return
        self.absorb_rest()
        if self.active and not self.config.option.collectonly:
            if not self.recorded("conditions"):  # every session leaves conditions.json
                end = conditions.collect()
                start = self._at_start or end
                looked = {"start": start.to_dict(), "end": end.to_dict()}
                self.facts.append(Fact("session", "conditions", looked))
            self.write(self.state(exit_status), None, exit_status)

    def state(self, exit_status: int) -> str:
        """How a session with this exit status ended."""
        return {2: "interrupted", 3: "crashed", 4: "refused"}.get(exit_status, "finished")

    def write(self, state: str, kinds: set[str] | None = None, exit_status: int | None = None) -> None:
        """Write the folder's files; ``kinds`` limits the measured ones to those with news."""
        from pytest_laya import writers

        writers.write(self, state, kinds, exit_status)


KEY = pytest.StashKey[LayaSession]()


def of(config: pytest.Config) -> LayaSession:
    """The session of this config."""
    return config.stash[KEY]
