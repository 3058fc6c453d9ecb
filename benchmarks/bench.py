"""A pair at measured prices, and the configurations that are compared on it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click

from edgespec.backends import Device, Interrupt, Pieces, Session, open_model
from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Event, Finished, Request, Started, Text
from edgespec.prices import Prices, measure, sample_text
from edgespec.stats import Stats
from edgespec.terminal.options import grouped_options
from edgespec.types import Guess, Round
from edgespec.verify import RoundContext, verifier

from .dialogues import FILE

CONTEXT = 2048


class Endless:
    """A vocabulary without an end: the model goes on writing the dialogue, both sides of it."""

    def __init__(self, vocabulary: Pieces) -> None:
        self.token_bytes = vocabulary.token_bytes

    def is_eog(self, _token: int) -> bool:
        return False


class Wrong:
    """Guesses as its model does and then says something else: it costs what the model costs and is never right."""

    name = "wrong"

    def __init__(self, model: ModelDrafter, vocab: int) -> None:
        self.step_price = model.step_price
        self._model = model
        self._vocab = vocab

    def begin(self, round_context: RoundContext) -> None:
        self._model.begin(round_context)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        guesses = self._model.guess(path, most)[:1]  # the second, made another, might be the first
        return [Guess((guess.token + 1) % self._vocab, guess.confidence) for guess in guesses]

    def observe(self, round: Round) -> None:  # noqa: A002
        self._model.observe(round)

    def close(self) -> None:
        self._model.close()


@dataclass
class Bench:
    """The models of a benchmark, and its configurations by name. What one has learned stays with it."""

    target: Path
    draft: Path
    threads: int
    backend: str = "auto"
    draft_backend: str | None = None

    def __post_init__(self) -> None:
        device = Device(CONTEXT, self.threads, backend=self.backend, draft_backend=self.draft_backend)
        self.interrupt = Interrupt()
        self._target = open_model(self.target, device, self.interrupt)
        self._draft = open_model(self.draft, device.of_draft(self.draft), self.interrupt)
        self.vocabulary = self._target.vocabulary
        self.session = self.another()
        self.configurations: dict[str, tuple[Controller, Prices]] = {}

    def another(self) -> Session:
        """A further session of the target."""
        return self._target.session(CONTEXT)

    @cached_property
    def curve(self) -> Sequence[float]:
        """Measured seconds by width."""
        return measure(self.session, text=sample_text(self.vocabulary), budget=4.0)

    def model(self) -> ModelDrafter:
        """A draft model with a session of its own."""
        session = self._draft.session(CONTEXT)
        return ModelDrafter(
            session, self.vocabulary.size, measure(session, text=sample_text(self.vocabulary), budget=0.3)[0]
        )

    def add(self, name: str, drafters: list[Drafter], k: int | None) -> None:
        """Compare these drafters at a fixed K, adaptively where None."""
        prices = Prices(self.curve)
        trees, replays = self.session.can_tree, self.session.replays
        controller = Adaptive(drafters, prices, trees=trees, replays=replays) if k is None else Fixed(drafters, k)
        self.configurations[name] = (controller, prices)

    def add_usual(self) -> None:
        """Compare plain decoding, ours, and ours where no draft is ever right."""
        self.add("plain", [], 0)
        self.add("adaptive", [Lookup(), self.model()], None)
        self.add("always wrong", [Wrong(self.model(), self.vocabulary.size)], None)

    def order(self, turn: int) -> list[str]:
        """The configurations in an order that rotates: a slow spell of the machine falls on all alike."""
        names = list(self.configurations)
        return names[turn % len(names) :] + names[: turn % len(names)]

    def engine(self, name: str, rule: str = "match", *, endless: bool = True, session: Session | None = None) -> Engine:
        """The engine of one configuration; answers go past the model's own end where they are endless.

        All share a session unless they are given one.
        """
        controller, prices = self.configurations[name]
        pieces = Endless(self.vocabulary) if endless else self.vocabulary
        return Engine(session or self.session, pieces, controller, verifier(rule), self.interrupt, prices)

    def describe(self) -> str:
        """The measured prices."""
        curve = " ".join(f"{seconds / self.curve[0]:.2f}" for seconds in self.curve)
        step = self.model().step_price
        plain = f"price(1) {self.curve[0] * 1e3:.2f} ms, a draft step {step * 1e3:.3f} ms"
        return f"{plain}; price(n)/price(1), n = 1..16: {curve}"


#: Hands a command its `bench`.
bench = grouped_options(
    Bench,
    "bench",
    click.argument("target", type=FILE),
    click.argument("draft", type=FILE),
    click.option("--threads", default=2, show_default=True),
    click.option("--backend", default="auto", help="The target's engine [default: the first that opens the file]"),
    click.option("--draft-backend", help="The draft's [default: the target's, if it opens the file]"),
)


def race(engines: Mapping[str, Engine], request: Request) -> Iterator[tuple[str, Event, float]]:
    """All engines answer at once, see `take_turns`. Each needs a session of its own."""
    yield from take_turns({name: engine.generate(request) for name, engine in engines.items()})


def take_turns(answers: Mapping[str, Iterator[Event]]) -> Iterator[tuple[str, Event, float]]:
    """The events of answers that take turns by the round, whichever has said the least, and the seconds they took.

    A slow spell of the machine falls on all alike.
    """
    running = dict(answers)
    said = dict.fromkeys(running, 0)
    while running:
        least = min(said[name] for name in running)
        name = random.choice([name for name in running if said[name] == least])  # noqa: S311 - no secret
        started = time.perf_counter()
        event = next(running[name])
        yield name, event, time.perf_counter() - started
        if isinstance(event, Text):
            said[name] += len(event.tokens)
        elif isinstance(event, Finished):
            del running[name]


def answer(
    engine: Engine, request: Request, on_started: Callable[[], None] = lambda: None
) -> tuple[tuple[int, ...], Stats]:
    """What is answered, and its figures. `on_started` is called when the prompt is in the cache."""
    said: list[int] = []
    for event in engine.generate(request):
        match event:
            case Started():
                on_started()
            case Text():
                said += event.tokens
            case Finished():
                return tuple(said), event.stats
    raise click.ClickException("an answer ended before its end")
