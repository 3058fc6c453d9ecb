"""Several draft models as files: named, fitted into memory, opened and lossless, in each engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import edgespec
from edgespec import Device, Interrupt, Runtime, Sampling, Speculation
from edgespec.bench.edgespec_contender import ContenderFactory, is_name
from edgespec.bench.records import OURS, PLAIN
from edgespec.converters import convert
from edgespec.engine import Finished, Text
from edgespec.errors import OptionError
from edgespec.library import Job, resolve
from edgespec.models import fit
from edgespec.models.memory import Gpu, MachineMemory
from edgespec.models.sizes import sizes
from edgespec.runtime.loading import Files

from . import checkpoints
from .commandline import PROMPT, last_error, refused, run
from .small_pair import SMALL_PAIR

Folders = Callable[[str], Path]
BOTH = ("model", "model2")
TEXT = list(range(300, 330))
GB = 1 << 30


@pytest.fixture(scope="module")
def files(
    checkpoint: Path, onnx_folders: Folders, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, tuple[Path, Path, Path]]:
    """By engine: a random target, another random model with its tokens, which is always wrong, and the target again in
    fewer bits."""
    folder = tmp_path_factory.mktemp("several")
    config = {"max_position_embeddings": 2048}
    other = checkpoints.llama(folder / "other", tokenizer="qwen2", padding=4096, dtype="F32", seed=9, config=config)
    gguf = {name: folder / f"{name}.gguf" for name in ("target", "wrong", "right")}
    for source, name, bits in ((checkpoint, "target", "f32"), (other, "wrong", "q8_0"), (checkpoint, "right", "f16")):
        list(convert(source, gguf[name], quantization=bits))
    list(convert(other, folder / "wrong", fmt="onnx", quantization="int8"))
    onnx = onnx_folders("fp32"), folder / "wrong", onnx_folders("int8")
    return {
        "llama": (gguf["target"], gguf["wrong"], gguf["right"]),
        "onnx": onnx,
        "mixed": (onnx[0], gguf["wrong"], onnx[2]),
    }


@pytest.fixture(scope="module", params=["llama", "onnx", "mixed"])
def speaker(request: pytest.FixtureRequest, files: Mapping[str, tuple[Path, Path, Path]]) -> Iterator[Runtime]:
    target, *drafts = files[request.param]
    with edgespec.load(target, drafts, device=Device(context=256, threads=1)) as runtime:
        yield runtime


def said(runtime: Runtime, sampling: Sampling, speculation: Speculation) -> tuple[list[int], Finished]:
    tokens: list[int] = []
    for event in runtime.complete(TEXT, sampling, max_tokens=60, speculation=speculation):
        tokens += event.tokens if isinstance(event, Text) else ()
    assert isinstance(event, Finished)
    assert list(runtime.session.tokens) == [*TEXT, *tokens][:-1], "what was rejected is rolled back"
    return tokens, event


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3)], ids=["0", "0.8"])
def test_two_drafts_of_which_one_is_always_wrong_are_lossless(speaker: Runtime, sampling: Sampling) -> None:
    assert set(BOTH) < set(speaker.drafters)
    plain, _ = said(speaker, sampling, Speculation(k=0))
    for speculation in (Speculation(BOTH, 1), Speculation(BOTH, 4), Speculation(BOTH), Speculation()):
        assert said(speaker, sampling, speculation)[0] == plain
    _, finished = said(speaker, sampling, Speculation(BOTH, 4))
    (wrong, hits), (right, accepted) = (finished.stats.by_drafter[name] for name in BOTH)
    assert min(wrong, right) >= 20
    assert hits == 0
    assert accepted > 0.4 * right


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_two_drafts_that_are_drawn(speaker: Runtime, rule: str) -> None:
    plain, _ = said(speaker, Sampling(), Speculation(k=0))
    assert said(speaker, Sampling(), Speculation(BOTH, 3, rule))[0] == plain
    for k in (3, None):
        tokens, finished = said(speaker, Sampling(temperature=0.8, seed=5), Speculation(BOTH, k, rule))
        assert len(tokens) == 60
    _, finished = said(speaker, Sampling(temperature=0.8, seed=5), Speculation(BOTH, 3, rule))
    assert finished.stats.by_drafter["model2"][1] > finished.stats.by_drafter["model"][1]


# --- names


def test_drafts_are_resolved_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(SMALL_PAIR.drafts[0])
    other = tmp_path / "other.gguf"
    other.write_bytes(SMALL_PAIR.drafts[0].read_bytes())
    assert resolve(SMALL_PAIR.target, [str(SMALL_PAIR.drafts[0]), other], Job()) == Files(
        SMALL_PAIR.target, (SMALL_PAIR.drafts[0], other)
    )
    assert resolve(SMALL_PAIR.target, ["auto"], Job()) == resolve(SMALL_PAIR.target, None, Job())
    assert resolve(SMALL_PAIR.target, ["none"], Job()).drafts == resolve(SMALL_PAIR.target, [], Job()).drafts == ()
    given: list[Sequence[str | Path]] = [
        ["a.gguf", "a.gguf"],
        [SMALL_PAIR.drafts[0], tmp_path / "link.gguf"],
        [str(other), other],
    ]
    for twice in given:
        with pytest.raises(OptionError, match="is given twice; give each draft once"):
            resolve(SMALL_PAIR.target, twice, Job())
    for alone in ("auto", "none"):
        with pytest.raises(OptionError, match=f"draft is {alone} and 1 more; {alone} stands alone"):
            resolve(SMALL_PAIR.target, [other, alone], Job())


def test_the_memory_of_all_drafts_is_counted() -> None:
    target, draft = sizes(SMALL_PAIR.target), sizes(SMALL_PAIR.drafts[0])
    free = MachineMemory(16 * GB)
    none, one, two = (fit.choose(target, drafts, free, fit.Requested()) for drafts in ([], draft, [draft, draft]))
    assert two.needed - one.needed == one.needed - none.needed > 0
    assert fit.plan(SMALL_PAIR.target, [SMALL_PAIR.drafts[0]] * 2).needed == two.needed
    lacking = MachineMemory(one.needed + (200 << 20) + 1000)
    assert fit.choose(target, draft, lacking, fit.Requested()).fits
    assert not fit.choose(target, [draft, draft], lacking, fit.Requested(one.context)).fits


def test_all_drafts_are_wholly_on_the_gpu_or_none() -> None:
    target, draft = sizes(SMALL_PAIR.target), sizes(SMALL_PAIR.drafts[0])

    def placed(room: int, drafts: int, asked: int | None = None) -> fit.Plan:
        free = MachineMemory(16 * GB, (Gpu((400 << 20) + room),))
        return fit.choose(target, [draft] * drafts, free, fit.Requested(256, None, asked))

    alone = next(room for room in range(0, GB, 1 << 18) if placed(room, 1).draft_gpu_layers == fit.ALL)
    assert placed(alone, 2) == placed(alone, 2, 0), "what the first took is free again"
    assert placed(alone, 2).draft_gpu_layers == 0
    assert placed(2 * alone, 2).draft_gpu_layers == fit.ALL
    assert placed(2 * alone, 2, 1).draft_gpu_layers == 1


def test_a_pair_file_with_several_drafts(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(SMALL_PAIR.drafts[0].read_bytes())
    content = {"target": str(SMALL_PAIR.target), "draft": [str(SMALL_PAIR.drafts[0]), "other.gguf"]}
    (tmp_path / "pair.json").write_text(json.dumps(content))
    assert resolve(tmp_path, None, Job()) == Files(SMALL_PAIR.target, (SMALL_PAIR.drafts[0], other))
    shown = run("models", "show", tmp_path).stdout
    assert str(SMALL_PAIR.drafts[0]) in shown
    assert str(other) in shown
    (tmp_path / "pair.json").write_text(json.dumps({**content, "draft": ["other.gguf", 3]}))
    told = last_error(run("chat", tmp_path, "-p", "x"))
    assert "draft is ['other.gguf', 3]; it must be a text or a list of texts" in told


# --- commands


def test_the_bench_has_a_contender_for_each_draft(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(SMALL_PAIR.drafts[0].read_bytes())
    files, device = Files(SMALL_PAIR.target, (SMALL_PAIR.drafts[0], other)), Device(context=256, threads=1)
    assert is_name("model2")
    assert not is_name("model1")
    with ExitStack() as stack:
        factory = ContenderFactory(files, device, Interrupt(), lambda _what, _share: None)
        stack.callback(factory.close)
        for name, used in (("model2", ("model2",)), (OURS, None), ("k=3", None), (PLAIN, ())):
            contender = factory.contender(name)
            stack.callback(contender.close)
            assert contender.runtime.speculation.drafters == used
            assert ("model2" in contender.runtime.drafters) is (name != PLAIN)
            assert (contender.title == "edgespec, model2 only") is (name == "model2")


def test_chat_takes_several_drafts(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(SMALL_PAIR.drafts[0].read_bytes())
    asked = ("--draft", SMALL_PAIR.drafts[0], "--draft", other)
    named = ("--k", "3", "--drafter", "model,model2", "--temp", "0", "--max-tokens", "20", "--stats")
    done = run("chat", *asked, "-p", PROMPT, *named)
    assert done.returncode == 0, done.stderr
    assert "The drafter model2 is" in done.stderr
    assert "model+model2 " in done.stderr, "both guess the same"
    assert "is given twice" in refused(run("chat", *asked, "--draft", other, "-p", PROMPT))


def test_tune_measures_all_drafts(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(SMALL_PAIR.drafts[0].read_bytes())
    done = run("tune", "--draft", SMALL_PAIR.drafts[0], "--draft", other, "--budget", "1", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert all(len(each["steps"]) == 2 for each in json.loads(done.stdout)["measured"])
