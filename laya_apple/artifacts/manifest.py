"""The artifact manifest: written by the build, read and held against the schema at every load."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from laya_apple.artifacts.graph import GRAPH_NAME, MAX_OPTIONS, GraphShape
from laya_apple.platform import Platform
from laya_apple.registry import ModelSpec

FORMAT = "laya-apple-artifact"
FORMAT_VERSION = 1
VALIDATED = "validated"
REJECTED = "rejected"
BATCH = 1
PRECISION = "float16"
SCHEMA_FILE = "data/artifact-manifest.schema.json"


class ManifestError(ValueError):
    """The manifest cannot be read or breaks the schema; ``load_verified`` turns it into its own error."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One input or output of the program."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that satisfies the schema. Values are as written; nothing is judged here."""

    data: Mapping[str, Any]

    @property
    def status(self) -> str:
        return str(self.data["status"])

    @property
    def synthetic(self) -> bool:
        return bool(self.data["synthetic"])

    @property
    def length(self) -> int:
        return int(self.data["artifact"]["length"])

    @property
    def compute_units(self) -> str:
        return str(self.data["placement"]["compute_units"])

    @property
    def artifact_sha256(self) -> str:
        """Tree hash of the compiled model."""
        return str(self.data["integrity"]["artifact_sha256"])

    @property
    def inputs(self) -> tuple[ArraySpec, ...]:
        return _arrays(self.data["artifact"]["inputs"])

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:
        return _arrays(self.data["artifact"]["outputs"])

    def section(self, name: str) -> Mapping[str, Any]:
        """One of the manifest's objects, as ``source`` or ``platform``."""
        section: Mapping[str, Any] = self.data[name]
        return section

    def text(self) -> str:
        """The file's contents."""
        return json.dumps(self.data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Read and check against the schema.

    Raises FileNotFoundError when there is none, ManifestError when it is unreadable or of another format.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:  # reraise: a missing manifest is a missing artifact, not a corrupt one
        raise
    except (OSError, ValueError, RecursionError) as error:  # reraise: the manifest cannot be read
        raise ManifestError(f"it cannot be read as JSON: {error}") from error
    return check_manifest(data)


def check_manifest(data: Any) -> Manifest:
    """Hold ``data`` against the schema. Raises ManifestError naming the first key that is wrong."""
    from jsonschema import Draft202012Validator

    schema = json.loads(files("laya_apple").joinpath(SCHEMA_FILE).read_text(encoding="utf-8"))
    errors = sorted(
        Draft202012Validator(schema).iter_errors(data), key=lambda error: list(map(str, error.path))
    )
    if errors:
        where = "/".join(map(str, errors[0].path)) or "the manifest"
        raise ManifestError(f"{where}: {errors[0].message[:200]}")
    return Manifest(data)


def source_section(spec: ModelSpec) -> dict[str, str]:
    """``source``: the checkpoint the artifact was built from."""
    return {
        "model": spec.name,
        "repo": spec.repo,
        "revision": spec.revision,
        "weights_sha256": spec.weights_sha256,
    }


def artifact_section(shape: GraphShape) -> dict[str, Any]:
    """``artifact``: what the program is."""
    return {
        "graph": GRAPH_NAME,
        "length": shape.length,
        "batch": BATCH,
        "precision": PRECISION,
        "max_options": MAX_OPTIONS,
        "inputs": _array_dicts(shape.input_shapes()),
        "outputs": _array_dicts(shape.output_shapes()),
    }


def platform_section(platform: Platform, coremltools_version: str) -> dict[str, str]:
    """``platform``: the machine the artifact was built and validated on."""
    return {
        "soc": platform.soc,
        "macos": platform.macos,
        "macos_build": platform.macos_build,
        "coremltools": coremltools_version,
    }


def now() -> str:
    """UTC, as ``2026-01-31T12:00:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _array_dicts(shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    return [{"name": name, "shape": list(shape), "dtype": PRECISION} for name, shape in shapes.items()]


def _arrays(raw: Sequence[Mapping[str, Any]]) -> tuple[ArraySpec, ...]:
    return tuple(ArraySpec(str(a["name"]), tuple(int(n) for n in a["shape"]), str(a["dtype"])) for a in raw)
