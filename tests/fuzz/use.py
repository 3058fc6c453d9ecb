"""A loaded model put to use: its vocabulary, its template and a short answer."""

from __future__ import annotations

from pathlib import Path
from random import Random

import edgespec
from edgespec import Device, Runtime, Sampling, Speculation

from .judge import Wrong
from .place import Place

TEXTS = ("Hello, I'd like a table for 2.", "Grüße 你好 😀", "<|im_end|> </s> <s>", "", "\0\x1b[0m\ufdd0", "a" * 300)
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <|im_end|> there"}]


def models(place: Place, target: Path, draft: Path | None = None, *, context: int = 0, backend: str = "auto") -> bool:
    """Load the model and put it to use; whether it could be loaded."""
    device = Device(context=context, threads=1, backend=backend)
    runtime = place.attempt(lambda: edgespec.load(target, draft, device=device))
    if runtime is None:
        return False
    with runtime:
        run(place, runtime)
    return True


def run(place: Place, runtime: Runtime) -> None:
    """All of a runtime that an app may use."""
    place.attempt(lambda: _describe(runtime))
    place.attempt(lambda: _vocabulary(runtime))
    place.attempt(lambda: runtime.prompt(MESSAGES))
    place.attempt(lambda: _read(runtime, Sampling()))
    recommended = place.attempt(lambda: Sampling(**runtime.sampling))  # type: ignore[arg-type]
    if recommended is not None:
        place.attempt(lambda: _read(runtime, recommended))
    place.attempt(lambda: list(runtime.chat(MESSAGES, max_tokens=4)))


def sound_models(place: Place, *paths: Path) -> None:
    """Nothing is wrong with these models: else what is spoilt would not be reached."""
    for path in paths:
        if not models(place, path) or place.refusals:
            raise Wrong("refused-sound", f"{path.name} is refused")


def _describe(runtime: Runtime) -> None:
    for text in (runtime.description, *runtime.notices, *runtime.drafters):
        if not isinstance(text, str):
            raise Wrong("traceback", f"{text!r} is no text")
    if not (0 < runtime.context < 1 << 31 and 0 < runtime.trained_context < 1 << 31):
        raise Wrong("figure", f"a context of {runtime.context}, trained for {runtime.trained_context}")


def _vocabulary(runtime: Runtime) -> None:
    vocabulary = runtime.vocabulary
    for text in TEXTS:
        for special in (False, True):
            tokens = vocabulary.tokenize(text, special=special, start=True)
            if bad := [token for token in tokens if not 0 <= token < vocabulary.size]:
                raise Wrong("figure", f"{text!r} has the token {bad[0]} of {vocabulary.size}")
            runtime.text(tokens)
    for token in sorted({*range(min(64, vocabulary.size)), vocabulary.size // 2, vocabulary.size - 1}):
        vocabulary.token_bytes(token)
        vocabulary.label(token)
        vocabulary.is_eog(token)
    list(vocabulary.specials())


def _read(runtime: Runtime, sampling: Sampling) -> None:
    for k in (0, 2):
        list(runtime.complete("Hello there, hello there", sampling, max_tokens=4, speculation=Speculation(k=k)))


def sound(place: Place, rng: Random) -> Path:
    """A sound model of some kind."""
    models_ = place.models
    return models_.gguf(rng.choice(models_.ggufs)) if rng.random() < 0.5 else models_.onnx(rng.choice(models_.onnxs))
