"""Answers by the schemas of the JSON Schema Test Suite: valid, and those of constrained plain decoding.

    python -m benchmarks.schemas FOLDER... [--target MODEL] [--draft DRAFT]

A FOLDER is that of a draft of the suite, for example `tests/draft2020-12` of json-schema-org/JSON-Schema-Test-Suite,
which the source distribution of the package jsonschema has in `json/`. Every schema that is an object is used once. For
each the model answers greedily, or by the next seeds at a temperature where it does not come to an end, with
speculation and without.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import jsonschema

from edgespec import Device, Finished, Grammar, GrammarError, Runtime, Sampling, Speculation, Text, load, models

PLAIN = Speculation(k=0)
SAMPLINGS = (Sampling(), *(Sampling(0.8, seed=seed) for seed in range(1, 5)))
_MOST = 200  # tokens of an answer
_MESSAGES = [{"role": "user", "content": "Book a table, as JSON."}]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a schema.

    Args:
        refused: why the grammar was refused; empty if it was used.
        ended: whether an answer came to its end.
        valid: whether that answer is valid by the schema.
        equal: whether all answers are those of constrained plain decoding.
    """

    refused: str = ""
    ended: bool = False
    valid: bool = False
    equal: bool = False


def schemas(folders: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas of the suite's files in `folders`, with what the suite calls them; those that differ in no more than
    the draft they name, once."""
    known = set[str]()
    for path in (path for folder in folders for path in sorted(folder.rglob("*.json"))):
        for group in json.loads(path.read_text("utf-8")):
            schema = group["schema"]
            if not isinstance(schema, dict):
                continue
            key = json.dumps({name: value for name, value in schema.items() if name != "$schema"}, sort_keys=True)
            if key not in known:
                known.add(key)
                yield f"{path.parent.name}/{path.stem}: {group['description']}", schema


def judged(runtime: Runtime, schema: dict[str, Any]) -> Verdict:
    """The verdict on the answers of `runtime` by `schema`."""
    try:
        grammar = Grammar.json_schema(schema)
    except GrammarError as error:
        return Verdict(str(error))
    equal = True
    for sampling in SAMPLINGS:
        text, reason = _said(runtime, grammar, sampling, Speculation())
        equal = equal and (text, reason) == _said(runtime, grammar, sampling, PLAIN)
        if reason == "end":
            return Verdict(ended=True, valid=_is_valid(text, schema), equal=equal)
    return Verdict(equal=equal)


def _said(runtime: Runtime, grammar: Grammar, sampling: Sampling, speculation: Speculation) -> tuple[str, str]:
    texts, reason = list[str](), ""
    for event in runtime.chat(_MESSAGES, sampling, max_tokens=_MOST, grammar=grammar, speculation=speculation):
        if isinstance(event, Text):
            texts.append(event.text)
        elif isinstance(event, Finished):
            reason = event.reason
    return "".join(texts), reason


def _is_valid(text: str, schema: dict[str, Any]) -> bool:
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    # In floats 0.0003 is no multiple of 0.0001; in decimals 1.0 is no integer.
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    return bool(
        validator(schema).is_valid(json.loads(text)) or validator(exact).is_valid(json.loads(text, parse_float=Decimal))
    )


def _kind(message: str) -> str:
    """A reason for a refusal without what is particular to a schema."""
    return re.split(r"[\[\"'/\d]|: |;", message.split(": ", 1)[-1])[0].strip()


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--target", type=click.Path(path_type=Path), help="The model [default: the bundled demo pair]")
@click.option("--draft", type=click.Path(path_type=Path), help="A draft model")
@click.option("--threads", default=2, show_default=True)
def main(folders: tuple[Path, ...], target: Path | None, draft: Path | None, threads: int) -> None:
    """Judge all schemas in FOLDERS."""
    demo = models.demo()
    verdicts = dict[str, Verdict]()
    with load(
        target or demo.target, draft or (demo.draft if target is None else None), device=Device(1024, threads)
    ) as runtime:
        for name, schema in schemas(folders):
            verdicts[name] = judged(runtime, schema)
            if not verdicts[name].refused and not (verdicts[name].valid and verdicts[name].equal):
                click.echo(f"{name}: {verdicts[name]}")
    used = [verdict for verdict in verdicts.values() if not verdict.refused]
    ended = [verdict for verdict in used if verdict.ended]
    click.echo(
        f"{len(verdicts)} schemas, {len(used)} used; {len(ended)} answers ended, {sum(v.valid for v in ended)} of them "
        f"valid; {sum(v.equal for v in used)} of {len(used)} equal to constrained plain decoding"
    )
    for reason, count in Counter(_kind(v.refused) for v in verdicts.values() if v.refused).most_common():
        click.echo(f"refused {count}: {reason}")


if __name__ == "__main__":
    main()
