"""The graph ``bc1s-masked``: one fixed length, batch 1, layout [1, C, 1, L], FP16 throughout.

Built with coremltools' MIL Builder straight from the checkpoint's tensors. Every Linear is a 1x1 convolution,
LayerNorm runs over the channels, attention goes head by head with the scores laid out [1, key, 1, query].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from laya_apple.checkpoint import Checkpoint

GRAPH_NAME = "bc1s-masked"
MAX_OPTIONS = 32
MASKED = -1e4
"""What the additive masks hold where a key is hidden; exact in FP16."""
INPUT_NAMES = ("embeddings", "full_mask", "local_mask", "type_vectors", "marker_map")
OUTPUT_NAMES = ("logits", "cls")
HEAD_EPS = 1e-5
"""LayerNorm epsilon of the decision layers and the scorer (PyTorch's default)."""

LayerNormSpelling = Literal["decomposed", "op"]
Float32 = NDArray[np.float32]
Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class GraphShape:
    """All that fixes the graph apart from the weights."""

    length: int
    hidden: int
    heads: int
    layer_kinds: tuple[str, ...]
    """``full`` or ``sliding``, one an encoder layer."""
    thetas: Mapping[str, float]
    """RoPE base of each kind."""
    norm_eps: float
    head_layers: int
    decision_heads: int
    layer_norm: LayerNormSpelling = "decomposed"

    @classmethod
    def of(
        cls, checkpoint: Checkpoint, length: int, layer_norm: LayerNormSpelling = "decomposed"
    ) -> GraphShape:
        """The shape of ``checkpoint``'s network at ``length`` tokens."""
        encoder = checkpoint.encoder
        return cls(
            length=length,
            hidden=encoder.hidden_size,
            heads=encoder.heads,
            layer_kinds=encoder.layer_kinds,
            thetas={kind: encoder.rope_theta(kind) for kind in encoder.layer_kinds},
            norm_eps=encoder.norm_eps,
            head_layers=checkpoint.config.head_layers,
            decision_heads=encoder.decision_heads,
            layer_norm=layer_norm,
        )

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape, in the order of the program's inputs."""
        length, hidden = self.length, self.hidden
        return {
            "embeddings": (1, hidden, 1, length),
            "full_mask": (1, length, 1, length),
            "local_mask": (1, length, 1, length),
            "type_vectors": (1, hidden, 1, 1),
            "marker_map": (1, length, 1, MAX_OPTIONS),
        }

    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape, in the order of the program's outputs."""
        return {"logits": (1, 1, 1, MAX_OPTIONS), "cls": (1, self.hidden, 1, 1)}


@dataclass(frozen=True)
class Graph:
    """A built program and what the layout check needs to evaluate it at FP32."""

    shape: GraphShape
    program: Any
    """coremltools' MIL ``Program``."""
    sources: Mapping[str, Callable[[], Float32]]
    """Constant's name -> the FP32 values it was rounded from."""
    norm_inputs: Mapping[str, str]
    """LayerNorm's label -> name of the value it normalises."""


def build_graph(shape: GraphShape, tensors: Tensors) -> Graph:
    """Build the program for ``shape`` from ``tensors`` (PyTorch names and layouts, any float dtype).

    Nothing is rounded twice: scales are folded into the weights at FP32, then stored as FP16. Raises KeyError
    for a missing tensor; ``open_checkpoint`` has checked names and shapes before.
    """
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    network = _Network(mb, shape, tensors)

    @mb.program(
        input_specs=[mb.TensorSpec(shape=s, dtype=types.fp16) for s in shape.input_shapes().values()],
        opset_version=ct.target.macOS15,
    )
    def program(embeddings, full_mask, local_mask, type_vectors, marker_map):  # type: ignore[no-untyped-def]
        return network.body(embeddings, full_mask, local_mask, type_vectors, marker_map)

    return Graph(shape, program, network.sources, network.norm_inputs)


def _identifier(name: str) -> str:
    """A name that Core ML's program text accepts: letters, digits and underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


@dataclass
class _Network:
    """Emits the operations. ``Var`` is coremltools' symbolic value, so it is Any here."""

    mb: Any
    shape: GraphShape
    tensors: Tensors
    sources: dict[str, Callable[[], Float32]] = field(default_factory=dict)
    norm_inputs: dict[str, str] = field(default_factory=dict)

    def body(self, embeddings: Any, full: Any, local: Any, type_vectors: Any, marker_map: Any) -> Any:
        """The whole network; returns (logits, cls)."""
        mb, shape = self.mb, self.shape
        masks = {"full": full, "sliding": local}
        ropes = {kind: self._rope(kind) for kind in dict.fromkeys(shape.layer_kinds)}
        x = self._norm(embeddings, "encoder.embeddings.norm", shape.norm_eps)
        for index, kind in enumerate(shape.layer_kinds):
            x = self._encoder_layer(x, f"encoder.layers.{index}", masks[kind], ropes[kind])
        x = self._norm(x, "encoder.final_norm", shape.norm_eps)
        x = mb.add(x=x, y=type_vectors, name="typed")
        for index in range(shape.head_layers):
            x = self._decision_layer(x, f"head.layers.{index}", full)
        cls = mb.slice_by_index(x=x, begin=[0, 0, 0, 0], end=[1, shape.hidden, 1, 1], name="cls")
        options = mb.einsum(values=[x, marker_map], equation="nchw,nwhu->nchu", name="options")
        options = self._norm(options, "scorer.0", HEAD_EPS)
        options = mb.gelu(x=self._linear(options, "scorer.1"), mode="EXACT", name="scorer_2")
        return self._linear(options, "scorer.3", name="logits"), cls

    def _encoder_layer(self, x: Any, prefix: str, mask: Any, rope: tuple[Any, Any]) -> Any:
        mb, hidden, heads = self.mb, self.shape.hidden, self.shape.heads
        at = _identifier(prefix)
        scale = (hidden // heads) ** -0.5
        # Layer 0 has no attn_norm: it would normalise the embedding norm's output again.
        y = x
        if f"{prefix}.attn_norm.weight" in self.tensors:
            y = self._norm(x, f"{prefix}.attn_norm", self.shape.norm_eps)
        # Queries and keys share one rotation, so they share one convolution; the scale rides on the queries.
        qk = self._linear(
            y, f"{prefix}.attn.Wqkv", rows=(0, 2 * hidden), scaled=(hidden, scale), name=f"{at}_qk"
        )
        v = self._linear(y, f"{prefix}.attn.Wqkv", rows=(2 * hidden, 3 * hidden), name=f"{at}_v")
        q, k = mb.split(x=self._rotate(qk, rope, at), num_splits=2, axis=1, name=f"{at}_q_k")
        attended = self._attention(q, k, v, mask, heads, at)
        x = mb.add(x=x, y=self._linear(attended, f"{prefix}.attn.Wo"), name=f"{at}_attended")
        y = self._norm(x, f"{prefix}.mlp_norm", self.shape.norm_eps)
        value, gate = mb.split(
            x=self._linear(y, f"{prefix}.mlp.Wi"), num_splits=2, axis=1, name=f"{at}_value_gate"
        )
        value = mb.gelu(x=value, mode="EXACT", name=f"{at}_gelu")
        y = mb.mul(x=value, y=gate, name=f"{at}_gated")
        return mb.add(x=x, y=self._linear(y, f"{prefix}.mlp.Wo"), name=f"{at}_out")

    def _decision_layer(self, x: Any, prefix: str, mask: Any) -> Any:
        mb, hidden, heads = self.mb, self.shape.hidden, self.shape.decision_heads
        at = _identifier(prefix)
        scale = (hidden // heads) ** -0.5
        y = self._norm(x, f"{prefix}.norm1", HEAD_EPS)
        qkv = self._linear(
            y,
            f"{prefix}.self_attn.in_proj",
            tensor=f"{prefix}.self_attn.in_proj_",
            scaled=(hidden, scale),
        )
        q, k, v = mb.split(x=qkv, num_splits=3, axis=1, name=f"{at}_q_k_v")
        attended = self._attention(q, k, v, mask, heads, at)
        y = self._linear(attended, f"{prefix}.self_attn.out_proj")
        x = mb.add(x=x, y=y, name=f"{at}_attended")
        y = self._norm(x, f"{prefix}.norm2", HEAD_EPS)
        y = mb.relu(x=self._linear(y, f"{prefix}.linear1"), name=f"{at}_relu")
        return mb.add(x=x, y=self._linear(y, f"{prefix}.linear2"), name=f"{at}_out")

    def _attention(self, q: Any, k: Any, v: Any, mask: Any, heads: int, at: str) -> Any:
        """Masked attention of [1, C, 1, L] queries, keys and values; the queries come scaled."""
        mb = self.mb
        # einsum takes nchw,nwhu->nchu only, so the keys are transposed, once a layer.
        kt = mb.transpose(x=k, perm=[0, 3, 2, 1], name=f"{at}_kt")
        split = zip(
            self._heads(q, heads, 1, f"{at}_q"),
            self._heads(kt, heads, 3, f"{at}_k"),
            self._heads(v, heads, 1, f"{at}_vs"),
            strict=True,
        )
        outputs = []
        for index, (qh, kh, vh) in enumerate(split):
            head = f"{at}_head{index}"
            scores = mb.einsum(values=[kh, qh], equation="nchw,nwhu->nchu", name=f"{head}_scores")
            scores = mb.add(x=scores, y=mask, name=f"{head}_masked")
            scores = mb.softmax(x=scores, axis=1, name=f"{head}_softmax")
            outputs.append(mb.einsum(values=[vh, scores], equation="nchw,nwhu->nchu", name=f"{head}_out"))
        if heads == 1:
            return outputs[0]
        return mb.concat(values=outputs, axis=1, name=f"{at}_heads")

    def _heads(self, x: Any, heads: int, axis: int, name: str) -> tuple[Any, ...]:
        if heads == 1:  # a split into one part is an operation that does nothing
            return (x,)
        return tuple(self.mb.split(x=x, num_splits=heads, axis=axis, name=name))

    def _rope(self, kind: str) -> tuple[Any, Any]:
        """Constants [1, 1, head_dim / 2, L]: cosine and sine of each position's angles."""
        shape = self.shape
        half = shape.hidden // shape.heads // 2
        frequencies = shape.thetas[kind] ** -(np.arange(half) / half)
        table = np.outer(frequencies, np.arange(shape.length)).reshape(1, 1, half, shape.length)
        return (
            self._const(f"rope_{kind}_cos", lambda: np.cos(table).astype(np.float32)),
            self._const(f"rope_{kind}_sin", lambda: np.sin(table).astype(np.float32)),
        )

    def _rotate(self, qk: Any, rope: tuple[Any, Any], at: str) -> Any:
        """Rotate [1, 2C, 1, L] head by head: the first half of a head's channels against the second."""
        mb, shape = self.mb, self.shape
        channels = 2 * shape.hidden
        x = mb.reshape(
            x=qk,
            shape=[1, 2 * shape.heads, shape.hidden // shape.heads, shape.length],
            name=f"{at}_qk_heads",
        )
        a, b = mb.split(x=x, num_splits=2, axis=2, name=f"{at}_qk_halves")
        cos, sin = rope
        first = mb.sub(
            x=mb.mul(x=a, y=cos, name=f"{at}_a_cos"),
            y=mb.mul(x=b, y=sin, name=f"{at}_b_sin"),
            name=f"{at}_rot_a",
        )
        second = mb.add(
            x=mb.mul(x=b, y=cos, name=f"{at}_b_cos"),
            y=mb.mul(x=a, y=sin, name=f"{at}_a_sin"),
            name=f"{at}_rot_b",
        )
        x = mb.concat(values=[first, second], axis=2, name=f"{at}_rot")
        return mb.reshape(x=x, shape=[1, channels, 1, shape.length], name=f"{at}_qk_rot")

    def _norm(self, x: Any, prefix: str, eps: float) -> Any:
        """LayerNorm over the channels in the chosen spelling; beta only where the checkpoint has it."""
        mb, hidden = self.mb, self.shape.hidden
        at = _identifier(prefix)
        self.norm_inputs[prefix] = x.name
        has_beta = f"{prefix}.bias" in self.tensors
        # The epsilon must be given in x's dtype.
        epsilon = np.float16(eps)
        if self.shape.layer_norm == "op":
            beta = {"beta": self._tensor(f"{prefix}.bias", (hidden,))} if has_beta else {}
            gamma = self._tensor(f"{prefix}.weight", (hidden,))
            return mb.layer_norm(x=x, axes=[1], gamma=gamma, epsilon=epsilon, name=f"{at}_norm", **beta)
        mean = mb.reduce_mean(x=x, axes=[1], keep_dims=True, name=f"{at}_mean")
        centred = mb.sub(x=x, y=mean, name=f"{at}_centred")
        square = mb.mul(x=centred, y=centred, name=f"{at}_square")
        variance = mb.reduce_mean(x=square, axes=[1], keep_dims=True, name=f"{at}_variance")
        inverse = mb.rsqrt(x=variance, epsilon=epsilon, name=f"{at}_rsqrt")
        y = mb.mul(x=centred, y=inverse, name=f"{at}_unit")
        y = mb.mul(x=y, y=self._tensor(f"{prefix}.weight", (1, hidden, 1, 1)), name=f"{at}_scaled")
        if not has_beta:
            return y
        return mb.add(x=y, y=self._tensor(f"{prefix}.bias", (1, hidden, 1, 1)), name=f"{at}_shifted")

    def _linear(
        self,
        x: Any,
        prefix: str,
        *,
        tensor: str | None = None,
        rows: tuple[int, int] | None = None,
        scaled: tuple[int, float] | None = None,
        name: str | None = None,
    ) -> Any:
        """A 1x1 convolution with the Linear ``prefix``.

        ``rows`` picks output channels [start, stop); ``scaled`` multiplies the first n of them.
        """
        stem = f"{prefix}." if tensor is None else tensor
        name = name or _identifier(prefix)
        weight = self.tensors[f"{stem}weight"]
        start, stop = rows or (0, weight.shape[0])
        shape = (stop - start, weight.shape[1], 1, 1)
        arguments = {"weight": self._tensor(f"{stem}weight", shape, rows, scaled)}
        if f"{stem}bias" in self.tensors:
            arguments["bias"] = self._tensor(f"{stem}bias", (stop - start,), rows, scaled)
        return self.mb.conv(x=x, name=name, **arguments)

    def _tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: tuple[int, int] | None = None,
        scaled: tuple[int, float] | None = None,
    ) -> Any:
        """A constant made from a checkpoint tensor; its FP32 values stay at hand for the layout check."""

        def source() -> Float32:
            values = self.tensors[name]
            if rows is not None:
                values = values[rows[0] : rows[1]]
            values = values.astype(np.float32)
            if scaled is not None:
                values[: scaled[0]] *= np.float32(scaled[1])
            return values.reshape(shape)

        suffix = "" if rows is None else f"_{rows[0]}_{rows[1]}"
        return self._const(name + suffix, source)

    def _const(self, name: str, source: Callable[[], Float32]) -> Any:
        var = self.mb.const(val=source().astype(np.float16), name=_identifier(f"const_{name}"))
        self.sources[var.name] = source
        return var
