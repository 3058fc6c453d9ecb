"""Models with a sliding window: what llama.cpp does silently wrong, and what edgespec does instead."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt, Sampling, load
from edgespec.backends import Session, attention_window, llama, open_model
from edgespec.backends.gguf_header import header
from edgespec.backends.llama import LlamaModel
from edgespec.backends.llama_windowed import Windowed
from edgespec.engine import Started
from edgespec.errors import Interrupted
from edgespec.models.fit import Requested, choose
from edgespec.models.memory import Gpu, MachineMemory
from edgespec.models.registry import entries
from edgespec.models.sizes import of_header, sizes
from edgespec.testing import check_model
from edgespec.tools.check import check
from edgespec.types import Floats

from . import windowed
from .hybrid_cases import Poll
from .hybrid_steps import random_steps
from .test_recurrent_state import GEMMA4_12B, shaped
from .windowed import CELLS, CONTEXT, ROUNDING, WINDOW

WORDS = [9 + 11 * n % 240 for n in range(12)]


def text(n: int, seed: int = 0) -> list[int]:
    return [5 + (7 + 2 * seed) * i * i % 251 for i in range(n)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("windowed")
    return {name: windowed.write(folder / f"{name}.gguf", name) for name in windowed.ARCHITECTURES}


@pytest.fixture(autouse=True)
def short_passes() -> Iterator[None]:
    with windowed.short_passes():
        yield


def opened(path: Path, **device: Any) -> LlamaModel:
    model = open_model(path, Device(threads=1, **device), Interrupt())
    assert isinstance(model, LlamaModel)
    return model


def whole(model: LlamaModel, tokens: Sequence[int], words: Sequence[int]) -> Floats:
    """The logits of a session that holds all tokens."""
    with windowed.whole_cache(), closing(model.session(CONTEXT, Interrupt())) as session:
        session.prefill(tokens)
        return session.decode(words).copy()


def agrees(session: Session, model: LlamaModel, rounding: float = ROUNDING["gemma3"]) -> None:
    """Raises AssertionError unless the next logits are those of a session that holds all tokens."""
    tokens = list(session.tokens)
    np.testing.assert_allclose(session.decode(WORDS), whole(model, tokens, WORDS), atol=rounding)
    session.rollback(len(tokens))


# --- any steps, and the laws of sessions


@pytest.mark.parametrize("exact", [0, 32])
@pytest.mark.parametrize("architecture", windowed.ARCHITECTURES)
def test_random_steps(files: dict[str, Path], architecture: str, exact: int) -> None:
    done = random_steps(
        files[architecture],
        100,
        context=CONTEXT,
        rounding=ROUNDING[architecture],
        new=windowed.whole_cache(),
        exact=exact,
    )
    assert done.decodes > 40
    assert done.lost > 1
    assert not done.owed, "no draft is computed again"


def test_the_laws_of_sessions(files: dict[str, Path]) -> None:
    with closing(opened(files["gemma4"])) as model:
        check_model(model, rounding=ROUNDING["gemma4"])


# --- rollbacks


@pytest.mark.parametrize("architecture", windowed.ARCHITECTURES)
def test_a_far_rollback_computes_the_text_again(
    files: dict[str, Path], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check llama.cpp takes it, and computes other logits without an error."""
    with closing(opened(files[architecture])) as model:
        right = whole(model, text(180), WORDS)
        with closing(model.session(CONTEXT)) as session:
            for checked in (True, False):
                session.rollback(0)
                session.prefill(text(480))
                if not checked:
                    monkeypatch.setattr(Windowed, "_reaches", lambda _self, _length: True)
                session.rollback(180)
                assert session.owed == (180 if checked else 0)
                off = np.abs(session.decode(WORDS) - right).max()
                assert off < ROUNDING[architecture] if checked else off > 1


