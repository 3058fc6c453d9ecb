"""Merging, evidence, and the purchase against all that could be bought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, permutations

import numpy as np
import pytest

from edgespec.controller.calibration import Calibration, Cell, Guesses
from edgespec.controller.draft_tree import DraftTree, Selection, Trial, select_chain, select_tree
from edgespec.types import Distribution, Guess

SEEDS = range(80)


def known(chance: float) -> Cell:
    """Guesses that are accepted so often."""
    return Cell(Guesses(), chance)


def grown(seed: int, most: int = 9) -> tuple[DraftTree, list[float]]:
    """A random tree of candidates and a random cost by number of tokens, which need not rise.

    All figures are eighths or products of few of them: what is equal on paper is equal in floats. A chance of 1
    makes a child as likely as its parent.
    """
    random = np.random.default_rng(seed)
    tree = DraftTree(Calibration())
    n = int(random.integers(0, most + 1))
    for node in range(n):
        parent = int(random.integers(-1, node)) if random.random() < 0.6 else node - 1
        tree.add(parent, "d", [Guess(node, 0.5)])
    tree.cells[:] = [known(float(random.choice((0.25, 0.5, 0.75, 1.0)))) for _ in range(n)]
    steps = random.choice((-0.5, 0.0, 0.125, 0.25, 0.5, 1.0), int(random.integers(1, n + 4)))
    return tree, [0.0, *np.cumsum(steps).tolist()]


def reach(tree: DraftTree, node: int) -> float:
    return tree.cells[node].value * (reach(tree, parent) if (parent := tree.parents[node]) >= 0 else 1)


def worth(tree: DraftTree, nodes: Sequence[int], cost: Sequence[float]) -> float:
    return sum(reach(tree, node) for node in nodes) - cost[len(nodes)]


def subtrees(tree: DraftTree, cost: Sequence[float]) -> list[tuple[int, ...]]:
    """Every set of nodes that holds its nodes' parents and is no larger than prices are known."""
    sizes = range(min(len(tree), len(cost) - 1) + 1)
    return [
        nodes
        for n in sizes
        for nodes in combinations(range(len(tree)), n)
        if all(tree.parents[node] in (-1, *nodes) for node in nodes)
    ]


def is_chain(tree: DraftTree, nodes: Sequence[int]) -> bool:
    return [tree.parents[node] for node in nodes] == [-1, *nodes][: len(nodes)]


def is_best(tree: DraftTree, purchase: Selection, among: Sequence[tuple[int, ...]], cost: Sequence[float]) -> bool:
    """Whether no other purchase is better, nor any part of it as good: that would be less to lose."""
    nodes = purchase.nodes
    assert tuple(sorted(nodes)) in among, "a node without its parent cannot be verified"
    assert purchase.gain == worth(tree, nodes, cost)
    parts = [worth(tree, other, cost) for other in among if {*other} < {*nodes}]
    return purchase.gain == max(worth(tree, other, cost) for other in among) > max(parts, default=-1.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_chain_is_the_best_of_all_chains(seed: int) -> None:
    tree, cost = grown(seed)
    chains = [nodes for nodes in subtrees(tree, cost) if is_chain(tree, nodes)]
    assert is_best(tree, select_chain(tree, cost), chains, cost)


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_computed_again_after_a_rejection_are_expected_costs(seed: int) -> None:
    """Against the sum over all numbers of accepted tokens; a chain that is always accepted has none."""
    tree, cost = grown(seed)
    debt = [0.125 * (n + 1) for n in range(len(cost))]

    def expected(nodes: Sequence[int]) -> float:
        chances = [1.0, *(reach(tree, node) for node in nodes)]
        owed = sum((chances[n] - chances[n + 1]) * debt[n] for n in range(len(nodes)))
        return cost[len(nodes)] + owed

    chains = [nodes for nodes in subtrees(tree, cost) if is_chain(tree, nodes)]
    bought = select_chain(tree, cost, debt)
    gains = [sum(reach(tree, node) for node in nodes) - expected(nodes) for nodes in chains]
    if bought.nodes:
        assert bought.gain == pytest.approx(gains[chains.index(tuple(bought.nodes))])
        assert bought.gain == pytest.approx(max(gains))
    else:
        assert max(gains) <= 0.05 + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_tree_is_the_best_of_all_subtrees(seed: int) -> None:
    tree, cost = grown(seed)
    assert is_best(tree, select_tree(tree, cost), subtrees(tree, cost), cost)


def test_random_trees_are_what_the_purchase_must_be_tried_on() -> None:
    """Branches that pay, ties, curves that fall, nothing to buy, and parts of a tree: each is there often, or the tests
    above are idle."""
    seen = {"branches": 0, "ties": 0, "falls": 0, "nothing": 0, "cut": 0}
    for seed in SEEDS:
        tree, cost = grown(seed)
        chain, (nodes, gain) = select_chain(tree, cost), select_tree(tree, cost)
        seen["branches"] += not is_chain(tree, sorted(nodes)) and gain > chain.gain
        seen["ties"] += len({reach(tree, n) for n in range(len(tree))}) < len(tree)
        seen["falls"] += sorted(cost) != cost
        seen["nothing"] += gain == 0 and len(tree) > 0
        seen["cut"] += 0 < len(nodes) < len(tree)
    assert min(seen.values()) >= 5, seen


@pytest.mark.parametrize("buy", [select_chain, select_tree])
def test_nothing_is_bought_where_nothing_pays(buy: Callable[[DraftTree, Sequence[float]], Selection]) -> None:
    tree = DraftTree(Calibration())
    nothing = Selection([], 0.0)
    assert buy(tree, [0.0, 0.5]) == nothing
    tree.add(-1, "d", [Guess(1, 0.5), Guess(2, 0.5)])
    tree.cells[:] = [known(0.5), known(0.5)]
    assert buy(tree, [0.0]) == nothing, "no price, no purchase"
    assert buy(tree, [0.0, 0.6, 1.2]) == nothing
    assert buy(tree, [0.0, 0.5, 1.0]) == nothing, "what only breaks even is no gain"
    assert buy(tree, [0.0, 0.45, 1.0]) == nothing, "nor is a twentieth of a token"
    assert len(buy(tree, [0.0, 0.4, 1.0]).nodes) == 1
    assert buy(tree, [0.0, 0.25, 1.0]) == ([0], 0.25)


@pytest.mark.parametrize("seed", range(20))
def test_a_draft_is_the_subtree_with_parents_first(seed: int) -> None:
    """Any subtree, its nodes in any order: the same paths, each token after its parent's."""
    random = np.random.default_rng(seed)
    tree, *_ = grown(seed)
    for nodes in subtrees(tree, [0.0] * 10)[::7]:
        draft = tree.draft(random.permutation(nodes).tolist())
        assert all(parent < node for node, parent in enumerate(draft.parents))
        paths: list[list[int]] = []
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token])
        assert sorted(paths) == sorted(tree.path(node) for node in nodes)
        assert (draft.drafters, draft.q) == (("d",) * len(nodes), None)


