"""One-shot answers of the command line, as a subprocess and through a pipe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .commandline import EDGESPEC, PROMPT, events, run, unix


@pytest.mark.parametrize("module", ["edgespec", "edgespec.cli"])
def test_modules_are_the_command(module: str) -> None:
    """That of `cli.py` ended without a word."""
    commands = [sys.executable, "-m", module, "--version"], [EDGESPEC, "--version"]
    said, expected = (subprocess.check_output(command, text=True, timeout=60) for command in commands)
    assert said.split()[-1] == expected.split()[-1] != ""


def test_json_events() -> None:
    started, *texts, finished = events("-p", PROMPT, "--temp", "0", "--k", "3")
    assert started == {"event": "started", "prompt": started["prompt"], "cached": 0, "dropped": 0}
    assert started["prompt"] > 10
    stats = finished["stats"]
    assert finished["reason"] == "end"
    assert [t["event"] for t in texts] == ["text"] * stats["rounds"]
    assert sum(len(t["tokens"]) for t in texts) == stats["tokens"]
    assert sum(t["drafted"] for t in texts) == stats["drafted"]
    assert sum(t["accepted"] for t in texts) == stats["accepted"] > 0
    assert all(t["accepted"] <= t["drafted"] for t in texts)
    assert "".join(t["text"] for t in texts).strip()
    assert stats["plain_tokens_per_second"] > 0
    assert stats["speedup"] is None, "of so few tokens"


def test_same_seed_same_text_whatever_is_drafted() -> None:
    def text(*options: str) -> str:
        return "".join(e.get("text", "") for e in events("-p", PROMPT, "--temp", "0.8", "--seed", "11", *options))

    plain = text("--k", "0")
    assert plain
    assert text("--k", "1") == text("--k", "8") == plain
    # What is drafted here depends on the machine, and trees move logits a little: exactly the same is for --exact.
    assert text("--exact", "4") == text("--exact", "4", "--k", "0")


def test_a_pipe_is_a_prompt() -> None:
    done = run("chat", "--temp", "0", stdin=PROMPT + "\n")
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "demo pair" in done.stderr


def prompt_of(*arguments: str | Path, stdin: str | bytes | None = None) -> int:
    """Tokens of the prompt that these make."""
    command = [EDGESPEC, "chat", *map(str, arguments), "--temp", "0", "--max-tokens", "1", "--json"]
    given = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(command, input=given or b"", capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout.splitlines()[0])["prompt"])


def test_standard_input_and_files_come_before_the_prompt(tmp_path: Path) -> None:
    """`echo CONTEXT | edgespec chat -p QUESTION` dropped the context."""
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_bytes("\ufeffThe inn has ten rooms.\n".encode())
    two.write_text("It is in Oakland.\n")
    whole = prompt_of("-p", "The inn has ten rooms.\n\nIt is in Oakland.\n\nThe cook is Ann.\n\nHow many rooms?")
    assert prompt_of("-f", one, "-f", two, "-p", "How many rooms?", stdin="The cook is Ann.\n") == whole
    assert whole > prompt_of("-p", "How many rooms?") + 12
    assert prompt_of("-p", "How many rooms?", stdin="\n") == prompt_of("-p", "How many rooms?")
    assert prompt_of("-f", one) == prompt_of("-p", "The inn has ten rooms.")


@unix
def test_a_closed_standard_input_is_no_context() -> None:
    line = f"{EDGESPEC} chat -p '{PROMPT}' --temp 0 --max-tokens 8"
    without, closed = (
        subprocess.run(["sh", "-c", f"{line} {end}"], capture_output=True, text=True, check=True, timeout=60).stdout
        for end in ("</dev/null", "<&-")
    )
    assert without == closed != ""


def test_the_system_message_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "system.txt"
    file.write_text("Be brief and kind.")
    assert prompt_of("-p", "x", "--system-file", file) == prompt_of("-p", "x", "--system", "Be brief and kind.")


def test_an_answer_ends_before_a_stop_text() -> None:
    asked = ("-p", PROMPT, "--temp", "0", "--max-tokens", "30")
    whole = run("chat", *asked).stdout
    assert "time" in whole
    cut = run("chat", *asked, "--stop", "nowhere in it", "--stop", "time")
    assert cut.stdout == whole.partition("time")[0] + "\n"
    said = events(*asked, "--stop", "time")
    assert said[-1]["reason"] == "stop"
    assert "".join(e.get("text", "") for e in said) == whole.partition("time")[0]


def test_show_drafts_without_colour() -> None:
    done = run("chat", "-p", PROMPT, "--temp", "0", "--k", "4", "--show-drafts", "--stats")
    assert "\x1b" not in done.stdout
    assert "[" in done.stdout
    shown = re.sub(r"\{-.*?-\}", "", done.stdout).replace("[", "").replace("]", "")
    assert shown == run("chat", "-p", PROMPT, "--temp", "0", "--k", "0").stdout, "marks must not change the text"
    assert re.search(r"[\d.]+ tokens/s", done.stderr)
    assert "mean accepted length" in done.stderr
    assert "drafts accepted: " in done.stderr
    assert "draft length K: " in done.stderr


def test_stats_say_why_drafts_are_as_long_as_they_are() -> None:
    done = run("chat", "-p", PROMPT, "--temp", "0", "--stats")
    why = (
        r"this machine checks \d+ tokens for the price of [\d.]+[;:] .*(right .*\d+% of the time|can pay)"
        r"|the measured prices of passes are implausible"  # on a machine that was busy
    )
    assert any(re.match(why, line) for line in done.stderr.splitlines()), done.stderr


def test_what_is_remembered_is_looked_up_until_it_is_forgotten(own_cache: Path) -> None:
    memory = own_cache / "memory"

    def accepted(*options: str) -> int:
        *said, finished = events("-p", PROMPT, "--temp", "0", "--draft", "none", "--k", "4", *options)
        texts.append("".join(e.get("text", "") for e in said))
        return int(finished["stats"]["accepted"])

    texts: list[str] = []
    nothing = run("forget")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "nothing was kept\n")
    alone = accepted()
    assert not memory.exists(), "nothing is kept that was not asked for"
    assert accepted("--remember") == alone
    assert len(list(memory.iterdir())) == 1
    assert accepted("--remember") > alone + 3
    assert accepted() == alone, "what is kept is used only where that is asked for"
    done = run("forget")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "1 file deleted\n")
    assert list(memory.iterdir()) == []
    assert accepted("--remember") == alone
    assert len(set(texts)) == 1, "it changes no word"


def test_without_a_command_the_help_is_shown() -> None:
    done = run()
    assert "Commands:\n" in done.stdout + done.stderr
