"""The tokenizer of a checkpoint as GGUF stores it.

Two kinds are supported: byte-level BPE (bytelevel.py) and SentencePiece-style BPE (spm.py). Both read what the files
state and list candidates for what they do not: which of llama.cpp's pre-tokenizers applies, and whether a space is
prefixed. tokenizer_check.py chooses the candidate that tokenizes as the original does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edgespec.converters.checkpoint import Checkpoint, Json
from edgespec.errors import ConversionError
from edgespec.extras import import_package
from edgespec.storage.files import is_text

# Token types of GGUF (enum llama_token_type in llama.h).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """`tokens[i]` is the text of token i, `types[i]` its GGUF type; `ids` maps "bos", "eos"... to tokens."""

    model: str  #: "gpt2" or "llama", which are llama.cpp's names for the two kinds
    pre: str  #: one of llama.cpp's pre-tokenizers
    tokens: list[str]
    types: list[int]
    ids: Mapping[str, int]
    add_bos: bool
    add_eos: bool
    scores: list[float] | None = None
    merges: list[str] | None = None
    add_space_prefix: bool | None = None


class Reference(Protocol):
    """The original tokenizer."""

    def encode(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        """Tokens of each text, none added; with `special`, special tokens in a text are recognised."""

    def normalize(self, text: str) -> str:
        """The text after the tokenizer's normalization, which llama.cpp lacks."""


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """The candidates for a checkpoint's tokenizer, the likeliest first, and the original to compare them with.

    Args:
        what: the kind of tokenizer, for error messages.
        candidates: the possible vocabularies.
        reference: the original tokenizer.
        ends: all tokens at which generation has to stop.
        pieces: texts from the vocabulary.
        specials: added tokens that both tokenizers have to recognise, each with a text that contains it.
        notes: limitations of the converted tokenizer, for the user.
        beyond: whether a text is affected by these limitations, and so not compared.
    """

    what: str
    candidates: Sequence[GgufVocabulary]
    reference: Reference
    ends: tuple[int, ...]
    pieces: Sequence[str]
    specials: Sequence[tuple[int, str]] = ()
    notes: Sequence[str] = ()
    beyond: Callable[[str], bool] = lambda _text: False


def read(checkpoint: Checkpoint, size: int) -> TokenizerSpec:
    """The tokenizer of `checkpoint`, padded to `size` tokens. ConversionError for an unsupported kind."""
    from edgespec.converters import bytelevel, spm  # noqa: PLC0415 - they import this module

    description = checkpoint.json("tokenizer.json")
    if description is None:
        if (checkpoint.folder / "tokenizer.model").is_file():
            return spm.read(checkpoint, None, size)
        raise ConversionError(f"{checkpoint.folder} has no tokenizer.json or tokenizer.model; fetch one of them, too")
    model = description.get("model")
    model = model if isinstance(model, dict) else {}
    kind = model.get("type") or ("BPE" if "merges" in model else "unknown")
    if kind != "BPE":
        raise ConversionError(
            f"{checkpoint.folder / 'tokenizer.json'}: {kind} tokenizers are not supported; byte-level and "
            "SentencePiece-style BPE are"
        )
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise ConversionError(f"{checkpoint.folder / 'tokenizer.json'}: BPE with a {key} is not supported")
    if model.get("byte_fallback"):
        return spm.read(checkpoint, description, size)
    if has_step(description.get("pre_tokenizer"), "ByteLevel"):
        return bytelevel.read(checkpoint, description, size)
    raise ConversionError(
        f"{checkpoint.folder / 'tokenizer.json'}: this BPE has neither a ByteLevel pre-tokenizer nor "
        "byte_fallback; byte-level and SentencePiece-style BPE are supported"
    )


def steps(stage: Any) -> list[Json]:
    """A normalizer, pre-tokenizer or post-processor as the list of its steps."""
    if not isinstance(stage, dict):
        return []
    if stage.get("type") != "Sequence":
        return [stage]
    inner = stage.get("normalizers") or stage.get("pretokenizers") or stage.get("processors") or []
    return [step for part in inner for step in steps(part)] if isinstance(inner, list) else []


