"""EAGLE-3 heads, trained as they draft: from their own output in place of the target's rows (Li et al. 2025, arXiv
2503.01840, "training-time test").

A head reads the rows of three layers of the target. At position p it has the row of p and the token p + 1, and guesses
the token p + 2. The checkpoint has the names of SafeAILab's and SpecForge's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OptionError
from ..tools.draft_value import DEPTH
from ..types import Floats
from .example import Example
from .head_tokens import Numbered
from .learner import begun, padded, rows_of
from .loss import distillation_loss
from .simulation import Right

AHEAD = 4  #: guesses of a chain that the head learns to make
DECAY = 0.5  #: of the loss, by guess
_HEAD = 64  # numbers of an attention head
_WIDEST = 1024
_EPSILON, _THETA = 1e-5, 10000.0


def layers(count: int) -> tuple[int, int, int]:
    """The layers whose inputs the head reads, of a target with `count` of them. OptionError for fewer than four."""
    found = (max(1, count // 4), count // 2, count - 1)
    if len({*found}) < 3:
        raise OptionError(f"an EAGLE-3 head reads three layers, and the target has {count}; take --head medusa")
    return found


def width_of(width: int) -> int:
    """Numbers of a head's own rows, for a target of `width`: half as many, at most 1024. OptionError for a target
    narrower than 64."""
    if width < _HEAD:
        raise OptionError(f"an EAGLE-3 head needs a target of a width of {_HEAD}, not {width}; take --head medusa")
    return max(_HEAD, min(_WIDEST, width // 2) // _HEAD * _HEAD)


class Eagle3:
    """A head of one layer.

    Args:
        embedding: the target's, float32 [vocabulary, width]. The head's narrower ones begin as the directions in which
            these differ most.
        tokens: those that it can guess, ascending, int64 [rows].
        layers: of the target, whose inputs it reads.
    """

    def __init__(self, embedding: Floats, tokens: npt.NDArray[np.int64], layers: Sequence[int]) -> None:
        import torch  # noqa: PLC0415

        self._torch, self._tokens, self._layers, self._device = torch, tokens, tuple(layers), "cpu"
        self._numbered = Numbered(tokens, len(embedding))
        torch.manual_seed(0)
        width = embedding.shape[1]
        self._width, self._hidden = width, width_of(width)
        _, basis = np.linalg.eigh(embedding.T @ embedding)
        narrow = embedding @ basis[:, ::-1][:, : self._hidden]
        self.trained = self._module(torch.from_numpy(np.ascontiguousarray(narrow / narrow.std())))

    def to(self, device: str) -> None:
        self._device = device
        self.trained.to(device)

    def knows(self, example: Example) -> bool:
        return example.rows is not None

    def loss(self, batch: Sequence[Example], cross_entropy: float) -> Any:
        total = self._torch.zeros((), device=self._device)
        for depth, state in enumerate(self._passes(batch, AHEAD)):
            rows, places, answers = self._places(batch, depth)
            if not len(rows):
                continue
            parts = [
                np.concatenate([getattr(each, name)[at] for each, at in zip(batch, answers, strict=True)])
                for name in ("likely", "logprobs", "answer")
            ]
            likely, said = (self._tensor(self._numbered.of(each)) for each in (parts[0], parts[2]))
            loss = distillation_loss(
                self.logits(state[rows, places]), likely, self._tensor(parts[1]).float(), said, cross_entropy
            )
            total = total + DECAY**depth * loss
        return total

    def right(self, batch: Sequence[Example]) -> Iterator[Right]:
        found = [np.zeros((len(each.answer), DEPTH), np.bool_) for each in batch]
        for depth, state in enumerate(self._passes(batch, DEPTH)):
            rows, places, answers = self._places(batch, depth)
            if not len(rows):
                continue
            guessed = self._tokens[self.logits(state[rows, places]).argmax(-1).cpu().numpy()]
            ends = np.cumsum([len(at) for at in answers[:-1]])
            for each, own, at, known in zip(batch, found, answers, np.split(guessed, ends), strict=True):
                own[at - depth, depth] = known == each.answer[at]
        yield from found

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The head as the tensors of a checkpoint; `d2t` has the distance of each row to the target's token."""
        known = np.zeros(len(self.trained["embed_tokens"].weight), np.bool_)
        known[self._tokens] = True
        found = {name: each.detach().half().cpu().numpy() for name, each in self.trained.state_dict().items()}
        return {**found, "d2t": self._tokens - np.arange(len(self._tokens)), "t2d": known}

    def config(self) -> dict[str, Any]:
        """The config.json."""
        layer = self.trained["midlayer"]
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self._hidden,
            "intermediate_size": layer["mlp"]["gate_proj"].out_features,
            "num_attention_heads": layer["self_attn"]["q_proj"].out_features // _HEAD,
            "num_key_value_heads": layer["self_attn"]["k_proj"].out_features // _HEAD,
            "head_dim": _HEAD,
            "num_hidden_layers": 1,
            "rms_norm_eps": _EPSILON,
            "rope_theta": _THETA,
            "max_position_embeddings": 2048,
            "vocab_size": len(self.trained["embed_tokens"].weight),
            "draft_vocab_size": len(self._tokens),
            "target_hidden_size": self._width,
            "eagle_aux_hidden_state_layer_ids": list(self._layers),
        }

    def _module(self, embedded: Any) -> Any:
        """The module, with the names of a checkpoint.

        Args:
            embedded: what its embeddings begin with, float32 [vocabulary, hidden].
        """
        nn, hidden = self._torch.nn, self._hidden
        wide, kv = hidden, max(1, hidden // _HEAD // 2) * _HEAD
        while (wide // _HEAD) % (kv // _HEAD):
            kv -= _HEAD
        attention = {"q_proj": (2 * hidden, wide), "k_proj": (2 * hidden, kv), "v_proj": (2 * hidden, kv)}
        attention["o_proj"] = (wide, hidden)
        mlp = {"gate_proj": (hidden, 2 * hidden), "up_proj": (hidden, 2 * hidden), "down_proj": (2 * hidden, hidden)}
        layer = {
            "self_attn": nn.ModuleDict({name: self._linear(*shape) for name, shape in attention.items()}),
            "mlp": nn.ModuleDict({name: self._linear(*shape) for name, shape in mlp.items()}),
        }
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        layer |= {name: nn.RMSNorm(hidden, eps=_EPSILON) for name in norms}
        made = nn.ModuleDict({
            "embed_tokens": nn.Embedding.from_pretrained(embedded, freeze=False),
            "fc": self._linear(3 * self._width, hidden),
            "midlayer": nn.ModuleDict(layer),
            "norm": nn.RMSNorm(hidden, eps=_EPSILON),
            "lm_head": self._linear(hidden, len(self._tokens)),
        })  # fmt: skip
        made["lm_head"].weight.data = embedded[self._torch.from_numpy(self._tokens)] / hidden**0.5
        return made

    def _linear(self, inputs: int, outputs: int) -> Any:
        made = self._torch.nn.Linear(inputs, outputs, bias=False)
        self._torch.nn.init.normal_(made.weight, std=inputs**-0.5)
        return made

    def _passes(self, batch: Sequence[Example], ahead: int) -> Iterator[Any]:
        """The head's own rows for each guess of the chains that begin in the answers, float32 [texts, chains, hidden].
        Those of a text with fewer chains are filled up with others that guess nothing."""
        n = max(len(each.tokens) for each in batch) - 1
        rows = self._torch.zeros((len(batch), n, 3 * self._width))
        for own, each in zip(rows, batch, strict=True):
            known = rows_of(each)[:n]
            own[: len(known)] = self._torch.from_numpy(known.astype(np.float32))
        begins = self._tensor(padded([each.start - 2 + begun(each, 0) for each in batch]))
        sees = self._torch.arange(n, device=self._device) <= begins[..., None]
        tokens = self._tensor(padded([each.tokens for each in batch], ahead))
        return self.chains(tokens, rows.to(self._device), begins, sees[:, None], ahead)

    def chains(self, tokens: Any, rows: Any, begins: Any, sees: Any, ahead: int) -> Iterator[Any]:
        """The head's own rows for each guess of chains, float32 [texts, chains, hidden].

        A prompt is many times as long as the answer to it, and all that is computed for it are keys and values.

        Args:
            tokens: of the texts and `ahead` more, int64 [texts, n + 1 + ahead] or wider.
            rows: the target's, of the first `n` tokens, float32 [texts, n, 3 * width].
            begins: of each chain, the last token whose row it has, int64 [texts, chains].
            sees: which rows each attends to, bool, of a shape that broadcasts to [texts, heads, chains, n].
            ahead: guesses of a chain.
        """
        n, places = rows.shape[1], self._torch.arange(rows.shape[1], device=rows.device)
        state = self.trained["fc"](rows)
        both = self._both(self.trained["embed_tokens"](tokens[:, 1 : 1 + n]), state)
        target = self._keys(both, places)
        hidden = self._torch.zeros(sees.shape, device=sees.device).masked_fill(~sees, float("-inf"))
        state, both = (each.take_along_dim(begins[..., None], 1) for each in (state, both))
        own = list[Any]()
        for step in range(ahead):
            turns = (begins + step)[:, None]
            if step:
                both = self._both(self.trained["embed_tokens"](tokens.gather(1, begins + 1 + step)), state)
                own.append(self._keys(both, turns))
            state = self._layer(state, turned(self._heads("q", both), _THETA, turns), target, own, hidden)
            yield state

    def _both(self, embedded: Any, state: Any) -> Any:
        """What the attention reads, [..., 2 * hidden]."""
        layer = self.trained["midlayer"]
        return self._torch.cat([layer["input_layernorm"](embedded), layer["hidden_norm"](state)], -1)

    def _heads(self, kind: str, both: Any) -> Any:
        """Queries ("q"), keys or values of all heads, [texts, heads, m, numbers of a head]."""
        found = self.trained["midlayer"]["self_attn"][f"{kind}_proj"](both)
        return found.view(*both.shape[:2], -1, _HEAD).transpose(1, 2)

    def _keys(self, both: Any, places: Any) -> tuple[Any, Any]:
        """Keys and values for each head of the queries."""
        attention = self.trained["midlayer"]["self_attn"]
        groups = attention["q_proj"].out_features // attention["k_proj"].out_features
        k, v = turned(self._heads("k", both), _THETA, places), self._heads("v", both)
        return k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)

    def _layer(self, state: Any, q: Any, target: tuple[Any, Any], own: Sequence[tuple[Any, Any]], hidden: Any) -> Any:
        """The layer at the next step of all chains.

        Args:
            state: [texts, chains, hidden].
            q: queries.
            target: keys and values of the target's rows.
            own: of the chain itself, one of each step from the second on.
            hidden: -inf for the target's rows that one does not attend to, else 0.
        """
        torch, layer, n = self._torch, self.trained["midlayer"], target[0].shape[2]
        scores = [q @ target[0].transpose(-1, -2) + hidden]
        scores += [(q * key).sum(-1, keepdim=True) for key, _ in own]
        weights = (torch.cat(scores, -1) / _HEAD**0.5).softmax(-1)
        mixed = weights[..., :n] @ target[1]
        for i, (_, value) in enumerate(own):
            mixed = mixed + weights[..., n + i : n + i + 1] * value
        stream = state + layer["self_attn"]["o_proj"](mixed.transpose(1, 2).flatten(2))
        inner, mlp = layer["post_attention_layernorm"](stream), layer["mlp"]
        return stream + mlp["down_proj"](torch.nn.functional.silu(mlp["gate_proj"](inner)) * mlp["up_proj"](inner))

    def logits(self, state: Any) -> Any:
        """Of the head's own rows, float32 [..., tokens]."""
        return self.trained["lm_head"](self.trained["norm"](state))

    def _places(
        self, batch: Sequence[Example], depth: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
        """The texts and numbers of the chains with a guess at `depth`, and the places in each answer that it is for."""
        begins = [begun(each, depth) for each in batch]
        texts = np.repeat(np.arange(len(batch)), [len(each) for each in begins])
        return texts, np.concatenate([np.arange(len(each)) for each in begins]), [at + depth for at in begins]

    def _tensor(self, values: npt.NDArray[Any]) -> Any:
        return self._torch.from_numpy(values).to(self._device)


def turned(x: Any, theta: float, places: Any) -> Any:
    """x [..., n, head_dim] turned by its places, of a shape that broadcasts to [..., n] (RoPE)."""
    import torch  # noqa: PLC0415

    half = x.shape[-1] // 2
    angles = places[..., None] * theta ** (-torch.arange(half, device=x.device) / half)
    cos, sin, first, second = angles.cos(), angles.sin(), x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
