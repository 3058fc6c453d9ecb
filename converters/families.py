"""The model families: an entry for each with its differences from Llama.

`block` gives the tensors of a layer: role, and its name in the checkpoint. A role is a word of our own, not a name of
either side: a writer spells it its way. What a family's graph does is read off its roles: without "attn_norm" nothing
is normalized before attention, with "attn_post_norm" what attention says is, with "attn_qkv" one matrix holds three.

Sources: modeling_NAME.py of each in Hugging Face transformers, src/models/NAME.cpp in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_Names = Mapping[str, str]

_ATTENTION = frozenset({"attn_q", "attn_k", "attn_v", "attn_output"})
_QKV = frozenset({"attn_q", "attn_k", "attn_v"})
_MLP = frozenset({"ffn_gate", "ffn_up", "ffn_down"})

_LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ENDS = {"token_embd": "embed_tokens", "output_norm": "norm"}
# One tensor per expert, whatever the checkpoint's layout: see experts.py.
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_NORMED_HEADS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_BIASES = {"attention_bias": _ATTENTION, "mlp_bias": _MLP}
_GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}


def _but(names: _Names, *without: str, **others: str) -> _Names:
    return {role: name for role, name in names.items() if role not in without} | others


_SPARSE = _but(_LLAMA, *_MLP, **_EXPERTS)
_SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}

# Qwen3.5: three layers of a gated delta net to one of attention, whose output is gated; norms multiply by 1 + w. The
# head for drafting is a block of its own, over an embedding and the hidden state before it.
_DELTA_NET = {
    "linear_qkv": "linear_attn.in_proj_qkv",
    "linear_gate": "linear_attn.in_proj_z",
    "linear_alpha": "linear_attn.in_proj_a",
    "linear_beta": "linear_attn.in_proj_b",
    "linear_conv": "linear_attn.conv1d",
    "linear_dt": "linear_attn.dt_bias",
    "linear_a": "linear_attn.A_log",
    "linear_norm": "linear_attn.norm",
    "linear_output": "linear_attn.out_proj",
}
_QWEN35_BLOCK = {role: name for role, name in _LLAMA.items() if "self_attn" not in name}
_QWEN35_SPARSE = _but(_QWEN35_BLOCK, *_MLP, **_EXPERTS, **_SHARED_EXPERT)
_QWEN35: dict[str, Any] = {
    "attention": {role: name for role, name in _but(_LLAMA, **_NORMED_HEADS).items() if "self_attn" in name},
    "recurrent": _DELTA_NET,
    "state": {
        "kernel": "linear_conv_kernel_dim",
        "heads": "linear_num_value_heads",
        "groups": "linear_num_key_heads",
        "head": "linear_value_head_dim",
        "state": "linear_key_head_dim",
    },
    "head": {
        "nextn.eh_proj": "mtp.fc",
        "nextn.enorm": "mtp.pre_fc_norm_embedding",
        "nextn.hnorm": "mtp.pre_fc_norm_hidden",
        "nextn.shared_head_norm": "mtp.norm",
    },
    "roots": ("model.", "model.language_model."),
    "left_out": {"model.visual.": "pictures"},
    "around_one": True,
    "gated": True,
    "defaults": {"partial_rotary_factor": 0.25, "head_dim": 256, "rms_norm_eps": 1e-6},
    "own": frozenset({"partial_rotary_factor"}),
    "fixed": {"attention_bias": False},
}

# Qwen3-Next: the same but that matrices of a delta net are one, each key head's rows next to each other.
_QWEN3NEXT: dict[str, Any] = {
    **_QWEN35,
    "recurrent": _but(
        _DELTA_NET,
        "linear_alpha",
        "linear_beta",
        linear_qkv="linear_attn.in_proj_qkvz[qkv]",
        linear_gate="linear_attn.in_proj_qkvz[z]",
        linear_beta_alpha="linear_attn.in_proj_ba",
    ),
    "roots": ("model.",),
    "left_out": {},
    "fixed": {"attention_bias": False, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
}

# Gemma: norms before and after each block, which multiply by 1 + w; embeddings times the root of their width; scores
# and logits capped; layers that see only a window, and there turn by another base.
_GEMMA2 = _but(
    _LLAMA,
    attn_post_norm="post_attention_layernorm",
    ffn_norm="pre_feedforward_layernorm",
    ffn_post_norm="post_feedforward_layernorm",
)
_GEMMA: dict[str, Any] = {
    "around_one": True,
    "activation": "gelu",
    "keys": {"hidden_act": "hidden_activation"},
    "own": frozenset(
        {
            "root_embedding",
            "sliding_window",
            "query_pre_attn_scalar",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        }
    ),
}
_GEMMA_DEFAULTS = {"query_pre_attn_scalar": 256, "head_dim": 256}


# LFM2: two or three layers of a gated short convolution to one of attention; its last norm has another name.
_LFM2: dict[str, Any] = {
    "block": {"attn_norm": "operator_norm", "ffn_norm": "ffn_norm"},
    "attention": {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
    },
    "recurrent": {
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.conv": "conv.conv",
        "shortconv.out_proj": "conv.out_proj",
    },
    "dense": {"ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2"},
    "ends": {"token_embd": "embed_tokens", "output_norm": "embedding_norm"},
    "state": {"kernel": "conv_L_cache"},
    "defaults": {"rope_theta": 1e6, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
    "fixed": {"conv_bias": False},
}
_LFM2_EXPERTS = {
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b": "feed_forward.expert_bias",
    "ffn_gate_exps": "feed_forward.experts.{}.w1",
    "ffn_up_exps": "feed_forward.experts.{}.w3",
    "ffn_down_exps": "feed_forward.experts.{}.w2",
}
# Granite 4 H: many layers of Mamba 2 to one of attention, which knows no positions; one expert for all tokens beside
# those that a router chooses, or that alone.
_GRANITE_H: dict[str, Any] = {
    "attention": {role: name for role, name in _LLAMA.items() if "self_attn" in name},
    "recurrent": {
        "ssm_in": "mamba.in_proj",
        "ssm_conv1d": "mamba.conv1d",
        "ssm_dt": "mamba.dt_bias",
        "ssm_a": "mamba.A_log",
        "ssm_d": "mamba.D",
        "ssm_norm": "mamba.norm",
        "ssm_out": "mamba.out_proj",
    },
    "dense": {
        "ffn_gate": "shared_mlp.input_linear[0]",
        "ffn_up": "shared_mlp.input_linear[1]",
        "ffn_down": "shared_mlp.output_linear",
    },
    "sparse": {
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        "ffn_gate_exps": "mlp.experts.{}.gate_proj",
        "ffn_up_exps": "mlp.experts.{}.up_proj",
        "ffn_down_exps": "mlp.experts.{}.down_proj",
        "ffn_gate_shexp": "shared_mlp.input_linear[0]",
        "ffn_up_shexp": "shared_mlp.input_linear[1]",
        "ffn_down_shexp": "shared_mlp.output_linear",
    },
    "state": {
        "kernel": "mamba_d_conv",
        "heads": "mamba_n_heads",
        "groups": "mamba_n_groups",
        "head": "mamba_d_head",
        "state": "mamba_d_state",
    },
    "biased": frozenset({"ssm_conv1d"}),
    "interleaved": True,
    "flags": {"attention_bias": _ATTENTION},
    "fixed": {"mamba_proj_bias": False, "mamba_conv_bias": True},
}


# Gemma 4: see gemma4.py. Norms multiply by w, not by 1 + w; the router has norms and scales of its own.
_GEMMA4_BLOCK = {
    **_GEMMA2,
    **_NORMED_HEADS,
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "layer_output_scale": "layer_scalar",
}
_GEMMA4: dict[str, Any] = {
    "roots": ("model.", "model.language_model."),
    "left_out": {
        "model.vision_tower.": "pictures",
        "model.embed_vision.": "pictures",
        "model.audio_tower.": "sound",
        "model.embed_audio.": "sound",
        "masked_embedding.": "a choice of likely tokens before the logits",
    },
    "activation": "gelu",
    "keys": {"hidden_act": "hidden_activation", "num_experts_per_tok": "top_k_experts"},
    "period": 6,
    "defaults": {
        "head_dim": 256,
        "sliding_window": 512,
        "enable_moe_block": False,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
    },
    "own": frozenset(
        {
            "root_embedding",
            "unit_attention",
            "sliding_window",
            "final_logit_softcapping",
            "proportional",
            "use_bidirectional_attention",
        }
    ),
    "fixed": {"attention_bias": False},
}
_GEMMA4_TARGET: dict[str, Any] = {
    "block": _GEMMA4_BLOCK,
    "sparse": {
        "ffn_post_norm_1": "post_feedforward_layernorm_1",
        "ffn_pre_norm_2": "pre_feedforward_layernorm_2",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp_scale": "router.scale",
        "ffn_gate_up_exps": "experts.{}.gate_proj|experts.{}.up_proj",
        "ffn_down_exps": "experts.{}.down_proj",
        "ffn_down_exps_scale": "router.per_expert_scale",
        "ffn_post_norm_2": "post_feedforward_layernorm_2",
    },
    "ends": {
        **_ENDS,
        "per_layer_token_embd": "embed_tokens_per_layer",
        "per_layer_model_proj": "per_layer_model_projection",
        "per_layer_proj_norm": "per_layer_projection_norm",
    },
    **_GEMMA4,
}
_GEMMA4_ASSISTANT: dict[str, Any] = {
    "block": _but(_GEMMA4_BLOCK, "inp_gate", "proj", "post_norm"),
    "ends": {**_ENDS, "nextn.pre_projection": "pre_projection", "nextn.post_projection": "post_projection"},
    **_GEMMA4,
}


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture of transformers.

    Args:
        model_type: its name in config.json where that lists no architectures.
        gguf: llama.cpp's name for it.
        block: the tensors of a layer by role, without "weight" and "bias"; {} stands for the number of an expert, and
            "[0]" or "[1]" at the end for the first or second half of the rows, "[qkv]" and "[z]" for the rows of these
            parts, "|" for tensors below each other.
        ends: the tensors outside the layers, but for the head.
        roots: what all names but the head's may begin with; `layers` follows, and the layer's number.
        interleaved: whether llama.cpp turns neighbouring rows of a head against each other, and not its halves.
        flags: which roles have a bias if config.json says so.
        biased: roles that have one whatever it says.
        wide_norms: whether queries and keys are normalized whole, and not head by head.
        centred: whether norms are LayerNorm, with a bias, and not RMSNorm.
        around_one: whether norms multiply by 1 + their weight.
        columns: whether matrices are stored column by column.
        activation: "silu", or "gelu" for the tanh approximation of GELU.
        window: the flag of config.json without which its sliding window does not count; empty if it always does.
        period: every layer but each `period`-th sees only a window, where config.json does not list them; 0 for none.
        keys: its words for what config.json calls otherwise elsewhere.
        defaults: what holds where config.json is silent.
        own: what beyond the plain graph it honours: keys of `config.PLAIN`.
        fixed: keys of config.json that have to have these values.
        attention: in hybrids, the tensors that `block` has beside its own in layers of attention.
        recurrent: and in the others.
        dense: the tensors that it has beside its own in layers with one MLP, where others have experts.
        sparse: and in the others.
        state: the keys of config.json for the sizes of `Recurrence`.
        head: the tensors of a head for drafting beside those of a block, by their whole names.
        left_out: beginnings of the names of tensors that are not converted, each with what is lost.
        gated: whether the rows of a head's queries are followed by as many of a gate on what it returns.
    """

    model_type: str
    gguf: str
    block: _Names = field(default_factory=lambda: _LLAMA)
    ends: _Names = field(default_factory=lambda: _ENDS)
    roots: tuple[str, ...] = ("model.",)
    layers: str = "layers"
    interleaved: bool = False
    flags: Mapping[str, frozenset[str]] = field(default_factory=dict)
    biased: frozenset[str] = frozenset()
    wide_norms: bool = False
    centred: bool = False
    around_one: bool = False
    columns: bool = False
    activation: str = "silu"
    window: str = ""
    period: int = 0
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    attention: _Names = field(default_factory=dict)
    recurrent: _Names = field(default_factory=dict)
    dense: _Names = field(default_factory=dict)
    sparse: _Names = field(default_factory=dict)
    state: _Names = field(default_factory=dict)
    head: _Names = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    gated: bool = False


