"""Drafting across vocabularies: the text is the same on both sides, and the target's own text comes out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgespec.backends import Device, Interrupt, Model, Session, Vocabulary, common_prefix, open_model
from edgespec.backends.toy import END, Bytes, Rule, ToySession, ngram_rule
from edgespec.converters import convert
from edgespec.drafters.cross_vocabulary import CrossVocabularyDrafter
from edgespec.sampling import Sampling
from edgespec.text.retokenize import Context, Line, SpecialTokens, Writer, mark, parts, settled, whole
from edgespec.text.template import ChatTemplate
from edgespec.types import Draft, Floats, Guess
from edgespec.verify import RoundContext, verifier

from . import checkpoints
from .helpers import decode_plain, never
from .respelt import respelt
from .test_convert_tokenizer import texts

SHARED = Path(__file__).parents[2] / "shared" / "models"
KINDS = ("gpt-2", "llama-3", "qwen2", "spm-both")
TEXT = (
    "The quick brown fox 😀 jumps over 3.14 lazy dogs; they don't mind. 你好，世界！今天天气很好。 Grüße!\n\n"
    "def add(a, b):\n    return a + b\n\tand 👩‍👩‍👧 family, I'll book a table for 2 at 19:30.\nПривет, мир! Как дела?"
)
BYTES = Bytes()


@pytest.fixture(scope="session")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Vocabulary]]:
    """Vocabularies of four kinds, each trained on the same text, and so with different tokens."""
    folder = tmp_path_factory.mktemp("vocabularies")
    models: dict[str, Model] = {}
    for kind in KINDS:
        output = folder / f"{kind}.gguf"
        for _ in convert(checkpoints.llama(folder / kind, tokenizer=kind), output, quantization="f16"):
            pass
        models[kind] = open_model(output, Device(threads=1), Interrupt())
    yield {kind: model.vocabulary for kind, model in models.items()}
    for model in models.values():
        model.close()


class Toy(Bytes):
    """The bytes and a few words, of which the longest is taken; its own specials; its tokens count as they are read."""

    def __init__(self, *words: str, specials: Sequence[str] = ("<s>", "</s>"), template: str | None = None) -> None:
        self._words = [word.encode() for word in words]
        self._specials = tuple(specials)
        self.size = 256 + len(words) + len(specials)
        self.template = template
        self.read = 0

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        rest, tokens = text.encode(), list[int]()
        self.read += len(rest)
        while rest:
            marks = [s.encode() for s in self._specials] if special else []
            found = [i for i, s in enumerate(marks) if rest.startswith(s)]
            words = [i for i, word in enumerate(self._words) if rest.startswith(word)]
            best = max(words, key=lambda i: len(self._words[i]), default=None)
            if found:
                tokens.append(256 + len(self._words) + found[0])
                rest = rest[len(marks[found[0]]) :]
            else:
                tokens.append(rest[0] if best is None else 256 + best)
                rest = rest[1 if best is None else len(self._words[best]) :]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else (*self._words, *[b""] * len(self._specials))[token - 256]

    def label(self, token: int) -> str:
        return f"<0x{token:02X}>" if token < 256 else (*map(bytes.decode, self._words), *self._specials)[token - 256]

    def is_eog(self, token: int) -> bool:
        return token >= 256 + len(self._words) and not self.label(token).startswith("<s")

    def specials(self) -> Sequence[str]:
        return self._specials

    def special(self, label: str) -> int:
        return 256 + len(self._words) + self._specials.index(label)


def spelt(vocabulary: Vocabulary, tokens: Sequence[int]) -> bytes:
    return b"".join(vocabulary.token_bytes(token) or mark(token) for token in tokens)


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


def speculate(
    target: Session,
    drafter: CrossVocabularyDrafter,
    prompt: Sequence[int],
    round_context: Callable[[Sequence[int]], RoundContext],
    n: int,
) -> tuple[list[int], int, int]:
    """Rounds of up to four guesses. The text, the tokens drafted and those accepted."""
    context, drafted, accepted = list(prompt), 0, 0
    target.rollback(common_prefix(target.tokens, context[:-1]))
    target.prefill(context[len(target.tokens) : -1])
    while len(context) < len(prompt) + n:
        place = round_context(context)
        draft: list[int] = []
        drafter.begin(place)
        while len(draft) < 4 and (more := drafter.guess(draft, 1)):
            draft.append(more[0].token)
        rows = target.decode([context[-1], *draft])
        chain = Draft.chain(draft, drafter.name)
        acceptance = place.verifier.accept(chain, rows, place.sampling, context)
        drafted, accepted = drafted + len(draft), accepted + len(acceptance.path)
        target.rollback(len(context) + len(acceptance.path))
        for token in (*(draft[node] for node in acceptance.path), acceptance.token):
            context.append(token)
            if place.is_eog(token):
                return context[len(prompt) :], drafted, accepted
    return context[len(prompt) : len(prompt) + n], drafted, accepted


# The text: nothing is added, nothing lost.


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


def test_the_draft_begins_with_its_own_bos(vocabularies: Mapping[str, Vocabulary]) -> None:
    """In the whole of its life the cache begins with it, whatever the context does."""
    draft = vocabularies["spm-both"]
    session = ToySession(ngram_rule(draft.size), draft.size)
    session.prefill([7, 8, 9])
    drafter = CrossVocabularyDrafter(session, BYTES, draft)
    for text in ("one two", "one", "", "two"):
        tokens(drafter, BYTES.tokenize(text), 1)
        assert (list(session.tokens)[:1], draft.label(1)) == ([1], "<s>")


# The drafter.


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
FINE = Toy("re", "st", "au", "ra", "nt", "go", "od")


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


def by_text(vocabulary: Vocabulary) -> Rule:
    """Says words, by the last bytes of the text alone, however it was spelt."""
    words = [vocabulary.tokenize(text)[0] for text in ("e", "s", " ", "o", "d", ".", "\n")]

    def rule(held: Sequence[int]) -> Floats:
        row = np.zeros(vocabulary.size, dtype=np.float32)
        row[words[sum(spelt(vocabulary, held[-8:])[-3:]) % len(words)]] = 9.0
        return row

    return rule


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


# Lossless.


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_wrong_drafts_cost_time_and_nothing_else(rule: str, temperature: float) -> None:
    """A model of noise, in another vocabulary: its bytes are often no text at all."""
    target = ngram_rule(BYTES.size, order=2, seed=4, sharpness=1.5)
    for draft in (ngram_rule(FINE.size, seed=9), by_text(FINE)):
        drafter = CrossVocabularyDrafter(ToySession(draft, FINE.size), BYTES, FINE)
        for seed, prompt in enumerate((b"one", b"\xf0\x9f\x98", b"\xff\xff2", b"1\xff2\xff")):
            sampling = Sampling(temperature=temperature, seed=seed)
            place = place_of(rule, sampling)
            got, drafted, accepted = speculate(ToySession(target, BYTES.size), drafter, list(prompt), place, 40)
            assert accepted < drafted
            if rule == "match" or not temperature:
                assert got == decode_plain(target, list(prompt), sampling, 40)
            assert len(got) == 40


def place_of(
    rule: str, sampling: Sampling, is_eog: Callable[[int], bool] = never
) -> Callable[[Sequence[int]], RoundContext]:
    return lambda context: RoundContext(verifier(rule), sampling, context, is_eog)


def plain(target: Session, prompt: Sequence[int], place: Callable[[Sequence[int]], RoundContext], n: int) -> list[int]:
    """Plain decoding, token by token."""
    context = list(prompt)
    target.rollback(0)
    target.prefill(context[:-1])
    while len(context) < len(prompt) + n:
        round_context = place(context)
        rows = target.decode(context[-1:])
        context.append(round_context.verifier.accept(Draft(), rows, round_context.sampling, context).token)
        if round_context.is_eog(context[-1]):
            break
    return context[len(prompt) :]


CHATS = (
    ("I need a train.",),
    ("I need a train.", "Where from, and to which city?", "From Sacramento to San Diego on the 7th."),
    (
        "Find me a restaurant in San Jose, please.",
        "Which food 😀 do you like?",
        "你好! Mexican – or sushi, for 2 at 19:30.",
    ),
)


@pytest.mark.parametrize("kind", ["bytes", "spaces"])
def test_a_real_pair_of_two_vocabularies_says_what_the_target_says(
    kind: str, demo: Mapping[str, Path], tmp_path: Path
) -> None:
    if not (SHARED / "draft").is_dir():
        pytest.skip("the checkpoint of the demo's draft model is not beside the repository")
    output = respelt(SHARED / "draft", tmp_path / "draft", merges=1500, kind=kind)
    model, draft = (open_model(path, Device(threads=1), Interrupt()) for path in (demo["target"], output))
    vocabulary = model.vocabulary
    template = ChatTemplate(vocabulary)
    target, alone, drafting = model.session(512), model.session(512), draft.session(512)
    drafter = CrossVocabularyDrafter(drafting, vocabulary, draft.vocabulary)
    for temperature, least in ((0.0, 0.25), (0.8, 0.1)):
        drafted = accepted = 0
        for seed, chat in enumerate(CHATS):
            roles = ("user", "assistant", "user")
            prompt = template.tokens([{"role": r, "content": c} for r, c in zip(roles, chat, strict=False)])
            place = place_of("match", Sampling(temperature=temperature, seed=seed), vocabulary.is_eog)
            got, tried, kept = speculate(target, drafter, prompt, place, 40)
            assert got == plain(alone, prompt, place, 40)
            drafted, accepted = drafted + tried, accepted + kept
        assert least * drafted < accepted < drafted
    for opened in (target, alone, drafting, model, draft):
        opened.close()
