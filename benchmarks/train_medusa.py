"""Train Medusa heads for a target from its own answers: Medusa-1 (Cai et al. 2024, arXiv 2401.10774).

    python -m benchmarks.train_medusa MODEL CHECKPOINT OUTPUT [--heads 4] [--held-out DIALOGUES.jsonl]

MODEL is what edgespec runs, CHECKPOINT the folder it was converted from, for its output matrix. The runtime writes
dialogues: turns of the user are sampled, answers greedy. It gives the states of all their tokens. Head i is trained to
predict, from the state of a token, the target's distribution of the token i + 2 places later, over the tokens that are
most common in answers. OUTPUT gets `medusa_lm_head.safetensors` with these tokens as `d2t`, which
`edgespec convert OUTPUT --for MODEL --out FILE` takes.

Acceptance by head is reported for answers to the users of DIALOGUES, lines of {"messages": [...]}: how often the
likeliest token of the head is the target's.

Needs torch. The demo target takes about ten minutes on two cores.
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import edgespec
from edgespec import Device, Runtime, Sampling
from edgespec.backends import FINAL
from edgespec.converters import decoder
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.stored_tensor import float32
from edgespec.engine import Text
from edgespec.errors import MissingPackage
from edgespec.terminal.options import grouped_options

PATH = click.Path(path_type=Path)
_USER, _ASSISTANT = "<|im_start|>user\n", "<|im_start|>assistant\n"  # ChatML
_BEGINNING = 0.25  # share of the target's output matrix that the heads begin with
_TURNS, _LONGEST, _USER_MOST, _ANSWER_MOST = 8, 700, 60, 120  # of a dialogue; tokens of it and of a turn
_BATCH = 256  # states of a step
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Training:
    """How to train.

    Args:
        heads: how many.
        tokens: that they have.
        dialogues: to write.
        epochs: passes over their states.
        rate: of learning, at its highest.
        threads: of the runtime; 0 for as many as there are cores.
    """

    heads: int = 4
    tokens: int = 1536
    dialogues: int = 400
    epochs: int = 4
    rate: float = 2e-3
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A text by tokens, and the ranges of the answers in it."""

    tokens: Sequence[int]
    answers: Sequence[tuple[int, int]]


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        raise MissingPackage("training needs torch; install it with `pip install torch`") from None
    return torch


def written(runtime: Runtime, count: int) -> Iterator[Dialogue]:
    """Dialogues that the target writes, both sides."""
    words = runtime.vocabulary
    user, assistant, end = (words.tokenize(text, special=True) for text in (_USER, _ASSISTANT, "\n"))
    for number in range(count):
        tokens, answers = list(user), []
        for turn in range(_TURNS):
            sampling = Sampling(temperature=1.0, seed=1000 * number + turn)
            tokens += _ended(runtime, _said(runtime, tokens, sampling, _USER_MOST))
            tokens += [*end, *assistant]
            start = len(tokens)
            tokens += _ended(runtime, _said(runtime, tokens, Sampling(), _ANSWER_MOST))
            answers.append((start, len(tokens)))
            if len(tokens) > _LONGEST:
                break
            tokens += [*end, *user]
        yield Dialogue(tokens, answers)


def answered(runtime: Runtime, messages: Sequence[dict[str, str]]) -> Iterator[Dialogue]:
    """The target's answers to the user of a dialogue, each with what precedes it."""
    past: list[dict[str, str]] = []
    for message in messages:
        if message["role"] != "user":
            continue
        past.append(message)
        prompt = runtime.prompt(past)
        if len(prompt) > _LONGEST:
            return
        answer = _said(runtime, prompt, Sampling(), _ANSWER_MOST)
        yield Dialogue([*prompt, *answer], [(len(prompt), len(prompt) + len(answer))])
        past.append({"role": "assistant", "content": runtime.text(answer)})


def _said(runtime: Runtime, tokens: Sequence[int], sampling: Sampling, most: int) -> list[int]:
    events = runtime.complete(tokens, sampling, max_tokens=most)
    return [token for event in events if isinstance(event, Text) for token in event.tokens]


def _ended(runtime: Runtime, tokens: list[int]) -> list[int]:
    """`tokens` with the end of a turn."""
    end = runtime.vocabulary.eos
    return tokens if end is None or (tokens and tokens[-1] == end) else [*tokens, end]


class _States:
    """A listener that keeps all states."""

    def __init__(self) -> None:
        self.rows: list[Floats] = []

    def heard(self, start: int, tokens: Sequence[int], rows: Floats) -> None:  # noqa: ARG002 - a Listener's
        del self.rows[start:]
        self.rows.extend(rows.astype(np.float16))

    def forget(self, length: int) -> None:
        del self.rows[length:]


