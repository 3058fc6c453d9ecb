"""EAGLE-3 heads (arXiv 2503.01840) to GGUF files that llama-server loads as well.

Three makers write them: SafeAILab and SpecForge (`midlayer.*`), and vLLM's speculators (`layers.0.*`, and the sizes in
`transformer_layer_config`). Traps that the files hold:

    d2t         offsets: row i of the output matrix is the target's token i + d2t[i]; GGUF has the tokens
    rope_theta  10000 where config.json has none, whatever the target's is
    q, k        llama.cpp turns neighbouring numbers of a head, checkpoints the two halves
    layers      inputs of layers, as llama.cpp counts; where none are listed 2, L / 2 and L - 3 of the target's L
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.converters import ConversionProgress, Note, native, quantize
from edgespec.converters.atomic_file import atomic_file, check_file
from edgespec.converters.checkpoint import Checkpoint, Json
from edgespec.converters.config import Config
from edgespec.converters.head_target import HeadTarget
from edgespec.converters.rope import Rope
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.converters.thread_pool import OrderedThreadPool
from edgespec.errors import ConversionError, OptionError

DEFAULT = "q8_0"  # quantization
_KINDS = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q6_k": 14, "q5_0": 6, "q4_0": 2}  # types of enum ggml_type
_F32, _I64, _BLOCK = 0, 27, 32
_ALIGNMENT = 32
_NAMES = ("midlayer.", "model.layers.0.", "layers.0.")  # the beginnings of the names of the layer's tensors
_LAYER = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ENDS = {
    "fc.weight": "fc.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "input_norm.weight": "enc.output_norm.weight",
}
_UNUSED = ("t2d",)
#: Keys of config.json that change what is computed in a way that llama.cpp's graph does not have, and their harmless
#: values beside null.
_PLAIN: Mapping[str, Any] = {
    "fc_norm": False,
    "norm_output": False,
    "attention_bias": False,
    "mlp_bias": False,
    "parallel_drafting": False,
    "use_sliding_window": False,
}
_COUNT = 3  # layers of the target


def is_head(config: Json) -> bool:
    """Whether config.json describes an EAGLE-3 head."""
    names = config.get("architectures")
    named = isinstance(names, list) and any("eagle3" in str(name).lower() for name in names)
    return named or config.get("speculators_model_type") == "eagle3" or "draft_vocab_size" in config


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What config.json says of a head."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    rows: int
    context: int
    epsilon: float
    rope: Rope
    layers: tuple[int, ...]
    norm_before_residual: bool
    norm_before_fc: bool


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor to write; `order` is that of the rows of a head."""

    name: str
    shape: tuple[int, ...]
    kind: int
    source: StoredTensor | npt.NDArray[Any]
    order: npt.NDArray[np.int64] | None = None

    @property
    def nbytes(self) -> int:
        if self.kind == _I64:
            return 8 * prod(self.shape)
        return prod(self.shape[:-1]) * native.row_bytes(self.kind, self.shape[-1])


def check(quantization: str) -> None:
    """OptionError unless a head can be written in this quantization."""
    if quantization not in _KINDS:
        raise OptionError(f"a head is not written in the quantization {quantization!r}; known: {', '.join(_KINDS)}")


def write(
    source: Path, target: HeadTarget, output: Path, quantization: str = "", *, rows: int | None = None,
    force: bool = False,
) -> Iterator[ConversionProgress | Note]:  # fmt: skip
    """Convert the head in the folder `source`. See `edgespec.converters.convert_head`."""
    if rows is not None:
        raise OptionError("the tokens of an EAGLE-3 head are its own; leave --head-rows out")
    check(quantization or DEFAULT)
    check_file(output, ".gguf", force)
    return _written(Checkpoint.open(source), target, output, quantization or DEFAULT, force)


def _written(
    checkpoint: Checkpoint, target: HeadTarget, output: Path, quantization: str, force: bool
) -> Iterator[ConversionProgress | Note]:
    sizes = _read(checkpoint, target)
    tensors = list(_tensors(checkpoint, sizes, target, quantization))
    total = sum(prod(tensor.shape) for tensor in tensors)
    yield ConversionProgress("the tokenizer", 0, total)
    start = _header(sizes, target, tensors)
    complete = {"token_embd.weight", "output.weight"} <= {tensor.name for tensor in tensors}
    size = len(start) + sum(tensor.nbytes + -tensor.nbytes % _ALIGNMENT for tensor in tensors)
    with atomic_file(output, size, force) as file:
        file.write(start)
        file.truncate(size)
        file.flush()
        native.check_loads(Path(file.name), runs=complete)
        yield from _write(file, tensors, total)
    if not complete:
        yield Note("the head takes its embeddings or its output matrix from its target, which must be a GGUF file")
    if sizes.context < (1 << 13):
        yield Note(f"the head was trained on texts of {sizes.context} tokens; drafts may be poorer beyond")


