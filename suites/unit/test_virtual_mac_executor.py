"""The executor: rounding, every operation against NumPy, and clear errors for what it does not run."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import virtual_mac_models as models
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_laya.virtual_mac import platform
from pytest_laya.virtual_mac.executor import Program
from pytest_laya.virtual_mac.half import round_to_half
from pytest_laya.virtual_mac.operations import MAKERS, erf
from pytest_laya.virtual_mac.program import FLOAT16, FLOAT32, Operation, Parsed, ProgramError, Tensor, parse

# --- rounding


@given(
    arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32) | st.floats(-9, 9, width=32))
)
def test_rounding_is_numpys(values: Any) -> None:
    with np.errstate(over="ignore"):
        want = values.astype(np.float16).astype(np.float32)
    got = round_to_half(values.copy())
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[got != 0]), np.signbit(want[want != 0]))


def test_rounding_covers_every_half_and_the_ties_between() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[:-1] + halves[1:]) / 2
    for values in (
        halves,
        between,
        np.nextafter(between, np.float32(0)),
        np.nextafter(between, np.float32(9e4)),
    ):
        both = np.concatenate([values, -values])
        # In pieces, so that the fast way is taken wherever no value is near the top.
        for part in np.array_split(both, 64):
            assert np.array_equal(round_to_half(part.copy()), part.astype(np.float16).astype(np.float32))


def test_rounding_takes_views_and_scalars() -> None:
    square = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(round_to_half(square.copy().T), square.T.astype(np.float16))
    assert round_to_half(np.asarray(np.float32(1.0001))) == 1
    assert round_to_half(np.zeros(0, np.float32)).shape == (0,)


# --- operations


def run(
    kind: str, args: dict[str, Any], shape: tuple[int, ...], *, dtype: int = FLOAT32, **inputs: Any
) -> Any:
    """Run one operation; ``args`` values that are strings starting with ``%`` are variables."""
    constants: dict[str, Any] = {}
    bound: dict[str, Any] = {}
    for name, value in args.items():
        if isinstance(value, (tuple, str)) and "%" in str(value):
            bound[name] = value if isinstance(value, str) else tuple(value)
        else:
            constants[f"c.{name}"] = value
            bound[name] = f"c.{name}"
    shapes = shape if isinstance(shape, list) else [shape]
    names = tuple(f"out{i}" for i in range(len(shapes)))
    types = tuple(Tensor(dtype, s) for s in shapes)
    parsed = Parsed(
        inputs={f"%{n}": Tensor(dtype, a.shape) for n, a in inputs.items()},
        outputs=dict(zip(names, types, strict=True)),
        constants=constants,
        operations=(Operation(kind, bound, names, types),),
    )
    out = Program.from_parsed(parsed).run({f"%{n}": a for n, a in inputs.items()})
    return [out[n] for n in names] if isinstance(shape, list) else out["out0"]


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_convolution() -> None:
    x, w, b = noise(1, 6, 1, 5), noise(4, 6, 1, 1, seed=1), noise(4, seed=2)
    want = np.einsum("oi,nihw->nohw", w[:, :, 0, 0], x)
    assert np.allclose(run("conv", {"x": "%x", "weight": w}, (1, 4, 1, 5), x=x), want, atol=1e-5)
    got = run("conv", {"x": "%x", "weight": w, "bias": b}, (1, 4, 1, 5), x=x)
    assert np.allclose(got, want + b[None, :, None, None], atol=1e-5)


@pytest.mark.parametrize(("equation", "shapes"), [
    ("nchw,nwhu->nchu", [(1, 3, 1, 4), (1, 4, 1, 5)]),
    ("nchw,nwhu->nchu", [(2, 3, 2, 4), (2, 4, 2, 5)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
])  # fmt: skip
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    x, y = noise(*shapes[0]), noise(*shapes[1], seed=1)
    want = np.einsum(equation, x, y)
    got = run("einsum", {"values": ("%x", "%y"), "equation": equation}, want.shape, x=x, y=y)
    assert np.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "function"),
    [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("real_div", np.divide)],
)
def test_arithmetic_with_a_constant_on_either_side(kind: str, function: Any) -> None:
    x, c = noise(1, 3, 1, 4), 2 + np.abs(noise(1, 3, 1, 1, seed=1))
    assert np.array_equal(run(kind, {"x": "%x", "y": c}, x.shape, x=x), function(x, c))
    assert np.array_equal(run(kind, {"x": c, "y": "%x"}, x.shape, x=x), function(c, x))
    assert np.array_equal(run(kind, {"x": "%x", "y": "%y"}, x.shape, x=x, y=x + 5), function(x, x + 5))


def test_normalisation_in_both_spellings() -> None:
    x, g, b = noise(1, 8, 1, 3), noise(8, seed=1), noise(8, seed=2)
    centred = x - x.mean(1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    args = {"x": "%x", "axes": np.array([1]), "epsilon": np.float32(1e-5)}
    assert np.allclose(run("layer_norm", args, x.shape, x=x), want, atol=1e-5)
    got = run("layer_norm", {**args, "gamma": g, "beta": b}, x.shape, x=x)
    assert np.allclose(got, want * g[:, None, None] + b[:, None, None], atol=1e-5)
    mean = run("reduce_mean", {"x": "%x", "axes": np.array([1]), "keep_dims": True}, (1, 1, 1, 3), x=x)
    assert np.allclose(mean, x.mean(1, keepdims=True), atol=1e-6)
    flat = run("reduce_mean", {"x": "%x", "axes": np.array([1, -1])}, (1, 1), x=x)
    assert np.allclose(flat, x.mean((1, 3)), atol=1e-6)
    assert np.allclose(run("rsqrt", {"x": "%x", "epsilon": 0.5}, x.shape, x=x * x), 1 / np.sqrt(x * x + 0.5))


def test_activations() -> None:
    x = np.linspace(-6, 6, 401, dtype=np.float32).reshape(1, 401, 1, 1)
    exact = np.vectorize(math.erf)(x.astype(np.float64))
    assert np.abs(erf(x) - exact).max() < 3e-7
    gelu = 0.5 * x * (1 + np.vectorize(math.erf)(x.astype(np.float64) / math.sqrt(2)))
    assert np.abs(run("gelu", {"x": "%x", "mode": "EXACT"}, x.shape, x=x) - gelu).max() < 2e-6
    assert np.array_equal(run("relu", {"x": "%x"}, x.shape, x=x), np.maximum(x, 0))
    soft = run("softmax", {"x": "%x", "axis": 1}, x.shape, x=x)
    assert np.allclose(soft, np.exp(x - 6) / np.exp(x - 6).sum(1, keepdims=True), atol=1e-6)


def test_softmax_of_masked_scores_gives_the_masked_nothing() -> None:
    x = np.array([0.5, -1e4, 1.5, -1e4], np.float32).reshape(1, 4, 1, 1)
    got = run("softmax", {"x": "%x", "axis": 1}, x.shape, x=x).ravel()
    assert got[1] == got[3] == 0
    assert got.sum() == pytest.approx(1)


def test_movements_of_values() -> None:
    x = noise(1, 6, 2, 4)
    assert np.array_equal(run("reshape", {"x": "%x", "shape": np.array([1, 12, 1, 4])}, (1, 12, 1, 4), x=x),
                          x.reshape(1, 12, 1, 4))  # fmt: skip
    perm = np.array([0, 3, 2, 1])
    assert np.array_equal(
        run("transpose", {"x": "%x", "perm": perm}, (1, 4, 2, 6), x=x), x.transpose(0, 3, 2, 1)
    )
    parts = run("split", {"x": "%x", "num_splits": 3, "axis": 1}, [(1, 2, 2, 4)] * 3, x=x)
    assert np.array_equal(np.concatenate(parts, 1), x)
    joined = run("concat", {"values": ("%x", "%y"), "axis": 3}, (1, 6, 2, 8), x=x, y=-x)
    assert np.array_equal(joined, np.concatenate([x, -x], 3))
    one = run("split", {"x": "%x", "num_splits": 1, "axis": 1}, [x.shape], x=x)
    assert np.array_equal(one[0], x)


def test_slices_with_masks_strides_and_squeezing() -> None:
    x = noise(1, 6, 2, 4)
    args = {"x": "%x", "begin": np.array([0, 1, 0, 0]), "end": np.array([1, 5, 1, 4])}
    assert np.array_equal(run("slice_by_index", args, (1, 4, 1, 4), x=x), x[0:1, 1:5, 0:1, 0:4])
    masked = {
        **args,
        "begin_mask": np.array([False, True, False, False]),
        "end_mask": np.array([False] * 3 + [True]),
    }
    assert np.array_equal(run("slice_by_index", masked, (1, 5, 1, 4), x=x), x[0:1, :5, 0:1, 0:])
    strided = {
        **args,
        "stride": np.array([1, 2, 1, 1]),
        "squeeze_mask": np.array([False, False, True, False]),
    }
    assert np.array_equal(run("slice_by_index", strided, (1, 2, 4), x=x), x[0:1, 1:5:2, 0, 0:4])


def test_float16_results_are_rounded_and_overflow_to_infinity() -> None:
    x = np.array([1.0, 300.0, 2.0**-13], np.float16).reshape(1, 3, 1, 1)
    got = run("mul", {"x": "%x", "y": "%x"}, x.shape, dtype=FLOAT16, x=x).ravel()
    assert got.dtype == np.float16
    assert got.tolist() == [1.0, float("inf"), 0.0]


# --- programs


def test_a_saved_program_agrees_with_the_evaluation(tmp_path: Path) -> None:
    platform()
    program = Program(models.save(tmp_path / "model.mlpackage", 12))
    assert program.operation_types <= set(MAKERS)
    assert list(program.inputs) == ["embeddings", "full_mask", "marker_map"]
    inputs = models.features(12)
    out, want = program.run(inputs), models.evaluate(inputs)
    assert {a.dtype for a in out.values()} == {np.dtype(np.float16)}
    assert np.abs(out["logits"].ravel() - want["logits"]).max() < 2e-2
    with pytest.raises(ProgramError, match=r"^input full_mask is missing$"):
        program.run({"embeddings": inputs["embeddings"]})
    with pytest.raises(
        ProgramError, match=r"^input embeddings has shape \(1, 8, 1, 11\), not \(1, 8, 1, 12\)$"
    ):
        program.run({**inputs, "embeddings": inputs["embeddings"][..., :11]})


def test_unknown_operations_and_uses_are_refused_before_anything_runs() -> None:
    x = noise(1, 3, 1, 4)
    with pytest.raises(
        ProgramError, match=r"^operation gru \(out0\) is not one the virtual Mac runs: add, cast,"
    ):
        run("gru", {"x": "%x"}, x.shape, x=x)
    with pytest.raises(
        ProgramError, match=r"^operation gelu \(out0\): mode TANH_APPROXIMATION is not supported$"
    ):
        run("gelu", {"x": "%x", "mode": "TANH_APPROXIMATION"}, x.shape, x=x)
    with pytest.raises(ProgramError, match=r"kernel of shape \(2, 3, 3, 1\) is not supported$"):
        run("conv", {"x": "%x", "weight": noise(2, 3, 3, 1)}, (1, 2, 1, 4), x=x)
    with pytest.raises(ProgramError, match="argument axis must be a constant"):
        run("softmax", {"x": "%x", "axis": "%x"}, x.shape, x=x)


def test_only_ml_programs_are_read(tmp_path: Path) -> None:
    spec = SimpleNamespace(WhichOneof=lambda _: "neuralNetwork")
    with pytest.raises(ProgramError, match=r"^the virtual Mac runs ML Programs, not neuralNetwork$"):
        parse(spec, tmp_path)