def test_reach_path_line_and_likeliest() -> None:
    tree = next(tree for seed in SEEDS if len(tree := grown(seed)[0]) == 9)
    assert tree.reach() == [reach(tree, node) for node in range(len(tree))]
    for node in range(len(tree)):
        line = tree.line(node)
        assert is_chain(tree, line)
        assert (line[-1], len(line)) == (node, tree.depths[node] + 1)
        assert tree.path(node) == line, "here each token is its node's number"
    for node in range(-1, len(tree)):
        children = [child for child, parent in enumerate(tree.parents) if parent == node]
        assert tree.children(node) == {child: child for child in children}
        likeliest = tree.likeliest(node)
        assert (likeliest is None) == (not children)
        assert likeliest is None or reach(tree, likeliest) == max(reach(tree, child) for child in children)


# --- merging


def test_who_says_the_same_shares_a_node() -> None:
    calibration = Calibration()
    tree = DraftTree(calibration)
    assert tree.add(-1, "lookup", [Guess(5, 0.9)]) == [0]
    assert tree.cells[0] is calibration.cell("lookup", 0, 0.9)
    assert tree.add(-1, "model", [Guess(7, 0.6), Guess(5, 0.3)]) == [1, 0]
    assert tree.drafters == ["lookup+model", "model"]
    assert tree.add(0, "model", [Guess(5, 0.5)]) == [2], "the same token elsewhere is another node"
    assert (tree.tokens, tree.parents, tree.depths) == ([5, 7, 5], [-1, -1, 0], [0, 0, 1])


def test_a_node_that_several_drafters_guessed_has_the_likeliest_of_their_cells() -> None:
    """Whoever is asked first. What the others say of other tokens there changes nothing."""
    said = {"one": [Guess(5, 0.5)], "two": [Guess(6, 0.3), Guess(5, 0.9)], "three": [Guess(5, 0.2)]}
    for names in permutations(said):
        calibration = Calibration()
        tree = DraftTree(calibration)
        for name in names:
            tree.add(-1, name, said[name])
        five, six = (tree.children(-1)[token] for token in (5, 6))
        assert tree.cells[five] is calibration.cell("two", 1, 0.9)
        assert tree.cells[six] is calibration.cell("two", 0, 0.3)
        assert tree.drafters[five] == "+".join(names)
        tree.add(five, "one", [Guess(5, 0.7)])
        assert tree.cells[-1] is calibration.cell("one", 0, 0.7), "another place"


