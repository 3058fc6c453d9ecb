"""Medusa heads that draft: the text does not depend on them."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgespec
from edgespec import Device, Sampling, Speculation
from edgespec.engine import Finished, Text

from .medusa_heads import PROMPT, Chain, chain_in, head_file, weights


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
