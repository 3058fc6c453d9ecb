"""Passes of constant width: the same bits, whatever is decoded beside a token."""

from __future__ import annotations

import platform
import random
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from edgespec import Device, Interrupt
from edgespec.backends import Model, Session, open_model
from edgespec.backends.llama import LlamaModel
from edgespec.backends.llama_library import bindings
from edgespec.backends.llama_weights import gpu_layers
from edgespec.errors import ContextOverflow, EngineError, Interrupted, OptionError
from edgespec.types import Floats

from .requantize import requantize

WIDTH = 8
ANSWER = 200
PROMPTS = [
    "<|im_start|>user\nI am looking for a cheap restaurant.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nBook me a flight to Berlin on Monday, please.<|im_end|>\n<|im_start|>assistant\n",
    "What is on at the cinema? " * 60,  # across 512 cells, where one token alone is attended to by other kernels
]


class Said(NamedTuple):
    tokens: list[int]
    rows: Floats


class Wide:
    """llama.cpp's bindings that write down how many tokens each pass held."""

    def __init__(self) -> None:
        self.passes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(bindings(), name)

    def llama_decode(self, context: Any, batch: Any) -> int:
        self.passes.append(batch.n_tokens)
        return int(bindings().llama_decode(context, batch))


def opened(path: Path, exact: int, threads: int = 1) -> Model:
    return open_model(path, Device(exact=exact, threads=threads), Interrupt())


