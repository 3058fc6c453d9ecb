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
from pathlib import Path
from typing import Any

import click

from edgespec import Sampling, models
from edgespec.drafters.lookup import Lookup
from edgespec.llamacpp import bindings
from edgespec.template import ChatTemplate

from .speed import Bench, Endless, answers, dialogue_prompts


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
@click.argument("dialogues", type=click.Path(path_type=Path, exists=True))
@click.option("--dialogues", "limit", default=10, show_default=True)
@click.option("--tokens", default=256, show_default=True, help="Tokens of each answer")
@click.option("--temp", default=0.0, show_default=True)
@click.option("--top-k", default=40, show_default=True)
@click.option("--profile", is_flag=True, help="Show where the time goes (and slow it down)")
def main(dialogues: Path, limit: int, tokens: int, temp: float, top_k: int, profile: bool) -> None:
    """Measure the orchestration of the demo pair on DIALOGUES."""
    watch = Stopwatch(bindings(), "llama_decode", "llama_memory_seq_rm")
    pair = models.demo()
    bench = Bench(pair.target, pair.draft or pair.target, threads=2)
    bench.add("plain", [], 0)
    bench.add("adaptive", [Lookup(), bench.model()], None)
    bench.add("model K=4", [bench.model()], 4)
    vocabulary = bench.target.vocabulary
    prompts = dialogue_prompts(dialogues, ChatTemplate(vocabulary), limit, 1024, first=True)
    profiler = cProfile.Profile()
    for name in bench.configurations:
        outside: list[float] = []
        for i, turns in enumerate(prompts):
            engine = bench.engine(name, "match", Endless(vocabulary))
            if profile:
                profiler.enable()
            for _, finished in answers(engine, turns, Sampling(temp, top_k, seed=i), tokens, watch.start):
                outside.append((finished.stats.seconds - watch.seconds) / finished.stats.rounds * 1e6)
            profiler.disable()
        median, low, high = statistics.median(outside), min(outside), max(outside)
        click.echo(f"{name:<10} {median:6.0f} us a round outside the engine (by answer from {low:.0f} to {high:.0f})")
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


if __name__ == "__main__":
    main()
