"""The checkpoints that goldens exist for: laya-mini anywhere, the random-weight ones in the source tree."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import laya_apple
from laya_apple.checkpoint import Checkpoint, open_checkpoint
from laya_apple.parity.goldens import Goldens, load_goldens

_DATA = Path(str(resources.files(laya_apple))) / "data"
_FIXTURES = Path(__file__).parents[2] / "fixtures"


@dataclass(frozen=True)
class ParityCheckpoint:
    """A checkpoint directory and its golden file."""

    name: str
    path: Path
    goldens_path: Path

    def open(self) -> Checkpoint:
        return open_checkpoint("laya-mini" if self.name == "laya-mini" else self.path)

    def goldens(self) -> Goldens:
        """Its goldens, which must be of these very weights."""
        return load_goldens(self.goldens_path, weights_sha256=self.open().spec.weights_sha256)


def parity_checkpoints() -> list[ParityCheckpoint]:
    """laya-mini first, then every checkpoint below ``fixtures/checkpoints`` where there is a source tree."""
    random_ones = sorted((_FIXTURES / "checkpoints").glob("*/model.safetensors"))
    return [
        ParityCheckpoint("laya-mini", _DATA / "laya_mini", _DATA / "goldens" / "laya-mini.json"),
        *(
            ParityCheckpoint(
                weights.parent.name, weights.parent, _FIXTURES / "goldens" / f"{weights.parent.name}.json"
            )
            for weights in random_ones
        ),
    ]
