"""The saved program, executed, against a straight NumPy forward: nothing of the graph is trusted here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from straight_forward import straight_forward, worst

from laya_apple.artifacts.convert import convert
from laya_apple.artifacts.features import HostSide
from laya_apple.artifacts.graph import GraphShape, build_graph
from laya_apple.artifacts.runtime import compile_package, load_on_neural_engine, predict
from laya_apple.artifacts.tensors import TensorFile
from laya_apple.checkpoint import Checkpoint, open_checkpoint
from laya_apple.parity.gate import TOLERANCES
from laya_apple.prompt.answers import softmax
from laya_apple.prompt.sequence import Row
from pytest_laya.virtual_mac.control import VirtualMac

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/model.safetensors"))


def _rows(checkpoint: Checkpoint, length: int) -> list[Row]:
    random = np.random.default_rng(11)
    rows = []
    for qtype, (tokens, options) in enumerate(((length, 12), (length // 2, 4), (9, 2))):
        ids = random.integers(0, checkpoint.encoder.vocab_size, tokens)
        markers = np.sort(random.choice(tokens, options, replace=False))
        rows.append(Row(tuple(map(int, ids)), tuple(map(int, markers)), qtype))
    return rows


def test_there_are_fixture_checkpoints() -> None:
    assert len(NAMES) >= 4


@pytest.mark.parametrize("name", NAMES)
def test_the_executed_program_is_the_network(mac: VirtualMac, tmp_path: Path, name: str) -> None:
    checkpoint = open_checkpoint(FIXTURES / name)
    length = 64
    graph = build_graph(GraphShape.of(checkpoint, length), TensorFile(checkpoint))
    convert(graph, tmp_path / "m.mlpackage")
    compile_package(tmp_path / "m.mlpackage", tmp_path / "m.mlmodelc")
    model = load_on_neural_engine(tmp_path / "m.mlmodelc")
    host = HostSide(checkpoint)
    for row in _rows(checkpoint, length):
        outputs = predict(model, host.features(row, length))
        logits, cls = straight_forward(checkpoint, row)
        found = softmax([float(x) for x in host.finish(row, outputs).options], 1.0)
        assert worst(found, softmax([float(x) for x in logits], 1.0)) < TOLERANCES["float16"]
        # Half precision keeps eleven bits; the states reach about ten.
        assert worst(outputs["cls"].reshape(-1), cls) < 0.1
