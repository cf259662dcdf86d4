"""Where the benchmark meets the runtime. Everything heavy is imported when it is used."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from typing import Any

from laya_apple.demos.switchyard.ane_state import Checks, Steps
from laya_apple.demos.switchyard.driver import LayaFactory
from laya_apple.errors import BackendUnavailableError
from laya_apple.platform import Platform
from laya_apple.registry import ModelSpec


def laya_factory() -> LayaFactory:
    """``Laya.from_pretrained``."""
    from laya_apple import Laya

    factory: LayaFactory = Laya.from_pretrained
    return factory


def checks(spec: ModelSpec, platform: Platform) -> Checks:
    """The runtime's own checks of the Neural Engine path for one model on this machine."""

    def coremltools_available() -> bool:
        from laya_apple.artifacts.runtime import require_coremltools

        try:
            require_coremltools(platform)
        except BackendUnavailableError:  # closed: recorded as the state
            return False
        return True

    def auto_buckets() -> tuple[int, ...]:
        from laya_apple.routing.profiles import coremltools_version, load_profile

        profile = load_profile(platform, spec, coremltools_version())
        return () if profile is None else profile.auto_buckets

    def load_verified(bucket: int) -> str:
        from laya_apple.artifacts.store import load_verified as load

        _, manifest = load(spec, bucket, platform=platform)
        return manifest.artifact_sha256

    return Checks(coremltools_available, auto_buckets, load_verified)


def steps(spec: ModelSpec, platform: Platform, progress: Callable[[str], None]) -> Steps:
    """Build and calibrate as ``laya-apple artifacts build`` and ``laya-apple calibrate`` do.

    ``progress`` gets what a reader should know of the calibration, if anything.
    """

    def build(bucket: int) -> None:
        from laya_apple.artifacts.build import build_artifact
        from laya_apple.checkpoint import open_checkpoint

        build_artifact(open_checkpoint(spec, platform=platform), bucket, platform=platform)

    def calibrate() -> None:
        from laya_apple.execution.calibration import calibrate as measure

        for doubt in measure(spec, platform=platform).doubts:
            progress(doubt)

    return Steps(build, calibrate)


def version_of(distribution: str) -> str:
    """An installed distribution's version; empty when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # closed: recorded as absent
        return ""


def machine(platform: Platform, auto_buckets: tuple[int, ...]) -> dict[str, Any]:
    """The ``machine`` block of ``result.json``."""
    return {
        "platform": {
            "soc": platform.soc,
            "macos": platform.macos,
            "macos_build": platform.macos_build,
            "coremltools": version_of("coremltools"),
            "machine": platform.machine,
        },
        "memory_gb": round(platform.memory_bytes / 2**30, 1),
        "python": ".".join(map(str, sys.version_info[:3])),
        "mlx": version_of("mlx"),
        "routing_profile_validated": bool(auto_buckets),
        "calibrated_profile": _profile_name(platform) if auto_buckets else None,
    }


def _profile_name(platform: Platform) -> str:
    from laya_apple.routing.profiles import coremltools_version, profile_path

    return profile_path(platform, coremltools_version()).name
