"""The examples of drafters, in this process and as installed packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from edgespec.testing import check_drafter

from .outside_drafters import EXAMPLES


def example(path: Path) -> Any:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


needs_examples = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="these tests lie beside an install")


@needs_examples
def test_the_example_keeps_the_laws_in_forty_lines() -> None:
    path = EXAMPLES / "own_drafter.py"
    assert len(path.read_text("utf-8").splitlines()) <= 40
    check_drafter(example(path).Bigrams)


@needs_examples
def test_the_example_drafts_on_the_demo_pair() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "own_drafter.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("{'bigrams': '")
    assert not done.stdout.startswith("{'bigrams': '0 of")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip installed the example package, without a network."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(EXAMPLES / "drafter_package", folder / "source")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "site")]
    done = subprocess.run([*command, str(folder / "source")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(site))))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@needs_examples
def test_an_installed_package_drafts_in_a_chat(site: Path) -> None:
    chat = ("-m", "edgespec", "chat", "--temp", "0", "-p", "Repeat:\nWhat time do you want to eat?", "--json")
    done = run(site, *chat, "--k", "3", "--drafter", "phrases")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    plain = [json.loads(line) for line in run(site, *chat, "--k", "0").stdout.splitlines()]
    said, wanted = ([token for e in each for token in e.get("tokens", ())] for each in (events, plain))
    assert said == wanted
    assert ["phrases"] in [event.get("drafters") for event in events]
    assert sum(event.get("accepted", 0) for event in events if event["event"] == "text") > 0
    wrong = run(site, *chat, "--drafter", "phrases,oracle")
    assert "no drafter 'oracle'; there are lookup, model, cross-vocabulary, " in wrong.stdout + wrong.stderr


@needs_examples
def test_an_installed_package_keeps_the_laws(site: Path) -> None:
    code = "from edgespec_phrases import Phrases; from edgespec.testing import check_drafter; "
    code += "check_drafter(Phrases, text='What time do you want to eat? Have a good day. ')"
    done = run(site, "-c", code)
    assert done.returncode == 0, done.stderr
