"""The canary: a subprocess loads a model for the first time and predicts once, before this one loads it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from laya_apple.artifacts.isolation import can_isolate, run_isolated
from laya_apple.errors import ArtifactError

CANARY_TIMEOUT_S = 300.0
"""Generous: the first load compiles the model for the Neural Engine."""


def run_canary(
    model: Path, input_shapes: Mapping[str, tuple[int, ...]], *, timeout_s: float = CANARY_TIMEOUT_S
) -> bool:
    """Load ``model`` with CPU_AND_NE in a subprocess and predict once on zeros of ``input_shapes``.

    Returns False, after one RuntimeWarning a process, where ``sys.executable`` is no Python interpreter and
    so no canary can run. Raises ArtifactError, with the end of the child's standard error, when the child
    fails, is killed by a signal or takes longer than ``timeout_s``.
    """
    if not can_isolate():
        return False
    shapes = json.dumps({name: list(shape) for name, shape in input_shapes.items()})
    run_isolated(__name__, [str(model), shapes], f"loading {model}", timeout_s=timeout_s)
    return True


def main(arguments: Sequence[str]) -> int:
    """The child: load, predict once, leave."""
    from laya_apple.platform import current_platform

    current_platform()  # a stand-in puts itself under coremltools here, before the import
    import numpy as np

    from laya_apple.artifacts.runtime import load_on_neural_engine, predict

    path, shapes = arguments
    features = {name: np.zeros(shape, np.float32) for name, shape in json.loads(shapes).items()}
    try:
        predict(load_on_neural_engine(Path(path)), features)
    except ArtifactError as error:  # reraise: as the last line of standard error and an exit code
        print(error, file=sys.stderr)
        return 1
    return 0
