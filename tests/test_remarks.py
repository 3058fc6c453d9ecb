"""--quiet, --verbose and --log-file: what is printed, and what is logged."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from edgespec.cli import app
from edgespec.errors import OptionError
from edgespec.terminal import remarks

from .commandline import PROMPT, run


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, level = list(remarks.LOG.handlers), remarks.LOG.level
    yield
    remarks._Voice.quiet = False
    for handler in set(remarks.LOG.handlers) - set(before):
        remarks.LOG.removeHandler(handler)
        handler.close()
    remarks.LOG.setLevel(level)


@click.group(cls=remarks.App)
def group() -> None: ...


@group.command()
def say() -> None:
    remarks.remark(click.style("a remark", dim=True))
    logging.getLogger("edgespec.llama").debug("of the engine")
    click.echo("an answer")


def said(*words: str) -> Result:
    return CliRunner().invoke(group, ["say", *words], catch_exceptions=False)


def test_quiet_leaves_out_remarks_only() -> None:
    assert (said().stdout, said().stderr) == ("an answer\n", "a remark\n")
    assert (said("--quiet").stdout, said("-q").stderr) == ("an answer\n", "")
    assert said().stderr == "a remark\n", "it holds for one command"


def test_the_log_has_remarks_and_engines(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_text("before\n")
    said("-q", "--log-file", str(file))
    lines = file.read_text("utf-8").splitlines()
    assert lines[0] == "before", "it is appended to"
    assert re.fullmatch(r"\d{4}-\S+ \S+ INFO edgespec: a remark", lines[1])
    assert lines[2].endswith("DEBUG edgespec.llama: of the engine")
    assert len(lines) == 3


def test_verbose_logs_to_stderr() -> None:
    assert "DEBUG edgespec.llama: of the engine" in said("-v").stderr


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be written"):
        said("--log-file", str(tmp_path / "none" / "log.txt"))


@pytest.mark.parametrize("words", [["chat"], ["models", "list"], ["doctor"]])
def test_every_command_has_the_options(words: list[str]) -> None:
    help_ = CliRunner().invoke(app, [*words, "--help"]).output
    assert all(option in help_ for option in ("--quiet", "--verbose", "--log-file"))


def test_a_chat_logs_no_text(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    done = run(
        "chat",
        "--quiet",
        "--temp",
        "0",
        "--k",
        "0",
        "--threads",
        "1",
        "--max-tokens",
        "4",
        "--log-file",
        file,
        "-p",
        PROMPT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    text = file.read_text("utf-8")
    assert done.stdout.strip()
    assert "loaded " in text
    assert "tokens/s" in text
    assert done.stdout.strip() not in text
    assert "Oakland" not in text