FAMILIES = {
    "LlamaForCausalLM": Family("llama", "llama", interleaved=True, flags=_BIASES),
    "MistralForCausalLM": Family("mistral", "llama", interleaved=True, flags=_BIASES),
    # Experts instead of one MLP, of which a router chooses some for each token.
    "MixtralForCausalLM": Family(
        "mixtral",
        "llama",
        block=_SPARSE,
        interleaved=True,
        defaults={"num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6},
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe",
        "qwen3moe",
        block=_but(_SPARSE, **_NORMED_HEADS),
        window="use_sliding_window",
        # What llama.cpp's graph takes for granted: every layer has experts, whose shares are made to add up to 1.
        fixed={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
        defaults={"norm_topk_prob": False},
    ),
    "Qwen2ForCausalLM": Family("qwen2", "qwen2", biased=_QKV, window="use_sliding_window"),
    "Qwen3ForCausalLM": Family("qwen3", "qwen3", block=_but(_LLAMA, **_NORMED_HEADS), window="use_sliding_window"),
    # Four multipliers: of embedding, of what a block adds to the stream, of attention's scores and of logits.
    "GraniteForCausalLM": Family(
        "granite",
        "granite",
        interleaved=True,
        flags=_BIASES,
        own=frozenset({"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}),
    ),
    # Norms after attention and MLP, none before.
    "Olmo2ForCausalLM": Family(
        "olmo2",
        "olmo2",
        block=_but(
            _LLAMA,
            "attn_norm",
            "ffn_norm",
            **_NORMED_HEADS,
            attn_post_norm="post_attention_layernorm",
            ffn_post_norm="post_feedforward_layernorm",
        ),
        wide_norms=True,
    ),
    # Every fourth layer knows no positions.
    "SmolLM3ForCausalLM": Family(
        "smollm3",
        "smollm3",
        interleaved=True,
        window="use_sliding_window",
        defaults={"rope_theta": 2e6},
        own=frozenset({"no_rope_layers"}),
    ),
    # Fused matrices, a part of each head turned, other rotations for long contexts. Phi-4-mini says it is Phi-3.
    "Phi3ForCausalLM": Family(
        "phi3",
        "phi3",
        block=_but(_LLAMA, *_QKV, "ffn_gate", "ffn_up", attn_qkv="self_attn.qkv_proj", ffn_gate_up="mlp.gate_up_proj"),
        own=frozenset({"partial_rotary_factor", "longrope"}),
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3_text",
        "gemma3",
        block=_but(_GEMMA2, **_NORMED_HEADS),
        period=6,
        defaults={"rope_theta": 1e6, "rope_local_base_freq": 1e4, **_GEMMA_DEFAULTS},
        **_GEMMA,
    ),
    "Gemma2ForCausalLM": Family("gemma2", "gemma2", block=_GEMMA2, period=2, defaults=_GEMMA_DEFAULTS, **_GEMMA),
    "Starcoder2ForCausalLM": Family(
        "starcoder2",
        "starcoder2",
        block=_but(_LLAMA, "ffn_gate", ffn_up="mlp.c_fc", ffn_down="mlp.c_proj"),
        biased=_ATTENTION | _MLP,
        centred=True,
        activation="gelu",
        keys={"rms_norm_eps": "norm_epsilon"},
        defaults={"rms_norm_eps": 1e-5},
        fixed={"use_bias": True},
    ),
    # Learned positions instead of rotations; matrices stored column by column.
    "GPT2LMHeadModel": Family(
        "gpt2",
        "gpt2",
        block=_GPT2,
        ends={"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f"},
        roots=("transformer.", ""),
        layers="h",
        biased=frozenset(_GPT2),
        centred=True,
        columns=True,
        activation="gelu",
        keys={
            "max_position_embeddings": "n_positions",
            "hidden_size": "n_embd",
            "intermediate_size": "n_inner",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "rms_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        defaults={"rms_norm_eps": 1e-5},
    ),
    # Experts with biases, whose gate is capped; a bias on what attention says, and a score that no token has (a sink).
    "GptOssForCausalLM": Family(
        "gpt_oss",
        "gpt-oss",
        block=_but(
            _SPARSE,
            attn_sinks="self_attn.sinks",
            ffn_gate_inp="mlp.router",
        ),
        biased=_ATTENTION | {"ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"},
        period=2,
        defaults={"rope_theta": 150000.0, "head_dim": 64, "sliding_window": 128, "rms_norm_eps": 1e-5},
        own=frozenset({"sliding_window", "yarn"}),
        fixed={"attention_bias": True, "swiglu_limit": 7.0, "swiglu_alpha": 1.702},
    ),
    "Gemma4ForCausalLM": Family("gemma4_text", "gemma4", **_GEMMA4_TARGET),
    "Gemma4ForConditionalGeneration": Family("gemma4", "gemma4", **_GEMMA4_TARGET),
    "Gemma4UnifiedForConditionalGeneration": Family("gemma4_unified", "gemma4", **_GEMMA4_TARGET),
    "Gemma4AssistantForCausalLM": Family("gemma4_assistant", "gemma4-assistant", **_GEMMA4_ASSISTANT),
    "Gemma4UnifiedAssistantForCausalLM": Family("gemma4_unified_assistant", "gemma4-assistant", **_GEMMA4_ASSISTANT),
    "Lfm2ForCausalLM": Family("lfm2", "lfm2", keys={"rms_norm_eps": "norm_eps"}, **_LFM2),
    "Lfm2MoeForCausalLM": Family(
        "lfm2_moe",
        "lfm2moe",
        keys={"rms_norm_eps": "norm_eps"},
        sparse=_LFM2_EXPERTS,
        **(
            _LFM2
            | {
                "fixed": {
                    "conv_bias": False,
                    "norm_topk_prob": True,
                    "routed_scaling_factor": 1.0,
                    "use_expert_bias": True,
                }
            }
        ),
    ),
    "GraniteMoeHybridForCausalLM": Family(
        "granitemoehybrid",
        "granitehybrid",
        block=_but(_LLAMA, *_ATTENTION, *_MLP),
        own=frozenset({"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}),
        **_GRANITE_H,
    ),
    "Qwen3NextForCausalLM": Family("qwen3_next", "qwen3next", block=_QWEN35_SPARSE, **_QWEN3NEXT),
    "Qwen3_5ForCausalLM": Family("qwen3_5_text", "qwen35", block=_QWEN35_BLOCK, **_QWEN35),
    "Qwen3_5ForConditionalGeneration": Family("qwen3_5", "qwen35", block=_QWEN35_BLOCK, **_QWEN35),
    "Qwen3_5MoeForCausalLM": Family("qwen3_5_moe_text", "qwen35moe", block=_QWEN35_SPARSE, **_QWEN35),
    "Qwen3_5MoeForConditionalGeneration": Family("qwen3_5_moe", "qwen35moe", block=_QWEN35_SPARSE, **_QWEN35),
}
