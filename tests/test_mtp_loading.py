"""Heads for multi-token prediction: when they are loaded, how they are found, and llama.cpp's traps."""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt, Speculation, load
from edgespec.backends import HeadWeights, head_header, llama_head, open_model
from edgespec.backends.llama import LlamaModel
from edgespec.backends.llama_session import LlamaSession
from edgespec.bench.contender import AnswerRequest
from edgespec.bench.edgespec_contender import ContenderFactory
from edgespec.bench.records import OURS, PLAIN
from edgespec.errors import (
    EngineError,
    MissingPackage,
    ModelFileError,
    OptionError,
    VocabularyMismatch,
)
from edgespec.models import model_source, runtime_support
from edgespec.models.fit import Requested, choose
from edgespec.models.memory import MachineMemory
from edgespec.models.sizes import sizes
from edgespec.prices import head_step
from edgespec.runtime.loading import Files as Paths

from . import hybrids
from .hybrid_steps import ROUNDING
from .mtp_cases import GREEDY, KINDS, PROMPT, RIGHT_PROMPT, Files, all_kinds, fresh, opened, runtime


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Files]:
    return all_kinds(tmp_path_factory)


def test_a_head_over_a_model_that_was_loaded_without_it(made: dict[tuple[str, bool], Files]) -> None:
    """llama.cpp would end the process, although it says that the model has a head."""
    path = made["in the file", False][0]
    with closing(open_model(path, Device(threads=1), Interrupt())) as model, closing(model.session(64)) as session:
        assert isinstance(model, LlamaModel)
        assert model._low.llama_model_n_layer_nextn(model._model) == 1
        assert not model.holds_head
        with pytest.raises(ModelFileError, match="loaded without a head"):
            model.head(session)


def test_a_model_without_a_head(tmp_path: Path) -> None:
    path = hybrids.write(tmp_path / "model.gguf", "qwen35")
    with closing(open_model(path, Device(threads=1, head=True), Interrupt())) as model:
        assert isinstance(model, HeadWeights)
        assert not model.holds_head
    with pytest.raises(OptionError, match="no drafter 'mtp'"):
        load(path, "none", device=Device(context=64), speculation=Speculation(("mtp",)))


def test_a_head_alone_is_no_target(made: dict[tuple[str, bool], Files]) -> None:
    for kind in ("apart", "gemma4"):
        head = made[kind, False][1]
        assert head is not None
        with pytest.raises(ModelFileError, match="holds a head without its model"):
            load(head, "none", device=Device(context=64))


