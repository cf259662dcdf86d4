"""Model ids: the pinned table, local directories, and what is refused."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import write_checkpoint

from laya_apple.checkpoint import open_checkpoint
from laya_apple.errors import UnsupportedModelError
from laya_apple.hashing import file_sha256, tree_hash
from laya_apple.registry import MODELS, resolve

PINNED = {
    "laya": (
        "convaiinnovations/laya",
        "c5d78730f3493e4fe16d61507ef4b78eef7318cf",
        "891102d372688fc2a094dac56a384bc537b87c63f21f9f3dac0be2b7cbc8d86c",
        512,
        (64, 96, 128),
    ),
    "laya-multilingual": (
        "convaiinnovations/laya-multilingual",
        "052592a15d198d9ad47da779604259b10b47b7aa",
        "9d628fd971b700382ac6f65920a86f149777b2e748e0c955fb3b19695aa8f204",
        1024,
        (64, 96, 128, 256),
    ),
    "laya-typed-decisions": (
        "convaiinnovations/laya-typed-decisions",
        "f9ab0b228f0fc0f14d873dbc99038f135c2da1b2",
        "4fa56de72383a9d3efa9cfa78955733c81b9fc8067a587ca4beb82c78107a24e",
        1024,
        (64, 96, 128),
    ),
}


@pytest.mark.parametrize("name", PINNED)
def test_a_name_and_its_repository_are_the_same_pinned_model(name: str) -> None:
    repo, revision, sha256, max_len, buckets = PINNED[name]
    spec = resolve(name)
    assert resolve(repo) == spec
    assert (spec.name, spec.repo, spec.revision, spec.weights_sha256) == (name, repo, revision, sha256)
    assert (spec.max_len, spec.ane_buckets, spec.auto_ane_buckets) == (max_len, buckets, (64, 96, 128))
    assert not spec.embedded
    assert spec.path is None


def test_the_embedded_model_lies_in_the_package() -> None:
    import laya_apple

    spec = resolve("laya-mini")
    assert spec.embedded
    assert spec.repo == ""
    assert spec.path == Path(laya_apple.__file__).parent / "data" / "laya_mini"
    assert spec.ane_buckets == spec.auto_ane_buckets == (64, 96, 128)
    assert spec.max_len == 1024


def test_the_embedded_files_are_the_pinned_ones() -> None:
    checkpoint = open_checkpoint("laya-mini")
    assert checkpoint.spec == resolve("laya-mini")
    assert checkpoint.config.max_len == checkpoint.spec.max_len
    assert (checkpoint.path / "model.safetensors").stat().st_size < 1_000_000


def test_there_are_four_models_and_every_auto_range_is_a_prefix_of_the_offered_buckets() -> None:
    assert [spec.name for spec in MODELS] == [*PINNED, "laya-mini"]
    for spec in MODELS:
        assert spec.ane_buckets[: len(spec.auto_ane_buckets)] == spec.auto_ane_buckets


@pytest.mark.parametrize("wanted", ["laya-large", "convaiinnovations/other", "", "/no/such/directory"])
def test_anything_else_is_refused_and_the_supported_models_are_named(wanted: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        resolve(wanted)
    assert str(caught.value) == (
        f"{wanted!r} is not a model this runtime knows; use one of laya (convaiinnovations/laya), "
        "laya-multilingual (convaiinnovations/laya-multilingual), laya-typed-decisions "
        "(convaiinnovations/laya-typed-decisions), laya-mini, or the path of a checkpoint directory"
    )


def test_a_directory_is_named_and_revised_by_its_files(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "mine")
    spec = resolve(folder)
    assert spec == resolve(str(folder))
    assert spec.name == "local:mine"
    assert spec.repo == ""
    assert spec.revision == tree_hash(folder)[:40]
    assert spec.weights_sha256 == file_sha256(folder / "model.safetensors")
    assert (spec.max_len, spec.ane_buckets, spec.path) == (256, (64, 96, 128), folder)


def test_a_stray_file_leaves_the_revision_alone_and_a_changed_one_does_not(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "mine")
    before = resolve(folder).revision
    (folder / "notes.txt").write_text("a note")
    assert resolve(folder).revision == before
    config = folder / "encoder" / "config.json"
    config.write_text(config.read_text() + "\n")
    assert resolve(folder).revision != before


def test_a_registered_name_wins_over_a_directory_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "laya")
    monkeypatch.chdir(tmp_path)
    assert resolve("laya").repo == "convaiinnovations/laya"
    assert resolve("./laya").name == "local:laya"
    assert resolve(Path("laya")).name == "local:laya"


def test_a_directory_without_a_checkpoints_files_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "mine")
    (folder / "tokenizer" / "tokenizer_config.json").unlink()
    with pytest.raises(UnsupportedModelError) as caught:
        resolve(folder)
    assert str(caught.value) == (
        f"{folder} is not a checkpoint directory: tokenizer/tokenizer_config.json is missing; it must hold "
        "model.safetensors, rl_agent_config.json, encoder/config.json, tokenizer/tokenizer.json, "
        "tokenizer/tokenizer_config.json"
    )


def test_tree_hash_is_over_relative_paths_and_digests_in_path_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_bytes(b"one")
    (tmp_path / "b.txt").write_bytes(b"two")
    (tmp_path / "a").write_bytes(b"")
    expected = hashlib.sha256()
    for name, content in (("a", b""), ("b/x", b"one"), ("b.txt", b"two")):
        expected.update(name.encode() + hashlib.sha256(content).digest())
    assert tree_hash(tmp_path) == expected.hexdigest()


def test_resolving_loads_no_numpy_and_no_hub_library() -> None:
    code = (
        "import sys; from laya_apple.registry import resolve; resolve('laya'); "
        "print([n for n in ('numpy', 'mlx', 'huggingface_hub', 'safetensors') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("model_id", [None, 5, b"laya"])
def test_what_is_no_name_and_no_path_is_no_model(model_id: Any) -> None:
    with pytest.raises(
        UnsupportedModelError, match=f"^{re.escape(repr(model_id))} is not a model; use one of "
    ):
        resolve(model_id)
