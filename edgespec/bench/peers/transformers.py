"""Hugging Face transformers on the source checkpoint: plainly, with an assistant model, and with prompt look-up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .child import Child, PeerEngine, python_with
from .setup import Absent, Setup

PYTHON = "EDGESPEC_TRANSFORMERS_PYTHON"  #: names a Python that has it
_ASSISTED, _LOOKUP = "transformers:assisted", "transformers:lookup"
TITLES: Mapping[str, str] = {
    "transformers": "transformers, plain",
    _ASSISTED: "transformers, assisted generation",
    _LOOKUP: "transformers, prompt look-up of 10",
}
_TOKENS = 10  # to look up; there is no default
_LACKS = ("logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty")


def start(name: str, setup: Setup) -> Child:
    """One of `TITLES`.

    Raises:
        ContenderFailed: it is missing, or fails to start.
    """
    python = python_with("transformers", PYTHON, setup)
    given = {
        "target": _checkpoint(name, setup.source, "target"),
        "assistant": _checkpoint(name, setup.draft_source, "draft") if name == _ASSISTED else None,
        "lookup": _TOKENS if name == _LOOKUP else 0,
    }
    return Child(PeerEngine(name, TITLES[name], "transformers", python, given, _LACKS), setup)


def _checkpoint(name: str, folder: Path | None, role: str) -> str:
    if folder is None:
        raise Absent(f"{name} runs checkpoints, and that of the {role} is not known; give its folder")
    if not (folder / "config.json").is_file():
        raise Absent(f"{name}: {folder} is no checkpoint, it has no config.json; give the {role}'s folder")
    return str(folder.resolve())
