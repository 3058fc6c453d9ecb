"""OpenVINO GenAI on folders of OpenVINO IR: plainly, with a draft model, and with prompt look-up; on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .child import Child, PeerEngine, python_with
from .setup import Absent, Setup

PYTHON = "EDGESPEC_OPENVINO_GENAI_PYTHON"  #: names a Python that has it
_DRAFT = "openvino-genai:draft"
_LOOKUP = "openvino-genai:lookup"
_FLOAT32 = "-f32"  #: ends the names of configurations with this type of computation
#: Titles and the options of an answer. The threshold and the look-up's options are those of its samples.
_OPTIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "openvino-genai": ("OpenVINO GenAI, plain", {}),
    **{
        f"{_DRAFT}-{tokens}": (f"OpenVINO GenAI, draft model, {tokens} tokens", {"num_assistant_tokens": tokens})
        for tokens in (3, 5, 8)
    },
    f"{_DRAFT}-confidence": (
        "OpenVINO GenAI, draft model, confidence 0.4",
        {"assistant_confidence_threshold": 0.4},
    ),
    _LOOKUP: ("OpenVINO GenAI, prompt look-up of 5", {"num_assistant_tokens": 5, "max_ngram_size": 3}),
}
#: On processors with bfloat16 its default type of computation is that, in which passes took 1.5 times as long as in
#: float32 where this was measured.
TITLES: Mapping[str, str] = {
    **{name: title for name, (title, _) in _OPTIONS.items()},
    **{f"{name}{_FLOAT32}": f"{title}, in float32" for name, (title, _) in _OPTIONS.items()},
}
#: Its penalties count all tokens, ours the newest.
_LACKS = ("logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty")
_FILES = ("openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml")


def start(name: str, setup: Setup) -> Child:
    """One of `TITLES`.

    Raises:
        ContenderFailed: it is missing, or fails to start.
    """
    options = _OPTIONS[name.removesuffix(_FLOAT32)][1]
    python = python_with("openvino_genai", PYTHON, setup)
    drafts = name.startswith(_DRAFT)
    given = {
        "target": _folder(name, setup.openvino_genai or setup.target),
        "draft": _folder(name, setup.openvino_genai_draft or setup.draft, "-draft") if drafts else None,
        "lookup": name.startswith(_LOOKUP),
        "options": options,
        "properties": {"INFERENCE_PRECISION_HINT": "f32"} if name.endswith(_FLOAT32) else {},
    }
    return Child(PeerEngine(name, TITLES[name], "openvino_genai", python, given, _LACKS), setup)


def _folder(name: str, folder: Path | None, suffix: str = "") -> str:
    wanted = f"give a folder of OpenVINO IR, as optimum-cli exports it, with --openvino-genai{suffix}"
    if folder is None:
        raise Absent(f"{name} needs a draft model; {wanted}")
    for file in _FILES:
        if not (folder / file).is_file():
            raise Absent(f"{name}: {folder} has no {file}; {wanted}")
    return str(folder.resolve())
