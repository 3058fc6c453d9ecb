"""Fixtures for all tests. None touches the user's cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from edgespec.backends import Device, Interrupt, Model, open_model


def _find_benchmarks() -> None:
    """Let tests import `benchmarks`, which is no part of any install, where it lies beside them. By its place and not
    by the path: with the repository there, `edgespec` itself might be found in it instead of the install."""
    init = Path(__file__).parents[1] / "benchmarks" / "__init__.py"
    spec = spec_from_file_location("benchmarks", init, submodule_search_locations=[str(init.parent)])
    if init.is_file() and spec is not None and spec.loader is not None:
        sys.modules["benchmarks"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


_find_benchmarks()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """EDGESPEC_CACHE for the whole session: a folder of its own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_CACHE", str(folder))
        yield folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """EDGESPEC_CACHE for one test: nothing is there yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EDGESPEC_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def demo() -> dict[str, Path]:
    """The files of the demo pair: `target` and `draft`."""
    folder = Path(str(files("edgespec.models"))) / "demo"
    return {name: folder / f"{name}.gguf" for name in ("target", "draft")}


@pytest.fixture(scope="session")
def demo_target(demo: dict[str, Path]) -> Iterator[Model]:
    """The demo's target, loaded once. Tests open sessions of their own."""
    model = open_model(demo["target"], Device(threads=2), Interrupt())
    yield model
    model.close()
