"""The GGUF metadata of a graph, and the limitations of llama.cpp's graphs.

The keys and the tensor names are llama.cpp's (gguf-py/gguf/constants.py); the assumptions of its graphs are in
src/models/NAME.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.decoder import Decoder, Weight
from edgespec.converters.experts import IN_ONNX, Experts
from edgespec.converters.gemma4 import Gemma4
from edgespec.converters.recurrence import Recurrence
from edgespec.converters.rope import Rope
from edgespec.errors import ConversionError

_ROLES = {
    "attn_post_norm": "post_attention_norm",
    "ffn_post_norm": "post_ffw_norm",
    "ffn_gate_up": "ffn_up",
    "linear_qkv": "attn_qkv",
    "linear_gate": "attn_gate",
    "linear_alpha": "ssm_alpha",
    "linear_beta": "ssm_beta",
    "linear_beta_alpha": "ssm_ba",
    "linear_conv": "ssm_conv1d",
    "linear_dt": "ssm_dt",
    "linear_a": "ssm_a",
    "linear_norm": "ssm_norm",
    "linear_output": "ssm_out",
    "ffn_pre_norm_2": "pre_ffw_norm_2",
    "ffn_post_norm_1": "post_ffw_norm_1",
    "ffn_post_norm_2": "post_ffw_norm_2",
    "ffn_gate_inp_scale": "ffn_gate_inp",
    "ffn_down_exps_scale": "ffn_down_exps",
}
#: Its names in single families.
_OWN_ROLES = {
    "qwen3next": {"ffn_norm": "post_attention_norm"},
    "qwen35": {"ffn_norm": "post_attention_norm"},
    "qwen35moe": {"ffn_norm": "post_attention_norm"},
    "gpt-oss": {"ffn_norm": "post_attention_norm"},
    "lfm2": {"output_norm": "token_embd_norm"},
    "lfm2moe": {"output_norm": "token_embd_norm"},
}
_FACTORS = {
    "llama",
    "granite",
    "gemma4",
    "gemma4-assistant",
}  # their graphs support a divisor for each rotation frequency
_DELTA_NETS = {"qwen3next", "qwen35", "qwen35moe"}
_TILED = {"qwen35", "qwen35moe"}  # which repeat the keys of all groups in turn, not each group's
_SQUARE_HYBRIDS = {"lfm2", "lfm2moe"}
_SQUARE = {"olmo2", "phi3", "starcoder2", "gpt2"}  # their graphs require heads * head_dim = hidden size


_GRANITES = {"granite", "granitehybrid"}


def architecture(graph: Decoder) -> str:
    """llama.cpp's name for the graph."""
    return "granite" if graph.family.gguf == "granitehybrid" and not graph.recurrent else graph.family.gguf


def name(weight: Weight, family: str) -> str:
    """llama.cpp's name for a tensor."""
    place = "" if weight.layer is None else f"blk.{weight.layer}."
    names = _ROLES | _OWN_ROLES.get(family, {})
    return f"{place}{names.get(weight.role, weight.role)}{weight.kind and '.'}{weight.kind}"


def arranged(weight: Weight, graph: Decoder) -> Weight:
    """The tensor with its rows and columns in llama.cpp's order."""
    state = graph.recurrence
    if state is None or graph.family.gguf not in _TILED or not weight.role.startswith("linear_"):
        return weight
    if state.groups == state.heads:
        return weight
    keys = state.channels - state.inner
    if weight.role in {"linear_qkv", "linear_conv"}:
        return replace(weight, rows=(range(keys), *state.tiled(keys, state.head)))
    if weight.role == "linear_gate":
        return replace(weight, rows=state.tiled(0, state.head))
    if weight.role == "linear_output":
        return replace(weight, kept=state.tiled(0, state.head))
    return weight if weight.role == "linear_norm" else replace(weight, rows=state.tiled(0, 1))


