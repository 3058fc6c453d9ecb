"""Answers drafted with EAGLE-3 heads: the text does not depend on them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks import acceptance
from edgespec import Device, Sampling, Speculation, load
from edgespec.bench.peers.llama_server import SERVER
from edgespec.engine import Finished
from edgespec.errors import OptionError
from edgespec.tools.check import check

from . import eagle3_heads
from .eagle3_cases import GREEDY, KINDS, RING_PROMPT, TEXT, Place, drafts_trees, runtime, said


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("eagle3"))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("k", [1, 3, None])
@pytest.mark.parametrize("name", ["target", "ring"])
def test_the_text_does_not_depend_on_the_head(place: Place, kind: str, name: str, k: int | None) -> None:
    """At temperatures 0 and 0.8; the one is always wrong, the other right once a round."""
    head = place.head if name == "target" else place.right
    with runtime(place, kind, head, name, speculation=Speculation(("eagle3",), k)) as speaker:
        assert "eagle3" in speaker.drafters
        for temperature in (0.0, 0.8):
            sampling = Sampling(temperature=temperature, seed=1, top_k=0)
            for verdict in check(speaker, [RING_PROMPT, TEXT], sampling, 30):
                assert verdict.divergence is None or verdict.divergence.near_tie


@pytest.mark.parametrize("verifier", ["match", "rejection", "block"])
def test_every_verifier(place: Place, verifier: str) -> None:
    with runtime(place, "llama", place.right, "ring", speculation=Speculation(("eagle3",), 1, verifier)) as speaker:
        *_, finished = speaker.complete(RING_PROMPT, Sampling(temperature=0.8, seed=3, top_k=0), max_tokens=40)
        assert isinstance(finished, Finished)
        of, accepted = finished.stats.by_drafter["eagle3"]
        assert accepted > 0.3 * of


def test_a_head_that_knows_the_target_is_right(place: Place, kind: str) -> None:
    """It reads nothing but its rows: with those of another position it would always be wrong."""
    for head, least, most in ((place.right, 0.95, 1.0), (place.head, 0.0, 0.1)):
        with runtime(place, kind, head, "ring", speculation=Speculation(("eagle3",), 1)) as speaker:
            *_, finished = speaker.complete(RING_PROMPT, GREEDY, max_tokens=60)
            assert isinstance(finished, Finished)
            of, accepted = finished.stats.by_drafter["eagle3"]
            assert of > 10
            assert least <= accepted / of <= most


def test_trees_with_free_siblings(place: Place) -> None:
    with runtime(place, "llama", place.right, "ring") as speaker:
        drafts_trees(speaker)


def test_two_runtimes_over_the_same_weights(place: Place, kind: str) -> None:
    with runtime(place, kind, place.right, "ring") as speaker, speaker.another() as second:
        plain = said(speaker, Speculation((), 0))
        for each in (speaker, second, speaker):
            assert said(each, Speculation(("eagle3",), 2)) == plain


def test_look_ups_beside_it(place: Place) -> None:
    with runtime(place, "llama", place.right, "ring", speculation=Speculation()) as speaker:
        assert speaker.drafters == ("lookup", "eagle3")
        assert all(verdict.divergence is None for verdict in check(speaker, [RING_PROMPT], GREEDY, 30))


def test_exact_passes(place: Place) -> None:
    device = Device(context=256, threads=1, exact=4)
    path = place.folder / "target.gguf"
    with pytest.raises(OptionError, match="the drafter eagle3 needs passes of other widths"):
        load(path, place.head, device=device, speculation=Speculation(("eagle3",)))
    with load(path, place.head, device=device) as speaker:
        assert "eagle3" not in speaker.drafters


def test_a_native_server_loads_the_same_file(place: Place) -> None:
    """Its acceptance on the same prompts is ours. EDGESPEC_LLAMA_SERVER names the program."""
    program = os.environ.get(SERVER)
    if not program:
        pytest.skip(f"{SERVER} names no llama-server")
    target = place.folder / "ring.gguf"
    prompts = [[*TEXT[:20], *np.roll(eagle3_heads.RING, -n)[:3].tolist()] for n in range(4)]
    with acceptance.served(Path(program), target, place.right, 1):
        drafted, accepted = acceptance.of_server(prompts, 40)
    with runtime(place, "llama", place.right, "ring") as speaker:
        ours = acceptance.totals(speaker, prompts, "eagle3", 1, 40)
    assert drafted > 50
    assert abs(accepted / drafted - ours[1] / ours[0]) < 0.03
