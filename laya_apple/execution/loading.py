"""One factory for every backend, used inline, on threads and in worker processes alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from laya_apple.backends.base import Backend, RowOutput
from laya_apple.errors import LayaAppleError
from laya_apple.platform import Platform

if TYPE_CHECKING:
    from laya_apple.checkpoint import Checkpoint
    from laya_apple.prompt.sequence import Row


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What to load and where; sent to a worker process as it is."""

    device: str
    checkpoint: Checkpoint
    dtype: str
    batch_size: int
    strict: bool
    """True: the Neural Engine loads what was asked or raises. False: a bucket that fails is dropped."""
    buckets: tuple[int, ...] = ()
    """Compiled lengths to load on the Neural Engine."""


def load_backend(request: LoadRequest, platform: Platform) -> Backend:
    """Load one device's backend and hand it to the platform's hook.

    Raises what the backend raises: BackendUnavailableError where the device does not exist here, an
    ArtifactError for a Core ML artifact that does not verify, UnsupportedModelError for unreadable weights.
    """
    backend: Backend
    if request.device == "ane":
        from laya_apple.backends.coreml import CoreMLBackend

        backend = CoreMLBackend(
            request.checkpoint, buckets=request.buckets, strict=request.strict, platform=platform
        )
    elif request.device in ("gpu", "cpu"):
        from laya_apple.backends.mlx import MLXBackend

        backend = MLXBackend(
            request.checkpoint,
            device="gpu" if request.device == "gpu" else "cpu",
            dtype="float32" if request.dtype == "float32" else "float16",
            batch_size=request.batch_size,
            platform=platform,
        )
    else:
        raise LayaAppleError(f"no backend for device {request.device!r}")
    return platform.wrap_backend(request.device, backend)


def run_forward(backend: Backend, device: str, rows: Sequence[Row]) -> list[RowOutput]:
    """``backend.forward``, with anything it raises as a LayaAppleError and the row count checked."""
    try:
        outputs = backend.forward(rows)
    except LayaAppleError:  # reraise: it already says what happened
        raise
    except Exception as error:  # reraise: names the device; the request fails where it was sent
        raise LayaAppleError(f"the {device} backend failed: {type(error).__name__}: {error}") from error
    if len(outputs) != len(rows):
        raise LayaAppleError(f"the {device} backend returned {len(outputs)} rows for {len(rows)}")
    return outputs
