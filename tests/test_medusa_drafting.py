"""Medusa heads that draft: the text does not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import edgespec
from edgespec import Device, Sampling, Speculation
from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.drafters import Drafter
from edgespec.engine import Finished, Text
from edgespec.prices import Prices
from edgespec.types import Draft, Round

from .helpers import Clock, TreeController, ignore_machine_times, trusting
from .medusa_heads import PROMPT, Chain, chain_in, doubting, head_file, weights
from .test_last_row import passes_of


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return chain_in(tmp_path_factory.mktemp("chain"))


def answer(runtime: edgespec.Runtime, sampling: Sampling, speculation: Speculation) -> tuple[list[int], Finished]:
    tokens: list[int] = []
    for event in runtime.complete(PROMPT, sampling, max_tokens=48, speculation=speculation):
        if isinstance(event, Text):
            tokens += event.tokens
        elif isinstance(event, Finished):
            finished = event
    return tokens, finished


@pytest.mark.parametrize("heads", ["random", "knowing"])
@pytest.mark.parametrize("engine", ["gguf", "onnx"])
def test_lossless(engine: str, heads: str, chain: Chain, tmp_path: Path) -> None:
    made = chain.knowing if heads == "knowing" else weights(3, chain.tokens, 3)
    path = head_file(tmp_path, chain, made)
    device = Device(context=256, threads=1)
    with edgespec.load(getattr(chain, engine), path, device=device) as runtime:
        assert runtime.step_prices["medusa"] > 0
        for sampling in (Sampling(), Sampling(temperature=0.8, seed=3), Sampling(temperature=0.8, top_k=5, seed=9)):
            plain, _ = answer(runtime, sampling, Speculation((), k=0))
            for k in (1, 3, 7, None):
                tokens, finished = answer(runtime, sampling, Speculation(("medusa",), k=k))
                assert tokens == plain
                if heads == "knowing" and k and not sampling.temperature:
                    assert finished.stats.accepted >= 0.9 * finished.stats.drafted > 0


class Flat(Adaptive):
    """On a machine where a wide pass costs what a step does, and no time passes otherwise."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        prices = Prices([1.0 + 0.001 * n for n in range(64)])
        super().__init__(drafters, prices, trusting("medusa"), trees=True, clock=Clock().perf_counter)

    def observe(self, round: Round) -> None:  # noqa: A002
        super().observe(replace(round, verify_seconds=1.0 + 0.001 * (round.width - 1), draft_seconds=0.0))


#: Controllers whose drafts are trees: of all that is guessed, and of what pays.
GROWING: dict[str, Callable[[Sequence[Drafter]], Controller]] = {
    "all": lambda drafters: TreeController(drafters, 14),
    "adaptive": Flat,
}


@pytest.mark.parametrize("growing", GROWING)
@pytest.mark.parametrize("engine", ["gguf", "onnx", "openvino"])
def test_trees_of_heads_that_are_often_wrong(
    engine: str, growing: str, chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds verify trees, sometimes a sibling is the right one, sometimes none is, and the text is the plain one."""
    ignore_machine_times(monkeypatch)
    path = head_file(tmp_path, chain, doubting(chain))
    device = Device(context=256, threads=1, backend="openvino" if engine == "openvino" else "auto")
    target = chain.gguf if engine == "gguf" else chain.onnx
    with edgespec.load(target, path, device=device, speculation=Speculation(("medusa",))) as runtime:
        for sampling in (Sampling(), Sampling(temperature=0.8, seed=3)):
            plain, _ = answer(runtime, sampling, Speculation((), k=0))
            events = list(runtime.complete(PROMPT, sampling, max_tokens=48, controlled=GROWING[growing]))
            rounds = [event.round for event in events if isinstance(event, Text)]
            assert [token for each in rounds for token in each.tokens] == plain
            trees = [each for each in rounds if not each.draft.is_chain]
            assert len(trees) > 3
            assert any(not each.path for each in trees), "nothing of a tree was right"
            assert any(_rank(each.draft, node) > 0 for each in trees for node in each.path), "a sibling was right"


@pytest.mark.parametrize("engine", ["gguf", "onnx"])
def test_after_a_tree_the_state_is_that_of_its_path(engine: str, chain: Chain, tmp_path: Path) -> None:
    """With that of another node the heads, which know the target, would be wrong. The nodes of their
    path stand between others."""
    path = head_file(tmp_path, chain, chain.knowing)
    with edgespec.load(getattr(chain, engine), path, device=Device(context=256, threads=1)) as runtime:
        events = runtime.complete(PROMPT, Sampling(), max_tokens=41, controlled=GROWING["all"])
        rounds = [event.round for event in events if isinstance(event, Text)]
        assert [each.path for each in rounds[:6]] == [(0, 4, 12)] * 6


def _rank(draft: Draft, node: int) -> int:
    """The place of a node among its siblings."""
    return [*draft.children(draft.parents[node])].index(node)


def test_prompts_are_computed_without_the_logits_of_their_tokens(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = head_file(tmp_path, chain, chain.knowing)
    device = Device(context=256, threads=1)
    with edgespec.load(chain.gguf, path, device=device, speculation=Speculation(("medusa",), k=2)) as runtime:
        found = passes_of(runtime.session, monkeypatch)
        events = list(runtime.complete(PROMPT * 25, Sampling(), max_tokens=6))
        assert found[:3] == [(98, 0), (1, 1), (3, 3)]
        assert next(event.round.draft for event in events if isinstance(event, Text)).drafters == ("medusa",) * 2


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_other_rules(rule: str, chain: Chain, tmp_path: Path) -> None:
    path = head_file(tmp_path, chain, chain.knowing)
    with edgespec.load(chain.gguf, path, device=Device(context=256, threads=1)) as runtime:
        greedy, _ = answer(runtime, Sampling(), Speculation((), k=0))
        assert answer(runtime, Sampling(), Speculation(("medusa",), k=3, verifier=rule))[0] == greedy
        assert answer(runtime, Sampling(temperature=0.8, seed=1), Speculation(("medusa",), k=3, verifier=rule))[0]


def test_two_runtimes_and_prefixes(chain: Chain, tmp_path: Path) -> None:
    """Heads follow the session of their own runtime, also where a later prompt begins as an earlier one."""
    path = head_file(tmp_path, chain, chain.knowing)
    speculation = Speculation(("medusa",), k=3)
    with edgespec.load(chain.gguf, path, device=Device(context=256, threads=1), speculation=speculation) as first:
        with first.another() as second:
            for runtime in (first, second, first):
                assert (
                    answer(runtime, Sampling(), speculation)[0] == answer(runtime, Sampling(), Speculation((), k=0))[0]
                )
        _, finished = answer(first, Sampling(), speculation)
        assert finished.stats.accepted >= 0.9 * finished.stats.drafted > 0
