"""The placement probe: is the loaded model faster than a CPU_ONLY instance of the same artifact?

``CPU_AND_NE`` lets Core ML use the CPU, and the compute plan looks at a separate static compile. If the
on-device compile failed, the loaded model runs on the CPU while the plan still says Neural Engine. The two
instances are timed back to back, so the machine's load slows both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laya_apple.artifacts.runtime import Float32, predict
from laya_apple.errors import ArtifactError
from laya_apple.result import Placement

PROBE_MAX_RATIO = 0.8
"""Above this the model runs at CPU speed; the published M4 Max measurements lie between 0.32 and 0.50."""
PROBE_PREDICTIONS = 5


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Fastest of five predictions on each instance, milliseconds; None where there was nothing to time."""

    ane_ms: float | None
    cpu_ms: float | None
    ratio: float | None
    verdict: Placement
    detail: str = ""
    """Why the verdict is UNKNOWN; empty otherwise."""

    def to_dict(self) -> dict[str, Any]:
        """As ``info()["ane_probes"]`` shows it."""
        facts = asdict(self)
        if not self.detail:
            del facts["detail"]
        return facts

    def why(self) -> str:
        """What the verdict rests on, for an error message."""
        if self.ratio is None:
            return f"placement unknown: {self.detail}"
        return (
            f"fastest of {PROBE_PREDICTIONS} predictions {self.ane_ms:.3f} ms against {self.cpu_ms:.3f} ms "
            f"with CPU_ONLY, ratio {self.ratio:.2f}, limit {PROBE_MAX_RATIO}"
        )


def run_probe(
    model: Any,
    path: Path,
    features: Mapping[str, Float32],
    *,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> ProbeResult:
    """Time the loaded ``model`` and a CPU_ONLY instance of ``path`` on the same ``features``.

    One warm-up and five timed predictions on each. The verdict is FELL_BACK above ``PROBE_MAX_RATIO`` and
    UNKNOWN where the comparison cannot be made. Raises ArtifactError when the loaded model cannot predict.
    """
    ane_ms = _fastest_ms(model, features, clock_ns)
    try:
        cpu_ms = _fastest_ms(_load_cpu_only(path), features, clock_ns)
    except ArtifactError as error:  # closed: no comparison, so the verdict is UNKNOWN
        return ProbeResult(ane_ms, None, None, "UNKNOWN", f"the CPU_ONLY instance failed: {error}")
    return judge(ane_ms, cpu_ms)


def judge(ane_ms: float, cpu_ms: float) -> ProbeResult:
    """The verdict on two fastest times, milliseconds."""
    if not (0 < ane_ms < float("inf") and 0 < cpu_ms < float("inf")):
        return ProbeResult(ane_ms, cpu_ms, None, "UNKNOWN", "a prediction took no measurable time")
    ratio = ane_ms / cpu_ms
    return ProbeResult(ane_ms, cpu_ms, ratio, "FELL_BACK" if ratio > PROBE_MAX_RATIO else "PLACED")


def _load_cpu_only(path: Path) -> Any:
    """The only place in the package that names compute units other than CPU_AND_NE."""
    import coremltools as ct

    try:
        return ct.models.CompiledMLModel(str(path), compute_units=ct.ComputeUnit.CPU_ONLY)
    except Exception as error:  # reraise: coremltools raises bare Exception and RuntimeError
        raise ArtifactError(f"Core ML could not load {path} with CPU_ONLY: {error}") from error


def _fastest_ms(model: Any, features: Mapping[str, Float32], clock_ns: Callable[[], int]) -> float:
    predict(model, features)
    fastest_ns = None
    for _ in range(PROBE_PREDICTIONS):
        start_ns = clock_ns()
        predict(model, features)
        took_ns = clock_ns() - start_ns
        fastest_ns = took_ns if fastest_ns is None else min(fastest_ns, took_ns)
    assert fastest_ns is not None
    return fastest_ns / 1e6
