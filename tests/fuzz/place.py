"""What an input is given to work with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import click

from edgespec.errors import EdgespecError, Interrupted

from .judge import check_message
from .models import Models

T = TypeVar("T")


@dataclass
class Place:
    """Where an input runs.

    Args:
        folder: an empty folder for the input's files, deleted afterwards.
        models: sound models, which are not to be changed.
        note: tells what the input is, before it may end the process.
    """

    folder: Path
    models: Models
    note: Callable[[str], None]
    #: How often edgespec refused something.
    refusals: int = field(default=0)

    def attempt(self, action: Callable[[], T]) -> T | None:
        """What `action` returns; None where edgespec refuses it with a message as it should be."""
        try:
            return action()
        except EdgespecError as error:
            check_message(str(error))
        except click.ClickException as error:
            check_message(error.format_message())
        except Interrupted:
            pass
        self.refusals += 1
        return None

    def write(self, name: str, content: bytes) -> Path:
        """A file of the input's folder with this content."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


def later(seconds: float, action: Callable[[], object]) -> threading.Timer:
    """Call `action` on another thread after so many seconds."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    return timer
