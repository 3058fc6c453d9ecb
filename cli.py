"""The command line: options in, events out; nothing is decided here."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from edgespec.terminal.bench_options import Benching, benching
from edgespec.terminal.options import PATH, Choosing, Loading, Machine, Pairing, choosing, loading, machine, pairing
from edgespec.terminal.progress import columns, has_colour, progress
from edgespec.terminal.prompt_options import Asking, asking

if TYPE_CHECKING:
    from edgespec.runtime.runtime import Runtime
    from edgespec.sampling import Sampling
    from edgespec.text.template import Message

# Modules are imported where they are used: `--help` must not wait for a converter, nor `convert` for an engine.

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
_DEMO = (
    "This is the bundled demo pair: it books tables, trips and tickets, and knows nothing else. "
    "For a real model: edgespec chat NAME, of those that `edgespec models list` knows"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="edgespec")
def app() -> None:
    """Speculative decoding on your own machine: the target model's own output, sooner."""


@app.command()
@loading
@choosing
@asking
@click.option("--show-drafts", is_flag=True, help="Mark accepted and rejected draft tokens")
@click.option("--stats", is_flag=True, help="End with speed, acceptance and draft lengths")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per event and line; an error is one, too")
@click.option("--no-history", is_flag=True, help="Keep nothing of what is typed")
def chat(
    loading: Loading,
    choosing: Choosing,
    asking: Asking,
    show_drafts: bool,
    stats: bool,
    as_json: bool,
    no_history: bool,
) -> None:
    """Chat with MODEL: a GGUF file, the folder of an ONNX model, a pair or a checkpoint, a name of `edgespec models
    list`, or org/repo.

    Without one, with the bundled demo pair. The prompt is made of the files of -f in their order, then standard input
    where that is no terminal, then -p. At a terminal with none of them, it is a conversation; what is typed there is
    kept in a file, which it names, until `edgespec forget`.
    """
    from edgespec.terminal import chat as terminal  # noqa: PLC0415
    from edgespec.terminal.history import prepared  # noqa: PLC0415
    from edgespec.terminal.show import Drafts  # noqa: PLC0415

    prompt, system = asking.question(), asking.preamble()
    if as_json and (prompt is None or show_drafts):
        raise click.UsageError("--json answers one prompt, from -p or a pipe, and shows drafts by itself")
    with loading.open() as runtime:
        sampling = choosing.sampling(runtime.sampling, seed=int.from_bytes(os.urandom(4), "little"))
        if as_json:
            messages = asking.messages(prompt or "")
            _print_json(runtime, sampling, choosing.max_tokens, messages, asking.stop)
            return
        session = terminal.Chat(
            runtime,
            sampling,
            choosing.max_tokens,
            system,
            asking.stop,
            show_drafts,
            stats,
            colour=has_colour(sys.stdout),
            columns=columns,
        )
        if runtime.context > runtime.trained_context:
            session.note(f"(the model was trained for {runtime.trained_context} tokens: beyond, it may say anything)")
        if show_drafts:
            session.note(Drafts(runtime, colour=has_colour(sys.stderr)).legend())
        if prompt is not None:
            finished = session.answer(prompt)
            if finished.reason == "cancelled":
                raise KeyboardInterrupt
        if loading.model is None:
            session.note(_DEMO)
        if prompt is None:
            session.note(f"{runtime.description}, context {runtime.context}; /help lists commands, Ctrl-D leaves")
            kept = None if no_history else prepared()
            if kept is not None:
                session.note(f"what you type is kept in {kept} until `edgespec forget`; --no-history keeps nothing")
            terminal.converse(session, kept)


