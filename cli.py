"""The commands: they parse options, call the library and the terminal modules, and print."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from edgespec.terminal.bench_options import BenchOptions, bench_options
from edgespec.terminal.completion import SHELLS, script
from edgespec.terminal.config import defaults
from edgespec.terminal.distill_options import DistillOptions, distill_options
from edgespec.terminal.models_commands import models
from edgespec.terminal.options import (
    PATH,
    DraftOptions,
    LoadOptions,
    MachineOptions,
    PairOptions,
    SamplingOptions,
    draft_options,
    load_options,
    machine_options,
    pair_options,
    sampling_options,
)
from edgespec.terminal.printing import print_lines
from edgespec.terminal.progress import columns, has_colour, progress
from edgespec.terminal.prompt_options import PromptOptions, prompt_options
from edgespec.terminal.remarks import LOG, App, quiet, remark
from edgespec.terminal.serve_options import ServeOptions, serve_options

if TYPE_CHECKING:
    from edgespec.runtime.answer import Answer
    from edgespec.terminal.chat import Chat

# Modules are imported where they are used: `--help` must not import a converter, nor `convert` an engine.

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
_DEMO = (
    "This is the bundled demo pair: it repeats, rewrites and quotes short texts and talks about bookings; facts are "
    "invented. For a real model: edgespec chat NAME, with a name from `edgespec models list`"
)


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="edgespec")
@click.pass_context
def app(context: click.Context) -> None:
    """Speculative decoding on your own machine: the target model's own output, faster."""
    if context.invoked_subcommand != "doctor":  # which reports a malformed file among the others
        context.default_map = defaults(app)


@app.command()
@load_options
@sampling_options
@prompt_options
@click.option("--show-drafts/--no-show-drafts", help="Mark accepted and rejected draft tokens")
@click.option("--stats/--no-stats", help="End with speed, acceptance and draft lengths")
@click.option("--json", "as_json", is_flag=True, help="Print each event, and an error, as a line of JSON")
@click.option("--no-history", is_flag=True, help="Do not keep an input history")
def chat(
    load_options: LoadOptions,
    sampling_options: SamplingOptions,
    prompt_options: PromptOptions,
    show_drafts: bool,
    stats: bool,
    as_json: bool,
    no_history: bool,
) -> None:
    """Chat with MODEL: a GGUF file, the folder of an ONNX or OpenVINO model, a pair or a checkpoint, a name of
    `edgespec models list`, or org/repo.

    The default is the bundled demo pair. The prompt consists of the files of -f in their order, standard input unless
    it is a terminal, and -p. On a terminal without a prompt a conversation begins; its input history is kept in a file,
    whose name is printed, until `edgespec forget`.
    """
    from edgespec.terminal.chat import Chat  # noqa: PLC0415

    prompt, system = prompt_options.question(), prompt_options.preamble()
    if as_json:
        _require_json_fits(prompt, prompt_options, show_drafts=show_drafts)
    grammar = prompt_options.grammar()
    with load_options.open() as runtime:
        sampling = sampling_options.sampling(runtime.sampling, seed=int.from_bytes(os.urandom(4), "little"))
        if as_json:
            answer = runtime.chat(
                prompt_options.messages(prompt or ""),
                sampling,
                max_tokens=sampling_options.max_tokens,
                stop=prompt_options.stop,
                grammar=grammar,
                think=prompt_options.think,
            )
            _print_json(answer, runtime.cancel)
            return
        session = Chat(
            runtime,
            sampling,
            sampling_options.max_tokens,
            system,
            prompt_options.stop,
            show_drafts,
            stats,
            prompt_options.think,
            prompt_options.thoughts or ("show" if columns() else "hide"),
            colour=has_colour(sys.stdout),
            columns=columns,
            grammar=grammar,
            kept=prompt_options.resume,
        )
        _converse(session, prompt, load_options, show_drafts=show_drafts, history=not no_history)


