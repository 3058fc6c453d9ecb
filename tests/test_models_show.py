"""`edgespec models show` and `list` on simulated machines, with the registry alone: no hub is reached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from edgespec.backends import llama_file
from edgespec.errors import ModelFileError
from edgespec.library import Job, fetching, resolve
from edgespec.models import draft_head, registry, runtime_support
from edgespec.models.hub import Pulled
from edgespec.models.memory import Gpu, MachineMemory
from edgespec.models.model_source import Source, resolve_name
from edgespec.terminal import models

from .test_recurrent_state import qwen

GB = 10**9
NAME = "qwen3.8-27b"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the machine have so many GB of free memory, and GPUs with so many; offline, with an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(registry, "own_file", lambda: tmp_path / "none.toml")

    def have(free: float, *gpus: float) -> None:
        found = MachineMemory(int(free * GB), tuple(Gpu(int(each * GB)) for each in gpus))
        monkeypatch.setattr(models, "machine_memory", lambda: found)

    return have


def shown(name: str = NAME) -> dict[str, str]:
    """The lines by their first word."""
    return {line.partition(" ")[0].rstrip(":"): line for line in models.shown(name, 0)}


def test_on_24_gb_of_gpu_memory_all_of_a_27b_is_there(machine: Callable[..., None]) -> None:
    machine(30, 24)
    said = shown()
    assert said["memory"].startswith(
        "memory: weights 17.56 GB + cache 268.4 MB for 4096 tokens + recurrent states 784.5 MB + buffers 576.3 MB = "
        "19.19 GB; 30.00 GB are free, and 24.00 GB on GPUs: it fits"
    )
    assert said["GPU"] == "GPU: all layers of the target"
    assert said["loaded"] == (
        "loaded: 19.03 GB on the GPU (weights, cache, state copies and buffers), 156.9 MB in the CPU's memory"
    )
    assert said["recurrent"].startswith("recurrent state: 156.9 MB a copy; counted: 4 copies to take back")
    assert said["estimate"].startswith("estimate: the file's header was not read")
    assert "what" not in said


def test_on_16_gb_it_says_what_would_fit_instead(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(30, 16)
    said = shown()
    assert said["GPU"] == "GPU: about 80% of the target"
    assert said["what"] == (
        "what would fit wholly onto the GPU: gpt-oss-20b (12.11 GB), gemma-4-12b (6.97 GB), qwen3.5-9b (5.87 GB) or "
        "a coarser quantization of at most 13.95 GB"
    )
    machine(8)
    said = shown()
    assert said["memory"].endswith("it does not fit")
    assert said["what"].startswith("what would fit into memory: gemma-4-12b (6.97 GB), ")
    machine(0.1)
    assert "what" not in shown()


def test_what_this_version_does_not_run_is_said(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(30, 24)
    with monkeypatch.context() as patch:
        patch.setattr(runtime_support, "SUPPORTED", ())
        patch.setattr(runtime_support, "HEADS", frozenset())
        said = shown()
        gemma = shown("gemma-4-12b")
        rows = {line.split()[0]: line for line in models.listed()}
    assert said["head"].startswith("head: in the target's file; not used by this version: ")
    assert said["hybrid"].startswith("hybrid: not run by this version")
    assert gemma["head"].startswith(
        "head: unsloth/gemma-4-12B-it-qat-GGUF mtp-gemma-4-12B-it.gguf  253.7 MB; not used by this version, so it is "
        "not fetched: "
    )
    assert "not run" in rows[NAME]
    assert rows["not"].startswith("not run: a hybrid")
    monkeypatch.setattr(runtime_support, "HEADS", frozenset({"head"}))
    said = shown()
    assert said["head"] == "head: in the target's file; it drafts"
    assert "hybrid" not in said
    assert "not used by this version" in shown("muse-glimmer-30b")["head"], "a head of another kind"
    rows = {line.split()[0]: line for line in models.listed()}
    assert " GPU  " in rows[NAME]
    assert "not" not in rows


def test_the_list_is_by_memory_and_marks_the_newest(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(20, 16)
    lines = list(models.listed())
    known = registry.entries()
    names = [line.split()[0] for line in lines if line.split()[0] in known]
    assert names == sorted(known, key=lambda name: known[name].size)
    rows = {line.split()[0]: line.split("  ") for line in lines}
    fits = {name: [cell.strip() for cell in cells if cell.strip()] for name, cells in rows.items()}
    assert fits["qwen3.5-9b"][3:5] == ["GPU", "*"]
    assert fits["qwen3.6-27b"][3:5] == ["GPU+CPU", "apache-2.0"]
    assert fits["gpt-oss-120b"][3:5] == ["no", "*"]
    machine(20)
    assert next(line for line in models.listed() if line.startswith("qwen3-8b ")).split()[4] == "yes"


def test_a_draft_of_unknown_size_is_said_to_be_so(machine: Callable[..., None]) -> None:
    machine(30)
    assert shown("qwen3.5-27b")["draft"] == "draft   unsloth/Qwen3.5-0.8B-GGUF Q8_0  size unknown  not here"


def test_a_listed_head_that_the_file_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec.models.model_summary import ModelSummary  # noqa: PLC0415
    from edgespec.models.sizes import of_header  # noqa: PLC0415
    from edgespec.terminal import model_facts  # noqa: PLC0415

    head = qwen(64, 6144)
    target = ModelSummary("x", 100, of_header(head, 100), head.vocabulary)
    assert not draft_head.has_head(head)
    (said,) = model_facts._head(target, registry.DraftHead("head"))
    assert said == "head: none in this file, although the registry lists one"


# --- pictures


def test_pictures_are_said_not_to_be_read(
    machine: Callable[..., None], small_pair: dict[str, Path], tmp_path: Path
) -> None:
    machine(30)
    assert shown()["pictures"].startswith("pictures: not read; the model chats in text")
    assert "pictures" not in shown("qwen3-8b")
    target = tmp_path / "model.gguf"
    target.write_bytes(small_pair["target"].read_bytes())
    job = Job()
    assert resolve(target, "none", job).target == target
    assert not job.notices
    assert "pictures" not in shown(str(target))
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF")
    assert resolve(target, "none", job).target == target
    assert [(notice.kind, notice.text) for notice in job.notices] == [("pictures", fetching.PICTURES)]
    assert shown(str(target))["pictures"].startswith("pictures: not read")


def test_an_image_projector_is_no_model(tmp_path: Path) -> None:
    import gguf  # noqa: PLC0415

    path = tmp_path / "vision.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"is an image projector \(mmproj\), not a language model; give the"):
        llama_file.check(path)


# --- checksums and revisions


def test_a_file_that_was_replaced_since_it_was_listed_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    known = resolve_name(NAME)
    assert known is not None
    asked: list[Source] = []

    def pull(digest: str) -> Job:
        def pulled(source: Source, _on_progress: object = None) -> Pulled:
            asked.append(source)
            return Pulled(source.repo, "c", (Path("x"),), (digest,))

        monkeypatch.setattr(Source, "pull", pulled)
        job = Job()
        fetching.pulled(known.target, job)
        return job

    assert [notice.kind for notice in pull("0" * 64).notices] == ["checksum"]
    listed = registry.entries()[NAME].target
    assert not pull(listed.sha256).notices
    job = Job()
    fetching.pull(NAME, job)
    fetching.pull(NAME, job, revision="v2")
    fetching.pull(NAME, job, "UD-Q4_K_M")
    assert [(source.revision, source.file, source.quantization) for source in asked[-3:]] == [
        (listed.revision, listed.file, ""),
        ("v2", listed.file, ""),
        ("", "", "UD-Q4_K_M"),
    ]
    assert [notice.kind for notice in job.notices] == ["pictures"], "once"


def test_the_demo_pair_has_a_name_here_too(machine: Callable[..., None]) -> None:
    machine(8)
    lines = [*models.shown("demo", 0)]
    assert [line.split()[0] for line in lines[:2]] == ["target", "draft"]
    assert "target.gguf" in lines[0]
    assert any("the same" in line for line in models.paired("demo", None))
