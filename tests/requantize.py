"""The small pair's models in other formats, for tests of what depends on the format."""

from __future__ import annotations

import ctypes
from pathlib import Path

from edgespec.backends.llama_library import bindings


def requantize(source: Path, target: Path, kind: str) -> Path:
    """Write the GGUF file `source` with weights of `kind` (ALL_F32, MOSTLY_Q4_0, ...) to `target`."""
    low = bindings()
    params = low.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = getattr(low, f"LLAMA_FTYPE_{kind}"), True
    assert low.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(params)) == 0
    return target