def _converse(session: Chat, prompt: str | None, options: LoadOptions, *, show_drafts: bool, history: bool) -> None:
    """Answer `prompt`, or begin a conversation, with the notes that go before it."""
    from edgespec.terminal.chat import converse  # noqa: PLC0415
    from edgespec.terminal.history import prepared  # noqa: PLC0415
    from edgespec.terminal.show import MarkedText  # noqa: PLC0415

    runtime = session.runtime
    session.resume()
    session.remark_switch()
    if runtime.context > runtime.trained_context:
        session.note(f"(the model was trained for {runtime.trained_context} tokens: its output may degrade beyond)")
    if show_drafts:
        session.note(MarkedText(runtime, colour=has_colour(sys.stderr)).legend())
    if prompt is not None and session.answer(prompt).reason == "cancelled":
        raise KeyboardInterrupt
    if options.model is None:
        remark(click.style(_DEMO, dim=True))
    if prompt is None:
        session.note(f"{runtime.description}, context {runtime.context}; /help lists commands, Ctrl-D leaves")
        kept = prepared() if history else None
        if kept is not None and not quiet():
            session.note(f"the input history is kept in {kept} until `edgespec forget`; --no-history turns it off")
        converse(session, kept)


def _require_json_fits(prompt: str | None, options: PromptOptions, *, show_drafts: bool) -> None:
    if prompt is None or show_drafts:
        raise click.UsageError("--json needs a prompt, from -p or a pipe, and includes drafts without --show-drafts")
    if options.resume is not None:
        raise click.UsageError("--json and --resume exclude each other")


@app.command()
@load_options
@sampling_options
@serve_options
def serve(load_options: LoadOptions, sampling_options: SamplingOptions, serve_options: ServeOptions) -> None:
    """Serve MODEL to clients of OpenAI's API, until Ctrl-C: chat, completions, responses, and calls of Ollama.

    The default is the bundled demo pair. The options of sampling are for requests that do not say otherwise.

    \b
    edgespec serve qwen3-8b                     http://127.0.0.1:8080/v1, with any key
    edgespec serve qwen3-8b --slots 4           four answers at a time, each with a cache
    edgespec serve model.gguf --port 11434      where clients of Ollama look
    edgespec serve qwen3-8b --host 0.0.0.0 --api-key-file keys.txt
    edgespec serve --upstream http://10.0.0.5:8000    the same address, another server behind it
    curl localhost:8080/generate -d '{"prompt": "Once", "max_tokens": 20}'
    """
    from edgespec.terminal.serve import serve as run  # noqa: PLC0415

    run(load_options, sampling_options, serve_options)


@app.command()
@load_options
@sampling_options
@click.option(
    "--prompts", "file", type=PATH, metavar="FILE", help='JSON lines with "messages" or "prompt" [default: its own]'
)
def check(load_options: LoadOptions, sampling_options: SamplingOptions, file: Path | None) -> None:
    """Check that the output of MODEL is the same with speculation as without.

    Exit status 0: every output is identical, or differs from the plain one only after a near tie, where rounding in the
    engine decides between two tokens. With --exact every output must be identical.
    """
    from edgespec.terminal import background  # noqa: PLC0415
    from edgespec.terminal.check_report import CheckReport, read_prompts  # noqa: PLC0415
    from edgespec.tools.check import check as compare  # noqa: PLC0415

    with load_options.open() as runtime:
        sampling = sampling_options.sampling(runtime.sampling, seed=0)
        prompts = read_prompts(file, runtime)
        report = CheckReport(len(prompts), exact=bool(load_options.exact))
        verdicts = compare(
            runtime, prompts, sampling, 128 if sampling_options.max_tokens is None else sampling_options.max_tokens
        )
        with progress("checking") as tell:
            for verdict in background.stream(verdicts, runtime.cancel):
                report.add(verdict)
                tell("checking", report.done, len(prompts))
        click.echo(report.text())
        sys.exit(0 if report.passed else FAILED)


