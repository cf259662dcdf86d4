"""What an imported artifact must pass on this machine: compute plan, parity gate, placement probe.

It runs in a subprocess, which so is the first to load the model and stands in the canary's place.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laya_apple import errors
from laya_apple.artifacts.isolation import can_isolate, run_isolated
from laya_apple.artifacts.locations import MODEL_DIRECTORY
from laya_apple.artifacts.manifest import PRECISION, Manifest, read_manifest
from laya_apple.checkpoint import Checkpoint
from laya_apple.errors import (
    ArtifactError,
    ArtifactParityError,
    ArtifactRevisionError,
    ComputeUnitMismatchError,
    LayaAppleError,
)

VALIDATION_TIMEOUT_S = 1800.0
"""Generous: a first load compiles the model for the Neural Engine, then every golden that fits is run."""


@dataclass(frozen=True, slots=True)
class Validation:
    """What was measured on this machine; None for what was not asked for."""

    placement: dict[str, Any]
    parity: dict[str, Any] | None
    probe: dict[str, Any] | None


def validate(
    checkpoint: Checkpoint, artifact: Path, manifest_file: str, *, goldens: Path | None, probe: bool
) -> Validation:
    """Check the model in the directory ``artifact``, whose manifest is ``manifest_file`` there.

    The compute plan and one load always; with ``goldens`` the full parity gate over the rows that fit, else
    one prediction; with ``probe`` the placement probe. In a subprocess where one can be had.

    Raises ComputeUnitMismatchError (plan or probe), ArtifactParityError (gate), ArtifactError (Core ML
    failed, crashed or hung), LayaAppleError (goldens).
    """
    if not can_isolate():
        return _validate(checkpoint, artifact, manifest_file, goldens, probe)
    spec = checkpoint.spec
    request = {
        "model": str(spec.path) if spec.path is not None and not spec.embedded else spec.name,
        "revision": spec.revision,
        "artifact": str(artifact),
        "manifest_file": manifest_file,
        "goldens": None if goldens is None else str(goldens),
        "probe": probe,
    }
    said = run_isolated(
        __name__, [json.dumps(request)], f"validating {artifact}", timeout_s=VALIDATION_TIMEOUT_S
    )
    reply = json.loads(said)
    if "error" in reply:
        raise getattr(errors, reply["error"])(reply["message"])
    return Validation(**reply)


def _validate(
    checkpoint: Checkpoint, artifact: Path, manifest_file: str, goldens: Path | None, probe: bool
) -> Validation:
    from laya_apple.artifacts.bucket import BucketModel
    from laya_apple.artifacts.features import HostSide
    from laya_apple.artifacts.placement import inspect_placement
    from laya_apple.artifacts.probe import run_probe
    from laya_apple.artifacts.runtime import load_on_neural_engine

    manifest = read_manifest(artifact / manifest_file)
    path = artifact / MODEL_DIRECTORY
    report = inspect_placement(path)
    if not report.passed:
        raise ComputeUnitMismatchError(f"the compute plan: {report.why()}")
    host = HostSide(checkpoint)
    model = BucketModel(load_on_neural_engine(path), manifest, host)
    features = host.probe_features(manifest.length)
    parity = None
    if goldens is None:
        model.predict(features)
    else:
        parity = _gate(checkpoint, model, manifest, goldens)
    measured = None
    if probe:
        result = run_probe(model.model, path, features)
        if result.verdict != "PLACED":
            raise ComputeUnitMismatchError(f"the placement probe ({result.verdict}): {result.why()}")
        measured = result.to_dict()
    return Validation(report.to_dict(), parity, measured)


def _gate(checkpoint: Checkpoint, model: Any, manifest: Manifest, goldens: Path) -> dict[str, Any]:
    from laya_apple.parity.gate import run_gate
    from laya_apple.parity.goldens import load_goldens
    from laya_apple.prompt.tokenizer import Tokenizer

    weights_sha256 = checkpoint.spec.weights_sha256
    gate = run_gate(
        lambda rows: [model.forward(row) for row in rows],
        Tokenizer.from_dir(checkpoint.path),
        checkpoint.config,
        load_goldens(goldens, weights_sha256=weights_sha256),
        dtype=PRECISION,
        weights_sha256=weights_sha256,
        max_length=manifest.length,
        max_options=int(manifest.section("artifact")["max_options"]),
    )
    if not gate.passed:
        raise ArtifactParityError(f"the parity gate failed: {gate.summary}")
    return gate.to_dict()


def main(arguments: Sequence[str]) -> int:
    """The child: one request as JSON in, one reply as JSON on standard output."""
    # Native code may print: what it prints goes to standard error, the reply goes where it is waited for.
    reply_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from laya_apple.platform import current_platform

    platform = current_platform()  # a stand-in puts itself under coremltools here, before the import
    from laya_apple.checkpoint import open_checkpoint

    request = json.loads(arguments[0])
    goldens = request["goldens"]
    try:
        checkpoint = open_checkpoint(request["model"], local_files_only=True, platform=platform)
        if checkpoint.spec.revision != request["revision"]:
            raise ArtifactRevisionError(f"{request['model']} changed while its artifact was imported")
        found = _validate(
            checkpoint,
            Path(request["artifact"]),
            request["manifest_file"],
            Path(goldens) if goldens is not None else None,
            bool(request["probe"]),
        )
    except LayaAppleError as error:  # reraise: in the parent, as the same type
        name = type(error).__name__ if hasattr(errors, type(error).__name__) else ArtifactError.__name__
        reply: dict[str, Any] = {"error": name, "message": str(error)}
    else:
        reply = {"placement": found.placement, "parity": found.parity, "probe": found.probe}
    with reply_to:
        json.dump(reply, reply_to)
    sys.stderr.flush()
    return 0
