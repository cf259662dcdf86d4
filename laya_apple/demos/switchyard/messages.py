"""Reason codes of the Neural Engine's state and the sentences people read."""

from __future__ import annotations

READY = "ready"
SETUP_AVAILABLE = "setup_available"
UNAVAILABLE = "unavailable"

SETUP_COMMAND = 'uvx --from "laya-apple[convert]" laya-apple switchyard --setup-ane'

REASON_TEXTS = {
    "ane_runtime_unavailable": "The Neural Engine runtime (Core ML Tools) is not installed",
    "ane_artifact_unavailable": "The Neural Engine model is not built on this Mac yet",
    "ane_artifact_stale": "The Neural Engine model needs to be rebuilt on this Mac",
    "platform_not_validated": "This Mac has not been calibrated for the Neural Engine yet",
    "ane_unused_in_warmup": "The router sent no trains to the Neural Engine during warmup",
    "ane_parity_failed": "A Neural Engine model failed the correctness check on this Mac",
    "ane_placement_failed": "Core ML could not run the model on the Neural Engine",
    "not_apple_silicon": "This machine is not an Apple silicon Mac",
    "ane_lost_during_round": "The Neural Engine stopped being used during the round",
    "ane_round_failed": "The GPU + ANE round failed on this Mac",
    "ane_convert_unavailable": "The Neural Engine build tools (laya-apple[convert]) are not installed",
    "ane_calibration_failed": "Measuring this Mac for the Neural Engine failed",
}

SETUP_AVAILABLE_REASONS = frozenset(
    {
        "ane_runtime_unavailable",
        "ane_artifact_unavailable",
        "ane_artifact_stale",
        "platform_not_validated",
        "ane_unused_in_warmup",
        "ane_convert_unavailable",
    }
)


def state_of(reason: str | None) -> str:
    """``ready`` without a reason, else the state that the reason belongs to."""
    if reason is None:
        return READY
    return SETUP_AVAILABLE if reason in SETUP_AVAILABLE_REASONS else UNAVAILABLE
