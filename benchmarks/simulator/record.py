"""Record, once, what a draft model would have guessed at every token of a set of answers.

    python -m benchmarks.simulator.record DIALOGUES.jsonl [--target T.gguf --draft D.gguf]

Five tasks. `chat`: the target answers the user turns of a dialogue, greedily, to their end. `copy`: asked to repeat a
dialogue, or to rewrite it with a word replaced; the answer is computed and the target made to say it, for so small a
model copies badly. `hard`: the words of a true answer in random order, which no drafter can guess. `mix`: pieces of
about 60 tokens (20 rounds at 3 tokens a round) of the three in turn. `kinds`, at temperature 0 alone: the mix of
`benchmarks/kinds.py`, whose prompts tell what they ask for.

At every token the draft model goes on by itself for 15 tokens, and its two first choices and their probabilities are
kept. With the verifier `match` that is all there is to know: a drafted token is accepted if the answer says it. With
--temperature 0.8 the target draws its answers and the draft model its guesses, by the noise that both share.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from edgespec import load, models
from edgespec.backends import Device, Interrupt, Model, Session, open_model
from edgespec.sampling import Sampling, distribution, gumbel, pick, picks
from edgespec.text.template import ChatTemplate, Message
from edgespec.types import Floats

from ..dialogues import FILE, Dialogues, dialogues
from ..kinds import MIX, texts
from .trace import DEPTH, FOLDER, Item, Trace

_CONTEXT = 2048
_LONGEST = 160  # tokens of an answer
_PIECE = 60  # tokens after which the mix changes its task


class Recorder:
    """A target that says, and a draft model that guesses."""

    def __init__(self, target: Model, draft: Model, sampling: Sampling) -> None:
        self.vocabulary = target.vocabulary
        self._sampling = sampling
        self.template = ChatTemplate(target.vocabulary)
        self._target = target.session(_CONTEXT)
        self._draft = draft.session(_CONTEXT)

    def answer(self, prompt: Sequence[int]) -> list[int]:
        """What the target answers, to its end."""
        _fill(self._target, prompt[:-1])
        text = list(prompt)
        while len(text) - len(prompt) < _LONGEST and not (len(text) > len(prompt) and self.vocabulary.is_eog(text[-1])):
            text.append(pick(self._target.decode((text[-1],))[0], self._sampling, len(text)))
        return text[len(prompt) :]

    def item(self, prompt: Sequence[int], answer: Sequence[int]) -> Item:
        """The draft model's guesses along `answer`."""
        session = self._draft
        _fill(session, prompt[:-1])
        text = [*prompt, *answer]
        guesses = np.zeros((len(answer), DEPTH, 2), dtype=np.uint16)
        probs = np.zeros((len(answer), DEPTH, 2), dtype=np.float32)
        for at in range(len(answer)):
            held = len(session.tokens)
            token = text[held]
            for depth in range(DEPTH):
                row = session.decode((token,))[0]
                guesses[at, depth], probs[at, depth] = self._guesses(row, len(prompt) + at + depth)
                token = int(guesses[at, depth, 0])
            session.rollback(held + 1)
        return Item(tuple(prompt), tuple(answer), guesses, probs)

    def _guesses(self, row: Floats, position: int) -> tuple[list[int], list[float]]:
        """The draft model's two first choices and their confidence, as `ModelDrafter` would give them."""
        if self._sampling.greedy:
            (first, sure), (second, chance) = picks(row, self._sampling, position, (), 2)
            return [first, second], [sure, chance]
        choices = distribution(row, self._sampling)
        scores = np.log(choices.probs) + gumbel(self._sampling.seed, position, choices.tokens)
        best = np.argpartition(scores, -2)[-2:]
        second, first = best[scores[best].argsort()]
        # Of the token that was drawn `Match.draw` says how sure the model is, and not how likely that token was.
        return choices.tokens[[first, second]].tolist(), [float(choices.probs.max()), float(choices.probs[second])]


def _fill(session: Session, tokens: Sequence[int]) -> None:
    session.rollback(0)
    session.prefill(tokens)


