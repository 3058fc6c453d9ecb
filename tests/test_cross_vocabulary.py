"""Guesses of a draft model with another vocabulary than the target's."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from edgespec.backends import Vocabulary, common_prefix
from edgespec.backends.toy import END, Rule, ToySession, ngram_rule
from edgespec.drafters.cross_vocabulary import CrossVocabularyDrafter
from edgespec.sampling import Sampling
from edgespec.text.retokenize import Line, Writer, mark
from edgespec.types import Floats, Guess
from edgespec.verify import RoundContext, verifier

from .helpers import never
from .vocabularies import BYTES, FINE, KINDS, Toy, by_text, spelt

TEXT = (
    "The quick brown fox 😀 jumps over 3.14 lazy dogs; they don't mind. 你好，世界！今天天气很好。 Grüße!\n\n"
    "def add(a, b):\n    return a + b\n\tand 👩‍👩‍👧 family, I'll book a table for 2 at 19:30.\nПривет, мир! Как дела?"
)


def reciting(vocabulary: Vocabulary, text: bytes, otherwise: Rule | None = None) -> Rule:
    """A model that knows `text` by heart and goes on with it from wherever it stands; `otherwise` elsewhere."""
    begun = len(vocabulary.tokenize("", start=True))
    line = Line(vocabulary)
    line.follow(text)
    pieces = {vocabulary.token_bytes(token) or mark(token): token for token in reversed(range(vocabulary.size))}

    def rule(held: Sequence[int]) -> Floats:
        so_far = spelt(vocabulary, held[begun:])
        row = np.zeros(vocabulary.size, dtype=np.float32)
        if not text.startswith(so_far) or so_far == text:
            return row if otherwise is None else otherwise(held)
        stop = line.stops[bisect_right(line.stops, len(so_far))]
        rest = text[len(so_far) : stop]
        row[pieces[rest] if rest in pieces else pieces[rest[:1]]] = 20.0
        return row

    return rule


def begin(drafter: CrossVocabularyDrafter, context: Sequence[int]) -> None:
    drafter.begin(RoundContext(verifier("match"), Sampling(), context, never))


def guesses(drafter: CrossVocabularyDrafter, context: Sequence[int], n: int = 4) -> list[Guess]:
    begin(drafter, context)
    said: list[Guess] = []
    while len(said) < n and (more := drafter.guess([guess.token for guess in said], 1)):
        said += more
    return said


def tokens(drafter: CrossVocabularyDrafter, context: Sequence[int], n: int = 4) -> list[int]:
    return [guess.token for guess in guesses(drafter, context, n)]


def test_the_draft_begins_with_its_own_bos(vocabularies: Mapping[str, Vocabulary]) -> None:
    """In the whole of its life the cache begins with it, whatever the context does."""
    draft = vocabularies["spm-both"]
    session = ToySession(ngram_rule(draft.size), draft.size)
    session.prefill([7, 8, 9])
    drafter = CrossVocabularyDrafter(session, BYTES, draft)
    for text in ("one two", "one", "", "two"):
        tokens(drafter, BYTES.tokenize(text), 1)
        assert (list(session.tokens)[:1], draft.label(1)) == ([1], "<s>")


@pytest.mark.parametrize("theirs", KINDS)
@pytest.mark.parametrize("ours", KINDS)
def test_a_draft_that_knows_the_text_guesses_it(vocabularies: Mapping[str, Vocabulary], ours: str, theirs: str) -> None:
    """From every place of the text, inside characters too, what the draft model says is guessed in the target's
    tokens; to be wrong about the last of them is allowed where more text would have been needed."""
    target, draft = vocabularies[ours], vocabularies[theirs]
    said = Writer(target).tokens(TEXT)
    session = ToySession(reciting(draft, TEXT.encode()), draft.size)
    drafter = CrossVocabularyDrafter(session, target, draft)
    right = total = 0
    for at in range(1, len(said)):
        got = tokens(drafter, said[:at], 3)
        right += common_prefix(got, said[at : at + 3])
        total += min(3, len(said) - at)
    assert right > 0.96 * total
    assert all(width <= 64 for width in session.passes)


def of(
    text: str, draft: Toy, otherwise: Rule | None = None, target: Vocabulary = BYTES
) -> tuple[CrossVocabularyDrafter, ToySession]:
    """A drafter whose model knows `text`, and its session."""
    session = ToySession(reciting(draft, text.encode(), otherwise), draft.size)
    return CrossVocabularyDrafter(session, target, draft, 0.5), session


COARSE = Toy("restaurant", " rest", " restaurant", "good", "bye", "goodbye", ". ", "aurant")


def test_a_word_is_guessed_once_it_is_whole() -> None:
    """The draft model spells the target's words in pieces: half a word would be a wrong guess."""
    drafter, _ = of("a restaurant, good. goodbye restaurant", FINE, target=COARSE)
    said = COARSE.tokenize("a restaurant, good. goodbye restaurant")
    for at in range(1, len(said) - 1):
        assert tokens(drafter, said[:at], 3)[:1] == said[at : at + 1]
    guess = guesses(drafter, said[:1])[0]
    assert 0.9 < guess.confidence < 1
    assert guess.q is None