@app.command()
@click.argument("source", type=PATH, required=False)
@click.option("--to", "fmt", default="gguf", show_default=True, metavar="FORMAT", help="Format to write")
@click.option("--quant", metavar="NAME", help="Quantization; a wrong name lists them  [default: 8 bits]")
@click.option(
    "--out", "output", type=PATH, required=True, metavar="PATH", help="Output file; for onnx and --pair a folder"
)
@click.option("--force", is_flag=True, help="Overwrite an existing file, converted folder or pair")
@draft_options
@pair_options
def convert(
    source: Path | None,
    fmt: str,
    quant: str | None,
    output: Path,
    force: bool,
    draft_options: DraftOptions,
    pair_options: PairOptions,
) -> None:
    """Convert SOURCE, the folder of a Hugging Face checkpoint or org/name on the hub, to a quantized model.

    With --for, convert the head in SOURCE, a folder, a file or org/name, for `edgespec chat TARGET --draft FILE`.

    With --head-rows, write the head of a GGUF file for `edgespec chat TARGET --draft HEAD`: a smaller output matrix.

    With --exit-layer, make the first layers the draft, for `edgespec chat FOLDER`: of a GGUF file, which is cut, of a
    checkpoint with --to onnx, or of the folder of a converted ONNX model.

    With --pair, convert a target and its draft into the folder --out, for `edgespec chat FOLDER`, and measure the
    acceptance rate, the expected speedup on this machine, and that the output does not change.
    """
    if (source is None) == (pair_options.pair is None):
        raise click.UsageError("give one checkpoint, or two with --pair TARGET DRAFT")
    if source is None:
        from edgespec.terminal.convert_pair import make  # noqa: PLC0415

        sys.exit(0 if make(pair_options, output, fmt, quant, force=force) else FAILED)
    if pair_options.misplaced:
        raise click.UsageError(f"{pair_options.misplaced} is for --pair TARGET DRAFT")
    if draft_options.rows is not None and draft_options.target is None:
        from edgespec.converters import head_rows as rows  # noqa: PLC0415

        click.echo(f"{output}: {rows.write(source, output, draft_options.rows, force=force) / 1e6:.1f} MB", err=True)
        return
    if draft_options.cuts_file(source, fmt):
        _cut(source, output, draft_options, force=force)
        return
    from edgespec import converters  # noqa: PLC0415
    from edgespec.library import checkpoint, run, size, target_of_head  # noqa: PLC0415
    from edgespec.terminal.terminal_job import terminal_job  # noqa: PLC0415

    if draft_options.target is not None:
        with terminal_job(yes=pair_options.yes) as job:
            target = target_of_head(draft_options.target, job)
            steps = converters.convert_head(
                checkpoint(source, job, head=True),
                target,
                output,
                quantization=quant or "",
                rows=draft_options.rows,
                force=force,
            )
            run(steps, job)
        click.echo(f"{output}: {size(output) / 1e6:.1f} MB", err=True)
        return
    quant = converters.chosen_quantization(fmt, quant)
    converters.check_output(output, fmt, force=force)  # before anything is fetched
    with terminal_job(yes=pair_options.yes) as job:
        source = checkpoint(source, job)
        layer = draft_options.exit_layer
        run(converters.convert(source, output, fmt=fmt, quantization=quant, force=force, exit_layer=layer), job)
    click.echo(f"{output}: {size(output) / 1e6:.1f} MB, {quant}", err=True)


def _cut(source: Path, output: Path, options: DraftOptions, *, force: bool) -> None:
    from edgespec import converters  # noqa: PLC0415
    from edgespec.converters import exit_layer  # noqa: PLC0415
    from edgespec.library import run, size  # noqa: PLC0415
    from edgespec.terminal.terminal_job import terminal_job  # noqa: PLC0415

    if options.keep_layers is None and (source / "model.onnx").is_file():
        steps = converters.mark_exit(source, output, options.exit_layer or 0, force=force)
    elif options.keep_layers is None:
        steps = exit_layer.split(source, output, options.exit_layer or 0, force=force)
    elif options.exit_layer is None:
        steps = exit_layer.keep(source, output, options.keep_layers, force=force)
    else:
        raise click.UsageError("--exit-layer and --keep-layers exclude each other")
    with terminal_job() as job:
        run(steps, job)
    click.echo(f"{output}: {size(output) / 1e6:.1f} MB", err=True)