def test_a_head_that_is_not_run(made: dict[tuple[str, bool], Files], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as several heads, or EAGLE-3's: refused before llama.cpp sees it."""
    target, head = made["apart", False]
    monkeypatch.setattr(head_header, "_ONE_LAYER", ())
    with pytest.raises(ModelFileError, match="does not draft with that; it does with those of qwen35,"):
        runtime((target, head))
    with closing(open_model(made["in the file", False][0], Device(threads=1, head=True), Interrupt())) as model:
        assert isinstance(model, LlamaModel)
        assert not model.holds_head


def test_a_head_of_another_target(made: dict[tuple[str, bool], Files]) -> None:
    """llama.cpp would read rows beyond their end. The assistant's own rows are narrower than those it reads."""
    target, head = made["in the file", False][0], made["gemma4", False][1]
    with (
        closing(open_model(target, Device(threads=1), Interrupt())) as model,
        closing(model.session(64)) as session,
        closing(open_model(head or target, Device(threads=1, drafts=True), Interrupt())) as weights,
    ):
        assert isinstance(weights, LlamaModel)
        assert isinstance(session, LlamaSession)
        assert (weights._low.llama_model_n_embd(weights._model), session.row_width) == (32, 64)
        session.row_width = 48
        with pytest.raises(VocabularyMismatch, match="reads rows of 64 numbers"):
            weights.head(session)


def test_rows_of_all_tokens_of_a_pass(made: dict[tuple[str, bool], Files]) -> None:
    """With masked rows a pass of several tokens and one output gives the row of the first token for the last."""
    files = made["in the file", False]
    with opened(files) as over:
        over.session.prefill(PROMPT[:-2])
        over.session.decode(PROMPT[-2:])  # two pairs are not computed yet: they ride in the pass of the first guess
        found = over.rows(9, [8, 7])
    np.testing.assert_allclose(found, fresh(files, [*PROMPT, 9], [8, 7]), atol=ROUNDING)


def test_the_target_is_the_same_with_its_rows(made: dict[tuple[str, bool], Files]) -> None:
    """To the last bit."""
    for kind in KINDS:
        rows = []
        for with_head in (False, True):
            files = made[kind, False]
            with ExitStack() as stack:
                if with_head:
                    session = stack.enter_context(opened(files)).session
                else:
                    model = stack.enter_context(closing(open_model(files[0], Device(threads=1), Interrupt())))
                    session = stack.enter_context(closing(model.session(256)))
                session.prefill(PROMPT)
                rows.append(session.decode([4, 5, 6]).copy())
        assert np.array_equal(*rows)


def test_older_bindings(made: dict[tuple[str, bool], Files], monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the head is left out, or refused if it was named; the message says which version has the functions."""
    monkeypatch.setattr(llama_head, "_PRIVATE", ("llama_of_tomorrow",))
    llama_head.private_functions.cache_clear()
    try:
        for kind in ("in the file", "gemma4"):
            with pytest.raises(MissingPackage, match=r"no llama_of_tomorrow.*install llama-cpp-python 0\.3\.36"):
                runtime(made[kind, False])
            with runtime(made[kind, False], speculation=Speculation()) as speaker:
                assert "mtp" not in speaker.drafters
                assert any("does not draft" in notice for notice in speaker.notices)
    finally:
        monkeypatch.undo()
        llama_head.private_functions.cache_clear()


def test_a_context_that_cannot_be_opened(made: dict[tuple[str, bool], Files], monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_model(made["in the file", False][0], Device(threads=1, head=True), Interrupt())) as model:
        assert isinstance(model, LlamaModel)
        with closing(model.session(64)) as session:
            monkeypatch.setattr(model._low, "llama_init_from_model", lambda *_: None)
            with pytest.raises(EngineError, match="could not open the head"):
                model.head(session)


def test_exact_passes_have_no_head(made: dict[tuple[str, bool], Files]) -> None:
    target, head = made["gemma4", True]
    device = Device(context=256, threads=1, exact=4)
    with pytest.raises(OptionError, match="exact is 4"):
        load(target, head, device=device, speculation=Speculation(("mtp",)))
    with load(target, head, device=device) as speaker:
        assert speaker.drafters == ("lookup", "recycling")


@pytest.mark.parametrize(
    ("kind", "drafters", "loaded"),
    [
        ("in the file", None, True),
        ("in the file", ("mtp", "lookup"), True),
        ("in the file", ("lookup",), False),
        ("apart", None, True),
        ("apart", ("lookup",), False),
        ("gemma4", None, True),
    ],
)
def test_a_head_is_loaded_only_where_it_drafts(
    made: dict[tuple[str, bool], Files],
    kind: str,
    drafters: tuple[str, ...] | None,
    loaded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_heads: list[bool] = []
    load_file = LlamaModel.__init__

    def noted(self: LlamaModel, *args: Any) -> None:
        load_file(self, *args)
        with_heads.append(self.holds_head)

    monkeypatch.setattr(LlamaModel, "__init__", noted)
    with runtime(made[kind, False], speculation=Speculation(drafters)) as speaker:
        assert ("mtp" in speaker.drafters) is loaded
    assert any(with_heads) is loaded


def test_a_draft_model_takes_the_place_of_a_head_that_is_not_named(made: dict[tuple[str, bool], Files]) -> None:
    target, draft = made["in the file", False][0], made["apart", False][0]
    for drafters, expected in (
        (None, ("lookup", "model")),
        (("mtp", "model"), ("mtp", "model")),
    ):
        with runtime((target, draft), speculation=Speculation(drafters)) as speaker:
            assert set(expected) <= set(speaker.drafters)
            assert ("mtp" in speaker.drafters) is ("mtp" in expected)


def test_a_draft_model_is_loaded_without_its_own_head(made: dict[tuple[str, bool], Files]) -> None:
    device = Device(head=True).of_draft(made["in the file", False][0])
    assert not device.head
    assert replace(device, head=True).head


def test_a_head_beside_the_target_is_found_by_its_header(made: dict[tuple[str, bool], Files], tmp_path: Path) -> None:
    for kind in ("apart", "gemma4"):
        target, head = made[kind, True]
        assert head is not None
        folder = tmp_path / kind
        folder.mkdir()
        own = folder / "model.gguf"
        own.write_bytes(target.read_bytes())
        for name, other in (("a.gguf", "apart"), ("b.gguf", "gemma4")):
            (folder / name).write_bytes((made[other, True][1] or target).read_bytes())
        found = model_source.local_draft(own)
        assert found is not None
        assert found.read_bytes() == head.read_bytes(), "not that of the other target"
        with load(own, device=Device(context=256, threads=1)) as speaker:
            assert "mtp" in speaker.drafters


def test_a_target_with_a_head_needs_no_draft_model(
    made: dict[tuple[str, bool], Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = made["in the file", False][0]
    for name in ("model.gguf", "other.gguf"):
        (tmp_path / name).write_bytes(target.read_bytes())
    monkeypatch.setattr(model_source, "MIN_SIZE_RATIO", 1)
    assert model_source.local_draft(tmp_path / "model.gguf") is None
    monkeypatch.setattr(runtime_support, "HEADS", frozenset())
    assert model_source.local_draft(tmp_path / "model.gguf") == tmp_path / "other.gguf"


def test_heads_of_the_registry_are_fetched_with_their_targets() -> None:
    apart = model_source.resolve_name("gemma-4-12b")
    assert apart is not None
    assert apart.draft is not None
    assert apart.draft.file == "mtp-gemma-4-12B-it.gguf"
    within, other = model_source.resolve_name("qwen3.8-27b"), model_source.resolve_name("muse-glimmer-30b")
    assert within is not None
    assert other is not None
    assert (within.draft, other.draft) == (None, None), "in the target's file; of a kind that is not run"


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_counts_the_head(
    made: dict[tuple[str, bool], Files], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The cache of its layer, its weights, and buffers of its own; the states of the target once."""
    target, head = made[kind, False]
    caplog.set_level(logging.DEBUG, "edgespec.llama")
    with opened(made[kind, False], 2048):
        pass
    cached = sum(map(float, re.findall(r"KV buffer size = +([\d.]+) MiB", caplog.text))) * 2**20
    stated = [sizes(each) for each in (target, head) if each is not None]
    caches = sum(each.held(replace(layer, state=0), 2048) for each in stated for layer in each.layers)
    assert caches == pytest.approx(cached, abs=1e4)
    assert sum(each.weights for each in stated) >= sum(each.stat().st_size for each in (target, head) if each) * 0.95
    assert len([each for each in stated if each.state]) == (kind != "gemma4")
    (within, *_) = stated
    without = within.without_head()
    assert (without.weights < within.weights) is (head is None)
    assert (without.buffers < within.buffers) is (head is None)
    free = MachineMemory(1 << 30)
    if head is None:
        assert choose(within, None, free, Requested()).needed > choose(without, None, free, Requested()).needed
        assert choose(within, stated[0], free, Requested()).cache == choose(without, stated[0], free, Requested()).cache


def test_the_price_of_a_pass_is_measured(made: dict[tuple[str, bool], Files]) -> None:
    with opened(made["gemma4", True]) as over:
        assert 0 < head_step(over.session, over.head) < 10
        assert list(over.session.tokens) == []
        assert over.head.follows([7])


def test_a_contender_of_the_bench(made: dict[tuple[str, bool], Files]) -> None:
    for kind in ("in the file", "gemma4"):
        device = Device(context=256, threads=1)
        with ExitStack() as stack:
            target, draft = made[kind, True]
            files = Paths(target, (draft,) if draft is not None else ())
            factory = ContenderFactory(files, device, Interrupt(), lambda _what, _share: None)
            stack.callback(factory.close)
            for name, drafts in (("mtp", True), ("lookup", False), (PLAIN, False), (OURS, True)):
                contender = factory.contender(name)
                stack.callback(contender.close)
                assert ("mtp" in contender.runtime.drafters) is drafts
                assert list(contender.answer(AnswerRequest(RIGHT_PROMPT, GREEDY, 10)))
