"""docs/benchmarks.md: `edgespec bench` on the demo pair, and on its target made larger without changing what it says.

    python -m benchmarks.proof CHECKPOINT [--llama-server PATH] [--limit 6] [--size 395M] --work DIR --out PAGE

CHECKPOINT is that of the demo pair's target. Models and answers stay in DIR: what was made or answered there is not
made or answered again.

--peers PYTHON names a Python with transformers, onnxruntime-genai, openvino-genai and optimum-intel, to compare with
them, too; --draft-checkpoint is that of the demo pair's draft, for those that read checkpoints.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import click

from edgespec import models
from edgespec.bench.records import OURS, PLAIN, Pass, Run
from edgespec.bench.report.wording import remarks, with_bounds
from edgespec.bench.scopes import Scope, categories, totals
from edgespec.bench.speedups import best_configurations, speedup

from .dialogues import FILE

_EDGESPEC = (sys.executable, "-c", "from edgespec.cli import main; main()")
_SERVER = (
    "llama-server",
    *(f"llama-server:{kind}" for kind in ("draft-3", "draft-8", "draft-16", "ngram-simple", "ngram-mod")),
)
_HEAD = """# Benchmarks

Made by one command, on the machine named below:

    python -m benchmarks.proof CHECKPOINT --llama-server PATH --peers PYTHON --draft-checkpoint DRAFT --limit {limit} \\
        {named} --work DIR --out docs/benchmarks.md

The target is that of the demo pair, as it is (39 million parameters) and enlarged ({sizes}) by layers and neurons that
cost what real ones cost and change nothing of what it says (`benchmarks/enlarge.py`); the draft model is the demo
pair's. Its first guesses are right more often than those of a real pair, so expect less of yours.
`edgespec bench` asks all contenders the same questions in turn; edgespec begins each run knowing nothing of its
drafters. Speed is what a token takes without the prompt; in brackets the 95% interval over questions, where there are
8 or more of them; a category has {limit}. All is on the CPU, 2 threads. Speedups are over edgespec's plain decoding in
the engine that the title names. Of others, OpenVINO GenAI has the weights in 8 bits, ONNX Runtime GenAI in 4, and
transformers in float32; "in float32" is the type of computation.
"""

_LLAMA_CPP_PYTHON = ("llama-cpp-python", "llama-cpp-python:lookup-10", "llama-cpp-python:lookup-2")
_PEERS = (
    *(f"openvino-genai{kind}{kept}" for kind in ("", ":draft-5", ":lookup") for kept in ("", "-f32")),
    "genai",
    "genai:draft",
    "genai:ngram",
    "transformers",
    "transformers:assisted",
    "transformers:lookup",
)
_ENLARGED = {"395M": 10, "1B": 26}  # layers, of 16,384 neurons


class Job(NamedTuple):
    """One run: a model, its label, and how it is asked."""

    label: str
    model: Path
    suite: str
    temperature: float
    compare: Sequence[str]
    options: Sequence[object] = ()  # further ones of `edgespec bench`

    @property
    def title(self) -> str:
        return f"{self.label}, {self.suite}" + (f", temperature {self.temperature:g}" if self.temperature else "")

    @property
    def folder(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.title)


class Peers(NamedTuple):
    """Other engines than llama.cpp: a Python that has them, and the draft's checkpoint, for those that read it."""

    python: Path
    draft: Path | None


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True))
@click.option("--llama-server", type=FILE, help="To compare with")
@click.option("--peers", type=FILE, help="A Python with the engines of others")
@click.option("--draft-checkpoint", type=click.Path(path_type=Path, exists=True), help="For them")
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--limit", default=6, show_default=True, help="Questions of each category")
@click.option("--size", "sizes", multiple=True, type=click.Choice([*_ENLARGED]), default=[*_ENLARGED])
@click.option("--out", type=click.Path(path_type=Path))
def main(  # noqa: PLR0913, PLR0917 - click passes every option
    checkpoint: Path,
    llama_server: Path | None,
    peers: Path | None,
    draft_checkpoint: Path | None,
    work: Path,
    limit: int,
    sizes: Sequence[str],
    out: Path | None,
) -> None:
    """Print the page, or write it."""
    runs = []
    work.mkdir(parents=True, exist_ok=True)
    jobs = [*_jobs(checkpoint, work, sizes, _SERVER if llama_server else ())]
    if peers is not None:
        jobs.append(_peers_job(checkpoint, work, sizes[0], Peers(peers, draft_checkpoint)))
    for job in jobs:
        print(job.title, file=sys.stderr, flush=True)
        runs.append((job, _run(job, work, limit, llama_server)))
    named = " ".join(f"--size {each}" for each in sizes)
    head = _HEAD.format(limit=limit, sizes=", ".join(sizes), named=named)
    text = "\n".join([head, *_page(runs)]) + "\n"
    if out is None:
        print(text)
    else:
        out.write_text(text, encoding="utf-8")


