"""`edgespec doctor`: what works, and what is missing, broken or in the way, without a traceback."""

from __future__ import annotations

import json
import platform
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

from edgespec.backends import ort_package
from edgespec.cli import app
from edgespec.terminal import doctor, engine_probe

from .commandline import run

WORKS = {"version": "1.0", "devices": ["a CPU"]}
SPEED = {"tokens": 40, "plain_tokens_per_second": 100.0, "speculative_tokens_per_second": 120.0}


@pytest.fixture(autouse=True)
def none_asked(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    """Engines that all work; a test replaces some."""
    monkeypatch.setenv("EDGESPEC_CONFIG", "")
    monkeypatch.setattr(doctor, "probe", lambda name: dict(SPEED if name == "speed" else WORKS))
    monkeypatch.setattr(doctor, "_is_installed", lambda _package: True)


def answers(monkeypatch: pytest.MonkeyPatch, **others: dict[str, Any]) -> None:
    monkeypatch.setattr(doctor, "probe", lambda name: others.get(name, SPEED if name == "speed" else WORKS))


def test_all_is_well() -> None:
    found = doctor.examine(app)
    assert not found.problems
    assert not found.advice
    text = "\n".join(doctor.lines(found))
    assert "OpenVINO      1.0: a CPU" in text
    assert "100.0 tokens/s plainly, 120.0 with drafts, to rewrite a text of 40 tokens" in text
    assert text.endswith("all that is needed works")


def test_a_missing_engine_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_is_installed", lambda package: package not in ("llama_cpp", "openvino", "starlette"))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = doctor.examine(app)
    assert not found.problems, "models in ONNX format run without llama.cpp"
    assert (
        'llama.cpp is not installed: pip install --force-reinstall "llama-cpp-python<0.4" --no-deps '
        "(it opens GGUF files, such as the demo pair's)"
    ) in found.advice
    assert not found.speed, "nothing could compute it"
    monkeypatch.setattr(doctor, "packages_distributions", dict)
    advice = doctor.examine(app).advice
    assert any('llama.cpp is not installed: pip install "llama-cpp-python<0.4" (' in each for each in advice)
    assert any('OpenVINO is not installed: pip install "openvino<2027"' in each for each in advice)
    assert "the extra serve is not installed: pip install 'edgespec[serve]'" in found.advice
    assert [*doctor.lines(found)][-1] == "all that is needed works"
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert not any("OpenVINO" in each for each in doctor.examine(app).advice)


def test_an_error_that_names_the_way_out_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways were named, of which one did not help: a package that llama-cpp-python needs was missing."""
    error = "llama-cpp-python cannot be loaded (No module named 'diskcache'); install it with `pip install x`"
    answers(monkeypatch, llama={"version": "1.0", "error": error})
    assert f"llama.cpp does not work: {error}" in doctor.examine(app).problems


def test_the_lines_that_install_an_engine_keep_to_the_bounds_of_the_package() -> None:
    wanted = [each.replace(" ", "") for each in requires("edgespec") or ()]
    for line in doctor._INSTALL.values():
        name, bound = line.split('"')[1].split("<")
        assert any(each.startswith(name) and f"<{bound}" in each for each in wanted), line


def test_without_any_engine_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = ("llama_cpp", "onnxruntime", "openvino")
    monkeypatch.setattr(doctor, "_is_installed", lambda package: package not in engines)
    found = doctor.examine(app)
    assert found.problems == ['no engine is installed: pip install "llama-cpp-python<0.4"']
    assert [*doctor.lines(found)][-1] == "there are problems"


def test_an_engine_that_ended_its_process_counts_as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is known of it then."""
    crash = {"error": "it ended the process with status -11"}
    answers(monkeypatch, llama=crash, onnx=crash, openvino=crash)
    found = doctor.examine(app)
    assert len(found.problems) == 3
    assert not any("no engine is installed" in each for each in found.problems)


def test_a_broken_engine_and_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, onnx={"version": "1.0", "error": "it died"}, speed={"error": "no file"})
    problems = doctor.examine(app).problems
    assert 'ONNX Runtime does not work: it died; pip install --force-reinstall "onnxruntime<2"' in problems
    assert "the demo pair does not answer: no file; reinstall edgespec" in problems
    answers(monkeypatch, speed={"error": "it did not answer", "late": True})
    found = doctor.examine(app)
    assert not found.problems
    assert "too slow to measure" in found.advice[0]
    assert not any("tokens/s" in line for line in doctor.lines(found))


def test_a_gpu_that_llamacpp_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, llama={**WORKS, "gpu": False}, onnx={**WORKS, "nvidia": True})
    assert any("GGML_CUDA=on" in each for each in doctor.examine(app).advice)
    answers(monkeypatch, llama={**WORKS, "gpu": True}, onnx={**WORKS, "nvidia": True})
    assert not doctor.examine(app).advice


def test_folders_and_defaults(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_cache / "prices").mkdir(parents=True)
    (own_cache / "prices" / "a.json").write_bytes(b"x" * 1000)
    (own_cache / "link").symlink_to(own_cache / "prices" / "a.json")
    assert doctor.examine(app).folders["cache"]["size"] == 1000
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("EDGESPEC_CONFIG", str(tmp_path / "none.toml"))
    problems = doctor.examine(app).problems
    assert any("cannot be written" in each and "EDGESPEC_CACHE" in each for each in problems)
    assert any("EDGESPEC_CONFIG names" in each for each in problems)


def test_an_engine_that_ends_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen by the command itself: a package that aborts, one that raises, and a malformed file of defaults."""
    (tmp_path / "openvino.py").write_text("import os\nos.abort()\n")
    (tmp_path / "onnxruntime.py").write_text("raise RuntimeError('bad build')\n")
    (tmp_path / "config.toml").write_text("[")
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("raise OSError('libllama.so: not found')\n")
    env = {"PYTHONPATH": str(tmp_path), "EDGESPEC_CONFIG": str(tmp_path / "config.toml")}
    done = run("doctor", "--json", env=env)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert not found["ok"]
    assert "ended the process" in found["engines"]["openvino"]["error"]
    assert "bad build" in found["engines"]["onnx"]["error"]
    assert "libllama.so" in found["engines"]["llama"]["error"]
    assert any("is not TOML" in each for each in found["problems"])


@pytest.mark.parametrize("name", ["llama", "onnx"])
def test_what_is_installed_here_is_described(name: str) -> None:
    found = engine_probe.probe(name)
    assert "error" not in found
    assert found["version"]
    assert found["devices"]


@pytest.mark.parametrize(("nvidia", "wanted"), [(False, ["cpu"]), (True, ["cpu", "cuda", "tensorrt"])])
def test_providers_for_a_gpu_that_is_not_there_are_left_out(
    monkeypatch: pytest.MonkeyPatch, nvidia: bool, wanted: list[str]
) -> None:
    monkeypatch.setattr(ort_package, "has_nvidia", lambda: nvidia)
    monkeypatch.setattr(ort_package, "providers", lambda: dict.fromkeys(("tensorrt", "cuda", "cpu"), ""))
    assert engine_probe._onnx()["devices"] == wanted


@pytest.mark.slow
def test_the_speed_of_the_demo_pair() -> None:
    found = engine_probe.probe("speed")
    assert found["tokens"] > 30
    assert found["plain_tokens_per_second"] > 0
    assert found["other_programs"] in (False, True)


def test_a_speed_beside_other_programs_is_no_comparison() -> None:
    assert "no comparison" not in doctor._of_speed({**SPEED, "other_programs": False})
    assert doctor._of_speed({**SPEED, "other_programs": True}).endswith("running, so it is no comparison")
