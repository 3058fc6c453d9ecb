"""Train an EAGLE-3 head for a small target on a CPU (arXiv 2503.01840): python -m benchmarks.train_eagle3 TARGET FOLDER

The target writes its own training data: dialogues whose user turns are sampled and whose answers are greedy. The
states of three of its layers and its distributions come through the tap of a session, as when the head drafts. The head
learns these distributions in the training-time test: from its own output in place of the target's states, as far ahead
as it will draft. FOLDER then holds a checkpoint for `edgespec convert FOLDER --for TARGET --out head.gguf`.

A step of training with `--ahead 1` takes a fraction of the time of one with 4, and the first guess is what all others
build on: train with 1 for most of the time, and then with 4 from there (`--from FOLDER`).

Needs torch, which is no part of any extra.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from edgespec.backends.gguf_header import header
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.stored_tensor import float32
from edgespec.types import Floats

from .head_training import (
    Schedule,
    matrix,
    most_common,
    normed,
    output_matrix,
    texts_of,
    torch_package,
    train,
    turned,
    write_checkpoint,
)

_DECAY = 0.5  # of the loss, by step ahead


def head_config(target: Path, hidden: int, layers: Sequence[int], rows: int) -> dict[str, Any]:
    """The config.json of the head."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "head_dim": 64,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "draft_vocab_size": rows,
        "target_hidden_size": header(target).number("embedding_length"),
        "eagle_aux_hidden_state_layer_ids": list(layers),
    }


class Trainer:
    """Trains a head on texts.

    Args:
        kept: the tokens that it has rows for, ascending.
        ahead: how many tokens it learns to draft.
    """

    def __init__(self, config: dict[str, Any], embedding: Floats, kept: npt.NDArray[np.int64], ahead: int) -> None:
        torch = torch_package()
        self._torch, self._config, self._ahead = torch, config, ahead
        self._kept = torch.from_numpy(kept)
        self._output = torch.from_numpy(embedding[kept])  # the target's, for the tokens kept
        torch.manual_seed(0)
        hidden, width, ffn = config["hidden_size"], embedding.shape[1], config["intermediate_size"]
        heads, kv = (config[f"num_{kind}_heads"] * 64 for kind in ("attention", "key_value"))
        # The head's narrower space begins as the directions in which embeddings differ most.
        *_, basis = np.linalg.svd(embedding, full_matrices=False)
        narrow = torch.from_numpy(embedding @ basis[:hidden].T)

        def ones() -> Any:
            return torch.nn.Parameter(torch.ones(hidden))

        self._p = {
            "embed_tokens": torch.nn.Parameter(narrow / narrow.std()),
            "fc": matrix(hidden, 3 * width),
            "midlayer.self_attn.q_proj": matrix(heads, 2 * hidden),
            "midlayer.self_attn.k_proj": matrix(kv, 2 * hidden),
            "midlayer.self_attn.v_proj": matrix(kv, 2 * hidden),
            "midlayer.self_attn.o_proj": matrix(hidden, heads, 0.5),
            "midlayer.mlp.gate_proj": matrix(ffn, hidden),
            "midlayer.mlp.up_proj": matrix(ffn, hidden),
            "midlayer.mlp.down_proj": matrix(hidden, ffn, 0.5),
            "midlayer.input_layernorm": ones(),
            "midlayer.hidden_norm": ones(),
            "midlayer.post_attention_layernorm": ones(),
            "norm": ones(),
            "lm_head": torch.nn.Parameter(narrow[self._kept] / narrow.std() / hidden**0.5),
        }

    def load(self, folder: Path) -> None:
        """Go on from the checkpoint in `folder`, of the same shape."""
        stored = Checkpoint.open(folder).tensors
        for name, values in self._p.items():
            found = stored[f"{name}.weight"]
            rows = np.concatenate([float32(block) for block in found.blocks()]).reshape(found.shape)
            values.data = self._torch.from_numpy(rows)

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The head as the tensors of a checkpoint."""
        found = {f"{name}.weight": values.detach().numpy() for name, values in self._p.items()}
        kept = self._kept.numpy()
        return {**found, "d2t": kept - np.arange(len(kept))}

    @property
    def parameters(self) -> list[Any]:
        """What is trained."""
        return [*self._p.values()]

    def loss(self, tokens: Any, rows: Any) -> tuple[Any, list[float]]:
        """The loss over all steps ahead, and the share of likeliest tokens that are the target's, by step."""
        width = rows.shape[2] // 4
        features, final = rows[..., : 3 * width], rows[..., 3 * width :]
        torch, ahead, n = self._torch, self._ahead, tokens.shape[1]
        chains = n - ahead - 1  # position p begins a chain: token p + 1 and the row of p
        with torch.no_grad():
            wanted = (final @ self._output.T).log_softmax(-1)
        state = features[:, :chains] @ self._p["fc"].T
        keys: list[Any] = []
        loss, hits = 0.0, []
        for step in range(ahead):
            said = tokens[:, 1 + step : 1 + step + chains]
            state = self._layer(self._p["embed_tokens"][said], state, keys, step)
            logits = (self._norm(state, "norm") @ self._p["lm_head"].T).log_softmax(-1)
            right = wanted[:, 1 + step : 1 + step + chains]
            loss = loss + _DECAY**step * (right.exp() * (right - logits)).sum(-1).mean()
            hits.append(float((logits.argmax(-1) == right.argmax(-1)).float().mean()))
        return loss, hits

    def _layer(self, embedded: Any, state: Any, keys: list[Any], step: int) -> Any:
        """The layer at `step` of all chains. Each attends to the target's rows up to its own, and to itself."""
        torch, p = self._torch, self._p
        both = torch.cat(
            [self._norm(embedded, "midlayer.input_layernorm"), self._norm(state, "midlayer.hidden_norm")], -1
        )
        batch, n = state.shape[:2]
        q, k, v = (
            (both @ p[f"midlayer.self_attn.{each}_proj"].T).view(batch, n, -1, 64).transpose(1, 2) for each in "qkv"
        )
        groups = q.shape[1] // k.shape[1]
        q, k = turned(q, self._config["rope_theta"], step), turned(k, self._config["rope_theta"], step)
        k, v = (each.repeat_interleave(groups, 1) for each in (k, v))
        keys.append((k, v))
        first, values = keys[0]
        scores = [q @ first.transpose(-1, -2) + torch.full((n, n), float("-inf")).triu(1)]
        scores += [(q * own).sum(-1, keepdim=True) for own, _ in keys[1:]]
        weights = (torch.cat(scores, -1) / 8.0).softmax(-1)
        mixed = weights[..., :n] @ values
        for i, (_, own) in enumerate(keys[1:]):
            mixed = mixed + weights[..., n + i : n + i + 1] * own
        stream = state + mixed.transpose(1, 2).reshape(batch, n, -1) @ p["midlayer.self_attn.o_proj"].T
        inner = self._norm(stream, "midlayer.post_attention_layernorm")
        gate = torch.nn.functional.silu(inner @ p["midlayer.mlp.gate_proj"].T)
        return stream + (gate * (inner @ p["midlayer.mlp.up_proj"].T)) @ p["midlayer.mlp.down_proj"].T

    def _norm(self, x: Any, name: str) -> Any:
        return normed(x, self._p[name], self._config["rms_norm_eps"])


