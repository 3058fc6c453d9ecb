"""What a project that others work on keeps true: its changelog, its CI, its public docstrings."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgespec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
ADDRESS = "https://github.com/edgespec/edgespec"
WORKFLOW = ".github/workflows/ci.yml"


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(read("pyproject.toml"))["project"]
    return found


def test_the_changelog_has_a_section_of_this_version() -> None:
    sections = re.findall(r"^## \[(.+?)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert sections[:2] == ["Unreleased", project()["version"]]
    for section in sections:
        assert f"\n[{section}]: {ADDRESS}/" in read("CHANGELOG.md")


def test_the_matrix_has_the_oldest_python_and_three_systems() -> None:
    matrix = yaml.safe_load(read(WORKFLOW))["jobs"]["tests"]["strategy"]["matrix"]
    assert {system.split("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}
    oldest = project()["requires-python"].removeprefix(">=")
    assert matrix["python"][0] == oldest
    assert len(matrix["python"]) == 2


@pytest.mark.parametrize("name", [WORKFLOW, ".pre-commit-config.yaml", ".ci/run", "CONTRIBUTING.md", "README.md"])
def test_only_sessions_that_exist_are_run(name: str) -> None:
    sessions = set(re.findall(r"^@nox\.session.*\ndef (\w+)", read("noxfile.py"), re.MULTILINE))
    run = {each for line in re.findall(r"nox -s ([\w ]+)", read(name)) for each in line.split()}
    assert run
    assert run <= sessions


def test_all_addresses_are_of_one_repository() -> None:
    assert all(address.startswith(ADDRESS) for address in project()["urls"].values())
    for path in (*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.*")):
        for found in re.findall(r"https://github\.com/edgespec[\w/-]*", path.read_text("utf-8")):
            assert found.startswith(ADDRESS), path


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")))
def test_issue_templates_are_forms(name: str) -> None:
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}"))
    if name == "config.yml":
        assert form["contact_links"]
        return
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids)) > 0


@pytest.mark.parametrize("name", edgespec.__all__)
def test_public_names_have_docstrings(name: str) -> None:
    """The API reference is made of them."""
    found = getattr(edgespec, name)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert found.__doc__
        assert not found.__doc__.startswith(f"{name}(")  # made by dataclass or NamedTuple
