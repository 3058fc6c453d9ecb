"""Heads of EAGLE-1 and 2 as an ONNX file that any engine's target drafts with (Li et al. 2024, arXiv 2401.15077).

The head continues the final states of its target. Of the pair of a token and the state before it, joined in this
order, one matrix makes a row; one Llama layer without a norm at its beginning makes of the rows so far the next state,
of which the target's own output matrix makes logits, without a norm. EAGLE-2 (arXiv 2406.16858) has the same heads.

    inputs   input_ids int64 [1, n]; hidden float32 [1, n, width], the state before each token, of the target or of the
             head; positions float32 [n]; seqlens_k [1] (total - 1), total_sequence_length [1];
             past.0.key and .value float32 [1, kv_heads, capacity, head_dim]
    outputs  tokens int64 [1, 8], logs float32 [1, 8], as those of Medusa heads, and state float32 [1, width], all
             after the last token; present.0.key and .value

A checkpoint has no output matrix and mostly the target's embeddings; what is missing is taken from the target. Traps:

    rope_theta  10000 where config.json has none, whatever the target's is
    fc.bias     is there unless config.json has "bias": false
    positions   that of a pair is that of the state, so the first token has none
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnx import TensorProto

from edgespec.converters import ConversionProgress, head_file
from edgespec.converters.atomic_file import check_file
from edgespec.converters.checkpoint import Checkpoint, Json
from edgespec.converters.config import Config
from edgespec.converters.head_file import DEFAULT, PADDING, HeadNodes
from edgespec.converters.head_target import HeadTarget
from edgespec.converters.onnx_nodes import MS, Scheme
from edgespec.converters.rope import Rope
from edgespec.converters.stored_tensor import DTYPES, StoredTensor
from edgespec.errors import ConversionError

_EMBEDDING, _LAYER = "embed_tokens.weight", "layers.0."
_BUFFER = "rotary_emb.inv_freq"  # the end of the name of a constant that older files have
_DIVISOR = 16  # of a head's numbers, for ONNX Runtime's attention


@dataclass(frozen=True, slots=True)
class EagleHead:
    """A checkpoint, its tensors checked against its config.json, and what it takes from its target.

    Args:
        tensors: without embeddings.
        embedding, output: matrices with a row for each token; the second is the target's.
        rows: tokens that it can guess.
    """

    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rope: Rope
    tensors: Mapping[str, StoredTensor]
    embedding: StoredTensor
    output: StoredTensor
    rows: int


def read(source: Path, target: HeadTarget) -> EagleHead:
    """The head in the folder `source`.

    ConversionError if it is incomplete, for another model, or of a kind that is not supported.
    """
    checkpoint = Checkpoint.open(source)
    values, path = checkpoint.config, source / "config.json"
    if values.get("num_hidden_layers", 1) != 1:
        raise ConversionError(
            f"{path}: num_hidden_layers is {values['num_hidden_layers']!r:.40}; an EAGLE head of one layer is supported"
        )
    if scaling := target.weights.scaling():
        raise ConversionError(f"EAGLE heads are not converted for models with {scaling}, as {target.name}; try EAGLE-3")
    # The layer is one of Llama's, whatever the family of the target.
    plain = {**values, "architectures": ["LlamaForCausalLM"], "sliding_window": 0}
    config = Config(replace(checkpoint, config=plain))
    heads, width = config.count("num_attention_heads"), config.count("hidden_size")
    kv_heads, head_dim = config.count("num_key_value_heads", heads), config.count("head_dim", max(1, width // heads))
    if width != target.width:
        raise ConversionError(
            f"{source} reads states of {width} numbers, those of {target.name} have {target.width}: it was made for "
            "another model; give that one with --for"
        )
    if heads % kv_heads or head_dim % _DIVISOR:
        raise ConversionError(
            f"{path}: {heads} heads of {head_dim} over {kv_heads} key-value heads are not supported; expected a "
            f"divisor of the heads and a multiple of {_DIVISOR}"
        )
    ffn, queries, keys = config.count("intermediate_size"), heads * head_dim, kv_heads * head_dim
    tensors = _checked(checkpoint, _shapes(values, (width, ffn, queries, keys)))
    embedding, output = _ends(source, tensors.pop(_EMBEDDING, None), target)
    rows = min(output.shape[0], target.tokens)
    rope, epsilon = config.rope(head_dim), config.number("rms_norm_eps", 1e-6)
    return EagleHead(heads, kv_heads, head_dim, epsilon, rope, tensors, embedding, output, rows)


def write(
    source: Path, target: HeadTarget, output: Path, quantization: str = "", *, rows: int | None = None,
    force: bool = False,
) -> Iterator[ConversionProgress]:  # fmt: skip
    """Convert the head in the folder `source` for `target` into the ONNX file `output`.

    Args:
        rows: the tokens that it guesses: control tokens first, then those with the lowest numbers, which are the most
            common ones. None for all. It reads all.

    Raises:
        OptionError: an unknown quantization, or a number of rows that cannot be.
        ConversionError: the head cannot be read, is for another model, or the output cannot be written.
    """
    quantization = quantization or DEFAULT
    scheme = head_file.scheme(quantization)
    check_file(output, ".onnx", force)
    head = read(source, target)
    own = range(head.rows)
    kept = head_file.kept(own, target, rows)
    made = _Graph(head, scheme, kept, head_file.chosen(own, kept))
    props = head_file.metadata("eagle", target, sum(map(len, kept)), quantization)
    cache = {"edgespec.head.kv_heads": str(head.kv_heads), "edgespec.head.head_dim": str(head.head_dim)}
    return head_file.write(made, {**props, "edgespec.head.heads": "1", **cache}, output, force=force)


class _Graph(HeadNodes):
    """The graph of a head."""

    def __init__(self, head: EagleHead, scheme: Scheme, kept: Sequence[range], tokens: Sequence[int]) -> None:
        super().__init__(scheme)
        self._head, self._width = head, head.embedding.shape[1]
        self._input("input_ids", TensorProto.INT64, (1, "n"))
        self._input("hidden", TensorProto.FLOAT, (1, "n", self._width))
        self._input("positions", TensorProto.FLOAT, ("n",))
        for name in ("seqlens_k", "total_sequence_length"):
            self._input(name, TensorProto.INT32, (1,))
        embedded = self._embedded(self._reserved((head.embedding,), scheme.ends), self._width)
        joined = self._node("Concat", (embedded, "hidden"), "joined", {"axis": -1})
        stream = self._linear("fc", ("fc",), joined)
        stream = self._node("Add", (stream, self._attention(stream)), "attended.sum")
        norm = self._vector("norm", head.tensors[f"{_LAYER}post_attention_layernorm.weight"])
        attributes = {"axis": -1, "epsilon": head.epsilon}
        normed = self._node("SimplifiedLayerNormalization", (stream, norm), "normed", attributes)
        states = self._node("Add", (stream, self._mlp(normed)), "states")
        self._node("Gather", (states, self._constant("newest", np.int64(-1))), "state", {"axis": 1})
        self._output("state", TensorProto.FLOAT, (1, self._width))
        matrix = self._reserved(tuple(head.output.rows(part) for part in kept), scheme.ends)
        self._best(self._multiplied("output", matrix, "state", "logits"), tokens, 1)

    def _attention(self, x: str) -> str:
        head = self._head
        biased = self._linear("attn.qkv", [f"{_LAYER}self_attn.{part}_proj" for part in "qkv"], x)
        sizes = [count * head.head_dim for count in (head.heads, head.kv_heads, head.kv_heads)]
        parts = [f"attn.{part}" for part in "qkv"]
        self._node("Split", (biased, self._constant("sizes", np.array(sizes, np.int64))), parts, {"axis": -1})
        past, present = ([f"{when}.0.{kind}" for kind in ("key", "value")] for when in ("past", "present"))
        for name in past:
            self._input(name, TensorProto.FLOAT, (1, head.kv_heads, "capacity", head.head_dim))
        for name in present:
            self._output(name, TensorProto.FLOAT, (1, head.kv_heads, "capacity", head.head_dim))
        queries, keys = (self._turned(part) for part in parts[:2])
        attended = self._node(
            "GroupQueryAttention",
            [queries, keys, parts[2], *past, "seqlens_k", "total_sequence_length"],
            ["attn", *present],
            {"num_heads": head.heads, "kv_num_heads": head.kv_heads, "do_rotary": 0},
            MS,
        )
        return self._linear("attn.out", (f"{_LAYER}self_attn.o_proj",), attended)

    def _turned(self, x: str) -> str:
        """x turned by its positions. Angles are computed for each pass, for any length of text."""
        if "rope.cos" not in self._made:
            frequencies = self._constant("frequencies", self._head.rope.frequencies().astype(np.float32)[None])
            positions = self._reshaped("positions", (-1, 1), "rope.positions")
            angles = self._node("Mul", (positions, frequencies), "rope.angles")
            for function in ("Cos", "Sin"):
                self._node(function, (angles,), f"rope.{function.lower()}")
        first = self._constant("first", np.array([0], np.int64))
        return self._node("RotaryEmbedding", (x, first, "rope.cos", "rope.sin"), f"{x}.turned", {}, MS)

    def _mlp(self, x: str) -> str:
        both = self._linear("mlp.in", [f"{_LAYER}mlp.{part}_proj" for part in ("gate", "up")], x)
        self._node("Split", (both,), ("mlp.gate", "mlp.up"), {"axis": -1, "num_outputs": 2})
        inner = self._node("Mul", (self._silu("mlp.gate", "mlp.active"), "mlp.up"), "mlp.product")
        return self._linear("mlp.out", (f"{_LAYER}mlp.down_proj",), inner)

    def _linear(self, name: str, sources: Sequence[str], x: str) -> str:
        """x times the concatenated matrices, plus their biases if they have some."""
        stored = tuple(self._head.tensors[f"{source}.weight"] for source in sources)
        product = self._multiplied(name, self._reserved(stored, self._scheme.matrices), x, f"{name}.linear")
        biases = [self._head.tensors[f"{each}.bias"] for each in sources if f"{each}.bias" in self._head.tensors]
        return self._node("Add", (product, self._vector(f"{name}.bias", *biases)), f"{name}.sum") if biases else product

    def _reshaped(self, x: str, shape: Sequence[int], output: str) -> str:
        return self._node("Reshape", (x, self._constant(f"{output}.shape", np.array(shape, np.int64))), output)


def _shapes(values: Json, sizes: tuple[int, int, int, int]) -> dict[str, tuple[int, ...]]:
    """Those of the tensors that a head must have, besides its embeddings."""
    width, ffn, queries, keys = sizes
    attention: dict[str, tuple[int, ...]] = {
        "q_proj.weight": (queries, width),
        "k_proj.weight": (keys, width),
        "v_proj.weight": (keys, width),
        "o_proj.weight": (width, queries),
    }
    if values.get("qkv_bias"):
        attention |= {"q_proj.bias": (queries,), "k_proj.bias": (keys,), "v_proj.bias": (keys,)}
    mlp = {"gate_proj.weight": (ffn, width), "up_proj.weight": (ffn, width), "down_proj.weight": (width, ffn)}
    return {
        "fc.weight": (width, 2 * width),
        **({} if values.get("bias") is False else {"fc.bias": (width,)}),
        **{f"{_LAYER}self_attn.{name}": shape for name, shape in attention.items()},
        **{f"{_LAYER}mlp.{name}": shape for name, shape in mlp.items()},
        f"{_LAYER}post_attention_layernorm.weight": (width,),
    }


def _checked(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, StoredTensor]:
    """The tensors, which are those of `shapes` and perhaps embeddings. Raises ConversionError."""
    folder, stored = checkpoint.folder, checkpoint.tensors
    found = {name: tensor for name, tensor in stored.items() if not name.endswith(_BUFFER)}
    for name, shape in shapes.items():
        if (tensor := found.get(name)) is None:
            hint = 'set "bias": false in config.json if it was made so, or ' if name == "fc.bias" else ""
            raise ConversionError(f"{folder} lacks the tensor {name} of an EAGLE head; {hint}fetch it again")
        if tensor.shape != shape:
            raise ConversionError(
                f"{folder}: {name} is {list(tensor.shape)}, but config.json asks for {list(shape)}; fetch both again"
            )
    if surplus := sorted({*found} - {*shapes} - {_EMBEDDING}):
        raise ConversionError(
            f"{folder} has the tensor {surplus[0]}, which heads of EAGLE-1 and 2 do not have; other kinds of EAGLE "
            "heads are not supported, but for EAGLE-3"
        )
    for tensor in found.values():
        if tensor.dtype not in DTYPES:
            raise ConversionError(f"{tensor.path}: {tensor.name} is {tensor.dtype}; F32, F16 and BF16 are supported")
    return found


def _ends(source: Path, own: StoredTensor | None, target: HeadTarget) -> tuple[StoredTensor, StoredTensor]:
    """The embeddings, the head's own if it has them for all tokens, and the target's output matrix."""
    output = target.weights.output()
    if own is None:
        return target.weights.embedding(), output
    if len(own.shape) != 2 or own.shape[1] != target.width or abs(own.shape[0] - target.tokens) > PADDING:
        raise ConversionError(
            f"{source} has embeddings {list(own.shape)}, and {target.name} {[target.tokens, target.width]}: it was "
            "made for another model; give that one with --for"
        )
    return (own if own.shape[0] >= target.tokens else target.weights.embedding()), output
