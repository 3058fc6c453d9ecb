"""The chat: reads input, streams answers, keeps the conversation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from ..engine import Finished, Started, Text
from ..errors import EdgespecError
from ..grammar import Grammar
from ..runtime.runtime import Runtime
from ..sampling import Sampling
from ..stats import Stats
from ..text.template import Message
from ..text.think import THINK
from . import background
from .explain import explained
from .history import opened
from .keyboard import unechoed
from .remarks import LOG, quiet
from .saved_chat import require_place, save, saved
from .show import MarkedText, PlainText, figures, printable
from .thoughts import THOUGHTS, AnswerDisplay
from .wrapping import Wrapping

_HELP = """\
/help           this list
/reset          delete the conversation
/system [TEXT]  set the system message; without TEXT, delete it
/stats          the statistics of the last answer; /stats on or off shows them after every one
/drafts         mark accepted and rejected draft tokens, or stop doing so; on or off
/think [HOW]    how the model thinks: on, off, low, medium, high, or auto, its template's default
/save FILE      save the conversation, as JSON with the messages of OpenAI's API
/load FILE      go on with a saved conversation, in place of this one
/thoughts       the thoughts before the last answer; /thoughts show, fold or hide sets how they are shown
/exit           leave (also Ctrl-D)
Enter sends; Alt-Enter begins a new line. Ctrl-C stops the answer and keeps the conversation. Ctrl-Z suspends the chat
until `fg`. Input during an answer appears at the next prompt."""
_COMMAND = re.compile(r"/[A-Za-z]+")
COMMANDS = ("/help", "/reset", "/system", "/stats", "/drafts", "/think", "/thoughts", "/save", "/load", "/exit")


@dataclass
class Chat:
    """A conversation with one runtime. Answers go to `out`, messages of the chat to `note`."""

    runtime: Runtime
    sampling: Sampling
    max_tokens: int | None = None
    system: str = ""
    stop: Sequence[str] = ()
    drafts: bool = False
    stats: bool = False
    think: str = "auto"
    thoughts: str = "show"  #: how reasoning is shown, one of `THOUGHTS`
    colour: bool = True
    columns: Callable[[], int] = lambda: 0  #: width of the terminal; 0 where answers do not go to a terminal
    out: Callable[[str], None] = lambda text: click.echo(text, nl=False)
    note: Callable[[str], None] = lambda text: click.echo(click.style(text, dim=True), err=True)
    grammar: Grammar | None = None
    kept: Path | None = None  #: a file in which the conversation is saved after each answer
    turns: list[Message] = field(default_factory=list)
    #: Older turns, which do not fit into the context any more; they are saved with the others.
    outgrown: list[Message] = field(default_factory=list)
    last: Stats | None = None
    last_thoughts: str = ""

    def enter(self, line: str) -> bool:
        """Handle a line of input; False for a command to leave."""
        command, _, rest = line.strip().partition(" ")
        if not command:
            return True
        if not _COMMAND.fullmatch(command):  # a path, for example, is not a command
            self._answer_or_report(line.strip())
            return True
        if command.lower() in ("/exit", "/quit", "/bye"):
            return False
        run = self._run_file_command if command.lower() in {"/save", "/load"} else self._run_command
        run(command.lower(), rest.strip())
        return True

    def answer(self, text: str) -> Finished:
        """Stream the answer to `text`. Ctrl-C ends it; its text so far stays in the conversation.

        An answer without text, which was ended while the model was thinking, for example, leaves no turn.
        """
        messages = [*self._preamble(), *self.turns, {"role": "user", "content": text}]
        show = MarkedText(self.runtime, colour=self.colour) if self.drafts else PlainText(colour=self.colour)
        answer = reasoning = ""
        left_out = 0
        events = self.runtime.chat(
            messages, self.sampling, max_tokens=self.max_tokens, stop=self.stop, grammar=self.grammar, think=self.think
        )
        with unechoed(), self._wrapped() as out:
            display = AnswerDisplay(self.thoughts, out, self.note, colour=self.colour)
            for event in background.stream(events, self.runtime.cancel):
                match event:
                    case Started(dropped=left_out) if left_out:
                        self._aside(f"(the context is full: the oldest {left_out} messages were left out)")
                    case Text():
                        answer += event.text
                        reasoning += event.reasoning
                        display.show(*show(event), len(event.tokens))
                    case Finished():
                        finished = event
            display.close()
        self.outgrown += self.turns[:left_out]  # they will not fit into the context again
        del self.turns[:left_out]
        if answer:
            thoughts = {"reasoning_content": reasoning} if reasoning else {}
            self.turns += [messages[-1], {"role": "assistant", "content": answer, **thoughts}]
        self.last, self.last_thoughts = finished.stats, reasoning
        self._remark(finished)
        if self.kept is not None and answer:
            self.save(self.kept)
        if reasoning and not answer:
            self._aside("(no answer: the model was still thinking; the conversation goes on without this turn)")
        return finished

    def save(self, path: Path) -> None:
        """Save the conversation. Raises OptionError as `saved_chat.save`."""
        save(path, [*self._preamble(), *self.outgrown, *self.turns])

    def load(self, path: Path) -> None:
        """Go on with the conversation in a file. A system message in it takes the place of the present one.

        Raises:
            OptionError: as `saved_chat.saved`; the present conversation stays.
        """
        messages = saved(path)
        if messages and messages[0]["role"] == "system":
            self.system = messages.pop(0)["content"]
        # A question without an answer is not part of a conversation.
        self.turns, self.outgrown = list[Message](messages[: len(messages) // 2 * 2]), []

    def resume(self) -> None:
        """Go on with the conversation in `kept`, if any; a system message given now stays. Raises as `load`."""
        if self.kept is not None:
            require_place(self.kept)
        if self.kept is not None and self.kept.exists():
            given = self.system
            self.load(self.kept)
            self.system = given or self.system

    def remark_switch(self) -> None:
        """Print a note if the model's template has no switch for how it is to think."""
        if self.think != "auto" and not self.runtime.has_think_switch():
            self._aside(
                f"(the model's chat template has no switch for this: {self.think} has no effect on its thinking)"
            )

    @contextmanager
    def _wrapped(self) -> Iterator[Wrapping]:
        """The output of the answer with word wrapping; flushed when the block ends."""
        out = Wrapping(self.out, self.columns)
        try:
            yield out
        finally:
            out.flush()

    def _aside(self, text: str) -> None:
        """Print what --quiet leaves out, such as why an answer is truncated."""
        if not quiet():
            self.note(text)

    def _preamble(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def _remark(self, finished: Finished) -> None:
        LOG.info("answered: %s", finished.reason)
        for line in figures(finished.stats).splitlines():
            LOG.debug("%s", line)
        for notice in finished.notices:
            self._aside(f"({notice})")
        if finished.reason == "cancelled":
            self._aside("(stopped)")
        if finished.reason in ("length", "context"):
            limit = "--max-tokens" if finished.reason == "length" else "the context (--ctx)"
            self._aside(f"(truncated: the answer reached {limit})")
        if self.stats:
            self.note(figures(finished.stats))
            if why := explained(self.runtime):
                self.note(why)

    def _answer_or_report(self, text: str) -> None:
        """Answer; an error is printed and does not end the chat."""
        try:
            self.answer(text)
        except EdgespecError as error:
            self.note(f"Error: {printable(str(error))}")

    def _run_command(self, command: str, rest: str) -> None:
        match command:
            case "/help":
                self.note(_HELP)
            case "/reset":
                self.turns.clear()
                self.outgrown.clear()
                self.note("(the conversation is deleted)")
            case "/system":
                self.system = rest
                self.note("(the system message is set)" if rest else "(no system message)")
            case "/stats" if rest in ("on", "off"):
                self.stats = rest == "on"
                self.note(f"(the statistics are {'shown after every answer' if self.stats else 'not shown'})")
            case "/stats":
                self.note(figures(self.last) if self.last else "(no answer yet)")
            case "/drafts":
                self.drafts = rest == "on" if rest in ("on", "off") else not self.drafts
                self.note(
                    MarkedText(self.runtime, colour=self.colour).legend() if self.drafts else "(drafts are not marked)"
                )
            case "/think":
                self._set_think(rest)
            case "/thoughts" if rest in THOUGHTS:
                self.thoughts = rest
                self.note(f"(thoughts: {rest})")
            case "/thoughts":
                self.note(printable(self.last_thoughts) or "(no thoughts yet)")
            case _:
                self.note(f"there is no command {command}; the commands are {', '.join(COMMANDS)}")

    def _run_file_command(self, command: str, name: str) -> None:
        """Save to a file or load one; an error is printed and changes nothing."""
        if not name:
            self.note(f"{command} needs the name of a file")
            return
        path = Path(name).expanduser()
        try:
            if command == "/save":
                self.save(path)
            else:
                self.load(path)
        except EdgespecError as error:
            self.note(f"Error: {printable(str(error))}")
            return
        done = "saved in" if command == "/save" else f"{(len(self.turns) + 1) // 2} questions, of"
        self.note(f"({done} {printable(str(path))})")

    def _set_think(self, think: str) -> None:
        """Set how the model thinks; without a value, print it."""
        if think and think not in THINK:
            self.note(f"/think takes one of {', '.join(THINK)}, not {printable(think)}")
            return
        self.think = think or self.think
        self.note(f"(think: {self.think})")
        self.remark_switch()


def converse(chat: Chat, history: Path | None) -> None:
    """Read lines from the terminal until the user leaves; the input history is kept in the file `history`, if given."""
    for line in _lines(history):
        if not chat.enter(line):
            return


def _lines(history: Path | None) -> Iterable[str]:
    from prompt_toolkit import PromptSession  # noqa: PLC0415 - a tenth of a second that only this needs
    from prompt_toolkit.completion import WordCompleter  # noqa: PLC0415
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent  # noqa: PLC0415

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        history=opened(history),
        completer=WordCompleter(list(COMMANDS), sentence=True),
        complete_while_typing=False,
        enable_suspend=True,
        key_bindings=keys,
        prompt_continuation="  ",
    )
    while True:
        try:
            yield session.prompt("> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
