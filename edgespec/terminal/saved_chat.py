"""Conversations in files: JSON with the messages as OpenAI's API has them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..storage.leftovers import put
from .text_files import text_of

_ROLES = ("user", "assistant")
_TEXTS = ("content", "reasoning_content")
_OWNER = 0o600  # nobody else reads or writes a conversation


def saved(path: Path) -> list[dict[str, Any]]:
    """The messages in the file: at most one of the system, first, then those of user and assistant in turn.

    It holds a list of messages, or an object with such a list as "messages".

    Raises:
        OptionError: the file cannot be read, or holds no conversation.
    """
    try:
        found = json.loads(text_of(path))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is not a saved conversation: it is not JSON; name another file") from error
    messages = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(messages, list):
        raise OptionError(f'{path} is not a saved conversation: it has no list "messages"; name another file')
    return [_message(path, number, message, messages) for number, message in enumerate(messages)]


def save(path: Path, messages: Sequence[Mapping[str, Any]]) -> None:
    """Write the messages, as a whole or not at all. A file that holds no conversation is not overwritten.

    Raises:
        OptionError: it exists and is not a saved conversation, or cannot be written.
    """
    if path.exists():
        saved(path)
    text = json.dumps({"messages": [*messages]}, ensure_ascii=False, indent=2)
    try:
        put(path, text + "\n", mode=_OWNER)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}; name another file") from error


def require_place(path: Path) -> None:
    """Check that a conversation can be saved there, before hours are spent on one.

    Raises:
        OptionError: its folder does not exist, or cannot be written.
    """
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        problem = "cannot be written" if folder.is_dir() else "does not exist"
        raise OptionError(f"{path} cannot be written: its folder {problem}; name another file")


def _message(path: Path, number: int, message: object, messages: Sequence[Any]) -> dict[str, Any]:
    """The message of this number, without members that a chat does not use."""
    first = isinstance(messages[0], dict) and messages[0].get("role") == "system"
    expected = "system" if first and not number else _ROLES[(number - first) % 2]
    if not isinstance(message, dict) or message.get("role") != expected or not isinstance(message.get("content"), str):
        raise OptionError(
            f"{path} is not a saved conversation: message {number + 1} is not a text of the role {expected!r}; "
            "messages are those of user and assistant in turn, after one of the system, if any"
        )
    kept = {key: message[key] for key in _TEXTS if isinstance(message.get(key), str)}
    return {"role": expected, **kept}
