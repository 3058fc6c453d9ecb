"""Drafters from outside this package: objects that an app gives, and those that installed packages offer by name.

A package offers a drafter by an entry point in the group `edgespec.drafters`, whose name is the drafter's, and which is
a class or a function that takes a `Target`. It is imported only when its name is asked for.
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
from .speculation import DRAFTERS

GROUP = "edgespec.drafters"
_METHODS = ("begin", "guess", "observe", "close")


def require_known(names: Sequence[str], given: Sequence[object]) -> None:
    """Check `names` of drafters before models are opened, as far as they can be known then.

    Args:
        given: the drafters of the app; the name of one that is not made yet is not known.

    Raises:
        OptionError: a name that nobody has; the message lists those there are. Or `given` is no list.
    """
    if not isinstance(given, Sequence):
        raise OptionError(f"drafters is {shown(given)}; it must be a list of drafters")
    if any(is_factory(each) for each in given):
        return
    own = [str(getattr(each, "name", "")) for each in given]
    unknown = [name for name in names if name not in DRAFTERS and name not in own]
    if not unknown:
        return
    there = sorted({entry.name for entry, _ in _entry_points()} - {*DRAFTERS})
    if wrong := [name for name in unknown if name not in there]:
        also = f", installed: {', '.join(there)}" if there else ""
        raise OptionError(f"no drafter {wrong[0]!r}; there are {', '.join((*DRAFTERS, *own))}{also}")


def made(given: Sequence[object], names: Sequence[str], target: Target, refused: ExitStack) -> Iterator[Failsafe]:
    """The drafters of the app, then the installed ones among `names`.

    Args:
        refused: closes those that were made here, not given, if loading fails after all.

    Raises:
        DrafterError: one cannot be imported or made, or has not the members of a drafter; it names the package.
        OptionError: one has a name that is taken.
    """
    taken = {*DRAFTERS}
    for each in given:
        whose = f"the drafter {getattr(each, '__qualname__', type(each).__name__)}"
        drafter = _made(each, target, whose) if is_factory(each) else each
        wrapped = _wrapped(drafter, getattr(drafter, "name", None), target, whose)
        if drafter is not each:
            refused.callback(wrapped.close)
        if wrapped.name in taken:
            raise OptionError(f"there are two drafters named {wrapped.name!r}; give yours another name")
        taken.add(wrapped.name)
        yield wrapped
    for name in dict.fromkeys(names):
        if name not in taken and (found := _installed(name)) is not None:
            entry, whose = found
            wrapped = _wrapped(_made(_imported(entry, whose), target, whose), name, target, whose)
            refused.callback(wrapped.close)
            yield wrapped


def is_factory(given: object) -> bool:
    """Whether this makes a drafter, rather than being one."""
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
    except (Exception, SystemExit) as error:  # code of somebody else's may raise anything
        raise DrafterError(f"{whose} cannot be made: {_told(error)}; repair it, or leave it out") from error
    return drafter


def _imported(entry: EntryPoint, whose: str) -> Any:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise DrafterError(f"{whose} cannot be loaded: {_told(error)}; repair or uninstall that package") from error


def _installed(name: str) -> tuple[EntryPoint, str] | None:
    """The entry point called `name` and what to call it in messages; None where there is none."""
    found = [(entry, package) for entry, package in _entry_points() if entry.name == name]
    if len(found) > 1:
        packages = ", ".join(sorted(package for _, package in found))
        raise OptionError(f"several installed packages offer a drafter {name!r}: {packages}; uninstall all but one")
    return (found[0][0], f"the drafter {name!r} of the package {found[0][1]}") if found else None


def _entry_points() -> Iterator[tuple[EntryPoint, str]]:
    """All entry points of the group, each with the package it is of.

    Package by package, for one whose metadata is damaged must not hide the others. Of a package that is on the path
    twice Python imports the first.
    """
    seen = set[str]()
    for distribution in distributions():
        try:
            package = distribution.metadata["Name"]
            entries = [entry for entry in distribution.entry_points if entry.group == GROUP]
        except Exception:  # noqa: BLE001, S112 - files of somebody else's may hold anything
            continue
        if package and package not in seen:
            seen.add(package)
            yield from ((entry, package) for entry in entries)


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, EdgespecError) else f"{type(error).__name__}: {error}"
