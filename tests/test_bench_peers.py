"""Peers of the benchmark that cannot take part say why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgespec.bench.peers import Absent, Setup, peer
from edgespec.errors import OptionError

from .peers import intermediate


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("llama-server", "llama-server is not on the PATH"),
        ("llama-cpp-python", "runs GGUF files"),
        ("transformers", "that of the target is not known"),
        ("transformers:assisted", "that of the target is not known"),
        ("genai", "onnxruntime_genai is not installed; install it, or let EDGESPEC_GENAI_PYTHON name"),
        ("openvino-genai", "install it, or let EDGESPEC_OPENVINO_GENAI_PYTHON name"),
    ],
)
def test_absent_peers_say_what_they_want(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("EDGESPEC_LLAMA_SERVER", "EDGESPEC_GENAI_PYTHON", "EDGESPEC_OPENVINO_GENAI_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("EDGESPEC_TRANSFORMERS_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Absent, match=reason):
        peer(name, Setup(tmp_path))


def test_folders_of_other_formats_are_checked(tmp_path: Path) -> None:
    python = Path(sys.executable)
    with pytest.raises(Absent, match=r"has no config\.json"):
        peer("transformers", Setup(tmp_path, source=tmp_path, python=python))
    with pytest.raises(Absent, match=r"has no genai_config\.json"):
        peer("genai", Setup(tmp_path, genai=tmp_path, python=python))
    with pytest.raises(Absent, match=r"has no openvino_model\.xml; give a folder .* with --openvino-genai$"):
        peer("openvino-genai", Setup(tmp_path, python=python))
    target = intermediate(tmp_path / "target")
    with pytest.raises(Absent, match=r"needs a draft model; give a folder .* with --openvino-genai-draft$"):
        peer("openvino-genai:draft-3", Setup(tmp_path, openvino_genai=target, python=python))
    (target / "openvino_tokenizer.xml").unlink()
    with pytest.raises(Absent, match=r"target has no openvino_tokenizer\.xml; give a folder"):
        peer("openvino-genai", Setup(target, python=python))


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(OptionError, match="no peer 'vllm'; there are llama-server, llama-server:draft-3"):
        peer("vllm", Setup(Path("x")))
