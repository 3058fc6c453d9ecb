"""What holds for every drafter, however wrong it is: it changes no text, and it keeps to `Drafter`."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..backends import Interrupt, Vocabulary
from ..backends.toy import Bytes, Rule, ToySession, ngram_rule
from ..controller import Controller
from ..drafters import Drafter, Factory, Target
from ..drafters.checked import Checked
from ..engine import Engine, Finished, Request, Text
from ..errors import DrafterError
from ..sampling import Sampling
from ..types import Evaluated, Guess, Round
from ..verify import VERIFIERS, RoundContext, verifier
from .doubles import Chain, Irregular, Whole, WrongFirst
from .errors import LawError, require
from .languages import ALL_ON, Letters, law, place, plainly, spoken, table
from .outcomes import Outcomes

_SAYS = "The cat sat on the mat. The dog sat on the mat, and the cat sat on the dog.\n"
_SAMPLINGS = {"greedy": Sampling(), "temperature 0.8": Sampling(temperature=0.8, seed=2), "all on": ALL_ON}
_CONTROLLERS: Mapping[str, Callable[[Sequence[Drafter]], Controller]] = {
    "chains of 1": lambda drafters: Chain(drafters, 1),
    "chains of 5": lambda drafters: Chain(drafters, 5),
    "trees": lambda drafters: Whole(drafters, 12),
    "no plan": Irregular,
}
_TOKENS = 48  # of an answer
_ERROR = 1e-9  # of a probability that was added up

#: A target of three tokens and samplings by which it lacks some of them.
_SMALL = table({(): (0.5, 0.3, 0.2), (0,): (0.1, 0.6, 0.3), (1,): (0.7, 0.2, 0.1)}, (0.3, 0.3, 0.4), skip=5)
_SMALL_PROMPT = (0, 1, 2, 0, 1)
_DRAWN = (Sampling(temperature=1), Sampling(temperature=1.6, top_p=0.8), Sampling(temperature=1.3, top_k=2))


@dataclass
class DrafterCase:
    """A drafter under test.

    Args:
        make: makes it anew, for a target.
        says: the text that the toy target says, over and over.
    """

    make: Factory
    says: str = _SAYS
    #: How many guesses it has made so far.
    guesses: int = field(default=0, init=False)

    @property
    def script(self) -> list[int]:
        return Bytes().tokenize(self.says)

    def drafter(self, vocabulary: Vocabulary | None = None, context: int = 4096) -> _Watched:
        """A new one, whose every guess is checked."""
        return _Watched(self, Target(vocabulary or Bytes(), context, "toy"))


class _Watched:
    """The drafter under test; what it guesses anywhere, in whatever law, has to be sound."""

    def __init__(self, case: DrafterCase, target: Target) -> None:
        drafter = case.make(target)
        self.name = drafter.name
        self._case = case
        self._checked = Checked(drafter, drafter.name, target.vocabulary.size)
        self._round_context = place()

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
    def top(self) -> int | None:
        return self._checked.top

    def evaluated(self, what: Evaluated) -> None:
        self._checked.evaluated(what)

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        self._checked.observe(round)

    def close(self) -> None:
        self._checked.close()


def check_drafter(make: Factory, says: str | None = None) -> None:
    """All laws for the drafters that `make` makes.

    Args:
        make: a class or a function that takes a `Target`, as `edgespec.load(drafters=...)` does.
        says: a text that the target says over and over, in which the drafter has something to guess.

    Raises:
        LawError: one does not hold; or nothing was ever guessed, so that none means anything.
    """
    case = DrafterCase(make) if says is None else DrafterCase(make, says)
    for holds in DRAFTER_LAWS.values():
        holds(case)
    require(case.guesses > 0, f"it guessed nothing in {case.says[:60]!r}; give a text (says=) in which it does")


def has_the_members(case: DrafterCase) -> None:
    """A name, a price, and a `close` that may be called at any time, twice."""
    drafter = case.drafter()
    require(
        isinstance(drafter.name, str) and drafter.name.isprintable() and not set(drafter.name) & set("+, "),
        f"its name is {drafter.name!r}; it must be a word without spaces, commas and plus signs",
    )
    require(0 <= drafter.step_price < math.inf, f"its step_price is {drafter.step_price}; it must be seconds")
    drafter.close()
    drafter.close()
    used = case.drafter()
    used.begin(place([1, 2, 3]))
    used.guess((), 2)
    used.close()
    used.close()


def may_be_asked_anywhere(case: DrafterCase) -> None:
    """Any context after any other, along any path, by every verifier: what it guesses is sound, and no more than asked.

    Contexts grow, shrink and change without a word; paths are of other drafters' tokens, special ones among them.
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
        drafter.begin(place(list(text), rng.choice([*_SAMPLINGS.values()]), rng.choice(VERIFIERS), vocabulary.is_eog))
        for path in _paths(rng, script, len(text), vocabulary.size):
            drafter.guess(path, rng.choice((1, 1, 2, 4)))
    drafter.close()


def keeps_the_text(case: DrafterCase) -> None:
    """`match` says what plain decoding says, at any temperature; whatever is bought, and however often it is wrong."""
    for rule in _targets(case):
        for name, sampling in _SAMPLINGS.items():
            for how, controller in _CONTROLLERS.items():
                _same_text(case, rule, sampling, "match", f"{name}, {how}", controller)


