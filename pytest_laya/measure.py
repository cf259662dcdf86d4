"""What the fixtures hand out: a loaded ``Laya``, probes, traces, benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_laya import conditions, platforms, results
from pytest_laya.session import LayaSession

if TYPE_CHECKING:
    from laya_apple import Laya, RequestTrace
    from laya_apple.platform import Platform

REAL_MODEL = "laya-typed-decisions"
EMBEDDED_MODEL = "laya-mini"


def model_id(session: LayaSession) -> str:
    """The session's model: ``--laya-model``, else the pinned one on a real Mac and laya-mini elsewhere."""
    if session.settings.model:
        return session.settings.model
    real = not session.choice.hook and platforms.is_apple_silicon_mac()
    return REAL_MODEL if real else EMBEDDED_MODEL


def need_device(session: LayaSession, device: str, platform: Platform) -> None:
    """Skip (or fail, with ``--laya-require``) where the platform lacks what ``device`` needs."""
    if device in ("gpu", "auto") and platform.mlx_gpu_device() is None:
        session.cannot(
            f"device {device!r} needs a GPU that MLX can use, and {platform.soc or 'this machine'} has none; "
            "--laya-device cpu or --laya-platform auto would run here",
            "gpu",
        )
    if device == "ane" and not platform.is_apple_silicon:
        session.cannot("device 'ane' needs an Apple-silicon Mac; --laya-platform auto would run here", "ane")


def load(session: LayaSession, model: Any = None, **arguments: Any) -> Laya:
    """``Laya.from_pretrained`` with what is not given taken from the options."""
    from laya_apple import ArtifactMissingError, Laya
    from laya_apple.platform import current_platform

    settings = session.settings
    device = str(arguments.setdefault("device", settings.device))
    # The Neural Engine runs float16 only; --laya-dtype is about MLX.
    arguments.setdefault("dtype", "float16" if device == "ane" else settings.dtype)
    arguments.setdefault("execution", settings.execution)
    arguments.setdefault("local_files_only", settings.offline)
    need_device(session, device, current_platform())
    try:
        return Laya.from_pretrained(model_id(session) if model is None else model, **arguments)
    except ArtifactMissingError as error:
        session.cannot(str(error), "ane")


class Probe:
    """Placement verdicts of a loaded ``Laya``."""

    def __init__(self, session: LayaSession) -> None:
        self._session = session

    def verdict(self, laya: Laya, bucket: int) -> str:
        """PLACED, FELL_BACK or, where ``bucket`` was not probed, UNKNOWN; recorded in probe.json."""
        from laya_apple.platform import current_platform

        probe = dict(laya.info().get("ane_probes", {}).get(bucket, {"verdict": "UNKNOWN"}))
        self._session.record("probe", {"bucket": bucket, "synthetic": current_platform().virtual} | probe)
        return str(probe["verdict"])


class Traces:
    """A trace callback that keeps what it gets."""

    def __init__(self) -> None:
        self.collected: list[RequestTrace] = []

    def __call__(self, trace: RequestTrace) -> None:
        # list.append is atomic; traces arrive from the devices' threads.
        self.collected.append(trace)

    def write(self, session: LayaSession, name: str) -> None:
        """Write them, one JSON object a line, into the results folder."""
        lines = [json.dumps(one.to_dict(), separators=(",", ":")) for one in self.collected]
        results.write_text(session.folder / name, "\n".join(lines) + "\n")
        session.record("trace", {"file": name, "requests": len(lines)})


class Benchmark:
    """pytest-benchmark's fixture with the facts that make its figures comparable."""

    def __init__(self, benchmark: Any) -> None:
        self._benchmark = benchmark

    def __call__(self, laya: Laya, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Time ``function(*arguments, **named)``; returns what it returned."""
        from laya_apple.platform import current_platform

        before = conditions.collect()
        returned = self._benchmark(function, *arguments, **named)
        info = laya.info()
        self._benchmark.extra_info.update(
            {
                "device": info["device"],
                "dtype": info["dtype"],
                "model": info["model"],
                "placement": {
                    str(bucket): probe["verdict"] for bucket, probe in info.get("ane_probes", {}).items()
                },
                "conditions": {"start": before.to_dict(), "end": conditions.collect().to_dict()},
                "synthetic": current_platform().virtual,
            }
        )
        return returned
