"""The vocabulary of an ONNX model: the tokenizer.json in its folder, through Hugging Face's `tokenizers`.

Types and texts of tokens are the same as in llama.cpp, so that a model behaves the same in either format.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import ClosedError, EdgespecError, ModelFileError
from ..extras import import_package
from ..sampling import stated
from ..storage.files import contents, is_text, text
from ..values import shown

Json = dict[str, Any]

_SPACE = "\u2581"  # SentencePiece's character for a space
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
#: Tokens that end a turn, whether or not the model's files list them: those of llama-vocab.cpp for chat models.
_ENDS = frozenset(
    (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
        "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
        "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
    )
)  # fmt: skip
#: With either pair "<|end|>" ends a message, after which the model continues its turn: gpt-oss and Solar Open.
_MESSAGE_END, _TURN_ENDS = "<|end|>", (("<|return|>", "<|call|>"), ("<|calls|>", "<|flush|>"))
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class TokenizerFiles:
    """The files of tokenizer and configuration in a model's folder; an empty dict for each file that is missing.

    Raises:
        ModelFileError: there is no tokenizer.json, or a file is not JSON, a broken link or not a regular file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = self._json("tokenizer.json")
        if not self.tokenizer:
            raise ModelFileError(f"{folder} has no tokenizer.json; copy it from the checkpoint, or convert that again")
        self.settings = {**self._json("special_tokens_map.json"), **self._json("tokenizer_config.json")}
        self.config = self._json("config.json")
        self.generation = self._json("generation_config.json")

    def _json(self, name: str) -> Json:
        path = self.folder / name
        with self._readable(name):
            data = contents(path)
            read = json.loads(data) if data is not None else {}
        if not isinstance(read, dict):
            raise ModelFileError(f"{path} is not a JSON object; copy it from the checkpoint again")
        return read

    @contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ModelFileError(
                f"{self.folder / name} cannot be read: {reason}; copy it from the checkpoint again"
            ) from error

    @property
    def guarded(self) -> str:
        """tokenizer.json with all end-of-turn tokens marked as special; otherwise text of a user could become one."""
        entries = self.tokenizer.get("added_tokens")
        added = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        loose = [entry for entry in added if str(entry.get("content")) in _ENDS and not entry.get("special")]
        if not loose:
            return (self.folder / "tokenizer.json").read_text("utf-8")
        guarded = [{**entry, "special": True} if entry in loose else entry for entry in added]
        return json.dumps({**self.tokenizer, "added_tokens": guarded})

    @property
    def template(self) -> str | None:
        """The chat template: the file of its own that newer checkpoints have, or else that of tokenizer_config.json."""
        with self._readable("chat_template.jinja"):
            own = text(self.folder / "chat_template.jinja", "surrogateescape")
        given = self.settings.get("chat_template")
        named = given if isinstance(given, list) else [{"name": "default", "template": given}]
        other = (entry.get("template") for entry in named if isinstance(entry, dict) and entry.get("name") == "default")
        return own or next((template for template in other if isinstance(template, str) and template), None)

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling that generation_config.json recommends: `Sampling` fields by name."""
        given = self.generation
        values = {key: stated(key, given[key]) for key in _SAMPLING if given.get(key) is not None}
        found = {key: value for key, value in values.items() if value is not None}
        if given.get("do_sample") is False:
            found["temperature"] = 0.0
        return found

    @property
    def ignored(self) -> list[str]:
        """Messages about values in generation_config.json that are not valid."""
        given_values = {key: self.generation.get(key) for key in _SAMPLING if key not in self.sampling}
        return [
            f"{key} is {shown(value)} in generation_config.json, which is not valid: it is ignored"
            for key, value in given_values.items()
            if value is not None
        ]

    def number(self, name: str, size: int) -> list[int]:
        """The tokens of a vocabulary of `size` tokens that the configuration has for `name`, for example "eos".
        generation_config.json takes precedence over config.json."""
        for config in (self.generation, self.config):
            value = config.get(f"{name}_token_id")
            given = value if isinstance(value, list) else [value]
            if numbers := [n for n in given if type(n) is int and 0 <= n < size]:
                return numbers
        return []

    def special(self, name: str) -> str | None:
        """The text of the special token `name` in the settings of the tokenizer, None if not given."""
        text = self.settings.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        if not isinstance(text, str):
            return None
        if not is_text(text):
            raise ModelFileError(
                f"{self.folder}: the settings of the tokenizer give {text!a} as {name}_token, not a valid text; copy "
                "tokenizer_config.json and special_tokens_map.json from the checkpoint again"
            )
        return text


class OnnxVocabulary:
    """The tokens of a converted model's folder.

    Args:
        size: the width of a row of logits; tokens that the tokenizer does not have are padding.

    Raises:
        ModelFileError: the tokenizer is missing or invalid.
        MissingPackage: tokenizers is not installed.
    """

    def __init__(self, files: TokenizerFiles, size: int) -> None:
        self.size = size
        self.template = files.template
        self._path = files.folder / "tokenizer.json"
        self._lock = threading.Lock()  # `encode_special_tokens` is set for all threads
        self._opened: Any = _tokenizer(files)
        model = files.tokenizer.get("model")
        model = model if isinstance(model, dict) else {}
        self._sentencepiece = bool(model.get("byte_fallback"))
        self._unknown = model.get("unk_token")
        self._added = {
            token: (str(added.content), bool(added.special))
            for token, added in self._tokenizer.get_added_tokens_decoder().items()
        }
        self._pieces: dict[int, bytes] = {}
        self.bos = self._special(files, "bos")
        self._starts = self._starting(files)
        self.eos = self._special(files, "eos")
        self._is_eog = {*files.number("eos", size), *(() if self.eos is None else (self.eos,))}
        ends = {text: token for text in _ENDS if (token := self._tokenizer.token_to_id(text)) is not None}
        if any(ends.keys() >= set(pair) for pair in _TURN_ENDS):
            ends.pop(_MESSAGE_END, None)
        self._is_eog.update(ends.values())

    @property
    def _tokenizer(self) -> Any:
        if self._opened is None:
            raise ClosedError("the model of this vocabulary is closed; load it again")
        return self._opened

    def close(self) -> None:
        """Free the tokenizer, which for a large vocabulary takes as much memory as a small model."""
        self._opened = None

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        clean = text.encode(
            "utf-8", "replace"
        ).decode()  # pasted text may contain lone surrogates, which UTF-8 cannot encode
        with self._lock, _sound(self._path):
            self._tokenizer.encode_special_tokens = not special
            found: list[int] = self._tokenizer.encode(clean, add_special_tokens=False).ids
        return [*self._starts, *found] if start else found

    def token_bytes(self, token: int) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._read_piece(token)
        return known

    def label(self, token: int) -> str:
        text: str | None = self._tokenizer.id_to_token(token)
        if text is None:
            return self._padding(token)
        if token in self._added and self._sentencepiece and not self._is_control(token):
            return text.replace(_SPACE, " ")
        return text

    def is_eog(self, token: int) -> bool:
        return token in self._is_eog

    def specials(self) -> Sequence[str]:
        return [self._added[token][0] for token in sorted(self._added) if self._is_control(token)]

    def _is_control(self, token: int) -> bool:
        text, special = self._added.get(token, ("", False))
        return special and text != self._unknown

    def _read_piece(self, token: int) -> bytes:
        text: str | None = self._tokenizer.id_to_token(token)
        if text is None or text == self._unknown or self._is_control(token):
            return b""
        if token in self._added:
            return self.label(token).encode()
        if not self._sentencepiece:
            table = byte_characters()
            return b"".join(bytes([table[c]]) if c in table else c.encode("utf-8", "replace") for c in text)
        byte = _BYTE.fullmatch(text)
        return bytes.fromhex(byte[1]) if byte else text.replace(_SPACE, " ").encode("utf-8", "replace")

    def _padding(self, token: int) -> str:
        text = f"[PAD{token}]"
        while self._tokenizer.token_to_id(text) is not None:
            text = f"[{text}]"
        return text

    def _special(self, files: TokenizerFiles, name: str) -> int | None:
        text = files.special(name)
        found: int | None = None if text is None else self._tokenizer.token_to_id(text)
        return found if found is not None else next(iter(files.number(name, self.size)), None)

    def _starting(self, files: TokenizerFiles) -> list[int]:
        """The bos if texts begin with it, by the settings or else by the tokenizer itself."""
        if self.bos is None:
            return []
        adds = files.settings.get("add_bos_token")
        if not isinstance(adds, bool):
            bare = self._tokenizer.encode("a", add_special_tokens=False).ids
            ids = self._tokenizer.encode("a", add_special_tokens=True).ids
            adds = len(ids) > len(bare) and ids[0] == self.bos
        return [self.bos] if adds else []


@cache
def byte_characters() -> dict[str, int]:
    """The byte of each character of byte-level BPE: printable bytes are themselves, the others are from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _tokenizer(files: TokenizerFiles) -> Any:
    tokenizers = import_package("tokenizers", "reading tokenizer.json")
    with _sound(files.folder / "tokenizer.json"):
        tokenizer = tokenizers.Tokenizer.from_str(files.guarded)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode("a")
    return tokenizer


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Convert errors of `tokenizers` to ModelFileError: Exception, or PanicException, which is not a subclass of it."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, EdgespecError) or (
            not isinstance(error, Exception) and type(error).__name__ != "PanicException"
        ):
            raise
        reason = " ".join(str(error).split())
        raise ModelFileError(f"{path} is not a valid tokenizer: {reason}; copy it from the checkpoint again") from error
