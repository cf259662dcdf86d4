"""Running a piece of Core ML work in a subprocess, so that a crash inside Core ML kills only it.

Core ML is publicly reported to kill the process on some models (coremltools issues 2757 and 2758). The child
runs the same executable, because Core ML keeps its compile cache per process name.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laya_apple.errors import ArtifactError

_TAIL_CHARACTERS = 2000
_FRAMEWORKS = ("torch", "transformers", "tensorflow", "sklearn", "xgboost")
"""What coremltools converts from and imports where it is installed. The child only loads compiled models, and
PyTorch alone takes two seconds."""


def can_isolate() -> bool:
    """True when a subprocess can be had; False, with one RuntimeWarning a process, when it can't.

    It can't where ``sys.executable`` is no Python interpreter, as in an application that embeds one.
    """
    if _is_python(sys.executable):
        return True
    _warn(sys.executable)
    return False


def run_isolated(module: str, arguments: Sequence[str], what: str, *, timeout_s: float) -> bytes:
    """Call ``module.main(arguments)`` in a subprocess; returns what it wrote to standard output.

    The child ends when this process does. Raises ArtifactError, from ``what`` to the last of the child's
    standard error, when it fails, is killed by a signal or takes longer than ``timeout_s``.
    """
    read_end, write_end = os.pipe()
    command = [sys.executable, "-P", "-m", __name__, str(read_end), module, *arguments]
    # The child must import what this process imports, and nothing from its working directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=environment,
            pass_fds=(read_end,),
        )
    except subprocess.TimeoutExpired as error:  # reraise: a hang is a failure
        raise ArtifactError(
            f"{what} in a subprocess took longer than {timeout_s:.0f} s; {_tail(error.stderr)}"
        ) from error
    except OSError as error:  # reraise: without the subprocess nothing is loaded
        raise ArtifactError(f"{what} in a subprocess could not start: {error}") from error
    finally:
        os.close(read_end)
        os.close(write_end)
    if done.returncode < 0:
        raise ArtifactError(
            f"{what} killed its subprocess with {_signal(-done.returncode)}; {_tail(done.stderr)}"
        )
    if done.returncode:
        raise ArtifactError(f"{what} in a subprocess failed; {_tail(done.stderr)}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """The child: ``FD MODULE ARGUMENT…``; FD is a pipe that ends when the parent does."""
    parent = int(arguments[0])
    threading.Thread(target=_outlive_not, args=(parent,), name="parent-watch", daemon=True).start()
    hidden: dict[str, Any] = dict.fromkeys(_FRAMEWORKS)  # None in sys.modules: not installed
    sys.modules.update(hidden)
    code: int = importlib.import_module(arguments[1]).main(arguments[2:])
    return code


def _outlive_not(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(1)


def _is_python(executable: str | None) -> bool:
    return bool(executable) and Path(str(executable)).name.lower().startswith(("python", "pypy"))


@functools.lru_cache(maxsize=1)
def _warn(executable: str | None) -> None:
    warnings.warn(
        f"sys.executable ({executable}) is no Python interpreter, so models are loaded for the first time in "
        "this process: should Core ML crash on one, it takes this process with it",
        RuntimeWarning,
        stacklevel=4,
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
