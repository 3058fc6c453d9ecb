"""A parser of tool calls while the text of an answer arrives; `tool_calls` has the formats of families of models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from .stream import undecided

_LONGEST_HEAD = 1024  # characters of a call before its arguments; a longer one is text
_LONGEST_SIGN = 3  # characters of a closing that is no token of its own


class ContentDelta(NamedTuple):
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of a call.

    Args:
        call: its number in the answer, from 0.
        name: the name of the function in the first part of a call, else empty.
        arguments: a part of the JSON text of its arguments.
    """

    call: int
    name: str
    arguments: str


Delta = ContentDelta | CallDelta


@dataclass(frozen=True, slots=True)
class Format:
    """How a family writes calls.

    Args:
        openings: a call begins with one of these.
        head: what precedes the arguments, from the opening on. What follows the match is an object. The function is the
            group "name" if the arguments are a field of an object with the name, else "plain" or "fenced".
        closings: what may follow a call.
        again: what a further call may begin with instead of an opening.
        whole: what precedes a call in one object, whose fields may have any order; None if calls are no objects.
        bare: whether an answer that begins with "{" may be a call.
    """

    openings: tuple[str, ...]
    head: re.Pattern[str]
    closings: tuple[str, ...]
    again: re.Pattern[str] | None = None
    whole: re.Pattern[str] | None = None
    bare: bool = False
    #: Tokens that are special in some vocabularies, so that they have no text, beside openings and closings.
    inside: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that may be special tokens."""
        return tuple(text for text in (*self.openings, *self.inside, *self.closings) if len(text) > _LONGEST_SIGN)


#: A state of a parser: adds what it recognises to a list and returns the next state, None if it needs more text.
State = Callable[[list[Delta]], "State | None"]


class ToolCallParser:
    """Tells calls from text in one answer.

    Args:
        names: the functions that may be called; a call of another one is text. Formats without JSON take the JSON
            schemas of their parameters, too, as a mapping.
    """

    def __init__(self, form: Format, names: Collection[str]) -> None:
        self.calls = 0  #: calls so far
        self._form = form
        self._names = frozenset(names)
        self._held = ""
        self._scan = _Scan()
        self._ended = False
        self._after: State = self._tail
        self._state: State = self._beginning if form.bare else self._content

    def push(self, text: str) -> list[Delta]:
        """What can be told apart now that `text` has arrived."""
        self._held += text
        return self._run()

    def flush(self) -> list[Delta]:
        """The rest, at the end of the answer."""
        self._ended = True
        out = self._run()
        return [*out, *self._as_text(len(self._held))]

    def _run(self) -> list[Delta]:
        out: list[Delta] = []
        while (state := self._state(out)) is not None:
            self._state = state
        return out

    def _as_text(self, length: int) -> list[Delta]:
        text, self._held = self._held[:length], self._held[length:]
        return [ContentDelta(text)] if text else []

    def _beginning(self, out: list[Delta]) -> State | None:  # noqa: ARG002 - the signature of a state
        """The first characters, which may be those of a call without a marker."""
        body = self._held.lstrip()
        if not body:
            return None
        return self._head if body.startswith("{") else self._content

    def _content(self, out: list[Delta]) -> State | None:
        openings = self._form.openings
        found = [at for opening in openings if (at := self._held.find(opening)) >= 0]
        if found:
            out += self._as_text(min(found))
            return self._head
        out += self._as_text(len(self._held) - (0 if self._ended else undecided(self._held, openings)))
        return None

    def _head(self, out: list[Delta]) -> State | None:
        """The marker and the name of a call."""
        match = self._form.head.match(self._held)
        if match is not None:
            return self._begun(match, out)
        whole = self._whole(out)
        if whole is not None:
            return whole
        if len(self._held) <= _LONGEST_HEAD and not self._ended:
            return None
        return self._refused(out)

    def _begun(self, match: re.Match[str], out: list[Delta]) -> State:
        groups = match.groupdict()
        name = groups.get("name") or groups.get("plain") or groups.get("fenced") or ""
        if name not in self._names:
            return self._refused(out)
        out.append(CallDelta(self.calls, name, ""))
        self._held = self._held[match.end() :]
        self._scan = _Scan()
        self._after = self._rest if groups.get("name") else self._tail
        return self._arguments

    def _whole(self, out: list[Delta]) -> State | None:
        """A call in one object whose fields have another order or form; None while it is not complete."""
        match = self._form.whole.match(self._held) if self._form.whole is not None else None
        if match is None:
            return None
        end = _Scan().end_of(self._held, match.end())
        if end is None:
            return None
        call = _call(self._held[match.end() : end])
        if call is None or call[0] not in self._names:
            return self._refused(out)
        out.append(CallDelta(self.calls, *call))
        self.calls += 1
        self._held = self._held[end:]
        return self._tail

    def _refused(self, out: list[Delta]) -> State:
        """What looked like a call is text, up to where the next one may begin."""
        out += self._as_text(1)
        return self._content

    def _arguments(self, out: list[Delta]) -> State | None:
        end = self._scan.end_of(self._held, 0)
        part = self._held[:end]
        if part:
            out.append(CallDelta(self.calls, "", part))
        self._held = self._held[len(part) :]
        if end is None:
            return None
        self.calls += 1
        self._scan = _Scan(depth=1)
        return self._after

    def _rest(self, out: list[Delta]) -> State | None:  # noqa: ARG002 - the signature of a state
        """What follows the arguments in the object of a call: other fields and the brace."""
        end = self._scan.end_of(self._held, 0)
        self._held = self._held[end:] if end is not None else ""
        return self._tail if end is not None else None

    def _tail(self, out: list[Delta]) -> State | None:  # noqa: ARG002 - the signature of a state
        """What follows a call: white space and closings are dropped."""
        self._held = self._held.lstrip()
        for closing in self._form.closings:
            if self._held.startswith(closing):
                self._held = self._held[len(closing) :]
                return self._tail
        if not self._held or (not self._ended and any(each.startswith(self._held) for each in self._form.closings)):
            return None
        return self._further if self._form.again is not None and self._held.startswith("{") else self._content

    def _further(self, out: list[Delta]) -> State | None:
        """A further call without a marker."""
        again = self._form.again
        match = again.match(self._held) if again is not None else None
        if match is not None:
            return self._begun(match, out)
        if len(self._held) <= _LONGEST_HEAD and not self._ended:
            return None
        return self._refused(out)


class _Scan:
    """Finds the end of a JSON object in text that arrives in parts."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._quoted = False
        self._escaped = False

    def end_of(self, text: str, start: int) -> int | None:
        """The index behind the brace that ends the object, which begins at `start` or began in an earlier part; None
        if it does not end in `text`."""
        for at in range(start, len(text)):
            character = text[at]
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        return None


def _call(text: str) -> tuple[str, str] | None:
    """The name and the arguments of a call in one JSON object; None if it is none."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):  # JSON in JSON
        return name, arguments
    return name, json.dumps(arguments, ensure_ascii=False)
