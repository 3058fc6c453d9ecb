"""From the options of `drafts` to trained drafts: the target answers, they learn, and what they guess is counted."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from .answers import Answering, Asking, Dialogue
from .distilling import Distilling, Pace, Pard, Student, masked
from .kit import kit_texts, records
from .models import model_of, read
from .packing import windows
from .saving import save_checkpoint
from .start import draft_of
from .tasks import TASKS, Maker

_TURNS = 8  # of a dialogue
_CASES = 12_000  # of tasks, with all dialogues
_SAMPLED, _WARM = 0.25, 0.7  # so many of the dialogues are answered at that temperature, the others greedily
_HELD = 200  # dialogues of which right guesses are counted
_DEPTH = 8
_REPORT = 15.0  # seconds between two lines


@dataclass(frozen=True)
class Wanted:
    """What the command was asked for. `steps` and `blocks` are files, or names of new drafts."""

    kit: Path
    target: Path
    output: Path
    device: str = "cpu"
    minutes: float = 2.0
    steps: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    mask: int = 190
    share: float = 1.0


def run(wanted: Wanted) -> Iterator[str]:
    """Do it; yields lines about it."""
    wanted.output.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    rng = random.Random("drafts")  # noqa: S311 - no secret
    tokenizer = Tokenizer.from_file(str(wanted.kit / "tokenizer.json"))
    target = model_of(*read(wanted.target)).to(wanted.device).eval()
    students = _students(wanted)
    began = time.monotonic()
    asked = _asked(wanted, rng)
    rng.shuffle(asked)
    sampled = int(len(asked) * _SAMPLED)
    known = list(Answering(target, tokenizer, Asking()).answered(asked[sampled:], rng))
    known += Answering(target, tokenizer, Asking(temperature=_WARM)).answered(asked[:sampled], rng)
    said = sum(sum(map(int, each.weights)) for each in known)
    yield f"{len(known)} dialogues with {said} tokens of answers in {time.monotonic() - began:.0f} s"
    held = records(wanted.kit, "dialogues", "held")
    turns = [_turns(each) for each in rng.sample(held, min(_HELD, len(held)))]
    unseen = list(Answering(target, tokenizer, Asking()).answered(turns, rng))
    yield from (f"before: {line}" for line in _counted(students, unseen))
    pace = Pace(60 * wanted.minutes, **({} if wanted.device.startswith("cuda") else {"rows": 2, "window": 512}))
    training, reported = Distilling(target, students, pace), 0.0
    for number, losses in enumerate(training.run(known)):
        if time.monotonic() - reported > _REPORT:
            yield f"step {number}: " + " ".join(f"{name}={loss:.4f}" for name, loss in losses.items())
            reported = time.monotonic()
    yield f"{training.tokens} tokens read"
    yield from _counted(students, unseen)
    for name, each in students.items():
        if each.pard is not None:
            each.model.config.pard_token, each.model.config.edgespec_parallel = each.pard.mask, each.pard.block
        save_checkpoint(each.model, wanted.kit, wanted.output / name)


def _students(wanted: Wanted) -> dict[str, Student]:
    made: dict[str, Student] = {}
    for given, pard in [*((each, None) for each in wanted.steps), *((each, Pard(wanted.mask)) for each in wanted.blocks)]:
        name, model = draft_of(given, wanted.kit)
        made[f"{name}-pard" if pard else name] = Student(model.to(wanted.device), pard)
    return made


def _asked(wanted: Wanted, rng: random.Random) -> list[list[str]]:
    """The turns of the user in dialogues and in cases of all tasks."""
    dialogues = records(wanted.kit, "dialogues", "train")
    chats = [_turns(each) for each in rng.sample(dialogues, int(len(dialogues) * wanted.share))]
    maker = Maker(kit_texts(wanted.kit, "train"), rng)
    return chats + [[maker.case(rng.choice(TASKS)).prompt] for _ in range(int(_CASES * wanted.share))]


def _turns(dialogue: dict[str, Any]) -> list[str]:
    return [each["content"] for each in dialogue["messages"] if each["role"] == "user"][:_TURNS]


@torch.no_grad()
def _counted(students: dict[str, Student], dialogues: Sequence[Dialogue]) -> Iterator[str]:
    """Which share of guesses is right by depth, where those before it are."""
    for name, student in students.items():
        device = next(student.model.parameters()).device
        generator, tried, right = torch.Generator(device).manual_seed(0), torch.zeros(_DEPTH), torch.zeros(_DEPTH)
        pard = student.pard or Pard(0, _DEPTH)
        rows = ((each.tokens, each.weights) for each in dialogues)
        for batch in _whole(rows, len(dialogues)):
            here = batch.to(str(device))
            made = masked(here, pard, generator)
            size = here.tokens.shape[1]
            if student.pard is None:
                guessed = student.model(here.tokens, attention_mask=here.mask(), position_ids=here.positions).logits
            else:
                guessed = student.model(made.tokens, attention_mask=made.sees, position_ids=made.positions).logits
            chosen = guessed.argmax(-1)
            places = made.aims[:, :, :1] - 1
            following = torch.cat([places, made.aims], 2)[:, :, :_DEPTH]
            truth = here.tokens.gather(1, (following + 1).clamp_max(size - 1).flatten(1)).view_as(following)
            own = chosen.gather(1, following.flatten(1)).view_as(following)
            if student.pard is not None:
                masks = chosen[:, size:].view(made.aims.shape)
                own[:, :, 1:] = masks[:, :, : _DEPTH - 1]
            counts = torch.cat([made.counts[:, :, :1], made.counts], 2)[:, :, :_DEPTH]
            hits = (own == truth) & counts
            before = torch.cat([torch.ones_like(hits[:, :, :1]), hits[:, :, :-1]], 2).long().cumprod(2) > 0
            tried += (before & counts).sum((0, 1)).cpu()
            right += (before & hits).sum((0, 1)).cpu()
        shares = (right / tried.clamp_min(1)).tolist()
        yield f"{name}: right by depth, where those before are: " + " ".join(f"{share:.1%}" for share in shares)


def _whole(rows: Iterator[tuple[list[int], list[float]]], count: int) -> Iterator[Any]:
    """Windows of all rows once, but for the last ones."""
    source = windows(rows, 4, 1024, random.Random(0))  # noqa: S311 - no secret
    for _ in range(max(1, count // 20)):
        try:
            yield next(source)
        except RuntimeError:  # the rows ended
            return
