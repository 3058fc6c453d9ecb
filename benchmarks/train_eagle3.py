"""Train an EAGLE-3 head for a small target on a CPU (arXiv 2503.01840): python -m benchmarks.train_eagle3 TARGET FOLDER

The target writes its own training data: dialogues whose user turns are sampled and whose answers are greedy. The
states of three of its layers and its distributions come through the tap of a session, as when the head drafts. The head
learns these distributions in the training-time test: from its own output in place of the target's states, as far ahead
as it will draft. FOLDER then holds a checkpoint for `edgespec convert FOLDER --for TARGET --out head.gguf`.

Needs torch, which is no part of any extra.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from edgespec import Device, Interrupt
from edgespec.backends import FINAL, HiddenRows, Session, Vocabulary, open_model
from edgespec.backends.gguf_header import header
from edgespec.errors import MissingPackage
from edgespec.types import Floats

_LONGEST = 512  # tokens of a dialogue
_TURN = 96  # tokens of a turn, at most
_DECAY = 0.8  # of the loss, by step ahead


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts, and what the target computed of them.

    Args:
        tokens: int32 [n].
        rows: float16 [n, 4 * width]: the inputs of three layers, and the final state.
        lengths: of the texts.
    """

    tokens: npt.NDArray[np.int32]
    rows: npt.NDArray[np.float16]
    lengths: list[int]


class _Recorder:
    """A listener that keeps the rows of a text."""

    def __init__(self) -> None:
        self.rows: list[Floats] = []

    def heard(self, start: int, tokens: Sequence[int], rows: Floats) -> None:
        del self.rows[start:]
        self.rows += [row.copy() for row in rows[: len(tokens)]]

    def forget(self, length: int) -> None:
        del self.rows[length:]


def write(target: Path, tokens: int, seed: int) -> list[list[int]]:
    """Let the target write dialogues of about `tokens` tokens."""
    draw, found = np.random.default_rng(seed), list[list[int]]()
    with (
        closing(open_model(target, Device(threads=1), Interrupt())) as model,
        closing(model.session(_LONGEST + 1)) as session,
    ):
        while sum(map(len, found)) < tokens:
            session.rollback(0)
            _dialogue(session, model.vocabulary, draw)
            found.append(list(session.tokens))
    return found


def collect(target: Path, layers: Sequence[int], said: list[list[int]]) -> Texts:
    """What the target computes of these texts."""
    recorder = _Recorder()
    rows: list[npt.NDArray[np.float16]] = []
    with (
        closing(open_model(target, Device(threads=1), Interrupt())) as model,
        closing(model.session(max(map(len, said)) + 1)) as session,
    ):
        if not isinstance(session, HiddenRows):
            raise MissingPackage("this engine gives no hidden rows; give a GGUF file")
        session.follow((*layers, FINAL), recorder)
        for tokens in said:
            session.rollback(0)
            session.prefill(tokens)
            rows.append(np.stack(recorder.rows).astype(np.float16))
    flat = np.array([token for tokens in said for token in tokens], np.int32)
    return Texts(flat, np.concatenate(rows), [len(tokens) for tokens in said])


def _dialogue(session: Session, vocabulary: Vocabulary, draw: np.random.Generator) -> None:
    """Fill the session with one dialogue; its length is random."""
    (end,) = vocabulary.tokenize("<|im_end|>", special=True)
    longest = int(draw.integers(_LONGEST // 2, _LONGEST))
    while True:
        for speaker in ("user", "assistant"):
            opening = vocabulary.tokenize(f"<|im_start|>{speaker}\n", special=True)
            if len(session.tokens) + len(opening) + _TURN > longest:
                return
            row = session.decode(opening)[-1]
            for _ in range(_TURN):
                # Noise of Gumbel's distribution makes the greatest one a sample.
                token = int((row + draw.gumbel(size=len(row)) if speaker == "user" else row).argmax())
                row = session.decode([token])[-1]
                if token == end:
                    break
            session.decode(vocabulary.tokenize("\n") if token == end else [end])


def embeddings(target: Path) -> Floats:
    """The matrix of a GGUF file's embeddings, float32 [tokens, width]."""
    from gguf import GGUFReader  # noqa: PLC0415
    from gguf.quants import dequantize  # noqa: PLC0415

    tensor = next(each for each in GGUFReader(target).tensors if each.name == "token_embd.weight")
    found: Floats = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    return found


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


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, npt.NDArray[Any]]) -> None:
    """Write a checkpoint of float32 and int64 tensors."""
    entries, offset, kinds = {}, 0, {"float32": "F32", "int64": "I64"}
    for name, values in tensors.items():
        place = [offset, offset + values.nbytes]
        entries[name] = {"dtype": kinds[values.dtype.name], "shape": list(values.shape), "data_offsets": place}
        offset = place[1]
    text = json.dumps(entries).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())


