"""A converted folder is there whole or not at all, replaces only its like, and has all that travels."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import sentencepiece
from onnx import helper
from tokenizers import Tokenizer

from edgespec.converters import convert, layout, tokenizer_json
from edgespec.errors import ConversionError

from . import checkpoints
from .test_convert_output import run_python
from .test_convert_tokenizer import rewrite, texts

WRITTEN = {
    "model.onnx", "model.onnx.data", "config.json", "tokenizer.json", "tokenizer_config.json",
    "generation_config.json", "chat_template.jinja",
}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.llama(tmp_path_factory.mktemp("folder") / "source")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "model"


def exhaust(source: Path, output: Path, **options: Any) -> Path:
    for _ in convert(source, output, fmt="onnx", **options):
        pass
    return output


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nothing_has_its_name_before_the_end(source: Path, output: Path) -> None:
    seen = set()
    for _ in convert(source, output, fmt="onnx"):
        seen |= {name.rpartition(".")[2] for name in names(output.parent)}
        assert not output.exists()
    assert seen == {"part"}
    assert names(output.parent) == ["model"]
    assert set(names(output)) == WRITTEN


@pytest.mark.parametrize("steps", [1, 3, 9])
def test_a_closed_conversion_leaves_nothing(steps: int, source: Path, output: Path) -> None:
    work = convert(source, output, fmt="onnx")
    for _ in range(steps):
        next(work)
    work.close()  # type: ignore[attr-defined]
    assert names(output.parent) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("replaced", [False, True])
def test_an_interrupted_conversion_leaves_what_was_there(
    error: type[BaseException], replaced: bool, source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a tensor, as Ctrl-C comes."""
    if replaced:
        exhaust(source, output)
    calls = []

    def interrupted(*_: object) -> object:
        calls.append(names(output.parent))
        raise error

    monkeypatch.setattr(layout.Place, "write", interrupted)
    with pytest.raises(error):
        exhaust(source, output, force=True)
    assert len(calls[0]) == 1 + replaced, "it was interrupted before the folder was begun"
    assert names(output.parent) == ["model"] * replaced
    assert not replaced or set(names(output)) == WRITTEN


