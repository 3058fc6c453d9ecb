"""Loading what fits: what the plan makes of the options, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from edgespec.backends import Device
from edgespec.controller.calibration import Share
from edgespec.errors import OptionError
from edgespec.library import Job, Wanted, fetching, fitted, open_model_files
from edgespec.models import fit
from edgespec.models.hub import Pulled
from edgespec.models.memory import Gpu, MachineMemory
from edgespec.models.model_source import Source
from edgespec.models.model_summary import of_path
from edgespec.models.sizes import sizes
from edgespec.prices import Prices
from edgespec.runtime.loading import Files
from edgespec.runtime.speculation import Speculation
from edgespec.terminal.expected_speedup import speedup_lines
from edgespec.terminal.models import planned
from edgespec.terminal.terminal_job import terminal_job

MB = 1 << 20


@pytest.fixture
def having(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the machine have so much memory, and GPUs with so much."""

    def have(free: int, gpus: Sequence[int] = ()) -> None:
        found = MachineMemory(free, tuple(map(Gpu, gpus)))
        monkeypatch.setattr(fit, "machine_memory", lambda: found)
        monkeypatch.setattr("edgespec.terminal.models.machine_memory", lambda: found)

    return have


@pytest.fixture
def pair(small_pair: dict[str, Path]) -> Files:
    return Files(small_pair["target"], (small_pair["draft"],))


def said(job: Job) -> list[tuple[str, str]]:
    """The notices since the last call."""
    notices = [(notice.kind, notice.text) for notice in job.notices]
    job.notices.clear()
    return notices


def test_where_all_fits_nothing_is_said(pair: Files, having: Callable[..., None]) -> None:
    job = Job()
    having(1000 * MB)
    assert fitted(pair, Device(threads=1), job) == Device(threads=1, draft_gpu_layers=-1)
    having(1000 * MB, [1000 * MB])
    assert fitted(pair, Device(), job) == Device(draft_gpu_layers=-1)
    assert fitted(replace(pair, drafts=()), Device(), job) == Device(draft_gpu_layers=-1)
    assert said(job) == []


def test_what_is_less_than_hoped_for_is_said(pair: Files, having: Callable[..., None]) -> None:
    target, (draft,), job = pair.target, pair.drafts, Job()
    needed = fit.choose(sizes(target), sizes(draft), MachineMemory(1000 * MB), fit.Requested()).needed
    having(200 * MB + needed - 4 * MB)
    device = fitted(pair, Device(), job)
    assert 512 <= device.context < 2048
    shorter = f"The context is {device.context} tokens, for memory has room for no more; --ctx N insists on N."
    assert said(job) == [("context", shorter)]
    assert fitted(pair, Device(2048), job).context == 2048
    ((kind, text),) = said(job)
    assert kind == "memory"
    assert text.startswith("The model does not fit: 4.2 MB of memory are lacking")
    having(1000 * MB, [400 * MB + 45 * MB])
    device = fitted(pair, Device(), job)
    assert device.draft_gpu_layers == -1
    assert 0 < device.gpu_layers < 5
    assert said(job) == [("layers", f"{device.gpu_layers} of 5 layers fit on the GPU; the CPU runs the rest.")]
    fitted(pair, Device(gpu_layers=device.gpu_layers), job, anywhere=False)
    fitted(pair, Device(exact=2), job)
    assert said(job) == [], "that was asked for"
    having(1000 * MB, [410 * MB])
    assert fitted(pair, Device(), job).gpu_layers == 0
    assert said(job) == [("layers", "No layer fits on the GPU; the CPU runs the rest.")]


def test_what_is_asked_for_is_not_changed(pair: Files, having: Callable[..., None], tmp_path: Path) -> None:
    having(1000 * MB, [445 * MB])
    asked = Device(1024, gpu_layers=1, draft_gpu_layers=0)
    assert fitted(pair, asked, Job(), anywhere=False) == asked
    having(1000 * MB, [420 * MB])
    with pytest.raises(OptionError, match="give fewer --gpu-layers"):
        fitted(pair, Device(), Job(), anywhere=False)
    exact = fitted(pair, Device(exact=4), Job())
    assert (exact.gpu_layers, exact.draft_gpu_layers) == (0, 0), "bits are the same on the CPU alone"
    with pytest.raises(OptionError, match=r"a context of 1000000 tokens"):
        fitted(pair, Device(1_000_000), Job())
    for path in (tmp_path / "none.gguf", tmp_path, Path("\0")):
        assert fitted(Files(path), Device(7), Job()) == Device(7), "told when it is opened"


