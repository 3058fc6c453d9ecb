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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from edgespec.backends import Device, Interrupt, open_model
from edgespec.control import Adaptive, Controller, Fixed
from edgespec.drafters import Drafter, Terms
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Finished, Request, Text
from edgespec.prices import Prices, measure
from edgespec.sampling import Sampling
from edgespec.template import ChatTemplate
from edgespec.types import Draft, Round
from edgespec.verify import verifier


class Wrong:
    """Drafts as its model does and then says something else."""

    name = "wrong"

    def __init__(self, model: ModelDrafter, vocab: int) -> None:
        self.step_price = model.step_price
        self._model = model
        self._vocab = vocab

    def propose(self, context: Sequence[int], terms: Terms) -> Draft:
        draft = self._model.propose(context, terms)
        tokens = [(token + 1) % self._vocab for token in draft.tokens]
        return Draft.chain(tokens, draft.confidence, self.name)

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
        self.texts += [tokens for tokens, _ in events]

    @property
    def overhead(self) -> float:
        """Microseconds a round outside the engines."""
        return (sum(self.seconds) - self.engine_seconds) / max(1, self.rounds) * 1e6


def answers(
    engine: Engine, prompts: Sequence[list[int]], sampling: Sampling, max_tokens: int
) -> Iterator[tuple[tuple[int, ...], Finished]]:
    """The answer to each of a dialogue's prompts."""
    for prompt in prompts:
        said: list[int] = []
        for event in engine.generate(Request(prompt, sampling, max_tokens)):
            if isinstance(event, Text):
                said += event.tokens
            if isinstance(event, Finished):
                yield tuple(said), event


def dialogue_prompts(file: Path, template: ChatTemplate, limit: int, longest: int) -> list[list[list[int]]]:
    """For each dialogue, the prompt of each of its answers."""
    dialogues = []
    for line in file.read_text("utf-8").splitlines()[:limit]:
        messages = json.loads(line)["messages"]
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        prompts = [template.tokens(messages[: i + 1]) for i in users]
        dialogues.append([prompt for prompt in prompts if len(prompt) < longest])
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


HEADER = f"{'':<12} {'tokens/s':>8} {'x plain':>8} {'median':>8} {'+prompt':>8} {'tok/pass':>8} {'accept':>8} {'us/round':>8}  same"


@click.command()
@click.argument("target", type=click.Path(path_type=Path, exists=True))
@click.argument("draft", type=click.Path(path_type=Path, exists=True))
@click.argument("dialogues", type=click.Path(path_type=Path, exists=True))
@click.option("--dialogues", "limit", default=20, show_default=True)
@click.option("--max-tokens", default=96, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--temp", default=0.0, show_default=True)
@click.option("--k", "fixed", multiple=True, type=int, help="Fixed draft lengths to compare with")
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
    rule: str,
) -> None:
    """Measure TARGET with DRAFT on DIALOGUES."""
    device, interrupt = Device(context=2048, threads=threads), Interrupt()
    model, small = open_model(target, device, interrupt), open_model(draft, device, interrupt)
    session = model.session(2048)
    curve = measure(session, budget=4.0)
    click.echo("price(n)/price(1), n = 1..16: " + " ".join(f"{s / curve[0]:.2f}" for s in curve))
    click.echo(f"price(1) {curve[0] * 1e3:.2f} ms")

    def model_drafter() -> ModelDrafter:
        own = small.session(2048)
        return ModelDrafter(own, model.vocabulary.size, measure(own, budget=0.3)[0])

    click.echo(f"draft step {model_drafter().step_price * 1e3:.3f} ms")
    configurations: dict[str, tuple[Controller, Prices]] = {}

    def configure(name: str, drafters: list[Drafter], k: int | None) -> None:
        prices = Prices(curve)
        configurations[name] = (Adaptive(drafters, prices) if k is None else Fixed(drafters, k), prices)

    configure("plain", [], 0)
    configure("adaptive", [Lookup(), model_drafter()], None)
    configure("wrong", [Wrong(model_drafter(), model.vocabulary.size)], None)
    for k in fixed:
        configure(f"model K={k}", [model_drafter()], k)
    results = {name: Result() for name in configurations}
    names = list(configurations)
    for i, prompts in enumerate(dialogue_prompts(dialogues, ChatTemplate(model.vocabulary), limit, 2048 - max_tokens)):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            controller, prices = configurations[name]
            engine = Engine(session, model.vocabulary, controller, verifier(rule), interrupt, prices)
            session.rollback(0)
            results[name].add(list(answers(engine, prompts, Sampling(temp, seed=i), max_tokens)))
    plain = results["plain"]
    click.echo(
        f"{limit} dialogues, {len(plain.texts)} answers, {plain.tokens} tokens, temperature {temp:g}, {threads} threads"
    )
    click.echo(HEADER)
    for name, result in results.items():
        click.echo(report(name, result, plain))


if __name__ == "__main__":
    main()
