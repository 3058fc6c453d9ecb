"""The forward passes of models with recurrent layers, and of the newer mixtures of experts, in NumPy float32.

    judge(folder).logits(tokens)

As tests/reference.py, which has those of the other families.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .reference import Floats, Reference


def judge(folder: Path) -> Reference:
    """What a checkpoint folder computes."""
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    return _KINDS.get(kind, Reference)(folder)


def _silu(x: Floats) -> Floats:
    return x / (1 + np.exp(-x))


def _sigmoid(x: Floats) -> Floats:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def _softplus(x: Floats) -> Floats:
    return np.logaddexp(x, np.float32(0))


def _unit(x: Floats) -> Floats:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + np.float32(1e-6)).astype(np.float32)


def _convolved(x: Floats, kernel: Floats) -> Floats:
    """Each column of [n, channels] with its own row of [channels, 1, k], over the rows up to each."""
    taps = kernel[:, 0].T
    padded = np.concatenate([np.zeros((len(taps) - 1, x.shape[1]), np.float32), x])
    return sum((tap * padded[i : i + len(x)] for i, tap in enumerate(taps)), np.zeros_like(x))


class Qwen35(Reference):
    """Gated delta nets, and attention with a gate."""

    def _block(self, root: str, x: Floats, layer: int, kind: str) -> Floats:
        normed = self._norm(f"{root}.input_layernorm", x)
        linear = kind == "linear_attention"
        x = x + (self._delta_net(f"{root}.linear_attn", normed) if linear else self._gated(f"{root}.self_attn", normed))
        return x + self._mlp(f"{root}.mlp", self._norm(f"{root}.post_attention_layernorm", x))

    def hidden(self, tokens: list[int]) -> Floats:
        """float32 [len(tokens), hidden], after the last norm."""
        x = self._tensors["model.embed_tokens.weight"][tokens]
        for layer, kind in enumerate(self._config["layer_types"]):
            x = self._block(f"model.layers.{layer}", x, layer, kind)
        return self._norm("model.norm", x)

    def logits(self, tokens: list[int]) -> Floats:
        return self.hidden(tokens) @ self._tensors["lm_head.weight"].T

    def drafted(self, tokens: list[int], hidden: Floats) -> Floats:
        """The logits of the head for drafting over tokens and the hidden states of those before them."""
        embedded = self._norm("mtp.pre_fc_norm_embedding", self._tensors["model.embed_tokens.weight"][tokens])
        both = np.concatenate([embedded, self._norm("mtp.pre_fc_norm_hidden", hidden)], -1)
        x = self._block("mtp.layers.0", self._linear("mtp.fc", both), 0, "full_attention")
        return self._norm("mtp.norm", x) @ self._tensors["lm_head.weight"].T

    def _norm(self, name: str, x: Floats) -> Floats:
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self._config["rms_norm_eps"]))
        return x * scale * (self._tensors[f"{name}.weight"] + np.float32(not name.endswith("linear_attn.norm")))

    def _mlp(self, name: str, x: Floats) -> Floats:
        found = super()._mlp(name, x)
        if f"{name}.shared_expert_gate.weight" in self._tensors:
            found = found + _sigmoid(self._linear(f"{name}.shared_expert_gate", x)) * self._mlp(
                f"{name}.shared_expert", x
            )
        return found

    def _gated(self, name: str, x: Floats) -> Floats:
        heads, width = self._config["num_attention_heads"], self._config["head_dim"]
        both = self._linear(f"{name}.q_proj", x).reshape(len(x), heads, 2, width)
        q = self._rotated(self._norm(f"{name}.q_norm", both[:, :, 0]))
        k, v = (self._linear(f"{name}.{part}_proj", x).reshape(len(x), -1, width) for part in "kv")
        k = self._rotated(self._norm(f"{name}.k_norm", k))
        k, v = (part.repeat(heads // part.shape[1], 1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.float32(width**0.5)
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        said = np.einsum("hij,jhd->ihd", weights, v) * _sigmoid(both[:, :, 1])
        return self._linear(f"{name}.o_proj", said.reshape(len(x), -1))

    def _rotated(self, x: Floats) -> Floats:
        rope = self._config["rope_parameters"]
        width = int(x.shape[-1] * rope.get("partial_rotary_factor", 1.0))
        frequencies = rope["rope_theta"] ** (-np.arange(0, width, 2) / width)
        angles = np.outer(np.arange(len(x)), frequencies)[:, None].astype(np.float32)
        first, second = x[..., : width // 2], x[..., width // 2 : width]
        cos, sin = np.cos(angles), np.sin(angles)
        turned = [first * cos - second * sin, second * cos + first * sin, x[..., width:]]
        return np.concatenate(turned, -1)

    def _inputs(self, name: str, x: Floats) -> tuple[Floats, ...]:
        """Queries, keys and values; gates; the rates of decay and of change."""
        return tuple(self._linear(f"{name}.in_proj_{part}", x) for part in ("qkv", "z", "a", "b"))

    def _delta_net(self, name: str, x: Floats) -> Floats:
        config = self._config
        heads, groups, head = (
            config[f"linear_{key}"] for key in ("num_value_heads", "num_key_heads", "value_head_dim")
        )
        qkv, z, a, b = self._inputs(name, x)
        mixed = _silu(_convolved(qkv, self._tensors[f"{name}.conv1d.weight"]))
        keys = groups * config["linear_key_head_dim"]
        q, k, v = (
            part.reshape(len(x), -1, size)
            for part, size in zip(
                np.split(mixed, [keys, 2 * keys], 1), (keys // groups, keys // groups, head), strict=True
            )
        )
        q, k = (_unit(part).repeat(heads // groups, 1) for part in (q, k))
        q = q / np.float32(q.shape[-1] ** 0.5)
        beta = _sigmoid(b)
        steps = _softplus(a + self._tensors[f"{name}.dt_bias"])
        decay = np.exp(-np.exp(self._tensors[f"{name}.A_log"]) * steps)
        state, said = np.zeros((heads, k.shape[-1], head), np.float32), np.zeros_like(v)
        for i in range(len(x)):
            state *= decay[i][:, None, None]
            change = (v[i] - np.einsum("hkv,hk->hv", state, k[i])) * beta[i][:, None]
            state += k[i][:, :, None] * change[:, None]
            said[i] = np.einsum("hkv,hk->hv", state, q[i])
        gate = _silu(z).reshape(said.shape)
        return self._linear(f"{name}.out_proj", (self._norm(f"{name}.norm", said) * gate).reshape(len(x), -1))


class Qwen3Next(Qwen35):
    """Its delta nets have two matrices, each key head's rows next to each other."""

    def _inputs(self, name: str, x: Floats) -> tuple[Floats, ...]:
        groups, each = self._config["linear_num_key_heads"], self._config["linear_num_value_heads"]
        each //= groups
        keys, values = self._config["linear_key_head_dim"], each * self._config["linear_value_head_dim"]
        found = []
        for part, ends in (("qkvz", (keys, 2 * keys, 2 * keys + values)), ("ba", (each,))):
            rows = self._linear(f"{name}.in_proj_{part}", x).reshape(len(x), groups, -1)
            found += [piece.reshape(len(x), -1) for piece in np.split(rows, ends, 2)]
        q, k, v, z, b, a = found
        return np.concatenate([q, k, v], 1), z, a, b


