"""Messages of errors, whatever they quote."""

from __future__ import annotations

from edgespec import EdgespecError


def test_a_message_is_one_printable_line_of_bearable_length() -> None:
    """A config.json of which one value has 100,000 characters once filled the terminal."""
    assert str(EdgespecError("a\n  b\x1b]0;c")) == r"a b\x1b]0;c"
    long = str(EdgespecError(f"{'x' * 100_000}; give another"))
    assert len(long) < 1600
    assert long.startswith("xxx")
    assert long.endswith("xxx; give another")