def states(runtime: Runtime, dialogues: Sequence[Dialogue]) -> Iterator[npt.NDArray[np.float16]]:
    """The final states of the tokens of each dialogue, float16 [n, width]."""
    session, heard = runtime.session, _States()
    session.rollback(0)
    session.follow((FINAL,), heard)  # type: ignore[attr-defined]
    for dialogue in dialogues:
        session.rollback(0)
        session.prefill(dialogue.tokens[: session.context])
        yield np.stack(heard.rows)


def output_matrix(folder: Path) -> Floats:
    """The matrix of a checkpoint that makes logits of states, float32 [vocabulary, width]."""
    checkpoint = Checkpoint.open(folder)
    graph = decoder.read(checkpoint)
    role = "token_embd" if graph.tied else "output"
    (weight,) = (each for each in graph.weights() if each.role == role)
    (stored,) = weight.stored(checkpoint)
    return np.concatenate([float32(block) for block in stored.blocks()])


def module(matrix: Floats, heads: int) -> Any:
    """Heads that begin as a flat version of the target's own output.

    Args:
        matrix: its rows of the heads' tokens.
    """
    torch = _torch()
    vocabulary, width = matrix.shape
    made = torch.nn.ModuleList()
    for _ in range(heads):
        block, output = torch.nn.Linear(width, width), torch.nn.Linear(width, vocabulary, bias=False)
        torch.nn.init.zeros_(block.weight)
        torch.nn.init.zeros_(block.bias)
        output.weight.data = torch.from_numpy(_BEGINNING * matrix)
        made.append(torch.nn.ModuleDict({"0": block, "1": output}))
    return made


def guessed(head: Any, x: Any) -> Any:
    """Logits of a head."""
    return head["1"](x + _torch().nn.functional.silu(head["0"](x)))


def places_of(dialogues: Sequence[Dialogue], texts: Sequence[Any], ahead: int) -> npt.NDArray[np.int64]:
    """The places in all texts together whose next token and `ahead` more are of one answer."""
    found, base = [], 0
    for dialogue, text in zip(dialogues, texts, strict=True):
        found += [
            np.arange(base + start - 1, base + min(end, len(text)) - 1 - ahead) for start, end in dialogue.answers
        ]
        base += len(text)
    return np.concatenate(found)


def trained(
    heads: Any, matrix: Any, dialogues: Sequence[Dialogue], texts: Sequence[Any], training: Training
) -> Iterator[str]:
    """Train the heads; yields what to report.

    Args:
        matrix: the rows of the target's output matrix for the tokens of the heads.
    """
    torch = _torch()
    whole, places = torch.cat(list(texts)), places_of(dialogues, texts, 1)
    last = len(whole) - 1
    optimizer = torch.optim.AdamW(heads.parameters(), lr=training.rate, betas=(0.9, 0.98), weight_decay=0.01)
    steps = training.epochs * (len(places) // _BATCH)
    order, started, loss = np.random.default_rng(0), time.perf_counter(), math.nan
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = (
                training.rate * min(1, (step + 1) / 30) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))
            )
        chosen = torch.from_numpy(order.choice(places, _BATCH))
        with torch.autocast("cpu", torch.bfloat16):
            x, total = whole[chosen].float(), torch.zeros(())
            for depth, head in enumerate(heads, 1):
                with torch.no_grad():
                    wanted = (whole[(chosen + depth).clamp(max=last)].float() @ matrix.T).float().softmax(-1)
                total = total - (wanted * guessed(head, x).float().log_softmax(-1)).sum(-1).mean() * 0.8**depth
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        now = float(total.detach())
        loss = now if math.isnan(loss) else 0.98 * loss + 0.02 * now
        if step % 50 == 0:
            yield f"step {step} of {steps}: loss {loss:.3f}, {time.perf_counter() - started:.0f} s"


def acceptance(heads: Any, ids: Any, dialogues: Sequence[Dialogue], texts: Sequence[Any]) -> list[float]:
    """How often the likeliest token of each head is that of the answers.

    Args:
        ids: the target's token for each row of a head.
    """
    torch = _torch()
    right, asked = np.zeros(len(heads)), np.zeros(len(heads))
    for dialogue, text in zip(dialogues, texts, strict=True):
        tokens = np.asarray(dialogue.tokens)
        for start, end in dialogue.answers:
            with torch.inference_mode():
                for depth, head in enumerate(heads, 1):
                    # The state of token t guesses token t + 1 + depth; the first token committed is that at `start`.
                    x = text[start - 1 : end - 1 - depth].float()
                    if len(x):
                        best = ids[guessed(head, x).argmax(-1).numpy()]
                        right[depth - 1] += (best == tokens[start + depth : end]).sum()
                        asked[depth - 1] += len(x)
    shares: list[float] = (right / np.maximum(1, asked)).tolist()
    return shares