@click.command()
@click.argument("target", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--tokens", default=300_000, show_default=True, help="Tokens of training text")
@click.option("--hidden", type=click.IntRange(128), default=256, show_default=True, help="Width of the head")
@click.option("--rows", default=2048, show_default=True, help="Tokens that it can guess")
@click.option("--ahead", default=4, show_default=True, help="Tokens that it learns to draft")
@click.option("--steps", default=1200, show_default=True)
@click.option("--seconds", default=900.0, show_default=True, help="Time for training, at most")
@click.option("--texts", "kept", type=click.Path(path_type=Path), help="Training text, kept here or taken")
@click.option("--seed", default=1, show_default=True, help="Of the training text")
@click.option("--from", "start", type=click.Path(path_type=Path, exists=True), help="Go on from this checkpoint")
@click.option("--rate", default=3e-3, show_default=True, help="Of learning, at its highest")
@click.option("--batch", default=8, show_default=True, help="Texts of a step")
def main(  # noqa: PLR0913, PLR0917 - click passes every option
    target: Path,
    folder: Path,
    tokens: int,
    hidden: int,
    rows: int,
    ahead: int,
    steps: int,
    seconds: float,
    kept: Path | None,
    seed: int,
    start: Path | None,
    rate: float,
    batch: int,
) -> None:
    """Train a head for TARGET, a GGUF file of a chat model in ChatML with tied embeddings, into FOLDER."""
    count = header(target).layers
    layers = tuple(sorted({max(1, count // 4), count // 2, count - 1}))
    texts = texts_of(target, layers, tokens, seed, kept)
    chosen = most_common(texts, header(target).vocabulary.size, rows)
    config = head_config(target, hidden, layers, len(chosen))
    trainer = Trainer(config, output_matrix(target), chosen, ahead)
    if start is not None:
        trainer.load(start)
    train(trainer.parameters, texts, trainer.loss, Schedule(steps, seconds, batch, rate))
    write_checkpoint(folder, config, trainer.tensors())
    click.echo(f"edgespec convert {folder} --for {target} --out head.gguf")


if __name__ == "__main__":
    main()
