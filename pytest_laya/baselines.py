"""``--laya-baseline DIR``: this session's Switchyard result against an earlier one, metric by metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_laya import gates
from pytest_laya.facts import Fact
from pytest_laya.gates import Metric
from pytest_laya.metrics import of_result
from pytest_laya.verdicts import Outcome, Verdict

GROUP = "laya-baseline"

# Two results are comparable when these are equal.
_SAME = (
    ("workload", ("workload", "id")),
    ("workload version", ("workload", "version")),
    ("seed", ("workload", "seed")),
    ("duration", ("workload", "duration_s")),
    ("timetable", ("workload", "schedule_sha256")),
    ("prompt", ("workload", "prompt_template_sha256")),
    ("SoC", ("machine", "platform", "soc")),
    ("OS build", ("machine", "platform", "macos_build")),
    ("model", ("model", "name")),
    ("model revision", ("model", "revision")),
    ("weights", ("model", "weights_sha256")),
    ("synthetic", ("synthetic",)),
)


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Result and trace of an earlier run. Raises pytest.UsageError when the folder holds none."""
    from laya_apple.demos.switchyard.result import ResultUnreadable
    from laya_apple.demos.switchyard.result import read as read_result

    try:
        return read_result(folder)
    except ResultUnreadable as error:
        raise pytest.UsageError(f"--laya-baseline: {error}") from None


def judge(folder: Path, runs: Iterable[Fact], allow_synthetic: bool) -> list[Verdict]:
    """One verdict a metric of the baseline and machine; UNKNOWN where the two cannot be compared."""
    result, records = read(folder)
    earlier = {metric.name: metric for metric in of_result(result, records)}
    found = []
    ran = [run for run in runs if not run.data["replayed"] and run.data["folder"] is not None]
    if not ran:
        return [Verdict(GROUP, "switchyard", "UNKNOWN", "no Switchyard round finished in this session")]
    for run in ran:
        now_result, now_records = _read_now(run)
        now = {
            metric.name: metric
            for metric in of_result(now_result, now_records, run.data["conditions"]["adverse"])
        }
        differs = differences(result, now_result)
        for name, before in earlier.items():
            label = f"{name} [{run.machine}]" if run.machine else name
            outcome, reason = _compare(before, now.get(name), differs, allow_synthetic)
            found.append(Verdict(GROUP, label, outcome, reason))
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What makes two results incomparable, as ``SoC: A, now B``."""
    found = []
    for label, path in _SAME:
        was, is_now = _at(before, path), _at(now, path)
        if was != is_now:
            found.append(f"{label}: {was}, now {is_now}")
    return found


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _read_now(run: Fact) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from laya_apple.demos.switchyard.result import read as read_result

    return read_result(Path(run.data["folder"]))


def _compare(
    before: Metric, now: Metric | None, differs: list[str], allow_synthetic: bool
) -> tuple[Outcome, str]:
    if differs:
        return "UNKNOWN", "not comparable with the baseline: " + "; ".join(differs)
    if now is None:
        return "UNKNOWN", "the baseline has this metric, and this session's run does not"
    for metric in (before, now):
        reason = gates.doubt(metric, allow_synthetic)
        if reason is not None:
            return "UNKNOWN", reason
    assert before.interval is not None
    assert now.interval is not None
    worse = (
        now.interval[0] > before.interval[1] if now.lower_is_better else now.interval[1] < before.interval[0]
    )
    story = f"was {gates.describe(before)}; now {gates.describe(now)}"
    return ("FAIL", f"regressed beyond noise: {story}") if worse else ("PASS", story)