def test_a_draft_has_layers_of_its_own(small_pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert Device(5, 2, 3, 4).of_draft(small_pair["draft"]) == Device(5, 2, 3, drafts=True)
    assert Device(5, 2, 3, 4, draft_gpu_layers=0).of_draft(small_pair["draft"]).gpu_layers == 0
    with pytest.raises(OptionError, match="draft_gpu_layers is -2"):
        Device(draft_gpu_layers=-2)
    with pytest.raises(OptionError, match="gpu_layers is 9"):
        open_model_files(
            Files(small_pair["target"], (small_pair["draft"],)),
            Device(256, 1, 0, draft_gpu_layers=9),
            Speculation(),
            Job(),
        )


def test_plans_in_words(small_pair: dict[str, Path], having: Callable[..., None]) -> None:
    target, draft = of_path(small_pair["target"]), of_path(small_pair["draft"])

    def words(context: int = 0) -> str:
        return "\n".join(planned(target, [draft], fit.Requested(context)))

    having(1000 * MB)
    assert words().endswith("= 66.5 MB; 1.05 GB are free: it fits")
    having(200 * MB + 50_000_000)
    assert re.search(r"it does not fit\nto do: \d+\.\d [kM]B are", words())
    assert "memory: it does not fit: a context of 1000000 tokens takes" in words(1_000_000)
    having(200 * MB + 62_000_000)
    assert "context: 1" in words()
    having(1000 * MB, [445 * MB])
    assert "and 466.6 MB on GPUs: it fits\nGPU: 1 of 5 layers of the target, all layers of the draft" in words()
    target = replace(target, sizes=replace(target.sizes, cache=None, layers=()))
    said = (
        "memory: weights 18.3 MB, and a cache of unknown size for 2048 tokens; 1.05 GB are free, and 466.6 MB on GPUs"
    )
    assert words() == f"{said}: its weights fit"


def test_what_a_pair_promises() -> None:
    prices, drafting = Prices.of({16: [0.010, 0.011, 0.012, 0.013]}), Prices.of({16: [0.001, 0.001]})
    fresh = list(speedup_lines(prices, drafting, None))
    assert fresh[0] == "price: a plain step takes 10.0 ms, a step of the draft 1.0: 0.10 of it"
    assert fresh[2] == "   50%  1.25x at K = 1"  # 1.5 tokens for 12 ms, 1.75 for 14
    assert fresh[-1].startswith("measured here: too few guesses")
    learned = list(speedup_lines(prices, drafting, Share(0.7, 200)))
    assert learned[-1].startswith("measured here: 70% of the draft's first guesses were accepted, which means 1.")
    assert list(speedup_lines(prices, drafting, Share(0.7, 10)))[-1].startswith("measured here: too few guesses")
    assert list(speedup_lines(prices, drafting, Share(0.01, 200)))[-1].startswith(
        "better: the draft is rejected too often"
    )
    disturbed = Prices.of({16: [1e-5, 0.011, 0.012, 0.013]})
    (said,) = speedup_lines(disturbed, drafting, Share(0.7, 200))
    assert said.startswith("speedup: the known prices are implausible")
    dear = Prices.of({16: [0.004, 0.004]})
    assert list(speedup_lines(prices, dear, None))[-1].startswith("better: the draft is slow for this target")


def test_what_memory_cannot_hold_is_told_before_it_is_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("edgespec.models.memory.machine_memory", lambda: MachineMemory(700 * MB, (Gpu(700 * MB),)))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(fetching, "pulled", lambda source, _job: Pulled(source.repo, "c", (tmp_path / source.file,)))
    room = 800 * MB
    target, draft = Source("a/b", "t.gguf", "", room - 5), Source("a/c", "d.gguf", "", 5)
    asked: list[Wanted] = []

    def allow(wanted: Wanted) -> bool:
        asked.append(wanted)
        return True

    job = Job(allow)
    assert fetching.fetched(target, draft, job) == (tmp_path / "t.gguf", tmp_path / "d.gguf")
    assert asked == [Wanted("a/b t.gguf and a/c d.gguf", room, tmp_path, room, room)]
    with terminal_job() as job:
        fetching.fetched(target, draft, job)
        assert capsys.readouterr().err == (
            f"Not here yet, so it is fetched into {tmp_path}, 838.9 MB: a/b t.gguf and a/c d.gguf\n"
        )
        fetching.fetched(target, replace(draft, size=6), job)
    assert "It has 838.9 MB, more than the 838.9 MB of free memory" in capsys.readouterr().err
