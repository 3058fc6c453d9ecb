"""GGUF models with a recurrent state: any steps, whole runtimes, what is refused, and what they need of memory."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from pathlib import Path

import pytest

from edgespec import Sampling, Speculation
from edgespec.backends import llama, recurrent_state
from edgespec.backends.gguf_header import header
from edgespec.backends.recurrent_state import Copies, state_bytes
from edgespec.engine import Finished, Text
from edgespec.errors import EngineError, ModelFileError, OptionError
from edgespec.models.fit import Requested, choose, longest
from edgespec.models.memory import Gpu, MachineMemory
from edgespec.models.sizes import Layer, Sizes, sizes
from edgespec.testing import check_model
from edgespec.tools.check import check

from . import hybrids
from .hybrid_cases import TEXT, WITH_SNAPSHOTS, WORDS, all_files, opened, runtime
from .hybrid_steps import ROUNDING, random_steps


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return all_files(tmp_path_factory.mktemp("hybrids"))


@pytest.fixture
def few_snapshots(monkeypatch: pytest.MonkeyPatch) -> int:
    """As many as for a large model: tiny ones have 32."""
    monkeypatch.setattr(recurrent_state, "_OF_SMALL", 3)
    return 3


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
