"""One BLAS thread a process: the virtual devices share the host's cores and must keep their times steady."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)


def use_one_blas_thread() -> None:
    """Set the variables for libraries still to load, here and in children; tell a loaded OpenBLAS."""
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
    for path in _loaded_openblas():
        try:
            library = ctypes.CDLL(path)
        except OSError:  # not loadable by this name: the variables above are all we can do
            continue
        for name in _SETTERS:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(1)


def _loaded_openblas() -> set[str]:
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no procfs: macOS uses Accelerate, which reads its variable at load
        return set()
    paths = {line.split(maxsplit=5)[5].strip() for line in maps.splitlines() if "openblas" in line}
    return {path for path in paths if path.startswith("/")}
