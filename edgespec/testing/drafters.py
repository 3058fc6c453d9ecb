"""The laws of drafters: the output does not depend on them, however wrong they are, and they conform to `Drafter`."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..backends import Interrupt, Vocabulary
from ..backends.toy import Bytes, Rule, ToySession, ngram_rule
from ..controller import Controller
from ..drafters import Drafter, Factory, Target, held_by
from ..drafters.checked import Checked
from ..engine import Engine, Finished, Request, Text
from ..errors import DrafterError
from ..sampling import Sampling
from ..types import Evaluated, Guess, Passengers, Round
from ..verify import VERIFIERS, RoundContext, verifier
from .doubles import ChainController, RandomController, TreeController, WrongFirstDrafter
from .errors import LawError, require
from .languages import ALL_ON, Letters, decode_plain, make_round_context, noisy_script, table, text_probabilities
from .outcomes import Outcomes

_SAYS = "The cat sat on the mat. The dog sat on the mat, and the cat sat on the dog.\n"
_SAMPLINGS = {"greedy": Sampling(), "temperature 0.8": Sampling(temperature=0.8, seed=2), "all on": ALL_ON}
_CONTROLLERS: Mapping[str, Callable[[Sequence[Drafter]], Controller]] = {
    "chains of 1": lambda drafters: ChainController(drafters, 1),
    "chains of 5": lambda drafters: ChainController(drafters, 5),
    "trees": lambda drafters: TreeController(drafters, 12),
    "no plan": RandomController,
}
_TOKENS = 48  # of an answer
_ERROR = 1e-9  # tolerance of a sum of probabilities

#: A target with three tokens, and samplings, some of which filter tokens out.
_SMALL = table({(): (0.5, 0.3, 0.2), (0,): (0.1, 0.6, 0.3), (1,): (0.7, 0.2, 0.1)}, (0.3, 0.3, 0.4), skip=5)
_SMALL_PROMPT = (0, 1, 2, 0, 1)
_DRAWN = (Sampling(temperature=1), Sampling(temperature=1.6, top_p=0.8), Sampling(temperature=1.3, top_k=2))


@dataclass
class DrafterCase:
    """A drafter under test.

    Args:
        make: makes the drafter for a target.
        text: the text that the toy target repeats.
    """

    make: Factory
    text: str = _SAYS
    #: Guesses made so far.
    guesses: int = field(default=0, init=False)

    @property
    def script(self) -> list[int]:
        return Bytes().tokenize(self.text)

    def drafter(self, vocabulary: Vocabulary | None = None, context: int = 4096) -> _Watched:
        """A new drafter, of which every guess is checked."""
        return _Watched(self, Target(vocabulary or Bytes(), context, "toy"))


class _Watched:
    """The drafter under test; every guess must be valid, whatever the law."""

    def __init__(self, case: DrafterCase, target: Target) -> None:
        drafter = case.make(target)
        self.name = drafter.name
        self._case = case
        self._checked = Checked(drafter, drafter.name, target.vocabulary.size)
        self._round_context = make_round_context()

    @property
    def step_price(self) -> float:
        return self._checked.step_price

    def begin(self, round_context: RoundContext) -> None:
        before = list(round_context.tokens)
        self._round_context = round_context
        self._checked.begin(round_context)
        require(list(round_context.tokens) == before, "begin changed the context; it is the engine's own: copy it")

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        context = list(self._round_context.tokens)
        try:
            guesses = self._checked.guess(path, most)
        except DrafterError as error:
            raise LawError(f"after the path {list(path)}: {error}") from error
        require(
            list(self._round_context.tokens) == context, "guess changed the context; it is the engine's own: copy it"
        )
        require(
            not (guesses and path and self._round_context.is_eog(path[-1])),
            f"it guessed {list(guesses)} after {list(path)[-1:]}, which ends the text: guess nothing there",
        )
        self._case.guesses += len(guesses)
        return guesses

    @property
    def block_prices(self) -> Sequence[float]:
        return self._checked.block_prices

    @property
    def reading_price(self) -> float:
        return self._checked.reading_price

    def held(self, context: Sequence[int]) -> int | None:
        try:
            return self._checked.held(context)
        except DrafterError as error:
            raise LawError(str(error)) from error

    def plan(self, guesses: int) -> None:
        self._checked.plan(guesses)

    @property
    def most_passengers(self) -> int:
        return self._checked.most_passengers

    def passengers(self, most: int) -> Passengers:
        return self._checked.passengers(most)

    @property
    def top(self) -> int | None:
        return self._checked.top

    def evaluated(self, what: Evaluated) -> None:
        self._checked.evaluated(what)

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        self._checked.observe(round)

    def close(self) -> None:
        self._checked.close()


def check_drafter(make: Factory, text: str | None = None) -> None:
    """Test all laws for a drafter.

    Args:
        make: a class or a function that takes a `Target`, as for `edgespec.load(drafters=...)`.
        text: a text that the toy target repeats, in which the drafter has something to guess.

    Raises:
        LawError: a law does not hold; or the drafter made no guess at all, so that nothing was tested.
    """
    case = DrafterCase(make) if text is None else DrafterCase(make, text)
    for holds in DRAFTER_LAWS.values():
        holds(case)
    require(case.guesses > 0, f"it guessed nothing in {case.text[:60]!r}; give a text (text=) in which it does")


def has_the_members(case: DrafterCase) -> None:
    """It has a name, a price, and a `close` that can be called at any time, also twice."""
    drafter = case.drafter()
    require(
        isinstance(drafter.name, str) and drafter.name.isprintable() and not set(drafter.name) & set("+, "),
        f"its name is {drafter.name!r}; it must be a word without spaces, commas and plus signs",
    )
    require(0 <= drafter.step_price < math.inf, f"its step_price is {drafter.step_price}; it must be seconds")
    require(drafter.block_prices[0] == drafter.step_price, "its step_price is not the first of its block_prices")
    require(drafter.reading_price >= 0, f"its reading_price is {drafter.reading_price}; it must be seconds")
    drafter.close()
    drafter.close()
    used = case.drafter()
    used.begin(make_round_context([1, 2, 3]))
    used.guess((), 2)
    held_by(used, [1, 2, 4])
    used.close()
    used.close()


def may_be_asked_anywhere(case: DrafterCase) -> None:
    """After any sequence of contexts, for any path and verifier, its guesses are valid and at most as many as
    requested.

    Contexts grow, shrink and change without notice; paths have tokens of other drafters, also special ones.
    """
    rng = random.Random(3)  # noqa: S311 - no secret
    vocabulary, script = Bytes(), case.script
    drafter = case.drafter(vocabulary)
    text: list[int] = [1]
    for _ in range(150):
        text = text[: rng.randrange(1, len(text) + 1)]
        if rng.random() < 0.5:
            at = rng.randrange(len(script))
            text += script[at : at + rng.randrange(1, 40)]
        else:
            text += [rng.randrange(vocabulary.size) for _ in range(rng.randrange(1, 10))]
        text = text[-200:]
        drafter.begin(
            make_round_context(list(text), rng.choice([*_SAMPLINGS.values()]), rng.choice(VERIFIERS), vocabulary.is_eog)
        )
        if rng.random() < 0.5:
            drafter.plan(rng.randrange(1, 9))
        for path in _paths(rng, script, len(text), vocabulary.size):
            drafter.guess(path, rng.choice((1, 1, 2, 4)))
    drafter.close()


def keeps_the_text(case: DrafterCase) -> None:
    """Under `match` the output is that of plain decoding, at any temperature and for any drafts."""
    for rule in _targets(case):
        for name, sampling in _SAMPLINGS.items():
            for how, controller in _CONTROLLERS.items():
                _same_text(case, rule, sampling, "match", f"{name}, {how}", controller)


def keeps_greedy_text_under_any_verifier(case: DrafterCase) -> None:
    """At temperature 0 the output is that of plain decoding under every verifier."""
    for judge in VERIFIERS[1:]:
        for how, controller in _CONTROLLERS.items():
            _same_text(case, _targets(case)[0], Sampling(), judge, f"{judge}, {how}", controller)


def keeps_the_distribution(case: DrafterCase) -> None:
    """Under `rejection` and `block` each text has the target's probability, exactly, by enumeration of one round."""
    vocabulary, n = Letters(), 3
    for judge in ("rejection", "block"):
        for sampling in _DRAWN:
            output = _outcomes(case, vocabulary, judge, sampling)
            expected = text_probabilities(_SMALL, vocabulary.size, _SMALL_PROMPT, sampling, n)
            texts: Counter[tuple[int, ...]] = Counter()
            for start, probability in output.items():
                after = {text: p for text, p in expected.items() if text[: len(start)] == start}
                total = sum(after.values())
                require(total > 0, f"under {judge} the output is {start}, which has the probability 0")
                for text, p in after.items():
                    texts[text] += probability * p / total  # type: ignore[assignment]
            for text, p in expected.items():
                require(
                    abs(texts[text] - p) < _ERROR,
                    f"under {judge} with {sampling} the text {text} has the probability {texts[text]:.6f}, but by the "
                    f"target {p:.6f}: guesses with a q must come from RoundContext.draw, others must have none",
                )


