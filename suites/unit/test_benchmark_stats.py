"""``laya_apple.benchmark.stats``: linear percentiles of one sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laya_apple.benchmark import stats


def test_known_sample() -> None:
    assert stats([4.0, 1.0, 3.0, 2.0]) == {
        "n": 4,
        "p50_ms": 2.5,
        "p95_ms": pytest.approx(3.85),
        "p99_ms": pytest.approx(3.97),
        "mean_ms": 2.5,
        "min_ms": 1.0,
        "max_ms": 4.0,
    }


def test_one_value_and_none() -> None:
    assert stats([7.5])["p99_ms"] == 7.5
    assert stats([]) == {"n": 0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        stats([1.0, bad])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=80))
def test_percentiles_agree_with_numpy_for_any_sample(samples: list[float]) -> None:
    found = stats(samples)
    for percent in (50, 95, 99):
        assert found[f"p{percent}_ms"] == pytest.approx(float(np.percentile(samples, percent)), abs=1e-6)
    assert found["min_ms"] <= found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"] <= found["max_ms"]
