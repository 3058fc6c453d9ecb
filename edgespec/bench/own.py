"""edgespec itself, with and without speculation: the models opened once, a runtime for each way to use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ..backends import Device, Interrupt, Vocabulary, open_model
from ..engine import Finished, Text
from ..errors import Interrupted, OptionError
from ..learned import Learned
from ..loading import OnProgress, assemble
from ..pair import Speculation
from ..runtime import Runtime
from .contender import Ask, Done, Said
from .records import OURS, PLAIN, Priced
from .replay import Lent, Replayed


class Own:
    """A runtime of ours, with sessions of its own."""

    replays = True

    def __init__(self, name: str, title: str, runtime: Runtime, session: Replayed) -> None:
        self.name, self.title, self.runtime = name, title, runtime
        self._session = session

    def answer(self, ask: Ask) -> Iterator[Said | Done]:
        """As every contender does.

        Raises:
            ContextOverflow: the prompt does not fit.
            Interrupted: it was told to stop.
        """
        vocabulary = self.runtime.vocabulary
        self._session.text = (*ask.prompt, *ask.replay) if ask.replay is not None else ()
        most = ask.max_tokens if ask.replay is None else min(ask.max_tokens, len(ask.replay))
        for event in self.runtime.complete(ask.prompt, ask.sampling, max_tokens=most):
            if isinstance(event, Text):
                said = event.tokens[:-1] if vocabulary.ends(event.tokens[-1]) else event.tokens
                yield Said(event.text, said, len(said), event.round)
            elif isinstance(event, Finished):
                if event.reason == "cancelled":
                    raise Interrupted
                yield Done(event.stats.prompt_seconds)

    def memory(self) -> None:
        """All of ours share a process: see `peak`."""

    def close(self) -> None:
        self.runtime.close()


@dataclass(frozen=True, slots=True)
class Files:
    """What is measured: the target, and perhaps a draft model."""

    target: Path
    draft: Path | None


class Workshop:
    """The models, opened once. Contenders made here must be closed before it.

    Raises:
        as `edgespec.load`.
    """

    def __init__(self, files: Files, device: Device, interrupt: Interrupt, on_progress: OnProgress) -> None:
        self.device, self.interrupt = device, interrupt
        self._on_progress = on_progress
        with ExitStack() as opened:
            target = open_model(files.target, device, interrupt)
            opened.callback(target.close)
            self.target, self.draft = Lent(target), None
            if files.draft is not None:
                draft = open_model(files.draft, replace(device, exact=0), interrupt)
                opened.callback(draft.close)
                self.draft = Lent(draft)
            self.close = opened.pop_all().close

    @property
    def vocabulary(self) -> Vocabulary:
        return self.target.vocabulary

    def contender(self, name: str, speculation: Speculation) -> Own:
        """A runtime that speculates so, and at its beginning knows nothing but prices."""
        plain = speculation.k == 0
        runtime = assemble(
            self.target,
            None if plain else self.draft,
            device=self.device,
            speculation=speculation,
            interrupt=self.interrupt,
            on_progress=self._on_progress,
            learned=Learned(None),
        )
        session = self.target.sessions[-1]
        return Own(name, _title(name), runtime, session)

    def named(self, name: str) -> Own:
        """The contender of this name: plain, edgespec, lookup, model, or k=N.

        Raises:
            OptionError: there is none of that name, or this pair cannot do it.
        """
        if name == PLAIN:
            return self.contender(name, Speculation((), k=0))
        if name == OURS:
            return self.contender(name, Speculation())
        if name in ("lookup", "model"):
            return self.contender(name, Speculation((name,)))
        _, _, k = name.partition("k=")
        if not k.isdigit():
            raise OptionError(f"no contender {name!r}; there are plain, edgespec, lookup, model, k=4 and the like")
        return self.contender(name, Speculation(k=int(k)))


def _title(name: str) -> str:
    titles = {
        PLAIN: "plain decoding",
        OURS: "edgespec",
        "lookup": "edgespec, look-ups only",
        "model": "edgespec, draft model only",
    }
    return titles.get(name) or f"edgespec, fixed {name.upper().replace('=', ' = ')}"


def priced(runtime: Runtime) -> Priced:
    """The prices now."""
    steps = [seconds for seconds in runtime.step_prices.values() if seconds]
    return Priced(tuple(runtime.prices.curve()), steps[0] if steps else None)
