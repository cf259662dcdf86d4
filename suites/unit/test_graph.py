"""The graph ``bc1s-masked``: what the saved program holds, and that it computes the network."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifact_files import ONE_HEAD, TWO_LAYERS
from checkpoint_files import VARIANTS, random_rows, write_checkpoint
from straight_forward import straight_forward, worst

from laya_apple.artifacts.convert import convert
from laya_apple.artifacts.evaluate import evaluate
from laya_apple.artifacts.features import HostSide
from laya_apple.artifacts.graph import INPUT_NAMES, OUTPUT_NAMES, Graph, GraphShape, build_graph
from laya_apple.artifacts.layout import LayoutCheck, check_layout, check_rows, expected_outputs
from laya_apple.artifacts.tensors import TensorFile
from laya_apple.checkpoint import Checkpoint, open_checkpoint
from laya_apple.errors import ArtifactError

FLOAT16 = 10
"""``FLOAT16`` in coremltools' MIL.proto."""
FLOAT16_FEATURE = 65552
"""``FLOAT16`` in coremltools' FeatureTypes.proto."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(
        write_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny", encoder=TWO_LAYERS, agent=ONE_HEAD)
    )


def _variant(folder: Path, name: str, **encoder: Any) -> Checkpoint:
    over, agent = VARIANTS[name]
    return open_checkpoint(write_checkpoint(folder / "variant", encoder={**over, **encoder}, agent=agent))


def _saved(checkpoint: Checkpoint, package: Path, length: int = 64, spelling: Any = "decomposed") -> Any:
    from coremltools.models.utils import load_spec

    graph = build_graph(GraphShape.of(checkpoint, length, spelling), checkpoint.tensors())
    digest = convert(graph, package)
    return load_spec(str(package)), digest


def _check(graph: Graph, checkpoint: Checkpoint) -> LayoutCheck:
    return check_layout(graph, checkpoint, expected_outputs(checkpoint, graph.shape.length))


def _main(spec: Any) -> tuple[Any, Any]:
    main = spec.mlProgram.functions["main"]
    return main, main.block_specializations[main.opset]


@pytest.mark.parametrize(("spelling", "norms"), [("decomposed", "rsqrt"), ("op", "layer_norm")])
def test_the_saved_program_is_fp16_from_input_to_output(
    tiny: Checkpoint, tmp_path: Path, spelling: str, norms: str
) -> None:
    spec, digest = _saved(tiny, tmp_path / "m.mlpackage", spelling=spelling)
    main, block = _main(spec)
    kinds = Counter(operation.type for operation in block.operations)
    assert "cast" not in kinds
    assert len(kinds) <= 16
    assert digest.operation_types == len(kinds)
    assert digest.operations == sum(kinds.values()) - kinds["const"]
    assert kinds[norms] == 8  # embeddings, mlp 0, attn and mlp 1, final, two in the decision layer, scorer
    shapes = GraphShape.of(tiny, 64)
    described = {
        feature.name: (tuple(feature.type.multiArrayType.shape), feature.type.multiArrayType.dataType)
        for feature in (*spec.description.input, *spec.description.output)
    }
    wanted = {**shapes.input_shapes(), **shapes.output_shapes()}
    assert described == {name: (shape, FLOAT16_FEATURE) for name, shape in wanted.items()}
    assert tuple(value.name for value in main.inputs) == INPUT_NAMES
    assert tuple(block.outputs) == OUTPUT_NAMES
    floats = {
        output.type.tensorType.dataType
        for operation in block.operations
        if operation.type != "const"
        for output in operation.outputs
    }
    assert floats == {FLOAT16}


def test_every_name_in_the_program_is_one_that_core_ml_can_parse(tiny: Checkpoint, tmp_path: Path) -> None:
    _, block = _main(_saved(tiny, tmp_path / "m.mlpackage")[0])
    names = [output.name for operation in block.operations for output in operation.outputs]
    assert len(names) == len(set(names))
    assert [name for name in names if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)] == []


def test_the_same_checkpoint_gives_the_same_program_and_weights(tiny: Checkpoint, tmp_path: Path) -> None:
    first = _saved(tiny, tmp_path / "a.mlpackage")[1]
    assert _saved(tiny, tmp_path / "b.mlpackage")[1] == first
    other = open_checkpoint(write_checkpoint(tmp_path / "o", encoder=TWO_LAYERS, agent=ONE_HEAD, seed=1))
    assert _saved(other, tmp_path / "c.mlpackage")[1].weights_sha256 != first.weights_sha256
    assert _saved(tiny, tmp_path / "d.mlpackage", length=96)[1].program_sha256 != first.program_sha256


@pytest.mark.parametrize("spelling", ["decomposed", "op"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_layout_check_passes_for_every_kind_of_checkpoint(
    tmp_path: Path, name: str, spelling: Any
) -> None:
    checkpoint = _variant(tmp_path, name)
    graph = build_graph(GraphShape.of(checkpoint, 50, spelling), checkpoint.tensors())
    check = _check(graph, checkpoint)
    assert check.passed
    # Far inside the limit of 1e-3: what is left is float32 rounding of logits of size one to ten.
    assert check.max_logit_difference < 1e-4
    assert check.max_action_difference < 1e-4
    assert check.rows == 3


def test_one_attention_head_everywhere(tmp_path: Path) -> None:
    checkpoint = _variant(tmp_path, "heads32_old_theta_keys", num_attention_heads=1)
    graph = build_graph(GraphShape.of(checkpoint, 32), checkpoint.tensors())
    assert checkpoint.encoder.decision_heads == 1
    assert _check(graph, checkpoint).passed


@pytest.mark.parametrize("name", VARIANTS)
def test_the_graph_at_fp32_agrees_with_a_straight_forward(tmp_path: Path, name: str) -> None:
    checkpoint = _variant(tmp_path, name)
    graph = build_graph(GraphShape.of(checkpoint, 40), checkpoint.tensors())
    host = HostSide(checkpoint, rounded=False)
    rows = random_rows(3, seed=7, longest=40)
    outputs, _ = evaluate(graph, [host.features(row, 40) for row in rows])
    for row, output in zip(rows, outputs, strict=True):
        logits, cls = straight_forward(checkpoint, row)
        assert worst(output["logits"].reshape(-1)[: len(logits)], logits) < 1e-3
        assert worst(output["cls"].reshape(-1), cls) < 1e-3


@pytest.mark.parametrize(
    "change",
    [
        lambda shape: replace(shape, thetas={"full": 10000.0, "sliding": 160000.0}),
        lambda shape: replace(shape, layer_kinds=tuple(reversed(shape.layer_kinds))),
        lambda shape: replace(shape, norm_eps=0.1),
        lambda shape: replace(shape, heads=4),
        lambda shape: replace(shape, decision_heads=2),
        lambda shape: replace(shape, head_layers=0),
    ],
    ids=["thetas", "layer kinds", "epsilon", "heads", "decision heads", "decision layers"],
)
def test_the_layout_check_refuses_another_network(tiny: Checkpoint, change: Any) -> None:
    shape = GraphShape.of(tiny, 64)
    assert _check(build_graph(shape, tiny.tensors()), tiny).passed
    assert not _check(build_graph(change(shape), tiny.tensors()), tiny).passed


def test_the_layout_check_reports_what_every_layer_norm_sees(tiny: Checkpoint) -> None:
    graph = build_graph(GraphShape.of(tiny, 64), tiny.tensors())
    check = _check(graph, tiny)
    assert set(check.norm_abs_max) == {
        "encoder.embeddings.norm",
        "encoder.layers.0.mlp_norm",
        "encoder.layers.1.attn_norm",
        "encoder.layers.1.mlp_norm",
        "encoder.final_norm",
        "head.layers.0.norm1",
        "head.layers.0.norm2",
        "scorer.0",
    }
    table = tiny.tensors()["encoder.embeddings.tok_embeddings.weight"]
    seen = [token for row in check_rows(64, len(table)) for token in row.ids]
    assert check.norm_abs_max["encoder.embeddings.norm"] == pytest.approx(float(np.abs(table[seen]).max()))
    assert check.square_overflow == ()


def test_a_layer_norm_input_beyond_256_is_named(tiny: Checkpoint) -> None:
    check = LayoutCheck(0.0, 0.0, 1e-3, 3, {"quiet": 256.0, "loud": 257.0})
    assert check.to_dict()["square_overflow"] == ["loud"]


@pytest.mark.parametrize("difference", [1e-3, float("nan"), float("inf")])
def test_the_limit_of_the_layout_check_is_strict(difference: float) -> None:
    assert not LayoutCheck(difference, 0.0, 1e-3, 3, {}).passed
    assert not LayoutCheck(0.0, difference, 1e-3, 3, {}).passed
    assert LayoutCheck(9e-4, 9e-4, 1e-3, 3, {}).passed


def test_the_evaluator_refuses_operations_that_the_graph_does_not_use(tiny: Checkpoint) -> None:
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    graph = build_graph(GraphShape.of(tiny, 64), tiny.tensors())

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 2), dtype=types.fp16)])
    def foreign(x):  # type: ignore[no-untyped-def]
        return mb.tanh(x=x, name="curved")

    with pytest.raises(ArtifactError, match=r"the graph holds tanh \(curved\)"):
        evaluate(replace(graph, program=foreign), [{"x": np.zeros((1, 2), np.float32)}])


def test_check_rows_fit_and_cover_the_question_types() -> None:
    for length in (16, 64, 96, 128, 256):
        rows = check_rows(length, 50)
        assert [row.qtype for row in rows] == [0, 1, 2]
        assert max(len(row.ids) for row in rows) == length
        assert max(len(row.markers) for row in rows) == min(32, length // 2)
        assert min(len(row.markers) for row in rows) == 1
        assert all(max(row.markers) < len(row.ids) and max(row.ids) < 50 for row in rows)
        assert rows == check_rows(length, 50)


def test_tensors_read_one_at_a_time_are_the_checkpoint_s(tiny: Checkpoint) -> None:
    lazy, whole = TensorFile(tiny), tiny.tensors()
    assert list(lazy) == sorted(whole)
    assert len(lazy) == len(whole)
    assert all((lazy[name] == whole[name]).all() for name in lazy)
    assert "encoder.layers.0.attn_norm.weight" not in lazy
    with pytest.raises(KeyError):
        lazy["encoder.layers.0.attn_norm.weight"]
