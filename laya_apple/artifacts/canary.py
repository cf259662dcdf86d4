"""The canary: a subprocess loads a model for the first time, so that a crash inside Core ML kills only it.

Core ML is publicly reported to kill the process on some models (coremltools issues 2757 and 2758). The child
runs the same executable, because Core ML keeps its compile cache per process name.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from laya_apple.errors import ArtifactError

CANARY_TIMEOUT_S = 300.0
"""Generous: the first load compiles the model for the Neural Engine."""
_TAIL_CHARACTERS = 2000


def run_canary(
    model: Path, input_shapes: Mapping[str, tuple[int, ...]], *, timeout_s: float = CANARY_TIMEOUT_S
) -> bool:
    """Load ``model`` with CPU_AND_NE in a subprocess and predict once on zeros of ``input_shapes``.

    Returns False, after one RuntimeWarning a process, where ``sys.executable`` is no Python interpreter and
    so no canary can run. Raises ArtifactError, with the end of the child's standard error, when the child
    fails, is killed by a signal or takes longer than ``timeout_s``.
    """
    if not _is_python(sys.executable):
        _warn_no_canary(sys.executable)
        return False
    shapes = json.dumps({name: list(shape) for name, shape in input_shapes.items()})
    command = [sys.executable, "-P", "-m", "laya_apple.artifacts.canary", str(model), shapes]
    # The child must import what this process imports, and nothing from its working directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, env=environment
        )
    except subprocess.TimeoutExpired as error:  # reraise: a hang is a failure
        raise ArtifactError(
            f"loading {model} in a subprocess took longer than {timeout_s:.0f} s; {_tail(error.stderr)}"
        ) from error
    except OSError as error:  # reraise: without the canary the model is not loaded
        raise ArtifactError(f"the subprocess that loads {model} first could not start: {error}") from error
    if done.returncode < 0:
        raise ArtifactError(
            f"loading {model} killed its subprocess with {_signal(-done.returncode)}; {_tail(done.stderr)}"
        )
    if done.returncode:
        raise ArtifactError(f"loading {model} in a subprocess failed; {_tail(done.stderr)}")
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


def _is_python(executable: str | None) -> bool:
    return bool(executable) and Path(str(executable)).name.lower().startswith(("python", "pypy"))


@functools.lru_cache(maxsize=1)
def _warn_no_canary(executable: str | None) -> None:
    warnings.warn(
        f"sys.executable ({executable}) is no Python interpreter, so models are loaded for the first time in "
        "this process: should Core ML crash on one, it takes this process with it",
        RuntimeWarning,
        stacklevel=3,
    )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # closed: a signal without a name is shown by number
        return f"signal {number}"


def _tail(stderr: bytes | None) -> str:
    text = (stderr or b"").decode("utf-8", errors="replace").strip()
    return f"its standard error ended: {text[-_TAIL_CHARACTERS:]}" if text else "it wrote nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
