"""llama.cpp reads the converted vocabulary and tokenizes as the original does.

The texts here are none of the converter's own probes, but a random walk over many scripts and kinds of
characters.
"""

from __future__ import annotations

import json
import os
import random
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from tokenizers import Tokenizer

from edgespec.converters import Note, convert, native, tokenizer_check, vocabulary
from edgespec.converters import gguf as gguf_writer
from edgespec.converters.checkpoint import Checkpoint
from edgespec.errors import ConversionError

from . import checkpoints

_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789",
    "   \n\t\r",
    "'\"`.,;:!?-_()[]{}<>/\\|@#$%^&*+=~",
    "àéîõüßøåčłęğıŞ",
    "абвгдеёжзийклмнопрстуфхцчшщъыьэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "你好世界今天天气很好漢字仮名",
    "あいうえおカキクケコー",
    "안녕하세요세계",
    "ابتثجحخدذرزسش",
    "אבגדהוזחטי",
    "कखगघङचछजझञ\u093e\u093f\u0940\u094d",
    "กขคงจฉชซ\u0e31\u0e34\u0e48",
    "😀😃👍🏽👩\u200d🇩🇪🏳️🌈",
    "\u0301\u0308\u0303",
    "²³½Ⅷ①",
    "→∑≤€§“”‘’—…",
)
_WORDS = (
    "don't",
    "I'LL",
    "we've",
    "THEY'RE",
    "it's",
    "1234567",
    "3.14",
    "  ",
    "\n\n",
    "def f(x):",
    "https://a.b/c?d=e",
    "Straße",
)


def texts(n: int = 1500, seed: int = 7) -> Iterator[str]:
    draw = random.Random(seed)  # noqa: S311 - test texts
    for _ in range(n):
        parts = []
        for _ in range(draw.randint(1, 8)):
            if draw.random() < 0.3:
                parts.append(draw.choice(_WORDS))
            else:
                alphabet = draw.choice(_ALPHABETS)
                parts.append("".join(draw.choice(alphabet) for _ in range(draw.randint(1, 6))))
            parts.append(draw.choice(("", "", " ", "  ", "\n")))
        yield "".join(parts)


def run(source: Path, output: Path) -> Path:
    for _ in convert(source, output, quantization="f16"):
        pass
    return output


@contextmanager
def tokenizer(source: Path, output: Path) -> Iterator[native.LlamaTokenizer]:
    with native.LlamaTokenizer(run(source, output)) as found:
        yield found


