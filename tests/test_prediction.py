"""The drafter of predicted text: where its pointer stands, and what it is worth in an answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgespec import OptionError, Sampling, Speculation
from edgespec.backends.toy import Bytes, blend, ngram_rule, scripted
from edgespec.drafters.prediction import Prediction
from edgespec.prices import Prices
from edgespec.verify import VERIFIERS

from .helpers import decode_plain, never, round_context
from .toy_runtime import TALK, is_eog, opened, read


def chain(drafter: Prediction, context: Sequence[int], most: int = 3) -> list[int]:
    """The guesses, each after the one before."""
    drafter.begin(round_context(context, is_eog=never))
    path: list[int] = []
    while len(path) < most and (guesses := drafter.guess(path, 1)):
        path.append(guesses[0].token)
    return path


TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([], [1, 2, 3]),
        ([1, 2, 3], [4, 5, 6]),
        ([1, 2, 50], []),  # an edit: nothing is known of where it ends
        ([1, 2, 50, 4], [5, 6, 7]),  # a token replaced
        ([1, 2, 50, 3], [4, 5, 6]),  # a token inserted
        ([1, 2, 5], [6, 7, 8]),  # tokens deleted
        ([50, 51, 1], [2, 3, 4]),  # words before the text
        ([1, 2, 3, 4, 5, 6, 1], [2, 3, 4]),  # the text begins again
        ([1, 2, 3, 4, 5, 6, 7], [8, 9]),
        (TEXT, []),
        ([*TEXT, 2], [3, 4, 5]),
        ([8, 9], []),
    ],
)
def test_the_pointer_follows_the_answer(answer: list[int], expected: list[int]) -> None:
    prompt = [3, 4, 5, 1, 2]
    assert chain(Prediction(TEXT, len(prompt)), [*prompt, *answer]) == expected


def test_it_finds_its_place_by_the_longest_suffix() -> None:
    text = [1, 2, 3, 10, 9, 2, 3, 11, 8, 9, 2, 3, 12]
    assert chain(Prediction(text, 0), [8, 9, 2, 3], 1) == [12], "8, 9, 2, 3 came once"
    assert chain(Prediction(text, 0), [9, 2, 3], 1) == [11], "the first of two"
    assert chain(Prediction(text, 0), [1, 2, 3, 10, 70, 2, 3], 1) == [11], "the next one, not the first"
    assert chain(Prediction(text, 0), [1, 2, 3, 10, 9, 2, 3, 11, 8, 9, 70, 1, 2, 3], 1) == [10], "there is none ahead"


def test_a_chance_match_in_inserted_text_does_not_lead_away() -> None:
    """The inserted 4 is that of another line; the answer goes on where it left the text."""
    text = [1, 2, 3, 40, 50, 3, 4, 60, 3, 70]
    assert chain(Prediction(text, 0), [1, 2, 80, 4, 81, 3], 2) == [40, 50]


def test_guesses_are_surer_the_longer_the_run() -> None:
    drafter = Prediction(TEXT, 0)
    drafter.begin(round_context([]))
    sure = [drafter.guess(TEXT[:n], 1)[0].confidence for n in range(8)]
    assert sure == sorted(set(sure))
    drafter.begin(round_context([1, 2, 3, 50, 5]))
    assert drafter.guess((), 1)[0].confidence == sure[1], "the run begins anew"


def test_a_path_that_leaves_the_text_and_comes_back() -> None:
    drafter = Prediction(TEXT, 0)
    drafter.begin(round_context([1, 2]))
    assert [guess.token for guess in drafter.guess((3, 50, 5), 2)] == [6]
    assert drafter.guess((3, 50), 1) == ()
    assert drafter.guess((), 0) == ()
    assert [guess.token for guess in drafter.guess((3,), 1)] == [4]


def test_nothing_follows_an_end() -> None:
    drafter = Prediction([1, 256, 3], 0)
    drafter.begin(round_context([], is_eog=lambda token: token == 256))
    assert drafter.guess((1,), 1)
    assert drafter.guess((1, 256), 1) == ()


def test_it_goes_back_with_the_context() -> None:
    drafter = Prediction(TEXT, 2)
    for context, expected in (
        ([0, 0, 1, 2, 3, 4], [5, 6, 7]),
        ([0, 0, 1, 2], [3, 4, 5]),
        ([0, 0, 1, 2, 6], [7, 8, 9]),
        ([0], [1, 2, 3]),
    ):
        assert chain(drafter, context) == expected


def test_a_search_is_bounded() -> None:
    """Of a common token few occurrences are compared, however long the text."""
    text = [1, 3, 2, 4] * 300 + [3, 4, 9]
    drafter = Prediction(text, 0)
    assert chain(drafter, [3, 4], 1) == [], "3, 4 is too far away"
    assert chain(drafter, [3, 4, 9, 3, 2], 1) == [4]


# --- in an answer

NAMES = "def area(width, height):\n    return width * height\n"
FILE = NAMES + "\n".join(f"def f{n}(x):\n    return area(x, {n}) + x\n" for n in range(6))
EDITED = FILE.replace("x, 2", "x, 20").replace("def f4", "def last").replace("    return width * height\n", "")
END = 258


@pytest.mark.parametrize("k", [4, 8])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_rewritten_file_is_accepted_up_to_its_edits(verifier: str, k: int) -> None:
    prompt = "Change it.\n"
    rule = scripted(Bytes.size, [*b"Change it.\n", *EDITED.encode(), END])
    runtime, _ = opened(rule, context=1024, drafters=(), verifier=verifier, k=k)
    said, finished = read(runtime.complete(prompt, prediction=FILE, max_tokens=len(EDITED) + 9))
    assert said == [*EDITED.encode(), END]
    assert set(finished.stats.by_drafter) == {"prediction"}
    drafted, accepted = finished.stats.of_drafter("prediction")
    assert len(EDITED) * 0.7 < accepted <= drafted
    assert finished.stats.rounds <= len(EDITED) / 3
    plain, stats = read(runtime.complete(prompt, max_tokens=20))
    assert plain == said[:20]
    assert not stats.stats.by_drafter, "it drafts in that answer only"


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3)], ids=["0", "0.8"])
@pytest.mark.parametrize("k", [None, 3])
def test_a_prediction_that_is_mostly_wrong_does_not_change_the_answer(
    k: int | None, sampling: Sampling, verifier: str
) -> None:
    prompt = "abc"
    expected = decode_plain(TALK, list(prompt.encode()), sampling, 60, is_eog)
    text = bytes(t if n % 3 else t ^ 1 for n, t in enumerate(expected) if t < 256).decode("latin-1")
    for draft in (None, blend(TALK, ngram_rule(Bytes.size, seed=6), 0.3)):
        runtime, _ = opened(draft=draft, verifier=verifier, k=k)
        said, finished = read(runtime.complete(prompt, sampling, max_tokens=60, prediction=text))
        if verifier == "match" or sampling.greedy:
            assert said == expected
        if k:
            assert finished.stats.of_drafter("prediction")[0] > 5


def test_what_is_learned_of_predictions_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.runtime.opening._priced", lambda *_: Prices([1.0] * 16))
    runtime, _ = opened(scripted(Bytes.size, [*EDITED.encode(), END]), context=1024)
    read(runtime.complete(EDITED[:9], prediction=FILE[20:], max_tokens=150))
    first = runtime.acceptance["prediction"]
    assert first.right > 0.5
    read(runtime.complete(EDITED[:9], prediction=FILE[20:], max_tokens=20))
    assert runtime.acceptance["prediction"].tries != first.tries


def test_without_speculation_a_prediction_does_nothing() -> None:
    runtime, _ = opened()
    plain = Speculation(k=0)
    said, finished = read(runtime.complete("abc", max_tokens=20, speculation=plain, prediction="abc" * 9))
    assert said == decode_plain(TALK, list(b"abc"), Sampling(), 20, is_eog)
    assert finished.stats.drafted == 0


def test_drafters_that_agree_are_counted_for_each() -> None:
    rule = scripted(Bytes.size, list(b"abc"))
    runtime, _ = opened(rule, drafters=("lookup",), k=4)
    stats = read(runtime.complete("abcabc", max_tokens=20, prediction="abcabcabcabcabcabcabcabc"))[1].stats
    assert stats.of_drafter("prediction")[1] == stats.accepted > 10
    assert stats.of_drafter("model") == (0, 0)


def test_chats_take_predictions_too() -> None:
    messages = [{"role": "user", "content": "x"}]
    runtime, _ = opened(drafters=(), k=6)
    said, _ = read(runtime.chat(messages, max_tokens=30))
    text = bytes(token for token in said if token < 128).decode()
    again, finished = read(runtime.chat(messages, max_tokens=30, prediction=text))
    assert again == said
    assert finished.stats.of_drafter("prediction")[0] > 0


def test_a_prediction_is_a_text() -> None:
    runtime, _ = opened()
    with pytest.raises(OptionError, match="prediction is 3"):
        runtime.complete("abc", prediction=3)  # type: ignore[arg-type]
    assert read(runtime.complete("abc", prediction="", max_tokens=3))[0]
    with pytest.raises(OptionError, match="needs a request with a prediction"):
        runtime.complete("abc", speculation=Speculation(drafters=("prediction",)))
    named = runtime.complete("abc", speculation=Speculation(drafters=("prediction",)), prediction="x", max_tokens=3)
    assert len(read(named)[0]) == 3
