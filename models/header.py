"""What the head of a GGUF file says, its weights left alone: shapes and vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgespec.backends.llama import LlamaVocabulary
from edgespec.errors import ModelFileError
from edgespec.llamacpp import bindings, captured_errors

_ROOM = 512  # bytes of a number or a name, at most


class Header:
    """One open file's."""

    def __init__(self, low: Any, model: Any) -> None:
        self._low, self._model = low, model
        self.vocabulary = LlamaVocabulary(low, model)

    def metadata(self, key: str) -> str | None:
        """The scalar `key` as text, None where the file lacks it."""
        buffer = ctypes.create_string_buffer(_ROOM)
        n = self._low.llama_model_meta_val_str(self._model, key.encode(), buffer, _ROOM)
        return buffer.value.decode("utf-8", "replace") if n >= 0 else None

    def cache_bytes(self, context: int) -> int | None:
        """Bytes of a KV cache of `context` tokens, two bytes a number, no sliding window cut short (it must go back).

        None where layers differ in their heads, so that the file gives no one number.
        """
        architecture = self.metadata("general.architecture")

        def number(key: str) -> int | None:
            text = self.metadata(f"{architecture}.{key}")
            return int(text) if text and text.isdigit() else None

        layers, heads, width = number("block_count"), number("attention.head_count"), number("embedding_length")
        groups = number("attention.head_count_kv")
        if not layers or not heads or not width or not groups:
            return None
        key = number("attention.key_length") or width // heads
        value = number("attention.value_length") or width // heads
        return 2 * context * layers * groups * (key + value)


@contextmanager
def header(path: Path) -> Iterator[Header]:
    """The head of the GGUF file at `path`.

    Raises:
        ModelFileError: it cannot be read, or is no GGUF file.
        MissingPackage: llama-cpp-python is not installed.
    """
    low = bindings()
    params = low.llama_model_default_params()
    params.vocab_only, params.n_gpu_layers = True, 0
    with captured_errors() as errors:
        model = low.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ModelFileError(f"{path} cannot be read ({'; '.join(errors) or 'no reason given'}); fetch it again")
    found = Header(low, model)
    try:
        yield found
    finally:
        found.vocabulary.close()
        low.llama_model_free(model)
