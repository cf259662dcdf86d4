"""``--laya-gate``: a claim about a recorded metric, judged by what the sample supports."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from pytest_laya.verdicts import Outcome, Verdict

GROUP = "laya-gate"

_CLAIM = re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*(<=|>=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class Metric:
    """A measured value and how far its sample carries."""

    name: str
    value: float | None
    interval: tuple[float, float] | None
    """Both ends included; None when the sample is too small to say."""
    n: int
    """Size of the sample."""
    confidence: float
    """Of the interval; 1.0 for an exact count."""
    method: str
    """How the interval was made, or why there is none."""
    latency: bool
    """Whether the machine's conditions bear on it."""
    lower_is_better: bool = True
    synthetic: bool = False
    adverse: tuple[str, ...] = field(default=())
    """Conditions under which a latency says nothing."""
    machine: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Metric:
        interval = fields["interval"]
        return cls(
            **{**fields, "interval": None if interval is None else (interval[0], interval[1])}
            | {"adverse": tuple(fields["adverse"])}
        )


@dataclass(frozen=True)
class Claim:
    """``metric operator bound``."""

    text: str
    metric: str
    operator: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Claim:
        """Raises pytest.UsageError when the text is no claim."""
        match = _CLAIM.fullmatch(text)
        if match is None or not math.isfinite(float(match[3])):
            raise pytest.UsageError(
                f"--laya-gate {text!r} is not 'METRIC OPERATOR NUMBER', as 'hybrid.late.rate <= 0.01'; "
                "operators: <= >= < >"
            )
        return cls(f"{match[1]} {match[2]} {match[3]}", match[1], match[2], float(match[3]))

    def holds(self, value: float) -> bool:
        """Whether the claim is true of ``value``."""
        return {
            "<=": value <= self.bound,
            ">=": value >= self.bound,
            "<": value < self.bound,
            ">": value > self.bound,
        }[self.operator]


def doubt(metric: Metric, allow_synthetic: bool) -> str | None:
    """Why a metric cannot be judged at all, or None."""
    if metric.synthetic and not allow_synthetic:
        return "the result is synthetic (virtual Mac); --laya-allow-synthetic lets it be judged"
    if metric.latency and metric.adverse:
        return f"a latency measured under these conditions says nothing: {', '.join(metric.adverse)}"
    if metric.value is None or metric.interval is None:
        return f"the sample does not support an interval: {metric.method}"
    return None


def describe(metric: Metric) -> str:
    """Value, interval and sample in one phrase."""
    if metric.value is None or metric.interval is None:
        return f"n {metric.n}"
    low, high = metric.interval
    if metric.confidence == 1.0:
        return f"{metric.value:.6g} (exact)"
    return (
        f"{metric.value:.6g}, {metric.confidence:.0%} interval {low:.6g} to {high:.6g}, n {metric.n} "
        f"({metric.method})"
    )


def judge(claim: Claim, metric: Metric, allow_synthetic: bool) -> tuple[Outcome, str]:
    """PASS if the claim holds on the whole interval, FAIL if on none of it, else UNKNOWN."""
    reason = doubt(metric, allow_synthetic)
    if reason is not None:
        return "UNKNOWN", reason
    assert metric.interval is not None
    low, high = (claim.holds(end) for end in metric.interval)
    if low and high:
        return "PASS", describe(metric)
    if not low and not high:
        return "FAIL", describe(metric)
    return "UNKNOWN", f"the sample supports neither the claim nor its opposite: {describe(metric)}"


def judge_all(claims: Iterable[Claim], metrics: Iterable[Metric], allow_synthetic: bool) -> list[Verdict]:
    """One verdict a claim and machine. A claim whose metric was not recorded is UNKNOWN."""
    recorded = list(metrics)
    machines = sorted({metric.machine for metric in recorded}) or [""]
    verdicts = []
    for claim in claims:
        for machine in machines:
            name = f"{claim.text} [{machine}]" if machine else claim.text
            here = [metric for metric in recorded if metric.machine == machine]
            found = [metric for metric in here if metric.name == claim.metric]
            if not found:
                known = ", ".join(sorted({metric.name for metric in here})) or "no metric at all"
                reason = f"no test of this session recorded {claim.metric}; recorded: {known}"
                verdicts.append(Verdict(GROUP, name, "UNKNOWN", reason))
                continue
            # The same metric twice (two runs in one session): the claim must hold of each.
            order: list[Outcome] = ["FAIL", "UNKNOWN", "PASS"]
            judged = [judge(claim, metric, allow_synthetic) for metric in found]
            outcome, reason = min(judged, key=lambda one: order.index(one[0]))
            verdicts.append(Verdict(GROUP, name, outcome, reason))
    return verdicts