def fields(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def original(source: Path) -> Any:
    found = Tokenizer.from_file(str(source / "tokenizer.json"))
    found.encode_special_tokens = True
    return found


PRE = {
    "gpt-2": "gpt-2",
    "llama-3": "llama-bpe",
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "qwen35": "qwen35",
    "smollm": "smollm",
    "cl100k": "smaug-bpe",
    "o200k": "granite-embed-multi-97m",
    "tekken": "tekken",
}
#: What a user is told of each: what to do beforehand, or where llama.cpp cuts otherwise.
NOTES = {
    "qwen2": ["NFC"],
    "qwen3": ["NFC"],
    "qwen35": ["NFC"],
    "o200k": ["such as FÜR"],
    "tekken": ["as Hindi and Thai", "such as FÜR"],
}
_MARK_OR_CAPITALS = re.compile(r"[^\W\da-zA-Z_][A-Z]")


def beyond(kind: str, text: str) -> bool:
    """Whether llama.cpp is known to cut this text otherwise."""
    marked = kind == "tekken" and any(unicodedata.category(character)[0] == "M" for character in text)
    return marked or (kind in {"o200k", "tekken"} and bool(_MARK_OR_CAPITALS.search(text)))


@pytest.mark.parametrize("kind", checkpoints.BYTE_LEVEL)
def test_byte_level(kind: str, tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", tokenizer=kind)
    judge = original(source)
    with tokenizer(source, tmp_path / "model.gguf") as ours:
        for text in texts():
            if beyond(kind, text):
                continue
            if kind in {"qwen2", "qwen3", "qwen35"}:
                text = unicodedata.normalize("NFC", text)  # noqa: PLW2901
            assert ours.encode(text) == judge.encode(text, add_special_tokens=False).ids, text
    assert fields(tmp_path / "model.gguf")["tokenizer.ggml.pre"] == PRE[kind]
    notes = [step.text for step in convert(source, tmp_path / "again.gguf") if isinstance(step, Note)]
    assert [words in note for words, note in zip(NOTES.get(kind, []), notes, strict=True)] == [True] * len(notes)


def test_capitals_beyond_ascii_are_all_that_is_let_pass(tmp_path: Path) -> None:
    """llama.cpp cuts FÜR after FÜ. A word of it in small letters that were cut wrongly would be refused."""
    source = checkpoints.llama(tmp_path / "source", tokenizer="o200k")
    corpus = (*checkpoints.CORPUS, *["FÜR ÜBERALL FÜR ÜBER ALLES FÜR"] * 9)
    (source / "tokenizer.json").write_text(checkpoints.byte_level_json("o200k", corpus=corpus), encoding="utf-8")
    judge = original(source)
    with tokenizer(source, tmp_path / "model.gguf") as ours:
        tokens = judge.encode(" FÜR", add_special_tokens=False).ids
        assert len(tokens) == 1
        assert ours.encode(" FÜR") != tokens, "the reason for the note"
        assert ours.encode(" für") == judge.encode(" für", add_special_tokens=False).ids


def test_real_tokenizers() -> None:
    """With EDGESPEC_TOKENIZERS naming a folder of folders with a tokenizer.json: each has one of llama.cpp's."""
    folder = os.environ.get("EDGESPEC_TOKENIZERS")
    if not folder:
        pytest.skip("EDGESPEC_TOKENIZERS names no folder of real tokenizers")
    for path in sorted(Path(folder).glob("*/tokenizer.json")):
        entries = json.loads(path.read_text(encoding="utf-8"))
        tokens = {*entries["model"]["vocab"].values(), *(entry["id"] for entry in entries["added_tokens"])}
        checkpoint = Checkpoint(path.parent, {"eos_token_id": 2}, {}, {})
        spec = vocabulary.read(checkpoint, max(tokens) + 1)
        assert tokenizer_check.matching_candidate(spec, gguf_writer.open_tokenizer, "llama.cpp").tokens, path


@pytest.mark.parametrize("kind", checkpoints.SENTENCEPIECE)
def test_sentencepiece(kind: str, tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", tokenizer=kind, config={"bos_token_id": 1})
    judge = sentencepiece.SentencePieceProcessor(model_proto=checkpoints.sentencepiece_model())
    with tokenizer(source, tmp_path / "model.gguf") as ours:
        for text in texts():
            assert ours.encode(text) == judge.encode(text), text
    found = fields(tmp_path / "model.gguf")
    assert found["tokenizer.ggml.model"] == "llama"
    assert found["tokenizer.ggml.add_space_prefix"] is True
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert found["tokenizer.ggml.add_eos_token"] is False
    kinds = found["tokenizer.ggml.token_type"]
    assert kinds[:4] == [2, 3, 3, 6], "unknown, two control tokens, then the bytes"
    assert kinds.count(6) == 256
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in ("unknown", "bos", "eos")] == [0, 1, 2]


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_metaspace(scheme: str, tmp_path: Path) -> None:
    """Newer files of the same kind have a pre-tokenizer in place of the normalizer. What differs is noted."""
    source = checkpoints.llama(tmp_path / "source", tokenizer="spm-json")
    step = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    rewrite(source / "tokenizer.json", lambda d: d.update(normalizer=None, pre_tokenizer=step))
    judge = original(source)
    output = tmp_path / "model.gguf"
    notes = [step.text for step in convert(source, output) if isinstance(step, Note)]
    assert sum("Metaspace" in note for note in notes) == 1
    with native.LlamaTokenizer(output) as ours:
        for text in texts(300):
            text = text.lstrip(" ")  # noqa: PLW2901
            assert ours.encode(text) == judge.encode(text, add_special_tokens=False).ids, text
    assert fields(output)["tokenizer.ggml.add_space_prefix"] is (scheme != "never")


@pytest.mark.parametrize("kind", [*checkpoints.BYTE_LEVEL, "spm-json"])
def test_special_tokens_are_special_only_when_asked(kind: str, tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", tokenizer=kind)
    judge = original(source)
    special = "<s>" if kind == "spm-json" else "<|im_start|>"  # llama.cpp knows the ends by their text
    token = judge.token_to_id(special)
    with tokenizer(source, tmp_path / "model.gguf") as ours:
        for text in (f"a {special}b", special, f"{special}\n{special}"):
            plain = judge.encode(text, add_special_tokens=False).ids
            assert ours.encode(text) == plain
            assert token not in plain
            judge.encode_special_tokens = False
            recognised = judge.encode(text, add_special_tokens=False).ids
            judge.encode_special_tokens = True
            assert ours.encode(text, special=True) == recognised
            assert token in recognised


def test_added_tokens_that_are_not_special_always_count(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    judge = original(source)
    text = f"call{checkpoints.USER_DEFINED} now"
    with tokenizer(source, tmp_path / "model.gguf") as ours:
        assert ours.encode(text) == judge.encode(text, add_special_tokens=False).ids
        assert judge.token_to_id(checkpoints.USER_DEFINED) in ours.encode(text)


def test_the_hint_is_only_a_hint(tmp_path: Path) -> None:
    """Llama 3's way of cutting, but merges not ignored: another of llama.cpp's names, found by trying."""
    source = checkpoints.llama(tmp_path / "source", tokenizer="llama-3")

    def change(description: dict[str, Any]) -> None:
        model = description["model"]
        model["ignore_merges"] = False
        model["merges"].remove(next(m for m in model["merges"] if "".join(m) == "Ġthe"))  # now unreachable: Ġthe

    rewrite(source / "tokenizer.json", change)
    judge = original(source)
    with tokenizer(source, tmp_path / "model.gguf") as ours:
        assert ours.encode(" the") == judge.encode(" the", add_special_tokens=False).ids
    assert fields(tmp_path / "model.gguf")["tokenizer.ggml.pre"] == "smaug-bpe"


def test_merges_as_strings(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    before = run(source, tmp_path / "pairs.gguf").read_bytes()

    def change(description: dict[str, Any]) -> None:
        description["model"]["merges"] = [" ".join(merge) for merge in description["model"]["merges"]]

    rewrite(source / "tokenizer.json", change)
    assert run(source, tmp_path / "strings.gguf").read_bytes() == before


def test_padding_is_never_produced(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", padding=5)
    size = json.loads((source / "config.json").read_text())["vocab_size"]
    with tokenizer(source, tmp_path / "model.gguf") as ours:
        assert max(ours.encode(f"[PAD{size - 1}]", special=True)) < size - 5
    found = fields(tmp_path / "model.gguf")
    assert found["tokenizer.ggml.token_type"][-5:] == [5] * 5
    assert len(found["tokenizer.ggml.tokens"]) == size


def test_what_is_added_to_a_text(tmp_path: Path) -> None:
    """By the post-processor; by tokenizer_config where that says so."""
    source = checkpoints.llama(tmp_path / "source")
    assert fields(run(source, tmp_path / "none.gguf"))["tokenizer.ggml.add_bos_token"] is False
    token = checkpoints.SPECIALS[0]

    def template(description: dict[str, Any]) -> None:
        description["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": token, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [0], "tokens": [token]}},
        }

    rewrite(source / "tokenizer.json", template)
    found = fields(run(source, tmp_path / "bos.gguf"))
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert found["tokenizer.ggml.add_eos_token"] is False
    rewrite(
        source / "tokenizer_config.json",
        lambda settings: settings.update(add_bos_token=False, add_eos_token=True),
    )
    found = fields(run(source, tmp_path / "eos.gguf"))
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert found["tokenizer.ggml.add_eos_token"] is True


REFUSED: dict[str, tuple[str, str, Callable[[dict[str, Any]], None]]] = {
    "unigram": ("gpt-2", "Unigram", lambda d: d["model"].update(type="Unigram")),
    "wordpiece": ("gpt-2", "WordPiece", lambda d: d["model"].update(type="WordPiece")),
    "plain BPE": ("gpt-2", "neither a ByteLevel", lambda d: d.update(pre_tokenizer={"type": "Whitespace"})),
    "lowercase": ("gpt-2", "Lowercase", lambda d: d.update(normalizer={"type": "Lowercase"})),
    "unknown cut": (
        "gpt-2",
        "agrees",
        lambda d: d.update(
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"String": "e"}, "behavior": "Isolated", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                ],
            }
        ),
    ),
    "prefix space": ("gpt-2", "agrees", lambda d: d["pre_tokenizer"].update(add_prefix_space=True)),
    "twins": (
        "gpt-2",
        "same text",
        lambda d: d["added_tokens"][0].update(content=d["added_tokens"][1]["content"]),
    ),
    "missing bytes": ("spm-json", "byte tokens", lambda d: d["model"]["vocab"].pop("<0x41>")),
    "broken": ("gpt-2", "not a sound tokenizer", lambda d: d["model"].update(vocab={"a": "b"})),
    "panic": ("spm-json", "not a sound tokenizer", lambda d: d["post_processor"]["special_tokens"].clear()),
    "subwords": ("gpt-2", "continuing_subword", lambda d: d["model"].update(continuing_subword_prefix="##")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, tmp_path: Path) -> None:
    kind, message, change = REFUSED[case]
    source = checkpoints.llama(tmp_path / "source", tokenizer=kind)
    rewrite(source / "tokenizer.json", change)
    (tmp_path / "out").mkdir()
    with pytest.raises(ConversionError, match=message) as caught:
        run(source, tmp_path / "out" / "model.gguf")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "out").iterdir())


