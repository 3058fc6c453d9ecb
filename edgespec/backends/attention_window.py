"""Layers with a sliding window: which these are, and how many tokens their KV cache holds.

Such a layer attends to the last tokens only. llama.cpp can keep all tokens in its cache nevertheless, or only as many
as the window and one pass take; the others are overwritten.
"""

from __future__ import annotations

from .gguf_header import Header

#: Of so many layers the last attends to the whole text, unless the file says otherwise; 0: the file lists the layers.
#: All have llama.cpp's llama_kv_cache_iswa. Other architectures with a window keep all tokens.
_PERIODS = {
    "cohere2": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gemma4": 0,
    "gpt-oss": 2,
    "muse-glimmer": 4,
    "olmo2": 4,
}
_WINDOWS = {"gemma2": 4096}  # llama.cpp's, where the file has none
_STEP = 256  # llama.cpp rounds the cells up to a multiple of it


def can_forget(architecture: str) -> bool:
    """Whether the layers with a window may have a cache that does not hold all tokens."""
    return architecture in _PERIODS


def cells(window: int, context: int, rows: int) -> int:
    """Tokens in the cache of a layer with a window, in a context of `context` tokens and passes of up to `rows`.

    All, unless it is less memory to hold the window and a pass, and save one window more for far rollbacks.
    """
    context, few = _rounded(context), _rounded(window + rows)
    return few if window and few + window < context else context


def window(head: Header) -> int:
    """The window in tokens; 0 for a model that has none, or whose cache holds all tokens."""
    if not can_forget(head.architecture):
        return 0
    return max(0, head.number("attention.sliding_window") or _WINDOWS.get(head.architecture, 0))


def windowed_layers(head: Header) -> tuple[bool, ...]:
    """Which layers have a window, and a cache that need not hold all tokens."""
    layers = head.layers
    if not window(head):
        return (False,) * layers
    listed = head.fields.get(head.key("attention.sliding_window_pattern"))
    if isinstance(listed, tuple):
        return tuple(map(bool, listed)) if len(listed) == layers else (False,) * layers
    period = head.number("attention.sliding_window_pattern") or _PERIODS[head.architecture]
    return tuple(period > 0 and layer % period < period - 1 for layer in range(layers))


def _rounded(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP
