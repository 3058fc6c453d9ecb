"""The llama.cpp backend on the trained pair of the tests."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from edgespec import Device, Finished, Interrupt, Runtime, Sampling, Speculation, Started, Text, load
from edgespec.backends import Model, Session, llama, open_model
from edgespec.backends.llama_library import bindings
from edgespec.backends.llama_session import LlamaSession
from edgespec.errors import ContextOverflow, Interrupted, ModelFileError, TemplateError, VocabularyMismatch
from edgespec.sampling import SHARED, distribution, gumbel
from edgespec.text.template import ChatTemplate
from edgespec.types import Floats

#: By how much a logit may differ between passes of different width: kernels differ, sums are in another order.
ROUNDING = 0.15

USER = "I am looking for a cheap restaurant in the centre of town."


@pytest.fixture
def session(small_target: Model) -> Iterator[Session]:
    opened = small_target.session(512)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def prompt(small_target: Model) -> list[int]:
    text = f"<|im_start|>user\n{USER}<|im_end|>\n<|im_start|>assistant\n"
    return small_target.vocabulary.tokenize(text, special=True)


def fresh(model: Model, tokens: Sequence[int]) -> Floats:
    """The logits after `tokens`, token by token in a session of its own."""
    session = model.session(512)
    try:
        return np.concatenate([session.decode([token]).copy() for token in tokens])
    finally:
        session.close()


def test_the_price_depends_on_file_and_threads(small_pair: dict[str, Path]) -> None:
    def identity(name: str, threads: int) -> str:
        model = open_model(small_pair[name], Device(threads=threads), Interrupt())
        session = model.session(64)
        session.close()
        model.close()
        return session.identity

    kept = [identity("target", 1), identity("target", 2), identity("draft", 1)]
    assert len(set(kept)) == 3
    assert identity("target", 1) == kept[0], "else every run would measure anew"


def test_a_small_draft_model_takes_one_thread_but_for_prompts(
    small_pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(threads=2)
    asked: list[int] = []
    low = bindings()
    set_threads = low.llama_set_n_threads

    def counted(handle: object, steps: int, prompts: int) -> None:
        asked.append(prompts)
        set_threads(handle, steps, prompts)

    monkeypatch.setattr(low, "llama_set_n_threads", counted)
    found = []
    for place in (device, device.of_draft(small_pair["draft"])):
        model = open_model(small_pair["draft"], place, Interrupt())
        session = model.session(64)
        assert isinstance(session, LlamaSession)
        session.prefill(list(range(300, 330)))
        session.decode([300])
        found.append((session.identity, low.llama_n_threads(session.handle), low.llama_n_threads_batch(session.handle)))
        session.rollback(0)
        session.prefill([300, 301])
        session.close()
        model.close()
    assert found[0][1:] == (2, 2)
    assert found[1][1:] == (1, 1)
    assert asked == [2, 1], "the threads of the long prompt, and none for the short one"
    assert found[0][0] != found[1][0], "prices of one thread are not those of two"


@pytest.mark.parametrize(
    ("beside", "alone", "most", "threads"),
    [("auto", 0, 64 << 20, 2), ("onnx", 0, 64 << 20, 2), ("openvino", 0, 64 << 20, 1), ("openvino", 0, 0, 2)],
)
def test_a_draft_beside_openvino_takes_one_thread_up_to_another_size(
    small_pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch, beside: str, alone: int, most: int, threads: int
) -> None:
    monkeypatch.setattr(llama, "_SMALL", alone)
    monkeypatch.setattr(llama, "_SMALL_BESIDE_OPENVINO", most)
    device = Device(threads=2, backend="llama", drafts=True, beside=beside)
    with (
        closing(open_model(small_pair["draft"], device, Interrupt())) as model,
        closing(model.session(64)) as session,
    ):
        assert isinstance(session, LlamaSession)
        assert bindings().llama_n_threads(session.handle) == threads


def test_a_prompt_is_computed_when_prefill_returns(
    small_pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a graphics card it might still be under way, and the time of the next pass would have it, too."""
    low, order = bindings(), list[str]()
    for name in ("llama_decode", "llama_synchronize"):
        called = getattr(low, name)

        def noted(*given: Any, _name: str = name, _called: Any = called) -> Any:
            order.append(_name)
            return _called(*given)

        monkeypatch.setattr(low, name, noted)
    with closing(open_model(small_pair["draft"], Device(), Interrupt())) as model:
        session = model.session(64)
        session.prefill(list(range(300, 330)))
        session.close()
    assert order[-1] == "llama_synchronize"
    assert "llama_decode" in order


