"""The virtual Mac's compiled model: a ``.mlmodelc`` folder with the names a real one has.

coremldata.bin      marks the folder as ours; a real Core ML refuses it, and we refuse a real one
metadata.json       ``synthetic`` and the input and output types
model.mil           the model specification (serialised protobuf)
weights/weight.bin  the weight file, unchanged
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pytest_laya.virtual_mac.program import ProgramError
from pytest_laya.virtual_mac.state import log_event

MARK = b"pytest_laya.virtual_mac compiled model, synthetic\n"
MAX_SPECIFICATION_VERSION = 9


def is_compiled(path: str) -> bool:
    """True for a path that names a compiled model."""
    return path.rstrip("/").endswith(".mlmodelc")


def compile_package(path: str) -> str:
    """Compile a ``.mlpackage`` or ``.mlmodel`` into a new folder of its own; the caller moves it.

    Raises RuntimeError as the native bridge does: a missing path, or a specification newer than this macOS
    reads.
    """
    utils = importlib.import_module("coremltools.models.utils")
    if not os.path.exists(path):
        raise RuntimeError(f"Error compiling model: {path} does not exist")
    spec = utils.load_spec(path)
    if spec.specificationVersion > MAX_SPECIFICATION_VERSION:
        raise RuntimeError(
            f"Error compiling model: specification version {spec.specificationVersion} is newer than "
            f"{MAX_SPECIFICATION_VERSION}"
        )
    stem = Path(path.rstrip("/")).stem
    folder = Path(tempfile.mkdtemp(prefix="virtual-mac-")) / f"{stem}.mlmodelc"
    (folder / "weights").mkdir(parents=True)
    (folder / "coremldata.bin").write_bytes(MARK)
    (folder / "metadata.json").write_text(
        json.dumps(_metadata(spec), sort_keys=True) + "\n", encoding="utf-8"
    )
    (folder / "model.mil").write_bytes(spec.SerializeToString(deterministic=True))
    weights = utils._try_get_weights_dir_path(path)
    if weights:
        for name in sorted(os.listdir(weights)):
            shutil.copyfile(os.path.join(weights, name), folder / "weights" / name)
    log_event("compile", path=path)
    return str(folder)


def _metadata(spec: Any) -> dict[str, Any]:
    def described(features: Any) -> list[dict[str, Any]]:
        return [
            {
                "name": f.name,
                "shape": list(f.type.multiArrayType.shape),
                "type": f.type.multiArrayType.dataType,
            }
            for f in features
        ]

    return {
        "synthetic": True,
        "generator": "pytest_laya.virtual_mac",
        "specificationVersion": spec.specificationVersion,
        "inputSchema": described(spec.description.input),
        "outputSchema": described(spec.description.output),
    }


def load_model(path: str) -> tuple[Any, Path]:
    """The specification of a model on disk and the folder of its weights.

    ``path`` is a ``.mlpackage``, a ``.mlmodel`` or a compiled folder of ours. Raises ProgramError otherwise.
    """
    if not is_compiled(path):
        utils = importlib.import_module("coremltools.models.utils")
        weights = utils._try_get_weights_dir_path(path)
        return utils.load_spec(path), Path(weights or path)
    model_pb2 = importlib.import_module("coremltools.proto.Model_pb2")
    decode_error = importlib.import_module("google.protobuf.message").DecodeError
    folder = Path(path)
    try:
        mark = (folder / "coremldata.bin").read_bytes()
        program = (folder / "model.mil").read_bytes()
    except OSError as error:
        raise ProgramError(f"Error: no compiled model at {path}: {error}") from error
    if mark != MARK:
        raise ProgramError(f"Error: {path} was not compiled by the virtual Mac, or is damaged")
    spec = model_pb2.Model()
    try:
        spec.ParseFromString(program)
    except decode_error as error:
        raise ProgramError(f"Error: the compiled program in {path} is damaged: {error}") from error
    return spec, folder / "weights"
