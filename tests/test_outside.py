"""Drafters of an app: they change no text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from edgespec import (
    DrafterError,
    EdgespecError,
    Guess,
    OptionError,
    Sampling,
    Speculation,
    Target,
    assemble,
    load,
)
from edgespec.backends.toy import ToyModel

from .helpers import ignore_machine_times
from .outside_drafters import PROMPT, Mine, answer, opened


@pytest.mark.parametrize("k", [3, None])
def test_an_object_drafts(k: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_machine_times(monkeypatch)
    mine = Mine()
    with opened(mine, names=("mine",), k=k) as runtime:
        assert runtime.drafters == ("lookup", "mine")
        finished = answer(runtime, Sampling(temperature=0.7, seed=1))
        assert answer(runtime).stats.by_drafter["mine"][1] > 5
        assert finished.notices == ()
        before = mine.closed
    assert (before, mine.closed) == (0, 1)


def test_all_that_are_given_draft_where_no_names_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ignore_machine_times(monkeypatch)
    with opened(Mine(), Mine(name="second"), k=None) as runtime:
        assert runtime.drafters == ("lookup", "mine", "second")
        assert set(answer(runtime).stats.by_drafter) & {"mine", "second", "mine+second", "lookup+mine+second"}


def test_a_factory_is_told_of_the_target() -> None:
    made: list[Mine] = []

    def make(target: Target) -> Mine:
        made.append(Mine(target))
        return made[-1]

    for factory in (make, Mine):
        with opened(factory, names=("mine",)) as runtime:
            assert answer(runtime).stats.by_drafter["mine"][1] > 5
    (mine,) = made
    assert mine.target is not None
    assert mine.target.vocabulary.tokenize("abc") == PROMPT
    assert (mine.target.context, mine.target.description) == (128, "toy")
    assert mine.closed == 1


def test_what_was_given_stays_open_where_loading_fails_and_what_was_made_does_not() -> None:
    given, made = Mine(), list[Mine]()

    def make(_target: Target) -> Mine:
        made.append(Mine(name="made"))
        return made[-1]

    with pytest.raises(OptionError, match="no drafter 'model'"):
        opened(given, make, names=("mine", "model"))
    assert (given.closed, made[0].closed) == (0, 1)


class NoMethods:
    name = "none"


@pytest.mark.parametrize(
    ("drafters", "kind", "says"),
    [
        ([Mine(), Mine()], OptionError, "two drafters named 'mine'"),
        ([Mine(name="lookup")], OptionError, "two drafters named 'lookup'"),
        ([Mine(name="a+b")], DrafterError, "the drafter Mine has the name 'a.b'; it must be a word"),
        ([Mine(name="")], DrafterError, "has the name ''"),
        ([Mine(name=7)], DrafterError, "has the name 7"),
        ([NoMethods()], DrafterError, "the drafter NoMethods has no method 'begin'; let its class inherit from"),
        ([object()], DrafterError, "the drafter object has the name None"),
        ([lambda: 1], DrafterError, "cannot be made: TypeError: .*takes 0 positional arguments"),
        ([lambda _target: 1], DrafterError, "has the name None"),
    ],
)
def test_what_is_no_drafter_is_refused(drafters: Sequence[Any], kind: type[EdgespecError], says: str) -> None:
    with pytest.raises(kind, match=says):
        opened(*drafters)


def test_drafters_are_a_list() -> None:
    given: Any = Mine()
    with pytest.raises(OptionError, match=r"drafters is .*; it must be a list of drafters"):
        load("missing.gguf", drafters=given)
    with pytest.raises(OptionError, match="it must be a list of drafters"):
        assemble(ToyModel(), drafters=given)


def test_names_are_checked_before_a_model_is_opened() -> None:
    with pytest.raises(OptionError, match=r"no drafter 'medusa'; there are lookup, .*, mtp, .*mine$"):
        load("missing.gguf", drafters=[Mine()], speculation=Speculation(("mine", "medusa")))
    with opened(Mine()) as runtime, pytest.raises(OptionError, match="no drafter 'medusa', only lookup, mine: "):
        runtime.complete("a", speculation=Speculation(("medusa",)))


def test_paths_are_the_controllers_own() -> None:
    paths: list[Sequence[int]] = []
    mine = Mine()
    right = mine.guess

    def keeping(path: Sequence[int], most: int) -> Sequence[Guess]:
        paths.append(path)
        return right(path, most)

    mine.guess = keeping  # type: ignore[method-assign]
    with opened(mine, names=("mine",)) as runtime:
        answer(runtime)
    assert all(isinstance(path, tuple) for path in paths)
