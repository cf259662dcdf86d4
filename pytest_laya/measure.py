"""What the fixtures hand out: a loaded ``Laya``, goldens, probes, traces, benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_laya import conditions, platforms, results
from pytest_laya.session import LayaSession

if TYPE_CHECKING:
    from laya_apple import Laya, RequestTrace
    from laya_apple.parity.gate import GateReport
    from laya_apple.parity.goldens import Goldens as GoldenFile
    from laya_apple.platform import Platform

REAL_MODEL = "laya-typed-decisions"
EMBEDDED_MODEL = "laya-mini"

MAX_OPTIONS = 32
"""Options of the one compiled graph."""


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


class Goldens:
    """Golden files by checkpoint name, and the parity gate over them."""

    def __init__(self, session: LayaSession) -> None:
        self._session = session

    def path(self, checkpoint: str) -> Path:
        """Where the goldens of ``checkpoint`` are: laya-mini's ship, the others are in the source tree."""
        import laya_apple

        package = Path(laya_apple.__file__).parent
        shipped = checkpoint == EMBEDDED_MODEL
        folder = package / "data" / "goldens" if shipped else package.parent / "fixtures" / "goldens"
        return folder / f"{checkpoint}.json"

    def load(self, checkpoint: str) -> GoldenFile:
        """The goldens of ``checkpoint``; LayaAppleError with the command that makes them when missing."""
        from laya_apple.parity.goldens import load_goldens

        return load_goldens(self.path(checkpoint))

    def gate(self, model: Any, goldens: str, *, device: str, dtype: str = "float16") -> GateReport:
        """The parity gate of ``model`` on ``device`` against the goldens named; goes to parity.json."""
        from laya_apple.checkpoint import open_checkpoint
        from laya_apple.execution.loading import LoadRequest, load_backend
        from laya_apple.parity.gate import run_gate
        from laya_apple.platform import current_platform
        from laya_apple.prompt.tokenizer import Tokenizer

        found = self.load(goldens)
        platform = current_platform()
        need_device(self._session, device, platform)
        checkpoint = open_checkpoint(model, local_files_only=self._session.settings.offline)
        buckets = checkpoint.spec.ane_buckets if device == "ane" else ()
        backend = load_backend(
            LoadRequest(device, checkpoint, dtype, batch_size=16, strict=True, buckets=buckets), platform
        )
        try:
            report = run_gate(
                backend.forward,
                Tokenizer.from_dir(checkpoint.path),
                checkpoint.config,
                found,
                dtype=dtype,
                weights_sha256=checkpoint.spec.weights_sha256,
                max_length=max(buckets, default=None),
                max_options=MAX_OPTIONS if buckets else None,
            )
        finally:
            backend.close()
        self._session.record("parity", {"device": device, "synthetic": platform.virtual} | report.to_dict())
        return report


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
