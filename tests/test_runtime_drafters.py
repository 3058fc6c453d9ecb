"""The runtime: which drafters an answer has, and drafters that fail."""

from __future__ import annotations

import pytest

from edgespec import DRAFTERS, Event, Finished, Interrupt, Sampling, Speculation, Text, assemble
from edgespec.backends.toy import Bytes, blend, ngram_rule, scripted
from edgespec.errors import EngineError, Interrupted, OptionError, VocabularyMismatch
from edgespec.prices import Prices

from .helpers import decode_plain
from .toy_runtime import TALK, Failing, Others, Recorded, is_eog, opened, read

# --- options


def test_speculation_for_one_answer_only() -> None:
    runtime, _ = opened(draft=TALK, k=4, drafters=("model",))

    def lengths(speculation: Speculation | None = None) -> dict[int, int]:
        said, finished = read(runtime.complete("abc", max_tokens=21, speculation=speculation))
        assert said == decode_plain(TALK, list(b"abc"), Sampling(), 21, is_eog)
        return finished.stats.k_histogram

    assert set(lengths(Speculation(k=0))) == {0}
    assert max(lengths()) == 4
    assert max(lengths(Speculation(k=2, drafters=("model",)))) == 2
    assert set(lengths(Speculation(k=3, drafters=()))) == {0}
    assert max(lengths()) == 4, "the runtime's own is as it was"


def test_all_drafters_that_the_pair_allows_are_the_default() -> None:
    runtime, _ = opened(draft=blend(TALK, ngram_rule(Bytes.size, seed=6), 0.3), k=2)
    used = read(runtime.complete("xyxyxyxyxy", max_tokens=20))[1].stats.by_drafter
    assert set(used) == {"lookup", "model"} == set(runtime.drafters)
    assert set(used) < set(DRAFTERS)


def test_recycling_takes_the_place_of_a_draft_model() -> None:
    """Unless it is named: beside one it brings nothing, as simulated."""
    rule = scripted(Bytes.size, list(b"abc"))
    assert opened(rule)[0].drafters == ("lookup", "recycling")
    assert opened(rule, draft=rule)[0].drafters == ("lookup", "model")
    for draft in (None, rule):
        runtime, _ = opened(rule, draft=draft, drafters=("recycling",), k=2)
        stats = read(runtime.complete("x", max_tokens=20))[1].stats
        assert set(stats.by_drafter) == {"recycling"}
        assert stats.accepted == stats.drafted > 8


# --- a drafter that fails


@pytest.mark.parametrize("k", [None, 4])
@pytest.mark.parametrize("verifier", ["match", "rejection", "block"])
@pytest.mark.parametrize("error", [EngineError("no memory left"), RuntimeError("no\nmemory left")])
def test_an_answer_goes_on_without_a_drafter_that_fails(
    k: int | None, verifier: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap = {"target": 1e-2, "draft": 1e-4}  # so that the adaptive controller asks it
    monkeypatch.setattr(
        "edgespec.runtime.opening._priced", lambda _session, _text, role, *_rest: Prices([cheap[role]] * 16)
    )
    measured = Failing(TALK, 10**9, error)
    interrupt = Interrupt()
    target = Recorded(interrupt=interrupt)
    speculation = Speculation(("model",), k, verifier)
    with assemble(target, measured, speculation=speculation, interrupt=interrupt) as runtime:
        measured._at = measured.decodes + (1 if k is None else 3)  # the latter in the middle of a draft
        said, finished = read(runtime.complete("abc abc", max_tokens=40))
        assert said == decode_plain(TALK, list(b"abc abc"), Sampling(), 40, is_eog)
        (notice,) = finished.notices
        assert "'model' failed" in notice
        assert "no memory left" in notice
        assert runtime.notices == [notice]
        asked = measured.decodes
        said, finished = read(runtime.complete("abc abc", max_tokens=40))
        assert said == decode_plain(TALK, list(b"abc abc"), Sampling(), 40, is_eog)
        assert (finished.notices, measured.decodes) == ((), asked), (
            "it is told once, and the drafter is not asked again"
        )


def test_a_drafter_that_is_interrupted_has_not_failed() -> None:
    draft = Failing(TALK, 10**9, Interrupted())
    with assemble(Recorded(), draft, speculation=Speculation(("model",), 4)) as runtime:
        draft._at = draft.decodes + 3
        _, finished = read(runtime.complete("abc abc", max_tokens=40))
        assert (finished.reason, finished.notices, runtime.notices) == ("cancelled", (), [])
        draft._at = 10**9
        said, finished = read(runtime.complete("abc abc", max_tokens=40))
        assert said == decode_plain(TALK, list(b"abc abc"), Sampling(), 40, is_eog)
        assert finished.stats.drafted > 0


def test_cancelling_loses_no_text_that_was_held_back_for_a_stop_string() -> None:
    """Its tokens were in the events already, so a chat that kept the text parted from the cache."""
    interrupt = Interrupt()
    script = [*b"ab END OF"]
    model = Recorded(scripted(Bytes.size, [0, *script]), interrupt)
    with assemble(model, speculation=Speculation(k=0), interrupt=interrupt) as runtime:
        tokens, text, events = list[int](), "", list[Event]()
        for event in runtime.complete("!", stop="END OF ALL", max_tokens=40):
            events.append(event)
            if isinstance(event, Text):
                tokens += event.tokens
                text += event.text
                if len(tokens) == len(script):
                    runtime.cancel()
        last = events[-1]
        assert isinstance(last, Finished)
        assert last.reason == "cancelled"
        assert bytes(tokens).decode() == text == "ab END OF"
        assert isinstance(events[-2], Text)
        assert (events[-2].tokens, events[-2].text) == ((), "END OF")
        assert [span.text for span in events[-2].spans] == [*"END OF"]


def test_the_model_drafter_needs_a_draft_model() -> None:
    says = r"'model', only lookup, recycling: 'model' needs a draft model \(--draft\) with the target's vocabulary"
    with pytest.raises(OptionError, match=says):
        assemble(Recorded(), speculation=Speculation(drafters=("model",)))
    runtime, _ = opened()
    with pytest.raises(OptionError, match=says):
        runtime.complete("a", speculation=Speculation(drafters=("lookup", "model")))


def test_a_draft_of_another_family_drafts_through_text_or_is_refused() -> None:
    def draft() -> Recorded:
        model = Recorded()
        model.vocabulary = Others()
        return model

    with assemble(Recorded(), draft(), speculation=Speculation(k=3)) as runtime:
        assert runtime.drafters == ("lookup", "cross-vocabulary")
        said, finished = read(runtime.complete("abc", max_tokens=40))
        assert said == decode_plain(TALK, list(b"abc"), Sampling(), 40, is_eog)
        assert finished.stats.by_drafter["cross-vocabulary"][1] > 0
        with pytest.raises(
            OptionError,
            match=r"'model', only lookup, cross-vocabulary: .* 'cross-vocabulary' one with another",
        ):
            runtime.complete("abc", speculation=Speculation(drafters=("model",)))
    with pytest.raises(VocabularyMismatch, match="token 0"):
        assemble(Recorded(), draft(), speculation=Speculation(through_text=False))
    with assemble(Recorded(), Recorded()) as runtime:
        assert runtime.drafters == ("lookup", "model"), "text is a way round, and a longer one"
