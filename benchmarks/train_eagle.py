"""Train a head of EAGLE-1 for a small target on a CPU: python -m benchmarks.train_eagle TARGET FOLDER

Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", arXiv 2401.15077.

The head learns to continue the target's final states: smooth L1 distance to the next state, and a tenth of the cross
entropy between the distributions that the target's output matrix makes of both. As the authors do, noise is added to
the states that it reads, because those that it will read when it drafts are its own. The target
writes the dialogues itself. FOLDER then holds a checkpoint for
`edgespec convert FOLDER --for TARGET --out head.onnx`.

Needs torch, of the extra `distill`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from edgespec.backends.gguf_header import header
from edgespec.distill.eagle3 import turned
from edgespec.types import Floats

from .head_training import (
    Schedule,
    matrix,
    most_common,
    normed,
    texts_of,
    token_matrices,
    torch_package,
    train,
    write_checkpoint,
)

_HEAD = 64  # numbers of an attention head
_LAYER = "layers.0."


def head_config(width: int, vocabulary: int) -> dict[str, Any]:
    """The config.json of the head."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": width // _HEAD,
        "num_key_value_heads": max(1, width // _HEAD // 2),
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "vocab_size": vocabulary,
        "bias": False,
    }


@dataclass(frozen=True, slots=True)
class Loss:
    """What is minimized.

    Args:
        kept: the tokens among which distributions are compared.
        noise: the greatest change of a number of a state that is read.
        entropy: the weight of the cross entropy beside the distance.
    """

    kept: npt.NDArray[np.int64]
    noise: float
    entropy: float


class Trainer:
    """Trains a head.

    Args:
        embedding: the target's embeddings, float32 [tokens, width].
        output: the matrix with which it makes logits, float32 [tokens, width].
    """

    def __init__(self, config: dict[str, Any], embedding: Floats, output: Floats, loss: Loss) -> None:
        torch = self._torch = torch_package()
        torch.manual_seed(0)
        self._config, self._loss = config, loss
        self._embedding, self._output = torch.from_numpy(embedding), torch.from_numpy(output[loss.kept])
        width, ffn = config["hidden_size"], config["intermediate_size"]
        kv = config["num_key_value_heads"] * _HEAD
        start = torch.cat([torch.zeros(width, width), torch.eye(width)], 1)  # the state as it was
        self._p = {
            "fc": torch.nn.Parameter(start + torch.randn(width, 2 * width) * 0.02),
            f"{_LAYER}self_attn.q_proj": matrix(width, width),
            f"{_LAYER}self_attn.k_proj": matrix(kv, width),
            f"{_LAYER}self_attn.v_proj": matrix(kv, width),
            f"{_LAYER}self_attn.o_proj": matrix(width, width, 0.2),
            f"{_LAYER}mlp.gate_proj": matrix(ffn, width),
            f"{_LAYER}mlp.up_proj": matrix(ffn, width),
            f"{_LAYER}mlp.down_proj": matrix(width, ffn, 0.2),
            f"{_LAYER}post_attention_layernorm": torch.nn.Parameter(torch.ones(width)),
        }

    @property
    def parameters(self) -> list[Any]:
        """What is trained."""
        return [*self._p.values()]

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The head as the tensors of a checkpoint."""
        return {f"{name}.weight": values.detach().numpy() for name, values in self._p.items()}

    def loss(self, tokens: Any, rows: Any) -> tuple[Any, list[float]]:
        """The loss, and the share of likeliest tokens that are the target's.

        The pair at position p is token p + 1 and the state of token p; the state of token p + 1 is to be found.
        """
        torch, wanted = self._torch, rows[:, 1:]
        with torch.no_grad():
            right = (wanted @ self._output.T).log_softmax(-1)
            read = rows[:, :-1] + (2 * torch.rand_like(wanted) - 1) * self._loss.noise
        state = self._state(self._embedding[tokens[:, 1:]], read)
        found = (state @ self._output.T).log_softmax(-1)
        distance = torch.nn.functional.smooth_l1_loss(state, wanted)
        entropy = -(right.exp() * found).sum(-1).mean()
        hits = (found.argmax(-1) == right.argmax(-1)).float().mean()
        return distance + self._loss.entropy * entropy, [float(hits)]

    def _state(self, embedded: Any, state: Any) -> Any:
        torch, p, theta = self._torch, self._p, self._config["rope_theta"]
        stream = torch.cat([embedded, state], -1) @ p["fc"].T
        batch, n = stream.shape[:2]
        q, k, v = (
            (stream @ p[f"{_LAYER}self_attn.{each}_proj"].T).view(batch, n, -1, _HEAD).transpose(1, 2) for each in "qkv"
        )
        groups = q.shape[1] // k.shape[1]
        places = torch.arange(n)
        k, v = (each.repeat_interleave(groups, 1) for each in (turned(k, theta, places), v))
        mixed = torch.nn.functional.scaled_dot_product_attention(turned(q, theta, places), k, v, is_causal=True)
        stream = stream + mixed.transpose(1, 2).reshape(batch, n, -1) @ p[f"{_LAYER}self_attn.o_proj"].T
        inner = normed(stream, p[f"{_LAYER}post_attention_layernorm"], self._config["rms_norm_eps"])
        gate = torch.nn.functional.silu(inner @ p[f"{_LAYER}mlp.gate_proj"].T)
        return stream + (gate * (inner @ p[f"{_LAYER}mlp.up_proj"].T)) @ p[f"{_LAYER}mlp.down_proj"].T


@click.command()
@click.argument("target", type=click.Path(path_type=Path, exists=True))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--tokens", default=300_000, show_default=True, help="Tokens of training text")
@click.option("--rows", default=2048, show_default=True, help="Tokens among which distributions are compared")
@click.option("--noise", default=0.1, show_default=True, help="Of the states that it reads, in their deviations")
@click.option("--entropy", default=0.1, show_default=True, help="The weight of the cross entropy")
@click.option("--steps", default=1200, show_default=True)
@click.option("--seconds", default=900.0, show_default=True, help="Time for training, at most")
@click.option("--texts", "kept", type=click.Path(path_type=Path), help="Training text, kept here or taken")
@click.option("--seed", default=1, show_default=True, help="Of the training text")
def main(  # noqa: PLR0913, PLR0917 - click passes every option
    target: Path,
    folder: Path,
    tokens: int,
    rows: int,
    noise: float,
    entropy: float,
    steps: int,
    seconds: float,
    kept: Path | None,
    seed: int,
) -> None:
    """Train a head for TARGET, a GGUF file of a chat model in ChatML, into FOLDER."""
    width = header(target).number("embedding_length")
    texts = texts_of(target, (), tokens, seed, kept)
    embedding, output = token_matrices(target)
    config = head_config(width, len(embedding))
    deviation = float(texts.rows.astype(np.float32).std())
    chosen = most_common(texts, len(embedding), rows)
    trainer = Trainer(config, embedding, output, Loss(chosen, noise * deviation, entropy))
    train(trainer.parameters, texts, trainer.loss, Schedule(steps, seconds))
    write_checkpoint(folder, config, trainer.tensors())
    click.echo(f"edgespec convert {folder} --for {target} --out head.onnx")


if __name__ == "__main__":
    main()
