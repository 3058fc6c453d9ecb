"""edgespec itself, with and without speculation: the models opened once, a runtime for each way to use them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..backends import Device, Interrupt, open_model
from ..engine import Finished, Text
from ..errors import Interrupted
from ..prices import BASE
from ..runtime.learned import Learned
from ..runtime.loading import OnProgress, assemble
from ..runtime.pair import Speculation
from ..runtime.runtime import Runtime
from .contender import Ask, Done, Said
from .meter import peak_memory
from .records import OURS, PLAIN, Priced
from .replay import Lent, Replayed

_TITLES = {
    PLAIN: "plain decoding",
    OURS: "edgespec",
    "lookup": "edgespec, look-ups only",
    "model": "edgespec, draft model only",
}
NAMES = (*_TITLES, "k=N")  #: what `Workshop.contender` knows


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
                ended = bool(event.tokens) and vocabulary.is_eog(event.tokens[-1])
                said = event.tokens[:-1] if ended else event.tokens
                yield Said(event.text, said, len(said), event.round)
            elif isinstance(event, Finished):
                if event.reason == "cancelled":
                    raise Interrupted
                yield Done(event.stats.prompt_seconds)

    def memory(self) -> int:
        """Of this process, which all of ours share."""
        return peak_memory()

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
        self.files, self.device, self._interrupt = files, device, interrupt
        self._on_progress = on_progress
        with ExitStack() as opened:
            target = open_model(files.target, device, interrupt)
            opened.callback(target.close)
            self.target = Lent(target)
            self.draft: Lent | None = None
            if files.draft is not None:
                draft = open_model(files.draft, device.of_draft(), interrupt)
                opened.callback(draft.close)
                self.draft = Lent(draft)
            self.close = opened.pop_all().close

    def contender(self, name: str) -> Own:
        """A runtime that speculates as `name` says, and knows nothing but prices at its beginning.

        Raises:
            OptionError: this pair cannot do it.
        """
        speculation = _speculation(name)
        runtime = assemble(
            self.target,
            None if speculation.k == 0 else self.draft,
            device=self.device,
            speculation=speculation,
            interrupt=self._interrupt,
            on_progress=self._on_progress,
            learned=Learned(None),
        )
        return Own(
            name, _TITLES.get(name) or f"edgespec, K fixed at {speculation.k}", runtime, self.target.sessions[-1]
        )


def is_name(name: str) -> bool:
    """Whether `Workshop.contender` knows it."""
    return name in _TITLES or bool(re.fullmatch(r"k=[1-9]\d*", name))


def _speculation(name: str) -> Speculation:
    if name == PLAIN:
        return Speculation((), k=0)
    if name == OURS:
        return Speculation()
    return Speculation((name,)) if name in _TITLES else Speculation(k=int(name.removeprefix("k=")))


def priced(runtime: Runtime) -> Priced:
    """The prices on this machine, left to itself: what disturbs it at this moment did not while answers were given."""
    steps = [seconds for seconds in runtime.step_prices.values() if seconds]
    return Priced(tuple(runtime.prices.calm(BASE)), steps[0] if steps else None)
