"""What `pip install edgespec` does without the extras, and what it says where one is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from edgespec import extras
from edgespec.errors import MissingPackage
from edgespec.extras import EXTRAS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
#: Makes the packages of all extras as good as missing.
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({sorted(EXTRAS)}))"


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    with TemporaryDirectory() as elsewhere:  # in a clone, Python would find the clone and not the install
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`edgespec` without the packages of the extras."""
    return run(f"{WITHOUT}; from edgespec.cli import main; main()", *arguments)


def refused(done: subprocess.CompletedProcess[str], extra: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    install = f"is not installed; install it with `pip install 'edgespec[{extra}]'`\n"
    assert re.fullmatch(rf"Error: .* {re.escape(install)}", done.stderr)


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_without_llamacpp_the_packages_of_an_extra_are_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra of edgespec would bring llama-cpp-python, which pip may have to compile."""
    assert extras.install_line("serve") == "pip install 'edgespec[serve]'"
    monkeypatch.setattr(extras, "find_spec", lambda _package: None)
    assert re.fullmatch(r"pip install 'llguidance<2,>=\S+' 'httpx\S+' .*'uvicorn\S+'", extras.install_line("serve"))
    with pytest.raises(MissingPackage, match=r"install it with `pip install 'matplotlib<4,>=3\.9'`"):
        extras.require("matplotlib", "this")


def test_torch_is_required_before_anything_is_distilled(checkpoint: Path, tmp_path: Path) -> None:
    refused(command("distill", str(checkpoint), str(checkpoint), "--out", str(tmp_path / "pair")), "distill")
    assert files(tmp_path) == []


def test_onnx_is_required_before_a_conversion(checkpoint: Path, tmp_path: Path) -> None:
    out = ("--to", "onnx", "--out", str(tmp_path / "model"))
    refused(command("convert", str(checkpoint), *out), "onnx")
    refused(command("convert", "--pair", str(checkpoint), str(checkpoint), *out), "onnx")
    assert files(tmp_path) == []


def test_onnx_is_required_before_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint was fetched first, gigabytes of it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # so that a download that is tried fails with another message
    refused(command("convert", "org/name", "--to", "onnx", "--yes", "--out", str(tmp_path / "model")), "onnx")


def test_matplotlib_is_required_before_a_benchmark(small_pair: dict[str, Path], tmp_path: Path) -> None:
    """Not when the report is drawn, hours later."""
    refused(command("bench", str(small_pair["target"]), "--limit", "1", "--out", str(tmp_path / "bench")), "bench")
    assert files(tmp_path) == []


def test_converting_to_gguf_needs_no_extra(checkpoint: Path, tmp_path: Path) -> None:
    done = command("convert", str(checkpoint), "--out", str(tmp_path / "model.gguf"))
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == ["model.gguf"]


def test_running_an_onnx_model_needs_no_extra(onnx_folders: Callable[[str], Path]) -> None:
    done = command("chat", str(onnx_folders("int4")), "-p", "Hello", "--max-tokens", "4", "--json")
    assert done.returncode == 0, done.stderr
    assert '"event": "finished"' in done.stdout


def test_chat_loads_no_extra(small_pair: dict[str, Path]) -> None:
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from edgespec.cli import main; main()"
    done = run(code, "chat", str(small_pair["target"]), "-p", "Hello", "--max-tokens", "4", "--stats")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "llama_cpp" in loaded
    assert not loaded & {*EXTRAS}


def test_all_modules_but_the_onnx_writer_are_imported_without_extras() -> None:
    packages = settings()["tool"]["setuptools"]["packages"]
    code = f"""{WITHOUT}
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
for package in map(import_module, {packages}):
    folder = [Path(package.__file__).parent] if hasattr(package, "__path__") else []
    for found in iter_modules(folder, package.__name__ + "."):
        try:
            found.name.endswith("__main__") or "hook-" in found.name or import_module(found.name)
        except ImportError:
            print(found.name)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    server = [name for name in done.stdout.split() if name.startswith("edgespec.server.")]
    assert {"edgespec.server.app", "edgespec.server.running", "edgespec.server.metrics"} <= {*server}
    assert not {"edgespec.server.settings", "edgespec.server.slots", "edgespec.server.options"} & {*server}
    assert [name for name in done.stdout.split() if name not in server] == [
        f"edgespec.converters.{name}"
        for name in (
            "eagle",
            "exit_onnx",
            "head_file",
            "medusa",
            "onnx",
            "onnx_graph",
            "onnx_mlp",
            "onnx_nodes",
            "onnx_recurrence",
            "onnx_weights",
        )
    ]


def settings() -> dict[str, Any]:
    """pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def project() -> dict[str, Any]:
    found: dict[str, Any] = settings()["project"]
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", line)[0] for line in requirements}


def test_the_extras_of_code_and_project_agree() -> None:
    extras = project()["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert package.replace("_", "-") in names(extras[extra])
    everything = {each for extra in {*EXTRAS.values()} for each in names(extras[extra])}
    usual = [extra for extra in dict.fromkeys(EXTRAS.values()) if extra != "distill"]  # gigabytes
    assert extras["all"] == [f"edgespec[{','.join(usual)}]"]
    assert set(usual) == {"onnx", "openvino", "bench", "grammar", "serve"}
    assert "edgespec[all,docs]" in extras["dev"]
    assert not everything & names(project()["dependencies"])


def test_the_docs_name_every_extra() -> None:
    start = (ROOT / "docs" / "start.md").read_text("utf-8")
    for extra in project()["optional-dependencies"]:
        assert f"| `{extra}` |" in start, extra