def test_a_rollback_reaches_as_far_as_cells_are_left(files: dict[str, Path]) -> None:
    """To the last cell: 256 of them, of which a token needs 15 before it."""
    with closing(opened(files["gemma3"])) as model:
        for back, owed in ((CELLS - WINDOW + 1, 0), (CELLS - WINDOW + 2, 512 - CELLS + WINDOW - 2)):
            with closing(model.session(CONTEXT)) as session:
                session.prefill(text(512))
                session.rollback(512 - back)
                assert session.owed == owed
                agrees(session, model)


@pytest.mark.parametrize("kept", [0, 1, 30, 64])
def test_the_last_pass_can_always_be_taken_back(files: dict[str, Path], kept: int) -> None:
    """Also one as wide as it can be, and once more from there on."""
    with closing(opened(files["gemma4"])) as model, closing(model.session(CONTEXT)) as session:
        session.prefill(text(500))
        for _ in range(3):
            length = len(session.tokens)
            session.decode(text(64, seed=1))
            session.rollback(length, range(kept))
            assert not session.owed
        agrees(session, model, ROUNDING["gemma4"])


def test_a_far_rollback_begins_near_the_end_of_a_prompt(files: dict[str, Path]) -> None:
    with closing(opened(files["gemma4"])) as model, closing(model.session(CONTEXT)) as session:
        session.prefill(text(400))
        session.prefill(text(300, seed=1))
        for length, owed in ((700, 4), (698, 2), (696, 0), (600, 600)):
            session.prefill(text(4))  # too short to be saved
            for start in range(0, 280, 40):
                session.decode(text(280, seed=2)[start : start + 40])
            session.rollback(length)
            assert session.owed == owed
            agrees(session, model, ROUNDING["gemma4"])


def test_cells_that_cannot_be_loaded_are_computed_anew(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(files["gemma3"])) as model, closing(model.session(CONTEXT)) as session:
        session.prefill(text(400))
        session.prefill(text(300, seed=1))
        monkeypatch.setattr(model._low, "llama_state_seq_set_data_ext", lambda *_arguments: 0)
        session.rollback(398)
        assert session.owed == 398
        agrees(session, model)