@pytest.mark.parametrize("drawn_first", [True, False])
def test_q_stays_with_a_token_that_was_drawn(drawn_first: bool) -> None:
    """Judged as a point mass it would be accepted too seldom, and the correction drawn from the wrong rest."""
    q = Distribution(np.array([5, 6]), np.array([0.25, 0.75]))
    drawn, point = ("model", [Guess(5, 0.75, q)]), ("lookup", [Guess(5, 0.9)])
    tree = DraftTree(Calibration())
    for drafter, said in (drawn, point) if drawn_first else (point, drawn):
        tree.add(-1, drafter, said)
    tree.add(0, "lookup", [Guess(9, 0.9)])
    draft = tree.draft([0, 1])
    assert draft.q is not None
    assert draft.q[0] is q
    assert draft.q[1].of(9) == 1.0, "what was not drawn is a point mass"
    tree.add(-1, "lookup", [Guess(4, 0.9)])
    assert tree.draft([2]).q is None


# --- evidence

Q = Distribution(np.array([1, 2, 3, 4]), np.full(4, 0.25))


def spoken(q: Distribution | None = None) -> DraftTree:
    """Two drafters: 1 or 2 first; after 1 both say 3, then one says 4; after 2 one says 3. All drawn from `q`."""
    tree = DraftTree(Calibration())
    tree.add(-1, "a", [Guess(1, 0.9, q), Guess(2, 0.1, q)])
    tree.add(-1, "b", [Guess(2, 0.8, q)])
    tree.add(0, "a", [Guess(3, 0.9, q)])
    tree.add(0, "b", [Guess(3, 0.9, q)])
    tree.add(2, "a", [Guess(4, 0.9, q)])
    tree.add(1, "b", [Guess(3, 0.9, q)])
    return tree


def test_by_the_text_every_point_mass_is_judged_whose_parents_were_right() -> None:
    """Bought or not, and whatever was accepted."""
    first = [Trial("a", 0, 0, 0, True), Trial("a", 1, 0, 1, False), Trial("b", 0, 0, 1, False)]
    second = [Trial("a", 0, 1, 2, True), Trial("b", 0, 1, 2, True)]
    assert spoken().trials([1, 3, 4], [], 0) == [*first, *second, Trial("a", 0, 2, 3, True)]
    assert spoken().trials([1, 3, 9], [], 0) == [*first, *second, Trial("a", 0, 2, 3, False)]
    assert spoken().trials([1, 3], [], 0) == [*first, *second], "the text ended: nothing is known of what followed"
    assert spoken().trials([1, 9, 4], [], 0) == [*first, *(t._replace(hit=False) for t in second)], (
        "behind a mistake nothing was tried; as misses they would make long drafts look hopeless"
    )
    assert spoken().trials([9, 3, 4], [], 0) == [t._replace(hit=False) for t in first]
    other = [Trial("a", 0, 0, 0, False), Trial("a", 1, 0, 1, True), Trial("b", 0, 0, 1, True)]
    assert spoken().trials([2, 3, 7, 7, 7], [], 0) == [*other, Trial("b", 0, 1, 4, True)]
    assert spoken().trials([], [], 0) == []


def test_by_the_path_what_was_drawn_is_judged_if_it_was_bought_and_tried() -> None:
    first = Trial("a", 0, 0, 0, True)
    second = [Trial("a", 0, 1, 2, True), Trial("b", 0, 1, 2, True)]
    assert spoken(Q).trials([1, 3, 4], [0, 2, 3], 3) == [first, *second, Trial("a", 0, 2, 3, True)]
    assert spoken(Q).trials([1, 3, 4], [0, 2, 3], 2) == [first, *second, Trial("a", 0, 2, 3, False)]
    assert spoken(Q).trials([1, 3, 4], [0, 2, 3], 1) == [first, *(t._replace(hit=False) for t in second)]
    assert spoken(Q).trials([1, 3, 4], [0, 2, 3], 0) == [first._replace(hit=False)]
    assert spoken(Q).trials([1, 3, 4], [1], 1) == [Trial("a", 1, 0, 1, True), Trial("b", 0, 0, 1, True)]
    assert spoken(Q).trials([1, 3, 4], [], 0) == [], "an unbought draw is neither right nor wrong"


def test_a_point_mass_beside_a_draw_is_judged_by_the_text() -> None:
    """Under rejection too: what a look-up guesses at the place of a drawn token, and where nothing was bought."""
    tree = DraftTree(Calibration())
    tree.add(-1, "model", [Guess(1, 0.9, Q)])
    tree.add(-1, "lookup", [Guess(2, 0.9)])
    tree.add(1, "lookup", [Guess(3, 0.9)])
    refused = [Trial("lookup", 0, 0, 1, True), Trial("lookup", 0, 1, 2, True), Trial("model", 0, 0, 0, False)]
    assert tree.trials([2, 3], [0], 0) == refused
    assert tree.trials([1, 3], [0], 1) == [Trial("lookup", 0, 0, 1, False), Trial("model", 0, 0, 0, True)]
