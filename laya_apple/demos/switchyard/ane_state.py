"""Whether this machine can run the GPU + ANE round, from the runtime's own checks alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from laya_apple.demos.switchyard import messages
from laya_apple.errors import (
    ArtifactIntegrityError,
    ArtifactMissingError,
    ArtifactParityError,
    ArtifactRevisionError,
    BackendUnavailableError,
)
from laya_apple.platform import Platform
from laya_apple.registry import ModelSpec


@dataclass(frozen=True)
class AneStatus:
    """The state, why, and what was found on the way."""

    reason: str | None = None
    detail: str | None = None
    artifacts: Mapping[int, str] = field(default_factory=dict)
    """Verified buckets and their artifacts' sha256."""
    auto_buckets: tuple[int, ...] = ()
    """Buckets of the profile that matches this machine."""

    @property
    def state(self) -> str:
        """``ready``, ``setup_available`` or ``unavailable``."""
        return messages.state_of(self.reason)

    def to_dict(self, warmup_ane_requests: int | None = None) -> dict[str, Any]:
        """The ``ane`` block of ``result.json``. Only ``setup_available`` has a command."""
        return {
            "state": self.state,
            "reason": self.reason,
            "reason_text": None if self.reason is None else messages.REASON_TEXTS[self.reason],
            "detail": self.detail,
            "setup_command": messages.SETUP_COMMAND if self.state == messages.SETUP_AVAILABLE else None,
            "warmup_ane_requests": warmup_ane_requests,
        }


@dataclass(frozen=True)
class Checks:
    """The runtime's checks that decide the state."""

    coremltools_available: Callable[[], bool]
    auto_buckets: Callable[[], tuple[int, ...]]
    """Buckets of the validated or calibrated profile that matches this Mac; empty without one."""
    load_verified: Callable[[int], str]
    """Verify one bucket's artifact and return its sha256, or raise."""


@dataclass(frozen=True)
class Steps:
    """What set-up may have to do."""

    build: Callable[[int], None]
    calibrate: Callable[[], None]


_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (BackendUnavailableError, "ane_runtime_unavailable"),
    (ArtifactMissingError, "ane_artifact_unavailable"),
    (ArtifactRevisionError, "ane_artifact_stale"),
    (ArtifactIntegrityError, "ane_artifact_stale"),
    (ArtifactParityError, "ane_parity_failed"),
)


def reason_for(error: Exception) -> str:
    """The reason code of an error that a check raised; ``ane_placement_failed`` for any other."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "ane_placement_failed")


def describe(error: BaseException) -> str:
    """``Type: message``, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def decide(spec: ModelSpec, platform: Platform, checks: Checks) -> AneStatus:
    """The state before any round. A finding that is ``unavailable`` outranks one that set-up can mend."""
    if not platform.is_apple_silicon:
        return AneStatus("not_apple_silicon")
    if not checks.coremltools_available():
        return AneStatus("ane_runtime_unavailable")
    profile = checks.auto_buckets()
    artifacts: dict[int, str] = {}
    findings: list[tuple[str, str | None]] = []
    for bucket in profile or spec.auto_ane_buckets:
        try:
            artifacts[bucket] = checks.load_verified(bucket)
        except Exception as error:  # closed: the hybrid round does not run; the reason is in the result
            findings.append((reason_for(error), describe(error)))
    if not profile:
        findings.append(("platform_not_validated", None))
    final = [one for one in findings if messages.state_of(one[0]) == messages.UNAVAILABLE]
    reason, detail = next(iter([*final, *findings]), (None, None))
    return AneStatus(reason, detail, artifacts, profile)


def set_up(
    spec: ModelSpec, checks: Checks, steps: Steps, progress: Callable[[str], None]
) -> AneStatus | None:
    """Build every offered bucket that does not verify, then calibrate if no profile matches this Mac.

    Returns None when all of it worked, else the failure as the state: the benchmark goes on without the
    Neural Engine.
    """
    if not checks.coremltools_available():
        return AneStatus("ane_convert_unavailable")
    for bucket in spec.ane_buckets:
        try:
            checks.load_verified(bucket)
            continue
        except Exception as error:  # closed: whatever does not verify is built again
            progress(f"L{bucket} does not verify ({describe(error)}); building it")
        try:
            steps.build(bucket)
        except ImportError as error:  # closed: becomes the recorded state
            return AneStatus("ane_convert_unavailable", describe(error))
        except Exception as error:  # closed: becomes the recorded state
            return AneStatus(reason_for(error), describe(error))
    if checks.auto_buckets():
        return None
    progress("measuring this Mac: laya-apple calibrate")
    try:
        steps.calibrate()
    except ImportError as error:  # closed: becomes the recorded state
        return AneStatus("ane_convert_unavailable", describe(error))
    except Exception as error:  # closed: becomes the recorded state
        return AneStatus("ane_calibration_failed", describe(error))
    return None