# --- text


def test_tokens_and_text_go_both_ways(small_target: Model) -> None:
    vocabulary = small_target.vocabulary
    for text in ("Hello, world", " two  spaces\n\n", "né 😀 한국", "", "a" * 3000):
        tokens = vocabulary.tokenize(text)
        assert b"".join(map(vocabulary.token_bytes, tokens)).decode() == text
    assert vocabulary.tokenize("\ud800a"), "half an emoji, as pasted text may hold"


def test_a_template_that_is_not_utf_8_is_refused_when_it_is_needed(small_pair: dict[str, Path], tmp_path: Path) -> None:
    """It was a UnicodeDecodeError as the file was loaded."""
    held = bytearray(small_pair["draft"].read_bytes())
    at = held.index(b"{%", held.index(b"tokenizer.chat_template"))
    held[at] = 0xFF
    (tmp_path / "m.gguf").write_bytes(held)
    model = open_model(tmp_path / "m.gguf", Device(threads=1), Interrupt())
    try:
        assert model.vocabulary.tokenize("a")
        with pytest.raises(TemplateError, match="not UTF-8 at character"):
            ChatTemplate(model.vocabulary)
    finally:
        model.close()


def test_special_tokens_have_no_text_and_end_the_turn(small_target: Model) -> None:
    vocabulary = small_target.vocabulary
    (end,) = vocabulary.tokenize("<|im_end|>", special=True)
    (start,) = vocabulary.tokenize("<|im_start|>", special=True)
    assert vocabulary.is_eog(end)
    assert not vocabulary.is_eog(start)
    assert not vocabulary.is_eog(vocabulary.tokenize("a")[0])
    assert vocabulary.token_bytes(end) == b""
    assert vocabulary.label(end) == "<|im_end|>"
    assert {"<|im_end|>", "<|im_start|>"} <= set(vocabulary.specials())
    assert end not in vocabulary.tokenize("<|im_end|>")


# --- whole answers


@pytest.fixture(scope="module")
def pair(small_pair: dict[str, Path]) -> Iterator[Runtime]:
    with load(small_pair["target"], small_pair["draft"], device=Device(context=1024, threads=2)) as runtime:
        yield runtime


def answer(runtime: Runtime, prompt: Sequence[int], sampling: Sampling, **speculation: object) -> list[int]:
    options = Speculation(**speculation)  # type: ignore[arg-type]
    said: list[int] = []
    for event in runtime.complete(prompt, sampling, max_tokens=48, speculation=options):
        if isinstance(event, Text):
            said += event.tokens
    return said


def gap(model: Model, prompt: Sequence[int], said: Sequence[int], sampling: Sampling) -> float:
    """By how much the best token after `said` leads the second, in logits."""
    context = [*prompt, *said]
    row = fresh(model, context)[-1]
    if sampling.greedy:
        best = np.sort(row)
    else:
        choices = distribution(row, sampling)
        noise = gumbel(sampling.seed, len(context), choices.tokens, SHARED)
        best = np.sort((np.log(choices.probs) + noise) * sampling.temperature)
    return float(best[-1] - best[-2])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=1), Sampling(temperature=0.8, seed=2)])
