"""Defaults from the user's file: they hold where the command line says nothing, and mistakes are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from edgespec.cli import app
from edgespec.errors import OptionError
from edgespec.terminal import config

from .commandline import refused, run


def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> dict[str, Any]:
    file = tmp_path / "config.toml"
    file.write_text(text, "utf-8")
    monkeypatch.setenv("EDGESPEC_CONFIG", str(file))
    return config.defaults(app)


def test_keys_are_the_options_of_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    [chat]
    model = "qwen3-8b"
    temp = 0.5
    max-tokens = 200
    k = 4
    show_drafts = true
    draft = ["a.gguf", "b.gguf"]
    [models.show]
    ctx = 8192
    """
    chat = {
        "model": "qwen3-8b",
        "temp": "0.5",
        "max_tokens": "200",
        "k": "4",
        "show_drafts": True,
        "draft": ["a.gguf", "b.gguf"],
    }
    assert defaults(tmp_path, monkeypatch, text) == {"chat": chat, "models": {"show": {"ctx": "8192"}}}


@pytest.mark.parametrize(
    ("command", "flag"), [("chat", "show-drafts"), ("chat", "stats"), ("chat", "remember"), ("serve", "strict-model")]
)
def test_a_flag_of_the_file_is_turned_off_on_the_command_line(command: str, flag: str) -> None:
    name = flag.replace("-", "_")
    for arguments, value in (([], True), ([f"--no-{flag}"], False)):
        context = app.commands[command].make_context(command, list(arguments), default_map={name: True})
        assert context.params[name] is value


def test_the_command_line_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []

    @click.group()
    def group() -> None: ...

    @group.command()
    @click.option("--temp", type=float)
    @click.option("--draft", multiple=True, default=("auto",))
    def chat(temp: float, draft: tuple[str, ...]) -> None:
        seen.append((temp, draft))

    file = tmp_path / "config.toml"
    file.write_text('[chat]\ntemp = 0.5\ndraft = ["a"]', "utf-8")
    monkeypatch.setenv("EDGESPEC_CONFIG", str(file))
    found = config.defaults(group)
    for words in (["chat"], ["chat", "--temp", "0", "--draft", "b"]):
        assert CliRunner().invoke(group, words, default_map=found).exit_code == 0
    assert seen == [(0.5, ("a",)), (0.0, ("b",))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is not TOML"),
        ("[chta]", "'chta', which is no command"),
        ("chat = 3", "chat is 3; it must be a table"),
        ("[models]\nshow = 3", "models: show is 3; it must be a table"),
        ("[chat]\ntepm = 1", "chat has the unknown key 'tepm'"),
        ("[chat]\ntemp = 'x'", "chat.temp is 'x'"),
        ("[chat]\ntemp = true", "chat.temp is True; it must be a value"),
        ("[chat]\nthreads = 1.5", "chat.threads is 1.5"),
        ("[chat]\nshow-drafts = 1", "chat.show-drafts is 1; it must be true or false"),
        ("[chat]\ndraft = 'x'", "chat.draft is 'x'; it must be a list"),
        ("[chat]\nthreads = [2]", "chat.threads is [2]; it must be a value"),
        ("[chat]\nthreads = 2020-01-01", "chat.threads is datetime.date(2020, 1, 1)"),
        ("[models.show]\nname = 'x'", "models: show has the unknown key 'name'"),
        ("[completion]\nshell = 'bash'", "completion has the unknown key 'shell'"),
    ],
)
def test_mistakes_are_named(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError) as error:
        defaults(tmp_path, monkeypatch, text)
    assert said in str(error.value)
    assert str(tmp_path / "config.toml") in str(error.value)


def test_a_missing_file_is_an_error_only_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_CONFIG", "")
    assert config.place() is None
    assert config.defaults(app) == {}
    monkeypatch.setenv("EDGESPEC_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(OptionError, match="EDGESPEC_CONFIG names"):
        config.defaults(app)
    monkeypatch.delenv("EDGESPEC_CONFIG")
    monkeypatch.setattr(config, "user_config_path", lambda *_, **__: tmp_path)
    assert config.defaults(app) == {}
    (tmp_path / "config.toml").write_text("[chat]\ntemp = 0", "utf-8")
    assert config.defaults(app) == {"chat": {"temp": "0"}}


def test_the_command_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[models.show]\nctx = -1", "utf-8")
    with_it, without = ({"EDGESPEC_CONFIG": name} for name in (str(file), ""))
    assert "context is -1" in refused(run("models", "show", "qwen3-8b", env=with_it))
    assert run("models", "show", "qwen3-8b", "--ctx", "512", env=with_it).returncode == 0
    assert run("models", "show", "qwen3-8b", env=without).returncode == 0
    file.write_text("[chat]\ntepm = 1", "utf-8")
    assert "'tepm'" in refused(run("models", "list", env=with_it))
