"""Options of the commands, and arguments of the library."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import edgespec
from edgespec import Device, Sampling, Speculation

from .. import command, spoil, use
from ..place import Place

_NUMBERS = (
    "0", "1", "-1", "2", "3", "7", "0.5", "1.0", "-0.5", "nan", "inf", "-inf", "1e400", "1e-400", "9" * 5000,
    "2147483648", "18446744073709551616", "x", "", " ", "1_0", "0x10", "٣", "1,5", "\x1b[31m", "\udcff", "--", "-",
)  # fmt: skip
_NAMES = (
    "auto", "none", "lookup", "model", "cross-vocabulary", "model,lookup", "lookup,lookup", ",", "", "x", "MATCH",
    "match", "rejection", "block", "\x1b]0;t\x07", "\udcff", "a" * 5000, "cpu", "cuda", "llama", "onnx", "toy",
    "../..", "ä",
)  # fmt: skip
_TEXTS = ("", "Hello", "\udcff\udc80", "\x1b[2J", "a b " * 2000, "<|im_end|>", "{{ 1 }}", "\n", "😀", "/quit", "-p")
_PATHS = (
    "", ".", "/", "no.gguf", "org/none", "org/none:q8_0", "hf.co/org/none", "https://huggingface.co/org/none",
    "a" * 300, "a/" * 3000, "\udcff.gguf", "/dev/null", "/dev/zero", "x.json", "x.onnx", "qwen3-8b", "~", "\n",
    "\x1b[31m.gguf", "NUL", "-",
)  # fmt: skip
_CHAT: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("--k", "--exact", "--gpu-layers", "--draft-gpu-layers", "--temp", "--top-k", "--top-p"), _NUMBERS),
    **dict.fromkeys(("--min-p", "--repeat-penalty", "--presence-penalty", "--frequency-penalty", "--seed"), _NUMBERS),
    "--max-tokens": _NUMBERS,
    "--ctx": (*_NUMBERS, "64", "256", "5000"),
    "--threads": (*(n for n in _NUMBERS), "2"),
    **dict.fromkeys(("--drafter", "--verifier", "--provider", "--backend", "--draft"), _NAMES),
    "--system": _TEXTS,
    "-p": _TEXTS,
}
_FLAGS = ("--show-drafts", "--stats", "--json", "--remember", "--help", "--no-such-option")
_BUDGETS = ("0", "-1", "nan", "0.01", "x", "", "-inf")


def _library(action: Callable[[Any], object]) -> Callable[[Place], None]:
    """`action` with a runtime of a sound model."""

    def run(place: Place) -> None:
        with edgespec.load(place.models.gguf("qwen2"), device=Device(threads=1)) as runtime:
            place.attempt(lambda: action(runtime))
            use.run(place, runtime)

    return run


def _answer(**sampling: Any) -> Callable[[Place], None]:
    return _library(lambda runtime: list(runtime.complete("Hello", Sampling(**sampling), max_tokens=4)))


def _size(runtime: edgespec.Runtime) -> range:
    return range(runtime.vocabulary.size)


CORPUS: Mapping[str, Callable[[Place], object]] = {
    "a temperature that is a text": _answer(temperature="hot"),
    "a temperature of None": _answer(temperature=None),
    "a top_k of 20.0": _answer(temperature=1.0, top_k=20.0),
    "a seed of 1.5": _answer(temperature=1.0, seed=1.5),
    "a bias of 1e300": _answer(logit_bias=((5, 1e300),)),
    "a bias of -1e300": _answer(logit_bias=((5, -1e300),)),
    "a bias for a token that is a text": _answer(logit_bias=(("a", 1.0),)),
    "a bias for no token": _answer(logit_bias=((10**6, 1.0),)),
    "a bias without an addend": _answer(logit_bias=((5,),)),
    "a bias that is a number": _answer(logit_bias=5),
    "all tokens banned": _library(
        lambda runtime: list(
            runtime.complete(
                "Hello",
                Sampling(temperature=1.0, logit_bias=tuple((t, float("-inf")) for t in _size(runtime))),
                max_tokens=4,
            )
        )
    ),
    "all tokens banned, greedily": _library(
        lambda runtime: list(
            runtime.complete(
                "Hello", Sampling(logit_bias=tuple((t, float("-inf")) for t in _size(runtime))), max_tokens=4
            )
        )
    ),
    "the sampling that the model recommends": _library(lambda runtime: Sampling(**runtime.sampling)),
    "the text of a token beyond the vocabulary": _library(lambda runtime: runtime.text([10**6])),
    "the text of a negative token": _library(lambda runtime: runtime.text([-5])),
    "the text of a token of 2^40": _library(lambda runtime: runtime.text([2**40])),
    "the text of no token": _library(lambda runtime: runtime.text(["a"])),
    "the text of None": _library(lambda runtime: runtime.text(None)),
    "tokens that are no integers": _library(lambda runtime: list(runtime.complete([1.5, 2.5], max_tokens=2))),
    "tokens that are texts": _library(lambda runtime: list(runtime.complete(["a"], max_tokens=2))),
    "a label of a token beyond the vocabulary": _library(lambda runtime: runtime.vocabulary.label(10**6)),
    "a piece of a token beyond the vocabulary": _library(lambda runtime: runtime.vocabulary.token_bytes(10**6)),
    "the end of a token beyond the vocabulary": _library(lambda runtime: runtime.vocabulary.is_eog(-1)),
    "k of 5000 digits": lambda place: _command(place, ["chat", "MODEL", "-p", "Hello", "--k", "9" * 5000]),
    "a device file": lambda place: _command(place, ["chat", "/dev/zero", "-p", "Hello"]),
    "a name that commands the terminal": lambda place: _command(place, ["chat", "\x1b]0;t\x07.gguf", "-p", "Hello"]),
}


def play(rng: Random, place: Place) -> None:
    """A command or a call with options of all kinds."""
    rng.choice((_play_command, _play_command, _play_values, _play_load))(rng, place)


def _play_command(rng: Random, place: Place) -> None:
    arguments = rng.choice((_chat, _chat, _chat, _other))(rng)
    _command(place, arguments, rng.choice((b"", b"Hello", b"\xff\xfe", b"\0\x1b[2J", b"a" * 5000)), rng)


def _command(place: Place, arguments: Sequence[str], given: bytes = b"", rng: Random | None = None) -> None:
    rng = rng or Random(0)
    named = {
        "MODEL": use.sound(place, rng),
        "DRAFT": use.sound(place, rng),
        "CHECKPOINT": place.models.checkpoint(rng.choice(place.models.all_checkpoints)),
        "OUT": place.folder / "out",
        "FILE": place.write("prompts.jsonl", b'{"prompt": "Hello"}\n'),
    }
    place.note(" ".join(f"{each[:80]!r}" for each in arguments))
    try:
        command.run(place, [str(named.get(each, each)) for each in arguments], given)
    finally:
        _remove_result(arguments)


def _remove_result(arguments: Sequence[str]) -> None:
    """Delete what `--out` asked for, so that whatever else is in the working folder counts as a leftover."""
    path = Path(arguments[arguments.index("--out") + 1] if "--out" in arguments[:-1] else "OUT")
    with suppress(OSError, ValueError):
        if path.parent == Path() and path.name not in ("", ".."):  # elsewhere is not the working folder
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _options(rng: Random, known: Mapping[str, Sequence[str]], most: int = 4) -> list[str]:
    found: list[str] = []
    for name in rng.sample(sorted(known), rng.randint(0, min(most, len(known)))):
        found += [name, rng.choice(known[name])]
    return found


def _model(rng: Random) -> str:
    return rng.choice(_PATHS) if rng.random() < 0.15 else "MODEL"


def _chat(rng: Random) -> list[str]:
    arguments = ["chat", _model(rng), *_options(rng, _CHAT)]
    if "--max-tokens" not in arguments:
        arguments += ["--max-tokens", "4"]
    if "--threads" not in arguments:
        arguments += ["--threads", "1"]
    if "--draft" not in arguments:
        arguments += ["--draft", rng.choice(("none", "auto", "DRAFT", "DRAFT", rng.choice(_PATHS)))]
    if rng.random() < 0.3:
        arguments.append(rng.choice(_FLAGS))
    return arguments


def _other(rng: Random) -> list[str]:
    few = {name: _CHAT[name] for name in ("--k", "--temp", "--top-k", "--verifier", "--drafter", "--ctx", "--exact")}
    quantization = rng.choice(("q8_0", "q4_0", "q4_k_m", "f16", "int4", "r8", "fp16", *_NAMES))
    return rng.choice(
        (
            ["check", _model(rng), "--draft", "none", "--max-tokens", "2", "--prompts", "FILE", *_options(rng, few)],
            ["check", "MODEL", "--prompts", rng.choice(_PATHS)],
            [
                "tune",
                _model(rng),
                "--draft",
                "none",
                "--budget",
                rng.choice(_BUDGETS),
                *_options(rng, {"--ctx": _NUMBERS}),
            ],
            ["convert", rng.choice(("CHECKPOINT", *_PATHS)), "--out", "OUT", "--quant", quantization],
            [
                "convert",
                "CHECKPOINT",
                "--to",
                rng.choice(("onnx", "gguf", *_NAMES)),
                "--out",
                rng.choice(("OUT", *_PATHS[-8:])),
            ],
            ["models", "show", rng.choice(("MODEL", *_PATHS)), *_options(rng, {"--ctx": _NUMBERS})],
            ["models", "pair", rng.choice(("MODEL", *_PATHS)), rng.choice(("DRAFT", *_PATHS))],
            ["models", "pull", rng.choice(_PATHS), *_options(rng, {"--quant": _NAMES, "--revision": _NAMES})],
            ["models", "list"],
            ["forget"],
            [rng.choice(_NAMES), rng.choice(_TEXTS)],
        )
    )


def _play_values(rng: Random, place: Place) -> None:
    """Values of options made by a program."""
    kind = rng.choice((Sampling, Speculation, Device))
    names = [field.name for field in fields(kind)]
    given = {name: _value(rng) for name in rng.sample(names, rng.choice((1, 1, 2)))}
    place.note(f"{kind.__name__}({', '.join(f'{name}={value!r:.60}' for name, value in given.items())})")
    made = place.attempt(lambda: kind(**given))
    if made is None or (isinstance(made, Device) and (made.context > 100_000 or made.threads > 2)):
        return  # what was asked for, and too much for this machine
    device = made if isinstance(made, Device) else Device(threads=1)
    path = use.sound(place, rng)
    how = made if isinstance(made, Speculation) else None
    runtime = place.attempt(lambda: edgespec.load(path, device=device, speculation=how))
    if runtime is not None:
        with runtime:
            sampling = made if isinstance(made, Sampling) else None
            place.attempt(lambda: list(runtime.complete("Hello there", sampling, max_tokens=4)))
            place.attempt(lambda: list(runtime.chat(use.MESSAGES, sampling, max_tokens=4, speculation=how)))


def _value(rng: Random) -> Any:
    other: tuple[Any, ...] = (
        b"x",
        (),
        ((1, 1.0),),
        ((1, "a"),),
        ((1,),),
        {5: 1.0},
        object,
        Path(),
        {1},
        1j,
        ("lookup",),
        ("x",),
        (5,),
    )
    return rng.choice((spoil.value(rng), spoil.number(rng), rng.choice(other)))


def _play_load(rng: Random, place: Place) -> None:
    """Arguments of `load`."""
    sound = use.sound(place, rng)
    names = [name for name in inspect.signature(edgespec.load).parameters if name not in ("on_progress", "interrupt")]
    given: dict[str, Any] = {"model": sound, "device": Device(threads=1)}
    name = rng.choice(names)
    given[name] = rng.choice((_value(rng), rng.choice(_PATHS), Path(rng.choice(_PATHS)), str(sound), place.folder))
    place.note(f"load({', '.join(f'{name}={value!r:.80}' for name, value in given.items())})")
    runtime = place.attempt(lambda: edgespec.load(**given))
    if runtime is not None:
        with runtime:
            use.run(place, runtime)
