"""Tests for drafters and engines outside this package: a toy model, and the properties that edgespec itself is tested
for.

    from edgespec import testing

    def test_my_drafter():
        testing.check_drafter(MyDrafter, text="a text in which it guesses")

    def test_my_engine(model):
        testing.check_model(model, rounding=1e-4)

`check_drafter` and `check_model` test all properties ("laws"); `DRAFTER_LAWS` and `SESSION_LAWS` have them by name, for
parametrized tests. A law that does not hold raises `LawError`, an AssertionError whose message has the expected and the
actual result. No test runner is needed.
"""

from ..backends.toy import END, Bytes, Rule, ToyModel, ToySession, blend, ngram_rule, scripted
from .doubles import (
    BlockFunctionDrafter,
    ChainController,
    Clock,
    FunctionDrafter,
    RandomController,
    RuleDrafter,
    TreeController,
    WrongFirstDrafter,
    table_drafter,
)
from .drafters import DRAFTER_LAWS, DrafterCase, check_drafter
from .engine_case import EngineCase
from .errors import LawError
from .languages import (
    ALL_ON,
    Letters,
    decode_plain,
    logits,
    make_round_context,
    never,
    noisy_script,
    table,
    text_probabilities,
)
from .outcomes import Outcomes
from .sessions import SESSION_LAWS, check_model

__all__ = [
    "ALL_ON",
    "DRAFTER_LAWS",
    "END",
    "SESSION_LAWS",
    "BlockFunctionDrafter",
    "Bytes",
    "ChainController",
    "Clock",
    "DrafterCase",
    "EngineCase",
    "FunctionDrafter",
    "LawError",
    "Letters",
    "Outcomes",
    "RandomController",
    "Rule",
    "RuleDrafter",
    "ToyModel",
    "ToySession",
    "TreeController",
    "WrongFirstDrafter",
    "blend",
    "check_drafter",
    "check_model",
    "decode_plain",
    "logits",
    "make_round_context",
    "never",
    "ngram_rule",
    "noisy_script",
    "scripted",
    "table",
    "table_drafter",
    "text_probabilities",
]
