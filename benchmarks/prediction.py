"""What a predicted text brings: a source file of 200 lines is written again with three edits.

    python -m benchmarks.prediction TARGET [--backend openvino] [--rounds 5]

The answer is given: each pass of the target is computed in full and paid for, and its choice is replaced by the token
of the edited file, so that any model will do. Plain decoding, look-ups, and a prediction beside look-ups take turns by
the round. The file is in the prompt, as editors send it, and look-ups find it there; `--bare` leaves it out. `--words`
takes a file of 200 short settings, which fits the context of the demo target; code does not, in its vocabulary.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import click

import edgespec
from edgespec.backends import Device, Interrupt, Session, open_model
from edgespec.bench.replay import ReplaySession
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.prediction import Prediction
from edgespec.engine import Engine, Finished, Request
from edgespec.prices import Prices, measure, sample_text
from edgespec.verify import verifier

from .bench import Endless, take_turns
from .dialogues import FILE

LINES = 200
SOURCE = Path(edgespec.__file__).parent / "controller" / "expansion.py"


def settings() -> list[str]:
    """200 lines, no two alike, of few tokens in any vocabulary."""
    names = ("hotel", "train", "table", "guest", "price", "place", "phone", "area", "day", "time")
    return [f"self {names[n % 10]} {names[n // 10 % 10]} = {n % 7}" for n in range(LINES)]


def edited(lines: list[str]) -> list[str]:
    """The file with three edits: a name replaced in a line, three lines removed, two inserted."""
    first = lines[40].replace("self", "this") + "  # changed"
    return [
        *lines[:40],
        first,
        *lines[41:100],
        *lines[103:150],
        "    # A comment that",
        "    # was added.",
        *lines[150:],
    ]


@click.command()
@click.argument("target", type=FILE)
@click.option("--backend", default="auto", help="The target's engine")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Answers of each kind")
@click.option("--bare", is_flag=True, help="The file is not in the prompt")
@click.option("--words", is_flag=True, help="A file of short settings instead of code")
def main(target: Path, backend: str, threads: int, rounds: int, bare: bool, words: bool) -> None:
    """Race plain decoding, look-ups and a prediction."""
    interrupt = Interrupt()
    lines = settings() if words else SOURCE.read_text(encoding="utf-8").splitlines()[:LINES]
    before, after = ("\n".join(each) + "\n" for each in (lines, edited(lines)))
    model = open_model(target, Device(8192, threads, backend=backend), interrupt)
    tokenize = model.vocabulary.tokenize
    prompt = tokenize("Edit the file.\n" + ("" if bare else before), start=True)
    answer, predicted = tokenize(after), tokenize(before)
    context = len(prompt) + len(answer) + 64

    def session() -> Session:
        found = ReplaySession(model.session(context))
        found.text = [*prompt, *answer]
        return found

    first = session()
    curve = measure(first, text=sample_text(model.vocabulary), budget=4.0)
    click.echo(
        f"{len(prompt)} tokens of prompt, {len(answer)} of answer; price(16) / price(1): {curve[-1] / curve[0]:.2f}"
    )
    sessions: dict[str, Session] = {"plain": first, "lookup": session(), "prediction": session()}
    seconds: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(rounds):
        drafters: dict[str, list[Drafter]] = {
            "plain": [],
            "lookup": [Lookup()],
            "prediction": [Prediction(predicted, len(prompt)), Lookup()],
        }
        engines = {}
        for name, each in sessions.items():
            each.rollback(0)
            prices = Prices(curve)
            controller = Adaptive(drafters[name], prices, trees=each.can_tree) if drafters[name] else Fixed([], 0)
            pieces = Endless(model.vocabulary)
            engines[name] = Engine(each, pieces, controller, verifier("match"), interrupt, prices)
        request = Request(prompt, max_tokens=len(answer))
        for name, event, _taken in take_turns({name: each.generate(request) for name, each in engines.items()}):
            if isinstance(event, Finished):
                seconds[name].append(event.stats.seconds)
                last = event.stats
                click.echo(
                    f"{name}: {last.seconds:.2f} s, {last.tokens / last.rounds:.2f} tokens a pass, "
                    f"{last.of_drafter('prediction')[1]} of the prediction accepted"
                )
    for name in ("lookup", "prediction"):
        ratios = [plain / own for plain, own in zip(seconds["plain"], seconds[name], strict=True)]
        click.echo(f"{name}: {statistics.median(ratios):.2f}x plain ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