def _jobs(checkpoint: Path, work: Path, sizes: Sequence[str], servers: Sequence[str]) -> Iterator[Job]:
    yield Job("demo pair", models.demo().target, "demo", 0.0, servers)
    for label in sizes:
        for quantization in ("q8_0", "q4_0"):
            model = _model(checkpoint, work, _ENLARGED[label], quantization)
            for temperature in (0.0, 0.8):
                others = _LLAMA_CPP_PYTHON if not temperature and quantization == "q8_0" else ()
                yield Job(f"{label} {quantization}", model, "demo", temperature, (*servers, *others))
            if label == "395M":
                yield Job(f"{label} {quantization}", model, "replay", 0.0, ("lookup", "k=3", "k=7"))


def _peers_job(checkpoint: Path, work: Path, label: str, peers: Peers) -> Job:
    """The engine with the cheapest wide passes on x86, beside other engines on the same weights in 8 bits (ONNX Runtime
    GenAI: in 4; transformers: as they are)."""
    large, model = _enlarged(checkpoint, work, _ENLARGED[label]), work / f"target-{_ENLARGED[label]}.int8"
    if not model.exists():
        _call(*_EDGESPEC, "convert", large, "--to", "onnx", "--quant", "int8", "--out", model)
    # Greedy decoding takes no min_p, which ONNX Runtime GenAI lacks.
    named: list[object] = ["--backend", "openvino", "--min-p", 0, "--python", peers.python, "--source", large]
    named += ["--openvino-genai", _openvino_ir(large, work / f"{model.stem}.openvino", peers.python)]
    named += ["--genai", _genai(large, work / f"{model.stem}.genai", peers.python)]
    if peers.draft is not None:
        named += ["--draft-source", peers.draft]
        named += ["--openvino-genai-draft", _openvino_ir(peers.draft, work / "draft.openvino", peers.python)]
        named += ["--genai-draft", _genai(peers.draft, work / "draft.genai", peers.python)]
    return Job(f"{label} int8 in OpenVINO", model, "demo", 0.0, _PEERS, named)


def _openvino_ir(checkpoint: Path, output: Path, python: Path) -> Path:
    """The folder of OpenVINO GenAI, made where it is not there."""
    if not (output / "openvino_detokenizer.xml").exists():
        task = ("--task", "text-generation-with-past", "--weight-format", "int8")
        command = "from optimum.commands.optimum_cli import main; main()"
        _call(python, "-c", command, "export", "openvino", "--model", checkpoint, *task, output)
    return output


def _genai(checkpoint: Path, output: Path, python: Path) -> Path:
    """The folder of ONNX Runtime GenAI, made where it is not there."""
    if not (output / "genai_config.json").exists():
        given = ("-i", checkpoint, "-o", output, "-p", "int4", "-e", "cpu", "-c", output.parent / "genai-cache")
        _call(python, "-m", "onnxruntime_genai.models.builder", *given)
    return output


def _enlarged(checkpoint: Path, work: Path, layers: int) -> Path:
    """The enlarged checkpoint, made where it is not there."""
    large = work / f"checkpoint-{layers}"
    if not (large / "model.safetensors").exists():
        _call(sys.executable, "-m", "benchmarks.enlarge", checkpoint, large, "--layers", layers)
    return large


def _model(checkpoint: Path, work: Path, layers: int, quantization: str) -> Path:
    """The enlarged target, made where it is not there."""
    output = work / f"target-{layers}.{quantization}.gguf"
    if not output.exists():
        large = _enlarged(checkpoint, work, layers)
        _call(*_EDGESPEC, "convert", large, "--quant", quantization, "--out", output)
    return output


def _run(job: Job, work: Path, limit: int, server: Path | None) -> Run:
    """The run, gone on with where it was begun before."""
    folder = work / job.folder
    options = ["--draft", models.demo().draft, "--suite", job.suite, "--temp", job.temperature, "--threads", 2]
    compared = ["--compare", ",".join(job.compare), "--limit", limit, "--out", folder, "--resume"]
    named = ["--llama-server", server] if server is not None else []
    _call(*_EDGESPEC, "bench", job.model, *options, *compared, *named, *job.options)
    kept = json.loads((folder / "bench.json").read_text("utf-8"))
    del kept["version"]
    return Run.of(kept)