def write_heads(heads: Any, ids: npt.NDArray[np.int64], folder: Path) -> None:
    """`medusa_lm_head.safetensors`, float16, and a config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {f"{i}.{name.replace('0.', '0.linear.')}": tensor for i, head in enumerate(heads)
             for name, tensor in head.state_dict().items()}  # fmt: skip
    header, offset, data = {}, 0, []
    arrays = {name: tensor.detach().half().contiguous().numpy() for name, tensor in named.items()}
    for name, array in {"d2t": ids, **arrays}.items():
        raw, kind = array.tobytes(), "I64" if array is ids else "F16"
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        data.append(raw)
    text = json.dumps(header).encode()
    (folder / "medusa_lm_head.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    config = {"medusa_num_heads": len(heads), "medusa_num_layers": 1}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def collected(runtime: Runtime, count: int, kept: Path | None) -> list[Dialogue]:
    """Dialogues that the target writes, or those that were kept."""
    if kept is not None and kept.exists():
        lines = [json.loads(line) for line in kept.read_text("utf-8").splitlines()]
        return [Dialogue(line["tokens"], line["answers"]) for line in lines][:count]
    found, started = [], time.perf_counter()
    for dialogue in written(runtime, count):
        found.append(dialogue)
        if len(found) % 20 == 0:
            click.echo(f"{len(found)} dialogues after {time.perf_counter() - started:.0f} s")
    if kept is not None:
        lines = [{"tokens": each.tokens, "answers": each.answers} for each in found]
        kept.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return found


def common(dialogues: Sequence[Dialogue], vocabulary: int, count: int) -> npt.NDArray[np.int64]:
    """The most common tokens of answers, ascending."""
    said = [dialogue.tokens[start:end] for dialogue in dialogues for start, end in dialogue.answers]
    often = np.bincount(np.concatenate([np.asarray(each, np.int64) for each in said]), minlength=vocabulary)
    return np.sort(np.argsort(-often, kind="stable")[:count])


_OPTIONS = grouped_options(
    Training,
    "training",
    click.option("--heads", default=4, show_default=True, help="How many"),
    click.option("--tokens", default=1536, show_default=True, help="That the heads have, the most common ones"),
    click.option("--dialogues", default=400, show_default=True, help="To write and to train on"),
    click.option("--epochs", default=4, show_default=True, help="Passes over them"),
    click.option("--rate", default=2e-3, show_default=True, help="Of learning"),
    click.option("--threads", default=0, help="Of the runtime [default: as many as there are cores]"),
)


@click.command()
@click.argument("model", type=PATH)
@click.argument("checkpoint", type=PATH)
@click.argument("output", type=PATH)
@_OPTIONS
@click.option("--draft", type=PATH, help="A draft model, to write faster")
@click.option("--held-out", type=PATH, help="Dialogues to measure acceptance on")
@click.option("--held-out-count", default=60, show_default=True, help="How many, from the end of the file")
@click.option("--text", "kept", type=PATH, help="Where the dialogues are kept, for a second run")
def main(  # noqa: PLR0913, PLR0917 - a command's options
    model: Path,
    checkpoint: Path,
    output: Path,
    training: Training,
    draft: Path | None,
    held_out: Path | None,
    held_out_count: int,
    kept: Path | None,
) -> None:
    """Train heads for MODEL and write them to OUTPUT."""
    torch = _torch()
    torch.manual_seed(0)
    matrix = output_matrix(checkpoint)
    with edgespec.load(model, draft or "none", device=Device(context=1024, threads=training.threads)) as runtime:
        dialogues = collected(runtime, training.dialogues, kept)
        lines = held_out.read_text("utf-8").splitlines()[-held_out_count:] if held_out else []
        tests = [each for line in lines for each in answered(runtime, json.loads(line)["messages"])]
        texts = [torch.from_numpy(each) for each in states(runtime, [*dialogues, *tests])]
    own, others = texts[: len(dialogues)], texts[len(dialogues) :]
    click.echo(f"{sum(map(len, own))} states of {len(dialogues)} dialogues to train on")
    ids = common(dialogues, len(matrix), training.tokens)
    heads = module(matrix[ids], training.heads)
    for line in trained(heads, torch.from_numpy(matrix[ids]), dialogues, own, training):
        click.echo(line)
    if tests:
        shares = acceptance(heads, ids, tests, others)
        click.echo("acceptance by head: " + ", ".join(f"{share:.3f}" for share in shares))
    write_heads(heads, ids, output)


if __name__ == "__main__":
    main()
