"""The kinds of text that drafters are compared on."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.categories import Timed, Times
from benchmarks.drafters import LaterRun, _split
from benchmarks.kinds import KINDS, MIX, Item, items, texts
from edgespec import Device, load
from edgespec.runtime.learned import Learned


def test_a_mix_has_as_many_tokens_of_each_kind_and_none_of_the_other_items(small_pair: dict[str, Path]) -> None:
    """Dialogues are short: one for each copy would be a twentieth of the tokens."""
    with load(small_pair["target"], device=Device(threads=2)) as runtime:
        found = items(runtime, 200, 60)
    assert tuple(found) == KINDS
    kinds = {kind: {tuple(item.prompt) for item in found[kind]} for kind in KINDS}
    assert not any(kinds["mix"] & kinds[kind] for kind in KINDS[:-1])
    assert {item.kind for item in found["mix"]} == {*KINDS[:-1]}
    assert 400 <= sum(len(item.answer) for item in found["mix"]) < 460
    copies = [item for item in found["mix"] if len(item.answer) == 60]
    short = [item for item in found["mix"] if len(item.answer) < 60]
    assert len(short) > len(copies) > 2, "several dialogues and lists for each copy and each rewritten text"
    shares = [sum(len(item.answer) for item in those) / 400 for those in (copies, short)]
    assert min(shares) > 0.3


def test_the_whole_mix_goes_on_until_the_texts_of_a_kind_end(small_pair: dict[str, Path]) -> None:
    with load(small_pair["target"], device=Device(threads=2)) as runtime:
        whole = list(texts(runtime, MIX, 20))
    tokens = {kind: sum(len(item.answer) for item in whole if item.kind == kind) for kind in KINDS[:-1]}
    assert max(tokens.values()) - min(tokens.values()) <= 20
    assert min(tokens.values()) > 200
    assert len({tuple(item.prompt) for item in whole}) == len(whole)


def test_more_dialogues_follow_the_bundled_ones_as_far_as_the_context_reaches(small_pair: dict[str, Path]) -> None:
    question = {"role": "user", "content": "Hello, what is the weather like?"}
    reply = {"role": "assistant", "content": "Not what the target says."}
    with load(small_pair["target"], device=Device(512, threads=2)) as runtime:
        bundled = items(runtime, 10**6, 8)["dialogue"]
        found = items(runtime, 10**6, 8, [[question, reply] * 200])["dialogue"]
    added = found[len(bundled) :]
    assert [item.prompt for item in found[: len(bundled)]] == [item.prompt for item in bundled]
    assert len(added) > 10
    assert 512 - 50 < len(added[-1].prompt) + 8 <= 512
    history = [*added[0].prompt, *added[0].answer]
    assert [*added[1].prompt[: len(history) - 1]] == history[:-1], "the target's own answers are the history"


def test_the_best_choice_by_kind_weighs_each_kind_by_its_time() -> None:
    times = Times(("plain", "a", "b"))
    seconds = {"copies": {"plain": 3.0, "a": 1.0, "b": 3.0}, "dialogues": {"plain": 5.0, "a": 5.0, "b": 4.0}}
    for kind, found in seconds.items():
        for name, each in found.items():
            times.add(name, kind, Timed(1, 1, each))
    chosen = times.best_by_kind(("a", "b"))
    assert chosen == {"copies": "a", "dialogues": "b"}
    assert times.chosen(chosen) == pytest.approx(8 / 5, abs=1e-3)
    assert times.chosen(dict.fromkeys(chosen, "a")) == pytest.approx(8 / 6, abs=1e-3)
    assert times.chosen(chosen, "a") == pytest.approx(6 / 5, abs=1e-3)


@pytest.mark.parametrize(("tokens", "first"), [(0, 0), (1, 1), (5, 1), (6, 2), (10, 2), (11, 3)])
def test_texts_of_an_earlier_run_have_as_many_tokens_or_a_little_more(tokens: int, first: int) -> None:
    asked = [Item("list", [1], [2] * 5) for _ in range(4)]
    earlier, later = _split(asked, tokens)
    assert len(earlier) == first
    assert [*earlier, *later] == asked


def test_a_later_run_begins_with_what_the_earlier_one_learned_and_leaves_it_as_it_is() -> None:
    earlier = Learned(None)
    known = earlier.calibration("match")
    for _ in range(40):
        known.ahead("model").first.add(True)
    known.gained = 20.0
    later = LaterRun(earlier).calibration("match")
    assert later.gained == 20.0
    assert later.ahead("model").first.value == pytest.approx(known.ahead("model").first.value, abs=0.05)
    later.ahead("model").first.add(False)
    assert later.ahead("model").first.value < LaterRun(earlier).calibration("match").ahead("model").first.value
    again = LaterRun(earlier)
    assert again.calibration("match") is again.calibration("match")
