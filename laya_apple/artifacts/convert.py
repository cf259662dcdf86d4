"""From a built graph to an ``.mlpackage``; the same checkpoint and versions give the same program hash."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laya_apple.artifacts.graph import Graph
from laya_apple.errors import ArtifactError
from laya_apple.hashing import file_sha256

WEIGHT_FILE = "weight.bin"


@dataclass(frozen=True, slots=True)
class ProgramHash:
    """What identifies a program; the package around it holds random ids and dates."""

    program_sha256: str
    """Of the program's deterministic serialisation."""
    weights_sha256: str
    """Of ``weight.bin``."""
    operations: int
    """Without constants."""
    operation_types: int
    """Constants included."""

    def to_dict(self) -> dict[str, Any]:
        """The manifest's ``conversion.program``."""
        return asdict(self)


def convert(graph: Graph, package: Path) -> ProgramHash:
    """Convert ``graph`` and save it at ``package``, a path ending in ``.mlpackage``.

    The program is FP16 already, inputs and outputs included, so there is nothing to cast: the precision is
    given as FLOAT32, which means "leave it". No optimisation pass runs: the default ones fail on a decomposed
    FP16 LayerNorm, and others would undo its spelling. Raises ArtifactError when coremltools fails.
    """
    import coremltools as ct

    try:
        model = ct.convert(
            graph.program,
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.macOS15,
            compute_precision=ct.precision.FLOAT32,
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
            package_dir=str(package),
        )
        spec = model.get_spec()
    except Exception as error:  # reraise: coremltools raises bare Exception and RuntimeError
        raise ArtifactError(f"coremltools could not convert the graph: {error}") from error
    main = spec.mlProgram.functions["main"]
    types = [operation.type for operation in main.block_specializations[main.opset].operations]
    program = spec.mlProgram.SerializeToString(deterministic=True)
    return ProgramHash(
        program_sha256=hashlib.sha256(program).hexdigest(),
        weights_sha256=file_sha256(_weights(package)),
        operations=sum(kind != "const" for kind in types),
        operation_types=len(set(types)),
    )


def _weights(package: Path) -> Path:
    found = sorted(package.rglob(WEIGHT_FILE))
    if len(found) != 1:
        raise ArtifactError(f"{package} holds {len(found)} {WEIGHT_FILE}; expected one")
    return found[0]
