"""What a round costs outside the engine's own calls: Python, NumPy and ctypes, on the demo pair.

    python -m benchmarks.overhead DIALOGUES.jsonl [--temp 0.8] [--profile]

Times llama_decode and llama_memory_seq_rm themselves and takes them off the time of the rounds.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from typing import Any

import click

from edgespec import Sampling, models
from edgespec.backends.llama_library import bindings
from edgespec.drafters.lookup import Lookup
from edgespec.engine import Request

from .bench import Bench, answer
from .dialogues import Dialogues, dialogues


class Stopwatch:
    """Adds up the time spent in functions of a module."""

    def __init__(self, module: Any, *names: str) -> None:
        self.seconds = 0.0
        for name in names:
            setattr(module, name, self._timed(getattr(module, name)))

    def start(self) -> None:
        """Count from here."""
        self.seconds = 0.0

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def timed(*arguments: Any) -> Any:
            started = clock()
            result = function(*arguments)
            self.seconds += clock() - started
            return result

        return timed


@click.command()
@dialogues(10)
@click.option("--tokens", default=256, show_default=True, help="Tokens of each answer")
@click.option("--temp", default=0.0, show_default=True)
@click.option("--top-k", default=40, show_default=True)
@click.option("--profile", is_flag=True, help="Show where the time goes (and slow it down)")
def main(dialogues: Dialogues, tokens: int, temp: float, top_k: int, profile: bool) -> None:
    """Measure the orchestration of the demo pair on DIALOGUES."""
    watch = Stopwatch(bindings(), "llama_decode", "llama_memory_seq_rm")
    demo = models.demo()
    bench = Bench(demo.target, demo.draft or demo.target, threads=2)
    bench.add("plain", [], 0)
    bench.add("adaptive", [Lookup(), bench.model()], None)
    bench.add("model K=4", [bench.model()], 4)
    prompts = dialogues.openings(bench.vocabulary, 1024)
    profiler = cProfile.Profile()
    for name in bench.configurations:
        outside: list[float] = []
        for i, prompt in enumerate(prompts):
            engine, request = bench.engine(name), Request(prompt, Sampling(temp, top_k, seed=i), tokens)
            if profile:
                profiler.enable()
            _, stats = answer(engine, request, watch.start)
            profiler.disable()
            outside.append((stats.seconds - watch.seconds) / stats.rounds * 1e6)
        median, low, high = statistics.median(outside), min(outside), max(outside)
        click.echo(f"{name:<10} {median:6.0f} us a round outside the engine (by answer from {low:.0f} to {high:.0f})")
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


if __name__ == "__main__":
    main()
