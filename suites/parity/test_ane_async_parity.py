"""The asynchronous Core ML path against the synchronous one on every golden row: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from parity_checkpoints import ParityCheckpoint, parity_checkpoints

from laya_apple.artifacts.build import build_artifact
from laya_apple.backends.coreml import CoreMLBackend
from laya_apple.backends.coreml_async import AsyncPath
from laya_apple.checkpoint import Checkpoint
from laya_apple.parity.gate import run_gate
from laya_apple.prompt.sequence import Row
from laya_apple.prompt.tokenizer import Tokenizer
from pytest_laya.virtual_mac.control import VirtualMac

DECLARED_ANE_MS = 20.0
"""What a prediction takes at least while loading, or a busy machine would decide the placement probe."""

CHECKPOINTS = [found for found in parity_checkpoints() if found.path.exists()]


every_checkpoint = pytest.mark.parametrize("fixture", CHECKPOINTS, ids=lambda found: found.name)
two_checkpoints = pytest.mark.parametrize("fixture", CHECKPOINTS[:2], ids=lambda found: found.name)


@pytest.fixture(scope="module")
def mac(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualMac]:
    folder = tmp_path_factory.mktemp("async-parity")
    with pytest.MonkeyPatch.context() as patch, VirtualMac(folder / "mac", patch) as mac:
        patch.setenv("LAYA_APPLE_CACHE", str(folder / "cache"))
        yield mac


def golden_rows(fixture: ParityCheckpoint, checkpoint: Checkpoint) -> list[Row]:
    """Every golden row that some bucket takes, once."""
    longest = checkpoint.spec.ane_buckets[-1]
    rows = {
        Row(row.ids, row.markers, row.qtype): None
        for case in fixture.goldens().cases
        for row in case.rows
        if len(row.ids) <= longest and len(row.markers) <= 32
    }
    return list(rows)


def check(fixture: ParityCheckpoint, mac: VirtualMac, buckets: tuple[int, ...]) -> None:
    checkpoint = fixture.open()
    rows = [row for row in golden_rows(fixture, checkpoint) if len(row.ids) <= buckets[-1]]
    mac.profile({"gpu_ms": {"1": {"64": 1.0}}, "ane_ms": dict.fromkeys(map(str, buckets), DECLARED_ANE_MS)})
    for bucket in buckets:
        build_artifact(checkpoint, bucket, goldens=fixture.goldens_path, platform=mac.platform)
    backend = CoreMLBackend(checkpoint, buckets=buckets, strict=True, platform=mac.platform)
    path = AsyncPath.load(backend)
    mac.profile("instant")
    assert len(rows) >= 20
    assert set(backend.buckets_of(rows)) == set(buckets)
    for row, one, other in zip(rows, backend.forward(rows), path.forward(rows), strict=True):
        assert one.options.tobytes() == other.options.tobytes(), row
        assert one.action.tobytes() == other.action.tobytes(), row
    asked = [e["way"] for e in mac.events("predict") if e["units"] == "CPU_AND_NE"]
    assert asked[-2 * len(rows) :] == ["coremltools"] * len(rows) + ["async"] * len(rows)
    report = run_gate(
        path.forward,
        Tokenizer.from_dir(Path(fixture.path)),
        checkpoint.config,
        fixture.goldens(),
        dtype="float16",
        weights_sha256=checkpoint.spec.weights_sha256,
        max_length=buckets[-1],
    )
    assert report.passed, report.to_dict()


@two_checkpoints
@pytest.mark.laya_parity(model="fixtures", device="ane", dtype="float16")
@pytest.mark.filterwarnings("ignore:rl_agent_config.json holds temperatures:RuntimeWarning")
def test_the_smallest_bucket(fixture: ParityCheckpoint, mac: VirtualMac) -> None:
    check(fixture, mac, fixture.open().spec.ane_buckets[:1])


@every_checkpoint
@pytest.mark.laya_slow
@pytest.mark.laya_parity(model="fixtures", device="ane", dtype="float16")
@pytest.mark.filterwarnings("ignore:rl_agent_config.json holds temperatures:RuntimeWarning")
def test_every_bucket(fixture: ParityCheckpoint, mac: VirtualMac) -> None:
    check(fixture, mac, fixture.open().spec.ane_buckets)
