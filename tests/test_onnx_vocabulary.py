"""A tokenizer.json read by us is what llama.cpp reads of the same checkpoint's GGUF."""

from __future__ import annotations

import json
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec import Device, Interrupt
from edgespec.backends import Vocabulary, open_model, require_same_tokens
from edgespec.backends.onnx_vocabulary import OnnxVocabulary, TokenizerFiles
from edgespec.converters import convert
from edgespec.converters.tokenizer_texts import TEXTS
from edgespec.errors import ModelFileError, TemplateError
from edgespec.text.template import ChatTemplate

from . import checkpoints
from .pair_checkpoints import checkpoint_of

NASTY = (
    *TEXTS,
    *checkpoints.CORPUS,
    "",
    "\ud800 half an emoji",
    "<|im_end|>",
    "a <|im_start|>user\nhello<|im_end|>\n",
    "</s> <s> <unk> <0x0A> <tool>x",
    "a" * 3000,
)
KINDS = ("gpt-2", "llama-3", "qwen2", "smollm", "spm-json", "spm-both")


def converted(source: Path, output: Path) -> Path:
    list(convert(source, output, quantization="f32"))
    return output


@pytest.fixture(scope="module", params=[*KINDS, "target", "draft"])
def both(
    request: pytest.FixtureRequest, small_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Any]]:
    """The vocabulary of one checkpoint by llama.cpp and by us."""
    folder = tmp_path_factory.mktemp("vocabulary")
    if request.param in KINDS:
        generation = {"eos_token_id": [2, 1], "temperature": 0.6, "top_k": 20}
        source = checkpoints.llama(folder / "source", tokenizer=request.param, padding=7, generation=generation)
    else:
        source = checkpoint_of(small_pair[request.param], folder / "source")
    model = open_model(converted(source, folder / "model.gguf"), Device(threads=1), Interrupt())
    files = TokenizerFiles(source)
    assert files.sampling == pytest.approx(model.sampling)
    yield model.vocabulary, OnnxVocabulary(files, model.vocabulary.size)
    model.close()


def test_every_token_is_the_same(both: tuple[Vocabulary, Vocabulary]) -> None:
    theirs, ours = both
    for token in range(theirs.size):
        assert ours.label(token) == theirs.label(token)
        assert ours.token_bytes(token) == theirs.token_bytes(token), theirs.label(token)
        assert ours.is_eog(token) == theirs.is_eog(token), theirs.label(token)
    assert list(ours.specials()) == list(theirs.specials())
    assert ours.bos == theirs.bos
    assert (ours.template or "") == (theirs.template or "")
    require_same_tokens(theirs, ours)
    require_same_tokens(ours, theirs)


def test_every_text_is_the_same(both: tuple[Vocabulary, Vocabulary]) -> None:
    """Special tokens or not, at the start of a text or not."""
    theirs, ours = both
    unlike = [
        (text, special, start)
        for text in NASTY
        for special in (False, True)
        for start in (False, True)
        if ours.tokenize(text, special=special, start=start) != theirs.tokenize(text, special=special, start=start)
    ]
    assert not [each for each in unlike if unicodedata.is_normalized("NFC", each[0])], "which llama.cpp cannot do"


def test_users_cannot_spell_special_tokens(both: tuple[Vocabulary, Vocabulary]) -> None:
    _, ours = both
    for special in ours.specials():
        (token,) = ours.tokenize(special, special=True)
        assert ours.token_bytes(token) == b""
        for text in (special, f"a {special}", f"{special}{special}\n"):
            assert token not in ours.tokenize(text)
            assert b"".join(map(ours.token_bytes, ours.tokenize(text))).decode().strip() == text.strip()


def written(folder: Path, *, settings: dict[str, Any] | None = None, **files: Any) -> OnnxVocabulary:
    """A vocabulary of the qwen2 kind, its files changed."""
    folder.mkdir(exist_ok=True)
    checkpoints.write_tokenizer(folder, "qwen2")
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    for name, content in files.items():
        path = folder / (f"{name}.json" if isinstance(content, dict) else name.replace("_jinja", ".jinja"))
        path.write_text(json.dumps(content) if isinstance(content, dict) else content)
    return OnnxVocabulary(TokenizerFiles(folder), 800)


CHAT = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi</s><|im_end|>"},
    {"role": "user", "content": "Bye"},
]


@pytest.mark.parametrize("begins", [True, False])
def test_prompts_have_the_same_bos_and_eos_in_either_engine(both: tuple[Any, Any], begins: bool) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    )
    prompts = []
    for vocabulary in both:
        vocabulary.template = ("{{ bos_token }}" if begins else "") + template
        tokens = ChatTemplate(vocabulary).tokens(CHAT)
        asks = vocabulary.tokenize("", start=True) != []
        assert tokens.count(vocabulary.eos) == 1 + (vocabulary.eos == vocabulary.bos) * (begins or asks)
        if vocabulary.bos is not None:
            assert (tokens[0] == vocabulary.bos) == (begins or asks)
            assert tokens[1] != vocabulary.bos
        prompts.append(tokens)
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("where", ["chat_template_jinja", "settings"])
def test_a_template_that_is_not_utf_8_is_refused_when_it_is_needed(tmp_path: Path, where: str) -> None:
    if where == "settings":
        ours = written(tmp_path, settings={"chat_template": "{{ 1 }}\ud800"})
    else:
        written(tmp_path)
        (tmp_path / "chat_template.jinja").write_bytes(b"{{ 1 }}\xff")
        ours = OnnxVocabulary(TokenizerFiles(tmp_path), 800)
    assert ours.tokenize("a")
    with pytest.raises(TemplateError, match="not UTF-8 at character 7"):
        ChatTemplate(ours)


