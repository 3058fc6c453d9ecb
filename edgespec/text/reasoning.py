"""The reasoning of thinking models: its markers, and how it is separated from the answer while tokens arrive.

Two layouts are known. In the first, tags enclose the reasoning, which comes before the answer: `<think>...</think>`.
Some templates write the opening tag at the end of the prompt. In the second, an answer is a sequence of messages with
headers, and the header says whether a message is reasoning: `<|channel|>analysis<|message|>...<|end|>` (gpt-oss), or a
call of a function.

A marker that is one token of the vocabulary is recognised by that token alone, so the same characters from other tokens
are text. Other markers are recognised in the text, however the tokens divide it. Tags count only at the beginning of an
answer: one that is quoted later is text. Only the tags of models that think again between tool calls count everywhere,
and only where they are control tokens, which have no text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..backends import Vocabulary
from .stream import Span, SpanBuffer, Splitter, undecided


class _Tags(NamedTuple):
    """Tags around the reasoning. If it `repeats`, further reasoning may follow text of the answer."""

    opening: str
    closing: str
    repeats: bool = False


#: The first is the default for models whose template and vocabulary have none of these.
_TAGS = (
    _Tags("<think>", "</think>"),
    _Tags("<|channel>thought\n", "<channel|>", repeats=True),
    _Tags("[THINK]", "[/THINK]"),
    _Tags("<seed:think>", "</seed:think>"),
    _Tags("<mm:think>", "</mm:think>"),
    _Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    _Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    _Tags("<thinking>", "</thinking>"),
    _Tags("<thought>", "</thought>"),
    _Tags("<reasoning>", "</reasoning>"),
)
_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|eom|>", _START)
_CALLED = re.compile(r"\bto=functions\.([\w.-]+)").search
_LONGEST_HEADER = 128  # characters; a model that writes more without the end of a header writes no headers
_TAIL = 32  # tokens at the end of a prompt in which an opening tag is searched
_MARK = 0xD800  # marks for tokens are surrogates from here on, which decoded text never has

#: A state of a splitter: adds what it recognises to a list and returns the next state, None if it needs more text.
_State = Callable[[list[Span]], "_State | None"]


def call_header(name: str) -> str:
    """The header of a message that calls a function, as it is in the text of an answer."""
    return f"{_CHANNEL}commentary to=functions.{name}{_MESSAGE}"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How the reasoning of an answer is marked, in one vocabulary.

    Args:
        marks: the character that replaces the text of each token that is a marker, or a part of one.
        texts: the text of these tokens, by that character.
        tags: the tags, with marks; None for messages with headers.
        headers: the markers of messages, with marks: the channel, the beginning of the text, and the ends.
        opened: whether the prompt ends with the opening tag, so that the answer begins with reasoning.
        closed: whether the prompt ends with the closing tag, so that the answer begins after reasoning.
        known: whether the template or the vocabulary has the markers; if not, they are those that most models use.
        protected: the texts of markers that must not become tokens in a message, although they are no control tokens:
            llama.cpp does not count "<|end|>" as one for gpt-oss.
    """

    marks: Mapping[int, str]
    texts: Mapping[int, str]
    tags: _Tags | None
    headers: tuple[str, ...] = ()
    opened: bool = False
    closed: bool = False
    protected: tuple[str, ...] = ()
    known: bool = True

    def parts(self, marker: str) -> list[str | int]:
        """A marker as the texts and tokens that a model writes for it."""
        parts = list[str | int]()
        tokens = {mark: token for token, mark in self.marks.items()}
        for character in marker:
            part = character if character not in tokens else self.texts[ord(character)] or tokens[character]
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                part = f"{parts.pop()}{part}"
            parts.append(part)
        return parts

    @classmethod
    def of(cls, vocabulary: Vocabulary, template: str) -> Reasoning:
        """The markers that `template` has, else those that are tokens of `vocabulary`, else `<think>`."""
        compiler = _Compiler(vocabulary)
        if _START in template and _MESSAGE in template:
            headers = tuple(map(compiler.marked, (_CHANNEL, _MESSAGE, *_ENDS)))
            protected = tuple(map(vocabulary.label, compiler.marks))
            return cls(compiler.marks, compiler.texts, None, headers, protected=protected)
        written = [tags for tags in _TAGS if tags.closing in template]
        known = [tags for tags in _TAGS if compiler.is_token(tags.closing)]
        opening, closing, repeats = (*written, *known, _TAGS[0])[0]
        tags = _Tags(compiler.marked(opening), compiler.marked(closing), repeats and compiler.is_token(closing))
        return cls(compiler.marks, compiler.texts, tags, known=bool(written or known))

    def after(self, prompt: Sequence[int], vocabulary: Vocabulary) -> Reasoning:
        """The same for the answer to `prompt`."""
        if self.tags is None:
            return self
        tail = [self.marks.get(t) or vocabulary.token_bytes(t).decode("utf-8", "replace") for t in prompt[-_TAIL:]]
        opened, closed = ("".join(tail).rstrip().endswith(tag.rstrip()) for tag in self.tags[:2])
        return replace(self, opened=opened, closed=closed)

    def splitter(self) -> Splitter:
        """A splitter for one answer."""
        return _TagSplitter(self, self.tags) if self.tags is not None else _MessageSplitter(self)


