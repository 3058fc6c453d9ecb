"""Runs of the engine under a grammar, and plain decoding under it, which is independent of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from edgespec.backends import Interrupt
from edgespec.backends.toy import Bytes, Rule, ToySession, blend, ngram_rule
from edgespec.constraint import Constraint
from edgespec.controller import Controller
from edgespec.drafters import Drafter
from edgespec.drafters.grammar import ForcedTokens
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Request
from edgespec.grammar import Binding, Grammar, GrammarTokens
from edgespec.sampling import Sampling, pick
from edgespec.types import Floats, Guess
from edgespec.verify import RoundContext, verifier

from .engine_runs import STAIRS, run
from .helpers import Clock, Priced, RuleDrafter

SPOKEN = Bytes()
TOKENS = GrammarTokens(SPOKEN)
PROMPT = SPOKEN.tokenize('{"name":"ab","n":[1,2]} ')
TARGET = ngram_rule(Bytes.size, order=2, seed=46, sharpness=1.5)
OTHER = ngram_rule(Bytes.size, order=2, seed=1046, sharpness=1.5)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "n": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "kind": {"enum": ["red", "rose", "blue", None]},
    },
    "required": ["name", "n", "kind"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, Callable[[], Grammar]] = {
    "schema": lambda: Grammar.json_schema(PERSON),
    "white space": lambda: Grammar.json_schema(PERSON, whitespace=True),
    "lark": lambda: Grammar.lark('start: ("<" start ">")+ | /[xyz]{2,4}/'),
    "gbnf": lambda: Grammar.gbnf('root ::= "(" root ")" | [0-9] [0-9]?'),
    "regex": lambda: Grammar.regex("(ab|ac)*d{3,5}(ef)?"),
}


@cache
def bound(name: str) -> Binding:
    return TOKENS.bind(GRAMMARS[name]())


def constrained_plain(rule: Rule, sampling: Sampling, n: int, grammar: Binding) -> list[int]:
    """Plain decoding under a grammar: each token by a constraint of its own, which has read the whole text."""
    said: list[int] = []
    while len(said) < n:
        constraint = grammar.begin()
        for token in said:
            constraint.commit(token)
        if constraint.ended():
            break
        context = [*PROMPT, *said]
        row = np.where(constraint.allowed(), rule(context), -np.inf).astype(np.float32)
        said.append(pick(row, sampling, len(context), sampling.recent(context)))
        if SPOKEN.is_eog(said[-1]):
            break
    return said


def wrong(context: Sequence[int]) -> Floats:
    return -TARGET(context)


def drafting(rule: Rule, clock: Clock) -> ModelDrafter:
    return ModelDrafter(Priced(rule, Bytes.size, clock, [0.05]), Bytes.size, step_price=0.05)


class WrongForced(ForcedTokens):
    """Guesses another token than the forced one, as where the tokenizer writes another text."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return [Guess((guess.token + 1) % 256, 1.0) for guess in super().guess(path, most)]


DRAFTERS: dict[str, Callable[[Clock], list[Drafter]]] = {
    "none": lambda _clock: [],
    "grammar": lambda _clock: [ForcedTokens()],
    "grammar, always wrong": lambda _clock: [WrongForced()],
    "lookup": lambda _clock: [Lookup()],
    "itself": lambda clock: [drafting(TARGET, clock)],
    "always wrong": lambda clock: [drafting(wrong, clock)],
    "point masses, always wrong": lambda _clock: [RuleDrafter(wrong)],
    "several": lambda clock: [ForcedTokens(), Lookup(), drafting(blend(TARGET, OTHER, 0.4), clock)],
}


def answer(
    drafters: str,
    control: Callable[[list[Drafter], Clock], Controller],
    sampling: Sampling,
    grammar: Binding,
    *,
    rule: str = "match",
    n: int = 60,
) -> tuple[list[int], str, dict[str, tuple[int, int]]]:
    """The tokens of an answer, why it ended, and what was drafted."""
    clock = Clock()
    target = Priced(TARGET, Bytes.size, clock, STAIRS)
    controller = control(DRAFTERS[drafters](clock), clock)
    engine = Engine(target, SPOKEN, controller, verifier(rule), Interrupt())
    said, finished = run(engine.generate(Request(PROMPT, sampling, n, grammar=grammar)), target, PROMPT)
    return said, finished.reason, finished.stats.by_drafter


def round_context(constraint: Constraint | None, rule: str = "match", sampling: Sampling | None = None) -> RoundContext:
    return RoundContext(verifier(rule), sampling or Sampling(), PROMPT, SPOKEN.is_eog, constraint=constraint)


def session() -> ToySession:
    return ToySession(TARGET, Bytes.size)
