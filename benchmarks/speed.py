"""Plain against speculative decoding on real dialogues: the same prompts, alternating, in one process.

    python -m benchmarks.speed TARGET.gguf DRAFT.gguf DIALOGUES.jsonl [--dialogues 20] [--k 1 --k 3 --k 7]

The model answers each user turn of a dialogue, its history being the true one. Configurations take turns by the round,
each in a session of its own. `always wrong` is adaptive speculation with a drafter that costs what the draft model
costs and is never right: what speculation may cost where it cannot gain. `plain, again` is plain decoding once more,
and shows how far figures can be trusted.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import click

from edgespec.engine import Engine, Finished, Request, Text
from edgespec.sampling import Sampling
from edgespec.stats import Stats

from .bench import CONTEXT, Bench, bench, race
from .dialogues import Dialogues, dialogues
from .report import table

_COLUMNS = ("", "tokens/s", "x plain", "median", "+prompt", "tok/pass", "accept", "us/round", "same")


@dataclass
class Result:
    """What one configuration said, and the figures of it, by dialogue."""

    texts: list[tuple[int, ...]] = field(default_factory=list)
    stats: list[list[Stats]] = field(default_factory=list)

    def add(self, answers: Sequence[tuple[tuple[int, ...], Stats]]) -> None:
        """Count one dialogue's answers."""
        self.texts += [text for text, _ in answers]
        self.stats.append([stats for _, stats in answers])

    def total(self, figure: Callable[[Stats], float]) -> float:
        """Over all answers."""
        return sum(self.by_dialogue(figure))

    def by_dialogue(self, figure: Callable[[Stats], float]) -> list[float]:
        return [sum(map(figure, answers)) for answers in self.stats]

    @property
    def lengths(self) -> Counter[int]:
        """Rounds by the number of tokens drafted."""
        return sum((Counter(stats.k_histogram) for answers in self.stats for stats in answers), Counter[int]())


def answers(engines: Mapping[str, Engine], request: Request) -> dict[str, tuple[tuple[int, ...], Stats]]:
    """What each says to one prompt, and its figures."""
    texts: dict[str, tuple[int, ...]] = dict.fromkeys(engines, ())
    found = {}
    for name, event, _ in race(engines, request):
        if isinstance(event, Text):
            texts[name] += event.tokens
        elif isinstance(event, Finished):
            found[name] = (texts[name], event.stats)
    return found


_seconds = attrgetter("seconds")


def row(name: str, result: Result, plain: Result) -> list[str]:
    """One row: totals, and the median of the ratio dialogue by dialogue."""
    before, after = plain.by_dialogue(_seconds), result.by_dialogue(_seconds)
    rounds, tokens = result.total(lambda s: s.rounds), result.total(lambda s: s.tokens)
    whole = [each.total(lambda s: s.seconds + s.prompt_seconds) for each in (plain, result)]
    outside = result.total(lambda s: s.seconds - s.engine_seconds) / max(1, rounds)
    same = sum(a == b for a, b in zip(plain.texts, result.texts, strict=True))
    return [
        name,
        f"{tokens / sum(after):.1f}",
        f"{sum(before) / sum(after):.3f}",
        f"{statistics.median(p / s for p, s in zip(before, after, strict=True) if s):.3f}",
        f"{whole[0] / whole[1]:.3f}",
        f"{tokens / rounds:.2f}",
        f"{result.total(lambda s: s.accepted) / max(1, result.total(lambda s: s.drafted)):.2f}",
        f"{outside * 1e6:.0f}",
        f"{same}/{len(plain.texts)}",
    ]


@click.command()
@bench
@dialogues(20)
@click.option("--max-tokens", default=96, show_default=True)
@click.option("--temp", default=0.0, show_default=True)
@click.option("--k", "fixed", multiple=True, type=int, help="Fixed draft lengths to compare with")
@click.option("--endless", is_flag=True, help="One answer a dialogue, to --max-tokens, past the model's end of turn")
@click.option("--rule", default="match", show_default=True, help="The verifier")
def main(
    bench: Bench, dialogues: Dialogues, max_tokens: int, temp: float, fixed: tuple[int, ...], endless: bool, rule: str
) -> None:
    """Measure TARGET with DRAFT on DIALOGUES."""
    click.echo(bench.describe())
    bench.add_usual()
    for k in fixed:
        bench.add(f"model K={k}", [bench.model()], k)
    bench.add("plain, again", [], 0)
    sessions = {name: bench.another() for name in bench.configurations}
    engines = {name: bench.engine(name, rule, endless=endless, session=session) for name, session in sessions.items()}
    results = {name: Result() for name in engines}
    prompts = dialogues.turns(bench.vocabulary, CONTEXT - max_tokens)
    for i, turns in enumerate(prompts):
        requests = [Request(prompt, Sampling(temp, seed=i), max_tokens) for prompt in (turns[:1] if endless else turns)]
        for session in sessions.values():
            session.rollback(0)  # each reads the prompt anew: `+prompt` compares that too
        said = [answers(engines, request) for request in requests]
        for name, result in results.items():
            result.add([each[name] for each in said])
    plain = results["plain"]
    kind = "answers past their end" if endless else "answers"
    size = f"{len(prompts)} dialogues, {len(plain.texts)} {kind}, {plain.total(lambda s: s.tokens):.0f} tokens"
    click.echo(f"{size}; temperature {temp:g}, {bench.threads} threads, {rule}")
    click.echo(table(_COLUMNS, [row(name, result, plain) for name, result in results.items()]))
    for name, result in results.items():
        click.echo(f"K of {name}: " + " ".join(f"{k}:{n}" for k, n in sorted(result.lengths.items())))


if __name__ == "__main__":
    main()