@pytest.fixture(scope="module", params=["MOSTLY_Q8_0", "MOSTLY_Q4_K_M"])
def file(request: pytest.FixtureRequest, small_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small pair's target, quantized one way or another."""
    if request.param == "MOSTLY_Q8_0":
        return small_pair["target"]
    return requantize(small_pair["target"], tmp_path_factory.mktemp("exact") / "target.gguf", request.param)


@pytest.fixture(scope="module")
def exact(file: Path) -> Iterator[Model]:
    model = opened(file, WIDTH)
    yield model
    model.close()


def plainly(session: Session, prompt: Sequence[int], n: int) -> Said:
    """Greedy text, token by token."""
    session.rollback(0)
    session.prefill(prompt[:-1])
    tokens, rows = [prompt[-1]], []
    for _ in range(n):
        rows.append(session.decode(tokens[-1:])[0].copy())
        tokens.append(int(rows[-1].argmax()))
    return Said(tokens[1:], np.stack(rows))


def speculatively(session: Session, prompt: Sequence[int], right: Sequence[int], seed: int) -> Said:
    """Greedy text by drafts of random length that go wrong at a random place."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    session.rollback(0)
    session.prefill(prompt[:-1])
    said, rows = [prompt[-1]], []
    for held in count(len(prompt) - 1):
        draft = list(right[len(said) - 1 :][: rng.randrange(min(WIDTH, session.widest))])
        if draft and rng.random() < 0.7:
            wrong = rng.randrange(len(draft))
            draft[wrong:] = [rng.randrange(5, min(4000, session.vocab)) for _ in draft[wrong:]]
        start = len(session.tokens)
        assert start >= held
        for i, row in enumerate(session.decode([said[-1], *draft])):
            rows.append(row.copy())
            said.append(int(row.argmax()))
            if i >= len(draft) or draft[i] != said[-1]:
                break
        session.rollback(start, range(i + 1))
        if len(said) > len(right):
            return Said(said[1 : len(right) + 1], np.stack(rows[: len(right)]))
    raise AssertionError


@pytest.mark.parametrize("prompt", range(len(PROMPTS)))
def test_speculation_changes_no_bit(exact: Model, prompt: int) -> None:
    tokens = exact.vocabulary.tokenize(PROMPTS[prompt], special=True)
    session = exact.session(1024)
    plain = plainly(session, tokens, ANSWER)
    said = speculatively(session, tokens, plain.tokens, seed=prompt)
    assert said.tokens == plain.tokens
    np.testing.assert_array_equal(said.rows, plain.rows)
    session.close()


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="known of x86-64's kernels alone")
def test_without_it_bits_change(file: Path) -> None:
    """Else the test above would say nothing. Elsewhere other kernels may agree with each other more, or less."""
    model = opened(file, 0, threads=2)
    session = model.session(1024)
    tokens = model.vocabulary.tokenize(PROMPTS[-1], special=True)
    plain = plainly(session, tokens, 12)
    changed = int((speculatively(session, tokens, plain.tokens, 0).rows != plain.rows).any(axis=1).sum())
    session.close()
    model.close()
    assert changed


@pytest.mark.parametrize(("width", "threads"), [(2, 1), (4, 2), (8, 2), (12, 1), (32, 1)])
def test_a_row_is_the_same_wherever_it_stands(file: Path, width: int, threads: int) -> None:
    model = opened(file, width, threads)
    session = model.session(1024)
    tokens = [5 + i * 31 % 3000 for i in range(560)]
    for at in (250, 256 - width // 2, 512 - width // 2):  # across the steps in which the cache is attended to
        session.rollback(0)
        session.prefill(tokens[:at])
        together = session.decode(tokens[at : at + width]).copy()
        session.rollback(at)
        for i, row in enumerate(together):
            np.testing.assert_array_equal(session.decode([tokens[at + i]])[0], row)
    session.close()
    model.close()


@pytest.mark.parametrize("width", [2, 8, 32])
def test_every_decode_is_of_the_width_and_prefill_is_not(small_pair: dict[str, Path], width: int) -> None:
    model = opened(small_pair["draft"], width)
    assert isinstance(model, LlamaModel)
    low = model._low = Wide()
    session = model.session(256)
    assert session.widest == width
    session.prefill([5, 6, 7, 8, 9])
    assert low.passes == [5]
    for n in range(1, width + 1):
        assert session.decode([5] * n).shape == (n, session.vocab)
        assert list(session.tokens) == [5, 6, 7, 8, 9, *[5] * n], "padding is no text"
        session.rollback(5)
    assert low.passes == [5] + [width] * width
    with pytest.raises(EngineError, match=f"at most {width} tokens"):
        session.decode([5] * (width + 1))
    assert not session.can_tree
    assert session.leaves == 0
    with pytest.raises(EngineError, match="can_tree"):
        session.decode([5, 6], (-1, -1))
    session.close()
    model.close()


@pytest.mark.parametrize(("asked", "holds"), [(256, 249), (250, 249), (249, 249), (40, 40), (500, 500), (1, 1)])
def test_the_context_ends_where_padding_still_fits(small_pair: dict[str, Path], asked: int, holds: int) -> None:
    model = opened(small_pair["draft"], WIDTH)
    session = model.session(asked)
    assert session.context == holds
    session.prefill([5] * (holds - 1))
    assert len(session.decode([6])) == 1
    with pytest.raises(ContextOverflow):
        session.decode([6])
    assert len(session.tokens) == holds
    session.close()
    model.close()


def test_an_interrupted_decode_leaves_the_cache_as_it_was(small_pair: dict[str, Path]) -> None:
    interrupt = Interrupt()
    model = open_model(small_pair["draft"], Device(exact=WIDTH), interrupt)
    session = model.session(256)
    session.prefill([5, 6, 7])
    right = session.decode([8]).copy()
    session.rollback(3)
    interrupt.set()
    with pytest.raises(Interrupted):
        session.decode([8])
    interrupt.clear()
    with pytest.raises(EngineError):
        session.decode([10**6])
    assert list(session.tokens) == [5, 6, 7]
    np.testing.assert_array_equal(session.decode([8]), right)
    session.close()
    model.close()


def test_prices_know_the_width(small_pair: dict[str, Path]) -> None:
    found = set()
    for width in (0, 4, 8):
        model = opened(small_pair["draft"], width)
        session = model.session(64)
        found.add(session.identity)
        session.close()
        model.close()
    assert len(found) == 3


@pytest.mark.parametrize("width", [1, 3, 5, 6, 33, 36, -4])
def test_widths_that_no_engine_keeps_exact(width: int) -> None:
    with pytest.raises(OptionError, match="exact"):
        Device(exact=width)


def test_padding_that_a_recurrent_state_would_keep(
    small_pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(small_pair["draft"], WIDTH)
    monkeypatch.setattr(bindings(), "llama_model_is_recurrent", lambda _model: True)
    with pytest.raises(OptionError, match="recurrent"):
        model.session(64)
    monkeypatch.undo()
    model.close()


def test_exactness_and_a_gpu() -> None:
    """Nothing is known there of bits; and no kernel is chosen in silence."""

    class Gpu:
        def llama_supports_gpu_offload(self) -> bool:
            return True

    with pytest.raises(OptionError, match="gpu_layers 0"):
        gpu_layers(Gpu(), Device(exact=4))
    assert gpu_layers(Gpu(), Device(exact=4, gpu_layers=0)) == 0
    assert gpu_layers(Gpu(), Device()) == -1
