"""Layers of a GGUF file as the draft of the whole: the target is unchanged, the draft is its first layers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import edgespec
from edgespec import Device, Interrupt, Sampling, Speculation
from edgespec.backends import open_model
from edgespec.backends.gguf_header import header
from edgespec.cli import app
from edgespec.converters import convert, exit_layer
from edgespec.engine import Text
from edgespec.errors import ConversionError, EdgespecError, OptionError
from edgespec.types import Floats

from . import checkpoints

TEXT = [5 + 7 * n % 250 for n in range(20)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    list(convert(checkpoints.llama(folder / "source", layers=4), folder / "whole.gguf", quantization="f16"))
    return folder / "whole.gguf"


@pytest.fixture(scope="module")
def cut(whole: Path) -> Path:
    list(exit_layer.split(whole, whole.with_name("cut"), 2))
    return whole.with_name("cut")


def rows(path: Path, text: Sequence[int] = TEXT) -> Floats:
    model = open_model(path, Device(), Interrupt())
    with closing(model), closing(model.session(64)) as session:
        return session.decode(text).copy()


def test_the_target_is_the_same(whole: Path, cut: Path) -> None:
    assert np.array_equal(rows(cut / "target-00001-of-00003.gguf"), rows(whole))


def test_the_draft_is_the_first_layers(whole: Path, cut: Path, tmp_path: Path) -> None:
    shorter = checkpoints.llama(tmp_path / "shorter", layers=4)
    config = (shorter / "config.json").read_text().replace('"num_hidden_layers": 4', '"num_hidden_layers": 2')
    (shorter / "config.json").write_text(config)
    path = shorter / "model.safetensors"
    found = {
        name: each
        for name, each in checkpoints_of(path).items()
        if ".layers.2." not in name and ".layers.3." not in name
    }
    checkpoints.write_safetensors(path, found)
    list(convert(shorter, tmp_path / "shorter.gguf", quantization="f16"))
    expected = rows(tmp_path / "shorter.gguf")
    assert np.array_equal(rows(cut / "draft-00001-of-00002.gguf"), expected)
    list(exit_layer.keep(whole, tmp_path / "kept.gguf", "0-1"))
    assert np.array_equal(rows(tmp_path / "kept.gguf"), expected)


def checkpoints_of(path: Path) -> dict[str, checkpoints.Raw]:
    from edgespec.converters.checkpoint import header as tensors  # noqa: PLC0415

    content = path.read_bytes()
    return {name: (each.dtype, each.shape, content[each.offset : each.offset + each.nbytes])
            for name, each in tensors(path).items()}  # fmt: skip


def test_weights_are_on_the_disk_once(cut: Path) -> None:
    assert (cut / "draft-00002-of-00002.gguf").samefile(cut / "target-00002-of-00003.gguf")


def test_the_first_and_last_layers(whole: Path, tmp_path: Path) -> None:
    list(exit_layer.keep(whole, tmp_path / "ends.gguf", "0,3"))
    kept = header(tmp_path / "ends.gguf")
    assert kept.layers == 2
    assert kept.fields["edgespec.layers_kept"] == "0,3"
    assert {name for name in kept.tensors if name.endswith("attn_q.weight")} == {
        "blk.0.attn_q.weight",
        "blk.1.attn_q.weight",
    }
    assert not np.array_equal(rows(tmp_path / "ends.gguf"), rows(whole))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=2)])
def test_it_drafts_as_exit(sampling: Sampling, cut: Path) -> None:
    with edgespec.load(cut, device=Device(context=128, threads=1)) as runtime:
        assert runtime.drafters == ("lookup", "exit")

        def answer(speculation: Speculation) -> list[int]:
            events = runtime.complete(TEXT, sampling, max_tokens=24, speculation=speculation)
            return [token for event in events if isinstance(event, Text) for token in event.tokens]

        plain = answer(Speculation((), k=0))
        for k in (1, 4, None):
            assert answer(Speculation(("exit",), k=k)) == plain


def test_the_command(whole: Path, tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["convert", str(whole), "--exit-layer", "1", "--out", str(tmp_path / "cut")])
    assert made.exit_code == 0, made.output
    asked = ["chat", str(tmp_path / "cut"), "--drafter", "exit", "-p", "x", "--max-tokens", "5", "--ctx", "128"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    kept = ["convert", str(whole), "--keep-layers", "0-1,3", "--out", str(tmp_path / "kept.gguf")]
    assert CliRunner().invoke(app, kept).exit_code == 0
    both = CliRunner().invoke(app, [*kept, "--exit-layer", "1"])
    assert both.exit_code != 0


@pytest.mark.parametrize("layer", [0, 4, -1, 100])
def test_layers_that_are_not_there(layer: int, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"the exit layer is {layer}; .* has 4 layers"):
        exit_layer.split(whole, tmp_path / "cut", layer)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "4", "0-4", "1-0", "0,0", "2,1", "a", "0-", "-1", "0;1"])
def test_ranges_that_cannot_be(text: str, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not ascending ranges below 4"):
        exit_layer.keep(whole, tmp_path / "kept.gguf", text)


def test_what_cannot_be_cut(whole: Path, cut: Path, tmp_path: Path) -> None:
    refused = {
        tmp_path / "folder": "no GGUF file",
        cut / "target-00001-of-00003.gguf": "in one part",
        tmp_path / "missing.gguf": "cannot be opened",
    }
    for source, words in refused.items():
        with pytest.raises(EdgespecError, match=words) as caught:
            exit_layer.split(source, tmp_path / "out", 1)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConversionError, match="exists"):
        exit_layer.split(whole, cut, 1)
    list(exit_layer.split(whole, cut, 2, force=True))
    (cut / "mine.txt").write_text("x")
    with pytest.raises(ConversionError, match=r"holds mine\.txt"):
        exit_layer.split(whole, cut, 1, force=True)
    (cut / "mine.txt").unlink()
    assert not list(tmp_path.iterdir())


def test_an_interruption_leaves_nothing(whole: Path, tmp_path: Path) -> None:
    steps = exit_layer.split(whole, tmp_path / "cut", 2)
    next(iter(steps))
    steps.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())
