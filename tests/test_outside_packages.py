"""Drafters of installed packages: found by name, and named where they are broken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec import (
    DrafterError,
    OptionError,
    Speculation,
)

from .outside_drafters import Mine, answer, opened

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Writes what an installer leaves: a module and the metadata of a package."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    modules: list[str] = []

    def write(package: str, code: str, entry: str, metadata: str | None = None) -> None:
        module = entry.partition("=")[2].strip().partition(":")[0]
        (site / f"{module}.py").write_text(code, "utf-8")
        info = site / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(metadata or f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[edgespec.drafters]\n{entry}\n", "utf-8")
        modules.append(module)

    yield write
    for module in modules:
        sys.modules.pop(module, None)


GOOD = """
from edgespec import Drafter, Guess
class Zeros(Drafter):
    name = "called otherwise"
    def __init__(self, target): pass
    def begin(self, round_context): self.is_eog = round_context.is_eog
    def guess(self, path, most): return [] if path and self.is_eog(path[-1]) else [Guess(0, 0.1)]
"""


def test_an_installed_drafter_is_found_by_its_name(install: Install) -> None:
    install("good-package", GOOD, "zeros = good_module:Zeros")
    with opened(names=("zeros", "lookup")) as runtime:
        assert runtime.drafters == ("lookup", "recycling", "zeros")
        assert answer(runtime).stats.by_drafter["zeros"][0] > 5
    with opened(Mine()) as runtime:
        assert runtime.drafters == ("lookup", "recycling", "mine"), "only where it was asked for"
        with pytest.raises(
            OptionError, match=r"no drafter 'zeros', only lookup, recycling, mine: .* must be named when loading"
        ):
            runtime.complete("a", speculation=Speculation(("zeros",)))
    with pytest.raises(
        OptionError, match=r"'oracle'; there are lookup, model, cross-vocabulary, mtp, .*, installed: zeros$"
    ):
        opened(names=("oracle",))


def test_what_is_not_asked_for_is_not_imported(install: Install) -> None:
    install("bad-package", "raise RuntimeError('imported')", "bad = bad_module:Bad")
    with opened(Mine(), names=("mine",)):
        pass
    with opened(), pytest.raises(OptionError, match=r"installed: bad$"):
        opened(names=("oracle",))
    assert "bad_module" not in sys.modules


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import not_there_at_all", "cannot be loaded: ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("raise RuntimeError('two\\nlines')", "cannot be loaded: RuntimeError: two lines"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("def syntax(", "cannot be loaded: SyntaxError"),
        ("Other = 1", "cannot be loaded: AttributeError"),
        ("Bad = 7", "is 7; it must be a class or function that takes an edgespec.Target"),
        ("class Bad: pass", r"cannot be made: TypeError: Bad\(\) takes no arguments"),
        ("def Bad(target): raise OSError('no file')", "cannot be made: OSError: no file; repair it, or leave it out"),
        ("def Bad(target): return 7", "has no method 'begin'"),
    ],
)
def test_a_broken_package_is_named_on_one_line(code: str, says: str, install: Install) -> None:
    install("bad-package", code, "bad = bad_module:Bad")
    with pytest.raises(DrafterError, match=f"^the drafter 'bad' of the package bad-package {says}") as raised:
        opened(names=("bad",))
    assert "\n" not in str(raised.value)


def test_two_packages_with_one_name_are_told(install: Install) -> None:
    install("one-package", GOOD, "zeros = one_module:Zeros")
    install("two-package", GOOD, "zeros = two_module:Zeros")
    with pytest.raises(
        OptionError, match="several installed packages provide a drafter 'zeros': one-package, two-pack"
    ):
        opened(names=("zeros",))


def test_damaged_metadata_hides_no_other_package(install: Install) -> None:
    install("a-damaged", "", "no equals sign")
    install("good-package", GOOD, "zeros = good_module:Zeros")
    with opened(names=("zeros",)) as runtime:
        assert "zeros" in runtime.drafters


def test_a_built_in_name_is_the_built_in_drafter(install: Install) -> None:
    install("bad-package", "raise RuntimeError('imported')", "lookup = bad_module:Bad")
    with opened(names=("lookup",)) as runtime:
        assert runtime.drafters == ("lookup", "recycling")
    with pytest.raises(OptionError, match=r"there are lookup, model, .*lookahead, grammar, prediction$"):
        opened(names=("oracle",))
