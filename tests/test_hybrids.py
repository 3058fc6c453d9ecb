"""Models with a recurrent state: what llama.cpp does silently wrong, and what edgespec does instead."""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt, Runtime, Sampling, Speculation, load
from edgespec.backends import Session, llama, open_model, recurrent_state
from edgespec.backends.gguf_header import header
from edgespec.backends.llama import LlamaModel
from edgespec.backends.recurrent_state import Copies, state_bytes
from edgespec.engine import Finished, Started, Text
from edgespec.errors import EngineError, Interrupted, ModelFileError, OptionError
from edgespec.models.fit import Requested, choose, longest
from edgespec.models.memory import Gpu, MachineMemory
from edgespec.models.sizes import Layer, Sizes, sizes
from edgespec.testing import check_model
from edgespec.tools.check import check
from edgespec.types import Floats

from . import hybrids
from .hybrid_steps import ROUNDING, random_steps

WITH_SNAPSHOTS = ("qwen35", "qwen35moe", "lfm2", "nemotron_h")
TEXT = [5 + 7 * n % 250 for n in range(60)]
WORDS = [9 + 11 * n % 240 for n in range(12)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hybrids")
    return {name: hybrids.write(folder / f"{name}.gguf", name) for name in hybrids.ARCHITECTURES}


def opened(path: Path, interrupt: Interrupt | None = None, **device: Any) -> LlamaModel:
    model = open_model(path, Device(threads=1, **device), interrupt or Interrupt())
    assert isinstance(model, LlamaModel)
    return model


@pytest.fixture
def few_snapshots(monkeypatch: pytest.MonkeyPatch) -> int:
    """As many as for a large model: tiny ones have 32."""
    monkeypatch.setattr(recurrent_state, "_OF_SMALL", 3)
    return 3


def fresh(model: LlamaModel, text: Sequence[int], words: Sequence[int]) -> Floats:
    with closing(model.session(256, Interrupt())) as session:
        session.prefill(text)
        return session.decode(words).copy()


def agrees(session: Session, model: LlamaModel) -> None:
    """Raises AssertionError unless the next logits are those of a new session with the same text."""
    text = list(session.tokens)
    np.testing.assert_allclose(session.decode(WORDS), fresh(model, text, WORDS), atol=ROUNDING)
    session.rollback(len(text))


# --- any steps, and the laws of sessions


@pytest.mark.parametrize("drafts", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("architecture", hybrids.ARCHITECTURES)
def test_random_steps(files: dict[str, Path], architecture: str, drafts: bool) -> None:
    done = random_steps(files[architecture], 80, drafts=drafts)
    assert done.decodes > 30
    assert done.owed > 5 or (architecture in WITH_SNAPSHOTS and not drafts)


@pytest.mark.usefixtures("few_snapshots")
@pytest.mark.parametrize("architecture", WITH_SNAPSHOTS)
def test_random_steps_with_few_snapshots(files: dict[str, Path], architecture: str) -> None:
    """Of most passes more is rolled back than the snapshots reach."""
    assert random_steps(files[architecture], 80, seed=1).owed > 5


@pytest.mark.parametrize("architecture", ["qwen35", "granitehybrid"])
def test_the_laws_of_sessions(files: dict[str, Path], architecture: str) -> None:
    with closing(opened(files[architecture])) as model:
        check_model(model, rounding=ROUNDING)


# --- snapshots


@pytest.mark.usefixtures("few_snapshots")
@pytest.mark.parametrize("architecture", WITH_SNAPSHOTS)
@pytest.mark.parametrize("back", range(1, 5))
def test_snapshots_go_back_for_nothing_as_far_as_they_reach(
    files: dict[str, Path], architecture: str, back: int
) -> None:
    """To the last bit: the same passes with other rejected tokens give the same logits."""
    with closing(opened(files[architecture])) as model:
        rows = []
        for rejected in (3, 4):
            with closing(model.session(256)) as session:
                assert (session.reach, session.replays, session.can_tree) == (3, False, False)
                session.prefill(TEXT)
                session.decode([*WORDS[:9], *[rejected] * back])
                session.rollback(len(TEXT), range(9))
                assert session.owed == (0 if back <= 3 else 9 + 4), "beyond, from where the prompt's end was saved"
                rows.append(session.decode([7, 8]).copy())
        assert np.array_equal(*rows)
        np.testing.assert_allclose(rows[0], fresh(model, [*TEXT, *WORDS[:9]], [7, 8]), atol=ROUNDING)


@pytest.mark.usefixtures("few_snapshots")
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_whole_pass_is_not_taken_back_by_snapshots(files: dict[str, Path], width: int) -> None:
    """llama.cpp says that it did, and computes wrong logits: the state before the pass is in no snapshot."""
    with closing(opened(files["qwen35"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.decode(WORDS[:width])
        session.rollback(len(TEXT))
        assert session.owed
        agrees(session, model)


def test_a_second_rollback_before_the_next_pass(files: dict[str, Path]) -> None:
    """llama.cpp refuses it, so it is told of the last one only."""
    with closing(opened(files["qwen35"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.decode(WORDS)
        for length in (70, 69, 69, 66):
            session.rollback(length)
            assert not session.owed
        agrees(session, model)


def test_a_state_is_saved_rightly_and_not_copied_while_a_rollback_waits(files: dict[str, Path]) -> None:
    """llama.cpp's copies of sequences would have the state before the rollback."""
    with closing(opened(files["lfm2"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.decode(WORDS)
        session.rollback(65)
        session.prefill(WORDS)
        session.decode(WORDS)
        session.rollback(73)  # where the second prompt's end was saved
        assert not session.owed
        agrees(session, model)
        assert model._low.llama_n_seq_max(session._context) == 1, "nothing to copy to"


def test_snapshots_that_are_not_granted_are_replaced(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp takes the request for none without a word."""
    monkeypatch.setattr(recurrent_state, "_WITH_SNAPSHOTS", ("granitehybrid",))
    with closing(opened(files["granitehybrid"])) as model, closing(model.session(256)) as session:
        assert (session.reach, session.replays) == (None, True)
        session.prefill(TEXT)
        session.decode(WORDS)
        session.rollback(65)
        agrees(session, model)


def test_more_snapshots_than_a_pass_is_wide(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp opens no such context, and would end the process if it had to split a pass."""
    monkeypatch.setattr(recurrent_state, "_OF_SMALL", 100_000)
    with closing(opened(files["lfm2"])) as model, closing(model.session(256)) as session:
        assert session.reach is not None
        assert 32 < session.reach < 255
        session.prefill(TEXT * 4)
        agrees(session, model)


def test_a_context_without_memory_for_snapshots(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(files["qwen35"])) as model:
        init = model._low.llama_init_from_model
        asked: list[tuple[int, int]] = []

        def scarce(weights: Any, params: Any) -> Any:
            asked.append((params.n_rs_seq, params.n_seq_max))
            return None if params.n_rs_seq else init(weights, params)

        monkeypatch.setattr(model._low, "llama_init_from_model", scarce)
        with closing(model.session(256)) as session:
            assert asked == [(n, 1) for n in (32, 16, 8, 4, 2, 1)] + [(0, 2)]
            assert session.replays


# --- the spare sequence, and owed tokens


@pytest.mark.parametrize("architecture", ["granitehybrid", "mamba2"])
def test_owed_tokens_ride_in_the_next_pass(files: dict[str, Path], architecture: str) -> None:
    with closing(opened(files[architecture])) as model, closing(model.session(256)) as session:
        assert (session.reach, session.replays, session.can_tree) == (None, True, False)
        session.prefill(TEXT)
        session.decode(WORDS[:5])
        session.rollback(len(TEXT), range(3))
        assert session.owed == 3
        session.decode([7, 8, 9])
        session.rollback(len(TEXT) + 3, range(1))
        assert session.owed == 4, "the state kept is still that of the prompt's end"
        session.decode([4, 5])
        session.rollback(len(TEXT) + 4, range(2))
        assert not session.owed, "nothing was rejected"
        agrees(session, model)


def test_many_owed_tokens_are_computed_in_a_pass_of_their_own(files: dict[str, Path]) -> None:
    with closing(opened(files["granitehybrid"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.decode(TEXT[:30])
        session.rollback(len(TEXT), range(20))
        assert session.owed == 20
        session.decode([7, 8])
        session.rollback(len(TEXT) + 20, range(1))
        assert session.owed == 1, "the state was kept after the 20"
        agrees(session, model)


def test_a_draft_model_keeps_the_state_at_which_it_began(files: dict[str, Path]) -> None:
    """Its passes are single tokens, of which snapshots reach none."""
    with closing(opened(files["qwen35"], drafts=True)) as model, closing(model.session(256)) as session:
        assert (session.reach, session.replays) == (None, True)
        session.prefill(TEXT)
        for token in WORDS[:4]:
            session.decode([token])
        session.rollback(len(TEXT) + 1)
        assert session.owed == 1
        agrees(session, model)


def test_a_state_kept_of_another_text_is_not_used(files: dict[str, Path]) -> None:
    """It is as long as a part of the text, but the text went another way before."""
    with closing(opened(files["granitehybrid"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT[:40])
        session.prefill(TEXT[40:44])  # too short to be saved
        session.decode([7])
        session.rollback(40)
        session.decode(WORDS)
        session.rollback(46)
        agrees(session, model)


# --- saved states


@pytest.mark.parametrize("architecture", hybrids.ARCHITECTURES)
def test_a_far_rollback_begins_near_the_end_of_a_prompt(files: dict[str, Path], architecture: str) -> None:
    with closing(opened(files[architecture])) as model, closing(model.session(256)) as session:
        for _ in range(2):  # also the second prompt after the same one
            session.rollback(0)
            session.prefill(TEXT[:40])
            session.prefill(TEXT[40:])
            for length, owed in ((60, 4), (58, 2), (56, 0), (50, 14), (36, 0), (30, 30)):
                session.prefill(WORDS[:4])  # too short to be saved
                for token in WORDS:
                    session.decode([token])
                session.rollback(length)
                assert session.owed == owed
                agrees(session, model)


def test_a_chat_computes_only_what_is_new(files: dict[str, Path]) -> None:
    """The template drops the end of the last prompt and the thinking, as those of today's models do."""
    with runtime(files["qwen35"]) as speaker:
        messages = [{"role": "user", "content": "a question that is long enough"}]
        prompts, cached = [], []
        for _ in range(3):
            started, *_, finished = speaker.chat(messages, Sampling(temperature=0), max_tokens=12)
            assert isinstance(started, Started)
            assert isinstance(finished, Finished)
            prompts.append(started.prompt)
            cached.append(started.cached)
            answered = {"role": "assistant", "content": "thinking#an answer"}
            messages += [answered, {"role": "user", "content": "another question"}]
        assert cached[0] == 0
        assert all(now >= before - 6 for now, before in zip(cached[1:], prompts, strict=False)), "all but its end"


# --- cancelling in the middle of a pass


class Poll:
    """A native function that aborts the pass at its `after`-th call."""

    def __init__(self) -> None:
        self.after = -1
        self.calls = 0
        self.native = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(self._aborts)

    def _aborts(self, _data: int) -> bool:
        self.calls += 1
        self.after -= 1
        return self.after == 0


@pytest.fixture
def poll(monkeypatch: pytest.MonkeyPatch) -> Poll:
    made = Poll()
    monkeypatch.setattr(llama, "_poller", lambda: made.native)
    return made


@pytest.mark.parametrize("after", [1, 20, 60])
@pytest.mark.parametrize("drafts", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("architecture", hybrids.ARCHITECTURES)
def test_a_pass_that_was_aborted(
    files: dict[str, Path], poll: Poll, architecture: str, drafts: bool, after: int
) -> None:
    """Within, snapshots would be taken for right; without them, every later pass would fail."""
    with closing(opened(files[architecture], drafts=drafts)) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.decode(WORDS)
        session.rollback(len(TEXT), range(2))
        held = list(session.tokens)
        poll.after = after
        with pytest.raises(Interrupted):
            session.prefill(WORDS)
        assert list(session.tokens) == held
        agrees(session, model)
        poll.after = after
        if session.reach is None:
            with pytest.raises(Interrupted):
                session.decode(WORDS)
        else:
            session.decode(WORDS)
            session.rollback(len(held))
        poll.after = -1
        assert list(session.tokens) == held
        agrees(session, model)


def test_a_cancelled_answer_loses_no_state(files: dict[str, Path]) -> None:
    with runtime(files["qwen35"]) as speaker:
        events = speaker.complete(TEXT, Sampling(temperature=0), max_tokens=50)
        for _, event in zip(range(5), events, strict=False):
            last = event
        assert isinstance(last, Text)
        speaker.cancel()
        assert isinstance(list(events)[-1], Finished)
        assert not speaker.session.owed
        started, *_ = speaker.complete([*speaker.session.tokens, 5, 6], max_tokens=2)
        assert isinstance(started, Started)
        assert started.cached == started.prompt - 2


def test_a_state_that_cannot_be_loaded_is_computed_anew(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(files["qwen35"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.prefill(WORDS)
        session.rollback(len(TEXT))
        monkeypatch.setattr(model._low, "llama_state_seq_set_data_ext", lambda *_arguments: 0)
        assert session.owed == 4
        agrees(session, model)


@pytest.mark.parametrize("tree", [None, [-1, 0, 0, *range(2, 11)]], ids=["chain", "tree"])
def test_a_cache_that_cannot_be_cut_is_computed_anew(
    demo: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tree: list[int] | None
) -> None:
    """Also that of a model without a recurrent state."""
    with closing(opened(demo["target"])) as model, closing(model.session(256)) as session:
        right = [fresh(model, text, WORDS[:1]) for text in (TEXT[:50], TEXT[:10])]
        session.prefill(TEXT)
        remove, refused = model._low.llama_memory_seq_rm, [True, False, True, False, False, False, False]
        monkeypatch.setattr(model._low, "llama_memory_seq_rm", lambda *given: not refused.pop(0) and remove(*given))
        for length, first in ((50, right[0]), (10, right[1])):
            session.rollback(length)
            assert session.owed == length
            np.testing.assert_allclose(session.decode(WORDS, tree)[:1], first, atol=ROUNDING)
            session.rollback(length)


# --- what is refused


def test_a_tree_and_exact_are_refused(files: dict[str, Path]) -> None:
    with (
        closing(opened(files["qwen35"])) as model,
        closing(model.session(256)) as session,
        pytest.raises(EngineError, match="chains only"),
    ):
        session.decode([1, 2, 3], [-1, 0, 0])
    with closing(opened(files["qwen35"], exact=4)) as model, pytest.raises(OptionError, match="leave exact out"):
        model.session(256)


def test_states_of_which_not_all_is_copied_are_refused(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "SUPPORTED", ("mamba2", "lfm2"))
    with pytest.raises(ModelFileError, match=r"'qwen35', whose recurrent state .* it can for lfm2, mamba2$"):
        opened(files["qwen35"])


# --- whole runtimes


def runtime(path: Path, draft: Path | None = None, **options: Any) -> Runtime:
    return load(path, draft, device=Device(context=256, threads=1), **options)


@pytest.fixture(scope="module")
def other_seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model that is nearly always wrong."""
    return hybrids.write(tmp_path_factory.mktemp("drafts") / "draft.gguf", "qwen35", seed=1)


@pytest.mark.parametrize("right", [False, True], ids=["wrong", "right"])
@pytest.mark.parametrize("architecture", hybrids.ARCHITECTURES)
def test_check_finds_the_same_text(files: dict[str, Path], other_seed: Path, architecture: str, right: bool) -> None:
    """With look-ups and a draft model, itself a hybrid, at temperatures 0 and 0.8."""
    with runtime(files[architecture], files[architecture] if right else other_seed) as speaker:
        for temperature in (0.0, 0.8):
            for verdict in check(speaker, [TEXT, TEXT[:7]], Sampling(temperature=temperature, seed=1), 40):
                assert verdict.divergence is None or verdict.divergence.near_tie
                assert verdict.drafted > 20
                assert verdict.accepted > 10


@pytest.mark.parametrize("k", [None, 0, 1, 5])
@pytest.mark.parametrize("architecture", ["qwen35", "granitehybrid"])
def test_answers_are_the_same_whatever_is_drafted(
    files: dict[str, Path], other_seed: Path, architecture: str, k: int | None
) -> None:
    texts = []
    for speculation in (Speculation(k=0), Speculation(k=k)):
        with runtime(files[architecture], other_seed, speculation=speculation) as speaker:
            for prompt in (TEXT, [*TEXT[:50], *WORDS], TEXT[:20]):
                *_, finished = events = list(speaker.complete(prompt, Sampling(temperature=0), max_tokens=30))
                assert isinstance(finished, Finished)
                assert finished.reason == "length"
                texts.append([token for event in events if isinstance(event, Text) for token in event.tokens])
    assert texts[:3] == texts[3:]


# --- memory


@pytest.mark.parametrize("architecture", hybrids.ARCHITECTURES)
def test_the_header_says_how_large_a_state_is(files: dict[str, Path], architecture: str) -> None:
    stated = sum(state_bytes(header(files[architecture])))
    with closing(opened(files[architecture])) as model, closing(model.session(256)) as session:
        session.decode([5])
        size = model._low.llama_state_seq_get_size_ext(session._context, 0, 1)
        assert stated <= size < stated + 400, "with a few numbers per layer"


@pytest.mark.parametrize(
    ("architecture", "size", "drafts", "copies"),
    [
        ("qwen35", 156_900_000, False, Copies(156_900_000, 3, 1)),
        ("qwen35", 52_690_944, False, Copies(52_690_944, 8, 2)),
        ("qwen35moe", 65_900_000, False, Copies(65_900_000, 7, 2)),
        ("qwen35", 20_200_000, True, Copies(20_200_000, 0, 2)),
        ("lfm2", 163_840, False, Copies(163_840, 32, 2)),
        ("granitehybrid", 58_000_000, False, Copies(58_000_000, 0, 2)),
    ],
)
def test_copies_of_a_state(architecture: str, size: int, drafts: bool, copies: Copies) -> None:
    assert Copies.of(architecture, size, drafts=drafts) == copies
    assert copies.in_context == 1 + max(1, copies.snapshots)


@pytest.mark.parametrize("drafts", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("architecture", hybrids.ARCHITECTURES)
def test_the_plan_counts_what_llamacpp_allocates(
    files: dict[str, Path], architecture: str, drafts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The states of all copies, and no cache for layers without attention."""
    caplog.set_level(logging.DEBUG, "edgespec.llama")
    with closing(opened(files[architecture], drafts=drafts)) as model:
        model.session(2048).close()

    def logged(what: str) -> float:
        return sum(map(float, re.findall(rf"{what} buffer size = +([\d.]+) MiB", caplog.text))) * 2**20

    found = sizes(files[architecture])
    found = found.as_draft() if drafts else found
    assert found.in_context * found.state == pytest.approx(logged("RS"), abs=1e4)
    assert found.copies is not None
    assert found.copies.saved == 2
    assert found.cache is not None
    assert 2048 * found.cache == pytest.approx(logged("KV"), abs=1e4)


def test_a_plan_with_states_on_a_gpu_and_saved_ones_beside() -> None:
    """Of 48 layers with 3.27 MB of state each: three snapshots and the present one, and one saved."""
    gb, state, kept = 10**9, 3_270_000, 10_000
    layers = (
        *(Layer(gb // 4, 0 if n % 4 < 3 else kept, state=state if n % 4 < 3 else 0) for n in range(64)),
        Layer(gb),
    )
    target = Sizes(17 * gb, layers, 16 * kept, gb // 10, 32768, Copies.of("qwen35", 48 * state, drafts=False))
    free = MachineMemory(64 * gb, (Gpu(24 * gb),))
    plan = choose(target, None, free, Requested(context=4096))
    assert plan.state == (4 + 1) * 48 * state
    assert plan.gpu_layers == -1
    assert plan.on_gpu == 17 * gb + 4096 * 16 * kept + 4 * 48 * state + target.computing(4096)
    assert plan.in_ram == 48 * state, "the saved one"
    assert plan.needed == plan.on_gpu + plan.in_ram
    assert choose(target, None, MachineMemory(64 * gb, (Gpu(18 * gb),)), Requested(context=4096)).gpu_layers < 64
    without = Sizes(17 * gb, tuple(Layer(each.weights, each.cache) for each in layers), 16 * kept, gb // 10, 32768)
    small = MachineMemory(20 * gb)
    assert longest(target, None, small) < longest(without, None, small)
    both = choose(target, target, MachineMemory(64 * gb), Requested(context=4096))
    assert both.state == (4 + 1) * 48 * state + (2 + 1) * 48 * state
