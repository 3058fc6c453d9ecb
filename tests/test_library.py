"""`edgespec.load` of names, repositories, checkpoints and files: what the commands do, without a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub.utils import logging

import edgespec
from edgespec import Device, Interrupt, Notice, Progress, Wanted
from edgespec.converters import convert
from edgespec.errors import ConversionError, HubError, Interrupted, MissingPackage, ModelFileError, OptionError
from edgespec.library import fetching
from edgespec.models import fit, registry
from edgespec.models.memory import MachineMemory

from . import checkpoints
from .hubserver import StandIn, serving
from .small_pair import SMALL_PAIR

TARGET = SMALL_PAIR.target.read_bytes()
DRAFT = SMALL_PAIR.drafts[0].read_bytes()
SMALL = Device(256, 1)
PAIR = """
[tiny]
target = { repo = "org/tiny-GGUF", file = "tiny-Q8_0.gguf", size = 17000000 }
draft = { repo = "org/tinier-GGUF", file = "tinier-Q8_0.gguf", size = 2600000 }
"""

Seen = list[Progress | Notice]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A hub with a pair that the registry knows; its cache is empty."""
    (tmp_path / "models.toml").write_text(PAIR)
    monkeypatch.setattr(registry, "own_file", lambda: tmp_path / "models.toml")
    repos = {"org/tiny-GGUF": {"tiny-Q8_0.gguf": TARGET}, "org/tinier-GGUF": {"tinier-Q8_0.gguf": DRAFT}}
    with serving(repos) as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.endpoint)
        url = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
        yield hub


def fetched(tmp_path: Path) -> list[str]:
    """The models in the hub's cache."""
    return sorted(path.name for path in (tmp_path / "hub").rglob("*.gguf"))


def kinds(seen: Seen) -> list[str]:
    return [each.kind for each in seen if isinstance(each, Notice)]


def stages(seen: Seen) -> set[str]:
    return {each.stage for each in seen if isinstance(each, Progress)}


def answer(runtime: edgespec.Runtime) -> str:
    events = runtime.complete("I need a table", max_tokens=8)
    return "".join(event.text for event in events if isinstance(event, edgespec.Text))


# --- names and repositories


def test_a_name_is_fetched_with_its_draft_and_then_asks_nobody(hub: StandIn, tmp_path: Path) -> None:
    seen: Seen = []
    before = logging.get_verbosity()
    with edgespec.load("tiny", device=SMALL, on_progress=seen.append) as runtime:
        assert runtime.drafters == ("lookup", "model")
        assert answer(runtime).strip()
    assert logging.get_verbosity() == before, "the hub's package is the app's again"
    assert fetched(tmp_path) == ["tinier-Q8_0.gguf", "tiny-Q8_0.gguf"]
    steps = [each for each in seen if isinstance(each, Progress) and each.what == "tiny-Q8_0.gguf"]
    assert (steps[-1].stage, steps[-1].done, steps[-1].total) == ("fetch", len(TARGET), len(TARGET))
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert kinds(seen) == []
    asked = len(hub.asked)
    for allowed in (True, False):
        with edgespec.load("tiny", device=SMALL, fetch=allowed) as runtime:
            assert runtime.drafters == ("lookup", "model")
    assert len(hub.asked) == asked


def test_a_repository_with_a_quantization(hub: StandIn, tmp_path: Path) -> None:
    hub.repos["org/both"] = {"b-Q4_K_M.gguf": DRAFT, "b-Q8_0.gguf": TARGET}
    for name in ("org/both:q8_0", "hf.co/org/both:q8_0"):
        with edgespec.load(name, "none", device=SMALL) as runtime:
            assert runtime.drafters == ("lookup", "recycling")
    assert fetched(tmp_path) == ["b-Q8_0.gguf"]
    with edgespec.load(SMALL_PAIR.target, "org/both:q4_k_m", device=SMALL) as runtime:
        assert runtime.drafters == ("lookup", "model")


def no_engine() -> None:
    raise MissingPackage("llama-cpp-python cannot be loaded")