def test_too_few_rows_for_the_tokenizer(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", padding=-1)
    with pytest.raises(ConversionError, match="outside the vocabulary"):
        run(source, tmp_path / "model.gguf")


def test_sentencepiece_models_of_other_kinds(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", tokenizer="spm-model")
    (source / "tokenizer.model").write_bytes(checkpoints.sentencepiece_model(450, "unigram"))
    with pytest.raises(ConversionError, match="Unigram"):
        run(source, tmp_path / "model.gguf")
    (source / "tokenizer.model").write_bytes(checkpoints.sentencepiece_model(600, "bpe", byte_fallback=False))
    with pytest.raises(ConversionError, match="byte_fallback"):
        run(source, tmp_path / "model.gguf")
    (source / "tokenizer.model").write_bytes(b"rank file")
    with pytest.raises(ConversionError, match="not a SentencePiece model"):
        run(source, tmp_path / "model.gguf")


def test_without_an_end_or_a_beginning(tmp_path: Path) -> None:
    """llama.cpp would take token 11 for either."""
    source = checkpoints.llama(tmp_path / "source", config={"eos_token_id": None, "bos_token_id": None})
    rewrite(source / "tokenizer_config.json", lambda settings: settings.update(bos_token=None))
    found = fields(run(source, tmp_path / "model.gguf"))
    assert found["tokenizer.ggml.bos_token_id"] == found["tokenizer.ggml.eos_token_id"] == 2
    rewrite(source / "tokenizer_config.json", lambda settings: settings.update(eos_token=None))
    with pytest.raises(ConversionError, match="no eos token"):
        run(source, tmp_path / "other.gguf")


def test_more_ends_than_gguf_can_name(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", generation={"eos_token_id": [2, 300, 301, 302]})
    with pytest.raises(ConversionError, match="eos_token_id"):
        run(source, tmp_path / "model.gguf")
