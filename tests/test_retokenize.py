"""Text between two vocabularies: nothing is added, nothing lost, and special tokens go by their label."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from edgespec.backends import Vocabulary
from edgespec.text.retokenize import Context, Line, SpecialTokens, Writer, mark, parts, settled, whole

from . import checkpoints
from .test_convert_tokenizer import texts
from .vocabularies import KINDS, Toy, spelt


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_goes_on_gets_no_space(vocabularies: Mapping[str, Vocabulary], kind: str) -> None:
    vocabulary = vocabularies[kind]
    writer = Writer(vocabulary)
    for text in (*texts(200), "", " ", "  a", "\n", "\n\nb", "word", " word", ".com", "0"):
        assert spelt(vocabulary, writer.tokens(text)) == text.encode(), text
    assert (spelt(vocabulary, vocabulary.tokenize("word")) != b"word") == (kind == "spm-both"), "or nothing was tested"


def test_whole_characters() -> None:
    for character in "aé你😀":
        encoded = character.encode()
        for cut in range(1, len(encoded) + 1):
            assert whole(b"x" + encoded[:cut]) == 1 + (len(encoded) if cut == len(encoded) else 0)
    assert whole(b"") == 0
    assert whole("😀😀".encode()[:-1]) == 4
    assert whole(b"ab" + mark(7)) == 5, "a mark is no beginning of a character"


def test_marks_part_a_text() -> None:
    assert list(parts(mark(3) + b"one 12 " + mark(40) + mark(5) + b"two")) == [3, b"one 12 ", 40, 5, b"two"]


def test_a_word_settles_where_it_ends() -> None:
    for text, size in (("word next", 4), ("word.", 4), ("a restaurant ", 5), (". A", 1), ("it's", 2), ("abc\n", 3)):
        assert settled(text, size), text
    for text, size in (("word", 4), ("rest", 2), ("restau", 4), (".com", 1), (".\n", 1), ("  a", 1), ("你好", 1)):
        assert not settled(text, size), text


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_that_follows_piecemeal_is_the_line_written_at_once(
    vocabularies: Mapping[str, Vocabulary], kind: str
) -> None:
    """Text that grows by bytes, is taken back and changes; cut inside characters, inside words, at marks."""
    vocabulary = vocabularies[kind]
    random = np.random.default_rng(5)
    line, text = Line(vocabulary), b""
    for more in (*checkpoints.CORPUS, *texts(30, seed=3)):
        kept = int(random.integers(max(0, len(text) - 200), len(text) + 1)) if random.random() < 0.4 else len(text)
        grown = text[: whole(text[:kept])] + mark(1) * int(random.integers(0, 2)) + b" " + more.encode()
        text = grown[:kept]
        while len(text) < len(grown):
            text = grown[: len(text) + int(random.integers(1, 12))]
            if text.count(b"\xff") % 2:
                continue  # no token ends inside a mark
            line.follow(text)
            at_once = Line(vocabulary)
            at_once.follow(text)
            assert bytes(line.text) == text[: whole(text)]
            assert (line.tokens, line.stops) == (at_once.tokens, at_once.stops)
        assert spelt(vocabulary, line.tokens).endswith(text[: whole(text)])


def test_following_reads_what_is_new_and_no_more() -> None:
    vocabulary = Toy("word", " word", " words", "s and")
    line, text = Line(vocabulary), b"some words and " * 3000
    line.follow(text)
    for _ in range(50):
        vocabulary.read = 0
        text += b" words and"
        kept = line.follow(text)
        assert vocabulary.read < 40
        assert len(line.tokens) - kept < 20
    assert spelt(vocabulary, line.tokens) == bytes(line.text) == text


def test_text_without_a_word_is_cut_between_characters() -> None:
    """No spaces for longer than a seam is looked for: the cut must not fall inside a character."""
    vocabulary = Toy("好")
    line = Line(vocabulary)
    for n in range(1, 120):
        text = ("你们" * n).encode()
        line.follow(text)
        assert spelt(vocabulary, line.tokens) == bytes(line.text) == text


def test_text_that_a_vocabulary_cannot_spell_is_followed_all_the_same() -> None:
    class Lossy(Toy):
        def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
            return super().tokenize(text.lower().replace("  ", " "), special=special)

    vocabulary = Lossy()
    line = Line(vocabulary)
    for text in (b"One  Two", b"One  Two\xfe Three  Four", b"One  Two", b"\x80\x80 x"):
        line.follow(text)
        assert bytes(line.text) == text
        assert line.stops == sorted(line.stops)
        assert line.stops[-1] == len(text)
    line.follow("Two  ü".encode()[:-1])
    assert spelt(vocabulary, line.tokens) == b"two ", "half a character waits"


def test_sureness_is_the_product_of_the_tokens_that_spell_it() -> None:
    line = Line(Toy())
    line.follow(b"ab")
    for token, text, prob in ((1, b"cd", 0.5), (2, b"e", 0.8), (3, b"fgh", 0.25)):
        line.add(token, text, prob)
    for start, stop, prob in ((2, 4, 0.5), (2, 3, 0.5), (3, 5, 0.4), (4, 5, 0.8), (5, 6, 0.25), (2, 8, 0.1), (0, 2, 1)):
        assert line.probability(start, stop) == pytest.approx(prob)


# Special tokens.
def test_specials_go_by_their_label() -> None:
    target = Toy("x", specials=("<s>", "</s>", "<|tool|>"))
    draft = Toy("yy", "zz", specials=("<|tool|>", "</s>", "<s>"))
    specials = SpecialTokens(target, draft)
    for label in ("<s>", "</s>", "<|tool|>"):
        assert specials.to_bytes(target.special(label)) == mark(draft.special(label))
        assert specials.target_token(draft.special(label)) == target.special(label)
    assert specials.to_bytes(256) == b"x"


def test_what_ends_a_turn_here_ends_it_there() -> None:
    """The end that the chat template spells; a special that the draft lacks is plain text to it."""
    target = Toy(specials=("<|endoftext|>", "<|im_end|>", "<s|tool|>"), template="{{ m }}<|im_end|>")
    draft = Toy(specials=("<s>", "</s>", "<|eot|>"), template="<s>{{ m }}<|eot|>")
    specials = SpecialTokens(target, draft)
    assert specials.to_bytes(target.special("<|im_end|>")) == mark(draft.special("<|eot|>"))
    assert specials.to_bytes(target.special("<s|tool|>")) == b"<s|tool|>"
    for label in ("</s>", "<|eot|>"):
        assert specials.target_token(draft.special(label)) == target.special("<|im_end|>")
    assert specials.target_token(draft.special("<s>")) is None
    bare = SpecialTokens(Toy(specials=("<|a|>", "<|b|>")), Toy(specials=("<s>",)))
    assert bare.to_bytes(Toy(specials=("<|a|>",)).special("<|a|>")) == b"<|a|>", "nothing ends a turn there"


def test_a_bos_is_not_said_twice() -> None:
    """The target's stays out: a draft model that wants one begins with its own."""
    target = Toy(specials=("<s>", "</s>"))
    target.bos = target.special("<s>")
    context = Context(target, SpecialTokens(target, target))
    for tokens, text in (
        ([target.bos, 97], b"a"),
        ([97, target.bos, 98], b"a" + mark(target.bos) + b"b"),
        ([97, target.bos], b"a" + mark(target.bos)),
        ([], b""),
        ([target.bos, 98, 99], b"bc"),
    ):
        context.read(tokens)
        assert (context.text, context.tokens) == (text, tokens)
        assert context.stops[-1:] == [len(text)][: len(tokens)]
