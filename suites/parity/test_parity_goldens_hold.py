"""Every fixture checkpoint against its goldens: ids, answers, and the gate on each network we have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import pytest
from parity_checkpoints import ParityCheckpoint, parity_checkpoints
from parity_comparison import differences

from laya_apple import LayaAppleError
from laya_apple.backends.base import RowOutput
from laya_apple.backends.host import HostNetwork
from laya_apple.backends.mlx import MLXBackend
from laya_apple.checkpoint import Checkpoint
from laya_apple.parity.gate import GateReport, run_gate
from laya_apple.parity.goldens import load_goldens
from laya_apple.prompt.answers import Calibration, format_answers
from laya_apple.prompt.sequence import Row, prepare
from laya_apple.prompt.tokenizer import Tokenizer

FLOAT32_AIM = 1e-5
"""What float32 holds on these checkpoints; the gate itself allows 1e-4."""

SHORT = 192
"""Longest row, in tokens, of the fast tier on MLX, whose Linux BLAS takes most of a second on the longest."""

CHECKPOINTS = parity_checkpoints()
Forward = Callable[[Sequence[Row]], Sequence[RowOutput]]


@pytest.fixture(params=CHECKPOINTS, ids=lambda checkpoint: checkpoint.name, scope="module")
def fixture(request: pytest.FixtureRequest) -> ParityCheckpoint:
    found: ParityCheckpoint = request.param
    return found


@pytest.fixture(scope="module")
def checkpoint(fixture: ParityCheckpoint) -> Checkpoint:
    return fixture.open()


def gate(
    fixture: ParityCheckpoint,
    checkpoint: Checkpoint,
    forward: Forward,
    dtype: str,
    max_length: int | None = None,
) -> GateReport:
    return run_gate(
        forward,
        Tokenizer.from_dir(fixture.path),
        checkpoint.config,
        fixture.goldens(),
        dtype=dtype,
        weights_sha256=checkpoint.spec.weights_sha256,
        max_length=max_length,
    )


@pytest.mark.filterwarnings("ignore:rl_agent_config.json holds temperatures:RuntimeWarning")
class TestGoldensHold:
    def test_prompts_and_answers(self, fixture: ParityCheckpoint, checkpoint: Checkpoint) -> None:
        tokenizer = Tokenizer.from_dir(fixture.path)
        calibration = Calibration.from_config(checkpoint.config)
        cases = fixture.goldens().cases
        assert len(cases) >= 30
        for case in cases:
            prepared = prepare(tokenizer, checkpoint.config, case.context, case.questions)
            assert [(row.ids, row.markers, row.qtype) for row in prepared.rows] == [
                (row.ids, row.markers, row.qtype) for row in case.rows
            ], case.name
            assert (prepared.truncated, prepared.input_tokens) == (case.truncated, case.input_tokens), (
                case.name
            )
            outputs = [
                RowOutput(np.array(row.options, np.float32), np.array(row.action, np.float32))
                for row in case.rows
            ]
            answers = format_answers(prepared.questions, outputs, calibration)
            assert differences(answers, case.answers, case.name) == []

    @pytest.mark.laya_parity(model="fixtures", device="cpu", dtype="float32")
    def test_mlx_float32(self, fixture: ParityCheckpoint, checkpoint: Checkpoint) -> None:
        self.check_mlx(fixture, checkpoint, "float32", SHORT)

    @pytest.mark.laya_parity(model="fixtures", device="cpu", dtype="float16")
    def test_mlx_float16(self, fixture: ParityCheckpoint, checkpoint: Checkpoint) -> None:
        self.check_mlx(fixture, checkpoint, "float16", SHORT)

    @pytest.mark.laya_slow
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_mlx_at_every_length(
        self, fixture: ParityCheckpoint, checkpoint: Checkpoint, dtype: Literal["float32", "float16"]
    ) -> None:
        self.check_mlx(fixture, checkpoint, dtype, None)

    def check_mlx(
        self,
        fixture: ParityCheckpoint,
        checkpoint: Checkpoint,
        dtype: Literal["float32", "float16"],
        max_length: int | None,
    ) -> None:
        backend = MLXBackend(checkpoint, device="cpu", dtype=dtype)
        report = gate(fixture, checkpoint, backend.forward, dtype, max_length)
        assert report.passed, report.to_dict()
        assert report.rows >= 50
        if dtype == "float32":
            assert max(report.max_option_difference, report.max_act_difference) <= FLOAT32_AIM
            assert report.near_ties.count == 0

    @pytest.mark.laya_parity(model="fixtures", device="host", dtype="float32")
    def test_numpy_float32(self, fixture: ParityCheckpoint, checkpoint: Checkpoint) -> None:
        report = gate(fixture, checkpoint, HostNetwork(checkpoint).forward, "float32")
        assert report.passed, report.to_dict()
        assert max(report.max_option_difference, report.max_act_difference) <= FLOAT32_AIM

    def test_goldens_of_another_checkpoint_are_refused(
        self, fixture: ParityCheckpoint, checkpoint: Checkpoint
    ) -> None:
        other = CHECKPOINTS[CHECKPOINTS.index(fixture) - 1]
        if other == fixture:
            pytest.skip("the installed package ships one checkpoint only")
        with pytest.raises(LayaAppleError, match=f"the goldens of {other.name} were made from weights"):
            run_gate(
                HostNetwork(checkpoint).forward,
                Tokenizer.from_dir(fixture.path),
                checkpoint.config,
                load_goldens(other.goldens_path),
                dtype="float32",
                weights_sha256=checkpoint.spec.weights_sha256,
            )