class _Compiler:
    """Replaces the tokens in markers by marks."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.marks: dict[int, str] = {}
        self.texts: dict[int, str] = {}

    def is_token(self, marker: str) -> bool:
        """Whether `marker` is one token."""
        tokens = self._vocabulary.tokenize(marker, special=True)
        return len(tokens) == 1 and self._is(tokens[0], marker)

    def marked(self, marker: str) -> str:
        """`marker` with a mark for each token that has no text, or for the whole if it is one token."""
        tokens = self._vocabulary.tokenize(marker, special=True)
        if len(tokens) == 1 and self._is(tokens[0], marker):
            return self._mark(tokens[0])
        for token in tokens:
            label = self._vocabulary.label(token)
            if not self._vocabulary.token_bytes(token) and label in marker:
                marker = marker.replace(label, self._mark(token))
        return marker

    def _is(self, token: int, marker: str) -> bool:
        """Whether `token` is `marker`, not the unknown token."""
        return marker in (self._vocabulary.label(token), self._vocabulary.token_bytes(token).decode("utf-8", "replace"))

    def _mark(self, token: int) -> str:
        mark = self.marks.setdefault(token, chr(_MARK + len(self.marks)))
        self.texts[ord(mark)] = self._vocabulary.token_bytes(token).decode("utf-8", "replace")
        return mark


class _Splitting(ABC):
    """What the two layouts share: text that is held back, states, and the reasoning up to its end.

    Args:
        reasoning: the markers.
        closings: any of these ends the reasoning.
        endings: any of these ends text of the answer.
    """

    def __init__(self, reasoning: Reasoning, closings: tuple[str, ...], endings: tuple[str, ...]) -> None:
        self.inside = reasoning.opened
        self._marks, self._texts = reasoning.marks, reasoning.texts
        self._closings, self._endings = closings, endings
        self._held = SpanBuffer()
        self._state: _State = self._begin

    def push(self, text: str, token: int, *, drafter: str) -> list[Span]:
        self._held.add(Span(self._marks.get(token, text), drafter))
        out: list[Span] = []
        while (state := self._state(out)) is not None:
            self._state = state
        return out

    def flush(self) -> list[Span]:
        out: list[Span] = []
        if self._state in (self._lead, self._think) or (self._state == self._begin and self.inside):
            self._emit(out, len(self._held.text.rstrip()), reasoning=True)
        elif self._shows_rest():
            self._emit(out, None)
        return out

    @abstractmethod
    def _begin(self, out: list[Span]) -> _State | None:
        """The first state: what precedes the reasoning, or a text of the answer."""

    @abstractmethod
    def _close(self) -> _State:
        """The state after the end of the reasoning."""

    @abstractmethod
    def _end(self) -> _State:
        """The state after the end of text of the answer."""

    @abstractmethod
    def _shows_rest(self) -> bool:
        """Whether text that is held back at the end, outside of the reasoning, belongs to the answer."""

    def _open(self) -> _State:
        self.inside = True
        return self._lead

    def _lead(self, _out: list[Span]) -> _State | None:
        """White space at the beginning of the reasoning is dropped."""
        text = self._held.text
        body = text.lstrip()
        self._held.take(len(text) - len(body))
        return self._think if body else None

    def _think(self, out: list[Span]) -> _State | None:
        """The reasoning; white space at its end is dropped."""
        text = self._held.text
        at, size = _first(text, self._closings)
        sure = text[: at if size else len(text) - undecided(text, self._closings)].rstrip()
        self._emit(out, len(sure), reasoning=True)
        if not size:
            return None
        self._held.take(at + size - len(sure))
        return self._close()

    def _answer(self, out: list[Span]) -> _State | None:
        text = self._held.text
        at, size = _first(text, self._endings)
        self._emit(out, at if size else len(text) - (undecided(text, self._endings) if self._endings else 0))
        if not size:
            return None
        self._held.take(size)
        return self._end()

    def _emit(self, out: list[Span], length: int | None, *, reasoning: bool = False) -> None:
        spans = (Span(text.translate(self._texts), drafter, reasoning) for text, drafter, _ in self._held.take(length))
        out += (span for span in spans if span.text)


class _TagSplitter(_Splitting):
    """Reasoning between tags."""

    def __init__(self, reasoning: Reasoning, tags: _Tags) -> None:
        super().__init__(reasoning, (tags.closing,), (tags.opening,) if tags.repeats else ())
        self._opening = tags.opening
        self._outside: _State = self._gap if reasoning.closed else self._answer

    def _begin(self, out: list[Span]) -> _State | None:  # noqa: ARG002 - the signature of a state
        """Before the first character that is not white space. The tag may be there although the prompt has it, too."""
        text = self._held.text
        body = text.lstrip()
        if body.startswith(self._opening):
            self._held.take(len(text) - len(body) + len(self._opening))
            return self._open()
        if self._opening.startswith(body):
            return None
        return self._lead if self.inside else self._outside

    def _close(self) -> _State:
        self.inside = False
        return self._gap

    def _end(self) -> _State:
        return self._open()

    def _gap(self, out: list[Span]) -> _State | None:  # noqa: ARG002 - the signature of a state
        """The blank lines after the reasoning are dropped, the indentation of the answer is not."""
        text = self._held.text
        body = text.lstrip()
        if not body:
            return None
        space = text[: len(text) - len(body)]
        self._held.take(space.rfind("\n") + 1 if "\n" in space else len(space))
        return self._answer

    def _shows_rest(self) -> bool:
        return self._state != self._gap


class _MessageSplitter(_Splitting):
    """Messages with headers."""

    def __init__(self, reasoning: Reasoning) -> None:
        self._channel, self._message, *ends = reasoning.headers
        super().__init__(reasoning, tuple(ends), tuple(ends))
        self._any = False  # whether a header was recognised

    def _begin(self, out: list[Span]) -> _State | None:
        """A header. One of a message to a function is text: a parser of calls reads it."""
        text = self._held.text
        at = text.find(self._message)
        if at < 0 and len(text) <= _LONGEST_HEADER:
            return None
        called = _CALLED(text[:at]) if at >= 0 else None
        self.inside = at >= 0 and called is None and self._reasons(text[:at])
        if at >= 0:
            self._any = True
            self._held.take(at + len(self._message))
        if called is not None:  # the name is in the header only
            out.append(Span(call_header(called[1])))
        return self._open() if self.inside else self._answer

    def _reasons(self, header: str) -> bool:
        """Whether the message of this header is reasoning."""
        _, _, channel = header.rpartition(self._channel)
        return channel.lstrip().startswith("analysis") or "to=self" in header

    def _close(self) -> _State:
        return self._begin

    def _end(self) -> _State:
        return self._begin

    def flush(self) -> list[Span]:
        if self._state == self._begin:
            self.inside = False
        return super().flush()

    def _shows_rest(self) -> bool:
        return self._state != self._begin or not self._any


def _first(text: str, strings: Sequence[str]) -> tuple[int, int]:
    """The place and the length of the first of `strings` in `text`; a length of 0 if there is none."""
    found = [(at, len(string)) for string in strings if (at := text.find(string)) >= 0]
    return min(found, default=(0, 0))
