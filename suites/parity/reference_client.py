"""The client of ``reference_server.py``: finds the reference environment, or fails saying how to make it."""

from __future__ import annotations

import base64
import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

PYTHON_VARIABLE = "LAYA_REFERENCE_PYTHON"
MEND = (
    "pip install 'laya-apple[reference]', or set "
    f"{PYTHON_VARIABLE} to a Python that has torch and laya installed"
)


def reference_python() -> str:
    """The interpreter that runs upstream. Raises RuntimeError naming the mend when there is none."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        return named
    if importlib.util.find_spec("torch") and importlib.util.find_spec("laya"):
        return sys.executable
    raise RuntimeError(f"this test compares with upstream laya, which is not installed here; {MEND}")


class ReferenceClient:
    """Upstream in a subprocess. One request at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [reference_python(), str(Path(__file__).with_name("reference_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if os.environ.get("LAYA_REFERENCE_QUIET") else None,
            env=environment,
        )

    def versions(self) -> dict[str, str]:
        """Package versions of the reference environment."""
        return self._ask({"versions": True})

    def predict(self, checkpoint: Path, context: Any, questions: Any, **overrides: Any) -> dict[str, Any]:
        """``{answers, usage, rows}``, or ``{error, message}`` where upstream refuses."""
        return self._ask(
            {
                "checkpoint": str(checkpoint),
                "context": context,
                "questions": questions,
                "overrides": overrides,
            }
        )

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(base64.b64encode(pickle.dumps(request, protocol=4)) + b"\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the reference process ended with code {self._process.wait()}; {MEND}")
        reply: dict[str, Any] = pickle.loads(base64.b64decode(line))
        return reply

    def close(self) -> None:
        """End the subprocess."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> ReferenceClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