def has_step(stage: Any, kind: str) -> bool:
    return any(step.get("type") == kind for step in steps(stage))


class TokenList:
    """Collects the texts and types of tokens, one for each id."""

    def __init__(self, checkpoint: Checkpoint, size: int) -> None:
        self._folder, self._size = checkpoint.folder, size
        self._entries: dict[int, tuple[str, int]] = {}

    def put(self, token: int, text: str, kind: int) -> None:
        """Set a token; a later call for the same id replaces an earlier one, as added tokens do the model's own."""
        if not isinstance(token, int) or not 0 <= token < self._size:
            raise ConversionError(
                f"{self._folder}: the tokenizer's token {token!r} ({text!r}) is outside the vocabulary of "
                f"{self._size} that config.json gives; fetch both files again"
            )
        self._entries[token] = (text, kind)

    def lists(self) -> tuple[list[str], list[int]]:
        """Texts and types of all tokens, with unused placeholders for missing ids.

        ConversionError if two tokens have the same text, for which llama.cpp would abort the process.
        """
        taken = {text for text, _ in self._entries.values()}
        texts, types, seen = [], [], dict[str, int]()
        for token in range(self._size):
            text, kind = self._entries.get(token, (_placeholder(token, taken), UNUSED))
            if seen.setdefault(text, token) != token:
                raise ConversionError(
                    f"{self._folder}: the tokens {seen[text]} and {token} have the same text {text!r}; "
                    "fetch the tokenizer again"
                )
            texts.append(text)
            types.append(kind)
        return texts, types


def _placeholder(token: int, taken: set[str]) -> str:
    text = f"[PAD{token}]"
    while text in taken:
        text = f"[{text}]"
    return text


def added_tokens(checkpoint: Checkpoint, description: Json | None, size: int) -> list[Json]:
    """Added tokens, each with `id`, `content` and `special`, from all files that can define them.

    Special tokens of tokenizer.json outside the vocabulary are left out: they belong to another model of the family.
    (The file of Gemma 3's text models has an image token.)
    """
    if description is not None:  # tokenizer.json is complete: the original tokenizer reads nothing else
        entries = _entries(checkpoint.folder / "tokenizer.json", description.get("added_tokens") or [])
        kept = [entry for entry in entries if entry["id"] < size or not entry.get("special")]
    else:
        kept = [*_listed(checkpoint), *_decoded(checkpoint)]
    found = {entry["id"]: entry for entry in kept}
    return [found[token] for token in sorted(found)]


def _listed(checkpoint: Checkpoint) -> list[Json]:
    """The added tokens of added_tokens.json."""
    given = checkpoint.json("added_tokens.json") or {}
    entries = [{"id": token, "content": text, "special": True} for text, token in given.items()]
    return _entries(checkpoint.folder / "added_tokens.json", entries)


def _decoded(checkpoint: Checkpoint) -> list[Json]:
    """The added tokens of tokenizer_config.json."""
    given = (checkpoint.json("tokenizer_config.json") or {}).get("added_tokens_decoder")
    pairs = given.items() if isinstance(given, dict) else ()
    entries = [
        {**entry, "id": int(key) if len(key) < 10 and key.isdecimal() else key}
        for key, entry in pairs
        if isinstance(entry, dict)
    ]
    if len(entries) < len(pairs):
        entries.append({})
    return _entries(checkpoint.folder / "tokenizer_config.json", entries)


def _entries(path: Path, given: Any) -> list[Json]:
    """`given`, if it is a list of added tokens. ConversionError if not."""
    for entry in given if isinstance(given, list) else [given]:
        if not isinstance(entry, dict) or type(entry.get("id")) is not int or not is_text(entry.get("content")):
            raise ConversionError(
                f"{path} has an added token {entry!a:.80}; expected objects with a number as id and a text as content: "
                "fetch it again"
            )
    return list(given)


