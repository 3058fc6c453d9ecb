"""The command line under a terminal: conversations, Ctrl-C, Ctrl-Z, what is echoed and kept."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from .commandline import EDGESPEC, PROMPT, run, unix
from .terminals import pexpect, spawn, type_in

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@unix
def test_a_conversation_at_a_terminal(tmp_path: Path) -> None:
    child = spawn(tmp_path, "chat", "--temp", "0", "--k", "3")
    child.expect("demo pair")
    child.expect(">\x08")  # the prompt, and the cursor behind it
    type_in(child, PROMPT)
    child.expect("What time")
    child.expect(">\x08")  # the prompt, and the cursor behind it
    type_in(child, "/stats")
    child.expect("mean accepted length")
    type_in(child, "/drafts")
    child.expect("accepted draft tokens")
    type_in(child, "Half past seven.")
    child.expect("\x1b\\[3[12]m")  # green or red
    type_in(child, "/nothing")
    child.expect("there is no command /nothing")
    type_in(child, "/help")
    child.expect("Alt-Enter")
    type_in(child, "/system Be brief.")
    child.expect("system message is set")
    type_in(child, "/reset")
    child.expect("deleted")
    child.expect(">\x08")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    history = Path(os.environ["EDGESPEC_CACHE"], "chat_history")
    assert PROMPT in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


@unix
def test_ctrl_c_stops_the_answer_and_keeps_the_chat(tmp_path: Path) -> None:
    # At a high temperature with the end tokens banned by none, a long answer leaves time to interrupt it.
    child = spawn(tmp_path, "chat", "--temp", "30", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1")
    child.expect(">\x08")  # the prompt, and the cursor behind it
    type_in(child, PROMPT)
    child.expect(r"\w{3,} ")
    child.sendintr()
    child.expect("stopped")
    child.expect(">\x08")  # the prompt, and the cursor behind it
    type_in(child, "/stats")
    child.expect("tokens/s")
    type_in(child, "/exit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@unix
def test_ctrl_c_of_one_shot_says_so(tmp_path: Path) -> None:
    child = spawn(
        tmp_path, "chat", "--temp", "30", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1", "-p", PROMPT
    )
    child.expect(r"\w{3,} ")
    child.sendintr()
    child.expect("Error: interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


@unix
def test_multi_line_input(tmp_path: Path) -> None:
    child = spawn(tmp_path, "chat", "--temp", "0")
    child.expect(">\x08")  # the prompt, and the cursor behind it
    child.send("I need a table\x1b\rfor two.\r")
    child.expect_exact("\x1b[?2004l")
    child.expect(">\x08")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    child.close()
    assert "for two." in Path(os.environ["EDGESPEC_CACHE"], "chat_history").read_text()


@unix
def test_no_color_is_honoured(tmp_path: Path) -> None:
    child = spawn(tmp_path, "chat", "-p", PROMPT, "--k", "4", "--temp", "0", "--show-drafts", NO_COLOR="1")
    child.expect(pexpect.EOF)
    child.close()
    shown = child.before or ""
    assert "\x1b[3" not in shown
    assert "[" in ANSI.sub("", shown)


#: A long answer.
ANYTHING = ("--threads", "1", "--temp", "30", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "1")


@unix
def test_what_is_typed_during_an_answer_is_kept_for_the_next_prompt(tmp_path: Path) -> None:
    """It was echoed into the answer."""
    child = spawn(tmp_path, "chat", *ANYTHING, "--max-tokens", "60")
    child.expect(">\x08")
    type_in(child, PROMPT)
    child.expect(r"\w{3,} ")
    child.send("zqzqz")
    child.expect(">\x08")
    assert "zqzqz" not in child.before
    child.expect("zqzqz")  # at the next prompt
    child.sendcontrol("c")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)


def shell(tmp_path: Path) -> Any:
    """A shell with job control that leaves the terminal's modes alone, in which edgespec can be suspended."""
    child = pexpect.spawn(
        "sh",
        ["-i", "-m"],
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "TERM": "xterm-256color",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "PS1": "\\$:",
        },
        dimensions=(50, 200),
        encoding="utf-8",
        timeout=30,
    )
    child.expect("\\$:")
    return child


def modes(child: Any) -> set[str]:
    child.sendline("stty -a; echo E''ND")
    child.expect("END\r")
    return set(child.before.split()) & {"echo", "-echo", "icanon", "-icanon", "isig", "-isig", "icrnl", "-icrnl"}


@unix
def test_ctrl_z_gives_the_terminal_back_and_goes_on(tmp_path: Path) -> None:
    child = shell(tmp_path)
    before = modes(child)
    assert "echo" in before
    child.sendline(f"{EDGESPEC} chat {' '.join(ANYTHING)} --max-tokens 80 --no-history")
    child.expect(">\x08")
    child.sendcontrol("z")  # at the prompt
    child.expect("\\$:")
    assert modes(child) == before
    child.sendline("fg")
    child.expect(">\x08")
    child.send(PROMPT + "\r")
    child.expect(r"\w{3,} ")
    child.sendcontrol("z")  # during the answer
    child.expect("\\$:")
    assert modes(child) == before
    child.sendline("fg")
    child.expect(r"\w{3,} ")
    child.send("zqzqz")
    child.expect(">\x08")
    assert "zqzqz" not in child.before, "what is typed is not echoed after it went on either"
    child.expect("zqzqz")
    child.sendcontrol("c")
    child.expect(">\x08")  # between two prompts nobody reads, and Ctrl-D would be lost
    child.sendcontrol("d")
    child.expect("\\$:")
    assert modes(child) == before
    child.sendline("exit")
    child.expect(pexpect.EOF)


@unix
def test_lines_break_between_words() -> None:
    options = ("chat", "-p", PROMPT, "--temp", "0", "--max-tokens", "24", "--k", "0", "--threads", "1")
    whole = run(*options).stdout
    command = f"exec {EDGESPEC} {shlex.join(options)} 2>/dev/null"
    child = pexpect.spawn("sh", ["-c", command], dimensions=(50, 20), encoding="utf-8", timeout=60)
    child.expect(pexpect.EOF)
    lines = child.before.replace("\r\n", "\n").splitlines()
    assert " ".join(lines).split() == whole.split()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 20


@unix
def test_no_history_keeps_nothing(tmp_path: Path, own_cache: Path) -> None:
    child = spawn(tmp_path, "chat", "--no-history", EDGESPEC_CACHE=str(own_cache))
    child.expect(">\x08")
    assert "input history" not in child.before
    type_in(child, "/stats")
    child.expect("no answer yet")
    child.expect(">\x08")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    assert not list(own_cache.rglob("chat_history*"))
    assert not list(tmp_path.rglob("chat_history*"))


@unix
def test_what_was_typed_is_told_and_forgotten(tmp_path: Path, own_cache: Path) -> None:
    child = spawn(tmp_path, "chat", EDGESPEC_CACHE=str(own_cache))
    child.expect("the input history is kept in .*chat_history until `edgespec forget`; --no-history")
    child.expect(">\x08")
    type_in(child, "/stats")
    child.expect(">\x08")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    assert "/stats" in (own_cache / "chat_history").read_text()
    assert run("forget").stderr == "1 file deleted\n"
    assert not (own_cache / "chat_history").exists()
    assert run("forget").stderr == "nothing was kept\n"