def test_nothing_is_waited_for_where_no_word_can_grow() -> None:
    """The draft's tokens end where the target's do: one pass is one guess, and none is made ahead."""
    text = "good restaurant " * 20
    said = BYTES.tokenize(text)
    drafter, session = of(text, COARSE)
    tokens(drafter, said[:192], 4)
    begin(drafter, said[:288])  # it was patient before, and looked ahead; not so far
    session.passes.clear()
    assert tokens(drafter, said[:288], 15) == said[288:303]
    assert session.passes == [1, 1], "for `good` and ` restaurant`: fifteen bytes; the context needs no logits"


def test_what_was_drafted_and_said_is_not_drafted_again() -> None:
    drafter, session = of(TEXT, FINE)
    said = BYTES.tokenize(TEXT)
    at = 1
    while at < len(said) - 8:
        got = tokens(drafter, said[:at], 4)
        assert got == said[at : at + 4]
        at += 5
    assert len(session.passes) <= len(FINE.tokenize(TEXT))
    assert sum(session.passes) < 1.2 * len(FINE.tokenize(TEXT))


def test_what_the_target_refused_is_not_guessed_again() -> None:
    """It could have said `restaurant` and said ` rest`: what the draft model said before is no guess any more."""
    drafter, session = of("a restaurant here", Toy(" restaurant"), target=COARSE)
    assert tokens(drafter, COARSE.tokenize("a"), 1) == COARSE.tokenize(" restaurant")
    session.passes.clear()
    begin(drafter, [*COARSE.tokenize("a"), *COARSE.tokenize(" rest")])
    drafter.guess([], 1)
    assert session.passes, "asked anew"
    session.passes.clear()
    begin(drafter, [*COARSE.tokenize("a"), *COARSE.tokenize(" restaurant")])
    assert [guess.token for guess in drafter.guess([], 1)] == COARSE.tokenize(" ")


def test_half_a_character_waits_for_the_rest() -> None:
    """The target spells in bytes; the draft model has whole characters, and says the right one or another."""
    text = "so 😀 good 你好"
    drafter, session = of(text, Toy("😀", "😃", "你", "好"))
    said = BYTES.tokenize(text)
    for at in range(1, len(said) - 1):
        assert tokens(drafter, said[:at], 2) == said[at : at + 2]
    wrong = BYTES.tokenize("so 😂")
    for at in range(len(wrong) - 4, len(wrong) + 1):
        got = tokens(drafter, wrong[:at], 4)
        rest = BYTES.tokenize("😀")[at - len(wrong) + 4 :]
        assert at == len(wrong) or got[: len(rest)] == rest
    assert max(session.passes) < 8
    session.passes.clear()
    assert tokens(drafter, BYTES.tokenize("so ✓")[:-1]) == [], "no guess agrees with the half that is there"
    assert len(session.passes) == 1


def test_the_end_of_the_turn_is_guessed_and_nothing_after_it() -> None:
    draft = Toy("good", specials=("<s>", "</s>"))
    text = b"good" + mark(draft.special("</s>")) + b" more"
    session = ToySession(reciting(draft, text), draft.size)
    target = Toy("go", specials=("<|im_start|>", "<|im_end|>"), template="<|im_end|>")
    drafter = CrossVocabularyDrafter(session, target, draft)
    end = target.special("<|im_end|>")
    assert tokens(drafter, target.tokenize("g"), 9) == [*target.tokenize("ood"), end]
    assert len(session.passes) == 4, "no text after the end was needed to know that the word is whole"
    assert tokens(drafter, [*target.tokenize("good"), end], 3) == target.tokenize(" mo"), "a new turn follows"


def test_what_only_the_draft_model_knows_is_no_guess() -> None:
    """A special that the target lacks, a token without a text: nothing to go on, and no pass after it."""
    draft = Toy("good", specials=("<s>", "<s|other|>"))
    row = np.zeros(draft.size, dtype=np.float32)
    row[draft.special("<s|other|>")] = 9.0
    session = ToySession(lambda _held: row, draft.size)
    drafter = CrossVocabularyDrafter(session, BYTES, draft)
    assert tokens(drafter, BYTES.tokenize("one good day"), 5) == []
    assert len(session.passes) == 1


class Counting(ToySession):
    """Counts the tokens that it reads."""

    read = 0

    def prefill(self, tokens: Sequence[int]) -> None:
        self.read += len(tokens)
        super().prefill(tokens)

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        self.read += len(tokens)
        return super().decode(tokens, tree)