class GptOss(Reference):
    """Experts whose gate and up alternate, a score that no token has, and frequencies as YaRN blends them."""

    def logits(self, tokens: list[int]) -> Floats:
        x = self._tensors["model.embed_tokens.weight"][tokens]
        for layer, kind in enumerate(self._config["layer_types"]):
            root = f"model.layers.{layer}"
            normed = self._norm(f"{root}.input_layernorm", x)
            x = x + self._seen(f"{root}.self_attn", normed, kind == "sliding_attention")
            x = x + self._chosen(f"{root}.mlp", self._norm(f"{root}.post_attention_layernorm", x))
        return self._norm("model.norm", x) @ self._tensors["lm_head.weight"].T

    def _seen(self, name: str, x: Floats, windowed: bool) -> Floats:
        n, width = len(x), self._config["head_dim"]
        q, k, v = (self._linear(f"{name}.{part}_proj", x).reshape(n, -1, width) for part in "qkv")
        angles = np.outer(np.arange(n), self._yarn(width))[:, None].astype(np.float32)
        factor = np.float32(0.1 * np.log(self._config["rope_parameters"]["factor"]) + 1)
        cos, sin = factor * np.cos(angles), factor * np.sin(angles)
        halves = [np.split(part, 2, -1) for part in (q, k)]
        q, k = (np.concatenate([a * cos - b * sin, b * cos + a * sin], -1) for a, b in halves)
        k, v = (part.repeat(q.shape[1] // part.shape[1], 1) for part in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.float32(width**0.5)
        seen = np.tril(np.ones((n, n), bool))
        if windowed:
            seen &= ~np.tril(np.ones((n, n), bool), -self._config["sliding_window"])
        scores = np.where(seen, scores, np.float32(-np.inf))
        sinks = np.broadcast_to(self._tensors[f"{name}.sinks"][:, None, None], (len(scores), n, 1))
        weights = np.exp(np.concatenate([scores, sinks], -1))
        weights = (weights / weights.sum(-1, keepdims=True))[..., :-1]
        return self._linear(f"{name}.o_proj", np.einsum("hij,jhd->ihd", weights, v).reshape(n, -1))

    def _yarn(self, width: int) -> npt.NDArray[np.float64]:
        rope = self._config["rope_parameters"]
        usual = rope["rope_theta"] ** (-np.arange(0, width, 2) / width)
        turns = [rope["beta_fast"], rope["beta_slow"]]
        ends = [
            width
            * np.log(rope["original_max_position_embeddings"] / (2 * np.pi * turn))
            / (2 * np.log(rope["rope_theta"]))
            for turn in turns
        ]
        low, high = max(np.floor(ends[0]), 0), min(np.ceil(ends[1]), width - 1)
        slow = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
        return np.asarray(usual * (1 - slow) + usual / rope["factor"] * slow)

    def _chosen(self, name: str, x: Floats) -> Floats:
        found = np.zeros_like(x)
        for row, scores in enumerate(self._linear(f"{name}.router", x)):
            chosen = np.argsort(-scores)[: self._config["num_experts_per_tok"]]
            shares = np.exp(scores[chosen] - scores.max())
            for expert, share in zip(chosen, shares / shares.sum(), strict=True):
                found[row] += share * self._expert(f"{name}.experts", expert, x[row])
        return found

    def _expert(self, name: str, expert: int, x: Floats) -> Floats:
        parts = ((f"{name}.{part}", f"{name}.{part}_bias") for part in ("gate_up_proj", "down_proj"))
        (wide, bias), (down, last) = (tuple(self._tensors[part][expert] for part in pair) for pair in parts)
        both = x @ wide + bias
        gate, up = np.minimum(both[::2], np.float32(7)), np.clip(both[1::2], -7, 7)
        return np.asarray((up + 1) * gate * _sigmoid(np.float32(1.702) * gate) @ down + last, np.float32)


class Lfm2(Reference):
    """Gated short convolutions, and attention with normalized heads."""

    def logits(self, tokens: list[int]) -> Floats:
        embedding = self._tensors["model.embed_tokens.weight"]
        x = embedding[tokens]
        for layer, kind in enumerate(self._config["layer_types"]):
            root = f"model.layers.{layer}"
            normed = self._norm(f"{root}.operator_norm", x)
            x = x + (self._convolution(f"{root}.conv", normed) if kind == "conv" else self._heads(root, normed, layer))
            x = x + self._fed(f"{root}.feed_forward", self._norm(f"{root}.ffn_norm", x))
        return self._norm("model.embedding_norm", x) @ embedding.T

    def _convolution(self, name: str, x: Floats) -> Floats:
        before, after, inner = np.split(self._linear(f"{name}.in_proj", x), 3, -1)
        mixed = _convolved(before * inner, self._tensors[f"{name}.conv.weight"])
        return self._linear(f"{name}.out_proj", after * mixed)

    def _heads(self, root: str, x: Floats, layer: int) -> Floats:
        """The other families' attention, by its names."""
        for ours, theirs in (("q_norm", "q_layernorm"), ("k_norm", "k_layernorm"), ("o_proj", "out_proj")):
            self._tensors[f"{root}.self_attn.{ours}.weight"] = self._tensors[f"{root}.self_attn.{theirs}.weight"]
        return self._attention(f"{root}.self_attn", x, layer)

    def _fed(self, name: str, x: Floats) -> Floats:
        if f"{name}.gate.weight" not in self._tensors:
            return self._linear(f"{name}.w2", _silu(self._linear(f"{name}.w1", x)) * self._linear(f"{name}.w3", x))
        found, bias = np.zeros_like(x), self._tensors[f"{name}.expert_bias"]
        for row, scores in enumerate(_sigmoid(self._linear(f"{name}.gate", x))):
            chosen = np.argsort(-(scores + bias))[: self._config["num_experts_per_tok"]]
            for expert, share in zip(chosen, scores[chosen] / scores[chosen].sum(), strict=True):
                found[row] += share * self._fed(f"{name}.experts.{expert}", x[row])
        return found


class GraniteHybrid(Reference):
    """Mamba 2 and attention, with one expert for all tokens beside the chosen ones."""

    def logits(self, tokens: list[int]) -> Floats:
        config, embedding = self._config, self._tensors["model.embed_tokens.weight"]
        x, share = (
            embedding[tokens] * np.float32(config["embedding_multiplier"]),
            np.float32(config["residual_multiplier"]),
        )
        for layer, kind in enumerate(config["layer_types"]):
            root = f"model.layers.{layer}"
            normed = self._norm(f"{root}.input_layernorm", x)
            mixed = (
                self._mamba(f"{root}.mamba", normed)
                if kind == "mamba"
                else self._attention(f"{root}.self_attn", normed, layer)
            )
            x = x + share * mixed
            normed = self._norm(f"{root}.post_attention_layernorm", x)
            x = x + share * (
                self._halves(f"{root}.shared_mlp", normed) + self._routed(f"{root}.block_sparse_moe", normed)
            )
        return self._norm("model.norm", x) @ embedding.T / np.float32(config["logits_scaling"])

    def _halves(self, name: str, x: Floats) -> Floats:
        gate, up = np.split(self._linear(f"{name}.input_linear", x), 2, -1)
        return self._linear(f"{name}.output_linear", _silu(gate) * up)

    def _routed(self, name: str, x: Floats) -> Floats:
        found = np.zeros_like(x)
        if f"{name}.router.layer.weight" not in self._tensors:
            return found
        wide, down = (self._tensors[f"{name}.{part}_linear.weight"] for part in ("input", "output"))
        for row, scores in enumerate(self._linear(f"{name}.router.layer", x)):
            chosen = np.argsort(-scores)[: self._config["num_experts_per_tok"]]
            shares = np.exp(scores[chosen] - scores.max())
            for expert, part in zip(chosen, shares / shares.sum(), strict=True):
                gate, up = np.split(wide[expert] @ x[row], 2)
                found[row] += part * (down[expert] @ (_silu(gate) * up))
        return found

    def _rotation(self, n: int, local: bool = False) -> tuple[Floats, Floats]:
        cos, sin = super()._rotation(n, local)
        return (cos, sin) if self._config["position_embedding_type"] == "rope" else (np.ones_like(cos), 0 * sin)

    def _mamba(self, name: str, x: Floats) -> Floats:
        config, n = self._config, len(x)
        heads, head, groups, width = (config[f"mamba_{key}"] for key in ("n_heads", "d_head", "n_groups", "d_state"))
        inner, keys = heads * head, groups * width
        gate, mixed, steps = np.split(self._linear(f"{name}.in_proj", x), [inner, 2 * inner + 2 * keys], 1)
        mixed = _convolved(mixed, self._tensors[f"{name}.conv1d.weight"]) + self._tensors[f"{name}.conv1d.bias"]
        values, into, out = np.split(_silu(mixed), [inner, inner + keys], 1)
        values = values.reshape(n, heads, head)
        into, out = (part.reshape(n, groups, width).repeat(heads // groups, 1) for part in (into, out))
        steps = _softplus(steps + self._tensors[f"{name}.dt_bias"])
        decay = np.exp(-np.exp(self._tensors[f"{name}.A_log"]) * steps)
        state, said = np.zeros((heads, head, width), np.float32), np.zeros_like(values)
        for i in range(n):
            state = state * decay[i][:, None, None] + (steps[i][:, None] * values[i])[:, :, None] * into[i][:, None]
            said[i] = np.einsum("hpn,hn->hp", state, out[i]) + self._tensors[f"{name}.D"][:, None] * values[i]
        said = (said.reshape(n, inner) * _silu(gate)).reshape(n, groups, -1)
        said = said / np.sqrt((said * said).mean(-1, keepdims=True) + np.float32(config["rms_norm_eps"]))
        return self._linear(f"{name}.out_proj", said.reshape(n, inner) * self._tensors[f"{name}.norm.weight"])


class Gemma4(Reference):
    """Two kinds of layers, shared keys, embeddings of each layer, experts beside the MLP."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shared: dict[bool, tuple[Floats, Floats]] = {}

    def logits(self, tokens: list[int]) -> Floats:
        found = self.hidden(tokens) @ self._tensors["model.embed_tokens.weight"].T
        return self._capped(found, "final_logit_softcapping")

    def hidden(self, tokens: list[int]) -> Floats:
        """float32 [len(tokens), hidden], after the last norm."""
        config, h = self._config, self._config["hidden_size"]
        x = self._tensors["model.embed_tokens.weight"][tokens] * np.float32(h**0.5)
        own = self._own(tokens, x)
        for layer, kind in enumerate(config["layer_types"]):
            root = f"model.layers.{layer}"
            said = self._heads(root, self._norm(f"{root}.input_layernorm", x), kind == "sliding_attention")
            x = x + self._norm(f"{root}.post_attention_layernorm", said)
            x = x + self._norm(f"{root}.post_feedforward_layernorm", self._fed(root, x))
            if own is not None:
                gated = _gelu(self._linear(f"{root}.per_layer_input_gate", x)) * own[:, layer]
                said = self._linear(f"{root}.per_layer_projection", gated)
                x = x + self._norm(f"{root}.post_per_layer_input_norm", said)
            x = x * self._tensors[f"{root}.layer_scalar"]
        return self._norm("model.norm", x)

    def _own(self, tokens: list[int], x: Floats) -> Floats | None:
        """float32 [len(tokens), layers, width]: what each layer gets of each token."""
        width = self._config["hidden_size_per_layer_input"]
        if not width:
            return None
        shape = (len(tokens), self._config["num_hidden_layers"], width)
        table = self._tensors["model.embed_tokens_per_layer.weight"][tokens].reshape(shape) * np.float32(width**0.5)
        made = self._linear("model.per_layer_model_projection", x) / np.float32(x.shape[1] ** 0.5)
        made = self._norm("model.per_layer_projection_norm", made.reshape(shape))
        return np.asarray((made + table) / np.float32(2**0.5), np.float32)

    def _norm(self, name: str, x: Floats) -> Floats:
        return _bare_norm(x, self._config["rms_norm_eps"]) * self._tensors[f"{name}.weight"]

    def _fed(self, root: str, x: Floats) -> Floats:
        found = self._gelu_mlp(f"{root}.mlp", self._norm(f"{root}.pre_feedforward_layernorm", x))
        if not self._config["enable_moe_block"]:
            return found
        found = self._norm(f"{root}.post_feedforward_layernorm_1", found)
        normed = self._norm(f"{root}.pre_feedforward_layernorm_2", x)
        scaled = _bare_norm(x, self._config["rms_norm_eps"]) * self._tensors[f"{root}.router.scale"]
        said = np.zeros_like(x)
        for row, scores in enumerate(self._linear(f"{root}.router.proj", scaled / np.float32(x.shape[1] ** 0.5))):
            chosen = np.argsort(-scores)[: self._config["top_k_experts"]]
            shares = np.exp(scores[chosen] - scores.max())
            shares = shares / shares.sum() * self._tensors[f"{root}.router.per_expert_scale"][chosen]
            for expert, share in zip(chosen, shares, strict=True):
                gate, up = np.split(self._tensors[f"{root}.experts.gate_up_proj"][expert] @ normed[row], 2)
                said[row] += share * (self._tensors[f"{root}.experts.down_proj"][expert] @ (_gelu(gate) * up))
        return found + self._norm(f"{root}.post_feedforward_layernorm_2", said)

    def _gelu_mlp(self, name: str, x: Floats) -> Floats:
        gate, up = (self._linear(f"{name}.{part}_proj", x) for part in ("gate", "up"))
        return self._linear(f"{name}.down_proj", _gelu(gate) * up)

    def _heads(self, root: str, x: Floats, windowed: bool) -> Floats:
        name, positions = f"{root}.self_attn", np.arange(len(x))
        q = self._queries(name, x, windowed, positions)
        if f"{name}.k_proj.weight" in self._tensors:
            k = self._linear(f"{name}.k_proj", x).reshape(len(x), -1, q.shape[-1])
            part = "v_proj" if f"{name}.v_proj.weight" in self._tensors else "k_proj"
            v = _bare_norm(self._linear(f"{name}.{part}", x).reshape(k.shape), self._config["rms_norm_eps"])
            self.shared[windowed] = self._turned(self._norm(f"{name}.k_norm", k), windowed, positions), v
        return self.read(name, q, windowed, positions)

    def _queries(self, name: str, x: Floats, windowed: bool, positions: npt.NDArray[Any]) -> Floats:
        q = self._linear(f"{name}.q_proj", x).reshape(len(x), self._config["num_attention_heads"], -1)
        return self._turned(self._norm(f"{name}.q_norm", q), windowed, positions)

    def read(self, name: str, q: Floats, windowed: bool, positions: npt.NDArray[Any]) -> Floats:
        """What queries at these positions read from the last keys and values of layers of this kind."""
        k, v = (part.repeat(q.shape[1] // part.shape[1], 1) for part in self.shared[windowed])
        scores = np.einsum("ihd,jhd->hij", q, k)
        apart = positions[:, None] - np.arange(len(k))
        seen = (apart >= 0) & (apart < (self._config["sliding_window"] if windowed else len(k) + len(q)))
        scores = np.where(seen, scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self._linear(f"{name}.o_proj", np.einsum("hij,jhd->ihd", weights, v).reshape(len(q), -1))

    def _turned(self, x: Floats, windowed: bool, positions: npt.NDArray[Any]) -> Floats:
        rope = self._config["rope_parameters"]["sliding_attention" if windowed else "full_attention"]
        width = x.shape[-1]
        frequencies = rope["rope_theta"] ** (-np.arange(0, width, 2) / width)
        frequencies[int(width * rope.get("partial_rotary_factor", 1.0) / 2) :] = 0
        angles = np.outer(positions, frequencies)[:, None].astype(np.float32)
        first, second = np.split(x, 2, -1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


class Gemma4Assistant(Gemma4):
    """What an assistant drafts after a pass of its target."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._config |= self._config["text_config"]

    def drafted(self, tokens: list[int], positions: list[int], rows: Floats, target: Gemma4) -> Floats:
        """The logits after tokens, with a row of the target for each, over the target's keys and values."""
        self.shared = target.shared
        embedded = target._tensors["model.embed_tokens.weight"][tokens] * np.float32(rows.shape[1] ** 0.5)
        x = self._linear("pre_projection", np.concatenate([embedded, rows], -1))
        for layer, kind in enumerate(self._config["layer_types"]):
            name, windowed = f"model.layers.{layer}", kind == "sliding_attention"
            normed = self._norm(f"{name}.input_layernorm", x)
            q = self._queries(f"{name}.self_attn", normed, windowed, np.array(positions))
            said = self.read(f"{name}.self_attn", q, windowed, np.array(positions))
            x = x + self._norm(f"{name}.post_attention_layernorm", said)
            x = x + self._norm(f"{name}.post_feedforward_layernorm", self._fed(name, x))
            x = x * self._tensors[f"{name}.layer_scalar"]
        return self._norm("model.norm", x) @ self._tensors["model.embed_tokens.weight"].T


def _bare_norm(x: Floats, epsilon: float) -> Floats:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon)), np.float32)


def _gelu(x: Floats) -> Floats:
    root = np.float32((2 / np.pi) ** 0.5)
    return np.asarray(0.5 * x * (1 + np.tanh(root * (x + np.float32(0.044715) * x**3))), np.float32)


_KINDS = {
    "gemma4_text": Gemma4,
    "gemma4_assistant": Gemma4Assistant,
    "qwen3_next": Qwen3Next,
    "qwen3_5_text": Qwen35,
    "qwen3_5_moe_text": Qwen35,
    "gpt_oss": GptOss,
    "lfm2": Lfm2,
    "lfm2_moe": Lfm2,
    "granitemoehybrid": GraniteHybrid,
}
