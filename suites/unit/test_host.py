"""What the backends share on the host, and the NumPy network."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import write_checkpoint
from hypothesis import given
from hypothesis import strategies as st

from laya_apple.backends.host import HostNetwork, action_features, action_head, erf, gelu, pack, rope_tables
from laya_apple.checkpoint import open_checkpoint
from laya_apple.errors import UnsupportedModelError
from laya_apple.prompt.sequence import Row


def test_erf_is_the_error_function_to_float32_precision() -> None:
    x = np.linspace(-6, 6, 60_001).astype(np.float32)
    exact = np.array([math.erf(value) for value in x.tolist()])
    assert float(np.abs(erf(x) - exact).max()) < 5e-7


def test_erf_at_the_ends() -> None:
    values = erf(np.array([-np.inf, -0.0, 0.0, np.inf, np.nan], np.float32))
    np.testing.assert_array_equal(values, np.array([-1, -0.0, 0, 1, np.nan], np.float32))
    assert values.dtype == np.float32


@given(st.floats(-50, 50, width=32))
def test_gelu_is_the_exact_one(x: float) -> None:
    exact = x * (1 + math.erf(x / math.sqrt(2))) / 2
    assert abs(float(gelu(np.array([x], np.float32))[0]) - exact) <= 5e-7 * max(1.0, abs(x))


def test_action_features_of_three_options() -> None:
    p = np.array([0.5, 0.3, 0.2])
    features = action_features(np.log(p).astype(np.float32), 3)
    entropy = -float((p * np.log(p)).sum()) / math.log(3)
    np.testing.assert_allclose(features, [0.5, 0.2, entropy, 3 / 255], atol=1e-6)


def test_a_lone_option_counts_as_certain_of_two() -> None:
    np.testing.assert_array_equal(
        action_features(np.array([-3.0], np.float32), 2), np.array([1, 1, 0, 2 / 255], np.float32)
    )


def test_action_head_is_linear_gelu_linear() -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "act_head.0.weight": rng.standard_normal((256, 12)).astype(np.float32),
        "act_head.0.bias": rng.standard_normal(256).astype(np.float32),
        "act_head.2.weight": rng.standard_normal((3, 256)).astype(np.float32),
        "act_head.2.bias": rng.standard_normal(3).astype(np.float32),
    }
    cls = rng.standard_normal(8).astype(np.float32)
    logits = np.array([0.5, 1.5], np.float32)
    x = np.concatenate([cls, action_features(logits, 2)]).astype(np.float64)
    inner = tensors["act_head.0.weight"] @ x + tensors["act_head.0.bias"]
    inner = np.array([value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in inner])
    expected = tensors["act_head.2.weight"] @ inner + tensors["act_head.2.bias"]
    np.testing.assert_allclose(action_head(cls, logits, tensors), expected, rtol=1e-5, atol=1e-4)


def test_rope_tables_turn_by_position_over_theta() -> None:
    cos, sin = rope_tables(5, 4, 100.0)
    angles = np.array([[i * 1.0, i * 0.1, i * 1.0, i * 0.1] for i in range(5)])
    np.testing.assert_allclose(cos, np.cos(angles), atol=1e-7)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1e-7)


def test_pack_pads_to_the_longest_row_and_the_most_options() -> None:
    batch = pack([Row((2, 4, 3), (1,), 2), Row((2, 4, 4, 4, 3), (1, 2, 3), 0)], 10)
    assert batch.ids.tolist() == [[2, 4, 3, 0, 0], [2, 4, 4, 4, 3]]
    assert batch.lengths.tolist() == [3, 5]
    assert batch.markers.tolist() == [[1, 0, 0], [1, 2, 3]]
    assert batch.active.tolist() == [[True, False, False], [True, True, True]]
    assert batch.qtypes.tolist() == [2, 0]
    assert batch.padded


def test_pack_of_a_single_option_still_has_two_columns_and_no_padding() -> None:
    batch = pack([Row((2, 4, 3), (1,), 2)], 10)
    assert batch.active.tolist() == [[True, False]]
    assert not batch.padded


def test_an_id_beyond_the_table_is_refused() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        pack([Row((2, 10, 3), (1,), 0)], 10)
    assert str(caught.value) == (
        "token id 10 is beyond the embedding table (10 tokens); tokenizer and weights do not belong "
        "together, so restore both from one checkpoint"
    )


def test_the_numpy_network_gives_one_output_a_row(tmp_path: Path) -> None:
    network = HostNetwork(open_checkpoint(write_checkpoint(tmp_path / "c")))
    rows = [Row((2, 4, 9, 4, 11, 3), (1, 3), 0), Row((2, 4, 9, 3), (1,), 2)]
    first, second = network.forward(rows)
    assert (first.options.shape, first.action.shape) == ((2,), (3,))
    assert (second.options.shape, second.action.shape) == ((1,), (3,))
    assert {array.dtype for array in (first.options, first.action)} == {np.dtype(np.float32)}
    (alone,) = network.forward(rows[1:])
    np.testing.assert_array_equal(alone.options, second.options)