@app.command()
@loading
@choosing
@click.option(
    "--prompts", "file", type=PATH, metavar="FILE", help='JSON lines with "messages" or "prompt" [default: its own]'
)
def check(loading: Loading, choosing: Choosing, file: Path | None) -> None:
    """Check that MODEL says the same with speculation as without.

    Exit status 0: every output is identical, or parts from the plain one at a near tie, where the engine's own
    rounding decides between two tokens. With --exact, only the first will do.
    """
    from edgespec.terminal import background  # noqa: PLC0415
    from edgespec.terminal.check_report import Report, read_prompts  # noqa: PLC0415
    from edgespec.tools.check import check as compare  # noqa: PLC0415

    with loading.open() as runtime:
        sampling = choosing.sampling(runtime.sampling, seed=0)
        prompts = read_prompts(file, runtime)
        report = Report(len(prompts), exact=bool(loading.exact))
        verdicts = compare(runtime, prompts, sampling, 128 if choosing.max_tokens is None else choosing.max_tokens)
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
    "--out", "output", type=PATH, required=True, metavar="PATH", help="File, or for onnx and --pair folder, to write"
)
@click.option("--force", is_flag=True, help="Overwrite an existing file, converted folder or pair")
@pairing
def convert(source: Path | None, fmt: str, quant: str | None, output: Path, force: bool, pairing: Pairing) -> None:
    """Convert SOURCE, the folder of a Hugging Face checkpoint or org/name on the hub, to a quantized model.

    With --pair, a target and its draft into the folder --out, for `edgespec chat FOLDER`; and measure how often the
    draft is right, what it brings on this machine, and that it changes no word.
    """
    if (source is None) == (pairing.pair is None):
        raise click.UsageError("give one checkpoint, or two with --pair TARGET DRAFT")
    if source is None:
        from edgespec.terminal.convert_pair import make  # noqa: PLC0415

        sys.exit(0 if make(pairing, output, fmt, quant, force=force) else FAILED)
    if pairing.asked:
        raise click.UsageError(f"{pairing.asked} is for --pair TARGET DRAFT")
    from edgespec import converters  # noqa: PLC0415
    from edgespec.library import checkpoint, run, size  # noqa: PLC0415
    from edgespec.terminal.terminal_job import watched  # noqa: PLC0415

    quant = converters.chosen_quantization(fmt, quant)  # before anything is fetched
    converters.check_output(output, fmt, force=force)
    with watched(yes=pairing.yes) as job:
        source = checkpoint(source, job)
        run(converters.convert(source, output, fmt=fmt, quantization=quant, force=force), job)
    click.echo(f"{output}: {size(output) / 1e6:.1f} MB, {quant}", err=True)


@app.command()
@machine
@click.option("--budget", type=float, default=60.0, show_default=True, metavar="SECONDS", help="Time to take, about")
@click.option("--json", "as_json", is_flag=True, help="The prices and what follows from them, as one JSON object")
def tune(machine: Machine, budget: float, as_json: bool) -> None:
    """Measure MODEL on this machine: the best thread count, which draft lengths pay, and by how much.

    What is measured is kept, and the next chat starts with it. Ctrl-C ends it early; nothing measured is lost.
    """
    from edgespec.terminal.tune import Findings, measured  # noqa: PLC0415

    findings = Findings()
    try:
        for found in measured(machine, budget):
            findings.add(found)
    finally:
        if findings:
            click.echo(findings.as_json() if as_json else findings.text())


@app.command()
@machine
@choosing
@benching
def bench(machine: Machine, choosing: Choosing, benching: Benching) -> None:
    """Compare speculative with plain decoding of MODEL, and with other engines, and write a report.

    All are asked the same questions in turn, greedily unless --temp says otherwise. Ctrl-C ends it early, with a report
    of what was measured. Exit status 0: all went well; the report says what did not.
    """
    from edgespec.terminal.bench import Bench  # noqa: PLC0415

    run = Bench(machine, choosing, benching)
    for path in run.run():
        click.echo(path)
    if run.interrupted:
        raise KeyboardInterrupt
    sys.exit(0 if run.whole else FAILED)


@app.group()
def models() -> None:
    """List, inspect, fetch and pair models."""


@models.command("list")
def list_models() -> None:
    """The pairs that are known by name, which are here, and what else is in the cache of the Hugging Face tools."""
    from edgespec.terminal.models import listed  # noqa: PLC0415

    _print_lines(listed())


@models.command()
@click.argument("name")
@click.option("--ctx", default=0, metavar="N", help="Context in tokens  [default: at most 4096]")
def show(name: str, ctx: int) -> None:
    """NAME's files and sizes, what of it is here, and how it fits into memory; also before it is fetched."""
    from edgespec.library import quietly  # noqa: PLC0415
    from edgespec.terminal.models import shown  # noqa: PLC0415

    with quietly():
        _print_lines(shown(name, ctx))


