"""Completion in a shell."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.models.registry import entries

from .commandline import EDGESPEC, run


def completed(*words: str, env: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """The kinds and words that click offers to bash for the last of `words`."""
    asked = {"_EDGESPEC_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("edgespec", *words))}
    done = run(env={**asked, "COMP_CWORD": str(len(words)), **(env or {})})
    assert not done.stderr
    return [(kind, word) for kind, _, word in (line.partition(",") for line in done.stdout.splitlines())]


def test_commands_options_and_models_are_completed() -> None:
    assert completed("ch") == [("plain", "chat"), ("plain", "check")]
    assert ("plain", "--threads") in completed("chat", "--th")
    name = next(iter(entries()))
    assert ("plain", name) in completed("chat", name[:3])
    assert completed("chat", "no/such/name") == [("file", "no/such/name")]


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of settings is named by XDG_CONFIG_HOME on Linux")
def test_a_malformed_file_of_names_completes_files(tmp_path: Path) -> None:
    (tmp_path / "edgespec").mkdir()
    (tmp_path / "edgespec" / "models.toml").write_text("[")
    assert completed("chat", "qwen", env={"XDG_CONFIG_HOME": str(tmp_path)}) == [("file", "qwen")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str) -> None:
    done = run("completion", shell)
    assert not done.returncode, done.stderr
    assert f"_EDGESPEC_COMPLETE={shell}_complete" in done.stdout
    if (found := shutil.which(shell)) is not None:
        assert not subprocess.run([found, "-n"], input=done.stdout, text=True, check=False).returncode


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script() -> None:
    """Bash calls the function of the script as it does for the Tab key."""
    commands = (
        f'PATH="{Path(EDGESPEC).parent}:$PATH"; eval "$(edgespec completion bash)"; '
        'COMP_WORDS=(edgespec ser); COMP_CWORD=1; $(complete -p edgespec | sed "s/.*-F \\([^ ]*\\).*/\\1/") edgespec; '
        'echo "${COMPREPLY[*]}"'
    )
    done = subprocess.run(["bash", "-c", commands], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "serve", done.stderr


def test_other_shells_are_refused() -> None:
    assert run("completion", "tcsh").returncode == 2
