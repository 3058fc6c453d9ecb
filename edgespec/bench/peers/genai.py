"""ONNX Runtime GenAI on folders of its own: plainly, with a draft model, and with n-gram look-up.

A version from before its speculation fails, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .child import Child, PeerEngine, python_with
from .setup import Absent, Setup

PYTHON = "EDGESPEC_GENAI_PYTHON"  #: names a Python that has it
_DRAFT = "genai:draft"
#: Options besides the defaults, of which one is to draft 4 tokens.
_SPECULATIVE = {"genai:ngram": {"ngram_size": 4}}
TITLES: Mapping[str, str] = {
    "genai": "ONNX Runtime GenAI, plain",
    _DRAFT: "ONNX Runtime GenAI, draft model, 4 tokens",
    "genai:ngram": "ONNX Runtime GenAI, 4-grams, 4 tokens",
}
_LACKS = ("logit_bias", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def start(name: str, setup: Setup) -> Child:
    """One of `TITLES`.

    Raises:
        ContenderFailed: it is missing, or fails to start.
    """
    python = python_with("onnxruntime_genai", PYTHON, setup)
    given = {
        "target": _folder(name, setup.genai, "target"),
        "draft": _folder(name, setup.genai_draft, "draft") if name == _DRAFT else None,
        "speculative": _SPECULATIVE.get(name, {}),
    }
    return Child(PeerEngine(name, TITLES[name], "genai", python, given, _LACKS), setup)


def _folder(name: str, folder: Path | None, role: str) -> str:
    if folder is None:
        raise Absent(f"{name} runs folders of its own, and that of the {role} is not known; give it")
    if not (folder / "genai_config.json").is_file():
        raise Absent(f"{name}: {folder} has no genai_config.json; give the {role}'s as its model builder made it")
    return str(folder.resolve())