def _call(*words: object) -> None:
    subprocess.run(list(map(str, words)), check=True)


def _page(runs: Sequence[tuple[Job, Run]]) -> Iterator[str]:
    about = runs[0][1].about
    yield f"{about['machine']}; {about['versions']}; {about['date'][:10]}.\n"
    yield "## edgespec against plain decoding, and against the best configuration of each other engine\n"
    yield "| | x plain | best of its configurations, in hindsight | its x plain | edgespec over that |"
    yield "|---|---|---|---|---|"
    for job, run in runs:
        for best in best_configurations(run):
            if best.family != "fixed K":
                ours = with_bounds(speedup(run, OURS).decoding)
                its, over = with_bounds(best.speedup), with_bounds(best.ours.decoding)
                yield f"| {job.title} | {ours} | {best.configuration} | {its} | **{over}** |"
    yield "\n## Where the time goes\n"
    yield from _profile(runs)
    for job, run in runs:
        yield f"\n## {job.title}\n"
        yield from _speedups(run)
        yield "\n" + "\n".join(f"- {remark}" for remark in remarks(run))
    yield "\n## Where speculation does not pay\n"
    yield from _losses(runs)


def _profile(runs: Sequence[tuple[Job, Run]]) -> Iterator[str]:
    """What edgespec's rounds took and brought, those without a draft and those with one."""
    yield "Rounds of edgespec, drafting and bookkeeping included, in steps of plain decoding in the same run:\n"
    yield "| | without a draft: of the time | steps each | with a draft: K | accepted | steps each | tokens a step |"
    yield "|---|---|---|---|---|---|---|"
    for job, run in runs:
        plain, ours = _passes(run, PLAIN), _passes(run, OURS)
        step = _mean(plain, "seconds") or 0.0
        without = [each for each in ours if not each.drafted]
        drafts = [each for each in ours if each.drafted]
        share = sum(each.seconds for each in without) / sum(each.seconds for each in ours)
        took = _mean(drafts, "seconds")
        figures = [f"{share:.0%}", _figure(_mean(without, "seconds"), step, 2), _figure(_mean(drafts, "drafted"), 1, 1)]
        figures += [_figure(_mean(drafts, "accepted"), 1, 1), _figure(took, step, 2)]
        figures += [_figure(_mean(drafts, "tokens"), took / step if took and step else 0.0, 2)]
        yield f"| {job.title} | {' | '.join(figures)} |"


def _passes(run: Run, contender: str) -> list[Pass]:
    return [each for answer in run.by(contender) for each in answer.passes]


def _mean(passes: Sequence[Pass], figure: str) -> float | None:
    return fmean(getattr(each, figure) for each in passes) if passes else None


def _figure(value: float | None, unit: float, decimals: int) -> str:
    """`value` in units; a dash where either is not known."""
    return "-" if value is None or not unit else f"{value / unit:.{decimals}f}"


def _speedups(run: Run) -> Iterator[str]:
    scopes = [*totals(run)[:1], *categories(run)]
    yield f"| x plain | {' | '.join(scope.label for scope in scopes)} |"
    yield "|---" * (len(scopes) + 1) + "|"
    for each in run.contenders:
        if not each.skipped and each.name != PLAIN:
            yield f"| {each.title} | {' | '.join(_cell(run, each.name, scope) for scope in scopes)} |"


def _cell(run: Run, name: str, scope: Scope) -> str:
    text = with_bounds(speedup(run, name, scope).decoding)
    return f"**{text}**" if name == OURS else text


def _losses(runs: Sequence[tuple[Job, Run]]) -> Iterator[str]:
    """Every category in which edgespec was slower than plain decoding, sure or not."""
    yield "Categories in which edgespec came out below plain decoding, whether chance could have made that or not:\n"
    found = False
    for job, run in runs:
        for scope in categories(run):
            estimate = speedup(run, OURS, scope).decoding
            if estimate is not None and estimate.value < 1:
                found = True
                yield f"- {job.title}: {scope.label}, {with_bounds(estimate)}"
    if not found:
        yield "- none"
    yield (
        "\nIt does not pay where the text cannot be guessed, where passes over two to four tokens cost much more than "
        "a plain step, or where answers are of a few words."
    )


if __name__ == "__main__":
    main()