@app.command()
@distill_options
def distill(options: DistillOptions) -> None:
    """Train DRAFT, or a head, on the answers of TARGET, so that more of its tokens are accepted, and write the pair.

    TARGET is a model as in `edgespec chat`, or the folder of its checkpoint; DRAFT is the checkpoint of a small model
    with the same tokenizer, by default that of the pair TARGET. Needs torch: pip install 'edgespec[distill]'.

    The target answers prompts, the draft learns from these answers, and every tenth prompt is held out to measure
    acceptance. An interrupted run is continued by the same command. (docs/distill.md)

    \b
    edgespec distill qwen3-8b Qwen/Qwen3-0.6B --prompts questions.txt --out pair
    edgespec distill ./checkpoint --from-scratch 30M --prompts dialogues.jsonl --out pair
    edgespec distill qwen3-8b --head medusa --prompts questions.txt --out pair
    edgespec chat pair
    """
    from edgespec.terminal.distill import distill as run  # noqa: PLC0415

    sys.exit(0 if run(options) else FAILED)


@app.command()
@machine_options
@click.option("--budget", type=float, default=60.0, show_default=True, metavar="SECONDS", help="Approximate duration")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object")
@click.option("--plot", type=PATH, metavar="FILE", help="Draw the prices of all engines that open MODEL, as SVG")
def tune(machine_options: MachineOptions, budget: float, as_json: bool, plot: Path | None) -> None:
    """Measure MODEL on this machine: the best engine and thread count, the draft lengths that pay, and the speedup.

    The measured prices are kept for later chats. Ctrl-C ends the measurement early and keeps its results.
    """
    from edgespec.terminal.engine_report import require_plot  # noqa: PLC0415
    from edgespec.terminal.tune import TuneReport, measured  # noqa: PLC0415

    if plot is not None:
        require_plot(plot)
    report = TuneReport()
    try:
        for found in measured(machine_options, budget, report.compared):
            report.add(found)
    finally:
        if report:
            click.echo(report.as_json() if as_json else report.text())
            if plot is not None:
                report.write_plot(plot)


@app.command()
@machine_options
@sampling_options
@bench_options
def bench(machine_options: MachineOptions, sampling_options: SamplingOptions, bench_options: BenchOptions) -> None:
    """Compare speculative with plain decoding of MODEL, and with other engines, and write a report.

    All contenders answer the same questions in turn, greedily unless --temp is given. Ctrl-C ends the run early, with a
    report of the answers so far. Exit status 0: no problems; the report lists problems.
    """
    from edgespec.terminal.bench import Bench  # noqa: PLC0415

    run = Bench(machine_options, sampling_options, bench_options)
    for path in run.run():
        click.echo(path)
    if run.interrupted:
        raise KeyboardInterrupt
    sys.exit(0 if run.whole else FAILED)


@app.command()
@click.option("--json", "as_json", is_flag=True, help="Print what was found as one JSON object")
def doctor(as_json: bool) -> None:
    """Look at this machine: engines with versions and devices, memory, folders, the demo pair's speed, what is missing.

    Exit status 0: all that is needed works; 1: a problem is listed, with the line that mends it.
    """
    from edgespec.terminal.doctor import examine, lines  # noqa: PLC0415

    found = examine(app)
    if as_json:
        click.echo(json.dumps(found.as_json(), ensure_ascii=False))
    else:
        print_lines(lines(found))
    sys.exit(FAILED if found.problems else 0)


