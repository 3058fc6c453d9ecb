"""The calls into llama.cpp that a conversion needs, with its log messages as ConversionError."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.backends.llama_library import bindings, captured_errors
from edgespec.errors import ConversionError, MissingPackage

_WIDE = (0, 30)  # enum ggml_type in ggml.h: F32 and BF16. All others have float16 scales
_FLOAT16_END = 65520.0  # numbers from here on round to infinity in float16


@cache
def ggml() -> Any:
    """The ggml library inside llama-cpp-python, with the quantizer's functions declared."""
    folder = Path(bindings().__file__).parent / "lib"
    try:
        library = import_module("llama_cpp._ctypes_extensions").load_shared_library("ggml-base", folder)
        return _declare(library)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise MissingPackage(
            f"llama-cpp-python has no quantizer to call: {error}; reinstall llama-cpp-python 0.3.36"
        ) from error


def _declare(library: Any) -> Any:
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        (
            "ggml_quantize_chunk",
            ctypes.c_size_t,
            [ctypes.c_int, pointer, pointer, count, count, count, pointer],
        ),
        ("ggml_row_size", ctypes.c_size_t, [ctypes.c_int, count]),
        ("ggml_validate_row_data", ctypes.c_bool, [ctypes.c_int, pointer, ctypes.c_size_t]),
        ("ggml_quantize_requires_imatrix", ctypes.c_bool, [ctypes.c_int]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _sentence(errors: Sequence[str]) -> str:
    return "; ".join(errors) or "no reason given"


class LlamaTokenizer:
    """llama.cpp's tokenizer, loaded from a GGUF file that may consist of a vocabulary only."""

    def __init__(self, path: Path) -> None:
        self._lib = bindings()
        self._model: Any = None
        params = self._lib.llama_model_default_params()
        params.vocab_only, params.n_gpu_layers = True, 0
        with captured_errors() as errors:
            self._model = self._lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ConversionError(f"llama.cpp does not load the vocabulary: {_sentence(errors)}")
        self._vocab = self._lib.llama_model_get_vocab(self._model)

    def __enter__(self) -> LlamaTokenizer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._model:
            self._lib.llama_model_free(self._model)
            self._model = None

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The tokens of `text`, none added at its ends; with `special`, control tokens in it count."""
        data = text.encode()
        room = len(data) + 2  # each token has at least a byte, except for a prefixed space
        while True:
            tokens = (self._lib.llama_token * room)()
            n = self._lib.llama_tokenize(self._vocab, data, len(data), tokens, room, False, special)
            if n >= 0:
                return list(tokens[:n])
            room = -n

    def control(self, token: int) -> bool:
        """Whether llama.cpp recognises this token in a text only where special tokens count."""
        return bool(self._lib.llama_vocab_is_control(self._vocab, token))

    def ends(self, token: int) -> bool:
        """Whether llama.cpp stops generating at this token."""
        return bool(self._lib.llama_vocab_is_eog(self._vocab, token))


def check_loads(path: Path, runs: bool) -> None:
    """ConversionError unless llama.cpp loads the model at `path` and, if it `runs` by itself, creates a context for it.

    Only the header is read. The tensors need their space in the file, but are neither read nor allocated.
    """
    lib = bindings()
    params = lib.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts = 0, False
    params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
    context: Any = None
    with captured_errors() as errors:
        model = lib.llama_model_load_from_file(str(path).encode(), params)
        if model and runs:
            context = lib.llama_init_from_model(model, lib.llama_context_default_params())
    if context:
        lib.llama_free(context)
    if model:
        lib.llama_model_free(model)
    if not (context if runs else model):
        raise ConversionError(f"llama.cpp does not run a model of these shapes: {_sentence(errors)}; try onnx")


def quantize_file(source: Path, output: Path, file_type: int, threads: int = 1) -> None:
    """Quantize a whole GGUF file with llama.cpp. ConversionError with its error message if it fails."""
    lib = bindings()
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.nthread = file_type, threads
    with captured_errors() as errors:
        failed = lib.llama_model_quantize(str(source).encode(), str(output).encode(), ctypes.byref(params))
    if failed:
        raise ConversionError(f"llama.cpp does not quantize this model: {_sentence(errors)}")


def row_bytes(kind: int, columns: int) -> int:
    """The bytes of one row of `columns` numbers in the ggml type `kind`."""
    return int(ggml().ggml_row_size(kind, columns))


def quantize_rows(kind: int, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """float32 [n, columns] in the ggml type `kind`, as bytes. Releases the GIL meanwhile.

    ValueError if a value is not finite or overflows in that type.
    """
    lib = ggml()
    rows = np.ascontiguousarray(rows)
    n, columns = rows.shape
    # ggml detects these as well, but writes to stderr. Comparisons with NaN are false.
    if not max(rows.max(initial=0), -rows.min(initial=0)) < (np.inf if kind in _WIDE else _FLOAT16_END):
        raise ValueError("not finite")
    packed = np.empty(n * row_bytes(kind, columns), np.uint8)
    lib.ggml_quantize_chunk(kind, rows.ctypes.data, packed.ctypes.data, 0, n, columns, None)
    if not lib.ggml_validate_row_data(kind, packed.ctypes.data, packed.nbytes):
        raise ValueError("not finite")
    return packed