@models.command()
@click.argument("name")
@click.option("--quant", default="", metavar="NAME", help="Quantization of the target, of a repository with several")
@click.option("--revision", default="main", metavar="NAME", help="Branch, tag or commit of its repository")
def pull(name: str, quant: str, revision: str) -> None:
    """Fetch NAME, a pair of the list, or org/repo[:QUANTIZATION] on the hub, into the cache of the Hugging Face tools.

    What is here already is not fetched again; a pull that was interrupted goes on where it ended.
    """
    from edgespec.library import pull as fetched  # noqa: PLC0415
    from edgespec.terminal.terminal_job import watched  # noqa: PLC0415

    with watched() as job:
        pulled = fetched(name, job, quant, revision)
    for found in pulled:
        click.echo(f"{found.paths[0]}  (commit {found.commit[:12]})")


@models.command()
@click.argument("target")
@click.argument("draft", required=False)
def pair(target: str, draft: str | None) -> None:
    """Say whether TARGET and DRAFT make a pair, and what it may bring here: files, names, or org/repo on the hub.

    Without DRAFT one is looked for here and, for a target's family, on the hub; nothing is fetched.
    """
    from edgespec.library import quietly  # noqa: PLC0415
    from edgespec.terminal.models import paired  # noqa: PLC0415

    with quietly():
        _print_lines(paired(target, draft))


@app.command()
def forget() -> None:
    """Delete what was typed in chats, and what chats with --remember kept, for all models."""
    from edgespec.runtime.earlier_texts import forget_all  # noqa: PLC0415
    from edgespec.terminal import history  # noqa: PLC0415

    files = forget_all() + history.forget()
    click.echo(f"{files} file{'s' * (files != 1)} deleted" if files else "nothing was kept", err=True)


def _print_lines(lines: Iterable[str]) -> None:
    from edgespec.terminal.show import printable  # noqa: PLC0415

    for line in lines:
        click.echo(printable(line))


def _print_json(
    runtime: Runtime, sampling: Sampling, max_tokens: int | None, messages: Sequence[Message], stop: Sequence[str]
) -> None:
    from edgespec.engine import Finished  # noqa: PLC0415
    from edgespec.runtime.as_json import as_json  # noqa: PLC0415
    from edgespec.terminal import background  # noqa: PLC0415

    events = runtime.chat(messages, sampling, max_tokens=max_tokens, stop=stop)
    for event in background.stream(events, runtime.cancel):
        click.echo(json.dumps(as_json(event), ensure_ascii=False))
        cancelled = isinstance(event, Finished) and event.reason == "cancelled"
    if cancelled:
        raise KeyboardInterrupt


def main() -> None:
    """The entry point: every expected failure is one line on stderr and an exit status, and with --json also an object
    on stdout."""
    from edgespec.errors import EdgespecError, Interrupted  # noqa: PLC0415

    try:
        colour = False if "NO_COLOR" in os.environ else None  # None: as the stream has it
        status = app.main(standalone_mode=False, color=colour) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a full disk can still be told
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
        # Output that cannot be written, if no file is named. Point stdout elsewhere, or the interpreter complains while
        # it shuts down.
        if sys.stdout is not None and error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # its reader left: nobody wants to be told
            sys.exit(FAILED)
        where = "" if error.filename is None else f"{error.filename}: "
        _fail(f"cannot go on: {where}{error.strerror or error}{_way_out(error)}", FAILED, "OSError")


def _way_out(error: OSError) -> str:
    """What the user can do about it, where that is known."""
    known = {
        errno.ENAMETOOLONG: "; give a shorter name",
        errno.ENOSPC: "; make room on the disk",
        errno.EACCES: "; give a path that may be read and written",
    }
    return known.get(error.errno or 0, "")


def _fail(message: str, status: int, kind: str) -> NoReturn:
    # What a file or a hub put into the message must not steer the terminal.
    line = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(message.split()))
    if "--json" in sys.argv:  # wrong options, too, are an error of theirs
        about = {"event": "error", "kind": kind, "message": line, "status": status}
        with suppress(OSError):
            click.echo(json.dumps(about, ensure_ascii=False))
    click.echo(f"Error: {line}", err=True)
    sys.exit(status)
