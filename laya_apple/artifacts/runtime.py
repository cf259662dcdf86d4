"""The one place that calls coremltools at run time: compile, load, plan, predict.

Everything raised by coremltools or Core ML is turned into one of this package's errors here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laya_apple.errors import ArtifactError, BackendUnavailableError
from laya_apple.platform import Platform

COMPUTE_UNITS = "CPU_AND_NE"
"""The only compute units a request ever runs on."""

MACOS_MAJOR = 15
"""The programs are built for macOS 15, so nothing older can load them."""

Float32 = NDArray[np.float32]


def require_coremltools(platform: Platform) -> None:
    """Check that Core ML can be reached from here.

    Raises BackendUnavailableError off Apple silicon, before macOS 15, without coremltools, and without its
    native part.
    """
    if not platform.is_apple_silicon:
        raise BackendUnavailableError(
            "the Neural Engine needs an Apple silicon Mac with macOS; this machine is "
            f"{platform.soc or platform.machine}"
        )
    if platform.macos_major < MACOS_MAJOR:
        raise BackendUnavailableError(
            f"the Neural Engine path needs macOS {MACOS_MAJOR} or newer; this Mac runs {platform.macos}"
        )
    try:
        with _no_advice():
            import coremltools.libcoremlpython  # the native part
    except ImportError as error:  # reraise: the runtime is not installed
        raise BackendUnavailableError(
            f"Core ML Tools cannot be imported ({error}); install it with: pip install 'laya-apple[ane]'"
        ) from error
    del coremltools


@contextmanager
def _no_advice() -> Iterator[None]:
    """coremltools imports transformers where it is installed, which then advises to install PyTorch."""
    name = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def coremltools_version() -> str:
    """As ``9.0``. Call ``require_coremltools`` first."""
    import coremltools as ct

    return str(ct.__version__)


def compile_package(package: Path, destination: Path) -> None:
    """Compile an ``.mlpackage`` to ``destination``, a path ending in ``.mlmodelc`` that does not exist yet.

    Raises ArtifactError when Core ML refuses.
    """
    import coremltools as ct

    if destination.exists():  # coremltools would nest the model below it
        raise ArtifactError(f"{destination} exists already; remove it and build again")
    try:
        ct.models.utils.compile_model(str(package), str(destination))
    except Exception as error:  # reraise: coremltools raises bare Exception and RuntimeError
        raise ArtifactError(f"Core ML could not compile {package.name}: {error}") from error


def load_on_neural_engine(model: Path) -> Any:
    """The compiled model, loaded with ``CPU_AND_NE``. Raises ArtifactError when Core ML refuses."""
    import coremltools as ct

    try:
        return ct.models.CompiledMLModel(str(model), compute_units=ct.ComputeUnit.CPU_AND_NE)
    except Exception as error:  # reraise: coremltools raises bare Exception and RuntimeError
        raise ArtifactError(f"Core ML could not load {model}: {error}") from error


def read_compute_plan(model: Path) -> Any:
    """coremltools' ``MLComputePlan`` of the compiled model for ``CPU_AND_NE``.

    Raises ArtifactError when Core ML gives none.
    """
    import coremltools as ct
    from coremltools.models.compute_plan import MLComputePlan

    try:
        return MLComputePlan.load_from_path(str(model), compute_units=ct.ComputeUnit.CPU_AND_NE)
    except Exception as error:  # reraise: coremltools raises bare Exception and RuntimeError
        raise ArtifactError(f"Core ML gave no compute plan for {model}: {error}") from error


def predict(model: Any, features: Mapping[str, Float32]) -> dict[str, Any]:
    """One prediction: input name -> float32 array in, output name -> array out, as coremltools hands it over.

    Raises ArtifactError when Core ML fails.
    """
    try:
        # A copy, because coremltools writes converted arrays back into the dict it is given.
        return dict(model.predict(dict(features)))
    except Exception as error:  # reraise: coremltools raises bare Exception and RuntimeError
        raise ArtifactError(f"the Core ML prediction failed: {error}") from error
