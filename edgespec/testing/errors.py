"""The error for a law that does not hold."""

from __future__ import annotations


class LawError(AssertionError):
    """A drafter or an engine violates a law. Test runners report it as a failed test."""


def require(holds: bool, broken: str) -> None:
    """Raises LawError with the message `broken` unless `holds`."""
    if not holds:
        raise LawError(broken)
