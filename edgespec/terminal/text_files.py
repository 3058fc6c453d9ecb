"""Files of text that a command is given."""

from __future__ import annotations

from pathlib import Path

LARGEST = 4 << 20  #: bytes of a file, about a million tokens


def text_of(path: Path) -> str:
    """The text of a file. Raises OptionError if it cannot be read or is not text."""
    from ..errors import OptionError  # noqa: PLC0415
    from ..storage.files import regular  # noqa: PLC0415

    try:
        with regular(path).open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise OptionError(
            f"{path} cannot be read: {error.strerror}; give a file of text, or pipe the text into standard input"
        ) from error
    return decoded(data, str(path))


def decoded(data: bytes, name: str) -> str:
    """`data` as text; `name` says whose it is. Raises OptionError if it is too long, or not text."""
    from ..errors import OptionError  # noqa: PLC0415

    if len(data) > LARGEST:
        raise OptionError(f"{name} has more than {LARGEST >> 20} MB, more than any context; give a part of it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OptionError(f"{name} is not text in UTF-8 (byte {error.start}); convert it to UTF-8") from error
    if "\0" in text:
        raise OptionError(f"{name} is binary, not text: it contains a NUL character; give a text file")
    return text
