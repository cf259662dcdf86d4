"""Opening a checkpoint: embedded, local or of the hub; its configuration and its weights."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from laya_apple import hub
from laya_apple.config import (
    CHECKPOINT_FILES,
    WEIGHTS_FILE,
    AgentConfig,
    EncoderConfig,
    read_agent_config,
    read_encoder_config,
)
from laya_apple.errors import UnsupportedModelError
from laya_apple.hashing import file_sha256, tree_hash
from laya_apple.platform import Platform, current_platform
from laya_apple.registry import ModelSpec, resolve
from laya_apple.weights import check_weights, expected_shapes, read_weights

__all__ = ["CHECKPOINT_FILES", "AgentConfig", "Checkpoint", "EncoderConfig", "open_checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk whose configuration and weights fit together."""

    spec: ModelSpec
    path: Path
    config: AgentConfig
    encoder: EncoderConfig

    def tensors(self, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
        """The network's tensors (or the named ones) in PyTorch's layout, float32 or float16 as stored.

        Read from the file at every call. Raises UnsupportedModelError when it cannot be read any more.
        """
        wanted = expected_shapes(self.config, self.encoder) if names is None else names
        return read_weights(self.path / WEIGHTS_FILE, wanted)


def open_checkpoint(
    model_id: str | os.PathLike[str] | ModelSpec,
    *,
    local_files_only: bool = False,
    platform: Platform | None = None,
) -> Checkpoint:
    """Open a registered model, by name or repository, or a local checkpoint directory, and check its files.

    A model of the hub is fetched at its pinned revision unless it is cached; with ``local_files_only`` or
    ``HF_HUB_OFFLINE`` nothing goes to the network. ``platform`` says where stamps are kept; None is the
    current one.

    Raises UnsupportedModelError (unknown model, or files that are missing, unreadable or do not fit together)
    and BackendUnavailableError (not cached and not to be had, or weights that are not the pinned ones).
    """
    spec = model_id if isinstance(model_id, ModelSpec) else resolve(model_id)
    if spec.path is not None:
        path = spec.path
    else:
        path = hub.snapshot(spec, platform or current_platform(), local_files_only=local_files_only)
    missing = [name for name in CHECKPOINT_FILES if not (path / name).is_file()]
    if missing:
        raise UnsupportedModelError(f"{path / missing[0]} is missing; {_mend(spec)}")
    if spec.embedded:
        _check_embedded(spec, path)
    config = read_agent_config(path)
    encoder = read_encoder_config(path)
    check_weights(path / WEIGHTS_FILE, expected_shapes(config, encoder))
    return Checkpoint(spec=spec, path=path, config=config, encoder=encoder)


def _check_embedded(spec: ModelSpec, path: Path) -> None:
    weights = path / WEIGHTS_FILE
    actual = file_sha256(weights)
    if actual != spec.weights_sha256:
        raise UnsupportedModelError(
            f"{weights} hashes to {actual[:12]}…, not to the pinned {spec.weights_sha256[:12]}…; "
            + _mend(spec)
        )
    revision = tree_hash(path, CHECKPOINT_FILES)[:40]
    if revision != spec.revision:
        raise UnsupportedModelError(
            f"the files in {path} are of revision {revision[:12]}, not the pinned {spec.revision[:12]}; "
            + _mend(spec)
        )


def _mend(spec: ModelSpec) -> str:
    if spec.embedded:
        return "reinstall laya-apple"
    if spec.path is not None:
        return "restore it from the checkpoint you copied"
    return f"run `laya-apple download {spec.name}`"
