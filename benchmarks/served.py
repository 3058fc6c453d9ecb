"""What the server adds: time to the first token and between tokens, beside those of the library.

    python -m benchmarks.served TARGET [--draft DRAFT] [--backend openvino] [--k 0]

`edgespec serve` with one slot runs in a process of its own, the library in this one, both over the same files. They
take turns by the answer, and the one that goes first alternates. Each answers all questions twice: a slow spell of the
machine falls on both alike. The client reads lines from a socket, as any does. Medians over answers; the time between
tokens is that from the first to the last text over the tokens between.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

import click

from edgespec import Device, Runtime, Sampling, Speculation, load
from edgespec.bench.suites import read
from edgespec.engine import Finished, Text

from .dialogues import FILE
from .report import table


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one answer: seconds to its first text, and seconds for each token after that."""

    first: float
    between: float


def timing(began: float, texts: Sequence[tuple[float, int]], tokens: int) -> Timing:
    """The timing of an answer.

    Args:
        began: when it was asked for.
        texts: when each text came, and of how many tokens it is; 0 where that is not known.
        tokens: of the answer.
    """
    first, last = texts[0][0], texts[-1][0]
    return Timing(first - began, (last - first) / max(1, tokens - max(1, texts[0][1])))


def by_library(runtime: Runtime, question: str, most: int) -> Timing:
    """One answer of the library."""
    began, texts = time.perf_counter(), list[tuple[float, int]]()
    total = 0
    for event in runtime.chat([{"role": "user", "content": question}], Sampling(), max_tokens=most):
        if isinstance(event, Text) and event.text:
            texts.append((time.perf_counter(), len(event.tokens)))
        if isinstance(event, Finished):
            total = event.stats.tokens
    return timing(began, texts, total)


def by_server(address: tuple[str, int], question: str, most: int, k: int | None) -> Timing:
    """One answer of the server, as a stream."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": most,
        "temperature": 0,
        "repeat_penalty": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "edgespec": {} if k is None else {"k": k},
    }
    connection = HTTPConnection(*address)
    began, texts, total, sized = time.perf_counter(), list[tuple[float, int]](), 0, 0
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if any(choice["delta"].get("content") for choice in chunk["choices"]):
            texts.append((time.perf_counter(), sized))
        if chunk.get("usage"):
            total = chunk["usage"]["completion_tokens"]
    connection.close()
    return timing(began, texts, total)


@contextmanager
def served(options: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "edgespec", "serve", *options, "--port", "0", "--slots", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr or ():
                if found := re.search(r"http://([\d.]+):(\d+)/v1", line):
                    yield found[1], int(found[2])
                    return
            raise click.ClickException("the server ended before it had loaded the model")
        finally:
            process.terminate()


@click.command()
@click.argument("target", type=FILE)
@click.option("--draft", type=FILE, help="A draft model or a head")
@click.option("--backend", default="auto", show_default=True, help="The target's engine")
@click.option("--threads", default=2, show_default=True)
@click.option("--k", type=int, help="Tokens to draft, 0 for plain decoding  [default: adaptive]")
@click.option("--tokens", default=64, show_default=True, help="Tokens of an answer, at most")
@click.option("--questions", "count", default=20, show_default=True)
def main(target: Path, draft: Path | None, backend: str, threads: int, k: int | None, tokens: int, count: int) -> None:
    """Measure the server and the library over TARGET."""
    asked = [question.turns[0] for question in read("demo").questions][:count]
    options = [str(target), "--backend", backend, "--threads", str(threads), "--ctx", "2048"]
    options += ["--draft", str(draft) if draft else "none"]
    found: dict[str, list[Timing]] = {"library": [], "server": []}
    device = Device(2048, threads, backend=backend)
    with (
        load(target, draft or "none", device=device, speculation=Speculation(k=k)) as runtime,
        served(options) as address,
    ):
        for turn in range(2):
            for number, question in enumerate(asked):
                for name in ("library", "server") if (turn + number) % 2 else ("server", "library"):
                    one = (
                        by_library(runtime, question, tokens)
                        if name == "library"
                        else by_server(address, question, tokens, k)
                    )
                    if turn or number:  # the first answer of each is a warm-up
                        found[name].append(one)
    rows = []
    for what in ("first", "between"):
        of = {name: [getattr(one, what) for one in timings] for name, timings in found.items()}
        # An answer that is one text has no time between texts.
        pairs = [(s, lib) for s, lib in zip(of["server"], of["library"], strict=True) if s and lib]
        ratio = median(s / lib for s, lib in pairs)
        rows.append([what, *(f"{median(each) * 1e3:.2f} ms" for each in of.values()), f"{ratio:.3f}"])
    click.echo(table(("", "library", "server", "server / library, median of pairs"), rows))


if __name__ == "__main__":
    main()
