"""Checkpoints whose config, tokenizer or weights are not as they should be: converted, and then put to use."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import edgespec
from edgespec import Device
from edgespec.converters import convert
from edgespec.errors import EdgespecError, TemplateError

from ... import torch_files
from .. import folders, spoil, use
from ..judge import Wrong
from ..place import Place

_JSON = (
    "config.json",
    "config.json",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
)
_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "eos_token_id",
    "bos_token_id",
    "do_sample",
)


def _run(place: Place, folder: Path, fmt: str, quantization: str = "") -> None:
    """Convert the checkpoint. What was converted must be a model that can be used."""
    output = place.folder / ("model.gguf" if fmt == "gguf" else "model")
    done = place.attempt(lambda: list(convert(folder, output, fmt=fmt, quantization=quantization)))
    if done is None:
        if output.exists():
            raise Wrong("leftover", f"a conversion that failed left {output.name}")
        return
    for note in done:
        if len(str(note).splitlines()) != 1:
            raise Wrong("message", f"a note of several lines: {note!r:.200}")
    try:
        runtime = edgespec.load(output, device=Device(threads=1))
    except EdgespecError as error:
        raise Wrong("refused-after", f"converted without complaint, and then: {error}") from error
    with runtime:
        try:
            list(runtime.complete("Hello", max_tokens=2))
            if runtime.vocabulary.template:
                runtime.prompt([{"role": "user", "content": "Hello"}])
        except TemplateError:
            pass  # whether a template renders is known only when it does
        except EdgespecError as error:
            raise Wrong("refused-after", f"converted and loaded, and then: {error}") from error
        use.run(place, runtime)


def _spoilt(change: Callable[[Path], object], base: str = "qwen2", formats: str = "both") -> Callable[[Place], None]:
    def run(place: Place) -> None:
        for fmt in ("gguf", "onnx") if formats == "both" else (formats,):
            inner = Place(place.folder / fmt, place.models, place.note)
            inner.folder.mkdir()
            folder = folders.copied(inner, place.models.checkpoint(base), "checkpoint")
            change(folder)
            _run(inner, folder, fmt)
            place.refusals += inner.refusals

    return run


def _put(file: str, *keys: str | int, value: object, base: str = "qwen2") -> Callable[[Place], None]:
    return _spoilt(lambda folder: folders.put(folder / file, *keys, value=value), base)


def _dangling(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.unlink()
    path.symlink_to(folder / "nothing.json")


def _pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def _pickled(pickle: bytes) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(torch_files.archive(pickle, {}))

    return change


def _template(text: str) -> Callable[[Place], None]:
    return _put("tokenizer_config.json", "chat_template", value=text)


_PIPES = {
    f"{name} is a pipe": _spoilt(_pipe(name))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    if hasattr(os, "mkfifo")
}
CORPUS: Mapping[str, Callable[[Place], object]] = {
    "a sound checkpoint": _spoilt(lambda folder: None),
    "added tokens of no objects": _put("tokenizer_config.json", "added_tokens_decoder", value={"1": None, "2": 5}),
    "added tokens that are a list": _put("tokenizer_config.json", "added_tokens_decoder", value=[1]),
    "added tokens of no numbers": _put("tokenizer_config.json", "added_tokens_decoder", value={"x": {"content": "y"}}),
    "a special token that is a lone surrogate": _put("tokenizer_config.json", "eos_token", value="\ud800"),
    "a special token without content": _put("tokenizer_config.json", "eos_token", value={"content": None}),
    "a special token that is a number": _put("tokenizer_config.json", "bos_token", value=5),
    "an added token that is a lone surrogate": _put("tokenizer.json", "added_tokens", 0, "content", value="\udfff"),
    "an added token that is empty": _put("tokenizer.json", "added_tokens", 0, "content", value=""),
    "a dangling tokenizer_config.json": _spoilt(_dangling),
    "a template of 5": _put("tokenizer_config.json", "chat_template", value=5),
    "a template with a lone surrogate": _template("{{ '\ud800' }}"),
    "a template that is broken": _template("{{"),
    "a template of brackets": _template("{{ " + "(" * 500 + ")" * 500 + " }}"),
    "a context of 2^31": _put("config.json", "max_position_embeddings", value=2**31),
    "a context of 2^63": _put("config.json", "max_position_embeddings", value=2**63),
    "a context of 0": _put("config.json", "max_position_embeddings", value=0),
    "a context of 1": _put("config.json", "max_position_embeddings", value=1),
    "an epsilon of -1": _put("config.json", "rms_norm_eps", value=-1),
    "an epsilon of NaN": _put("config.json", "rms_norm_eps", value=float("nan")),
    "an epsilon of 0": _put("config.json", "rms_norm_eps", value=0),
    "a base of 0": _put("config.json", "rope_theta", value=0),
    "a base of infinity": _put("config.json", "rope_theta", value=float("inf")),
    "no layers": _put("config.json", "num_hidden_layers", value=0),
    "an eos beyond the vocabulary": _put("config.json", "eos_token_id", value=10**6),
    "a negative eos": _put("config.json", "eos_token_id", value=-5),
    "a bos of 2^40": _put("config.json", "bos_token_id", value=2**40),
    "a vocabulary of more than there is": _put("config.json", "vocab_size", value=10**6),
    "3 heads": _put("config.json", "num_attention_heads", value=3),
    "heads of width 0": _put("config.json", "head_dim", value=0),
    "heads of an odd width": _put("config.json", "head_dim", value=15),
    "a temperature that is a text": _put("generation_config.json", "temperature", value="hot"),
    "a temperature of NaN": _put("generation_config.json", "temperature", value=float("nan")),
    "a top_k of 1e400": _put("generation_config.json", "top_k", value=float("inf")),
    "a top_k of 20.0": _put("generation_config.json", "top_k", value=20.0),
    "a negative penalty": _put("generation_config.json", "repetition_penalty", value=-1.0),
    "layers beyond memory": _put("config.json", "num_hidden_layers", value=2**31 - 1),
    "digits without end": _put("config.json", "vocab_size", value=spoil.DIGITS),
    "brackets without end": _put("config.json", "x", value=spoil.BRACKETS),
    "a merge of one": _put("tokenizer.json", "model", "merges", 0, value=["a"]),
    "a merge of what is no token": _put("tokenizer.json", "model", "merges", 0, value="zzzz qqqq"),
    "a token of -1": _put("tokenizer.json", "model", "vocab", "Ġ", value=-1),
    "a token of 2^40": _put("tokenizer.json", "model", "vocab", "Ġ", value=2**40),
    "two tokens of one number": _put("tokenizer.json", "model", "vocab", "Ġ", value=5),
    "a pattern that never ends": _put(
        "tokenizer.json", "pre_tokenizer", value={
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "(a|a?)+$"}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True},
            ],
        },
    ),
    "a pickle that calls": _spoilt(_pickled(b"\x80\x02cos\nabort\n)R.")),
    "a pickle with a memo of 2^32": _spoilt(_pickled(b"\x80\x02}r\xff\xff\xff\xff.")),
    "a pickle of tuples of tuples": _spoilt(_pickled(b"\x80\x02})" + 99_000 * b"\x85" + b"K\x01s.")),
    "weights of NaN": _spoilt(lambda folder: _fill(folder, b"\xff")),
    "weights of zero": _spoilt(lambda folder: _fill(folder, b"\0")),
    **_PIPES,
}  # fmt: skip


def _fill(folder: Path, byte: bytes) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    path.write_bytes(content[:length] + byte * (len(content) - length))


def play(rng: Random, place: Place) -> None:
    """A sound checkpoint with a change or a few, converted into either format."""
    name = rng.choice(place.models.all_checkpoints)
    folder = folders.copied(place, place.models.checkpoint(name), "checkpoint")
    notes = folders.spoilt(rng, folder, _CHANGES)
    fmt = rng.choice(("gguf", "onnx"))
    quantization = rng.choice(
        ("f16", "q8_0", "q4_0", "q4_k_m") if fmt == "gguf" else ("fp32", "int8", "int4", "r8", "fp16")
    )
    place.note(f"{name} to {fmt} {quantization}: {'; '.join(notes)}")
    _run(place, folder, fmt, quantization)


def _json(rng: Random, folder: Path) -> str:
    return folders.spoilt_json(rng, folder / rng.choice(_JSON))


def _any(rng: Random, folder: Path) -> str:
    return folders.spoilt_file(rng, rng.choice(sorted(folder.iterdir())))


def _generation(rng: Random, folder: Path) -> str:
    given = {rng.choice(_SAMPLING): rng.choice((spoil.value(rng), spoil.number(rng))) for _ in range(2)}
    (folder / "generation_config.json").write_bytes(spoil.written(rng, given))
    return f"generation_config.json is {given!r:.200}"


def _config(rng: Random, folder: Path) -> str:
    """A number of the config, or what only some configs have."""
    path = folder / "config.json"
    if not path.is_file():
        return "no config.json"
    try:
        config = json.loads(path.read_bytes())
    except ValueError:
        return "no JSON"
    if not isinstance(config, dict) or not config:
        return "no object"
    key = rng.choice((*config, "rope_scaling", "head_dim", "sliding_window", "hidden_act", "layer_types", "dtype",
                      "partial_rotary_factor", "text_config", "quantization_config", "attention_bias"))  # fmt: skip
    config[key] = rng.choice((spoil.value(rng), spoil.number(rng), spoil.like(rng, config.get(key))))
    path.write_bytes(spoil.written(rng, config))
    return f"{key} is {config[key]!r:.150}"


def _weights(rng: Random, folder: Path) -> str:
    """The head of the weights, or their bytes."""
    path = folder / "model.safetensors"
    if not path.is_file():
        return "no weights"
    if rng.random() < 0.3:
        return _torch(rng, folder)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if rng.random() < 0.3 or length > len(content):
        path.write_bytes(spoil.data(rng, content))
        return "bytes of the weights"
    head = spoil.json_file(rng, json.loads(content[8 : 8 + length]))
    path.write_bytes(len(head).to_bytes(8, "little") + head + content[8 + length :])
    return "the head of the weights"


def _torch(rng: Random, folder: Path) -> str:
    """The weights as PyTorch has them: the archive or its pickle."""
    torch_files.pickled(folder)
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        pickle = archive.read("archive/data.pkl")
        data = {name[13:]: archive.read(name) for name in archive.namelist() if name.startswith("archive/data/")}
    if rng.random() < 0.3:
        path.write_bytes(spoil.data(rng, path.read_bytes()))
        return "bytes of PyTorch's weights"
    path.write_bytes(torch_files.archive(spoil.data(rng, pickle), data))
    return "the pickle of the weights"


_CHANGES: tuple[Callable[[Random, Path], str], ...] = (_json, _json, _config, _config, _generation, _weights, _any)
