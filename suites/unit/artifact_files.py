"""Tiny checkpoints with goldens, and artifacts built from them on the virtual Mac."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import WORDS, write_checkpoint

from laya_apple.artifacts.build import BuildResult, build_artifact
from laya_apple.artifacts.locations import Locations, build_command
from laya_apple.artifacts.manifest import Manifest
from laya_apple.artifacts.store import load_verified
from laya_apple.backends.host import HostNetwork
from laya_apple.checkpoint import Checkpoint, open_checkpoint
from laya_apple.parity.goldens import Goldens, Provenance, case_from_reference, write_goldens
from laya_apple.prompt.sequence import prepare
from laya_apple.prompt.tokenizer import Tokenizer
from pytest_laya.virtual_mac.control import VirtualMac

TWO_LAYERS = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
ONE_HEAD = {"head_layers": 1}
STEADY = {"gpu_ms": {"1": {"64": 1.0}}, "ane_ms": {"64": 12.0, "96": 12.0, "128": 12.0}}
"""12 ms against 30 ms in the probe: a busy host fails it only when all five predictions are 12 ms late."""
SMALL = {"temperature": [1.5, 1.5, 1.5], "temperature_by_options": {}}


@dataclass(frozen=True)
class Built:
    """A checkpoint and the cache that holds its artifact."""

    checkpoint: Checkpoint
    cache: Path
    result: BuildResult


@dataclass(frozen=True)
class Registered:
    """An artifact of length 64 in a cache of the test's own."""

    mac: VirtualMac
    checkpoint: Checkpoint
    locations: Locations

    @property
    def directory(self) -> Path:
        return self.locations.artifact(self.checkpoint.spec, 64)

    @property
    def model(self) -> Path:
        return self.locations.model(self.checkpoint.spec, 64)

    @property
    def manifest_path(self) -> Path:
        return self.directory / "manifest.json"

    @property
    def mend(self) -> str:
        return build_command(self.checkpoint.spec, 64)

    def load(self, **options: Any) -> tuple[Any, Manifest]:
        return load_verified(self.checkpoint.spec, 64, platform=self.mac.platform, **options)

    def edit(self, keys: tuple[str | int, ...], value: Any) -> None:
        """Set one value of the manifest, or with ``REMOVED`` take the key away."""
        data = read_json(self.manifest_path)
        inner = data
        for key in keys[:-1]:
            inner = inner[key]
        if value is REMOVED:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = value
        self.manifest_path.write_text(json.dumps(data), encoding="utf-8")

    def quarantined(self) -> list[Path]:
        return sorted(self.locations.quarantine.glob("*"))


REMOVED = object()


def _text(start: int, count: int) -> str:
    return " ".join(WORDS[(start + 7 * i) % len(WORDS)] for i in range(count))


def _requests() -> dict[str, tuple[Any, dict[Any, Any]]]:
    choice = {"type": "choice", "instructions": _text(1, 6), "criteria": {"a": _text(2, 3), "b": _text(9, 2)}}
    score = {"type": "score", "instructions": _text(4, 4), "criteria": [_text(i, 2) for i in range(4)]}
    noul = {"type": "noul", "instructions": _text(8, 5)}
    return {
        "choice": (_text(3, 12), {"q": choice}),
        "score": (_text(5, 20), {"q": score}),
        "noul": (_text(6, 4), {"q": noul}),
        "long": (_text(0, 60), {"q": choice}),
    }


def write_goldens_of(checkpoint: Checkpoint, path: Path) -> Path:
    """Goldens from the NumPy float32 network: for tests of the store, not of parity with upstream."""
    tokenizer = Tokenizer.from_dir(checkpoint.path)
    network = HostNetwork(checkpoint)
    cases = []
    for name, (context, questions) in _requests().items():
        prepared = prepare(tokenizer, checkpoint.config, context, questions)
        reply = _reply(checkpoint, prepared, network, questions)
        cases.append(case_from_reference(name, context, questions, reply))
    provenance = Provenance(
        checkpoint=checkpoint.spec.name,
        weights_sha256=checkpoint.spec.weights_sha256,
        packages=dict.fromkeys(("laya", "torch", "transformers", "tokenizers"), "none: NumPy network"),
        command="pytest (HostNetwork, not upstream)",
        created_utc="2026-01-01T00:00:00Z",
    )
    write_goldens(path, Goldens(provenance, tuple(cases)))
    return path


def _reply(checkpoint: Checkpoint, prepared: Any, network: HostNetwork, questions: Mapping[Any, Any]) -> Any:
    from laya_apple.prompt.answers import Calibration, format_answers

    calibration = Calibration.from_config(checkpoint.config)
    outputs = network.forward(prepared.rows)
    return {
        "temperature": list(checkpoint.config.temperature),  # type: ignore[call-overload]
        "temperature_by_options": dict(checkpoint.config.temperature_by_options or {}),  # type: ignore[call-overload]
        "rows": [
            {
                "ids": list(row.ids),
                "markers": list(row.markers),
                "qtype": row.qtype,
                "options": [float(x) for x in output.options],
                "action": [float(x) for x in output.action],
            }
            for row, output in zip(prepared.rows, outputs, strict=True)
        ],
        "answers": format_answers(prepared.questions, outputs, calibration),
        "usage": {"truncated": prepared.truncated, "input_tokens": prepared.input_tokens},
    }


def tiny_checkpoint(folder: Path, *, seed: int = 0, encoder: Mapping[str, Any] | None = None) -> Checkpoint:
    """A checkpoint of hidden 32, two layers, one decision head, with its goldens beside it."""
    write_checkpoint(folder, encoder=TWO_LAYERS | dict(encoder or {}), agent=ONE_HEAD | SMALL, seed=seed)
    checkpoint = open_checkpoint(folder)
    write_goldens_of(checkpoint, folder / "goldens.json")
    return checkpoint


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """One artifact of length 64, built once; tests copy it."""
    folder = tmp_path_factory.mktemp("built")
    checkpoint = tiny_checkpoint(folder / "tiny")
    with pytest.MonkeyPatch.context() as patch, VirtualMac(folder / "mac", patch) as mac:
        patch.setenv("LAYA_APPLE_CACHE", str(folder / "cache"))
        mac.profile(STEADY)
        result = build_artifact(checkpoint, 64, platform=mac.platform)
    return Built(checkpoint, folder / "cache", result)


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualMac]:
    """A virtual Mac with an empty cache."""
    monkeypatch.setenv("LAYA_APPLE_CACHE", str(tmp_path / "cache"))
    with VirtualMac(tmp_path / "mac", monkeypatch) as mac:
        mac.profile(STEADY)
        yield mac


@pytest.fixture
def registered(built: Built, mac: VirtualMac, tmp_path: Path) -> Registered:
    """The built artifact in this test's own cache, never loaded."""
    shutil.copytree(built.cache, tmp_path / "cache", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "cache" / "virtual-mac" / "verified", ignore_errors=True)
    return Registered(mac, built.checkpoint, Locations.of(mac.platform))
