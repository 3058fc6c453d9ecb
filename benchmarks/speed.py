"""Plain against speculative decoding on real dialogues: the same prompts, alternating, in one process.

    python benchmarks/speed.py TARGET.gguf DRAFT.gguf DIALOGUES.jsonl [--dialogues 20] [--k 1 --k 3 --k 7]

Every line of DIALOGUES is {"messages": [...]}. The model answers each user turn of a dialogue, its history being the
true one. Configurations take turns on every dialogue, in an order that rotates, so that a slow spell of the machine
falls on all alike. `wrong` is adaptive speculation with a drafter that costs what the draft model costs and is never
right: what speculation may cost where it cannot gain.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from edgespec.backends import Device, Interrupt, Pieces, open_model
from edgespec.control import Adaptive, Controller, Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Finished, Request, Started, Text
from edgespec.prices import Prices, measure
from edgespec.sampling import Sampling
from edgespec.template import ChatTemplate
from edgespec.types import Guess, Round
from edgespec.verify import Drawing, verifier

_CONTEXT = 2048


class Endless:
    """A vocabulary without an end: the model goes on writing the dialogue, both sides of it."""

    def __init__(self, vocabulary: Pieces) -> None:
        self.piece = vocabulary.piece

    def ends(self, _token: int) -> bool:
        return False


class Wrong:
    """Guesses as its model does and then says something else."""

    name = "wrong"

    def __init__(self, model: ModelDrafter, vocab: int) -> None:
        self.step_price = model.step_price
        self._model = model
        self._vocab = vocab

    def begin(self, drawing: Drawing) -> None:
        self._model.begin(drawing)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        guesses = self._model.guess(path, most)[:1]  # the second, made another, might be the first
        return [Guess((guess.token + 1) % self._vocab, guess.confidence) for guess in guesses]

    def observe(self, round: Round) -> None:  # noqa: A002
        self._model.observe(round)

    def close(self) -> None:
        self._model.close()


@dataclass
class Result:
    """What one configuration took and said."""

    seconds: list[float] = field(default_factory=list)
    prompt_seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    engine_seconds: float = 0.0
    texts: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, events: list[tuple[tuple[int, ...], Finished]]) -> None:
        """Count one dialogue's answers."""
        stats = [finished.stats for _, finished in events]
        self.seconds.append(sum(s.seconds for s in stats))
        self.prompt_seconds.append(sum(s.prompt_seconds for s in stats))
        self.engine_seconds += sum(s.engine_seconds for s in stats)
        self.tokens += sum(s.tokens for s in stats)
        self.rounds += sum(s.rounds for s in stats)
        self.drafted += sum(s.drafted for s in stats)
        self.accepted += sum(s.accepted for s in stats)
        for s in stats:
            self.lengths.update(s.k_histogram)
        self.texts += [tokens for tokens, _ in events]

    @property
    def overhead(self) -> float:
        """Microseconds a round outside the engines."""
        return (sum(self.seconds) - self.engine_seconds) / max(1, self.rounds) * 1e6


def answers(
    engine: Engine,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    max_tokens: int,
    on_started: Callable[[], None] = lambda: None,
) -> Iterator[tuple[tuple[int, ...], Finished]]:
    """The answer to each of a dialogue's prompts. `on_started` is called when a prompt is in the cache."""
    for prompt in prompts:
        said: list[int] = []
        for event in engine.generate(Request(prompt, sampling, max_tokens)):
            if isinstance(event, Started):
                on_started()
            if isinstance(event, Text):
                said += event.tokens
            if isinstance(event, Finished):
                yield tuple(said), event


def dialogue_prompts(
    file: Path, template: ChatTemplate, limit: int, longest: int, *, first: bool
) -> list[list[list[int]]]:
    """For each dialogue, the prompt of each of its answers, or of the first alone."""
    dialogues = []
    for line in file.read_text("utf-8").splitlines()[:limit]:
        messages = json.loads(line)["messages"]
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        prompts = [template.tokens(messages[: i + 1]) for i in users]
        dialogues.append([prompt for prompt in prompts if len(prompt) < longest][: 1 if first else None])
    return dialogues


def report(name: str, result: Result, plain: Result) -> str:
    """One row: totals, and the median of the ratio dialogue by dialogue."""
    ratios = [p / s for p, s in zip(plain.seconds, result.seconds, strict=True) if s]
    same = sum(a == b for a, b in zip(plain.texts, result.texts, strict=True))
    whole = sum(plain.seconds) + sum(plain.prompt_seconds)
    return (
        f"{name:<12} {result.tokens / sum(result.seconds):8.1f} {sum(plain.seconds) / sum(result.seconds):8.3f} "
        f"{statistics.median(ratios):8.3f} {whole / (sum(result.seconds) + sum(result.prompt_seconds)):8.3f} "
        f"{result.tokens / result.rounds:8.2f} {result.accepted / max(1, result.drafted):8.2f} "
        f"{result.overhead:8.0f} {same:5}/{len(plain.texts)}"
    )


