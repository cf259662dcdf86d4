"""Golden files: where they are, the parity gate over them, and having them made again by upstream."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_laya.measure import EMBEDDED_MODEL, need_device
from pytest_laya.session import LayaSession
from pytest_laya.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from laya_apple.parity.gate import GateReport
    from laya_apple.parity.goldens import Goldens as GoldenFile

MAX_OPTIONS = 32
"""Options of the one compiled graph."""

REFERENCE_PYTHON = "LAYA_REFERENCE_PYTHON"
"""Names the Python that has upstream installed, where it is not this one."""

ROOT = Path(__file__).parents[1]
"""The source tree; the generator and its recipes live there and do not ship."""


def check_can_update() -> None:
    """Raise pytest.UsageError unless goldens could be made here."""
    if not (ROOT / "fixtures" / "goldens" / "__main__.py").is_file():
        raise pytest.UsageError("goldens are made in a clone of the repository, not by an installed package")
    if not os.environ.get(REFERENCE_PYTHON) and importlib.util.find_spec("laya") is None:
        raise pytest.UsageError(
            "goldens come from upstream laya, which is not installed here; pip install "
            f"'laya-apple[reference]', or set {REFERENCE_PYTHON} to a Python that has it"
        )


def generate(checkpoints: Sequence[str]) -> str:
    """Have upstream answer the cases of ``checkpoints`` again; returns what the generator said.

    Raises LayaAppleError when it fails. No other golden file is touched.
    """
    from laya_apple.errors import LayaAppleError

    python = os.environ.get(REFERENCE_PYTHON) or sys.executable
    command = [python, "-m", "fixtures.goldens", *checkpoints]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise LayaAppleError(f"making goldens of {', '.join(checkpoints)} failed: {tail[0]}")
    return done.stdout.strip()


def update_used(session: LayaSession) -> Verdict:
    """For ``--laya-update-goldens``: make again what the session's gates used, if everything passed."""
    from laya_apple.errors import LayaAppleError

    def verdict(outcome: Outcome, reason: str) -> Verdict:
        return Verdict("laya-goldens", "made again by upstream", outcome, reason)

    gates = [fact.data for fact in session.recorded("parity")]
    failed = {str(gate["goldens"]) for gate in gates if not gate["passed"]}
    failed |= {test for test, outcome in session.laya_outcomes.items() if outcome in ("failed", "error")}
    if failed:
        return verdict("FAIL", f"left as they are, since these failed: {', '.join(sorted(failed))}")
    used = sorted({str(gate["goldens"]) for gate in gates})
    if not used:
        return verdict("UNKNOWN", "no parity gate ran, so there is nothing to make again")
    try:
        return verdict("PASS", "; ".join(generate(used).splitlines()))
    except LayaAppleError as error:
        return verdict("FAIL", str(error))


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
        """The goldens of ``checkpoint``; LayaAppleError with the command that makes them when missing.

        ``--laya-update-new-goldens`` makes missing ones first.
        """
        from laya_apple.parity.goldens import load_goldens

        path = self.path(checkpoint)
        if not path.exists() and self._session.settings.update_new_goldens:
            generate([checkpoint])
        return load_goldens(path)

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
        self._session.record(
            "parity", {"goldens": goldens, "device": device, "synthetic": platform.virtual} | report.to_dict()
        )
        return report