def test_the_same_seed_gives_the_same_text_whatever_drafts(
    pair: Runtime, small_target: Model, prompt: list[int], sampling: Sampling
) -> None:
    """Where two texts part, rounding must explain it: the two best tokens are nearly equal there."""
    (end,) = small_target.vocabulary.tokenize("<|im_end|>", special=True)
    sampling = replace(sampling, logit_bias=((end, -np.inf),))
    plain = answer(pair, prompt, sampling, k=0)
    assert len(plain) == 48
    same = 0
    ways: list[dict[str, object]] = [
        {},
        {"k": 1},
        {"k": 8},
        {"k": 8, "drafters": ("model",)},
        {"k": 3, "drafters": ("lookup",)},
        {"drafters": ("lookup",)},
    ]
    if sampling.greedy:
        ways.append({"k": 8, "verifier": "rejection"})
    for way in ways:
        said = answer(pair, prompt, sampling, **way)
        if said == plain:
            same += 1
            continue
        parted = next(i for i, (a, b) in enumerate(itertools.zip_longest(plain, said)) if a != b)
        assert gap(small_target, prompt, plain[:parted], sampling) < 2 * ROUNDING
    assert same >= len(ways) - 1, "near ties are rare"


def test_another_seed_gives_another_text(pair: Runtime, prompt: list[int]) -> None:
    texts = {tuple(answer(pair, prompt, Sampling(temperature=0.8, seed=seed))) for seed in range(4)}
    assert len(texts) > 1


def test_drafts_of_the_demo_pair_are_accepted(pair: Runtime, prompt: list[int]) -> None:
    """Else every test of speculation here would be a test of plain decoding."""
    options = Speculation(k=4, drafters=("model",))
    *_, finished = pair.complete(prompt, max_tokens=48, speculation=options)
    assert isinstance(finished, Finished)
    assert finished.stats.acceptance_rate > 0.5
    assert finished.stats.mean_accepted_length > 2


def test_a_chat_goes_on_where_it_was(pair: Runtime) -> None:
    messages = [{"role": "user", "content": USER}]
    events = list(pair.chat(messages))
    text = "".join(event.text for event in events if isinstance(event, Text))
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "end"
    assert len(text) > 10
    assert "<|" not in text
    messages += [
        {"role": "assistant", "content": text},
        {"role": "user", "content": "Thanks <|im_end|> bye."},
    ]
    started = next(pair.chat(messages))
    assert isinstance(started, Started)
    assert isinstance(events[0], Started)
    assert started.cached > events[0].prompt


def test_a_prompt_longer_than_the_context(pair: Runtime) -> None:
    with pytest.raises(ContextOverflow, match="the context holds 1024"):
        pair.complete("word " * 1500)
    *_, finished = pair.complete("Hello", max_tokens=3)
    assert isinstance(finished, Finished)
    assert finished.reason == "length"


# --- files