_COLUMNS = ("tokens/s", "x plain", "median", "+prompt", "tok/pass", "accept", "us/round")
HEADER = " ".join([" " * 12, *(f"{column:>8}" for column in _COLUMNS), " same"])


class Bench:
    """The models of a benchmark, and its configurations by name."""

    def __init__(self, target: Path, draft: Path, threads: int) -> None:
        device, self.interrupt = Device(context=_CONTEXT, threads=threads), Interrupt()
        self.target = open_model(target, device, self.interrupt)
        self.session = self.target.session(_CONTEXT)
        self.curve = measure(self.session, budget=4.0)
        self._draft = open_model(draft, device, self.interrupt)
        self.configurations: dict[str, tuple[Controller, Prices]] = {}

    def model(self) -> ModelDrafter:
        """A draft model with a session of its own."""
        session = self._draft.session(_CONTEXT)
        return ModelDrafter(session, self.target.vocabulary.size, measure(session, budget=0.3)[0])

    def wrong(self) -> Wrong:
        """A drafter as dear as the draft model and never right."""
        return Wrong(self.model(), self.target.vocabulary.size)

    def add(self, name: str, drafters: list[Drafter], k: int | None) -> None:
        """Compare these drafters at a fixed K, adaptively where None."""
        prices = Prices(self.curve)
        controller = Adaptive(drafters, prices, trees=self.session.can_tree) if k is None else Fixed(drafters, k)
        self.configurations[name] = (controller, prices)

    def engine(self, name: str, rule: str, pieces: Pieces) -> Engine:
        """The engine of one configuration; what it has learned stays with it."""
        self.session.rollback(0)
        controller, prices = self.configurations[name]
        return Engine(self.session, pieces, controller, verifier(rule), self.interrupt, prices)

    def describe(self) -> str:
        """The measured prices."""
        curve = " ".join(f"{seconds / self.curve[0]:.2f}" for seconds in self.curve)
        step = self.model().step_price
        plain = f"price(1) {self.curve[0] * 1e3:.2f} ms, a draft step {step * 1e3:.3f} ms"
        return f"{plain}; price(n)/price(1), n = 1..16: {curve}"


@click.command()
@click.argument("target", type=click.Path(path_type=Path, exists=True))
@click.argument("draft", type=click.Path(path_type=Path, exists=True))
@click.argument("dialogues", type=click.Path(path_type=Path, exists=True))
@click.option("--dialogues", "limit", default=20, show_default=True)
@click.option("--max-tokens", default=96, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--temp", default=0.0, show_default=True)
@click.option("--k", "fixed", multiple=True, type=int, help="Fixed draft lengths to compare with")
@click.option("--endless", is_flag=True, help="One answer a dialogue, to --max-tokens, past the model's end of turn")
@click.option("--rule", default="match", show_default=True, help="The verifier")
def main(  # noqa: PLR0913, PLR0917 - one for each option
    target: Path,
    draft: Path,
    dialogues: Path,
    limit: int,
    max_tokens: int,
    threads: int,
    temp: float,
    fixed: tuple[int, ...],
    endless: bool,
    rule: str,
) -> None:
    """Measure TARGET with DRAFT on DIALOGUES."""
    bench = Bench(target, draft, threads)
    vocabulary = bench.target.vocabulary
    click.echo(bench.describe())
    bench.add("plain", [], 0)
    bench.add("adaptive", [Lookup(), bench.model()], None)
    bench.add("wrong", [bench.wrong()], None)
    for k in fixed:
        bench.add(f"model K={k}", [bench.model()], k)
    names = list(bench.configurations)
    results = {name: Result() for name in names}
    prompts = dialogue_prompts(dialogues, ChatTemplate(vocabulary), limit, _CONTEXT - max_tokens, first=endless)
    for i, turns in enumerate(prompts):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            engine = bench.engine(name, rule, Endless(vocabulary) if endless else vocabulary)
            results[name].add(list(answers(engine, turns, Sampling(temp, seed=i), max_tokens)))
    plain = results["plain"]
    kind = "answers past their end" if endless else "answers"
    size = f"{len(prompts)} dialogues, {len(plain.texts)} {kind}, {plain.tokens} tokens"
    click.echo(f"{size}; temperature {temp:g}, {threads} threads, {rule}")
    click.echo(HEADER)
    for name, result in results.items():
        click.echo(report(name, result, plain))
    for name, result in results.items():
        click.echo(f"K of {name}: " + " ".join(f"{k}:{n}" for k, n in sorted(result.lengths.items())))


if __name__ == "__main__":
    main()
