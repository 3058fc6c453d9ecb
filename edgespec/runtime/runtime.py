"""The runtime as apps use it: stream answers, cancel, close."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..backends import Session, Vocabulary, tokens_up_to
from ..backends.token_ids import checked_tokens
from ..controller import Controller
from ..controller.calibration import Share
from ..drafters import Drafter, block_prices_of
from ..drafters.prediction import Prediction
from ..engine import Request
from ..errors import Interrupted, printable
from ..grammar import Binding, Grammar, reasoning_before
from ..prices import Prices
from ..sampling import Sampling
from ..text.call_parser import ToolCallParser
from ..text.stream import to_text
from ..text.template import ChatTemplate, Message
from ..text.template_variables import checked_variables
from ..text.think import checked_think
from ..values import instance, texts, whole
from ..verify import verifier
from .answer import Answer
from .answer_queue import AnswerQueue, QueuePlace
from .answer_streams import AnswerStreams
from .chat_prompt import checked_messages, fitted_prompt
from .loaded_pair import LoadedPair
from .speculation import Speculation

#: Makes a controller for the drafters of a runtime.
Controlled = Callable[[Sequence[Drafter]], Controller]


class Runtime:
    """A loaded target with its drafters. It computes one answer at a time; `cancel` and `close` may be called from any
    thread. `another` opens a further runtime over the same weights.

    A runtime belongs to the process that loaded it. In a forked process answers raise ClosedError, and `cancel` and
    `close` do nothing. If ONNX Runtime is loaded, a forked process must end by `os._exit`, as those of multiprocessing
    do: ONNX Runtime waits at the shutdown of the interpreter for threads that a fork does not have.
    """

    def __init__(self, pair: LoadedPair, speculation: Speculation) -> None:
        self.speculation = speculation
        self._pair = pair
        self._controller = pair.controller(speculation)
        self._constrained: Controller | None = None  # for answers with a grammar
        self._template: ChatTemplate | None = None
        self._notices: list[str] = []
        self._queue = AnswerQueue(pair.interrupt, pair.turns.wake)
        self._streams = AnswerStreams(pair, self._queue)
        self._freed = False

    @property
    def vocabulary(self) -> Vocabulary:
        """The target's tokens. Raises ClosedError."""
        self._queue.check_open()
        return self._pair.models[0].vocabulary

    @property
    def prices(self) -> Prices:
        """Seconds of a target pass by width and context, as measured when loading and corrected by passes since."""
        return self._pair.prices

    @property
    def session(self) -> Session:
        """The target's session, for measurements between answers. Raises ClosedError."""
        self._queue.check_open()
        return self._pair.session

    @property
    def trained_context(self) -> int:
        """The longest context that the target was trained for, in tokens."""
        return self._pair.models[0].trained_context

    @property
    def weights(self) -> str:
        """A key for the target's weights, by which two files are known to be the same model; empty if there is none."""
        return self._pair.models[0].weights

    @property
    def context(self) -> int:
        """The most tokens that prompt and answer may have together."""
        return self._pair.session.context

    @property
    def description(self) -> str:
        """The names of the target and its drafts."""
        target, *drafts = (model.description for model in self._pair.models)
        return printable(f"{target} with draft {', '.join(drafts)}" if drafts else target)

    @property
    def notices(self) -> Sequence[str]:
        """Messages for the user: where the models are not loaded as requested, and which drafters failed since."""
        return [*self._notices, *self._pair.notices]

    def add_notice(self, notice: str) -> None:
        """Add a message to `notices`."""
        self._notices.append(notice)

    @property
    def step_prices(self) -> dict[str, float]:
        """Seconds per guess by the name of the drafter, in its longest block if a pass makes several; 0 where they are
        negligible."""
        prices = {drafter.name: block_prices_of(drafter) for drafter in self._pair.drafters}
        return {name: block[-1] / len(block) for name, block in prices.items()}

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names of the drafters."""
        return tuple(drafter.name for drafter in self._pair.drafters)

    @property
    def acceptance(self) -> dict[str, Share]:
        """Acceptance rate of the first guess by the name of the drafter, over recent rounds and earlier runs. Guesses
        on which several drafters agree are counted under their joined names."""
        return self._pair.calibration(self.speculation).summary()

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling that the target's file recommends: `Sampling` fields by name."""
        return dict(self._pair.models[0].sampling)

    def complete(  # noqa: PLR0913 - all but the first two are options by name
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | str = (),
        grammar: Grammar | None = None,
        speculation: Speculation | None = None,
        controlled: Controlled | None = None,
        wait: bool = False,
        prediction: str | None = None,
        logprobs: int | None = None,
    ) -> Answer:
        """Stream the continuation of `prompt`.

        Args:
            prompt: a text, in which no part becomes a special token; or tokens.
            sampling: how tokens are chosen; None is greedy decoding.
            max_tokens: tokens of the answer; None continues to the end of the context.
            stop: texts that end the answer; they are not part of it.
            grammar: what the answer may be. A token that it does not allow has the probability 0, before all that
                `sampling` says; the answer ends where the grammar does. If the context or `max_tokens` ends it before,
                it is incomplete.
            speculation: for this answer only, for example plain decoding for a comparison.
            controlled: makes the controller of this answer from the runtime's drafters; for measurements.
            wait: if another answer is under way when the first event is requested, wait until it and those that waited
                before have ended. `cancel` cancels a waiting answer, too; after `close` it raises ClosedError. A thread
                that has read only a part of the answer under way would wait for itself.
            prediction: a text that the answer is expected to resemble, such as the file that it changes: it is drafted
                wherever the answer goes on as it does (see `edgespec.drafters.prediction`). It does not change the
                answer. `Stats.of_drafter("prediction")` counts its tokens.
            logprobs: how many of the likeliest tokens `Text.logprobs` has for each token of the answer, 0 for the
                token's own log probability alone; None computes none.

        Raises:
            ContextOverflow: the prompt does not fit the context; nothing was computed.
            GrammarError: the grammar is not possible with the model's tokens; from the stream: it became too complex.
            MissingPackage: a grammar needs llguidance, which is not installed.
            OptionError: an empty prompt, or invalid options.
            BusyError: another answer is under way, and `wait` is False; raised when the first event is requested.
            ClosedError: the runtime was closed.
        """
        self._queue.check_open()
        place, vocabulary = self._queue.place(waits=wait), self.vocabulary
        given = tokens_up_to(vocabulary, prompt, self._most, start=True) if isinstance(prompt, str) else prompt
        tokens = checked_tokens(given, vocabulary.size)
        chosen, bound = Sampling() if sampling is None else sampling, self._bound(grammar)
        request = Request(tokens, chosen, max_tokens, _stops(stop), grammar=bound, logprobs=logprobs)
        return self._generate(request, speculation, place, controlled, prediction)

    def chat(  # noqa: PLR0913 - all but the first two are options by name
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | str = (),
        grammar: Grammar | None = None,
        speculation: Speculation | None = None,
        wait: bool = False,
        think: str = "auto",
        prediction: str | None = None,
        logprobs: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Stream the answer to `messages`, each with "role", "content" and other fields that the chat template reads.

        If they do not fit the context, the oldest turns are dropped, but never a leading system message nor the last
        turn; `Started.dropped` is the number of messages dropped. The prefix that the KV cache shares with the prompt
        is not computed again.

        The reasoning of a thinking model is separated from its answer: `Text.reasoning` has it, and `Text.text` the
        answer. Return it in the message of this answer as "reasoning_content", beside "content": the template knows
        whether a later prompt has it.

        Args:
            think: "on", "off", or an effort: "low", "medium", "high"; "auto" is the default of the template, and all
                that one without a switch takes (see `has_think_switch`). An effort is "on" where there are none.
            tools: descriptions of functions that the model may call, as in OpenAI's API: `{"type": "function",
                "function": {"name": ..., "description": ..., "parameters": JSON schema}}`. The template renders them;
                calls are in the text of the answer, as the model writes them: `call_parser` parses them.
            chat_template_kwargs: further variables of the template, with values as in JSON, such as
                `{"enable_thinking": False}` or `{"documents": [...]}`.

        `stop` ends the answer, not its reasoning. `grammar` is for the answer: the reasoning before it is free. The
        other arguments are those of `complete`.

        Raises:
            TemplateError: the model has no chat template, or the template refuses these messages, or it exceeds its
                limits of time and memory.
            and as `complete`.
        """
        self._queue.check_open()
        place = self._queue.place(waits=wait)
        messages = checked_messages(messages)
        most = None if max_tokens is None else whole("max_tokens", max_tokens, 1)
        room = self.context - min(most or self.context, self.context // 4)
        template, think = self._chat_template(), checked_think(think)

        given = checked_variables(tools, chat_template_kwargs)

        def tokens(messages: Sequence[Message]) -> list[int]:
            return template.tokens(messages, lambda: self._queue.is_cancelled(place), self._most, think, given)

        try:
            prompt, dropped = fitted_prompt(tokens, messages, room)
        except Interrupted:
            return self._streams.cancelled_answer()
        chosen, reasoning = Sampling() if sampling is None else sampling, template.reasoning(prompt)
        before = reasoning_before(reasoning, think) if grammar is not None else ""
        bound = self._bound(grammar, before)
        shown = template.call_markers() if tools else {}
        request = Request(prompt, chosen, most, _stops(stop), dropped, reasoning, bound, logprobs, shown)
        return self._generate(request, speculation, place, prediction=prediction)

    def prompt(
        self,
        messages: Sequence[Message],
        think: str = "auto",
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The tokens of all of `messages` as `chat` renders them; none are dropped.

        Raises:
            TemplateError: the model has no chat template, or the template refuses these messages.
            OptionError: `messages` is not a list of messages, or another argument is not valid.
        """
        given = checked_variables(tools, chat_template_kwargs)
        return self._chat_template().tokens(checked_messages(messages), think=checked_think(think), given=given)

    def call_parser(self, tools: Sequence[Mapping[str, Any]]) -> ToolCallParser | None:
        """A parser of the tool calls in the text of one answer, while it arrives; None if the chat template writes
        calls in no known format (see `edgespec.text.tool_calls`).

        Args:
            tools: those given to `chat`.

        Raises:
            TemplateError: the model has no chat template.
            OptionError: `tools` is not valid.
        """
        given = checked_variables(tools, None).get("tools", ())
        functions = (tool["function"] for tool in given)
        return self._chat_template().call_parser({each["name"]: each.get("parameters") for each in functions})

    def has_think_switch(self) -> bool:
        """Whether `think` can have an effect: the chat template reads a variable that it sets.

        Raises:
            TemplateError: the model has no chat template.
        """
        return self._chat_template().has_switch()

    def cancel(self) -> None:
        """Cancel the answer under way, in the middle of a pass if the engine can, and all that were requested and have
        not begun. Each ends with `Finished`, reason "cancelled". `Answer.cancel` cancels a single answer."""
        self._queue.cancel_all()

    def another(self, speculation: Speculation | None = None) -> Runtime:
        """A further runtime over the same weights with a KV cache of its own, for a second conversation.

        Both may compute answers at the same time on different threads: they alternate by the round, and a prompt is
        computed in one piece. They share the prices and the calibration of the drafters. Each is closed by itself; the
        last one to close frees the weights.

        Args:
            speculation: its own; None takes this runtime's.

        Raises:
            ClosedError: this runtime was closed.
            OptionError: `speculation` names a drafter that this pair does not have.
            EngineError: there is no memory for a further cache.
        """
        self._queue.check_open()
        chosen = self.speculation if speculation is None else instance("speculation", speculation, Speculation)
        pair = self._pair.another(chosen)
        try:
            return Runtime(pair, chosen)
        except BaseException:
            pair.close()
            raise

    def text(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`.

        Raises:
            OptionError: one of them is not a token of the vocabulary.
        """
        vocabulary = self.vocabulary
        return to_text(checked_tokens(tokens, vocabulary.size), vocabulary.token_bytes)

    def close(self) -> None:
        """Cancel the answer under way and free the sessions; the last runtime over the weights frees them, too.

        A second call does nothing. In a forked process nothing is freed: the engine's threads are not there.
        """
        if not self._queue.close():
            return
        # An answer that is not under way yet raises ClosedError before it computes anything.
        if (stream := self._streams.under_way) is not None:
            stream.close()
        with self._queue.idle():
            if not self._freed:
                self._pair.close()
                self._freed = True

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _most(self) -> int:
        """Tokens after which a prompt is not tokenized further: it exceeds the context by far."""
        return 2 * self.context + 1024

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            self._template = ChatTemplate(self.vocabulary)
        return self._template

    def _bound(self, grammar: Grammar | None, before: str = "") -> Binding | None:
        """`grammar` in the target's tokens; see `GrammarTokens.bind`."""
        return None if grammar is None else self._pair.grammars.bind(instance("grammar", grammar, Grammar), before)

    def _generate(
        self,
        request: Request,
        speculation: Speculation | None,
        place: QueuePlace,
        controlled: Controlled | None = None,
        prediction: str | None = None,
    ) -> Answer:
        chosen = self.speculation if speculation is None else instance("speculation", speculation, Speculation)
        own, constrained = self._predicted(prediction, len(request.prompt)), request.grammar is not None
        if speculation is not None or own:
            controller = self._pair.controller(chosen, own, constrained=constrained)
        elif constrained:
            controller = self._constrained = self._constrained or self._pair.controller(chosen, constrained=True)
        else:
            controller = self._controller
        if controlled is not None:
            controller = controlled(controller.drafters)
        rule = verifier(chosen.verifier)
        return self._streams.answer(request, controller, rule, place, remember=chosen.remember)

    def _predicted(self, text: str | None, start: int) -> tuple[Drafter, ...]:
        """The drafter of a predicted text, for the answer after a prompt of `start` tokens; none without a text."""
        if text is None:
            return ()
        tokens = tokens_up_to(self.vocabulary, instance("prediction", text, str), self.context)
        return (Prediction(tokens, start),)


def _stops(stop: Sequence[str] | str) -> tuple[str, ...]:
    """The stop texts as a tuple. Raises OptionError."""
    return texts("stop", (stop,) if isinstance(stop, str) else stop)
