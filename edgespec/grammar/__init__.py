"""Grammars of answers: JSON schemas, context-free grammars and regular expressions.

A `Grammar` is a value without a model. `GrammarTokens` binds it to a vocabulary; what that gives begins the
`Constraint` of an answer. The parser is that of llguidance (https://github.com/guidance-ai/llguidance), an extra.
"""

from .binding import Binding, GrammarTokens
from .grammar import Grammar
from .reasoning import reasoning_before

__all__ = ["Binding", "Grammar", "GrammarTokens", "reasoning_before"]
