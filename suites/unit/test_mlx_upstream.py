"""Slow tier: both networks against upstream's model and transformers' encoder, on random checkpoints."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import VARIANTS, random_rows, write_checkpoint

from laya_apple.backends.base import RowOutput
from laya_apple.backends.host import HostNetwork
from laya_apple.backends.mlx import MLXBackend
from laya_apple.checkpoint import Checkpoint, open_checkpoint
from laya_apple.prompt.sequence import Row

pytestmark = pytest.mark.laya_slow


def reference(name: str) -> Any:
    """A module of the reference environment; without it this tier fails rather than passes by."""
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.fail(f"{name} is missing; pip install 'laya-apple[reference]'")


def upstream_outputs(folder: Path, rows: list[Row], padding: int) -> list[RowOutput]:
    """Option and action logits of upstream's own model, PyTorch CPU float32, each row ``padding`` longer."""
    torch = reference("torch")
    model = reference("laya").RLAgent(str(folder), device="cpu").model.eval()
    outputs = []
    for row in rows:
        length, options = len(row.ids), max(2, len(row.markers))
        missing = options - len(row.markers)
        with torch.no_grad():
            logits, action = model(
                torch.tensor([[*row.ids, *[0] * padding]]),
                torch.tensor([[1] * length + [0] * padding]),
                torch.tensor([[*row.markers, *[0] * missing]]),
                torch.tensor([[True] * len(row.markers) + [False] * missing]),
                torch.tensor([row.qtype]),
            )
        outputs.append(RowOutput(logits[0, : len(row.markers)].numpy(), action[0].numpy()))
    return outputs


def worst(ours: list[RowOutput], theirs: list[RowOutput]) -> float:
    """Largest difference of an option or action probability."""

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x.astype(np.float64) - x.max())
        return e / e.sum()

    return max(
        float(np.abs(softmax(getattr(a, part)) - softmax(getattr(b, part))).max())
        for a, b in zip(ours, theirs, strict=True)
        for part in ("options", "action")
    )


@pytest.fixture(params=VARIANTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    encoder, agent = VARIANTS[request.param]
    return open_checkpoint(write_checkpoint(tmp_path / request.param, encoder=encoder, agent=agent))


@pytest.mark.parametrize("padding", [0, 5])
def test_upstreams_probabilities(checkpoint: Checkpoint, padding: int) -> None:
    rows = random_rows(30, seed=19) + random_rows(4, seed=20, longest=250)
    theirs = upstream_outputs(checkpoint.path, rows, padding)
    assert worst(HostNetwork(checkpoint).forward(rows), theirs) <= 1e-5
    assert worst(MLXBackend(checkpoint, device="cpu", dtype="float32").forward(rows), theirs) <= 1e-5
    assert worst(MLXBackend(checkpoint, device="cpu", dtype="float16").forward(rows), theirs) <= 0.02


def test_transformers_encoder(checkpoint: Checkpoint) -> None:
    torch, transformers = reference("torch"), reference("transformers")
    config = transformers.AutoConfig.from_pretrained(str(checkpoint.path / "encoder"))
    model = transformers.ModernBertModel(config).eval()
    prefix = "encoder."
    weights = {
        name.removeprefix(prefix): torch.from_numpy(tensor.copy())
        for name, tensor in checkpoint.tensors().items()
        if name.startswith(prefix)
    }
    model.load_state_dict(weights, strict=True)
    for row in random_rows(10, seed=21, longest=120):
        with torch.no_grad():
            theirs = model(input_ids=torch.tensor([row.ids])).last_hidden_state[0].numpy()
        ours = HostNetwork(checkpoint).encode(np.array(row.ids))
        np.testing.assert_allclose(ours, theirs, atol=2e-4)
