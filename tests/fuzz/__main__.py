"""The campaign as a command."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import campaign, kills
from .campaign import Input, Summary
from .judge import Wrong
from .kinds import KINDS


def main() -> int:
    """Run what is asked for; 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="A fuzz campaign against edgespec.")
    parser.add_argument("--inputs", type=int, default=1000, help="how many inputs, over all kinds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--kind", action="append", default=[], choices=tuple(KINDS), help="only this kind, repeatable")
    parser.add_argument("--only", action="append", default=[], metavar="KIND:INDEX", help="only this input, repeatable")
    parser.add_argument("--corpus", action="store_true", help="only the inputs that once did harm")
    parser.add_argument("--work", type=Path, help="a folder to work in, which is kept")
    parser.add_argument("--kills", type=int, default=0, help="kill so many processes instead")
    parser.add_argument("--task", action="append", default=[], help="with --kills: only this task, repeatable")
    given = parser.parse_args()
    if given.kills:
        return _kill(given)
    inputs = _inputs(given)
    summary = Summary()
    for outcome in campaign.run(inputs, min(given.jobs, len(inputs)), given.work):
        summary.add(outcome)
        if given.only:
            print(outcome.line, outcome.detail, sep="\n")
        elif outcome.failed:
            print(outcome.line, flush=True)
    print(summary.text())
    return 1 if summary.failures else 0


def _kill(given: argparse.Namespace) -> int:
    failures = 0
    with campaign.rooted(given.work) as root:
        for number, found in enumerate(kills.run(given.kills, given.seed, root, given.task, given.jobs), 1):
            if isinstance(found, Wrong):
                failures += 1
                print(f"{found.what}: kill {number - 1}, seed {given.seed}: {found.detail}", flush=True)
    print(f"{given.kills} kills, {failures} failures")
    return 1 if failures else 0


def _inputs(given: argparse.Namespace) -> list[Input]:
    if given.only:
        named = (each.rpartition(":") for each in given.only)
        return [Input(kind, given.seed, int(index)) for kind, _, index in named]
    kinds = campaign.chosen(given.kind)
    if given.corpus:
        return [Input(kind, given.seed, i) for kind in kinds for i in range(len(KINDS[kind].CORPUS))]
    return campaign.plan(given.inputs, given.seed, kinds)


if __name__ == "__main__":
    sys.exit(main())