def test_a_draft_of_its_family_is_found_on_the_hub(hub: StandIn, tmp_path: Path) -> None:
    hub.repos |= {
        "a/Talk-7B-GGUF": {"t-Q4_K_M.gguf": TARGET + bytes(10_000_000)},
        "a/Talk-0.5B-GGUF": {"d-Q4_K_M.gguf": DRAFT},
    }
    asked: list[Wanted] = []

    def allow(wanted: Wanted) -> bool:
        asked.append(wanted)
        return len(asked) > 1

    with pytest.MonkeyPatch.context() as without:
        without.setattr(fetching, "bindings", no_engine)
        with pytest.raises(MissingPackage):
            edgespec.load("a/Talk-7B-GGUF", device=SMALL, fetch=allow)
    assert asked == [], "without its engine the file would come in vain"
    with pytest.raises(OptionError, match="nothing was fetched") as refused:
        edgespec.load("a/Talk-7B-GGUF", device=SMALL, fetch=allow)
    assert "\n" not in str(refused.value)
    assert fetched(tmp_path) == []
    seen: Seen = []
    with edgespec.load("a/Talk-7B-GGUF", device=SMALL, fetch=allow, on_progress=seen.append) as runtime:
        assert runtime.drafters == ("lookup", "model")
        assert kinds(seen) == ["draft"]
        assert runtime.notices == [each.text for each in seen if isinstance(each, Notice)]
    size = len(TARGET) + 10_000_000 + len(DRAFT)
    assert replace(asked[0], room=0) == replace(asked[1], room=0), "but for the memory that is free"
    assert (asked[0].size, asked[0].weights, asked[0].folder) == (size, size, tmp_path / "hub")
    assert asked[0].what == "a/Talk-7B-GGUF t-Q4_K_M.gguf and a/Talk-0.5B-GGUF d-Q4_K_M.gguf"


def test_without_fetching_no_hub_is_asked(hub: StandIn, tmp_path: Path) -> None:
    for name in ("tiny", "org/tiny-GGUF:q8_0", "org/unknown"):
        with pytest.raises(OptionError, match="is not here, and fetching is off"):
            edgespec.load(name, device=SMALL, fetch=False)
    assert hub.asked == []
    edgespec.load("tiny", "none", device=SMALL).close()
    asked, seen = len(hub.asked), Seen()
    with edgespec.load("tiny", device=SMALL, fetch=False, on_progress=seen.append) as runtime:
        assert runtime.drafters == ("lookup", "recycling")
        assert kinds(seen) == ["no-draft"]
        assert "org/tinier-GGUF tinier-Q8_0.gguf is not here, and fetching is off" in runtime.notices[0]
    assert len(hub.asked) == asked
    wrong: Any = "yes"
    with pytest.raises(OptionError, match="fetch is 'yes'"):
        edgespec.load("tiny", fetch=wrong)


def test_a_draft_that_is_not_to_be_had_is_left_out(hub: StandIn) -> None:
    del hub.repos["org/tinier-GGUF"]
    seen: Seen = []
    with edgespec.load("tiny", device=SMALL, on_progress=seen.append) as runtime:
        assert runtime.drafters == ("lookup", "recycling")
        assert kinds(seen) == ["no-draft"]
        assert runtime.notices[0].startswith("The draft model is left out: org/tinier-GGUF is not at http")


