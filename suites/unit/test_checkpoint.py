"""Opening a checkpoint: every spelling of its configuration, and every way its files can be wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import AGENT, ENCODER, VARIANTS, write_checkpoint, write_json
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from laya_apple.checkpoint import AgentConfig, EncoderConfig, open_checkpoint
from laya_apple.errors import UnsupportedModelError

SPELLINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "every_second": {"global_attn_every_n_layers": 2, "num_hidden_layers": 5},
    "explicit_layers": {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2},
    "theta_keys": {"global_rope_theta": 5000.0, "local_rope_theta": 77.0},
    "by_kind": {
        "rope_parameters": {
            "full_attention": {"rope_theta": 9000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 300.0, "rope_type": "default"},
        },
        "global_rope_theta": 1.5,
        "local_rope_theta": 1.5,
    },
    "by_kind_one_only": {
        "rope_parameters": {"full_attention": {"rope_theta": 9000.0}},
        "local_rope_theta": 5.0,
    },
    "kind_without_theta": {"rope_parameters": {"full_attention": {}}},
    "odd_window": {"local_attention": 17},
    "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "norm_eps": 1e-6},
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_encoder_configuration_means_what_transformers_takes_it_to_mean(name: str) -> None:
    import transformers

    raw = {"vocab_size": 100, "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 4}
    raw.update(SPELLINGS[name])
    theirs = transformers.ModernBertConfig(**json.loads(json.dumps(raw)))
    ours = EncoderConfig.from_dict(raw)
    assert [f"{kind}_attention" for kind in ours.layer_kinds] == theirs.layer_types
    assert ours.full_rope_theta == theirs.rope_parameters["full_attention"]["rope_theta"]
    assert ours.sliding_rope_theta == theirs.rope_parameters["sliding_attention"]["rope_theta"]
    assert ours.window == theirs.sliding_window
    assert (ours.hidden_size, ours.heads, ours.layers) == (
        theirs.hidden_size,
        theirs.num_attention_heads,
        theirs.num_hidden_layers,
    )
    assert (ours.intermediate_size, ours.vocab_size, ours.norm_eps) == (
        theirs.intermediate_size,
        theirs.vocab_size,
        theirs.norm_eps,
    )
    assert (ours.attention_bias, ours.mlp_bias, ours.norm_bias) == (
        theirs.attention_bias,
        theirs.mlp_bias,
        theirs.norm_bias,
    )


def test_a_flat_rope_parameters_serves_both_kinds() -> None:
    config = EncoderConfig.from_dict(
        {**ENCODER, "rope_parameters": {"rope_theta": 1234.0, "rope_type": "default"}}
    )
    assert (config.rope_theta("full"), config.rope_theta("sliding")) == (1234.0, 1234.0)


def test_a_null_local_theta_means_the_global_one() -> None:
    config = EncoderConfig.from_dict({**ENCODER, "global_rope_theta": 99.0, "local_rope_theta": None})
    assert config.sliding_rope_theta == 99.0


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"model_type": "bert"}, "model_type is 'bert'; it must be \"modernbert\""),
        ({"hidden_activation": "gelu_new"}, "hidden_activation is 'gelu_new'; it must be \"gelu\" (exact)"),
        ({"hidden_size": 65}, "num_attention_heads is 2; it must split hidden_size 65 into even heads"),
        ({"hidden_size": "64"}, "hidden_size is '64'; it must be an integer of at least 1"),
        ({"hidden_size": True}, "hidden_size is True; it must be an integer of at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be an integer of at least 1"),
        ({"norm_eps": float("nan")}, "norm_eps is nan; it must be a positive number"),
        ({"local_rope_theta": -1}, "local_rope_theta is -1; it must be a positive number"),
        ({"mlp_bias": 1}, "mlp_bias is 1; it must be true or false"),
        (
            {"layer_types": ["full_attention"]},
            "layer_types is ['full_attention']; it must hold num_hidden_layers = 4 entries, each one of "
            "full_attention, sliding_attention",
        ),
        (
            {"layer_types": ["full_attention"] * 3 + ["linear_attention"]},
            "layer_types is ['full_attention', 'full_attention', 'full_attention', 'linear_attention']; it "
            "must hold num_hidden_layers = 4 entries, each one of full_attention, sliding_attention",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5.0}},
            "rope_parameters.rope_type is 'yarn'; it must be \"default\"",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 0}}},
            "rope_parameters.full_attention.rope_theta is 0; it must be a positive number",
        ),
        (
            {"rope_scaling": {"type": "linear"}},
            "rope_scaling is {'type': 'linear'}; it must be null: this runtime has no scaled rotary "
            "embedding",
        ),
    ],
)
def test_an_encoder_configuration_that_is_not_supported_is_refused_by_key(
    over: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        EncoderConfig.from_dict({**ENCODER, **over})
    assert str(caught.value) == f"encoder/config.json: {message}"


def test_the_agent_configuration_and_its_defaults() -> None:
    raw = {"max_len": 512, "act_costs": [1, 2, 3], "temperature": ["x"], "temperature_by_options": 7}
    assert AgentConfig.from_dict(raw) == AgentConfig(
        max_len=512,
        head_max_len=192,
        head_layers=2,
        n_actions=4,
        temperature=["x"],
        temperature_by_options=7,
    )


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (
            {"option_layout": "parallel"},
            "option_layout is 'parallel'; it must be \"sequential\", the only layout this runtime builds",
        ),
        ({"max_len": None}, "max_len is None; it must be an integer of at least 16"),
        ({"act_costs": 3}, "act_costs is 3; it must be a list, one cost an action"),
        ({"head_layers": -1}, "head_layers is -1; it must be an integer of at least 0"),
    ],
)
def test_an_agent_configuration_that_is_not_supported_is_refused_by_key(
    over: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        AgentConfig.from_dict({**AGENT, **over})
    assert str(caught.value) == f"rl_agent_config.json: {message}"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _read(kind: Any, raw: object) -> Any:
    try:
        return kind.from_dict(raw)
    except UnsupportedModelError as error:
        return str(error)


@given(st.dictionaries(st.sampled_from([*ENCODER, "layer_types", "rope_parameters"]), _json) | _json)
def test_no_encoder_configuration_breaks_the_reader(raw: object) -> None:
    outcome = _read(EncoderConfig, {**ENCODER, **raw} if isinstance(raw, dict) else raw)
    if isinstance(outcome, EncoderConfig):
        assert outcome.hidden_size == outcome.heads * outcome.head_dim
    else:
        assert outcome.startswith("encoder/config.json: ")


@given(st.dictionaries(st.sampled_from(list(AGENT)), _json) | _json)
def test_no_agent_configuration_breaks_the_reader(raw: object) -> None:
    outcome = _read(AgentConfig, {**AGENT, **raw} if isinstance(raw, dict) else raw)
    if isinstance(outcome, AgentConfig):
        assert outcome.n_actions >= 1
    else:
        assert outcome.startswith("rl_agent_config.json: ")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_local_checkpoint_opens(tmp_path: Path, variant: str) -> None:
    encoder, agent = VARIANTS[variant]
    folder = write_checkpoint(tmp_path / variant, encoder=encoder, agent=agent)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.path == folder
    assert checkpoint.spec.name == f"local:{variant}"
    tensors = checkpoint.tensors()
    stored = load_file(folder / "model.safetensors")
    assert tensors.keys() == stored.keys() - {"temperature"}
    for name, tensor in tensors.items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, stored[name])


def test_half_precision_weights_stay_half_and_bfloat16_is_widened_exactly(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "half", dtype="float16")
    assert {tensor.dtype for tensor in open_checkpoint(folder).tensors().values()} == {np.dtype(np.float16)}

    weights = folder / "model.safetensors"
    whole = {name: tensor.astype(np.float32) for name, tensor in load_file(weights).items()}
    _write_bfloat16(weights, whole)
    for name, tensor in open_checkpoint(folder).tensors().items():
        expected = (whole[name].view(np.uint32) & 0xFFFF0000).view(np.float32)
        np.testing.assert_array_equal(tensor, expected)


def _write_bfloat16(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = (np.ascontiguousarray(tensor).view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _change_weights(folder: Path, change: Any) -> Path:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    return path


def test_missing_tensors_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    path = _change_weights(folder, lambda t: (t.pop("scorer.3.bias"), t.pop("act_head.0.weight")))
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(folder)
    assert str(caught.value) == (
        f"{path}: 2 of 61 tensors are missing, first scorer.3.bias; the weights do not belong to these "
        "configuration files, so restore all of them from one checkpoint"
    )


def test_a_wrong_shape_names_both_shapes(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    write_json(folder / "rl_agent_config.json", {**AGENT, "act_costs": [1, 2, 3]})
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(folder)
    assert str(caught.value) == (
        f"{folder / 'model.safetensors'}: act_head.2.weight has shape [3, 256], the configuration asks for "
        "[4, 256]; restore weights and configuration from one checkpoint"
    )


def test_a_bias_that_the_configuration_switches_off_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    extra = {"encoder.layers.1.attn.Wo.bias": np.zeros(64, np.float32), "note": np.zeros(1, np.float32)}
    path = _change_weights(folder, lambda t: t.update(extra))
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(folder)
    assert str(caught.value) == (
        f"{path}: holds encoder.layers.1.attn.Wo.bias, which the configuration switches off; restore weights "
        "and configuration from one checkpoint"
    )


def test_another_number_format_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    path = _change_weights(
        folder, lambda t: t.update({"type_emb.weight": t["type_emb.weight"].astype(np.float64)})
    )
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(folder)
    assert str(caught.value) == f"{path}: type_emb.weight is stored as F64; use one of F32, F16, BF16"


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, struct.pack("<Q", 2**40) + b"{}"])
def test_weights_that_are_no_safetensors_name_the_file_and_the_mend(tmp_path: Path, content: bytes) -> None:
    folder = write_checkpoint(tmp_path / "c")
    path = folder / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(folder)
    assert str(caught.value).startswith(f"{path} cannot be read as safetensors (")
    assert str(caught.value).endswith("); restore it or download the checkpoint again")


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UnsupportedModelError, match="cannot be read as safetensors"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["rl_agent_config.json", "encoder/config.json"])
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_an_unreadable_configuration_names_the_file_and_the_mend(
    tmp_path: Path, name: str, content: bytes
) -> None:
    folder = write_checkpoint(tmp_path / "c")
    (folder / name).write_bytes(content)
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(folder)
    assert str(caught.value).startswith(f"{folder / name} cannot be read as JSON (")
    assert str(caught.value).endswith("); restore it or download the checkpoint again")


def test_a_configuration_that_is_no_object_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c")
    write_json(folder / "encoder" / "config.json", [])
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(folder)
    assert str(caught.value) == "encoder/config.json: must be a JSON object, not list"
