"""Recent kinds of models on this machine, in one command: whether they are exact, and what speculation brings.

    python -m benchmarks.hybrids [--minutes 10] [--width 1024] [--out REPORT.md]

Models with a recurrent state, with a head for multi-token prediction, with sliding windows, and mixtures of experts.
They have random weights and are made in a temporary folder, so nothing is fetched. llama.cpp places all layers on a GPU
where it finds one; give a larger `--width` there (2048: 1.5 billion parameters) for passes of a usual price. Steps run
one after the other, and each is ended when it has taken twice its share of the time; the report says so.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from shutil import which
from typing import NamedTuple

import click

from edgespec.models import demo
from edgespec.models.memory import machine_memory

_MODELS = {"qwen35": 24, "granitehybrid": 30}  # layers
_WITH_HEAD = "qwen35"
_STEPS = 300
_SHARES = 2  # of the time left, divided among the steps left, a step may take as many


class Step(NamedTuple):
    """A module of this repository to run, and the heading of what it prints."""

    title: str
    arguments: Sequence[str]


def steps(folder: Path, width: int, tokens: int) -> Iterator[Step]:
    """All steps, the most important first."""
    models = {name: str(folder / f"{name}.gguf") for name in _MODELS}
    for name, layers in _MODELS.items():
        form = ["--architecture", name, "--layers", str(layers), "--width", str(width)]
        head = ["--head"] if name == _WITH_HEAD else []
        yield Step(f"Model: {name}", ["benchmarks.hybrid_model", models[name], *form, *head])
    exact = f"{_STEPS} random steps with recurrent states and sliding windows: logits against a new session's"
    yield Step(exact, ["tests.hybrid_steps", str(_STEPS)])
    for name, path in models.items():
        kinds = ["--tokens", str(tokens), "--kind", "hard", "--kind", "copy"]
        title = f"{name}: text that cannot be guessed, and copies, x plain"
        yield Step(title, ["benchmarks.categories", path, str(demo().draft), *kinds])
    others = ["mtp", *(["llama-server:mtp-1", "llama-server:ngram-simple"] if which("llama-server") else [])]
    answers = ["--draft", "none", "--limit", "1", "--max-tokens", "64", "--compare", ",".join(others)]
    title = f"{_WITH_HEAD}: answers that cannot be guessed, with a head that is never right"
    yield Step(title, ["edgespec", "bench", models[_WITH_HEAD], *answers, "--out", str(folder / "bench")])
    few = ["--tokens", str(tokens // 4), "--answers", "2"]
    yield Step("A mixture of experts", ["benchmarks.experts", str(folder / "experts.gguf"), *few])


def run(step: Step, seconds: float) -> str:
    """The last table of what a step prints, or why it has none."""
    if seconds < 1:
        return "left out: its time was up"
    command = [sys.executable, "-m", *step.arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        said, end = error.stdout or b"", [f"ended after {seconds:.0f} seconds: its time was up"]
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    else:
        text, end = done.stdout, []
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            end = [f"failed with status {done.returncode}: {last}"]
    return "\n".join([*_last_table(text.strip().splitlines()), *end])


def _last_table(lines: Sequence[str]) -> Sequence[str]:
    """Tables are printed anew after each kind of text; the last one has all."""
    heads = [n for n, line in enumerate(lines) if line.startswith("x plain")]
    return [*lines[:1], *lines[heads[-1] :]] if heads else lines


def machine() -> str:
    """This machine, in a line."""
    import llama_cpp  # noqa: PLC0415

    gpus = machine_memory().gpus if llama_cpp.llama_supports_gpu_offload() else ()
    found = ", ".join(f"a GPU with {gpu.free / 1e9:.0f} GB free" for gpu in gpus) or "no GPU used"
    return f"{platform.processor() or platform.machine()}, {found}; llama-cpp-python {llama_cpp.__version__}"


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="The most it may take")
@click.option("--width", default=1024, show_default=True, help="Of the models; their parameters grow with its square")
@click.option("--tokens", default=200, show_default=True, help="Tokens of each kind of text")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Where the report is written, too")
def main(minutes: float, width: int, tokens: int, out: Path | None) -> None:
    """Measure recent kinds of models on this machine."""
    until = time.monotonic() + 60 * minutes
    report = [f"{machine()}; {date.today().isoformat()}"]
    click.echo(report[0])
    with tempfile.TemporaryDirectory() as folder:
        planned = list(steps(Path(folder), width, tokens))
        for left, step in zip(range(len(planned), 0, -1), planned, strict=True):
            started = time.monotonic()
            said = run(step, min(1, _SHARES / left) * (until - started))
            report += [f"\n## {step.title}\n", "```", said, "```", f"{time.monotonic() - started:.0f} s"]
            click.echo("\n".join(report[-5:]))
    if out is not None:
        out.write_text("\n".join(report) + "\n", "utf-8")


if __name__ == "__main__":
    main()
