"""The random-weight checkpoints catch a network that is only nearly upstream's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fixtures.goldens.paths import SHIPPED, checkpoint_path, golden_path, names
from laya_apple.backends.host import HostNetwork
from laya_apple.checkpoint import Checkpoint, EncoderConfig, open_checkpoint
from laya_apple.config import LayerKind
from laya_apple.parity.gate import GateReport, run_gate
from laya_apple.parity.goldens import load_goldens
from laya_apple.prompt.tokenizer import Tokenizer

NAMES = [name for name in names() if name != SHIPPED]
SHORT = 64
"""Longest row compared, in tokens: the shortcut must show inside the smallest compiled length."""

Change = Callable[[EncoderConfig], EncoderConfig]
OTHER: dict[LayerKind, LayerKind] = {"full": "sliding", "sliding": "full"}
SHORTCUTS: dict[str, Change] = {
    "window twice as wide": lambda e: replace(e, window=2 * e.window),
    "window one token narrower": lambda e: replace(e, window=e.window - 1),
    "no window": lambda e: replace(e, window=1 << 20),
    "full and sliding layers confused": lambda e: replace(
        e, layer_kinds=tuple(OTHER[kind] for kind in e.layer_kinds)
    ),
    "rotary bases confused": lambda e: replace(
        e, full_rope_theta=e.sliding_rope_theta, sliding_rope_theta=e.full_rope_theta
    ),
    "one rotary base for all": lambda e: replace(e, sliding_rope_theta=e.full_rope_theta),
}


def gate(checkpoint: Checkpoint, name: str) -> GateReport:
    """NumPy float32 against the goldens, with the wide tolerance of float16."""
    return run_gate(
        HostNetwork(checkpoint).forward,
        Tokenizer.from_dir(checkpoint.path),
        checkpoint.config,
        load_goldens(golden_path(name)),
        dtype="float16",
        weights_sha256=checkpoint.spec.weights_sha256,
        max_length=SHORT,
    )


@pytest.mark.filterwarnings("ignore:rl_agent_config.json holds temperatures:RuntimeWarning")
class TestShortcutsFail:
    @pytest.mark.parametrize("name", NAMES)
    def test_the_network_as_configured_passes(self, name: str) -> None:
        report = gate(open_checkpoint(checkpoint_path(name)), name)
        assert report.passed, report.summary

    @pytest.mark.parametrize("shortcut", SHORTCUTS)
    @pytest.mark.parametrize("name", NAMES)
    def test_a_shortcut_does_not(self, name: str, shortcut: str) -> None:
        checkpoint = open_checkpoint(checkpoint_path(name))
        changed = replace(checkpoint, encoder=SHORTCUTS[shortcut](checkpoint.encoder))
        report = gate(changed, name)
        assert not report.passed
        assert report.out_of_tolerance.count >= 5
        assert report.max_option_difference > 4 * report.tolerance