def test_only_a_converted_folder_is_replaced(source: Path, output: Path) -> None:
    exhaust(source, output, quantization="fp32")
    before = (output / "model.onnx.data").stat().st_size
    with pytest.raises(ConversionError, match="--force"):
        convert(source, output, fmt="onnx")
    exhaust(source, output, quantization="int4", force=True)
    assert (output / "model.onnx.data").stat().st_size < before
    assert names(output.parent) == ["model"]
    (output / "notes.txt").write_text("mine")
    with pytest.raises(ConversionError, match=r"holds notes\.txt"):
        convert(source, output, fmt="onnx", force=True)
    assert (output / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("content", ["nothing", "foreign", "junk", "folder"])
def test_a_folder_that_only_looks_like_one_is_kept(content: str, source: Path, output: Path) -> None:
    """A config and perhaps a model.onnx: but no work of ours."""
    output.mkdir()
    (output / "config.json").write_text("{}")
    if content == "foreign":
        graph = helper.make_graph([], "x", [], [])
        onnx.save_model(helper.make_model(graph), output / "model.onnx")
    elif content == "junk":
        (output / "model.onnx").write_bytes(b"\xff" * 100)
    elif content == "folder":
        (output / "model.onnx").mkdir()
    with pytest.raises(ConversionError, match="not replaced"):
        convert(source, output, fmt="onnx", force=True)
    assert "config.json" in names(output)


def test_an_empty_folder_gives_way(source: Path, output: Path) -> None:
    output.mkdir()
    exhaust(source, output)
    assert set(names(output)) == WRITTEN


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("folder", [False, True])
def test_an_output_that_comes_into_being_meanwhile(force: bool, folder: bool, source: Path, output: Path) -> None:
    work = convert(source, output, fmt="onnx", force=force)
    while getattr(next(work), "what", "") != "done":
        pass
    theirs = output
    if folder:
        output.mkdir()
        theirs = output / "theirs"
    theirs.write_text("theirs")
    with pytest.raises(ConversionError, match=r"meanwhile|exists|file or a link|holds theirs"):
        next(work)
    assert theirs.read_text() == "theirs"
    assert names(output.parent) == ["model"]


def test_a_failed_replacement_brings_the_old_back(source: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exhaust(source, output)
    (output / "config.json").write_text('{"old": true}')
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ConversionError, match="Input/output error"):
        exhaust(source, output, force=True)
    assert (output / "config.json").read_text() == '{"old": true}'
    assert names(output.parent) == ["model"]


def test_places_that_cannot_be(source: Path, output: Path) -> None:
    output.write_text("mine")
    for force in (False, True):
        with pytest.raises(ConversionError, match="a file or a link"):
            convert(source, output, fmt="onnx", force=force)
    with pytest.raises(ConversionError, match="does not exist"):
        convert(source, output.parent / "no" / "x", fmt="onnx")
    with pytest.raises(ConversionError, match="cannot be written"):
        convert(source, output.parent / ("x" * 300), fmt="onnx")


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_is_not_replaced(source: Path, output: Path) -> None:
    exhaust(source, output.parent / "real")
    output.symlink_to(output.parent / "real")
    with pytest.raises(ConversionError, match="a file or a link"):
        convert(source, output, fmt="onnx", force=True)


def test_no_room_is_found_before_starting(source: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    exhaust(source, output)
    size = sum(path.stat().st_size for path in output.iterdir())
    shutil.rmtree(output)
    for free, fits in ((size - 1, False), (size, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(0, 0, free))
        if fits:
            exhaust(source, output)
        else:
            with pytest.raises(ConversionError, match=f"not enough space.*{size:,} bytes.*{free:,} free"):
                exhaust(source, output)
            assert names(output.parent) == []


@pytest.mark.skipif(os.name == "nt", reason="resource limits are POSIX")
def test_a_write_that_fails_leaves_nothing(source: Path, output: Path) -> None:
    code = """
        import resource, signal, sys
        from pathlib import Path
        from edgespec.converters import convert
        from edgespec.errors import ConversionError
        work = convert(Path(sys.argv[1]), Path(sys.argv[2]), fmt="onnx", quantization="fp32")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
        try:
            list(work)
        except ConversionError as error:
            print(error)
    """
    assert "larger than this system or folder allows" in run_python(code, str(source), str(output))
    assert names(output.parent) == []


@pytest.mark.skipif(os.name == "nt", reason="peak memory is read the POSIX way")
def test_memory_does_not_grow_with_the_tensors(tmp_path: Path) -> None:
    """A checkpoint of 190 MB, a third of it one tensor, in less than that beside the libraries' own."""
    folder = checkpoints.llama(tmp_path / "source", hidden=64, ffn=500_000, layers=1, dtype="BF16")
    code = """
        import resource, sys
        from pathlib import Path
        import tokenizers
        from edgespec.converters import convert, onnx
        status = Path("/proc/self/status")
        def peak():
            if status.exists():  # ru_maxrss would begin at what the parent process held
                return next(int(line.split()[1]) >> 10 for line in status.open() if line.startswith("VmHWM"))
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20
        before = peak()
        for _ in convert(Path(sys.argv[1]), Path(sys.argv[2]), fmt="onnx", quantization=sys.argv[3]):
            pass
        print(peak() - before)
    """
    for quantization in ("int4", "r8"):
        grown = int(run_python(code, str(folder), str(tmp_path / quantization), quantization))
        assert grown < 150, f"{grown} MB with {quantization}"


def test_what_travels(source: Path, output: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    (folder / "README.md").write_text("---\nmodel_name: Tiny\n---\n")
    (folder / "LICENSE").write_text("as you like")
    (folder / "special_tokens_map.json").write_text('{"pad_token": "<|endoftext|>"}')
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("T")
    exhaust(folder, output)
    assert set(names(output)) == WRITTEN | {
        "README.md", "LICENSE", "special_tokens_map.json", "additional_chat_templates",
    }  # fmt: skip
    assert (output / "chat_template.jinja").read_text() == checkpoints.CHATML
    assert (output / "additional_chat_templates" / "tools.jinja").read_text() == "T"
    for name in ("tokenizer.json", "config.json", "LICENSE"):
        assert (output / name).read_bytes() == (folder / name).read_bytes()
    exhaust(folder, output, force=True)


def described(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    names = ("tokenizer_config", "generation_config")
    settings, generation = (json.loads((folder / f"{name}.json").read_text()) for name in names)
    return settings, generation


BOS: list[tuple[str, Callable[[dict[str, Any]], None], bool]] = [
    ("gpt-2", lambda settings: None, False),
    ("gpt-2", lambda settings: settings.update(add_bos_token=True), True),
    ("spm-json", lambda settings: None, True),
    ("spm-json", lambda settings: settings.update(add_bos_token=False), False),
    ("spm-model", lambda settings: None, True),
]


@pytest.mark.parametrize(("kind", "change", "adds"), BOS)
def test_whether_bos_is_added_is_written_down(
    kind: str, change: Callable[[dict[str, Any]], None], adds: bool, output: Path, tmp_path: Path
) -> None:
    source = checkpoints.llama(tmp_path / "source", tokenizer=kind, config={"bos_token_id": 1 * (kind != "gpt-2")})
    rewrite(source / "tokenizer_config.json", change)
    settings, _ = described(exhaust(source, output))
    assert (settings["add_bos_token"], settings["add_eos_token"]) == (adds, False)


def test_ends_are_written_down(output: Path, tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", config={"eos_token_id": [0, 1]})
    assert described(exhaust(source, output))[1] == {"eos_token_id": [2, 0, 1]}, "the tokenizer's own first"
    (source / "tokenizer_config.json").unlink()
    (source / "generation_config.json").write_text('{"eos_token_id": 1, "temperature": 0.5}')
    settings, generation = described(exhaust(source, output, force=True))
    assert settings["eos_token"] == checkpoints.SPECIALS[0]
    assert generation == {"eos_token_id": [0, 1], "temperature": 0.5}


def test_a_sentencepiece_model_becomes_a_tokenizer_json(output: Path, tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", tokenizer="spm-model", config={"bos_token_id": 1})
    (source / "added_tokens.json").write_text('{"<extra>": 600}')
    rewrite(source / "config.json", lambda config: config.update(vocab_size=600))
    with pytest.raises(ConversionError, match="outside the vocabulary"):
        exhaust(source, output)
    source = checkpoints.llama(source, tokenizer="spm-model", padding=3, config={"bos_token_id": 1})
    exhaust(source, output)
    judge = sentencepiece.SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
    ours = Tokenizer.from_file(str(output / "tokenizer.json"))
    assert ours.encode("Hello").ids == [1, *judge.encode("Hello")], "with a bos"
    ours.encode_special_tokens = True
    for text in texts():
        tokens = ours.encode(text, add_special_tokens=False).ids
        assert tokens == judge.encode(text), text
        assert ours.decode(tokens) == judge.decode(tokens)
    ours.encode_special_tokens = False
    assert ours.encode("<extra>", add_special_tokens=False).ids[-1:] == [600]
    assert (output / "tokenizer.model").read_bytes() == checkpoints.sentencepiece_model()


def test_a_sentencepiece_model_without_a_prefix(output: Path, tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", tokenizer="spm-model", config={"bos_token_id": 1})
    (source / "tokenizer.model").write_bytes(checkpoints.sentencepiece_model(prefix=False))
    judge = sentencepiece.SentencePieceProcessor(model_file=str(source / "tokenizer.model"))
    ours = Tokenizer.from_file(str(exhaust(source, output) / "tokenizer.json"))
    for text in ("Hello", " Hello", "I'll book a table"):
        tokens = ours.encode(text, add_special_tokens=False).ids
        assert tokens == judge.encode(text)
        assert ours.decode(tokens) == text


def test_a_sentencepiece_model_that_tokenizers_cannot_do(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its merges are not the model's: refused, with the first text that differs."""
    source = checkpoints.llama(tmp_path / "source", tokenizer="spm-model")
    made = tokenizer_json.tokenizer_json
    monkeypatch.setattr(tokenizer_json, "tokenizer_json", lambda words: made(replace(words, scores=words.scores[::-1])))
    with pytest.raises(ConversionError, match="tokenizers package has no tokenizer that agrees") as caught:
        exhaust(source, output)
    assert "\n" not in str(caught.value)
    assert names(output.parent) == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, edgespec.converters as c; c.formats(); print({'onnx', 'onnxruntime'} & set(sys.modules))"
    assert run_python(code) == "set()"