def serves_text_after_text(case: DrafterCase) -> None:
    """It works for prompts that continue, share a prefix with, or differ from the one before, with another drafter."""
    rule, script = _targets(case)[0], case.script
    drafter = case.drafter()
    session = ToySession(rule, Bytes.size)
    engine = _engine(session, Bytes(), TreeController([WrongFirstDrafter(rule), drafter], 10), "match")
    prompts = [script * 2, script[:5], [*script * 2, 1, 2, 3], [9], [*script, *script[: len(script) // 2]]]
    for prompt in prompts:
        output, _ = _answer(engine, Request(prompt, Sampling(temperature=0.8, seed=5), _TOKENS))
        expected = decode_plain(rule, prompt, Sampling(temperature=0.8, seed=5), _TOKENS, Bytes().is_eog)
        _require_equal(output, expected, "another drafter and earlier prompts")
    drafter.close()


def may_come_to_the_end_of_the_context(case: DrafterCase) -> None:
    """Answers fill the context to its last token, with and without drafts."""
    rule, room = _targets(case)[0], 60
    prompt = (case.script * room)[: room - 25]
    for how, controller in _CONTROLLERS.items():
        drafter = case.drafter(context=room)
        engine = _engine(ToySession(rule, Bytes.size, room), Bytes(), controller([drafter]), "match")
        output, reason = _answer(engine, Request(prompt))
        _require_equal(output, decode_plain(rule, prompt, Sampling(), room + 1 - len(prompt), Bytes().is_eog), how)
        require(reason in ("context", "end"), f"with {how} the answer ended for the reason {reason!r}")
        drafter.close()


#: The laws by name; each raises LawError.
DRAFTER_LAWS: Mapping[str, Callable[[DrafterCase], None]] = {
    each.__name__: each
    for each in (
        has_the_members,
        may_be_asked_anywhere,
        keeps_the_text,
        keeps_greedy_text_under_any_verifier,
        keeps_the_distribution,
        serves_text_after_text,
        may_come_to_the_end_of_the_context,
    )
}


def _targets(case: DrafterCase) -> list[Rule]:
    """Targets that repeat the text, that end after it, and that generate another text, so that drafts are mostly
    wrong."""
    script = case.script
    ending = [*script, *script, Bytes().tokenize("<|im_end|>", special=True)[0]]
    return [noisy_script(script), noisy_script(ending), ngram_rule(Bytes.size, seed=46, sharpness=1.5)]


def _paths(rng: random.Random, script: Sequence[int], at: int, vocab: int) -> list[list[int]]:
    """Paths for `guess`: of the text, each a token longer than the one before, and of random tokens."""
    anything = [rng.randrange(vocab) for _ in range(rng.randrange(1, 6))]
    likely = [script[(at + n) % len(script)] for n in range(4)]
    return [[], *([*likely[:n]] for n in range(1, 5)), anything, anything[:1], [*likely[:2], *anything], []]


def _engine(session: ToySession, vocabulary: Vocabulary, controller: Controller, judge: str) -> Engine:
    return Engine(session, vocabulary, controller, verifier(judge), Interrupt())


def _answer(engine: Engine, request: Request) -> tuple[list[int], str]:
    """The tokens of an answer, and the reason of its end."""
    output: list[int] = []
    for event in engine.generate(request):
        if isinstance(event, Text):
            output += event.tokens
        if isinstance(event, Finished):
            return output, event.reason
    raise LawError("the answer did not end")


def _same_text(
    case: DrafterCase,
    rule: Rule,
    sampling: Sampling,
    judge: str,
    how: str,
    controller: Callable[[Sequence[Drafter]], Controller],
) -> None:
    prompt = [*case.script, *case.script[: len(case.script) // 2]]
    drafter = case.drafter()
    engine = _engine(ToySession(rule, Bytes.size), Bytes(), controller([drafter]), judge)
    output, _ = _answer(engine, Request(prompt, sampling, _TOKENS))
    _require_equal(output, decode_plain(rule, prompt, sampling, _TOKENS, Bytes().is_eog), how)
    drafter.close()


def _outcomes(
    case: DrafterCase, vocabulary: Letters, judge: str, sampling: Sampling
) -> Mapping[tuple[int, ...], float]:
    """The probability of each result of one round with chains of two tokens."""

    def one_round() -> tuple[int, ...]:
        drafter = case.drafter(vocabulary)
        session = ToySession(_SMALL, vocabulary.size)
        events = _engine(session, vocabulary, ChainController([drafter], 2), judge).generate(
            Request(_SMALL_PROMPT, sampling)
        )
        return next(event.tokens for event in events if isinstance(event, Text))

    with Outcomes() as outcomes:
        return outcomes.of(one_round)


def _require_equal(output: Sequence[int], expected: Sequence[int], how: str) -> None:
    if output == expected:
        return
    at = next(
        (n for n, (a, b) in enumerate(zip(output, expected, strict=False)) if a != b), min(len(output), len(expected))
    )
    raise LawError(
        f"with {how} the output differs from plain decoding from token {at} on: {list(output[at : at + 8])} instead of "
        f"{list(expected[at : at + 8])}"
    )
