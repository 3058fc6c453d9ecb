"""The tokens of a GGUF file."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from typing import Any

from ..errors import ClosedError
from .token_ids import checked_tokens

_CONTROL, _SHOWN = 1 << 3, 1 << 4  # LLAMA_TOKEN_ATTR_CONTROL and _USER_DEFINED
#: Special tokens that llama.cpp makes user-defined, so that their text is shown: "<|channel|>", "<|tool_call>".
_MARKER = re.compile(r"<\|.+>|<.+\|>").fullmatch


class LlamaVocabulary:
    """The tokens of a GGUF file."""

    def __init__(self, low: Any, model: Any) -> None:
        self._low = low
        self._handle = low.llama_model_get_vocab(model)
        self._pieces: dict[int, bytes] = {}
        self.size = int(low.llama_vocab_n_tokens(self._handle))
        self.bos = _token(low.llama_vocab_bos(self._handle))
        self.eos = _token(low.llama_vocab_eos(self._handle))
        # llama.cpp ends the process if the file demands a bos or eos that does not exist.
        self._has_ends = (self.bos is not None or not low.llama_vocab_get_add_bos(self._handle)) and (
            self.eos is not None or not low.llama_vocab_get_add_eos(self._handle)
        )
        template: bytes | None = low.llama_model_chat_template(model, None)
        self.template: str | None = template.decode("utf-8", "surrogateescape") if template else None

    @property
    def _vocab(self) -> Any:
        if self._handle is None:
            raise ClosedError("the model of this vocabulary is closed; load it again")
        return self._handle

    def close(self) -> None:
        """Called when the model is freed; any further use raises ClosedError."""
        self._handle = None

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        encoded = text.encode("utf-8", "replace")  # pasted text may contain lone surrogates, which UTF-8 cannot encode
        room, add = len(encoded) + 8, start and self._has_ends
        while True:
            buffer = (self._low.llama_token * room)()
            n = self._low.llama_tokenize(self._vocab, encoded, len(encoded), buffer, room, add, special)
            if n >= 0:
                return list(buffer[:n])
            room = -n

    def token_bytes(self, token: int) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._read_piece(token)
        return known

    def _read_piece(self, token: int) -> bytes:
        (token,) = checked_tokens([token], self.size)
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = self._low.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def label(self, token: int) -> str:
        (token,) = checked_tokens([token], self.size)
        text = self._low.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace") if text else ""

    def is_eog(self, token: int) -> bool:
        return bool(self._low.llama_vocab_is_eog(self._vocab, token))

    def specials(self) -> Sequence[str]:
        attributes = ((t, self._low.llama_vocab_get_attr(self._vocab, t)) for t in range(self.size))
        found = [(self.label(t), attr) for t, attr in attributes if attr & (_CONTROL | _SHOWN)]
        return [label for label, attr in found if label and (attr & _CONTROL or _MARKER(label))]


def _token(number: int) -> int | None:
    """A token, or None for llama.cpp's -1."""
    return int(number) if number >= 0 else None