def test_text_that_is_no_word_is_not_read_twice() -> None:
    """It is spelt anew from afar, as there is no seam, but what comes out the same stays in the cache."""
    session = Counting(ngram_rule(FINE.size), FINE.size)
    drafter = CrossVocabularyDrafter(session, BYTES, FINE)
    for at in range(20, 80):
        tokens(drafter, BYTES.tokenize("abcdefghij" * 8)[:at], 1)
    assert session.read < 20 + 60 * 9


def test_the_session_is_its_own() -> None:
    """What the session held before is forgotten, and it is closed with the drafter."""
    session = ToySession(reciting(FINE, b"good"), FINE.size)
    session.prefill(FINE.tokenize("red"))
    drafter = CrossVocabularyDrafter(session, BYTES, FINE)
    assert tokens(drafter, BYTES.tokenize("go"), 2) == BYTES.tokenize("od")
    drafter.close()
    assert not session.tokens


@pytest.mark.parametrize("text", ["\n", " ", "a", "😀", "你", "\x00"])
@pytest.mark.parametrize("target", [BYTES, COARSE])
def test_a_draft_that_goes_round_in_circles(text: str, target: Vocabulary) -> None:
    """Text that never comes to the end of a word is guessed in the end."""
    draft = Toy(text)
    row = np.zeros(draft.size, dtype=np.float32)
    row[256] = 9.0
    session = ToySession(lambda _held: row, draft.size)
    drafter = CrossVocabularyDrafter(session, target, draft)
    said = target.tokenize("one" + text * 40)
    start = len(target.tokenize("one"))
    for at in range(start, start + 30, 3):
        assert tokens(drafter, said[:at], 3) == said[at : at + 3]
    assert len(session.passes) < 80


def test_a_full_context_ends_the_draft() -> None:
    """The draft model's tokens may be more than the target's: its context is full first."""
    text = "the quick brown fox jumps over the lazy dog"
    said = BYTES.tokenize(text)
    for room in range(1, 30):
        draft = Toy()
        session = ToySession(reciting(draft, text.encode()), draft.size, room)
        drafter = CrossVocabularyDrafter(session, BYTES, draft)
        for at in (4, 9, 14, 19, 24, 29):
            assert len(tokens(drafter, said[:at], 4)) == min(4, max(0, room - at + 1))
            assert len(session.tokens) <= room


def test_an_empty_or_unreadable_context_gives_no_guess() -> None:
    drafter, _ = of("text", FINE)
    assert tokens(drafter, []) == []
    assert tokens(drafter, [0xF0]) == [], "half a character is all there is"
    begin(drafter, BYTES.tokenize("te"))
    assert drafter.guess([], 0) == ()
    assert drafter.guess([258], 1) == (), "nothing follows the end"


def test_guesses_follow_from_the_context_alone() -> None:
    """New chats, text taken back, the paths of other drafters: what is left over must not show."""
    random = np.random.default_rng(2)
    sentences = [" one good restaurant", " and goodbye", " re st", "\nnext: 😀", END]
    everything = "".join(sentences * 2)

    def made() -> tuple[CrossVocabularyDrafter, ToySession]:
        return of(everything, FINE, otherwise=by_text(FINE))

    used, session = made()
    context: list[int] = []
    for _ in range(300):
        keep = int(random.integers(0, len(context) + 1)) if random.random() < 0.3 else len(context)
        context = context[:keep]
        if random.random() < 0.5 or not context:
            context += BYTES.tokenize(sentences[int(random.integers(len(sentences)))], special=True)
        else:
            context += tokens(used, context, 3)[: int(random.integers(1, 4))]
        path = BYTES.tokenize(everything)[: int(random.integers(0, 9))] if random.random() < 0.3 else []
        fresh, _ = made()
        for drafter in (used, fresh):
            begin(drafter, context)
        for way in ([], path, path[:-1]):
            assert used.guess(way, 1) == fresh.guess(way, 1)
        assert list(session.tokens) == used._line.tokens[: len(session.tokens)]


def test_the_price_of_a_guess_follows_the_passes_it_takes() -> None:
    text = "quick brown fox jumps over " * 9
    words = Toy("quick ", "brown ", "fox ", "jumps ", "over ")
    dear, _ = of(text, Toy(), target=words)
    cheap, _ = of(text, Toy(text[:10], text[10:27]))
    for drafter, said in ((dear, words.tokenize(text)), (cheap, BYTES.tokenize(text))):
        assert drafter.step_price == 0.5, "of one pass, as long as nothing is known"
        for at in range(1, 40, 5):
            tokens(drafter, said[:at], 4)
        begin(drafter, said[:1])
    assert cheap.step_price < 0.35
    assert dear.step_price > 1
