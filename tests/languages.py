"""Small languages over three tokens: what comes next depends on all that was said. And drafts in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from edgespec import testing
from edgespec.backends.toy import Rule
from edgespec.sampling import Sampling, round_seed
from edgespec.types import Acceptance, Distribution, Draft, Guess
from edgespec.verify import Verifier

from .helpers import table

#: A target and a drafter that is often wrong, after a prompt of one token.
TARGET = table({(): (0.5, 0.3, 0.2), (0,): (0.1, 0.6, 0.3), (1,): (0.7, 0.2, 0.1)}, (0.3, 0.3, 0.4), skip=1)
DRAFT = table({(): (0.2, 0.2, 0.6), (0,): (0.6, 0.1, 0.3), (2,): (0.2, 0.5, 0.3)}, (0.2, 0.3, 0.5), skip=1)

#: By most of these p and q have different supports, each missing a token of the other.
SAMPLINGS = {
    "plain": Sampling(temperature=1),
    "top-p": Sampling(temperature=1.6, top_p=0.8),
    "top-k": Sampling(temperature=1.3, top_k=2),
    "min-p": Sampling(temperature=1.2, min_p=0.42),
    "penalties": Sampling(temperature=1, repetition_penalty=1.4, presence_penalty=0.4, penalty_window=2),
}

#: By a verifier's draws: a draft of `n` tokens (or a tree) to follow a context.
Propose = Callable[[Verifier, Sequence[int], Sampling, int], Draft]


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens from the root to each node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def accept(rule: Verifier, target: Rule, draft: Draft, context: Sequence[int], sampling: Sampling) -> Acceptance:
    rows = np.stack([target([*context, *path]) for path in [(), *paths(draft)]])
    return rule.accept(draft, rows, sampling, context)


def committed(draft: Draft, got: Acceptance) -> tuple[int, ...]:
    """The tokens of one round."""
    return (*(draft.tokens[node] for node in got.path), got.token)


def text_probabilities(target: Rule, sampling: Sampling, n: int) -> dict[tuple[int, ...], float]:
    """The probability of every text of `n` tokens."""
    return testing.text_probabilities(target, 3, (0,), sampling, n)


def text_law(rule: Verifier, propose: Propose, sampling: Sampling, n: int) -> dict[tuple[int, ...], float]:
    """The probability of every text of `n` tokens where a round says its beginning, exactly: `propose` drafts, `rule`
    accepts, and what the round does not say `TARGET` says after it. So the round's length must not tell of its tokens.
    """

    def said() -> tuple[int, ...]:
        draft = propose(rule, [0], sampling, 3)
        return committed(draft, accept(rule, TARGET, draft, [0], sampling))

    wanted = text_probabilities(TARGET, sampling, n)
    texts = dict.fromkeys(wanted, 0.0)
    with testing.Outcomes() as outcomes:
        rounds = outcomes.of(said)
    for start, probability in rounds.items():
        after = {text: p for text, p in wanted.items() if text[: len(start)] == start}
        assert after, f"the target never says {start}"
        total = sum(after.values())
        for text, p in after.items():
            texts[text] += probability * p / total
    return texts


def drawn_chain(rule: Verifier, context: Sequence[int], sampling: Sampling, n: int, drafter: Rule = DRAFT) -> Draft:
    """As the model drafter draws: by the verifier, from the drafter's own distribution."""
    tokens: list[int] = []
    drawn: list[Guess] = []
    while len(tokens) < n:
        drawn.append(rule.draw(drafter([*context, *tokens]), sampling, context, tokens))
        tokens.append(drawn[-1].token)
    return Draft.chain(tokens, "test", _q(drawn))


def settled_chain(rule: Verifier, context: Sequence[int], sampling: Sampling, n: int) -> Draft:
    """It stops after a 1: its length depends on what was drawn, though not on what would be drawn next."""
    chain = drawn_chain(rule, context, sampling, n)
    length = chain.tokens.index(1) + 1 if 1 in chain.tokens else n
    return Draft.chain(chain.tokens[:length], "test", chain.q and chain.q[:length])


def drawn_tree(rule: Verifier, context: Sequence[int], sampling: Sampling, _n: int) -> Draft:
    """Two independent draws at the root, which may be the same token; below one a leaf, below the other two."""
    parents = (-1, 0, -1, 2, 2)
    found: list[tuple[int, ...]] = []
    drawn: list[Guess] = []
    for node, parent in enumerate(parents):
        above = found[parent] if parent >= 0 else ()
        apart = replace(sampling, seed=round_seed(sampling.seed, 10**6 + node))  # siblings would be alike otherwise
        drawn.append(rule.draw(DRAFT([*context, *above]), apart, context, above))
        found.append((*above, drawn[-1].token))
    return Draft(tuple(guess.token for guess in drawn), parents, ("test",) * len(parents), _q(drawn))


def mixed_tree(rule: Verifier, context: Sequence[int], sampling: Sampling, _n: int) -> Draft:
    """A drawn chain of two; beside its root, without a choice, the likeliest token that the root is not."""
    trunk = drawn_chain(rule, context, sampling, 2)
    other = next(token for token in np.argsort(-DRAFT(context)).tolist() if token != trunk.tokens[0])
    q = (*trunk.q, Distribution(np.array([other]), np.ones(1))) if trunk.q is not None else None
    return Draft((*trunk.tokens, other), (-1, 0, -1), ("test",) * 3, q)


def fixed_chain(_rule: Verifier, _context: Sequence[int], _sampling: Sampling, n: int) -> Draft:
    """A look-up: no q."""
    return Draft.chain([2, 1, 0][:n], "test")


def fixed_tree(_rule: Verifier, _context: Sequence[int], _sampling: Sampling, _n: int) -> Draft:
    """Siblings, one token twice among them, and children below both."""
    return Draft((2, 0, 2, 1, 1, 1, 2), (-1, -1, -1, 0, 1, 2, 1), ("test",) * 7, None)


def _q(drawn: Sequence[Guess]) -> tuple[Distribution, ...] | None:
    q = tuple(guess.q for guess in drawn if guess.q is not None)
    return q if len(q) == len(drawn) else None