@pytest.mark.parametrize("after", [1, 40, 400])
def test_a_pass_that_was_aborted(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """It may have overwritten cells that are needed now."""
    poll = Poll()
    monkeypatch.setattr(llama, "_poller", lambda: poll.native)
    with closing(opened(files["gemma3"])) as model, closing(model.session(CONTEXT)) as session:
        session.prefill(text(300))
        for call, tokens in ((session.prefill, text(400)), (session.decode, text(64))):
            poll.after = after
            if after < 400 or call == session.prefill:
                with pytest.raises(Interrupted):
                    call(tokens)
            else:
                call(tokens)
                session.rollback(300)
            poll.after = -1
            assert list(session.tokens) == text(300)
            agrees(session, model)


def test_a_chat_computes_only_what_is_new(files: dict[str, Path]) -> None:
    """The template drops the thinking, so each prompt goes far back."""
    with load(files["gemma4"], device=Device(context=CONTEXT, threads=1)) as speaker:
        messages = [{"role": "user", "content": "a question that is long enough to be saved" * 8}]
        prompts, cached = [], []
        for _ in range(2):
            started, *_ = speaker.chat(messages, Sampling(temperature=0), max_tokens=280)
            assert isinstance(started, Started)
            prompts.append(started.prompt)
            cached.append(started.cached)
            answered = {"role": "assistant", "content": "thinking#an answer"}
            messages += [answered, {"role": "user", "content": "another question"}]
        assert prompts[0] > CELLS
        assert cached[0] == 0
        assert cached[1] >= prompts[0] - 6


@pytest.mark.parametrize("architecture", windowed.ARCHITECTURES)
def test_check_finds_the_same_text(files: dict[str, Path], tmp_path: Path, architecture: str) -> None:
    """With look-ups and a draft model that is mostly wrong, itself with a window."""
    draft = windowed.write(tmp_path / "draft.gguf", architecture, seed=1)
    with load(files[architecture], draft, device=Device(context=CONTEXT, threads=1)) as speaker:
        for temperature in (0.0, 0.8):
            for verdict in check(speaker, [text(400), text(7)], Sampling(temperature=temperature, seed=1), 40):
                assert verdict.divergence is None or verdict.divergence.near_tie
                assert verdict.drafted > 20


# --- where all tokens are held


def test_short_contexts_and_other_architectures_hold_all_tokens(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(files["gemma3"])) as model:
        identities = []
        for context in (256, 512, CONTEXT):
            with closing(model.session(context)) as session:
                identities.append(session.identity)
                assert isinstance(session._cache, Windowed) == (context > CELLS + WINDOW)
        assert identities[0] != identities[1] == identities[2], "prices are apart"
    monkeypatch.setattr(attention_window, "_PERIODS", {})
    with closing(opened(files["gemma3"])) as model, closing(model.session(CONTEXT)) as session:
        assert not isinstance(session._cache, Windowed)
    path = windowed.write(tmp_path / "none.gguf", "gemma3", attention_sliding_window=0)
    assert attention_window.window(header(path)) == 0


# --- memory


@pytest.mark.parametrize("context", [200, 256, 512, 1024, 4096])
@pytest.mark.parametrize("architecture", windowed.ARCHITECTURES)
def test_the_plan_counts_what_llamacpp_allocates(
    files: dict[str, Path],
    architecture: str,
    context: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llama, "_CHUNK", 512)
    caplog.set_level(logging.DEBUG, "edgespec.llama")
    with closing(opened(files[architecture])) as model:
        model.session(context).close()
    logged = sum(map(float, re.findall(r"KV buffer size = +([\d.]+) MiB", caplog.text))) * 2**20
    found = sizes(files[architecture])
    assert found.window == WINDOW
    held = sum(found.held(layer, -(-context // 256) * 256) for layer in found.layers)
    assert held == pytest.approx(logged, abs=2.5e4)
    saved = WINDOW * found.windowed if context > 768 + WINDOW else 0
    assert found.cached(-(-context // 256) * 256) == held + saved


def test_windows_save_memory_on_the_gpu() -> None:
    """Gemma 4 12B: 2,560 tokens in place of 32,768. The registry knows the same of it."""
    found = of_header(shaped("gemma4", 48, GEMMA4_12B), 100)
    assert (found.windowed, found.cache, found.window) == (327_680, 16_384, 1024)
    known = entries()["gemma-4-12b"].target.sizes
    assert (known.windowed, known.cache, known.window) == (found.windowed, found.cache, found.window)
    assert sum(layer.windowed for layer in known.layers) == known.windowed
    free = MachineMemory(64 * 10**9, (Gpu(24 * 10**9),))
    plan = choose(found, None, free, Requested(context=32768))
    assert plan.cache == 32768 * 16_384 + (1536 + 1024) * 327_680
    assert plan.in_ram == 100 + 1024 * 327_680, "the window that is saved"
    taken = [found.cached(context) for context in range(256, 32768, 256)]
    assert all(shorter < longer for shorter, longer in pairwise(taken)), "the plan looks for the longest by halving"
    assert found.cached(2560) == 2560 * (327_680 + 16_384)


@pytest.mark.parametrize(
    ("architecture", "given", "window", "layers"),
    [
        ("gemma2", {}, 4096, "1010"),
        ("gemma3", {"attention.sliding_window": 512}, 512, "111110111110"),
        ("gemma3", {"attention.sliding_window": 512, "attention.sliding_window_pattern": 2}, 512, "1010"),
        ("gpt-oss", {"attention.sliding_window": 128, "attention.sliding_window_pattern": (False, True)}, 128, "01"),
        ("gemma4", {"attention.sliding_window": 128}, 128, "00"),
        ("gpt-oss", {"attention.sliding_window": 128, "attention.sliding_window_pattern": (True,)}, 128, "00"),
        ("llama", {"attention.sliding_window": 128}, 0, "00"),
        ("gemma3", {}, 0, "00"),
    ],
)
def test_which_layers_have_a_window(architecture: str, given: dict[str, Any], window: int, layers: str) -> None:
    head = shaped(architecture, len(layers), given)
    assert attention_window.window(head) == window
    assert attention_window.windowed_layers(head) == tuple(each == "1" for each in layers)
