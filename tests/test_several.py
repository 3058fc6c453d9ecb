"""Several draft models at once: how a controller merges what they guess, and a runtime over them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgespec import Device, Runtime, Sampling, Speculation, assemble
from edgespec.backends import Model
from edgespec.backends.parallel import Parallel
from edgespec.backends.toy import Bytes, Rule, blend, ngram_rule
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.engine import Request
from edgespec.errors import EngineError, OptionError
from edgespec.prices import Prices
from edgespec.runtime.loading import require_one_of_a_kind
from edgespec.tools.check import check
from edgespec.types import Draft, Floats, Guess

from .control_runs import DEAR, FREE, book
from .engine_runs import OTHER, PROMPT, STAIRS, TARGET, drafting, engine, run, speaking, wrong
from .helpers import Clock, FunctionDrafter, decode_plain, round_context, trusting
from .toy_runtime import TALK, Failing, Others, Recorded, is_eog, read

MODELS = ("model", "model2")
#: It agrees with the target mostly, but not always.
NEARLY = blend(TALK, ngram_rule(Bytes.size, order=2, seed=77), 0.3)


def opposite(context: Sequence[int]) -> Floats:
    row: Floats = -TALK(context)
    return row


# --- what is merged


def two(q: bool = False) -> list[Drafter]:
    """Two models that say the same at first."""
    return [
        book((1, 0.9), (2, 0.8), name="model", step_price=0.05, q=q),
        book((1, 0.9), (3, 0.8), name="model2", step_price=0.05, q=q),
    ]


def test_a_fixed_length_merges_all_chains_into_one_tree() -> None:
    draft = Fixed(two(), 2, nodes=15).choose(round_context(), 15)
    assert draft == Draft((1, 2, 3), (-1, 0, 0), ("model+model2", "model", "model2"))
    assert Fixed(two(), 2).choose(round_context(), 15).tokens == (1, 2), "without trees the first drafts"
    assert Fixed([book(name="silent"), *two()], 2, nodes=15).choose(round_context(), 15) == draft


def test_drawn_tokens_have_nodes_of_their_own_in_the_order_of_their_drafters() -> None:
    draft = Fixed([book((1, 0.9)), *two(q=True)], 2, nodes=15).choose(round_context(rule="rejection"), 15)
    assert draft.tokens == (1, 1, 2, 1, 3)
    assert draft.parents == (-1, -1, 1, -1, 3)
    assert draft.drafters == ("lookup", "model", "model", "model2", "model2")
    assert draft.q is not None
    assert len(draft.q) == 5


@pytest.mark.parametrize(("nodes", "limit"), [(3, 15), (15, 3)])
def test_a_tree_has_no_more_nodes_than_a_pass_takes_nor_than_there_is_room_for(nodes: int, limit: int) -> None:
    draft = Fixed(two(q=True), 2, nodes=nodes).choose(round_context(rule="block"), limit)
    assert draft.drafters == ("model", "model", "model2")


def test_the_adaptive_controller_merges_equal_guesses_and_keeps_both_branches() -> None:
    """Of two models, where trees are on and passes cost nothing; a chain where they are not."""
    models: list[Drafter] = [
        book((1, 0.5), (2, 0.5), name="model", step_price=0.001),
        book((1, 0.5), (3, 0.6), name="model2", step_price=0.001),
    ]
    clock = Clock().perf_counter
    draft = Adaptive(models, Prices(FREE), trusting(*MODELS), trees=True, clock=clock).choose(round_context(), 15)
    assert draft == Draft((1, 2, 3), (-1, 0, 0), ("model+model2", "model", "model2"))
    chain = Adaptive(models, Prices(FREE), trusting(*MODELS), clock=clock).choose(round_context(), 15)
    assert (chain.tokens, chain.drafters) == ((1, 3), ("model+model2", "model2"))


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("order", [1, -1])
def test_where_tokens_are_drawn_the_better_of_two_models_drafts(rule: str, order: int, clock: Clock) -> None:
    """In one round only one of them, whichever was given first; the other is probed."""
    target = speaking(clock)
    models = [drafting(wrong, clock), drafting(blend(TARGET, OTHER, 0.2), clock, "model2")][::order]
    controller = Adaptive(models, Prices(STAIRS), clock=clock.perf_counter)
    request = Request(PROMPT, Sampling(temperature=0.8, seed=3), 600)
    _, finished = run(engine(target, controller, rule).generate(request), target, PROMPT)
    drafted = {name: n for name, (n, _) in finished.stats.by_drafter.items()}
    assert drafted["model2"] > 200
    assert 0 < drafted["model"] < drafted["model2"] / 10
    assert finished.stats.by_drafter["model"][1] <= 3


@pytest.mark.parametrize("seed", [3, 5, 6, 9])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_model_that_became_the_better_one_is_noticed(rule: str, seed: int, clock: Clock) -> None:
    """Though it has more to read the longer it was left alone. By luck it may be noticed with one seed."""
    target = speaking(clock)

    def late(context: Sequence[int]) -> Floats:
        return wrong(context) if len(context) < 150 else TARGET(context)

    models = [drafting(blend(TARGET, OTHER, 0.4), clock), drafting(late, clock, "model2")]
    controller = Adaptive(models, Prices(STAIRS), clock=clock.perf_counter)
    request = Request(PROMPT, Sampling(temperature=0.8, seed=seed), 900)
    _, finished = run(engine(target, controller, rule).generate(request), target, PROMPT)
    assert finished.stats.by_drafter["model2"][1] > 250


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_models_that_say_the_same_the_cheaper_one_drafts(order: int, clock: Clock) -> None:
    """Whichever was given first: what the second one asked repeats is worth nothing."""
    target = speaking(clock)
    rule = blend(TARGET, OTHER, 0.4)
    models = [drafting(rule, clock, price=0.08), drafting(rule, clock, "model2", price=0.04)][::order]
    controller = Adaptive(models, Prices(STAIRS), clock=clock.perf_counter)
    _, finished = run(engine(target, controller).generate(Request(PROMPT, Sampling(), 600)), target, PROMPT)
    drafted = {name: n for name, (n, _) in finished.stats.by_drafter.items()}
    assert drafted["model2"] > 300
    assert drafted["model"] < drafted["model2"] / 5


@pytest.mark.parametrize(("unread", "asked"), [(3, {"model", "model2"}), (200, set())])
def test_a_trial_of_a_drafter_of_which_little_is_expected_reads_no_text(unread: int, asked: set[str]) -> None:
    models = [FunctionDrafter(lambda _context, _path: [Guess(9, 0.5)], name, step_price=0.05) for name in MODELS]
    controller = Adaptive(models, Prices(DEAR))
    for priced in controller._priced:
        assert priced.is_new
        for rate in (priced.ahead.first, priced.ahead.later):
            rate.remember((0.0, 30.0, ()), 30.0)
    context = [0] * 300
    for priced in controller._priced:
        priced.reading.read(context[: 300 - unread])
    controller.choose(round_context(context), 15)
    assert {model.name for model in models if model.asked} == asked


# --- a runtime over several models


def opened(*drafts: Model | Rule, k: int | None = 4, **speculation: Any) -> Runtime:
    models = [Recorded(each, name=f"draft {n}") if callable(each) else each for n, each in enumerate(drafts)]
    options = {"drafters": MODELS, **speculation}
    return assemble(Recorded(), models, device=Device(context=256), speculation=Speculation(k=k, **options))


def test_each_draft_model_has_a_name_of_its_own() -> None:
    roles: list[str] = []
    drafts = [Recorded(rule, name=f"draft {n}") for n, rule in enumerate((NEARLY, opposite, TALK))]
    with assemble(Recorded(), drafts, on_progress=lambda role, _share: roles.append(role)) as runtime:
        assert runtime.drafters == ("lookup", "model", "model2", "model3")
        assert [n for n in dict.fromkeys(roles) if n != "target"] == ["draft", "draft 2", "draft 3"], "each is measured"
        assert all(runtime.step_prices[name] > 0 for name in ("model", "model2", "model3"))
        assert runtime.notices == [f"The drafter {name} is toy." for name in ("model", "model2", "model3")]
        assert runtime.description == "toy with draft toy, toy, toy"
        with runtime.another() as other:
            assert other.drafters == runtime.drafters
    assert all(draft.log.count("session closed") == 2 and draft.log[-1] == "model closed" for draft in drafts)


def test_models_of_several_kinds_are_numbered_by_kind() -> None:
    others, parallel = Recorded(), Recorded()
    others.vocabulary = Others()
    cast(Any, parallel).parallel = Parallel(3, 250)
    with opened(others, NEARLY, parallel, TALK, others, drafters=("pard", "model")) as runtime:
        assert runtime.drafters == ("lookup", "cross-vocabulary", "model", "pard", "model2", "cross-vocabulary2")
    with opened(parallel, TALK, drafters=("model",)) as runtime:
        assert runtime.drafters == ("lookup", "pard", "model"), "the name does not depend on the order"
    with opened(parallel, drafters=("model",)) as runtime:
        assert runtime.drafters == ("lookup", "model"), "alone it may draft as an ordinary model"


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=1)], ids=["0", "0.8"])
@pytest.mark.parametrize("k", [None, 1, 4])
def test_the_text_does_not_depend_on_two_models_of_which_one_is_always_wrong(k: int | None, sampling: Sampling) -> None:
    with opened(opposite, NEARLY, k=k) as runtime:
        said, finished = read(runtime.complete("abc", sampling, max_tokens=60))
        assert said == decode_plain(TALK, list(b"abc"), sampling, 60, is_eog)
        if k is not None:
            drafted, accepted = zip(*(finished.stats.by_drafter[name] for name in MODELS), strict=True)
            assert min(drafted) >= 10
            assert accepted[1] > 10 * accepted[0]


def test_a_fixed_length_takes_the_first_drafter_unless_several_are_named() -> None:
    with opened(opposite, NEARLY) as runtime:
        assert set(read(runtime.complete("abc", max_tokens=20))[1].stats.by_drafter) >= set(MODELS)
        speculation = Speculation(k=4)
        by_drafter = read(runtime.complete("axbycz", max_tokens=20, speculation=speculation))[1].stats.by_drafter
        assert set(by_drafter) <= {"lookup", "model"}


def test_one_of_two_models_that_fails_leaves_the_other() -> None:
    failing = Failing(NEARLY, 10**9, EngineError("no memory left"))
    with opened(failing, NEARLY) as runtime:
        failing._at = failing.decodes + 6  # in the middle of its second draft
        said, finished = read(runtime.complete("abc abc", max_tokens=60))
        assert said == decode_plain(TALK, list(b"abc abc"), Sampling(), 60, is_eog)
        (notice,) = finished.notices
        assert "'model' failed" in notice
        drafted = {name: of for name, (of, _) in finished.stats.by_drafter.items()}
        assert drafted["model2"] > 10 * drafted.get("model", 0)
        said, finished = read(runtime.complete("abc abc", max_tokens=60))
        assert set(finished.stats.by_drafter) == {"model2"}
        assert finished.stats.accepted > 10


def test_the_check_drafts_with_both() -> None:
    seen = set[str]()
    with opened(opposite, NEARLY) as runtime:
        (verdict,) = check(runtime, [list(b"abc abc")], Sampling(), 100)
        assert verdict.divergence is None
        _, finished = read(runtime.complete("abc", max_tokens=20))
        seen = set(finished.stats.by_drafter)
    assert seen >= set(MODELS)


def test_two_heads_of_a_kind_are_refused() -> None:
    head = cast(Model, SimpleNamespace(holds_head=True, head_drafter="eagle3", head=lambda: None))
    require_one_of_a_kind([head, Recorded(), Recorded()])
    with pytest.raises(OptionError, match="2 heads of the kind eagle3; give one of them"):
        require_one_of_a_kind([head, Recorded(), head])


def test_the_number_of_a_model_that_is_not_there() -> None:
    with pytest.raises(OptionError, match=r"no drafter 'model3', only lookup, model, model2: .* 'model2' a second one"):
        opened(opposite, NEARLY, drafters=("model3",))
    for name in ("model1", "model02", "lookup2", "eagle32", "model 2"):
        with pytest.raises(OptionError, match="no drafter"):
            opened(opposite, drafters=(name,))
    mine = FunctionDrafter(lambda _context, _path: (), "model2")
    with pytest.raises(OptionError, match="two drafters named 'model2'"):
        assemble(Recorded(), drafters=[mine])
