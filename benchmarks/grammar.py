"""What a grammar costs and brings: wall clock of the same answers, with it and without, in plain steps and in drafts.

    python -m benchmarks.grammar TARGET [--draft DRAFT.gguf] [--backend openvino]

Answers by some schemas are made once, by constrained plain decoding, and replayed (see `benchmarks/kinds.py`): each
configuration says the same tokens, "without" too. They take turns by the round: a slow spell of the machine falls on
all alike. "forced" has schemas whose keys are most of the text, "free" strings of the model's own.

The first table is over plain decoding with the grammar: what speculation brings. "plain without" says what masks cost
plain decoding (its inverse is tokens a second with the grammar over without), "without" the same of speculation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from edgespec import Device, Grammar, Interrupt, Runtime, Sampling, Speculation
from edgespec.backends import open_model
from edgespec.bench.replay import ReplaySession, SharedModel
from edgespec.engine import Event, Text
from edgespec.runtime.learned import Learned
from edgespec.runtime.loading import assemble

from .bench import take_turns
from .categories import Timed, Times
from .dialogues import FILE

PLAIN = Speculation(k=0)
#: By name: how to speculate, and whether with the grammar. "plain" is what all are compared with.
CONFIGURATIONS: Mapping[str, tuple[Speculation, bool]] = {
    "plain": (PLAIN, True),
    "plain, again": (PLAIN, True),
    "plain without": (PLAIN, False),
    "auto": (Speculation(), True),
    "forced alone": (Speculation(("grammar",)), True),
    "without": (Speculation(), False),
}
_FLAT: dict[str, Any] = {"type": "string", "maxLength": 12}
_LONG: dict[str, Any] = {"type": "string", "minLength": 120, "maxLength": 300}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_ADDRESS = _object(street_name=_FLAT, house_number={"type": "integer", "maximum": 99, "minimum": 1}, postal_code=_FLAT)
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "forced": _object(
        customer_identifier=_FLAT,
        preferred_contact_method={"enum": ["telephone", "electronic mail"]},
        billing_address=_ADDRESS,
        delivery_address=_ADDRESS,
        requires_confirmation={"type": "boolean"},
    ),
    "free": _object(summary=_LONG, reason=_LONG),
}


def _answer(runtime: Runtime, prompt: list[int], grammar: Grammar, seed: int) -> tuple[int, ...]:
    answer = runtime.complete(prompt, Sampling(0.7, seed=seed), max_tokens=300, grammar=grammar, speculation=PLAIN)
    return tuple(token for event in answer if isinstance(event, Text) for token in event.tokens)


@click.command()
@click.argument("target", type=FILE)
@click.option("--draft", type=FILE, help="A draft model")
@click.option("--threads", default=2, show_default=True)
@click.option("--backend", default="auto", show_default=True, help="The target's engine")
@click.option("--answers", default=6, show_default=True, help="Answers of each kind")
def main(target: Path, draft: Path | None, threads: int, backend: str, answers: int) -> None:
    """Measure TARGET."""
    device, interrupt, times = Device(2048, threads, backend=backend), Interrupt(), Times(tuple(CONFIGURATIONS))
    with ExitStack() as opened:
        shared = SharedModel(_opened(opened, target, device, interrupt))
        drafting = SharedModel(_opened(opened, draft, device.of_draft(draft), interrupt)) if draft else None
        for kind, schema in SCHEMAS.items():
            grammar, runtimes = Grammar.json_schema(schema), dict[str, tuple[Runtime, ReplaySession]]()
            for name, (speculation, _) in CONFIGURATIONS.items():
                interrupt.clear()
                chosen = drafting if drafting is not None and speculation.uses("model") else None
                runtime = assemble(
                    shared,
                    chosen,
                    device=device,
                    speculation=speculation,
                    interrupt=interrupt,
                    learned=Learned(None),
                )
                runtimes[name] = runtime, shared.sessions[-1]
            for seed in range(answers):
                _race(runtimes, kind, grammar, seed, times)
            for runtime, _ in runtimes.values():
                runtime.close()
            click.echo(times.report())


def _opened(opened: ExitStack, path: Path, device: Device, interrupt: Interrupt) -> Any:
    model = open_model(path, device, interrupt)
    opened.callback(model.close)
    return model


def _race(
    runtimes: Mapping[str, tuple[Runtime, ReplaySession]], kind: str, grammar: Grammar, seed: int, times: Times
) -> None:
    runtime, session = runtimes["plain"]
    prompt = runtime.prompt([{"role": "user", "content": f"Fill in form number {seed}, as JSON."}])
    session.text = ()
    said = _answer(runtime, prompt, grammar, seed)
    answers = dict[str, Iterator[Event]]()
    for name, (speaker, replaying) in runtimes.items():
        replaying.text = (*prompt, *said)
        held = grammar if CONFIGURATIONS[name][1] else None
        answers[name] = iter(speaker.complete(prompt, Sampling(), max_tokens=len(said), grammar=held))
    for name, event, seconds in take_turns(answers):
        if isinstance(event, Text):
            times.add(name, kind, Timed(event.round.width, len(event.tokens), seconds))


if __name__ == "__main__":
    main()