def _turns(messages: Sequence[Message]) -> Iterator[tuple[Sequence[Message], str]]:
    """Each user turn with all before it, and the true answer."""
    for i, message in enumerate(messages[:-1]):
        if message["role"] == "user":
            yield messages[: i + 1], messages[i + 1]["content"]


def _copies(messages: Sequence[Message], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Two requests to copy, with their answers."""
    text = "\n".join(f"{message['role']}: {message['content']}" for message in messages[:6])
    yield f"Repeat the conversation.\n{text}", text
    words = [word for word in text.split() if word.isalpha() and len(word) > 3]
    if words:
        old = rng.choice(words)
        yield f"Rewrite the conversation with {old} replaced by Amsterdam.\n{text}", text.replace(old, "Amsterdam")


def record(recorder: Recorder, dialogues: Sequence[Sequence[Message]], suffix: str) -> Iterator[Trace]:
    """The traces that are made of dialogues."""
    rng = random.Random(0)  # noqa: S311
    tokenize = recorder.vocabulary.tokenize
    chat, copy, hard = [], [], []
    for messages in dialogues:
        for history, true in _turns(messages):
            prompt = recorder.template.tokens(history)
            if len(prompt) > 1000:
                break
            chat.append(recorder.item(prompt, recorder.answer(prompt)))
            words = true.split()
            rng.shuffle(words)
            hard.append(recorder.item(prompt, tokenize(" ".join(words))[:_LONGEST]))
        for asked, answer in _copies(messages, rng):
            prompt = recorder.template.tokens([{"role": "user", "content": asked}])
            copy.append(recorder.item(prompt, tokenize(answer)[:_LONGEST]))
    yield Trace(f"chat{suffix}", chat)
    yield Trace(f"copy{suffix}", copy[: len(copy) // 2])
    yield Trace(f"hard{suffix}", hard[: len(hard) // 2])
    yield Trace(f"mix{suffix}", list(_mixed([chat[len(chat) // 2 :], copy[len(copy) // 2 :], hard[len(hard) // 2 :]])))


def _mixed(tasks: Sequence[Sequence[Item]]) -> Iterator[Item]:
    """Pieces of the tasks in turn, for as long as all have some."""
    queues = [iter(task) for task in tasks]
    for turn in range(1_000_000):
        piece = 0
        while piece < _PIECE:
            item = next(queues[turn % len(queues)], None)
            if item is None:
                return
            item = item.first(_PIECE - piece)
            piece += len(item.answer)
            yield item


def _kinds(recorder: Recorder, target: Path) -> Trace:
    """The mix of `benchmarks/kinds.py`, whose dialogues the target answers greedily."""
    with load(str(target)) as runtime:
        asked = list(texts(runtime, MIX, _LONGEST))
    return Trace("kinds", [recorder.item(item.prompt, item.answer) for item in asked])


@click.command()
@dialogues(40)
@click.option("--target", type=FILE, help="[default: the demo pair's]")
@click.option("--draft", type=FILE, help="[default: the demo pair's]")
@click.option("--temperature", default=0.0, show_default=True, help="At which target and draft model draw")
@click.option("--out", default=FOLDER, type=click.Path(path_type=Path), help="Folder for the traces")
def main(dialogues: Dialogues, target: Path | None, draft: Path | None, temperature: float, out: Path) -> None:
    """Record the traces of a pair on DIALOGUES."""
    device, interrupt, demo = Device(context=_CONTEXT), Interrupt(), models.demo()
    target = target or demo.target
    recorder = Recorder(
        open_model(target, device, interrupt),
        open_model(draft or demo.draft or demo.target, device, interrupt),
        Sampling(temperature=temperature, seed=1),
    )
    traces = record(recorder, dialogues.read(), f"-{temperature:g}" if temperature else "")
    for trace in traces if temperature else (*traces, _kinds(recorder, target)):
        size = trace.save(out).stat().st_size
        click.echo(f"{trace.name}: {len(trace.items)} answers, {trace.tokens} tokens, {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
