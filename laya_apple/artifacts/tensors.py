"""A checkpoint's tensors, read one at a time, so that building never holds the whole file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from laya_apple.checkpoint import Checkpoint
from laya_apple.weights import expected_shapes


class TensorFile(Mapping[str, NDArray[Any]]):
    """Name -> tensor, PyTorch's names and layouts, as stored. Every look-up reads the file again.

    Raises KeyError for a name the configuration does not have, UnsupportedModelError when the file cannot be
    read any more.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._names = frozenset(expected_shapes(checkpoint.config, checkpoint.encoder))

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return self._checkpoint.tensors([name])[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)
