"""What is shipped, and what it costs to import."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata, resources
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from edgespec.backends.llama_remote_process import RemoteProcess
from edgespec.errors import EngineError

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as built from the source distribution, which must therefore hold all that the wheel needs."""
    out = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_the_wheel_ships_one_package(wheel: zipfile.ZipFile) -> None:
    """Top-level `cli`, `converters` or `models` would squat on three common names in every app that embeds us."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"edgespec", f"edgespec-{metadata.version('edgespec')}.dist-info"}


def test_the_wheel_is_complete(wheel: zipfile.ZipFile) -> None:
    shipped = set(wheel.namelist())
    folders = {"edgespec": "edgespec", "converters": "edgespec/converters", "models": "edgespec/models"}
    expected = {"edgespec/cli.py", "edgespec/py.typed", "edgespec/check_prompts.jsonl"}
    expected |= {f"edgespec/models/demo/{name}" for name in ("target.gguf", "draft.gguf", "CARD.md", "rewrite.txt")}
    expected |= {
        "edgespec/models/registry.toml",
        *(f"edgespec/bench/report/page.{kind}" for kind in ("css", "html.j2")),
    }
    for folder, package in folders.items():
        for path in (ROOT / folder).rglob("*.py"):
            expected.add(f"{package}/{path.relative_to(ROOT / folder).as_posix()}")
    assert expected <= shipped, expected - shipped
    assert any(name.endswith("licenses/LICENSE") for name in shipped)


def test_the_demo_pair_is_small(wheel: zipfile.ZipFile) -> None:
    assert sum(info.file_size for info in wheel.infolist() if "/demo/" in info.filename) <= 60_000_000


def test_an_install_finds_all_four_names() -> None:
    """Also an editable one, whose habit of trying `cli` and then `cli.py` is no promise of setuptools."""
    code = "import edgespec, edgespec.cli, edgespec.converters, edgespec.models; print(edgespec.cli.__file__)"
    assert run(code).strip().endswith("cli.py")


@pytest.mark.parametrize("folder", ["a clone", "anywhere"])
def test_python_finds_all_four_names_in_a_clone_too(folder: str, tmp_path: Path) -> None:
    """Started in a clone it finds the clone's `edgespec` first, which has no `models` in it; the finder of an
    editable install is taken away, for it hid that."""
    code = "import edgespec.cli, edgespec.converters, edgespec.models; from edgespec import cli, converters, models; "
    code += "print(cli.__file__, converters.__file__, models.__file__, models.demo().target, sep='\\n')"
    within = folder == "a clone"
    if within and not (ROOT / "cli.py").exists():
        pytest.skip("these tests lie beside an install")
    finder = "import sys; sys.meta_path = [each for each in sys.meta_path if 'editable' not in repr(each).lower()]; "
    done = subprocess.run(
        [sys.executable, "-c", finder * within + code],
        cwd=ROOT if within else tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [Path(line) for line in done.stdout.splitlines()]
    assert all(path.is_file() for path in found)
    assert not within or all(path.is_relative_to(ROOT) for path in found)


def test_python_dash_m_is_the_command(tmp_path: Path) -> None:
    for folder in (tmp_path, ROOT):
        done = subprocess.run(
            [sys.executable, "-m", "edgespec", "--version"], cwd=folder, capture_output=True, text=True, check=True
        )
        assert metadata.version("edgespec") in done.stdout


def test_data_files_are_found_where_the_package_is() -> None:
    assert (resources.files("edgespec") / "check_prompts.jsonl").is_file()
    assert (resources.files("edgespec.models") / "demo" / "target.gguf").is_file()


HEAVY = {
    "llama_cpp",
    "onnxruntime",
    "onnx",
    "gguf",
    "tokenizers",
    "sentencepiece",
    "huggingface_hub",
    "matplotlib",
    "prompt_toolkit",
    "rich",
}


def test_import_loads_no_engine() -> None:
    assert not HEAVY & set(run("import edgespec, sys; print(*sys.modules)").split())


def test_help_loads_nothing_heavy() -> None:
    """`edgespec --help` answers in a blink only while nothing heavy is imported for it."""
    code = "import sys, edgespec.cli as c; c.app.main(['--help'], standalone_mode=False); print(*sys.modules)"
    assert not HEAVY & set(run(code).split())


def test_readme_and_ci_run_the_same_test_command() -> None:
    command = next(
        line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.endswith(".venv/bin/pytest")
    )
    assert command in (ROOT / "README.md").read_text()


def test_the_requirements_without_a_compiler_are_those_of_the_package() -> None:
    """But for llama.cpp, with the extras of OpenVINO's engine, and without the GPU code of ONNX Runtime."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {*project["dependencies"], *extras["onnx"], *extras["openvino"]}
    lines = (ROOT / "docs" / "no-compiler.txt").read_text("utf-8").splitlines()
    listed = {line for line in lines if not line.startswith("#")}
    (left_out,) = (each for each in wanted - listed if not each.startswith("onnxruntime"))
    assert left_out.startswith("llama-cpp-python")
    assert [*listed - wanted] == ["onnxruntime>=1.23,<2"]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout


def test_pyinstaller_finds_the_hook() -> None:
    (entry,) = metadata.distribution("edgespec").entry_points.select(group="pyinstaller40")
    (folder,) = entry.load()()
    assert Path(folder, "hook-edgespec.py").is_file()


def test_a_frozen_app_does_not_start_itself_as_a_process_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(EngineError, match=r"this frozen app has not; let the app speak to `edgespec serve --rpc"):
        RemoteProcess()
