"""Figures as text, rounded by their intervals, and the sentences of the result."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..figures import Figures, Latency, TextMatches, figures
from ..records import OURS, Run
from ..scopes import ALL, REPLAYED, categories, totals
from ..speedups import FEWEST_QUESTIONS, FEWEST_TOKENS, BestConfiguration, Estimate, best_configurations, speedup

NONE = "–"  #: stands for a missing figure
_NOISE = 1.1  # by this factor a speedup may exceed the tokens per pass before it counts as impossible


def ratio(estimate: Estimate) -> str:
    """The figure without its interval, with the decimals that are significant by the interval, at most two."""
    return f"{estimate.value:.{_decimals(estimate)}f}"


def bounds(estimate: Estimate) -> str:
    """The interval; empty where there is none."""
    if estimate.interval is None:
        return ""
    low, high = estimate.interval
    return f"{low:.{_decimals(estimate)}f} to {high:.{_decimals(estimate)}f}"


def with_bounds(estimate: Estimate | None) -> str:
    """Figure and interval."""
    if estimate is None:
        return NONE
    return f"{ratio(estimate)} ({bounds(estimate)})" if estimate.interval else ratio(estimate)


def _decimals(estimate: Estimate) -> int:
    if estimate.interval is None:
        return max(1, _places(estimate.value))  # so that a ratio is not rounded to 0
    low, high = estimate.interval
    borne = (_places((high - low) / 2), _places(low))
    return max(_places(estimate.value), min(2, max(0, *borne)))


def _places(value: float) -> int:
    """Decimals that show the first digit of `value`."""
    return -math.floor(math.log10(value)) if value > 0 else 2


def three(value: float | None, scale: float = 1.0) -> str:
    """`value` times `scale` with three significant digits."""
    if value is None:
        return NONE
    scaled = value * scale
    places = 2 - math.floor(math.log10(abs(scaled))) if scaled else 0
    return f"{scaled:.{min(3, max(0, places))}f}"


def milliseconds(latency: Latency | None) -> str:
    """The percentiles in milliseconds, as far as there are enough values."""
    return NONE if latency is None else " / ".join(three(seconds, 1e3) for seconds in latency)


def sameness(same: TextMatches) -> str:
    """The number of answers with the output of plain decoding."""
    if not same.compared:
        return "unknown" if same.unknown else NONE
    unknown = f", {same.unknown} unknown" if same.unknown else ""
    return f"{same.same} of {same.compared}{unknown}"


def counted(n: int, thing: str) -> str:
    return f"{n} {thing}{'s' * (n != 1)}"


def headline(run: Run) -> str:
    """The main result in a sentence, of free answers where there are any."""
    for said in _results(run):
        return said
    questions = speedup(run, OURS).questions
    if not questions:
        return "No result: there is no question that both plain decoding and edgespec answered."
    return (
        f"No result: over {counted(questions, 'question')} plain decoding or edgespec has fewer than {FEWEST_TOKENS} "
        "tokens, too few for a ratio."
    )


def _results(run: Run) -> Iterator[str]:
    for scope in totals(run):
        found = figures(run, OURS, scope)
        if scope != ALL and found.speedup.decoding:
            yield _result(found, found.speedup.decoding)


def _result(found: Figures, estimate: Estimate) -> str:
    replayed = found.scope == REPLAYED
    where = f"over {counted(found.speedup.questions, 'question')} on this machine"
    if drafted_nothing(found):
        what = "Made to say given texts (replayed), edgespec" if replayed else "edgespec"
        return (
            f"{what} drafted nothing {where}: it decoded plainly. Its {ratio(estimate)}x plain decoding is the "
            "difference between two runs of plain decoding."
        )
    what = "Made to say given texts (replayed), edgespec came to" if replayed else "edgespec came to"
    sure = f"95% {bounds(estimate)}" if estimate.interval else few_questions(found.speedup.questions)
    return f"{what} {ratio(estimate)}x plain decoding ({sure}) {where}{_pays(estimate, found)}."


def drafted_nothing(found: Figures) -> bool:
    """Whether all rounds are known and none of them drafted a token."""
    return found.lengths.keys() == {0}


def few_questions(questions: int) -> str:
    """Why there is no interval."""
    return (
        f"no interval: it needs {FEWEST_QUESTIONS} questions, and there {'is' if questions == 1 else 'are'} {questions}"
    )


def _pays(estimate: Estimate, found: Figures) -> str:
    most = found.mean_accepted_length
    if most is not None and estimate.value > _NOISE * most:
        return f": more than its {most:.2f} tokens a pass can bring, so plain decoding was disturbed; measure again"
    if estimate.interval is None:
        return ""
    low, high = estimate.interval
    if high < 1:
        return ": speculation does not pay here"
    return "" if low > 1 else ": no significant difference"


def interruption(run: Run) -> str:
    """A notice that the run was interrupted; empty if it was not."""
    if not run.interrupted:
        return ""
    both, asked = speedup(run, OURS).questions, counted(sum(run.questions.values()), "question")
    return f"This run was interrupted: {both} of {asked} had been answered both plainly and by edgespec."


def remarks(run: Run) -> Iterator[str]:
    """Further results, a sentence each: replayed texts, categories without a gain, other contenders."""
    yield from list(_results(run))[1:]
    yield from _verdicts(run)
    for best in best_configurations(run):
        if best.ours.decoding:
            yield _comparison(run, best, best.ours.decoding)


def _verdicts(run: Run) -> Iterator[str]:
    known = [(scope.label, figures(run, OURS, scope)) for scope in categories(run)]
    plain = [label for label, each in known if drafted_nothing(each)]
    if plain and len(plain) < len(known):
        yield f"edgespec drafted nothing, and so decoded plainly, in {'; '.join(plain)}."
    found = [(label, each.speedup.decoding) for label, each in known if label not in plain]
    sure = [(label, each, each.interval) for label, each in found if each and each.interval]
    losing = [f"{label}, {ratio(each)}x" for label, each, (_, high) in sure if high < 1]
    if losing:
        yield f"Speculation does not pay in {'; '.join(losing)}."
    unsure = [label for label, _, (low, high) in sure if low <= 1 <= high]
    if unsure:
        yield f"No significant difference in {'; '.join(unsure)}."
    few = [label for label, each in found if each and not each.interval]
    if few:
        yield f"Too few questions to say how sure it is, fewer than {FEWEST_QUESTIONS}, in {'; '.join(few)}."


def _comparison(run: Run, best: BestConfiguration, ours: Estimate) -> str:
    name = best.configuration
    if best.of > 1:
        name = f"The best in hindsight of {best.of} configurations of {best.family}, {name},"
    replayed = speedup(run, OURS, REPLAYED, base=best.configuration).questions
    among = f", {replayed} of them replayed" if replayed else ""
    return (
        f"{name} came to {with_bounds(best.speedup)} times plain decoding; edgespec was {with_bounds(ours)} times as "
        f"fast as that, over the {counted(best.ours.questions, 'question')} that both answered{among}."
    )
