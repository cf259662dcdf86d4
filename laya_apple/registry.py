"""The models this runtime answers for, each pinned to one revision and one weights hash."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from laya_apple.config import CHECKPOINT_FILES, WEIGHTS_FILE, read_agent_config
from laya_apple.errors import UnsupportedModelError
from laya_apple.hashing import file_sha256, tree_hash

# Both come from the files in data/laya_mini; after any change there run the recipe's `pin` step
# (fixtures/laya_mini), which prints them: tree_hash(directory, CHECKPOINT_FILES)[:40] and the weights' hash.
LAYA_MINI_REVISION = "fbaf664a11797b1559bb18bd25a51894bcef39fd"
LAYA_MINI_WEIGHTS_SHA256 = "3fd02fc0b1a8cdf083bc2926b43cfa8a8a13743bba90ddd16c677a794112b063"

LOCAL_PREFIX = "local:"
_BUCKETS = (64, 96, 128)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model's identity. Lengths and buckets are tokens."""

    name: str
    """Short name; ``local:<directory name>`` for a checkpoint directory."""
    repo: str
    """Hugging Face repository; empty for a local or embedded checkpoint."""
    revision: str
    """40 hex digits: the repository's commit, or the start of the hash over the checkpoint's files."""
    weights_sha256: str
    """Of ``model.safetensors``."""
    max_len: int
    ane_buckets: tuple[int, ...]
    """Compiled lengths offered on the Neural Engine, ascending."""
    auto_ane_buckets: tuple[int, ...]
    """The prefix of them that ``device="auto"`` may use where the platform is validated."""
    embedded: bool = False
    path: Path | None = None
    """The checkpoint directory; None for a model of the hub."""


MODELS: tuple[ModelSpec, ...] = (
    ModelSpec(
        name="laya",
        repo="convaiinnovations/laya",
        revision="c5d78730f3493e4fe16d61507ef4b78eef7318cf",
        weights_sha256="891102d372688fc2a094dac56a384bc537b87c63f21f9f3dac0be2b7cbc8d86c",
        max_len=512,
        ane_buckets=_BUCKETS,
        auto_ane_buckets=_BUCKETS,
    ),
    ModelSpec(
        name="laya-multilingual",
        repo="convaiinnovations/laya-multilingual",
        revision="052592a15d198d9ad47da779604259b10b47b7aa",
        weights_sha256="9d628fd971b700382ac6f65920a86f149777b2e748e0c955fb3b19695aa8f204",
        max_len=1024,
        ane_buckets=(*_BUCKETS, 256),
        auto_ane_buckets=_BUCKETS,
    ),
    ModelSpec(
        name="laya-typed-decisions",
        repo="convaiinnovations/laya-typed-decisions",
        revision="f9ab0b228f0fc0f14d873dbc99038f135c2da1b2",
        weights_sha256="4fa56de72383a9d3efa9cfa78955733c81b9fc8067a587ca4beb82c78107a24e",
        max_len=1024,
        ane_buckets=_BUCKETS,
        auto_ane_buckets=_BUCKETS,
    ),
    ModelSpec(
        name="laya-mini",
        repo="",
        revision=LAYA_MINI_REVISION,
        weights_sha256=LAYA_MINI_WEIGHTS_SHA256,
        max_len=1024,
        ane_buckets=_BUCKETS,
        auto_ane_buckets=_BUCKETS,
        embedded=True,
        path=Path(__file__).parent / "data" / "laya_mini",
    ),
)


def resolve(model_id: str | os.PathLike[str]) -> ModelSpec:
    """The spec of a registered name, its repository, or a local checkpoint directory.

    A registered name wins over a directory of that name; write ``./laya`` for the directory. A directory's
    files are hashed here, so this takes about a second a gigabyte. Opens no connection.

    Raises UnsupportedModelError, naming the supported models, for anything else, and, naming the file, for a
    directory that lacks a checkpoint's files.
    """
    if not isinstance(model_id, str | os.PathLike) or not isinstance(wanted := os.fspath(model_id), str):
        raise UnsupportedModelError(f"{model_id!r} is not a model; {_supported()}")
    if isinstance(model_id, str):
        for spec in MODELS:
            if wanted == spec.name or (spec.repo and wanted == spec.repo):
                return spec
    path = Path(wanted).expanduser()
    if wanted and path.is_dir():
        return _local(path.resolve())
    raise UnsupportedModelError(f"{wanted!r} is not a model this runtime knows; {_supported()}")


def _local(path: Path) -> ModelSpec:
    for name in CHECKPOINT_FILES:
        if not (path / name).is_file():
            raise UnsupportedModelError(
                f"{path} is not a checkpoint directory: {name} is missing; it must hold "
                + ", ".join(CHECKPOINT_FILES)
            )
    return ModelSpec(
        name=LOCAL_PREFIX + path.name,
        repo="",
        revision=tree_hash(path, CHECKPOINT_FILES)[:40],
        weights_sha256=file_sha256(path / WEIGHTS_FILE),
        max_len=read_agent_config(path).max_len,
        ane_buckets=_BUCKETS,
        auto_ane_buckets=_BUCKETS,
        path=path,
    )


def _supported() -> str:
    names = ", ".join(f"{spec.name} ({spec.repo})" if spec.repo else spec.name for spec in MODELS)
    return f"use one of {names}, or the path of a checkpoint directory"