def keeps_greedy_text_under_any_verifier(case: DrafterCase) -> None:
    """At temperature 0 there is one text, by whatever rule."""
    for judge in VERIFIERS[1:]:
        for how, controller in _CONTROLLERS.items():
            _same_text(case, _targets(case)[0], Sampling(), judge, f"{judge}, {how}", controller)


def keeps_the_distribution(case: DrafterCase) -> None:
    """`rejection` and `block` say every text as often as the target does: exactly, over every outcome of one round."""
    vocabulary, n = Letters(), 3
    for judge in ("rejection", "block"):
        for sampling in _DRAWN:
            said = _outcomes(case, vocabulary, judge, sampling)
            wanted = law(_SMALL, vocabulary.size, _SMALL_PROMPT, sampling, n)
            texts: Counter[tuple[int, ...]] = Counter()
            for start, probability in said.items():
                after = {text: p for text, p in wanted.items() if text[: len(start)] == start}
                total = sum(after.values())
                require(total > 0, f"by {judge} it says {start}, which the target never says")
                for text, p in after.items():
                    texts[text] += probability * p / total  # type: ignore[assignment]
            for text, p in wanted.items():
                require(
                    abs(texts[text] - p) < _ERROR,
                    f"by {judge} with {sampling} the text {text} has the probability {texts[text]:.6f}, and of the "
                    f"target {p:.6f}: tokens with a q must be drawn by RoundContext.draw, and the rest have none",
                )


def serves_text_after_text(case: DrafterCase) -> None:
    """One drafter, prompts that go on from each other, share a beginning, or nothing; beside another drafter."""
    rule, script = _targets(case)[0], case.script
    drafter = case.drafter()
    session = ToySession(rule, Bytes.size)
    engine = _engine(session, Bytes(), Whole([WrongFirst(rule), drafter], 10), "match")
    prompts = [script * 2, script[:5], [*script * 2, 1, 2, 3], [9], [*script, *script[: len(script) // 2]]]
    for prompt in prompts:
        said, _ = _answer(engine, Request(prompt, Sampling(temperature=0.8, seed=5), _TOKENS))
        wanted = plainly(rule, prompt, Sampling(temperature=0.8, seed=5), _TOKENS, Bytes().is_eog)
        _require_equal(said, wanted, "beside another drafter, after other prompts")
    drafter.close()


def may_come_to_the_end_of_the_context(case: DrafterCase) -> None:
    """The text fills the context to its last token, drafts or not."""
    rule, room = _targets(case)[0], 60
    prompt = (case.script * room)[: room - 25]
    for how, controller in _CONTROLLERS.items():
        drafter = case.drafter(context=room)
        engine = _engine(ToySession(rule, Bytes.size, room), Bytes(), controller([drafter]), "match")
        said, reason = _answer(engine, Request(prompt))
        _require_equal(said, plainly(rule, prompt, Sampling(), room + 1 - len(prompt), Bytes().is_eog), how)
        require(reason in ("context", "end"), f"with {how} the answer ended for the reason {reason!r}")
        drafter.close()


#: By name; each raises LawError.
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
    """What says the text, what says it and ends, and what says something else, so that drafts are mostly wrong."""
    script = case.script
    ending = [*script, *script, Bytes().tokenize("<|im_end|>", special=True)[0]]
    return [spoken(script), spoken(ending), ngram_rule(Bytes.size, seed=46, sharpness=1.5)]


def _paths(rng: random.Random, script: Sequence[int], at: int, vocab: int) -> list[list[int]]:
    """Paths to ask along: of the text, of anything, and each a token longer than the one before."""
    anything = [rng.randrange(vocab) for _ in range(rng.randrange(1, 6))]
    likely = [script[(at + n) % len(script)] for n in range(4)]
    return [[], *([*likely[:n]] for n in range(1, 5)), anything, anything[:1], [*likely[:2], *anything], []]


def _engine(session: ToySession, vocabulary: Vocabulary, controller: Controller, judge: str) -> Engine:
    return Engine(session, vocabulary, controller, verifier(judge), Interrupt())


def _answer(engine: Engine, request: Request) -> tuple[list[int], str]:
    """The tokens of an answer, and why it ended."""
    said: list[int] = []
    for event in engine.generate(request):
        if isinstance(event, Text):
            said += event.tokens
        if isinstance(event, Finished):
            return said, event.reason
    raise LawError("the answer came to no end")


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
    said, _ = _answer(engine, Request(prompt, sampling, _TOKENS))
    _require_equal(said, plainly(rule, prompt, sampling, _TOKENS, Bytes().is_eog), how)
    drafter.close()


def _outcomes(
    case: DrafterCase, vocabulary: Letters, judge: str, sampling: Sampling
) -> Mapping[tuple[int, ...], float]:
    """The probability of every outcome of one round of chains two deep."""

    def said() -> tuple[int, ...]:
        drafter = case.drafter(vocabulary)
        session = ToySession(_SMALL, vocabulary.size)
        events = _engine(session, vocabulary, Chain([drafter], 2), judge).generate(Request(_SMALL_PROMPT, sampling))
        return next(event.tokens for event in events if isinstance(event, Text))

    with Outcomes() as outcomes:
        return outcomes.of(said)


def _require_equal(said: Sequence[int], wanted: Sequence[int], how: str) -> None:
    if said == wanted:
        return
    at = next((n for n, (a, b) in enumerate(zip(said, wanted, strict=False)) if a != b), min(len(said), len(wanted)))
    raise LawError(
        f"with {how} the text is not that of plain decoding, from token {at} on: {list(said[at : at + 8])} instead of "
        f"{list(wanted[at : at + 8])}"
    )