def tables(graph: Decoder) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors that are not weights: the divisors of rotation frequencies."""
    scaling, factors = graph.rope.scaling, graph.rope.factors()
    if scaling.kind == "longrope":
        long, short = (np.array(values, np.float32) for values in (scaling.long, scaling.short))
        return {"rope_factors_long.weight": long, "rope_factors_short.weight": short}
    return {} if factors is None else {"rope_freqs.weight": factors}


def check(checkpoint: Checkpoint, graph: Decoder) -> None:
    """ConversionError for a model that llama.cpp's graph of this family would compute differently."""
    family, step = architecture(graph), 4
    scale = (
        graph.hidden // graph.heads if graph.layers == {"gemma2": 46, "gemma3": 62}.get(family) else graph.head_dim
    ) ** -0.5
    for wrong, what in (
        (
            family in _SQUARE and graph.heads * graph.head_dim != graph.hidden,
            "heads that are not as wide as the stream",
        ),
        (family == "olmo2" and graph.tied, "a head that is tied to the embedding"),
        (
            family == "smollm3" and graph.turned != tuple((i + 1) % step != 0 for i in range(graph.layers)),
            "another choice of layers without rotation than each fourth",
        ),
        (family in {"gemma2", "gemma3"} and abs(graph.scales.attention - scale) > 1e-6, "this query_pre_attn_scalar"),
        (family == "gemma2" and not (graph.scales.attention_cap and graph.scales.logits_cap), "scores without a cap"),
        (family in {"gemma2", "gemma3"} and graph.tied is False, "a head of its own"),
        (
            family == "granitehybrid" and graph.recurrence and graph.recurrence.inner != 2 * graph.hidden,
            "states of another width than twice the stream",
        ),
        (
            family == "granitehybrid" and graph.recurrence and graph.recurrence.inner % graph.recurrence.groups,
            "groups that do not divide the states",
        ),
        (family == "granitehybrid" and graph.recurrent and any(graph.turned), "rotations beside states"),
        (family == "granite" and graph.experts, "experts without states"),
        (family in _SQUARE_HYBRIDS and graph.heads * graph.head_dim != graph.hidden, "heads not as wide as the stream"),
        (
            graph.gemma4 and not any(graph.windowed[: graph.layers]),
            "layers of which none sees a window",
        ),
        (graph.gemma4 and graph.gemma4.backbone == graph.hidden, "an assistant as wide as its target"),
        (family == "gpt-oss" and graph.rope.width != graph.head_dim, "a rotation of a part of a head"),
        (family == "gpt-oss" and graph.tied, "a head that is tied to the embedding"),
        (
            family in _DELTA_NETS and graph.recurrence and graph.recurrence.head != graph.recurrence.state,
            "keys and values of different widths",
        ),
        (family not in _FACTORS and graph.rope.factors() is not None, "the llama3 rope scaling"),
    ):
        if wrong:
            takes = graph.experts is None or graph.family.model_type in IN_ONNX
            way = "; convert to onnx" if takes else ", and onnx not these experts"
            raise ConversionError(f"{checkpoint.folder}: llama.cpp's {family} does not do {what}{way}")


def describe(writer: Any, graph: Decoder) -> None:
    """Write the graph's metadata."""
    writer.add_vocab_size(graph.vocabulary)
    writer.add_context_length(graph.context)
    writer.add_embedding_length(graph.hidden)
    writer.add_feed_forward_length(_ffn(graph))
    writer.add_block_count(graph.layers + graph.head)
    writer.add_head_count(graph.heads)
    writer.add_head_count_kv(_kv_heads(graph))
    writer.add_key_length(graph.gemma4.head_dim if graph.gemma4 else graph.head_dim)
    writer.add_value_length(graph.gemma4.head_dim if graph.gemma4 else graph.head_dim)
    if graph.experts is not None:
        _describe_experts(writer, graph.experts, architecture(graph))
    if graph.gemma4 is not None:
        _describe_gemma4(writer, graph, graph.gemma4)
    if graph.head:
        writer.add_nextn_predict_layers(1)
    if graph.recurrence is not None:
        _describe_recurrence(writer, graph, graph.recurrence)
    if graph.family.centred:
        writer.add_layer_norm_eps(graph.epsilon)
    else:
        writer.add_layer_norm_rms_eps(graph.epsilon)
    if any(graph.turned):
        describe_rope(writer, graph.rope)
        if graph.window:
            writer.add_rope_freq_base_swa(graph.local_rope.theta)
    elif graph.recurrent:
        writer.add_rope_dimension_count(graph.rope.width)
        writer.add_rope_scaling_finetuned(False)  # which llama.cpp takes for no rotation at all
    if graph.window or graph.family.gguf == "gemma2":  # which otherwise assumes one
        writer.add_sliding_window(graph.window or graph.context)
        writer.add_sliding_window_pattern(list(graph.windowed))
    _describe_scales(writer, graph)


