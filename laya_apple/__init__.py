"""Typed decisions about a text on Apple silicon, with no silent fallback.

Importing this package loads neither MLX nor Core ML Tools nor NumPy; a backend loads them when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laya_apple.errors import (
    ArtifactError,
    ArtifactIntegrityError,
    ArtifactMissingError,
    ArtifactParityError,
    ArtifactRevisionError,
    BackendUnavailableError,
    ComputeUnitMismatchError,
    InvalidRequestError,
    LayaAppleError,
    UnsupportedModelError,
    UnsupportedShapeError,
)
from laya_apple.result import Result, RuntimeInfo
from laya_apple.trace import QueueSnapshot, RequestTrace

if TYPE_CHECKING:
    from laya_apple.execution.laya import Laya

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "ArtifactIntegrityError",
    "ArtifactMissingError",
    "ArtifactParityError",
    "ArtifactRevisionError",
    "BackendUnavailableError",
    "ComputeUnitMismatchError",
    "InvalidRequestError",
    "Laya",
    "LayaAppleError",
    "QueueSnapshot",
    "RequestTrace",
    "Result",
    "RuntimeInfo",
    "UnsupportedModelError",
    "UnsupportedShapeError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Laya pulls in NumPy and the tokenizer, so it is imported on first use.
    if name == "Laya":
        from laya_apple.execution.laya import Laya

        return Laya
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