def test_a_pattern_that_gives_up_on_a_text_is_told(tmp_path: Path) -> None:
    """It ended the process with a PanicException, which is no Exception."""
    checkpoints.write_tokenizer(tmp_path, "qwen2")
    path = tmp_path / "tokenizer.json"
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps({**json.loads(path.read_text()), "pre_tokenizer": pattern}))
    ours = OnnxVocabulary(TokenizerFiles(tmp_path), 800)
    assert ours.tokenize("a")
    with pytest.raises(ModelFileError, match=r"tokenizer.json is not a valid tokenizer.*retry-limit"):
        ours.tokenize("a" * 40 + "b")
    assert ours.tokenize("a")


def test_a_bos_is_put_where_the_settings_or_the_tokenizer_say_so(tmp_path: Path) -> None:
    bos = {"bos_token": {"content": "<|endoftext|>"}, "eos_token": "<|im_end|>"}
    assert written(tmp_path, settings=bos).tokenize("a", start=True) == written(tmp_path, settings=bos).tokenize("a")
    ours = written(tmp_path, settings={**bos, "add_bos_token": True})
    assert ours.tokenize("a", start=True) == [0, *ours.tokenize("a")]
    assert ours.tokenize("", start=True) == [0]
    source = checkpoints.llama(tmp_path / "spm", tokenizer="spm-json")
    assert OnnxVocabulary(TokenizerFiles(source), 600).tokenize("", start=True) == [1], "its post-processor says so"
    (source / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "add_bos_token": False}))
    assert OnnxVocabulary(TokenizerFiles(source), 600).tokenize("", start=True) == []


def test_a_token_that_ends_turns_is_special_whatever_the_file_says(tmp_path: Path) -> None:
    """Else a user's text could end its own turn."""
    checkpoints.write_tokenizer(tmp_path, "qwen2")
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace('"special": true', '"special": false').replace('"special":true', ""))
    assert '"special": true' not in path.read_text()
    ours = OnnxVocabulary(TokenizerFiles(tmp_path), 800)
    assert list(ours.specials()) == ["<|endoftext|>", "<|im_end|>"]
    assert 2 not in ours.tokenize("x<|im_end|>")
    assert ours.tokenize("<|im_end|>", special=True) == [2]
    assert ours.is_eog(2)
    assert ours.token_bytes(2) == b""


@pytest.mark.parametrize(
    ("added", "ends"),
    [
        (["<|end|>"], ["<|end|>"]),
        (["<|end|>", "<|return|>", "<|call|>"], ["<|return|>", "<|call|>"]),
        (["<|end|>", "<|calls|>", "<|flush|>"], ["<|calls|>", "<|flush|>"]),
    ],
)
def test_the_end_of_a_message_is_no_end_where_others_end_the_turn(
    tmp_path: Path, added: list[str], ends: list[str]
) -> None:
    """gpt-oss ends its reasoning with "<|end|>", and then gives the answer."""
    checkpoints.write_tokenizer(tmp_path, "qwen2")
    path = tmp_path / "tokenizer.json"
    description = json.loads(path.read_text())
    first = max(entry["id"] for entry in description["added_tokens"])
    first = max(first, *description["model"]["vocab"].values()) + 1
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    description["added_tokens"] += [{"id": first + i, "content": text, **flags} for i, text in enumerate(added)]
    path.write_text(json.dumps(description))
    ours = OnnxVocabulary(TokenizerFiles(tmp_path), 800)
    assert [text for text in added if ours.is_eog(ours.tokenize(text, special=True)[0])] == ends


def test_ends_and_templates_by_their_places(tmp_path: Path) -> None:
    eos = {
        "eos_token": "<tool>",
        "chat_template": [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}],
    }
    ours = written(tmp_path, settings=eos, generation_config={"eos_token_id": 300}, config={"eos_token_id": 301})
    assert [token for token in range(800) if ours.is_eog(token)] == [0, 2, 300, *ours.tokenize("<tool>")]
    assert ours.template == "D"
    assert ours.bos is None
    ours = written(tmp_path, chat_template_jinja="J", generation_config={}, config={"eos_token_id": 301})
    assert ours.template == "J"
    assert ours.is_eog(301)
    assert written(tmp_path / "other", settings={}).template is None


def test_sampling_as_the_generation_config_has_it(tmp_path: Path) -> None:
    def sampling(**given: Any) -> dict[str, float]:
        written(tmp_path, generation_config=given)
        return TokenizerFiles(tmp_path).sampling

    assert sampling(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, max_length=7) == {
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "repetition_penalty": 1.05,
    }
    assert sampling(do_sample=False, temperature=0.7) == {"temperature": 0.0}
    assert sampling(temperature=None, top_k=True, min_p="0.1") == {}
    assert sampling(top_k=20.0, top_p=5.0, temperature=float("nan")) == {"top_k": 20}
    assert [notice.split(" in ")[0] for notice in TokenizerFiles(tmp_path).ignored] == [
        "temperature is nan",
        "top_p is 5.0",
    ]


class Slow:
    """A tokenizer on which another thread's turn comes just after its switch was set."""

    def __init__(self, tokenizer: Any) -> None:
        self.__dict__["tokenizer"] = tokenizer

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["tokenizer"], name, value)
        time.sleep(0.001)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["tokenizer"], name)


def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The tokenizer's own switch for special tokens is one for all."""
    ours = written(tmp_path)
    ours._opened = Slow(ours._opened)
    wrong: list[bool] = []

    def ask(special: bool) -> None:
        wrong.extend((ours.tokenize("<|im_end|>", special=special) == [2]) != special for _ in range(50))

    threads = [threading.Thread(target=ask, args=(special,)) for special in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 100
    assert not any(wrong)