def test_offline_only_the_cache_answers(hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE forbids") as caught:
        edgespec.load("tiny", device=SMALL)
    assert "\n" not in str(caught.value)
    assert hub.asked == []


def test_paths_ask_no_hub(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("org/tiny-GGUF"), Path("tiny"), "missing.gguf", tmp_path / "none", "a\0.gguf"):
        with pytest.raises(ModelFileError):
            edgespec.load(path, device=SMALL)
    with pytest.raises(ModelFileError):
        edgespec.load(SMALL_PAIR.target, Path("tiny"), device=SMALL)
    with pytest.raises(OptionError, match="none of that name is known"):
        edgespec.load("tinyy", device=SMALL)
    with pytest.raises(OptionError, match=r"model is None; give a file.*demo"):
        edgespec.load()
    edgespec.load(SMALL_PAIR.target, device=SMALL).close()
    assert hub.asked == []


# --- giving up


def test_an_interrupt_ends_a_fetch_which_goes_on_later(hub: StandIn, tmp_path: Path) -> None:
    interrupt = Interrupt()

    def stop(seen: Progress | Notice) -> None:
        if isinstance(seen, Progress) and seen.done > len(TARGET) // 2:
            interrupt.set()

    with pytest.raises(Interrupted):
        edgespec.load("tiny", "none", device=SMALL, interrupt=interrupt, on_progress=stop)
    assert fetched(tmp_path) == []
    (part,) = (tmp_path / "hub").rglob("*.edgespec-part")
    half = part.stat().st_size
    assert len(TARGET) // 2 < half < len(TARGET)
    edgespec.load("tiny", "none", device=SMALL).close()
    assert hub.gets("tiny-Q8_0.gguf") == ["", f"bytes={half}-"]
    with pytest.raises(Interrupted):
        edgespec.load("tiny", device=SMALL, interrupt=interrupt)


def test_an_interrupt_ends_a_conversion_and_leaves_nothing(own_cache: Path, tmp_path: Path) -> None:
    source, interrupt = checkpoints.llama(tmp_path / "source", tokenizer="qwen2"), Interrupt()

    def stop(seen: Progress | Notice) -> None:
        if isinstance(seen, Progress) and seen.stage == "convert" and seen.done > seen.total // 3:
            assert list((own_cache / "converted").iterdir()), "it is under way"
            interrupt.set()

    with pytest.raises(Interrupted) as caught:
        edgespec.load(source, device=SMALL, interrupt=interrupt, on_progress=stop)
    assert list((own_cache / "converted").iterdir()) == [], f"while {caught.value!r} is held, and its traceback"


# --- checkpoints and files


def test_a_checkpoint_is_converted_once(own_cache: Path, tmp_path: Path) -> None:
    source, seen = checkpoints.llama(tmp_path / "source", tokenizer="qwen2"), Seen()
    with edgespec.load(str(source), device=SMALL, on_progress=seen.append) as runtime:
        assert kinds(seen)[0] == "convert"
        assert runtime.notices[0].startswith(f"{source} is a checkpoint, so it is converted to q8_0, once, into")
    assert stages(seen) == {"convert", "measure"}
    (made,) = (own_cache / "converted").iterdir()
    written = made.stat().st_mtime_ns
    again: Seen = []
    with edgespec.load(source, source, device=SMALL, on_progress=again.append) as runtime:
        assert runtime.drafters == ("lookup", "model")
        assert runtime.notices == []
    assert "convert" not in stages(again)
    assert made.stat().st_mtime_ns == written
    (source / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ConversionError) as caught:
        edgespec.load(source, device=SMALL)
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_is_made_to_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = fit.plan(SMALL_PAIR.target, SMALL_PAIR.draft).needed
    monkeypatch.setattr(fit, "machine_memory", lambda: MachineMemory((200 << 20) + needed - (4 << 20)))
    seen: Seen = []
    with edgespec.load(SMALL_PAIR.target, device=Device(threads=1), on_progress=seen.append) as runtime:
        assert 512 <= runtime.context < 2048
        assert kinds(seen) == ["context"]
        (notice,) = runtime.notices
        assert notice.startswith(f"The context is {runtime.context} tokens")
    with edgespec.load(SMALL_PAIR.target, device=Device(512, 1)) as runtime:
        assert (runtime.context, runtime.notices) == (512, [])
    with pytest.raises(OptionError, match="a context of 1000000 tokens takes"):
        edgespec.load(SMALL_PAIR.target, device=Device(1_000_000))


def test_a_draft_of_another_vocabulary(tmp_path: Path) -> None:
    list(convert(checkpoints.llama(tmp_path / "source"), tmp_path / "draft.gguf", fmt="gguf", quantization="q8_0"))
    (tmp_path / "m.gguf").symlink_to(SMALL_PAIR.target)
    seen: Seen = []
    with edgespec.load(tmp_path / "m.gguf", device=SMALL, on_progress=seen.append) as runtime:
        assert runtime.drafters == ("lookup", "recycling")
        (notice,) = runtime.notices
        assert "found beside the model, is left out" in notice
        assert [each.text for each in seen if isinstance(each, Notice)] == [notice]
    with edgespec.load(tmp_path / "m.gguf", tmp_path / "draft.gguf", device=SMALL) as runtime:
        assert runtime.drafters == ("lookup", "cross-vocabulary")
        assert runtime.notices == ["The draft model has a vocabulary of its own, so it drafts through text."]


def test_what_listens_may_fail_and_nothing_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(convert(checkpoints.llama(tmp_path / "source"), tmp_path / "draft.gguf", fmt="gguf", quantization="q8_0"))
    (tmp_path / "m.gguf").symlink_to(SMALL_PAIR.target)
    closed: list[bool] = []
    close = edgespec.Runtime.close

    def noted(self: edgespec.Runtime) -> None:
        closed.append(True)
        close(self)

    monkeypatch.setattr(edgespec.Runtime, "close", noted)

    def fails(seen: Progress | Notice) -> None:
        if isinstance(seen, Notice):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        edgespec.load(tmp_path / "m.gguf", device=SMALL, on_progress=fails)
    assert closed == [True]


# --- events


def test_events_are_plain_values(small_pair: dict[str, Path]) -> None:
    with edgespec.load(small_pair["target"], device=SMALL, speculation=edgespec.Speculation(k=2)) as runtime:
        events = list(runtime.complete("I need a table for two", max_tokens=12))
    told = [edgespec.as_json(event) for event in events]
    assert [json.loads(json.dumps(each)) for each in told] == told, "nothing is changed by JSON"
    started, *texts, finished = told
    assert started == {"event": "started", "prompt": started["prompt"], "cached": 0, "dropped": 0}
    assert sum(len(text["tokens"]) for text in texts) == 12 == finished["stats"]["tokens"]
    assert sum(text["accepted"] for text in texts) == finished["stats"]["accepted"]
    assert (finished["reason"], finished["notices"]) == ("length", [])


def test_the_demo_pair_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with edgespec.load("demo") as runtime:
        assert "model" in runtime.drafters
    (tmp_path / "demo").mkdir()
    with pytest.raises(edgespec.EdgespecError, match="demo"):
        edgespec.load("demo")
