"""The laws of sessions: passes, rollbacks and trees; rejected tokens have no effect on later passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np

from ..backends import KeepingSession, Model, Session, common_prefix
from ..errors import ContextOverflow, EngineError, RollbackError
from .engine_case import EngineCase, dice, grown, paths, require_held, require_refused
from .errors import require


def check_model(model: Model, rounding: float = 0.0) -> None:
    """Test all laws for the sessions of `model`. The arguments are those of `EngineCase`.

    Raises:
        LawError: a law does not hold.
    """
    for holds in SESSION_LAWS.values():
        holds(EngineCase(model, rounding))


def passes_of_any_width_agree(case: EngineCase) -> None:
    """One pass, many passes and a prefill give the same logits."""
    text = case.text()
    one_by_one = case.fresh(text)
    vocab = case.model.vocabulary.size
    require(one_by_one.shape == (len(text), vocab), f"logits have the shape {one_by_one.shape[1:]}, not {(vocab,)}")
    require(one_by_one.dtype == np.float32, f"logits are {one_by_one.dtype}, not float32")
    require(float(one_by_one.std(axis=1).min()) > 0, "all logits of a row are the same")
    with case.session() as session:
        case.agree(session.decode(text), one_by_one, "one pass over all")
        for cut in (1, 7, len(text) - 1):
            session.rollback(0)
            session.prefill(text[:cut])
            require_held(session, text[:cut])
            case.agree(session.decode(text[cut:]), one_by_one[cut:], f"after a prefill of {cut}")
        require_held(session, text)


def a_prefill_may_be_long(case: EngineCase) -> None:
    """A prefill longer than a pass gives the same logits: positions continue from one chunk to the next."""
    text, rows = case.text(700), []
    for cut in (0, 100, 512, 699):
        with case.session(1024) as session:
            session.prefill(text[:cut])
            session.prefill(text[cut:-1])
            rows.append(session.decode(text[-1:]).copy())
            require_held(session, text)
    for row in rows[1:]:
        case.agree(row, rows[0], "after prefills of other lengths")


def it_goes_back_as_far_as_it_says(case: EngineCase) -> None:
    """Within `reach`, a rollback owes nothing, or with `replays` what stays of the pass; it is right beyond, too."""
    text, words = case.text(), case.text(12)
    with case.session() as session:
        reach = len(words) - 1 if session.reach is None else min(session.reach, len(words) - 1)
        for back in range(len(words) + 1):
            kept = [*text, *words[: len(words) - back]]
            session.rollback(0)
            session.prefill(text)
            session.decode(words)
            session.rollback(len(text), range(len(words) - back))
            require_held(session, kept)
            if back <= reach:
                _require_owed(session, len(words) - back if session.replays and back else 0, f"{back} tokens back")
            case.agree(session.decode([7, 8]), case.fresh([*kept, 7, 8])[-2:], f"{back} tokens back")


def it_goes_back_to_any_length(case: EngineCase) -> None:
    """Rollbacks to any length, also several before the next pass, leave a text that later passes continue; a prefill
    computes all that is owed."""
    text, words = case.text(), case.text(12)
    with case.session() as session:
        for lengths in ((40, 39), (35, 33), (29,), (11,), (20, 3), (0,)):
            session.rollback(0)
            session.prefill(text)
            session.decode(words)
            for length in lengths:
                session.rollback(length)
            kept = [*text, *words][: lengths[-1]]
            require_held(session, kept)
            owed = session.owed
            require(0 <= owed <= len(kept), f"{owed} of {len(kept)} tokens are owed")
            case.agree(session.decode([7, 8]), case.fresh([*kept, 7, 8])[-2:], f"back to {lengths}")
            session.rollback(len(kept))
            session.prefill(())
            require_held(session, kept)
            _require_owed(session, 0, "a prefill")
            case.agree(session.decode([7, 8]), case.fresh([*kept, 7, 8])[-2:], f"back to {lengths}, and a prefill")


def _require_owed(session: Session, owed: int, after: str) -> None:
    require(session.owed == owed, f"after {after} {session.owed} tokens are owed, not {owed}")


def a_rollback_leaves_no_trace(case: EngineCase) -> None:
    """After a rollback the same pass gives the same logits, to the last bit if nothing was computed again."""
    text, words = case.text(), case.text(50)
    with case.session() as session:
        session.prefill(text)
        first = session.decode([7, 8, 9]).copy()
        for rubbish in (words[:2], [7, 8, 9], words, [7]):
            session.rollback(len(text))
            session.decode(rubbish)
            session.rollback(len(text))
            require_held(session, text)
            rows, what = session.decode([7, 8, 9]), f"the same pass after a rollback of {len(rubbish)} tokens"
            if session.reach is None and not session.replays:
                require(bool((rows == first).all()), f"{what} gives other logits")
            case.agree(rows, first, what)


def a_rollback_keeps_what_was_accepted(case: EngineCase) -> None:
    """A rollback can keep the first tokens of the last pass."""
    text = case.text()
    with case.session() as session:
        session.prefill(text)
        for keep in ([], [0], [0, 1], [0, 1, 2]):
            session.rollback(len(text))
            session.decode([7, 8, 9])
            session.rollback(len(text), keep)
            kept = [*text, *[7, 8, 9][: len(keep)]]
            require_held(session, kept)
            case.agree(session.decode([11]), case.fresh([*kept, 11])[-1:], f"{len(keep)} tokens kept")


def what_cannot_be_kept_is_refused(case: EngineCase) -> None:
    """An impossible rollback raises RollbackError and changes nothing."""
    text = case.text()
    with case.session() as session:
        session.prefill(text)
        session.decode([7, 8, 9])
        held, n = list(session.tokens), len(text)
        wrong: list[tuple[int, list[int]]] = [(n + 4, []), (-1, []), (n, [1]), (n, [0, 2]), (n, [0, 1, 2, 3])]
        for length, keep in [*wrong, (n - 1, [0]), (n + 1, [0])]:
            what = f"a rollback to {length} of {n + 3} that keeps {keep}"
            require_refused(RollbackError, what, lambda at=length, nodes=keep: session.rollback(at, nodes))  # type: ignore[misc]
            require_held(session, held)
        session.rollback(n + 3)
        session.rollback(n, [0])
        require_held(session, held[: n + 1])


def what_does_not_fit_is_refused(case: EngineCase) -> None:
    """Tokens beyond the context or the widest pass raise an error and change nothing."""
    with case.session(40) as session:
        session.prefill(case.text(38))
        for call in (session.decode, session.prefill):
            require_refused(ContextOverflow, "more than the context holds", lambda call=call: call([7, 8, 9]))  # type: ignore[misc]
        require_held(session, case.text(38))
        case.agree(session.decode([7, 8]), case.fresh([*case.text(38), 7, 8])[-2:], "the last tokens that fit")
    with case.session(1024) as session:
        require_refused(EngineError, "a pass that is too wide", lambda: session.decode([7] * (session.widest + 1)))
        require_held(session, [])


def rounds_leave_no_trace(case: EngineCase) -> None:
    """Rounds with trees and chains, most of whose tokens are rejected, leave exactly the accepted tokens."""
    for seed in range(3):
        rounds(case, dice(seed), 1024, 0)


def rounds_at_the_end_of_the_context(case: EngineCase) -> None:
    """The same if the context is nearly full: rejected tokens free their cells."""
    full = sum(rounds(case, dice(seed), 256, 225) for seed in range(3))
    require(full > 3, f"the context was full only {full} times, so this law tested too little")


def rounds(case: EngineCase, rng: random.Random, context: int, begin: int) -> int:
    """Compare rounds with a second session that decodes accepted tokens only; returns how often the context was
    full."""
    with case.session(context) as session, case.session(context) as plain:
        text = case.words(rng, begin)
        session.prefill(text)
        plain.prefill(text)
        return sum(_round(case, rng, session, plain, begin) for _ in range(60))


def _round(case: EngineCase, rng: random.Random, session: Session, plain: Session, begin: int) -> bool:
    """One round; returns whether the context was full."""
    start, context = len(plain.tokens), session.context
    tokens = case.words(rng, rng.choice([2, 3, 4, 8, 12, 24, 48, 64]))
    parents = grown(rng, len(tokens)) if session.can_tree else list(range(-1, len(tokens) - 1))
    full = start + len(tokens) > context
    if full:
        require_refused(ContextOverflow, "a draft beyond the context", lambda: session.decode(tokens, parents))
        tokens, parents = tokens[: context - start], parents[: context - start]
    if len(tokens) < 2:
        session.rollback(begin)
        plain.rollback(begin)
        return full
    rows = session.decode(tokens, parents).copy()
    path = rng.choice(paths(parents))
    case.agree(rows[path], plain.decode([tokens[i] for i in path]), f"the path {path} of a tree")
    kept = path[: rng.choice([0, 1, 1, 2, 3, len(path)])]
    session.rollback(start, kept)
    plain.rollback(start + len(kept))
    require_held(session, plain.tokens)
    if rng.random() < 0.3 and len(plain.tokens) + 3 <= context:
        chain = case.words(rng, 3)
        case.agree(session.decode(chain), plain.decode(chain), "a chain after a tree")
        if rng.random() < 0.5:
            session.rollback(len(plain.tokens) - 3, [0])
            plain.rollback(len(plain.tokens) - 2)
    if rng.random() < 0.05:
        length = rng.randrange(begin // 2, len(plain.tokens) + 1)
        session.rollback(length)
        plain.rollback(length)
    return full


def a_tree_may_fill_the_context(case: EngineCase) -> None:
    """A tree can have as many tokens as there is room in the context, and no more."""
    with case.session(256) as session:
        if not session.can_tree:
            return
        session.prefill(case.text(200))
        for _ in range(3):
            session.decode(case.text(56), [-1, *[0] * 55])
            session.rollback(200)
        too_many = case.text(57)
        require_refused(ContextOverflow, "a tree beyond the context", lambda: session.decode(too_many, [-1, *[0] * 56]))
        require_held(session, case.text(200))


def a_tree_may_begin_the_text(case: EngineCase) -> None:
    """A tree can be decoded with an empty cache, and fill the context."""
    with case.session(256) as session, case.session(256) as alone:
        if not session.can_tree:
            return
        tokens = case.text(session.context)
        rows = session.decode(tokens, [-1, *range(len(tokens) - 2), 0]).copy()
        case.agree(rows[:-1], alone.decode(tokens[:-1]), "a tree that begins the text")
        session.rollback(0, range(len(tokens) - 1))
        require_held(session, tokens[:-1])


def only_paths_of_a_tree_are_kept(case: EngineCase) -> None:
    """A rollback can keep a path of a tree from its root, once; other nodes raise RollbackError."""
    text = case.text(20)
    with case.session(256) as session:
        if not session.can_tree:
            return
        session.prefill(text)
        session.decode([7, 8, 9, 10, 11], (-1, 0, 0, 1, 2))
        wrong: list[tuple[int, list[int]]] = [(20, [1]), (20, [0, 3]), (20, [0, 1, 2]), (19, [0]), (21, []), (-1, [])]
        for length, keep in [*wrong, (20, [5])]:
            what = f"a rollback to {length} that keeps {keep} of a tree"
            require_refused(RollbackError, what, lambda at=length, nodes=keep: session.rollback(at, nodes))  # type: ignore[misc]
            require_held(session, text)
        session.rollback(20, [0, 2, 4])
        require_refused(RollbackError, "a second choice of a path", lambda: session.rollback(20, [0]))
        case.holds(session, [*text, 7, 9, 11])


def a_tree_that_nobody_settles_is_forgotten(case: EngineCase) -> None:
    """A tree is dropped if the next call is not a rollback that keeps a path."""
    text = case.text(20)
    with case.session(256) as session:
        if not session.can_tree:
            return
        session.prefill(text)
        for length in (20, 15, 0):
            session.decode([7, 8, 9], (-1, 0, 0))
            require_held(session, text)
            if length < 20:
                session.rollback(length)
            held = text[:length]
            session.prefill([7, 8])
            case.holds(session, [*held, 7, 8])
            session.rollback(len(held))
            session.prefill(text[len(held) :])
            session.decode([7, 8, 9], (-1, 0, 0))
            session.decode([6])
            case.holds(session, [*text, 6])
            session.rollback(20)


def a_chain_after_a_tree_is_a_chain(case: EngineCase) -> None:
    """A rollback after a tree and then a chain keeps nodes of the chain."""
    text = case.text()
    with case.session() as session:
        if not session.can_tree:
            return
        session.prefill(text)
        session.decode([7, 8, 9], (-1, 0, 0))
        session.decode([10, 11, 12])
        session.rollback(len(text), [0, 1])
        case.holds(session, [*text, 10, 11])


def texts_in_turn_are_as_if_computed(case: EngineCase) -> None:
    """A text that was kept, and was resumed after others and trees, gives the logits of one that is computed."""
    texts = [case.text(n) for n in (40, 90, 140)]
    with case.session() as session:
        if not isinstance(session, KeepingSession):
            return
        for turn in range(9):
            text = texts[turn % 3]
            promised = session.kept(text)
            session.resume(text)
            same = common_prefix(session.tokens, text)
            require(same >= promised, f"{same} tokens are held of {promised} that were kept")
            session.rollback(same)
            session.prefill(text[same:])
            case.holds(session, text)
            text.extend(case.text(5 + turn)[turn:])
            session.decode([8, 9])  # drafted, and wrong


_LAWS = (
    passes_of_any_width_agree,
    a_prefill_may_be_long,
    what_does_not_fit_is_refused,
    it_goes_back_as_far_as_it_says,
    it_goes_back_to_any_length,
    a_rollback_leaves_no_trace,
    a_rollback_keeps_what_was_accepted,
    what_cannot_be_kept_is_refused,
    rounds_leave_no_trace,
    rounds_at_the_end_of_the_context,
    a_tree_may_fill_the_context,
    a_tree_may_begin_the_text,
    only_paths_of_a_tree_are_kept,
    a_tree_that_nobody_settles_is_forgotten,
    a_chain_after_a_tree_is_a_chain,
    texts_in_turn_are_as_if_computed,
)

#: The laws by name; each raises LawError.
SESSION_LAWS: Mapping[str, Callable[[EngineCase], None]] = {each.__name__: each for each in _LAWS}
