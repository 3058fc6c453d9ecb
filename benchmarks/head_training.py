"""What the training of an EAGLE head needs: the target's own dialogues, what it computes of them, and the checkpoint.

The target writes its own training data: dialogues whose user turns are sampled and whose answers are greedy. Its rows
come through the tap of a session, as when the head drafts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from edgespec import Device, Interrupt
from edgespec.backends import FINAL, HiddenRows, Session, Vocabulary, open_model
from edgespec.converters.head_target import HeadTarget
from edgespec.errors import MissingPackage
from edgespec.types import Floats

_LONGEST = 512  # tokens of a dialogue
_TURN = 96  # tokens of a turn, at most


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long to train, and how fast.

    Args:
        steps: of training, or as many as `seconds` allow.
        batch: texts of a step.
        rate: of learning, at its highest.
    """

    steps: int
    seconds: float
    batch: int = 8
    rate: float = 3e-3


def torch_package() -> Any:
    """The module torch. Raises MissingPackage."""
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        raise MissingPackage("training a head needs torch; install it with `pip install torch`") from error
    return torch


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts, and what the target computed of them.

    Args:
        tokens: int32 [n].
        rows: float16 [n, k * width]: the inputs of the layers that were asked for, and the final state.
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


def texts_of(target: Path, layers: Sequence[int], tokens: int, seed: int, kept: Path | None) -> Texts:
    """About `tokens` tokens of dialogues, or those that were kept in the file `kept`."""
    if kept is not None and kept.exists():
        said = [json.loads(line)["tokens"] for line in kept.read_text("utf-8").splitlines()]
    else:
        said = _written(target, tokens, seed)
        if kept is not None:
            kept.write_text("".join(json.dumps({"tokens": each}) + "\n" for each in said), encoding="utf-8")
    texts = _collected(target, layers, said)
    click.echo(f"{len(texts.tokens)} tokens in {len(said)} dialogues")
    return texts


def most_common(texts: Texts, vocabulary: int, rows: int) -> npt.NDArray[np.int64]:
    """The `rows` most common tokens, ascending."""
    often = np.bincount(texts.tokens, minlength=vocabulary)
    chosen = np.sort(np.argsort(-often)[:rows]).astype(np.int64)
    click.echo(f"{len(chosen)} tokens are {often[chosen].sum() / often.sum():.2%} of the text")
    return chosen


def _written(target: Path, tokens: int, seed: int) -> list[list[int]]:
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


def _collected(target: Path, layers: Sequence[int], said: list[list[int]]) -> Texts:
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


def token_matrices(target: Path) -> tuple[Floats, Floats]:
    """A model's embeddings, and the matrix with which it makes logits; float32 [tokens, width]."""
    weights = HeadTarget.of(target).weights
    embedding, output = (
        np.concatenate([stored.float32(block) for block in stored.blocks()])
        for stored in (weights.embedding(), weights.output())
    )
    return embedding, output


def train(parameters: Sequence[Any], texts: Texts, loss_of: Callable[[Any, Any], Any], schedule: Schedule) -> None:
    """Train `parameters`; prints the loss and the share of guesses that are right.

    Args:
        loss_of: of tokens int64 [batch, n] and rows float32 [batch, n, k * width]: the loss, and shares of guesses that
            are right.
    """
    torch = torch_package()
    adam = torch.optim.AdamW(parameters, schedule.rate, betas=(0.9, 0.95), weight_decay=0.01)
    starts = np.cumsum([0, *texts.lengths[:-1]])
    draw, begun, hits = np.random.default_rng(0), time.perf_counter(), np.zeros(1)
    by_length = np.argsort(texts.lengths)
    for step in range(schedule.steps):
        share = max(step / schedule.steps, (time.perf_counter() - begun) / schedule.seconds)
        if share >= 1:
            break
        for group in adam.param_groups:
            group["lr"] = schedule.rate * min(1.0, (step + 1) / 30) * (0.5 + 0.5 * np.cos(np.pi * share))
        first = int(draw.integers(len(starts) - schedule.batch + 1))  # texts of about the same length
        chosen = by_length[first : first + schedule.batch]
        size = min(texts.lengths[n] for n in chosen)
        parts = [slice(starts[n], starts[n] + size) for n in chosen]
        tokens = torch.from_numpy(np.stack([texts.tokens[part] for part in parts]).astype(np.int64))
        rows = torch.from_numpy(np.stack([texts.rows[part] for part in parts]).astype(np.float32))
        adam.zero_grad()
        loss, found = loss_of(tokens, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        hits = 0.95 * hits + 0.05 * np.array(found)
        if step % 20 == 19:
            real = hits / (1 - 0.95 ** (step + 1))
            shares, seconds = " ".join(f"{hit:.1%}" for hit in real), time.perf_counter() - begun
            click.echo(f"{step + 1}: loss {loss.item():.3f}, right {shares}, {seconds:.0f} s")


def matrix(rows: int, columns: int, gain: float = 1.0) -> Any:
    """A parameter that begins as noise."""
    torch = torch_package()
    return torch.nn.Parameter(torch.randn(rows, columns) * gain / columns**0.5)


def normed(x: Any, weight: Any, epsilon: float) -> Any:
    """x with a root mean square of 1, times `weight`."""
    return x * (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * weight


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