@app.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and names of models in SHELL.

    \b
    eval "$(edgespec completion bash)"                                       in ~/.bashrc
    eval "$(edgespec completion zsh)"                                        in ~/.zshrc
    edgespec completion fish > ~/.config/fish/completions/edgespec.fish
    """
    click.echo(script(app, shell))


app.add_command(models)


@app.command()
@click.option("--listen", default="127.0.0.1:50052", show_default=True, metavar="HOST:PORT", help="Where to listen")
@click.option("--threads", default=0, metavar="N", help="CPU threads [default: one per physical core]")
@click.option("--cache", is_flag=True, help="Keep large tensors in the cache folder, so that each is sent once only")
@click.option(
    "--any-client",
    is_flag=True,
    help="Listen on a network: whoever reaches the port may use, read and crash the worker",
)
@click.option(
    "--build", type=PATH, metavar="SOURCE", help="Build what workers need from llama-cpp-python's .tar.gz, and exit"
)
def worker(listen: str, threads: int, cache: bool, any_client: bool, build: Path | None) -> None:
    """Compute layers of models for `edgespec chat --rpc HOST:PORT` on another machine, one client at a time.

    Both machines need the same version of llama-cpp-python. Nothing is encrypted or authenticated: leave --listen on
    this machine, and let the other one reach it by `ssh -L 50052:127.0.0.1:50052 THIS_MACHINE`.
    """
    from edgespec.terminal import worker as terminal  # noqa: PLC0415

    if build is not None:
        terminal.build(build)
        return
    terminal.run(listen, threads, cache=cache, any_client=any_client)


@app.command()
def forget() -> None:
    """Delete the input history of chats, and the texts that chats with --remember kept, for all models."""
    from edgespec.runtime.earlier_texts import forget_all  # noqa: PLC0415
    from edgespec.terminal import history  # noqa: PLC0415

    files = forget_all() + history.forget()
    click.echo(f"{files} file{'s' * (files != 1)} deleted" if files else "nothing was kept", err=True)


def _print_json(answer: Answer, cancel: Callable[[], None]) -> None:
    from edgespec.engine import Finished  # noqa: PLC0415
    from edgespec.runtime.as_json import as_json  # noqa: PLC0415
    from edgespec.terminal import background  # noqa: PLC0415

    for event in background.stream(answer, cancel):
        click.echo(json.dumps(as_json(event), ensure_ascii=False))
        cancelled = isinstance(event, Finished) and event.reason == "cancelled"
    if cancelled:
        raise KeyboardInterrupt


def main() -> None:
    """The entry point. An expected error is one line on stderr and an exit status; with --json also a line of JSON on
    stdout."""
    from edgespec.errors import EdgespecError, Interrupted  # noqa: PLC0415

    try:
        colour = False if "NO_COLOR" in os.environ else None  # None: click decides by the stream
        status = app.main(standalone_mode=False, color=colour) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where an error such as a full disk can still be reported
        sys.exit(status)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(MISUSED)
    except click.UsageError as error:
        name = error.ctx.command_path if error.ctx else "edgespec"
        _fail(f"{error.format_message()} (`{name} --help` lists the options)", MISUSED, "UsageError")
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code, "UsageError")
    except (KeyboardInterrupt, click.Abort, Interrupted):
        _fail("interrupted", INTERRUPTED, "Interrupted")
    except EdgespecError as error:
        _fail(str(error), FAILED, type(error).__name__)
    except OSError as error:
        # Without a file name stdout cannot be written. Redirect it, or the interpreter reports the error again when it
        # exits.
        if sys.stdout is not None and error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader of stdout has ended, as with `head`
            sys.exit(FAILED)
        where = "" if error.filename is None else f"{error.filename}: "
        _fail(f"cannot continue: {where}{error.strerror or error}{_way_out(error)}", FAILED, "OSError")


def _way_out(error: OSError) -> str:
    """Advice for the user, where there is any."""
    known = {
        errno.ENAMETOOLONG: "; give a shorter name",
        errno.ENOSPC: "; free space on the disk",
        errno.EACCES: "; give a path with read and write access",
    }
    return known.get(error.errno or 0, "")


def _fail(message: str, status: int, kind: str) -> NoReturn:
    # Control characters from a file or a hub must not reach the terminal.
    line = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(message.split()))
    if "--json" in sys.argv:  # also where the options could not be parsed
        about = {"event": "error", "kind": kind, "message": line, "status": status}
        with suppress(OSError):
            click.echo(json.dumps(about, ensure_ascii=False))
    LOG.error("%s: %s", kind, line)
    click.echo(f"Error: {line}", err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