class Trainer:
    """Trains a head on texts.

    Args:
        kept: the tokens that it has rows for, ascending.
        ahead: how many tokens it learns to draft.
    """

    def __init__(self, config: dict[str, Any], embedding: Floats, kept: npt.NDArray[np.int64], ahead: int) -> None:
        try:
            import torch  # noqa: PLC0415
        except ImportError as error:
            raise MissingPackage("training a head needs torch; install it with `pip install torch`") from error
        self._torch, self._config, self._ahead = torch, config, ahead
        self._kept = torch.from_numpy(kept)
        self._output = torch.from_numpy(embedding[kept])  # the target's, for the tokens kept
        torch.manual_seed(0)
        hidden, width, ffn = config["hidden_size"], embedding.shape[1], config["intermediate_size"]
        heads, kv = (config[f"num_{kind}_heads"] * 64 for kind in ("attention", "key_value"))
        # The head's narrower space begins as the directions in which embeddings differ most.
        *_, basis = np.linalg.svd(embedding, full_matrices=False)
        narrow = torch.from_numpy(embedding @ basis[:hidden].T)

        def matrix(rows: int, columns: int, gain: float = 1.0) -> Any:
            return torch.nn.Parameter(torch.randn(rows, columns) * gain / columns**0.5)

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

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The head as the tensors of a checkpoint."""
        found = {f"{name}.weight": values.detach().numpy() for name, values in self._p.items()}
        kept = self._kept.numpy()
        return {**found, "d2t": kept - np.arange(len(kept))}

    def train(self, texts: Texts, steps: int, batch: int, rate: float, seconds: float) -> None:
        """Take `steps` steps, or as many as `seconds` allow; prints the share of first guesses that are right."""
        torch = self._torch
        adam = torch.optim.AdamW(self._p.values(), rate, betas=(0.9, 0.95), weight_decay=0.01)
        starts = np.cumsum([0, *texts.lengths[:-1]])
        draw, begun, hits = np.random.default_rng(0), time.perf_counter(), [0.0] * self._ahead
        width, by_length = texts.rows.shape[1] // 4, np.argsort(texts.lengths)
        for step in range(steps):
            share = max(step / steps, (time.perf_counter() - begun) / seconds)
            if share >= 1:
                break
            for group in adam.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 30) * (0.5 + 0.5 * np.cos(np.pi * share))
            first = int(draw.integers(len(starts) - batch + 1))  # texts of about the same length
            chosen = by_length[first : first + batch]
            size = min(texts.lengths[n] for n in chosen)
            parts = [slice(starts[n], starts[n] + size) for n in chosen]
            tokens = torch.from_numpy(np.stack([texts.tokens[part] for part in parts]).astype(np.int64))
            rows = torch.from_numpy(np.stack([texts.rows[part] for part in parts]).astype(np.float32))
            adam.zero_grad()
            loss, found = self._loss(tokens, rows[..., : 3 * width], rows[..., 3 * width :])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._p.values(), 1.0)
            adam.step()
            hits = [0.95 * old + 0.05 * new for old, new in zip(hits, found, strict=True)]
            if step % 20 == 19:
                real = [hit / (1 - 0.95 ** (step + 1)) for hit in hits]
                click.echo(f"{step + 1}: loss {loss.item():.3f}, right {' '.join(f'{hit:.1%}' for hit in real)}")

    def _loss(self, tokens: Any, features: Any, final: Any) -> tuple[Any, list[float]]:
        """The loss over all steps ahead, and the share of likeliest tokens that are the target's, by step."""
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
        q, k = self._turned(q, step), self._turned(k, step)
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
        return x * (x.pow(2).mean(-1, keepdim=True) + self._config["rms_norm_eps"]).rsqrt() * self._p[name]

    def _turned(self, x: Any, step: int) -> Any:
        torch, half = self._torch, 32
        turns = torch.arange(x.shape[2])[:, None] + step
        angles = turns * self._config["rope_theta"] ** (-torch.arange(half) / half)
        cos, sin, first, second = angles.cos(), angles.sin(), x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


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
) -> None:
    """Train a head for TARGET, a GGUF file of a chat model in ChatML with tied embeddings, into FOLDER."""
    count = header(target).layers
    layers = tuple(sorted({max(1, count // 4), count // 2, count - 1}))
    if kept is not None and kept.exists():
        said = [json.loads(line)["tokens"] for line in kept.read_text("utf-8").splitlines()]
    else:
        said = write(target, tokens, seed)
        if kept is not None:
            kept.write_text("".join(json.dumps({"tokens": each}) + "\n" for each in said), encoding="utf-8")
    texts = collect(target, layers, said)
    click.echo(f"{len(texts.tokens)} tokens in {len(said)} dialogues")
    common = np.bincount(texts.tokens, minlength=header(target).vocabulary.size)
    chosen = np.sort(np.argsort(-common)[:rows]).astype(np.int64)
    click.echo(f"{len(chosen)} tokens are {common[chosen].sum() / common.sum():.2%} of the text")
    config = head_config(target, hidden, layers, len(chosen))
    trainer = Trainer(config, embeddings(target), chosen, ahead)
    trainer.train(texts, steps, 8, 3e-3, seconds)
    write_checkpoint(folder, config, trainer.tensors())
    click.echo(f"edgespec convert {folder} --for {target} --out head.gguf")


if __name__ == "__main__":
    main()
