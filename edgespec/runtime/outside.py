"""Drafters from outside this package: objects of an app, and drafters of installed packages, by name.

A package provides a drafter by an entry point in the group `edgespec.drafters`. The name of the entry point is that of
the drafter; its value is a class or a function that takes a `Target`. It is imported only if the drafter is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import EntryPoint, distributions
from typing import Any

from ..drafters import Drafter, Target
from ..drafters.checked import Checked
from ..drafters.failsafe import Failsafe
from ..errors import DrafterError, EdgespecError, Interrupted, OptionError
from ..values import shown
from .speculation import DRAFTERS, is_built_in

GROUP = "edgespec.drafters"
_METHODS = ("begin", "guess", "observe", "close")


def require_known(names: Sequence[str], given: Sequence[object]) -> None:
    """Check `names` of drafters before models are opened. With a factory in `given` any name is accepted, because the
    name of its drafter is not known before it is made.

    Args:
        given: the drafters of the app.

    Raises:
        OptionError: a name that no drafter has; the message lists the names. Or `given` is not a list.
    """
    if not isinstance(given, Sequence):
        raise OptionError(f"drafters is {shown(given)}; it must be a list of drafters")
    if any(is_factory(each) for each in given):
        return
    own = [str(getattr(each, "name", "")) for each in given]
    unknown = [name for name in names if not is_built_in(name) and name not in own]
    if not unknown:
        return
    there = sorted({entry.name for entry, _ in _entry_points()} - {*DRAFTERS})
    if wrong := [name for name in unknown if name not in there]:
        also = f", installed: {', '.join(there)}" if there else ""
        raise OptionError(f"no drafter {wrong[0]!r}; there are {', '.join((*DRAFTERS, *own))}{also}")


def made(given: Sequence[object], names: Sequence[str], target: Target, undo: ExitStack) -> Iterator[Failsafe]:
    """The drafters of the app, then those of installed packages that are among `names`.

    Args:
        given: drafters of the app, or factories.
        undo: closes those that were made here, not given, if loading fails later.

    Raises:
        DrafterError: one cannot be imported or made, or does not have the members of a drafter.
        OptionError: two have the same name.
    """
    taken = set[str]()
    for each in given:
        whose = f"the drafter {getattr(each, '__qualname__', type(each).__name__)}"
        drafter = _made(each, target, whose) if is_factory(each) else each
        wrapped = _wrapped(drafter, getattr(drafter, "name", None), target, whose)
        if drafter is not each:
            undo.callback(wrapped.close)
        if is_built_in(wrapped.name) or wrapped.name in taken:
            raise OptionError(f"there are two drafters named {wrapped.name!r}; give yours another name")
        taken.add(wrapped.name)
        yield wrapped
    for name in dict.fromkeys(names):
        if not is_built_in(name) and name not in taken and (found := _installed(name)) is not None:
            entry, whose = found
            wrapped = _wrapped(_made(_imported(entry, whose), target, whose), name, target, whose)
            undo.callback(wrapped.close)
            yield wrapped


def is_factory(given: object) -> bool:
    """Whether `given` is a factory of drafters rather than a drafter."""
    return isinstance(given, type) or (callable(given) and not hasattr(given, "guess"))


def _wrapped(drafter: Any, name: object, target: Target, whose: str) -> Failsafe:
    if not isinstance(name, str) or not name or not name.isprintable() or set(name) & set("+, "):
        raise DrafterError(
            f"{whose} has the name {shown(name)}; it must be a word without spaces, commas and plus signs"
        )
    if missing := [method for method in _METHODS if not callable(getattr(drafter, method, None))]:
        raise DrafterError(f"{whose} has no method {missing[0]!r}; let its class inherit from edgespec.Drafter")
    return Failsafe(Checked(drafter, name, target.vocabulary.size))


def _made(factory: Any, target: Target, whose: str) -> Drafter:
    if not callable(factory):
        raise DrafterError(f"{whose} is {shown(factory)}; it must be a class or function that takes an edgespec.Target")
    try:
        drafter: Drafter = factory(target)
    except Interrupted:
        raise
    except (Exception, SystemExit) as error:  # external code may raise anything
        raise DrafterError(f"{whose} cannot be made: {_reason(error)}; repair it, or leave it out") from error
    return drafter


def _imported(entry: EntryPoint, whose: str) -> Any:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise DrafterError(f"{whose} cannot be loaded: {_reason(error)}; repair or uninstall that package") from error


def _installed(name: str) -> tuple[EntryPoint, str] | None:
    """The entry point called `name`, and a description of the drafter for messages; None if there is none."""
    found = [(entry, package) for entry, package in _entry_points() if entry.name == name]
    if len(found) > 1:
        packages = ", ".join(sorted(package for _, package in found))
        raise OptionError(f"several installed packages provide a drafter {name!r}: {packages}; uninstall all but one")
    return (found[0][0], f"the drafter {name!r} of the package {found[0][1]}") if found else None


def _entry_points() -> Iterator[tuple[EntryPoint, str]]:
    """All entry points of the group, each with the name of its package.

    They are read package by package, so that damaged metadata of one does not hide the others. If a package is on the
    path twice, only the first is used, as Python does.
    """
    seen = set[str]()
    for distribution in distributions():
        try:
            package = distribution.metadata["Name"]
            entries = [entry for entry in distribution.entry_points if entry.group == GROUP]
        except Exception:  # noqa: BLE001, S112 - files of other packages may contain anything
            continue
        if package and package not in seen:
            seen.add(package)
            yield from ((entry, package) for entry in entries)


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, EdgespecError) else f"{type(error).__name__}: {error}"
