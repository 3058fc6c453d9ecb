"""What is raised where a law does not hold."""

from __future__ import annotations


class LawError(AssertionError):
    """A drafter or an engine does what it must not. Test runners show it as a failed test."""


def require(holds: bool, broken: str) -> None:
    """LawError with the message `broken` unless `holds`."""
    if not holds:
        raise LawError(broken)
