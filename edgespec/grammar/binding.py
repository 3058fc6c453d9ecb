"""Grammars bound to the tokens of a vocabulary."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

from ..backends import Vocabulary
from ..constraint import Constraint
from ..errors import GrammarError
from ..text.retokenize import Writer
from .grammar import Grammar
from .llguidance import limits, package, refused, with_deep_stack
from .matching import Matching

_SPECIAL = b"\xff"  # the first byte of a special token: no text has it


class GrammarTokens:
    """llguidance's view of a vocabulary. It is built when it is first needed, in about 2 seconds for 128256 tokens.

    Any thread may use it. It does not keep the vocabulary's model open.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._ends: tuple[int, ...] = ()

    def bind(self, grammar: Grammar, before: str = "") -> Binding:
        """`grammar` for answers in this vocabulary.

        Args:
            before: a rule `before` of Lark, and those that it needs, for the text that comes before the grammar's.

        Raises:
            GrammarError: it has a special token that this vocabulary does not have.
            MissingPackage: llguidance is not installed.
        """
        tokenizer = self._built()
        main = [{"name": "main", "lark_grammar": f"start: before @answer\n{before}"}] if before else []
        source = json.dumps({"grammars": [*main, grammar.part(self._special(grammar.trigger))]})
        matcher = with_deep_stack(lambda: package().LLMatcher(tokenizer, source, log_level=0, limits=limits()))
        if matcher.is_error():
            raise refused(matcher.get_error())
        return Binding(matcher, self._vocabulary.size, self._ends)

    def _special(self, label: str) -> int | None:
        """The special token with this label; None if it is text in this vocabulary."""
        tokens = self._vocabulary.tokenize(label, special=True) if label else []
        return tokens[0] if len(tokens) == 1 and not self._vocabulary.token_bytes(tokens[0]) else None

    def _built(self) -> Any:
        with self._lock:
            if self._tokenizer is None:
                ll, vocabulary = package(), self._vocabulary
                self._ends = tuple(filter(vocabulary.is_eog, range(vocabulary.size)))
                if not self._ends:
                    raise GrammarError("the model has no token that ends a text, so a grammar cannot end an answer")
                wrapper = ll.TokenizerWrapper(_Tokens(vocabulary, self._ends))
                self._tokenizer = ll.LLTokenizer(wrapper, n_vocab=vocabulary.size, eos_token=list(self._ends))
            return self._tokenizer


class Binding:
    """A grammar for one vocabulary. `begin` gives each answer a constraint of its own."""

    def __init__(self, matcher: Any, size: int, ends: Sequence[int]) -> None:
        self._matcher = matcher
        self._size = size
        self._ends = tuple(ends)

    def begin(self) -> Constraint:
        """The constraint of an answer."""
        return Matching(self._matcher.deep_copy, self._size, self._ends)


class _Tokens:
    """A vocabulary as llguidance asks for it. A token without text, or that ends a text, is special: it matches only
    where a grammar has its label."""

    def __init__(self, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        self._writer = Writer(vocabulary)
        self.bos_token_id = vocabulary.bos
        self.eos_token_id = ends[0]
        pieces = [b"" if token in ends else vocabulary.token_bytes(token) for token in range(vocabulary.size)]
        self.tokens = [
            piece or _SPECIAL + vocabulary.label(n).encode("utf-8", "replace") for n, piece in enumerate(pieces)
        ]
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]

    def __call__(self, text: bytes) -> list[int]:
        return self._writer.tokens(text.decode("utf-8", "replace"))
