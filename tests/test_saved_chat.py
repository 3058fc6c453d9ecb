"""Conversations in files: saved, loaded, resumed; and what is no conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgespec import Sampling
from edgespec.errors import OptionError
from edgespec.terminal.chat import Chat
from edgespec.terminal.saved_chat import save, saved

from .commandline import PROMPT, run, unix
from .toy_runtime import opened

SYSTEM = {"role": "system", "content": "Be brief"}
TURN = [{"role": "user", "content": "Hé?"}, {"role": "assistant", "content": "So.", "reasoning_content": "hm"}]


class Talk:
    """A chat with a toy, and its messages for the user."""

    def __init__(self, context: int = 400, **options: Any) -> None:
        self.notes: list[str] = []
        runtime, _ = opened(context=context)
        self.chat = Chat(runtime, Sampling(), 20, out=lambda _text: None, note=self.notes.append, **options)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    save(path, [SYSTEM, *TURN])
    assert saved(path) == [SYSTEM, *TURN]
    assert path.stat().st_mode & 0o077 == 0, "nobody else may read it"
    assert [entry.name for entry in tmp_path.iterdir()] == ["chat.json"]
    save(path, TURN)
    assert saved(path) == TURN


def test_a_list_of_messages_is_a_conversation_and_other_members_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{**TURN[0], "name": "me", "reasoning_content": 3}]))
    assert saved(path) == [TURN[0]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Dear diary", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "no list"),
        ('{"messages": 3}', "no list"),
        ("[3]", "message 1 is not a text of the role 'user'"),
        ('[{"role": "user", "content": ["a"]}]', "message 1"),
        ('[{"role": "assistant", "content": "a"}]', "message 1"),
        ('[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]', "message 2"),
        ('[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]', "message 2"),
        ('[{"role": "system", "content": "a"}, {"role": "system", "content": "b"}]', "message 2"),
    ],
)
def test_other_files_are_refused_and_not_overwritten(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "precious.txt"
    path.write_text(text)
    with pytest.raises(OptionError, match=reason) as error:
        saved(path)
    assert "\n" not in str(error.value)
    with pytest.raises(OptionError):
        save(path, TURN)
    assert path.read_text() == text


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chat.json"
    save(path, TURN)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OptionError, match="No space left"):
        save(path, [SYSTEM])
    assert saved(path) == TURN
    assert len([*tmp_path.iterdir()]) == 1


def test_a_chat_saves_and_loads(tmp_path: Path) -> None:
    path, talk = tmp_path / "chat.json", Talk()
    talk.chat.enter("/system Be brief")
    talk.chat.enter("hello")
    talk.chat.enter(f"/save {path}")
    kept = saved(path)
    assert kept[0] == SYSTEM
    assert [message["role"] for message in kept[1:]] == ["user", "assistant"]
    other = Talk()
    other.chat.enter(f"/load {path}")
    assert [other.chat.system, *other.chat.turns] == ["Be brief", *kept[1:]]
    assert "1 questions" in other.notes[-1]


def test_what_cannot_be_loaded_changes_nothing(tmp_path: Path) -> None:
    talk = Talk()
    talk.chat.enter("hello")
    before = [*talk.chat.turns]
    for line in ("/load", f"/load {tmp_path / 'none.json'}", "/save", f"/save {tmp_path / 'no' / 'folder.json'}"):
        talk.notes.clear()
        assert talk.chat.enter(line)
        assert len(talk.notes) == 1
    assert talk.chat.turns == before


def test_a_question_without_an_answer_is_not_resumed(tmp_path: Path) -> None:
    save(tmp_path / "chat.json", [*TURN, TURN[0]])
    talk = Talk()
    talk.chat.load(tmp_path / "chat.json")
    assert talk.chat.turns == TURN


def test_turns_that_outgrow_the_context_are_saved(tmp_path: Path) -> None:
    """And with them the whole conversation, in its order."""
    talk = Talk(context=200, kept=tmp_path / "chat.json")
    for number in range(12):
        talk.chat.enter(f"message {number:03}")
    assert talk.chat.outgrown
    asked = [message["content"] for message in saved(tmp_path / "chat.json") if message["role"] == "user"]
    assert asked == [f"message {number:03}" for number in range(12)]
    talk.chat.enter("/reset")
    assert not talk.chat.outgrown


def test_a_system_message_given_now_stays(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    save(path, [SYSTEM, *TURN])
    for given, expected in (("", "Be brief"), ("Be loud", "Be loud")):
        talk = Talk(kept=path, system=given)
        talk.chat.resume()
        assert (talk.chat.system, talk.chat.turns) == (expected, TURN)
    talk = Talk(kept=tmp_path / "new.json")
    talk.chat.resume()
    assert not talk.chat.turns


@unix
def test_a_conversation_goes_on_from_command_to_command(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    for count in (1, 2):
        done = run("chat", "--temp", "0", "-p", PROMPT, "--resume", path)
        assert not done.returncode, done.stderr
        assert len(saved(path)) == 2 * count
    assert run("chat", "-p", PROMPT, "--resume", path, "--json").returncode == 2
    path.write_text("{}")
    done = run("chat", "-p", PROMPT, "--resume", path)
    assert done.returncode == 1
    assert "not a saved conversation" in done.stderr


def test_a_conversation_that_cannot_be_saved_does_not_begin(tmp_path: Path) -> None:
    """The answer was complete before the error came."""
    with pytest.raises(
        OptionError, match=r"talk\.json cannot be written: its folder does not exist; name another file"
    ):
        Talk(kept=tmp_path / "none" / "talk.json").chat.resume()
    Talk(kept=tmp_path / "talk.json").chat.resume()
