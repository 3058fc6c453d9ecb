"""Heads and PARD drafts that others published: what is listed, what is said of them, and that they are fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgespec.backends.gguf_header import header
from edgespec.backends.onnx_head import read_head
from edgespec.cli import app
from edgespec.errors import EdgespecError
from edgespec.models import listing, public_drafts, registry
from edgespec.models.public_drafts import PublicDraft
from edgespec.terminal import models as terminal
from edgespec.terminal import public_drafts as lines

from . import checkpoints, eagle3_heads, torch_files
from .hubserver import StandIn, serving
from .small_pair import SMALL_PAIR

DEMO = SMALL_PAIR.target
KINDS = {"eagle", "eagle3", "medusa", "pard"}


def test_what_ships_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "own_file", lambda: tmp_path / "none.toml")
    known, found = registry.entries(), public_drafts.entries()
    assert {draft.kind for draft in found} == KINDS
    assert len({(draft.repo, draft.file) for draft in found}) == len(found) > 35
    for draft in found:
        assert all((draft.made_for, draft.verified)), draft.repo
        assert listing.split_name(draft.repo) == (draft.repo, "")
        assert not set(draft.targets) - known.keys(), draft.repo
        assert all(draft.share(known[name].target.size) < 0.8 for name in draft.targets), draft.repo


def test_a_head_is_listed_with_its_price_and_the_way_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    said = list(terminal.shown("qwen3-4b", 0))
    start = said.index("heads and PARD drafts that others published, of which none was fetched or tried here:")
    assert said[start + 1 : start + 4] == [
        "  eagle3  AngelSlim/Qwen3-4B_eagle3  436.9 MB  a guess reads 199 M weights, 8% of the target's bytes",
        "          edgespec convert AngelSlim/Qwen3-4B_eagle3 --for qwen3-4b --out qwen3-4b.eagle3.gguf",
        f"          verified: {public_drafts.made_for('qwen3-4b')[0].verified}",
    ]
    assert said[start + 4].startswith("  pard    amd/PARD-Qwen3-0.6B  size unknown  a pass, for several guesses, reads")
    assert said[start + 5].split() == ["edgespec", "convert", "amd/PARD-Qwen3-0.6B", "--out", "qwen3-4b.pard.gguf"]
    assert not any("others published" in line for line in terminal.shown("qwen3.5-9b", 0))


@pytest.mark.parametrize("name", ["FasterDecoding/medusa-vicuna-7b-v1.3", "hf.co/FasterDecoding/medusa-vicuna-7b-v1.3"])
def test_its_own_repository_is_shown_without_a_request(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    said = list(terminal.shown(name, 0))
    assert said[0].startswith("medusa  FasterDecoding/medusa-vicuna-7b-v1.3  size unknown  a pass, for several guesses")
    assert said[1] == "made for: lmsys/vicuna-7b-v1.3"
    assert said[2].endswith("medusa-vicuna-7b-v1.3 --for TARGET --out medusa-vicuna-7b-v1.3.medusa.onnx")
    assert said[3].endswith("it was neither fetched nor tried here")


def test_files_of_the_right_format_are_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = PublicDraft("o/n-GGUF", "eagle3", "o/n", ("a",), "nothing", file="h.gguf", reads=1600)
    assert ready.share(3400) == 0.5, "8 bits each, and a scale of 16 for each 32"
    assert lines._command(ready, "a") == "edgespec chat a --draft hf.co/o/n-GGUF/blob/main/h.gguf"
    monkeypatch.setattr(lines, "DRAFTERS", ("pard",))
    assert "no drafter eagle3" in lines._command(ready, "a")
    assert public_drafts.in_repository("ggml-org/gpt-oss-20b-GGUF") is None, "a model, with a head beside it"


# --- fetched by `convert`


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    folder = tmp_path_factory.mktemp("heads")
    target = header(DEMO)
    width, tokens = target.number("embedding_length"), target.vocabulary.size
    config = eagle3_heads.config(hidden_size=width, num_attention_heads=4, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    made = eagle3_heads.tensors(config, {"hidden": width, "vocabulary": tokens})
    eagle3 = eagle3_heads.write(folder / "eagle3", config, made)
    draw = np.random.default_rng(0)
    medusa = {
        "0.0.linear.weight": draw.standard_normal((width, width)).astype(np.float32),
        "0.0.linear.bias": np.zeros(width, np.float32),
        "0.1.weight": draw.standard_normal((tokens, width)).astype(np.float32),
    }
    checkpoint = checkpoints.llama(folder / "model")
    repos = {
        "org/eagle3": {path.name: path.read_bytes() for path in eagle3.iterdir()},
        "org/medusa": {"config.json": json.dumps({"medusa_num_heads": 2}).encode(), "README.md": b"a card",
                       "medusa_lm_head.pt": torch_files.saved(medusa)},
        "org/empty": {"config.json": b"{}", "weights.npz": b"x" * 2000},
        "org/tiny-GGUF": {"tiny-Q8_0.gguf": DEMO.read_bytes()},
        "org/model": {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.is_file()},
    }  # fmt: skip
    with serving(repos) as hub:
        yield hub


@pytest.fixture(autouse=True)
def home(stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, the stand-in as the hub, and a registry that knows its target."""
    own = tmp_path / "models.toml"
    own.write_text('[tiny]\ntarget = { repo = "org/tiny-GGUF", file = "tiny-Q8_0.gguf", size = 17000000 }\n')
    monkeypatch.setattr(registry, "own_file", lambda: own)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", stand_in.endpoint)
    url = stand_in.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_head_is_fetched_and_converted_for_a_target_by_name(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("convert", "org/eagle3", "--for", "tiny", "--out", tmp_path / "head.gguf")
    assert done.exit_code == 0, done.stderr
    assert "org/eagle3" in done.stderr
    assert header(tmp_path / "head.gguf").architecture == "eagle3"
    assert stand_in.gets("tiny-Q8_0.gguf"), "the target of the registry was fetched"
    before = len(stand_in.asked)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    done = run("convert", "org/eagle3", "--for", "tiny", "--out", tmp_path / "again.gguf")
    assert done.exit_code == 0, done.stderr
    assert len(stand_in.asked) == before
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    done = run("convert", "org/medusa", "--for", DEMO, "--out", tmp_path / "head.onnx")
    assert done.exit_code == 0, done.stderr
    assert read_head(tmp_path / "head.onnx").heads == 1
    assert not stand_in.gets("README.md"), "the weights and the config only"


def test_what_is_no_head_is_said_on_one_line(tmp_path: Path) -> None:
    for source, target, words in (
        ("org/empty", str(DEMO), "org/empty holds no head: expected medusa_lm_head.safetensors"),
        ("org/missing", str(DEMO), "org/missing"),
        ("org/eagle3", "tinny", r"no model at tinny, .*\(did you mean tiny\?\)"),
        ("org/eagle3", "org/model", "the head reads|for another|numbers|vocabulary|hidden"),
        ("org/model", str(DEMO), "holds no head of a known kind"),
    ):
        done = run("convert", source, "--for", target, "--out", tmp_path / "head.gguf")
        assert isinstance(done.exception, EdgespecError), done
        assert re.search(words, str(done.exception)), done.exception
        assert "\n" not in str(done.exception)
    assert not list(tmp_path.glob("head*"))


def test_the_choice_of_files_of_a_head() -> None:
    def chosen(*names: str) -> list[str]:
        files = tuple(listing.RemoteFile(name, 1) for name in names)
        return [file.name for file in listing.head(listing.Listing("o/n", "c", files))]

    assert chosen("model.safetensors", "medusa_lm_head.safetensors", "config.json", "tokenizer.json") == [
        "config.json",
        "medusa_lm_head.safetensors",
    ]
    assert chosen("pytorch_model.bin") == ["pytorch_model.bin"]
    parts = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    assert chosen(*parts, "model.safetensors.index.json") == ["model.safetensors.index.json", *parts]