def _write(file: Any, tensors: list[_Tensor], total: int) -> Iterator[ConversionProgress]:
    done = 0
    with OrderedThreadPool() as pool:
        for tensor in tensors:
            yield ConversionProgress(tensor.name, done, total)
            if isinstance(tensor.source, StoredTensor):
                for _, data in quantize.packed([tensor.source], tensor.kind, tensor.order, pool):
                    file.write(data)
            else:
                file.write(tensor.source.tobytes())
            file.write(bytes(-tensor.nbytes % _ALIGNMENT))
            done += prod(tensor.shape)
    yield ConversionProgress("done", done, total)


# --- config.json


def _read(checkpoint: Checkpoint, target: HeadTarget) -> _Sizes:
    values, path = checkpoint.config, checkpoint.folder / "config.json"
    if isinstance(nested := values.get("transformer_layer_config"), dict):
        values = {**nested, **{key: value for key, value in values.items() if value is not None}}
    for key, harmless in _PLAIN.items():
        if values.get(key) not in (None, harmless):
            raise ConversionError(
                f"{path}: {key} is {values[key]!r:.40}, a kind of EAGLE head that is not supported; use another head"
            )
    if values.get("num_hidden_layers", 1) != 1:
        raise ConversionError(
            f"{path}: num_hidden_layers is {values['num_hidden_layers']!r:.40}; only heads of one layer are "
            "supported, so use another head"
        )
    config = Config(replace(checkpoint, config={**values, "architectures": ["LlamaForCausalLM"], "sliding_window": 0}))
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    head_dim = config.count("head_dim", max(1, hidden // heads))
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads or head_dim % 2:
        raise ConversionError(
            f"{path}: {heads} heads of {head_dim} over {kv_heads} key-value heads cannot be; fetch the head again"
        )
    width = config.count("target_hidden_size", target.width)
    if width != target.width:
        raise ConversionError(
            f"{path}: the head is for a model {width} wide, and {target.path} is {target.width} wide; give the model "
            "that it was trained for (--for)"
        )
    return _Sizes(
        hidden=hidden,
        ffn=config.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rows=config.count("draft_vocab_size", target.tokens),
        context=config.count("max_position_embeddings", 2048),
        epsilon=config.number("rms_norm_eps", 1e-6),
        rope=config.rope(head_dim),
        layers=_layers(values, path, target),
        norm_before_residual=bool(values.get("norm_before_residual", False)),
        norm_before_fc=bool(values.get("norm_before_fc", False)),
    )


def _layers(values: Json, path: Path, target: HeadTarget) -> tuple[int, ...]:
    """The layers of the target whose inputs the head reads."""
    key, inner = "eagle_aux_hidden_state_layer_ids", values.get("eagle_config")
    found = values.get(key, inner.get(key) if isinstance(inner, dict) else None)
    if found is None:
        found = [2, target.layers // 2, target.layers - 3]
    whole = isinstance(found, list) and all(type(layer) is int and 0 <= layer < target.layers for layer in found)
    if not whole or len(found) != _COUNT:
        raise ConversionError(
            f"{path}: the head reads the layers {found!r:.60}; expected {_COUNT} of the {target.layers} layers of "
            f"{target.path}, from 0; give the model that the head was trained for (--for)"
        )
    return tuple(found)


# --- tensors


def _tensors(checkpoint: Checkpoint, sizes: _Sizes, target: HeadTarget, quantization: str) -> Iterator[_Tensor]:
    stored = {_renamed(name): tensor for name, tensor in checkpoint.tensors.items() if name not in _UNUSED}
    shapes = _shapes(sizes, target)
    offsets = stored.pop("d2t", None)
    if surplus := sorted(set(stored) - set(shapes)):
        raise ConversionError(
            f"{checkpoint.folder} has the tensor {stored[surplus[0]].name}, which EAGLE-3 heads of the supported kind "
            "do not have; convert a head that llama.cpp supports"
        )
    if "token_embd.weight" not in stored:
        _borrow_embedding(stored, sizes, target)
    optional = {"token_embd.weight", "output.weight"}
    for name, shape in shapes.items():
        if (tensor := stored.get(name)) is None:
            if name in optional:
                continue
            raise ConversionError(f"{checkpoint.folder} lacks the tensor for {name} of an EAGLE-3 head; fetch it again")
        if tensor.shape != shape:
            raise ConversionError(
                f"{checkpoint.folder}: {tensor.name} is {list(tensor.shape)} and not {list(shape)}: fetch it "
                f"again, or give the model that it was trained for instead of {target.path} (--for)"
            )
        turned = name.endswith(("attn_q.weight", "attn_k.weight"))
        order = np.arange(sizes.head_dim).reshape(2, -1).T.ravel() if turned else None
        yield _Tensor(name, shape, _kind(quantization, shape), tensor, order)
    if (factors := sizes.rope.factors()) is not None:
        yield _Tensor("rope_freqs.weight", factors.shape, _F32, factors)
    if (tokens := _target_tokens(checkpoint, offsets, sizes, target)) is not None:
        yield _Tensor("d2t", tokens.shape, _I64, tokens)


def _renamed(name: str) -> str:
    """The GGUF name of a tensor, or its own."""
    for start in _NAMES:
        part = name.removeprefix(start).removesuffix(".weight")
        if name.startswith(start) and part in _LAYER:
            return f"blk.0.{_LAYER[part]}.weight"
    plain = name.removeprefix("model.")
    return _ENDS.get(plain, plain)


def _shapes(sizes: _Sizes, target: HeadTarget) -> dict[str, tuple[int, ...]]:
    hidden, kv = sizes.hidden, sizes.kv_heads * sizes.head_dim
    wide, both = sizes.heads * sizes.head_dim, 2 * sizes.hidden
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (target.tokens, hidden)}
    found |= {"fc.weight": (hidden, _COUNT * target.width)}
    if sizes.norm_before_fc:
        found["enc.output_norm.weight"] = (_COUNT * target.width,)
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_norm_2": (hidden,),
        "attn_q": (wide, both),
        "attn_k": (kv, both),
        "attn_v": (kv, both),
        "attn_output": (hidden, wide),
        "ffn_norm": (hidden,),
        "ffn_gate": (sizes.ffn, hidden),
        "ffn_up": (sizes.ffn, hidden),
        "ffn_down": (hidden, sizes.ffn),
    }
    found |= {f"blk.0.{name}.weight": shape for name, shape in block.items()}
    return found | {"output_norm.weight": (hidden,), "output.weight": (sizes.rows, hidden)}


def _borrow_embedding(stored: dict[str, StoredTensor], sizes: _Sizes, target: HeadTarget) -> None:
    """Take the embedding of a target that is a checkpoint; that of a GGUF file is used at run time."""
    if target.width != sizes.hidden:
        raise ConversionError(
            f"the head lacks embed_tokens.weight, and that of {target.path} is {target.width} wide and not "
            f"{sizes.hidden}; fetch the whole head"
        )
    if target.checkpoint is not None:
        stored["token_embd.weight"] = target.weights.embedding()


def _target_tokens(
    checkpoint: Checkpoint, offsets: StoredTensor | None, sizes: _Sizes, target: HeadTarget
) -> npt.NDArray[np.int64] | None:
    """The target's token for each row of the output matrix; None where they are the same."""
    if offsets is None:
        if sizes.rows == target.tokens:
            return None
        raise ConversionError(
            f"{checkpoint.folder} lacks d2t, which its {sizes.rows} rows need for the {target.tokens} tokens of "
            f"{target.path}; fetch the whole head"
        )
    dtype = {"I64": "<i8", "I32": "<i4"}.get(offsets.dtype)
    if dtype is None or prod(offsets.shape) != sizes.rows:
        raise ConversionError(
            f"{checkpoint.folder}: d2t is {offsets.dtype} {list(offsets.shape)}; expected {sizes.rows} whole "
            "numbers; fetch the head again"
        )
    with offsets.path.open("rb") as file:
        values = np.fromfile(file, dtype, sizes.rows, offset=offsets.offset)
    tokens: npt.NDArray[np.int64] = values.astype(np.int64) + np.arange(sizes.rows)
    if not 0 <= int(tokens.min()) <= int(tokens.max()) < target.tokens or len(np.unique(tokens)) < len(tokens):
        raise ConversionError(
            f"{checkpoint.folder}: d2t names tokens twice, or beyond the {target.tokens} of {target.path}; "
            "give the model that the head was trained for (--for)"
        )
    return tokens


def _kind(quantization: str, shape: tuple[int, ...]) -> int:
    """The ggml type of a tensor: vectors are not quantized, nor are rows that are no whole number of blocks."""
    if len(shape) < 2:
        return _F32
    kind = _KINDS[quantization]
    blocks = 256 if quantization == "q6_k" else _BLOCK
    return kind if shape[-1] % blocks == 0 else _KINDS["f16"]


def _header(sizes: _Sizes, target: HeadTarget, tensors: list[_Tensor]) -> bytes:
    """Everything before the tensors' data."""
    import gguf  # noqa: PLC0415

    from edgespec.converters import gguf as gguf_writer  # noqa: PLC0415
    from edgespec.converters import gguf_graph  # noqa: PLC0415

    writer = gguf.GGUFWriter(None, "eagle3")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(f"EAGLE-3 head for {target.path.stem}")
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(sizes.ffn)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_layer_norm_rms_eps(sizes.epsilon)
    writer.add_vocab_size(target.tokens)
    gguf_graph.describe_rope(writer, sizes.rope)
    writer.add_array("eagle3.target_layers", list(sizes.layers))
    writer.add_uint32("eagle3.target_hidden_size", target.width)
    writer.add_bool("eagle3.norm_before_residual", sizes.norm_before_residual)
    writer.add_bool("eagle3.norm_before_fc", sizes.norm_before_fc)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    target.tokenizer(writer)
    return gguf_writer.header_of(writer, tensors)
