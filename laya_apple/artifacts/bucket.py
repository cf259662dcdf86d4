"""One loaded bucket: rows in, logits out, every prediction held against the manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laya_apple.artifacts.features import HostSide
from laya_apple.artifacts.manifest import ArraySpec, Manifest
from laya_apple.artifacts.runtime import predict
from laya_apple.backends.base import RowOutput
from laya_apple.errors import ArtifactError, ArtifactRevisionError
from laya_apple.prompt.sequence import Row

_DTYPES = {"float16": ("float16", "float32")}
"""Declared -> what may come back: coremltools hands FP16 outputs over as float32."""

Predict = Callable[[Mapping[str, NDArray[np.float32]]], dict[str, NDArray[Any]]]


class BucketModel:
    """A compiled model of one length, with the host's side around it.

    Raises ArtifactRevisionError when the program's channel count is not the checkpoint's.
    """

    def __init__(self, model: Any, manifest: Manifest, host: HostSide) -> None:
        self.model = model
        self.manifest = manifest
        self.length = manifest.length
        self._host = host
        self._outputs = manifest.outputs
        hidden = manifest.inputs[0].shape[1]
        if hidden != host.hidden:
            raise ArtifactRevisionError(
                f"L{self.length}: the artifact has {hidden} channels, the checkpoint {host.hidden}"
            )

    def forward(self, row: Row, predict: Predict | None = None) -> RowOutput:
        """One row that fits: at most ``length`` tokens and 32 options.

        ``predict`` stands in for :meth:`predict`: another way to run the same program. Raises ArtifactError
        when Core ML fails or returns other arrays than the manifest declares.
        """
        run = predict or self.predict
        return self._host.finish(row, run(self._host.features(row, self.length)))

    def predict(self, features: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        """One prediction on the program's inputs; the outputs are checked. Raises ArtifactError."""
        return check_outputs(self._outputs, predict(self.model, features))


def check_outputs(declared: tuple[ArraySpec, ...], outputs: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Hold a prediction's arrays against the manifest's names, shapes and dtypes.

    coremltools is publicly reported to return wrong outputs for some programs (issue 2730), so this runs on
    every prediction. Raises ArtifactError naming what differs. Values are not judged: a non-finite output is
    refused where answers are formatted.
    """
    if set(outputs) != {array.name for array in declared}:
        raise ArtifactError(
            f"Core ML returned outputs {sorted(outputs)}, the manifest declares "
            f"{sorted(array.name for array in declared)}"
        )
    for array in declared:
        value = outputs[array.name]
        if not isinstance(value, np.ndarray):
            raise ArtifactError(f"Core ML returned a {type(value).__name__} for {array.name}, not an array")
        if value.shape != array.shape or value.dtype.name not in _DTYPES.get(array.dtype, ()):
            raise ArtifactError(
                f"Core ML returned {array.name} as {value.dtype.name} {list(value.shape)}, the manifest "
                f"declares {array.dtype} {list(array.shape)}"
            )
    return dict(outputs)