def _describe_experts(writer: Any, experts: Experts, family: str) -> None:
    writer.add_expert_count(experts.count)
    writer.add_expert_used_count(experts.used)
    if experts.first:
        writer.add_leading_dense_block_count(experts.first)
    if family == "lfm2moe":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if family not in {"llama", "granitehybrid"}:  # where an expert is as wide as an MLP would be
        writer.add_expert_feed_forward_length(experts.ffn)
    if experts.shared:
        writer.add_expert_shared_feed_forward_length(experts.shared)


def _describe_gemma4(writer: Any, graph: Decoder, special: Gemma4) -> None:
    writer.add_key_length_swa(graph.head_dim)
    writer.add_value_length_swa(graph.head_dim)
    writer.add_rope_dimension_count_swa(graph.local_rope.width)
    writer.add_shared_kv_layers(special.shared)
    writer.add_embedding_length_per_layer_input(special.per_layer)
    if special.backbone:
        writer.add_embedding_length_out(special.backbone)
        writer.add_nextn_predict_layers(graph.layers)


def _ffn(graph: Decoder) -> int | list[int]:
    """As a list where the layers differ."""
    if graph.gemma4 is None or not graph.gemma4.double:
        return graph.ffn
    own = graph.layers - graph.gemma4.shared
    return [graph.ffn] * own + [2 * graph.ffn] * graph.gemma4.shared


def _kv_heads(graph: Decoder) -> int | list[int]:
    """As a list, with 0 for layers that keep a state, where llama.cpp tells those by it."""
    if graph.gemma4 is not None and graph.gemma4.kv_heads != graph.kv_heads:
        return [graph.kv_heads if windowed else graph.gemma4.kv_heads for windowed in graph.windowed]
    if not graph.recurrent or graph.family.gguf in _DELTA_NETS:
        return graph.kv_heads
    return [0 if recurrent else graph.kv_heads for recurrent in graph.recurrent]


def _describe_recurrence(writer: Any, graph: Decoder, state: Recurrence) -> None:
    if not state.heads:
        writer.add_shortconv_l_cache(state.kernel)
        return
    writer.add_ssm_conv_kernel(state.kernel)
    writer.add_ssm_state_size(state.state)
    writer.add_ssm_group_count(state.groups)
    writer.add_ssm_time_step_rank(state.heads)
    writer.add_ssm_inner_size(state.inner)
    if graph.family.gguf in _DELTA_NETS:
        writer.add_array(f"{writer.arch}.attention.recurrent_layers", [*graph.recurrent, *([False] * graph.head)])
        if interval := _interval(graph.recurrent):  # which is all that older versions of llama.cpp read
            writer.add_full_attention_interval(interval)
        if graph.family.gguf in _TILED:
            writer.add_rope_dimension_sections(graph.rope.sections)


def _interval(recurrent: Sequence[bool]) -> int:
    """n if each n-th layer, and no other, has attention; else 0."""
    step = recurrent.index(False) + 1
    return step if list(recurrent) == [(layer + 1) % step != 0 for layer in range(len(recurrent))] else 0


def describe_rope(writer: Any, rope: Rope) -> None:
    """Add a rotary embedding."""
    writer.add_rope_dimension_count(rope.width)
    writer.add_rope_freq_base(rope.theta)
    if rope.scaling.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.scaling.factor)
    if rope.scaling.kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope.scaling.factor)
        writer.add_rope_scaling_orig_ctx_len(rope.scaling.original_context)
        writer.add_rope_scaling_yarn_beta_slow(rope.scaling.low)
        writer.add_rope_scaling_yarn_beta_fast(rope.scaling.high)
    if rope.scaling.kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope.scaling.original_context)
        writer.add_rope_scaling_attn_factors(rope.scaling.magnitude)


def _describe_scales(writer: Any, graph: Decoder) -> None:
    scales, own = graph.scales, graph.family.own
    if "logits_scaling" in own:
        writer.add_embedding_scale(scales.embedding)
        writer.add_residual_scale(scales.residual)
        writer.add_attention_scale(scales.attention)
        writer.add_logit_scale(1 / scales.logits)
    if scales.attention_cap:
        writer.add_attn_logit_softcapping(scales.attention_cap)
    if scales.logits_cap:
        writer.add_final_logit_softcapping(scales.logits_cap)
