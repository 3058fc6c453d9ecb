"""Make a GGUF model with a recurrent state, of random weights and a real size: what its passes cost is real.

    python -m benchmarks.hybrid_model OUTPUT.gguf [--architecture qwen35] [--layers 24] [--width 1024] [--head]

`qwen35` has the form of Qwen3.5 0.8B: a gated delta net in three layers of four, of whose state llama.cpp keeps
snapshots. `granitehybrid` has that of Granite 4 H: Mamba 2 in nine layers of ten, without snapshots. Matrices are Q8_0.
The tokenizer is the demo target's, so that the demo draft drafts for it; `benchmarks.categories` replays answers, for a
model of random weights says nothing that could be guessed. With `--head` a `qwen35` has a head for multi-token
prediction, which is never right: what it costs is real.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize

from edgespec.models import demo

_HEAD, _HEADS, _GROUPS = 128, 8, 2  # of attention: numbers of a head, heads, heads of keys and values
_STATE, _KERNEL = 128, 4
Fields = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


def _blocks(layer: int, shapes: Shapes) -> Shapes:
    return {f"blk.{layer}.{name}": shape for name, shape in shapes.items()}


def _attention(width: int, *, gated: bool) -> Shapes:
    heads = _HEADS * _HEAD
    shapes: Shapes = {
        "attn_q.weight": ((2 if gated else 1) * heads, width),
        "attn_k.weight": (_GROUPS * _HEAD, width),
        "attn_v.weight": (_GROUPS * _HEAD, width),
        "attn_output.weight": (width, heads),
    }
    return shapes | ({"attn_q_norm.weight": (_HEAD,), "attn_k_norm.weight": (_HEAD,)} if gated else {})


def _mlp(width: int, inner: int) -> Shapes:
    return {"ffn_gate.weight": (inner, width), "ffn_up.weight": (inner, width), "ffn_down.weight": (width, inner)}


def _qwen35(layers: int, width: int) -> tuple[Fields, Shapes]:
    heads, keys, inner = 2 * width // _STATE, 16, 2 * width
    channels = inner + 2 * keys * _STATE
    fields: Fields = {
        "ssm.conv_kernel": _KERNEL,
        "ssm.state_size": _STATE,
        "ssm.group_count": keys,
        "ssm.time_step_rank": heads,
        "ssm.inner_size": inner,
        "full_attention_interval": 4,
        "rope.dimension_sections": [11, 11, 10, 0],
        "rope.dimension_count": 64,
        "attention.head_count_kv": _GROUPS,
    }
    shapes: Shapes = {}
    for layer in range(layers):
        own = {"attn_norm.weight": (width,), "post_attention_norm.weight": (width,), **_mlp(width, 5 * width // 2)}
        if layer % 4 == 3:
            own |= _attention(width, gated=True)
        else:
            own |= {
                "attn_qkv.weight": (channels, width),
                "attn_gate.weight": (inner, width),
                "ssm_conv1d.weight": (channels, _KERNEL),
                "ssm_alpha.weight": (heads, width),
                "ssm_beta.weight": (heads, width),
                "ssm_norm.weight": (_STATE,),
                "ssm_out.weight": (width, inner),
                "ssm_dt.bias": (heads,),
                "ssm_a": (heads,),
            }
        shapes |= _blocks(layer, own)
    return fields, shapes


def _head(layers: int, width: int) -> Shapes:
    """The block of a head behind the last of `layers` blocks of `qwen35`."""
    own: Shapes = {
        "attn_norm.weight": (width,),
        "post_attention_norm.weight": (width,),
        **_mlp(width, 5 * width // 2),
        **_attention(width, gated=True),
        "nextn.eh_proj.weight": (width, 2 * width),
        "nextn.enorm.weight": (width,),
        "nextn.hnorm.weight": (width,),
        "nextn.shared_head_norm.weight": (width,),
    }
    return _blocks(layers, own)


def _granite(layers: int, width: int) -> tuple[Fields, Shapes]:
    inner, heads = 2 * width, 2 * width // 64
    channels = inner + 2 * _STATE
    attention = [layer % 10 == 5 for layer in range(layers)]
    fields: Fields = {
        "ssm.conv_kernel": _KERNEL,
        "ssm.state_size": _STATE,
        "ssm.group_count": 1,
        "ssm.time_step_rank": heads,
        "ssm.inner_size": inner,
        "attention.head_count_kv": [_GROUPS * each for each in attention],
        "rope.dimension_count": _HEAD,
        "rope.scaling.finetuned": False,
    }
    shapes: Shapes = {}
    for layer in range(layers):
        own = {"attn_norm.weight": (width,), "ffn_norm.weight": (width,), **_mlp(width, 5 * width // 2)}
        if attention[layer]:
            own |= _attention(width, gated=False)
        else:
            own |= {
                "ssm_in.weight": (inner + channels + heads, width),
                "ssm_conv1d.weight": (channels, _KERNEL),
                "ssm_conv1d.bias": (channels,),
                "ssm_norm.weight": (1, inner),
                "ssm_out.weight": (width, inner),
                "ssm_dt.bias": (heads,),
                "ssm_a": (heads, 1),
                "ssm_d": (heads, 1),
            }
        shapes |= _blocks(layer, own)
    return fields, shapes


_FORMS = {"qwen35": _qwen35, "granitehybrid": _granite}


def write(path: Path, architecture: str, layers: int, width: int, *, head: bool = False) -> int:
    """A model of random weights at `path`; returns its number of parameters."""
    fields, shapes = _FORMS[architecture](layers, width)
    if head:
        shapes |= _head(layers, width)
        fields["nextn_predict_layers"] = 1
    common: Fields = {
        "context_length": 8192,
        "embedding_length": width,
        "block_count": layers + head,
        "feed_forward_length": 5 * width // 2,
        "attention.head_count": _HEADS,
        "attention.key_length": _HEAD,
        "attention.value_length": _HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_key_value("general.name", f"random {architecture}", gguf.GGUFValueType.STRING)
    for key, value in {**common, **fields}.items():
        kind, item = _typed(value)
        writer.add_key_value(f"{architecture}.{key}", value, kind, item)
    tokens = _add_tokenizer(writer)
    shapes |= {"token_embd.weight": (tokens, width), "output_norm.weight": (width,)}
    for name, values, kind in _weights(shapes):
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sum(int(np.prod(shape)) for shape in shapes.values())


def _typed(value: Any) -> tuple[gguf.GGUFValueType, gguf.GGUFValueType | None]:
    kinds = gguf.GGUFValueType
    if isinstance(value, list):
        return kinds.ARRAY, kinds.INT32
    return {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32}[type(value)], None


def _add_tokenizer(writer: gguf.GGUFWriter) -> int:
    """Copy the demo target's tokenizer; returns the number of its tokens."""
    tokens = 0
    for key, field in gguf.GGUFReader(demo().target).fields.items():
        if key.startswith("tokenizer."):
            kind, *inner = field.types
            value = field.contents()
            writer.add_key_value(key, value, kind, inner[-1] if inner else None)
            tokens = len(value) if key == "tokenizer.ggml.tokens" else tokens
    return tokens


