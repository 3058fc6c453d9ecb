"""Checks of a hub's metadata before any of it becomes part of a path: commits, digests, file names and sizes.

A hub, or a server in its place, may send anything: `../../.ssh/x` as a digest, or a drive letter in a name.
"""

from __future__ import annotations

import re
from typing import Any

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # git's object id, or SHA-256
#: Names of devices on Windows, whatever their suffix.
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_LONGEST = 255  # bytes of a name, on most file systems
_LARGEST = 1 << 63  # bytes of a file, on any file system
_DEEPEST = 1024  # characters of a path in a repository


def is_commit(text: Any) -> bool:
    """Whether `text` is the full hexadecimal id of a commit."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def is_digest(text: Any) -> bool:
    """Whether `text` is a SHA-1 or SHA-256 in hexadecimal."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def is_path(text: Any) -> bool:
    """Whether `text` is a relative path with forward slashes that stays in its folder on every operating system."""
    return isinstance(text, str) and len(text) <= _DEEPEST and all(map(_is_name, text.split("/")))


def is_size(number: Any) -> bool:
    """Whether `number` can be the size of a file in bytes."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < _LARGEST


def _is_name(part: str) -> bool:
    """Whether `part` can name a file or folder. NUL, other control characters and surrogates are not printable."""
    return (
        bool(part)
        and part.isprintable()
        and len(part.encode()) <= _LONGEST
        and part == part.rstrip(". ")  # excludes "." and ".."; Windows drops trailing dots and spaces
        and not set(part) & set('\\:*?"<>|')
        and _DEVICE.fullmatch(part) is None
    )