def test_files_that_are_no_model(tmp_path: Path, small_pair: dict[str, Path]) -> None:
    """Every one an error of ours, on one line, that names the file; and the next load works."""
    whole = small_pair["draft"].read_bytes()
    damaged = {
        "half.gguf": whole[: len(whole) // 2],
        "head.gguf": whole[:1000],
        "magic.gguf": whole[:4],
        "empty.gguf": b"",
        "text.gguf": b"This is no model.\n" * 100,
        "zeros.gguf": b"GGUF" + bytes(4000),
        "model.bin": whole,
        "model": whole[:10],
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.gguf").mkdir()
    for name in [*damaged, "folder", "folder.gguf", "missing.gguf", "missing"]:
        with pytest.raises(ModelFileError) as caught:
            load(tmp_path / name)
        message = str(caught.value)
        assert name in message
        assert "\n" not in message
        assert 30 < len(message) < 600
    with pytest.raises(ModelFileError, match="half"):
        load(small_pair["target"], tmp_path / "half.gguf")
    open_model(small_pair["draft"], Device(), Interrupt()).close()


def test_a_suffix_in_capitals(tmp_path: Path, small_pair: dict[str, Path]) -> None:
    shutil.copy(small_pair["draft"], tmp_path / "MODEL.GGUF")
    open_model(tmp_path / "MODEL.GGUF", Device(), Interrupt()).close()


def test_a_path_with_other_letters_and_spaces(tmp_path: Path, small_pair: dict[str, Path]) -> None:
    (tmp_path / "модель é").mkdir()
    shutil.copy(small_pair["draft"], tmp_path / "модель é" / "a b.gguf")
    open_model(tmp_path / "модель é" / "a b.gguf", Device(), Interrupt()).close()


def test_a_draft_with_another_vocabulary_is_refused(
    tmp_path: Path, small_pair: dict[str, Path], small_target: Model
) -> None:
    """One token of 4096 written differently in the file: enough to make all drafts nonsense there."""
    label = next(label for label in map(small_target.vocabulary.label, range(2000, 4096)) if len(label.encode()) == 9)
    old = len(label.encode()).to_bytes(8, "little") + label.encode()
    whole = small_pair["draft"].read_bytes()
    assert old in whole
    (tmp_path / "other.gguf").write_bytes(whole.replace(old, old[:-1] + b"~", 1))
    with pytest.raises(VocabularyMismatch, match=r"different vocabularies: token \d+ is") as caught:
        load(small_pair["target"], tmp_path / "other.gguf", speculation=Speculation(through_text=False))
    assert repr(label) in str(caught.value)
    assert "\n" not in str(caught.value)


# --- interrupting, and freeing


@pytest.mark.parametrize(("n", "share"), [(500, 0.3), (2000, 0.1), (2000, 0.7)])
def test_a_prefill_is_cancelled_from_another_thread(small_pair: dict[str, Path], n: int, share: float) -> None:
    """Inside its only pass, or between its passes. The session then holds what it held before, and goes on."""
    interrupt = Interrupt()
    model = open_model(small_pair["target"], Device(threads=1), interrupt)
    session = model.session(2048)
    session.prefill([5, 6, 7])
    tokens = [5 + i % 900 for i in range(n)]
    started = time.perf_counter()
    session.prefill(tokens)
    whole = time.perf_counter() - started
    session.rollback(3)
    for _attempt in range(20):  # a machine so busy that the pass is over before the flag is set: once more
        setter = threading.Timer(share * whole, interrupt.set)
        setter.start()
        started = time.perf_counter()
        try:
            session.prefill(tokens)
        except Interrupted:
            assert list(session.tokens) == [5, 6, 7]
            if time.perf_counter() - started > share * whole / 2:
                break  # it was under way
        else:
            session.rollback(3)
        finally:
            setter.join()
            interrupt.clear()
    else:
        pytest.fail("20 prefills, and none was cancelled in the middle")
    row = session.decode([8]).copy()
    np.testing.assert_allclose(row[0], fresh(model, [5, 6, 7, 8])[-1], atol=ROUNDING)
    session.close()
    model.close()


def test_an_interrupt_that_is_set_stops_everything(small_pair: dict[str, Path]) -> None:
    interrupt = Interrupt()
    model = open_model(small_pair["draft"], Device(), interrupt)
    session = model.session(64)
    interrupt.set()
    for call in (session.decode, session.prefill):
        with pytest.raises(Interrupted):
            call([5, 6])
    assert list(session.tokens) == []
    with pytest.raises(Interrupted):
        open_model(small_pair["target"], Device(), interrupt)
    interrupt.clear()
    assert len(session.decode([5, 6])) == 2
    session.close()
    session.close()
    model.close()
    model.close()


def test_opening_and_closing_leaks_nothing(small_pair: dict[str, Path]) -> None:
    """The draft takes 2.5 MB and its context some more: 60 left behind would be some hundred."""

    def cycle() -> None:
        model = open_model(small_pair["draft"], Device(threads=1), Interrupt())
        session = model.session(512)
        session.decode([5, 6, 7])
        session.close()
        model.close()

    process = psutil.Process()
    for _ in range(10):
        cycle()
    before = process.memory_info().rss
    for _ in range(60):
        cycle()
    assert process.memory_info().rss - before < 60e6
