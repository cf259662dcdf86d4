"""Upstream laya behind a pipe, so that tests need no torch in their own process.

Run by the reference environment's Python (torch and laya installed, nothing of this project needed). One line
in, one line out, each a base64 pickle of builtins: JSON cannot carry the hostile values the tests ask about.
Upstream is a black box here: a forward hook on its torch module reads the tensors that go in and come out.
"""

from __future__ import annotations

import base64
import os
import pickle
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any


class Reference:
    """One checkpoint loaded by upstream on the CPU in float32."""

    def __init__(self, checkpoint: str | Path) -> None:
        import laya
        import torch

        torch.set_num_threads(1)
        # Upstream may rewrite tokenizer files in place, so it gets a copy.
        self._copy = tempfile.TemporaryDirectory(prefix="laya-reference-")
        folder = Path(self._copy.name) / "checkpoint"
        shutil.copytree(checkpoint, folder)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.agent = laya.Agent(str(folder), device="cpu")
        self.warnings = [str(item.message) for item in caught]
        self._rows: list[dict[str, Any]] = []
        self.agent.model.register_forward_hook(self._record)

    def _record(self, module: Any, args: tuple[Any, ...], output: tuple[Any, Any]) -> None:
        ids, attention, markers, present, qtypes = args
        options, actions = output
        for index in range(ids.shape[0]):
            shown = present[index]
            self._rows.append(
                {
                    "ids": ids[index][attention[index].bool()].tolist(),
                    "markers": markers[index][shown].tolist(),
                    "qtype": int(qtypes[index]),
                    "options": options[index][shown].tolist(),
                    "action": actions[index].tolist(),
                }
            )

    def predict(self, context: Any, questions: Any, **overrides: Any) -> dict[str, Any]:
        """What upstream answers, the rows its network took in and gave out, and its temperatures."""
        self._rows = []
        result = self.agent.predict(context, questions, **overrides)
        return {
            "answers": result["answers"],
            "usage": result["usage"],
            "rows": self._rows,
            "temperature": list(self.agent.temperature),
            "temperature_by_options": dict(self.agent.temperature_by_options),
        }


def versions() -> dict[str, str]:
    """Packages that decide what upstream computes."""
    from importlib.metadata import version

    return {name: version(name) for name in ("laya", "torch", "transformers", "tokenizers", "numpy")}


def serve() -> None:
    """Answer requests until standard input ends."""
    # Whatever upstream prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    loaded: dict[str, Reference] = {}
    for line in sys.stdin.buffer:
        request = pickle.loads(base64.b64decode(line))
        reply: dict[str, Any]
        try:
            if request.get("versions"):
                reply = versions()
            else:
                path = request["checkpoint"]
                if path not in loaded:
                    loaded[path] = Reference(path)
                reply = loaded[path].predict(
                    request["context"], request["questions"], **request.get("overrides", {})
                )
                reply["load_warnings"] = loaded[path].warnings
        except Exception as error:
            reply = {"error": type(error).__name__, "message": str(error)}
        answers.write(base64.b64encode(pickle.dumps(reply, protocol=4)) + b"\n")
        answers.flush()


if __name__ == "__main__":
    serve()
