"""edgespec as a contender, with and without speculation: the models are opened once, with a runtime per contender."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from copy import copy
from dataclasses import replace

from ..backends import Device, FittedHead, Interrupt, Model, open_model
from ..engine import Finished, Text
from ..errors import Interrupted
from ..prices import BASE
from ..prices.engine_comparison import with_engines
from ..runtime.learned import Learned
from ..runtime.loading import Files, assemble, with_head
from ..runtime.opening import OnProgress
from ..runtime.runtime import Runtime
from ..runtime.speculation import Speculation, is_built_in
from .contender import AnswerRequest, Chunk, Done
from .meter import peak_memory
from .records import OURS, PLAIN, PassPrices
from .replay import ReplaySession, SharedModel

_TITLES = {
    PLAIN: "plain decoding",
    OURS: "edgespec",
    "lookup": "edgespec, look-ups only",
    "model": "edgespec, draft model only",
    "mtp": "edgespec, head only",
    "pard": "edgespec, PARD draft model only",
    "eagle": "edgespec, EAGLE only",
    "eagle3": "edgespec, EAGLE-3 only",
    "medusa": "edgespec, Medusa heads only",
    "exit": "edgespec, first layers only",
    "recycling": "edgespec, token recycling only",
    "lookahead": "edgespec, lookahead only",
}
NAMES = (*_TITLES, "k=N")  #: what `Workshop.contender` knows


class EdgespecContender:
    """A runtime with sessions of its own."""

    replays = True

    def __init__(self, name: str, title: str, runtime: Runtime, session: ReplaySession) -> None:
        self.name, self.title, self.runtime = name, title, runtime
        self._session = session

    def answer(self, ask: AnswerRequest) -> Iterator[Chunk | Done]:
        """Stream the answer; see `Contender.answer`.

        Raises:
            ContextOverflow: the prompt does not fit into the context.
            Interrupted: the answer was cancelled.
        """
        vocabulary = self.runtime.vocabulary
        self._session.text = (*ask.prompt, *ask.replay) if ask.replay is not None else ()
        most = ask.max_tokens if ask.replay is None else min(ask.max_tokens, len(ask.replay))
        for event in self.runtime.complete(ask.prompt, ask.sampling, max_tokens=most):
            if isinstance(event, Text):
                ended = bool(event.tokens) and vocabulary.is_eog(event.tokens[-1])
                said = event.tokens[:-1] if ended else event.tokens
                yield Chunk(event.text, said, len(said), event.round)
            elif isinstance(event, Finished):
                if event.reason == "cancelled":
                    raise Interrupted
                yield Done(event.stats.prompt_seconds)

    def memory(self) -> int:
        """The peak memory of this process, in bytes, which all contenders of edgespec share."""
        return peak_memory()

    def close(self) -> None:
        self.runtime.close()


class ContenderFactory:
    """The models, opened once. Contenders made here must be closed before it.

    Raises:
        as `edgespec.load`.
    """

    def __init__(self, files: Files, device: Device, interrupt: Interrupt, on_progress: OnProgress) -> None:
        self.device, self._interrupt = device, interrupt
        self._on_progress = on_progress
        with ExitStack() as opened:
            self.files, in_target = with_head(files, device, Speculation())
            wanted = replace(device, head=in_target)
            chosen = with_engines(self.files.target, self.files.drafts, wanted, interrupt, on_progress=on_progress)
            target = open_model(self.files.target, replace(chosen.device, head=in_target), interrupt)
            opened.callback(target.close)
            self.target = SharedModel(target)
            self.drafts: list[Model] = []
            for path, place in zip(self.files.drafts, chosen.draft_devices, strict=True):
                draft = open_model(path, place, interrupt)
                opened.callback(draft.close)
                self.drafts.append(draft if isinstance(draft, FittedHead) else SharedModel(draft))
            self.close = opened.pop_all().close

    def contender(self, name: str) -> EdgespecContender:
        """A runtime with the speculation of this name, which begins with known prices and nothing else.

        Raises:
            OptionError: the pair does not support it: there is no draft model, for example.
        """
        speculation = _speculation(name)
        drafts = self.drafts if speculation.k != 0 else ()
        runtime = assemble(
            self.target,
            # It closes what it is given.
            [copy(draft) if isinstance(draft, FittedHead) else draft for draft in drafts],
            device=self.device,
            speculation=speculation,
            interrupt=self._interrupt,
            on_progress=self._on_progress,
            learned=Learned(None),
        )
        return EdgespecContender(name, _title(name), runtime, self.target.sessions[-1])


def is_name(name: str) -> bool:
    """Whether `Workshop.contender` knows it."""
    return name in _TITLES or is_built_in(name) or bool(re.fullmatch(r"k=[1-9]\d*", name))


def _title(name: str) -> str:
    if name.startswith("k="):
        return f"edgespec, K fixed at {name.removeprefix('k=')}"
    return _TITLES.get(name, f"edgespec, {name} only")


def _speculation(name: str) -> Speculation:
    if name == PLAIN:
        return Speculation((), k=0)
    if name == OURS:
        return Speculation()
    return Speculation(k=int(name.removeprefix("k="))) if name.startswith("k=") else Speculation((name,))


def priced(runtime: Runtime) -> PassPrices:
    """The prices of passes on this machine without its current slowdown by other programs."""
    steps = [seconds for seconds in runtime.step_prices.values() if seconds]
    return PassPrices(tuple(runtime.prices.calm(BASE)), steps[0] if steps else None)
