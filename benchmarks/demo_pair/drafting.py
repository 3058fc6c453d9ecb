"""From the options of `drafts` to trained drafts: the target answers, they learn, and what they guess is counted."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from tokenizers import Tokenizer

from .answers import Answering, Asking, Dialogue
from .counting import right_by_depth
from .distilling import Distilling, Pace
from .growing import Weights
from .heads import HEADS
from .kit import kit_texts, records
from .layout import Layout
from .masks import Pard
from .models import model_of, read
from .pruning import pruned
from .start import draft_of
from .students import Blocks, Steps, Student
from .tasks import TASKS, Maker

_TURNS = 8  # of a dialogue
_CASES = 12_000  # of tasks, with all dialogues
_SAMPLED, _WARM = 0.25, 0.7  # so many of the dialogues are answered at that temperature, the others greedily
_HELD = 200  # dialogues of which right guesses are counted
_REPORT = 15.0  # seconds between two lines
_LAYERS = "layers:"  # of a draft that is made of the target's


@dataclass(frozen=True)
class Wanted:
    """What the command was asked for. `steps` and `blocks` are files, names of new drafts, or layers of the target."""

    kit: Path
    target: Path
    output: Path
    device: str = "cpu"
    minutes: float = 2.0
    steps: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    mask: int = 190
    share: float = 1.0


def run(wanted: Wanted) -> Iterator[str]:
    """Do it; yields lines about it.

    Raises:
        click.UsageError: no draft, two of one name, a mask that stands in a text, or a target that ends no answer.
    """
    if not (wanted.steps or wanted.blocks or wanted.heads):
        raise click.UsageError("nothing to train; give --draft, --pard or --head")
    source = read(wanted.target)
    target = model_of(*source).to(wanted.device).eval()
    students = _students(wanted, target, source)
    wanted.output.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    rng = random.Random("drafts")  # noqa: S311 - no secret
    began = time.monotonic()
    known = list(_answered(wanted, target, _asked(wanted, rng), rng))
    _require_use(known, wanted)
    said = sum(sum(map(int, each.weights)) for each in known)
    yield f"{len(known)} dialogues with {said} tokens of answers in {time.monotonic() - began:.0f} s"
    unseen = list(Answering(target, _tokenizer(wanted), Asking()).answered(_held(wanted, rng), rng))
    yield from (f"before: {line}" for line in _counted(target, students, unseen))
    yield from _trained(Distilling(target, students, _pace(wanted)), known)
    for name, each in students.items():
        each.save(wanted.kit, wanted.output / name)
    yield from _counted(target, students, unseen)


def _tokenizer(wanted: Wanted) -> Tokenizer:
    return Tokenizer.from_file(str(wanted.kit / "tokenizer.json"))


def _pace(wanted: Wanted) -> Pace:
    seconds = 60 * wanted.minutes
    return Pace(seconds) if wanted.device.startswith("cuda") else Pace(seconds, rows=2, window=512)


def _answered(wanted: Wanted, target: Any, asked: Sequence[Sequence[str]], rng: random.Random) -> Iterator[Dialogue]:
    sampled, tokenizer = int(len(asked) * _SAMPLED), _tokenizer(wanted)
    yield from Answering(target, tokenizer, Asking()).answered(asked[sampled:], rng)
    yield from Answering(target, tokenizer, Asking(temperature=_WARM)).answered(asked[:sampled], rng)


def _trained(training: Distilling, known: Sequence[Dialogue]) -> Iterator[str]:
    reported = -math.inf
    for number, losses in enumerate(training.run(known)):
        if time.monotonic() - reported > _REPORT:
            yield f"step {number}: " + " ".join(f"{name}={loss:.4f}" for name, loss in losses.items())
            reported = time.monotonic()
    yield f"{training.tokens} tokens read"


def _counted(target: Any, students: Mapping[str, Student], dialogues: Sequence[Dialogue]) -> Iterator[str]:
    for name, student in students.items():
        shares = " ".join(f"{share:.1%}" for share in right_by_depth(target, student, dialogues))
        yield f"{name}: right by depth, where those before are: {shares}"


def _students(wanted: Wanted, target: Any, source: tuple[dict[str, Any], Weights]) -> dict[str, Student]:
    made: dict[str, Student] = {name: HEADS[name](target) for name in wanted.heads}
    for chosen, pard, ending in ((wanted.steps, None, ""), (wanted.blocks, Pard(wanted.mask), "-pard")):
        for given in chosen:
            name, model = _model(given, wanted, source)
            if name + ending in made:
                raise click.UsageError(f"two drafts are called {name + ending}; rename a file")
            model.to(wanted.device)
            made[name + ending] = Steps(model) if pard is None else Blocks(model, pard)
    return made


def _model(given: str, wanted: Wanted, source: tuple[dict[str, Any], Weights]) -> tuple[str, Any]:
    """A name, and the draft of these layers of the target, or that of a file or of a new shape."""
    if not given.startswith(_LAYERS):
        return draft_of(given, wanted.kit)
    numbers, count = given.removeprefix(_LAYERS).split(","), source[0]["num_hidden_layers"]
    if not all(each.isdecimal() and int(each) < count for each in numbers) or len({*numbers}) < len(numbers):
        raise click.UsageError(f"{given} names no layers of the target; give some of 0 to {count - 1}, as layers:1,3")
    if Layout.of(source[0]["hidden_size"]).base < 1:
        raise click.UsageError("the target has no copying circuit to leave out; give one that `train` made, or a file")
    return "layers-" + "-".join(numbers), model_of(*pruned(*source, [*map(int, numbers)]))


def _require_use(known: Sequence[Dialogue], wanted: Wanted) -> None:
    """Raises click.UsageError if nothing can be learnt from these dialogues."""
    if not known:
        raise click.UsageError("the target ended none of its answers; give one that was trained on the kit's dialogues")
    if wanted.blocks and any(wanted.mask in each.tokens for each in known):
        raise click.UsageError(f"the texts have the token {wanted.mask}; give a --mask that no text has")


def _asked(wanted: Wanted, rng: random.Random) -> list[list[str]]:
    """The turns of the user in dialogues and in cases of all tasks."""
    dialogues = records(wanted.kit, "dialogues", "train")
    chats = [_turns(each) for each in rng.sample(dialogues, int(len(dialogues) * wanted.share))]
    maker = Maker(kit_texts(wanted.kit, "train"), rng)
    chats += [[maker.case(rng.choice(TASKS)).prompt] for _ in range(int(_CASES * wanted.share))]
    rng.shuffle(chats)
    return chats


def _held(wanted: Wanted, rng: random.Random) -> list[list[str]]:
    held = records(wanted.kit, "dialogues", "held")
    return [_turns(each) for each in rng.sample(held, min(_HELD, len(held)))]


def _turns(dialogue: dict[str, Any]) -> list[str]:
    return [each["content"] for each in dialogue["messages"] if each["role"] == "user"][:_TURNS]
