"""The face for apps: load a pair, stream answers, cancel, close."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from .backends import Device, Interrupt, Model, Session, Vocabulary, context_length, open_model, require_same_tokens
from .control import Adaptive, Controller, Fixed
from .drafters import Drafter
from .drafters.lookup import Lookup
from .drafters.model import ModelDrafter
from .engine import Engine, Event, Request
from .errors import BusyError, ClosedError, OptionError
from .prices import Prices, keep, measure, recall
from .sampling import Sampling
from .template import ChatTemplate, Message
from .text import to_text
from .verify import verifier

DRAFTERS = ("lookup", "model")  #: the names of all drafters

#: Told what is being measured and the share done, from 0 to 1.
OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Speculation:
    """How to speculate.

    Args:
        drafters: names from `DRAFTERS`; None takes all that the pair allows.
        k: tokens to draft in each round, 0 for plain decoding; None adapts to what pays.
        verifier: `match` or `rejection`.
    """

    drafters: tuple[str, ...] | None = None
    k: int | None = None
    verifier: str = "match"

    def __post_init__(self) -> None:
        verifier(self.verifier)
        if self.k is not None and self.k < 0:
            raise OptionError(f"k is {self.k}; it must be 0 (plain decoding) or more, or auto")
        for name in self.drafters or ():
            if name not in DRAFTERS:
                raise OptionError(f"no drafter {name!r}; there are {', '.join(DRAFTERS)}")


def load(
    model: str | Path,
    draft: str | Path | None = None,
    *,
    device: Device | None = None,
    speculation: Speculation | None = None,
    interrupt: Interrupt | None = None,
    on_progress: OnProgress | None = None,
) -> Runtime:
    """Load a target, and a draft model if one is given, and measure what passes cost unless that is known.

    Args:
        model: a GGUF file.
        draft: a small GGUF file with the same vocabulary.
        interrupt: set it from another thread to give up loading.
        on_progress: told how far measuring is; it runs once for each model and machine.

    Raises:
        ModelError: a file that cannot be loaded, or a pair that does not fit together.
        MissingPackage: the engine for these files is not installed.
        Interrupted: `interrupt` was set.
    """
    device, interrupt = device or Device(), interrupt or Interrupt()
    speculation = speculation or Speculation()
    with ExitStack() as opened:
        target = open_model(Path(model), device, interrupt)
        opened.callback(target.close)
        second = None
        if draft is not None:
            second = open_model(Path(draft), device, interrupt)
            opened.callback(second.close)
        runtime = assemble(
            target, second, device=device, speculation=speculation, interrupt=interrupt, on_progress=on_progress
        )
        opened.pop_all()
    return runtime


def assemble(
    target: Model,
    draft: Model | None = None,
    *,
    device: Device | None = None,
    speculation: Speculation | None = None,
    interrupt: Interrupt | None = None,
    on_progress: OnProgress | None = None,
) -> Runtime:
    """A runtime over models that are open already, by an engine of one's own, say. It closes them when it is closed.

    `interrupt` is the one the models were opened with. Raises as `load` does; then the models stay open.
    """
    device, speculation = device or Device(), speculation or Speculation()
    if draft is not None:
        require_same_tokens(target.vocabulary, draft.vocabulary)
    elif "model" in (speculation.drafters or ()):
        raise OptionError("the drafter 'model' needs a draft model; give one (--draft), or take another drafter")
    context = context_length(device, target)
    with ExitStack() as opened:
        session = target.session(context)
        opened.callback(session.close)
        prices = _priced(session, "target", on_progress)
        drafters: list[Drafter] = [Lookup()]
        if draft is not None:
            drafting = draft.session(context)
            opened.callback(drafting.close)
            step = _priced(drafting, "draft", on_progress).plain
            drafters.append(ModelDrafter(drafting, target.vocabulary.size, step))
        close = opened.pop_all().close
    models = (target, draft) if draft is not None else (target,)
    pair = _Pair(models, session, tuple(drafters), prices, interrupt or Interrupt(), close)
    return Runtime(pair, speculation)


@dataclass(frozen=True, slots=True)
class _Pair:
    """What a runtime owns."""

    models: tuple[Model, ...]
    session: Session
    drafters: tuple[Drafter, ...]
    prices: Prices
    interrupt: Interrupt
    close_sessions: Callable[[], None]

    def close(self) -> None:
        self.close_sessions()
        for model in self.models:
            model.close()


class Runtime:
    """A target with its drafters. One answer at a time; `cancel` and `close` may come from any thread."""

    def __init__(self, pair: _Pair, speculation: Speculation) -> None:
        self.speculation = speculation
        self._pair = pair
        self._controller = _controller(pair, speculation)
        self._template: ChatTemplate | None = None
        self._busy = threading.Lock()
        self._stream: Callable[[], Generator[Event, None, None] | None] = lambda: None
        self._closed = False

    @property
    def vocabulary(self) -> Vocabulary:
        return self._pair.models[0].vocabulary

    @property
    def prices(self) -> Prices:
        """The price of a pass by width, as measured and corrected since."""
        return self._pair.prices

    @property
    def session(self) -> Session:
        """The target's session, for measurements between answers."""
        return self._pair.session

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._pair.session.context

    @property
    def description(self) -> str:
        """The models by name."""
        return " with draft ".join(model.description for model in self._pair.models)

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling that the model's file recommends: `Sampling` fields by name."""
        return dict(self._pair.models[0].sampling)

    def complete(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        speculation: Speculation | None = None,
    ) -> Iterator[Event]:
        """Stream what follows `prompt`: text, in which nothing becomes a special token, or tokens.

        Args:
            stop: texts that end the answer; they are not part of it.
            speculation: for this answer only; plain decoding, say, to compare.

        Raises:
            ContextOverflow: the prompt does not fit; nothing was done.
            OptionError: an empty prompt, or options that make no sense.
            BusyError: another answer is under way; raised when the first event is asked for.
            ClosedError: the runtime was closed.
        """
        self._check_open()
        tokens = self.vocabulary.tokenize(prompt, start=True) if isinstance(prompt, str) else list(prompt)
        request = Request(tokens, sampling or Sampling(), max_tokens, tuple(stop))
        return self._generate(request, speculation)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        speculation: Speculation | None = None,
    ) -> Iterator[Event]:
        """Stream the answer to `messages`, each with "role" and "content".

        Where they do not fit the context the oldest turns are left out, never a leading system message nor the last
        message; `Started.dropped` says how many. What the context holds of an earlier call is not computed again.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages.
            and as `complete`.
        """
        self._check_open()
        if not messages:
            raise OptionError("no messages to answer; give at least one with role user")
        tokens, dropped = self._fit(list(messages), max_tokens)
        request = Request(tokens, sampling or Sampling(), max_tokens, tuple(stop), dropped)
        return self._generate(request, speculation)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens that `chat` gives the model for `messages`, all of them.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages.
        """
        if self._template is None:
            self._template = ChatTemplate(self.vocabulary)
        return self._template.tokens(messages)

    def cancel(self) -> None:
        """End the answer under way, inside a pass where the engine allows it; it finishes as `cancelled`."""
        self._pair.interrupt.set()

    def text(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`."""
        return to_text(tokens, self.vocabulary.piece)

    def close(self) -> None:
        """End the answer under way and free everything. Closing twice does no harm."""
        already, self._closed = self._closed, True
        while not self._busy.acquire(blocking=False):
            self._pair.interrupt.set()
            self._leave_stream()
        try:
            if not already:
                self._pair.close()
        finally:
            self._busy.release()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _leave_stream(self) -> None:
        """Close a stream that waits for its reader. One that is executing ends by the interrupt."""
        try:
            if (stream := self._stream()) is not None:
                stream.close()
        except ValueError:  # generator already executing, in another thread
            time.sleep(0.001)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this runtime is closed; load it again")

    def _fit(self, messages: list[Message], max_tokens: int | None) -> tuple[list[int], int]:
        """The prompt, without as many of the oldest turns as it takes to leave room for an answer."""
        reserve = min(max_tokens or self.context, self.context // 4)
        first = 1 if messages[0].get("role") == "system" else 0
        dropped = 0
        while True:
            tokens = self.prompt(messages)
            if len(tokens) + reserve <= self.context or len(messages) - first < 3:
                return tokens, dropped
            # Turns go in pairs: templates insist that the user speaks first.
            del messages[first : first + 2]
            dropped += 2

    def _generate(self, request: Request, speculation: Speculation | None) -> Iterator[Event]:
        pair = self._pair
        controller = self._controller if speculation is None else _controller(pair, speculation)
        rule = verifier((speculation or self.speculation).verifier)
        engine = Engine(pair.session, self.vocabulary, controller, rule, pair.interrupt, pair.prices)
        itself: list[weakref.ref[Generator[Event, None, None]]] = []
        stream = self._guarded(engine.generate(request), itself)
        itself.append(weakref.ref(stream))  # weak, so that a stream its reader forgets is closed at once
        return stream

    def _guarded(
        self, events: Iterator[Event], itself: list[weakref.ref[Generator[Event, None, None]]]
    ) -> Generator[Event, None, None]:
        if not self._busy.acquire(blocking=False):
            raise BusyError("this runtime is answering already; wait for it, cancel it, or load a second one")
        try:
            self._check_open()
            self._stream = itself[0]
            self._pair.interrupt.clear()
            yield from events
        finally:
            self._busy.release()


def _controller(pair: _Pair, speculation: Speculation) -> Controller:
    names = speculation.drafters
    known = {drafter.name: drafter for drafter in pair.drafters}
    if missing := [name for name in names or () if name not in known]:
        raise OptionError(
            f"the drafter {missing[0]!r} needs a draft model; give one (--draft), or take another drafter"
        )
    drafters = [known[name] for name in names] if names is not None else list(pair.drafters)
    return Adaptive(drafters, pair.prices) if speculation.k is None else Fixed(drafters, speculation.k)


def _priced(session: Session, what: str, on_progress: OnProgress | None) -> Prices:
    prices = recall(session)
    if prices is not None:
        session.decode((0,))  # the first pass reads the weights from disk; better now than in an answer
        session.rollback(0)
        return prices
    tell = on_progress or (lambda _what, _share: None)
    prices = Prices(measure(session, lambda share: tell(what, share)))
    keep(session, prices)
    return prices