def special_texts(entries: Iterable[Json]) -> list[tuple[int, str]]:
    """Added tokens, each with a text that contains it; without those that strip adjacent spaces, unlike llama.cpp's."""
    plain = [entry for entry in entries if not (entry.get("lstrip") or entry.get("rstrip"))]
    return [(entry["id"], f"one {entry['content']}two\n{entry['content']} three") for entry in plain[:512]]


class SpecialTokens:
    """The special tokens bos, eos, unk and pad by tokenizer_config.json, special_tokens_map.json and config.json."""

    def __init__(self, checkpoint: Checkpoint, find: Callable[[str], int | None], size: int) -> None:
        self._checkpoint, self._find, self._size = checkpoint, find, size
        self._settings = {
            **(checkpoint.json("special_tokens_map.json") or {}),
            **(checkpoint.json("tokenizer_config.json") or {}),
        }

    def ids(self) -> dict[str, int]:
        """The ids of "bos" and "eos", and of "unk" and "pad" if there are any. ConversionError without an eos.

        Without a bos or eos in the file llama.cpp uses fixed ids, so both are always set; a missing bos is the eos.
        """
        found = {name: self._one(name) for name in ("bos", "eos", "unk", "pad")}
        if found["eos"] is None:
            raise ConversionError(
                f"{self._checkpoint.folder}: no eos token in tokenizer_config.json or config.json, "
                "at which a text ends; add eos_token_id to config.json"
            )
        if found["bos"] is None:
            found["bos"] = found["eos"]
        return {name: token for name, token in found.items() if token is not None}

    def _one(self, name: str) -> int | None:
        text = self._settings.get(f"{name}_token")
        if isinstance(text, dict):
            text = text.get("content")
        if isinstance(text, str) and not is_text(text):
            raise ConversionError(
                f"{self._checkpoint.folder}: {name}_token is {text!a:.80}, which is not text; fetch the files of the "
                "tokenizer again"
            )
        if isinstance(text, str) and (token := self._find(text)) is not None:
            return token
        numbers = self._numbers(self._checkpoint.config, name) or self._numbers(self._checkpoint.generation, name)
        return numbers[0] if numbers else None

    def _numbers(self, config: Json, name: str) -> list[int]:
        value = config.get(f"{name}_token_id")
        values = value if isinstance(value, list) else [value]
        return [token for token in values if type(token) is int and 0 <= token < self._size]

    def ends(self) -> tuple[int, ...]:
        """All tokens that end a generation, the tokenizer's own eos first.

        As in transformers, those of generation_config.json, else those of config.json.
        """
        eos = self._one("eos")
        listed = self._numbers(self._checkpoint.generation, "eos") or self._numbers(self._checkpoint.config, "eos")
        return tuple(dict.fromkeys([*([] if eos is None else [eos]), *listed]))

    def adds(self, name: str, default: bool) -> bool:
        """Whether the tokenizer adds "bos" or "eos" to a text: by its config, else `default`."""
        given = self._settings.get(f"add_{name}_token")
        return (given if isinstance(given, bool) else default) and self._one(name) is not None


class TokenizersReference:
    """A tokenizer.json as the `tokenizers` package runs it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        tokenizers = import_package("tokenizers", "reading tokenizer.json")
        self._path = checkpoint.folder / "tokenizer.json"
        with self._checked():
            self.tokenizer = tokenizers.Tokenizer.from_file(str(self._path))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def encode(self, texts: Sequence[str], special: bool = False) -> list[list[int]]:
        self.tokenizer.encode_special_tokens = not special
        with self._checked():
            return [found.ids for found in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def normalize(self, text: str) -> str:
        return text

    def adds(self, token: int | None, place: int) -> bool:
        """Whether the post-processor puts `token` at the `place` (0 or -1) of a text."""
        with self._checked():
            ids = self.tokenizer.encode("a", add_special_tokens=True).ids
            bare = self.tokenizer.encode("a", add_special_tokens=False).ids
        return token is not None and len(ids) > len(bare) and ids[place] == token

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Convert errors of the package: Exception or PanicException, which is not a subclass of Exception."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            reason = " ".join(str(error).split())
            raise ConversionError(f"{self._path} is not a sound tokenizer: {reason}; fetch it again") from error
