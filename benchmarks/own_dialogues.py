"""Let a target write dialogues, both sides, as prompts for `edgespec distill`: turns of the user are sampled at
temperature 1, answers are greedy.

    python -m benchmarks.own_dialogues MODEL DIALOGUES.jsonl [--count 400]
    edgespec distill MODEL --head eagle3 --prompts DIALOGUES.jsonl --out pair

MODEL is what `edgespec chat` takes, a chat model in ChatML. Each line is {"messages": [...]}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

import edgespec
from edgespec import Device, Runtime, Sampling
from edgespec.engine import Text

PATH = click.Path(path_type=Path)
_USER = "<|im_start|>user\n"  # ChatML
_TURNS, _LONGEST, _USER_MOST, _ANSWER_MOST = 8, 700, 60, 120  # of a dialogue; tokens of it and of a turn


def written(runtime: Runtime, number: int) -> Iterator[dict[str, str]]:
    """The messages of a dialogue; `number` is its seed."""
    words = runtime.vocabulary
    opening, messages, before = words.tokenize(_USER, special=True), list[dict[str, str]](), list[int]()
    for turn in range(_TURNS):
        sampling = Sampling(temperature=1.0, seed=1000 * number + turn)
        asked = runtime.text(_said(runtime, [*before, *opening], sampling, _USER_MOST)).strip()
        if not asked:
            return
        messages.append({"role": "user", "content": asked})
        prompt = runtime.prompt(messages)
        if len(prompt) > _LONGEST:
            return
        answer = _said(runtime, prompt, Sampling(), _ANSWER_MOST)
        messages.append({"role": "assistant", "content": runtime.text(answer)})
        before = [*prompt, *answer, *words.tokenize("<|im_end|>\n", special=True)]
        yield from messages[-2:]


def _said(runtime: Runtime, tokens: Sequence[int], sampling: Sampling, most: int) -> list[int]:
    events = runtime.complete(tokens, sampling, max_tokens=most)
    said = [token for event in events if isinstance(event, Text) for token in event.tokens]
    return said[:-1] if said and said[-1] == runtime.vocabulary.eos else said


@click.command()
@click.argument("model", type=PATH)
@click.argument("output", type=PATH)
@click.option("--count", default=400, show_default=True, help="Dialogues")
@click.option("--threads", default=0, help="[default: as many as there are cores]")
def main(model: Path, output: Path, count: int, threads: int) -> None:
    """Write dialogues of MODEL with itself to OUTPUT."""
    with (
        edgespec.load(model, "none", device=Device(context=1024, threads=threads)) as runtime,
        output.open("w", encoding="utf-8") as file,
    ):
        for number in range(count):
            if messages := list(written(runtime, number)):
                file.write(json.dumps({"messages": messages}) + "\n")


if __name__ == "__main__":
    main()
