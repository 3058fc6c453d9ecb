"""For tests of drafters, engines and apps of one's own: a toy model, and the laws that edgespec holds its own ones to.

    from edgespec import testing

    def test_my_drafter():
        testing.check_drafter(MyDrafter, says="a text in which it guesses")

    def test_my_engine(model):
        testing.check_model(model, rounding=1e-4)

`check_drafter` and `check_model` try all laws, `DRAFTER_LAWS` and `SESSION_LAWS` are these one by one, for tests with
parameters. A law that does not hold is a `LawError`, an AssertionError that says what was wanted and what was there. It
takes NumPy and no test runner.
"""

from ..backends.toy import END, Bytes, Rule, ToyModel, ToySession, blend, ngram_rule, scripted
from .doubles import Chain, Clock, FromRule, Irregular, Saying, Whole, WrongFirst, by_book
from .drafters import DRAFTER_LAWS, DrafterCase, check_drafter
from .engine_case import EngineCase
from .errors import LawError
from .languages import ALL_ON, Letters, law, logits, never, place, plainly, spoken, table
from .outcomes import Outcomes
from .sessions import SESSION_LAWS, check_model

__all__ = [
    "ALL_ON",
    "DRAFTER_LAWS",
    "END",
    "SESSION_LAWS",
    "Bytes",
    "Chain",
    "Clock",
    "DrafterCase",
    "EngineCase",
    "FromRule",
    "Irregular",
    "LawError",
    "Letters",
    "Outcomes",
    "Rule",
    "Saying",
    "ToyModel",
    "ToySession",
    "Whole",
    "WrongFirst",
    "blend",
    "by_book",
    "check_drafter",
    "check_model",
    "law",
    "logits",
    "never",
    "ngram_rule",
    "place",
    "plainly",
    "scripted",
    "spoken",
    "table",
]
