"""Grammars of answers: JSON schemas, context-free grammars and regular expressions.

A `Grammar` is a value without a model. `GrammarTokens` binds it to a vocabulary; what that gives begins the
`Constraint` of an answer. The parser is that of llguidance (https://github.com/guidance-ai/llguidance), an extra.
"""

from .binding import Binding, GrammarTokens
from .grammar import Grammar
from .reasoning import reasoning_before
from .tools import FORMATS, ToolFormat

__all__ = ["FORMATS", "Binding", "Grammar", "GrammarTokens", "ToolFormat", "reasoning_before"]
