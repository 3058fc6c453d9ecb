"""The tensors of a graph by role: their shapes, in words that `decoder.Decoder` turns into numbers.

A role is a word of our own for a tensor; families.py maps it to its name in a checkpoint, gguf_graph.py to llama.cpp's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Role:
    """
    Args:
        axes: its rows and columns.
        kind: what it is: "weight", "bias" or "scale"; empty for a parameter without such an end to its name in GGUF.
        bare: whether its name in the checkpoint is complete, without ".weight" or ".bias".
        stored: the shape in the checkpoint, where it is another one of the same numbers.
        decay: whether the graph has -exp of the stored numbers.
    """

    axes: tuple[str, ...]
    kind: str = "weight"
    bare: bool = False
    stored: tuple[str, ...] = ()
    decay: bool = False


def _bare(*axes: str, kind: str = "", decay: bool = False, stored: tuple[str, ...] = ()) -> Role:
    return Role(axes, kind, bare=True, decay=decay, stored=stored)


#: The roles of a layer, in the order of the computation.
ROLES = {
    "nextn.enorm": Role(("hidden",)),
    "nextn.hnorm": Role(("hidden",)),
    "nextn.eh_proj": Role(("hidden", "hidden twice")),
    "attn_norm": Role(("hidden",)),
    "attn_qkv": Role(("qkv", "hidden")),
    "attn_q": Role(("asked", "hidden")),
    "attn_q_norm": Role(("head",)),
    "attn_k": Role(("keys", "hidden")),
    "attn_k_norm": Role(("head",)),
    "attn_v": Role(("keys", "hidden")),
    "attn_sinks": _bare("heads", kind="weight"),
    "attn_output": Role(("hidden", "queries")),
    # Gated delta net (https://arxiv.org/abs/2412.06464)
    "linear_qkv": Role(("channels", "hidden")),
    "linear_gate": Role(("inner", "hidden")),
    "linear_alpha": Role(("state heads", "hidden")),
    "linear_beta": Role(("state heads", "hidden")),
    "linear_beta_alpha": Role(("state heads twice", "hidden")),
    "linear_conv": Role(("channels", "kernel"), stored=("channels", "one", "kernel")),
    "linear_dt": _bare("state heads", kind="bias"),
    "linear_a": _bare("state heads", decay=True),
    "linear_norm": Role(("state head",)),
    "linear_output": Role(("hidden", "inner")),
    # Mamba 2 (https://arxiv.org/abs/2405.21060)
    "ssm_in": Role(("mamba", "hidden")),
    "ssm_conv1d": Role(("channels", "kernel"), stored=("channels", "one", "kernel")),
    "ssm_dt": _bare("state heads", kind="bias"),
    "ssm_a": _bare("state heads", "one", decay=True, stored=("state heads",)),
    "ssm_d": _bare("state heads", "one", stored=("state heads",)),
    "ssm_norm": Role(("groups", "group"), stored=("inner",)),
    "ssm_out": Role(("hidden", "inner")),
    # The gated short convolution of LFM2
    "shortconv.in_proj": Role(("hidden thrice", "hidden")),
    "shortconv.conv": Role(("hidden", "kernel"), stored=("hidden", "one", "kernel")),
    "shortconv.out_proj": Role(("hidden", "hidden")),
    "attn_post_norm": Role(("hidden",)),
    "ffn_norm": Role(("hidden",)),
    "ffn_gate_up": Role(("ffn twice", "hidden")),
    "ffn_gate": Role(("ffn", "hidden")),
    "ffn_up": Role(("ffn", "hidden")),
    "ffn_down": Role(("hidden", "ffn")),
    "ffn_gate_inp": Role(("experts", "hidden")),
    "exp_probs_b": _bare("experts", kind="bias"),
    "ffn_gate_exps": Role(("experts", "expert", "hidden")),
    "ffn_up_exps": Role(("experts", "expert", "hidden")),
    "ffn_down_exps": Role(("experts", "hidden", "expert")),
    "ffn_gate_inp_shexp": Role(("one", "hidden")),
    "ffn_gate_shexp": Role(("shared", "hidden")),
    "ffn_up_shexp": Role(("shared", "hidden")),
    "ffn_down_shexp": Role(("hidden", "shared")),
    "ffn_post_norm": Role(("hidden",)),
    # Gemma 4: experts beside the MLP, norms around each, and embeddings of each layer
    "ffn_post_norm_1": Role(("hidden",)),
    "ffn_pre_norm_2": Role(("hidden",)),
    "ffn_gate_inp_scale": _bare("hidden", kind="scale"),
    "ffn_gate_up_exps": Role(("experts", "expert twice", "hidden")),
    "ffn_down_exps_scale": _bare("experts", kind="scale"),
    "ffn_post_norm_2": Role(("hidden",)),
    "inp_gate": Role(("per layer", "hidden")),
    "proj": Role(("hidden", "per layer")),
    "post_norm": Role(("hidden",)),
    "layer_output_scale": _bare("one", kind="weight"),
    "nextn.shared_head_norm": Role(("hidden",)),
}
WIDE_NORMS = {"attn_q_norm": ("queries",), "attn_k_norm": ("keys",)}
ROTARY = frozenset({"attn_q", "attn_k"})
