"""The fields of a JSON request: checked when they are read; null is the same as absent, unknown ones are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import OptionError
from ..values import real, shown, whole
from .errors import Refused


class Fields:
    """The fields of a JSON object.

    Args:
        values: the object.
        path: its place in the request, for messages.

    Raises:
        Refused: it is not an object. Every method raises it for a field of a wrong type or out of range, with the
            field as `param`.
    """

    def __init__(self, values: Any, path: str = "") -> None:
        if not isinstance(values, Mapping):
            what = path or "the body of the request"
            raise Refused(f"{what} is {shown(values)}; it must be a JSON object", param=path or None)
        self.values: Mapping[str, Any] = values
        self._path = path

    def has(self, name: str) -> bool:
        """Whether the field is given."""
        return self.values.get(name) is not None

    def raw(self, name: str) -> Any:
        """The field as it is; None where it is absent."""
        return self.values.get(name)

    def text(self, name: str, default: str = "", *, most: int | None = None) -> str:
        """A text of at most `most` characters."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        if most is not None and len(value) > most:
            raise Refused(
                f"{self.param(name)} has {len(value)} characters; {most} are the most", param=self.param(name)
            )
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number; None where it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        try:
            return whole(self.param(name), value, low, high)
        except OptionError as error:
            raise Refused(str(error), param=self.param(name)) from None

    def real(self, name: str, low: float, high: float) -> float | None:
        """A number; None where it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        try:
            return real(self.param(name), value, low, high)
        except OptionError as error:
            raise Refused(str(error), param=self.param(name)) from None

    def items(self, name: str, *, most: int) -> list[Any]:
        """A list of at most `most` items; empty where it is absent."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        if len(value) > most:
            raise Refused(f"{self.param(name)} has {len(value)} items; {most} are the most", param=self.param(name))
        return value

    def below(self, name: str) -> Fields:
        """The fields of an object; without any where it is absent."""
        value = self.values.get(name)
        return Fields({} if value is None else value, self.param(name))

    def param(self, name: str) -> str:
        """The place of a field in the request."""
        return f"{self._path}.{name}" if self._path else name

    def wrong(self, name: str, expected: str) -> Refused:
        """The error for a field that is not what was expected."""
        param = self.param(name)
        return Refused(f"{param} is {shown(self.values.get(name))}; it must be {expected}", param=param)