def _weights(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, npt.NDArray[Any], Any]]:
    kinds = gguf.GGMLQuantizationType
    for name, shape in shapes.items():
        draw = np.random.default_rng(zlib.crc32(name.encode()))
        if name.endswith("ssm_a"):
            values = -np.exp(
                draw.uniform(
                    -1,
                    1,
                    shape,
                )
            )
        elif "norm" in name:
            values = np.ones(shape)
        else:
            values = draw.standard_normal(shape, np.float32) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
        values = values.astype(np.float32)
        matrix = len(shape) == 2 and shape[-1] % 32 == 0 and "norm" not in name
        yield name, quantize(values, kinds.Q8_0) if matrix else values, kinds.Q8_0 if matrix else kinds.F32


@click.command()
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--architecture", type=click.Choice(list(_FORMS)), default="qwen35", show_default=True)
@click.option("--layers", default=24, show_default=True)
@click.option("--width", default=1024, show_default=True)
@click.option("--head", is_flag=True, help="With a head for multi-token prediction, of qwen35 only")
def main(output: Path, architecture: str, layers: int, width: int, head: bool) -> None:
    """Write a model to OUTPUT."""
    if head and architecture != "qwen35":
        raise click.UsageError(f"--head needs --architecture qwen35, not {architecture}")
    parameters = write(output, architecture, layers, width, head=head)
    click.echo(f"{output}: {parameters / 1e6:.0f}M parameters, {output.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
