"""The command that starts another server with the same target and the same kind of draft.

Flags as of vLLM 0.16 to 0.27, SGLang's ServerArgs and llama.cpp's llama-server of late 2026. vLLM and SGLang read
checkpoints; llama-server reads the GGUF files themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.backends import parallel, state_head_kind
from edgespec.backends.gguf_header import Header, header
from edgespec.backends.head_header import LAYERS_KEPT, drafter_of, has_head, is_alone
from edgespec.backends.model_files import find_model
from edgespec.errors import OptionError

USUAL_K = 4  #: tokens of a draft where nothing was measured
NGRAM = "n-gram"


@dataclass(frozen=True, slots=True)
class Exported:
    """What is to be served.

    Args:
        target: the file or folder of the target.
        draft: that of its draft; None without one.
        method: "model", "eagle3", "eagle", "mtp", "medusa", "pard", or "n-gram" without a draft.
        target_checkpoint: the checkpoint that the target was made of, a folder or org/name; None where not known.
        draft_checkpoint: likewise.
        k: tokens of a draft.
    """

    target: Path
    draft: Path | None
    method: str
    target_checkpoint: str | None = None
    draft_checkpoint: str | None = None
    k: int = USUAL_K


def method_of(target: Path, drafts: Sequence[Path]) -> str:
    """How the drafts of a pair draft; see `Exported`.

    Raises:
        OptionError: a method that no other server has: several drafts, layers of the target, another vocabulary.
        ModelFileError: a file cannot be read.
    """
    if len(drafts) > 1:
        raise OptionError(f"{len(drafts)} drafts do not carry over: other servers take one; give it with --draft")
    own = _header(target)
    if not drafts:
        return "mtp" if own is not None and has_head(own) else NGRAM
    if kind := state_head_kind(drafts[0]):
        return kind
    other = _header(drafts[0])
    if other is None:
        return "model"
    if is_alone(other):
        return drafter_of(other)
    if LAYERS_KEPT in other.fields:
        raise OptionError(f"{drafts[0].name} is made of layers of its target, which does not carry over; --draft none")
    if parallel.GUESSES in other.fields:
        return "pard"
    if own is not None and _differ(own, other):
        raise OptionError(
            f"{drafts[0].name} has another vocabulary than {target.name} and drafts through text, which does not carry "
            "over; give another with --draft"
        )
    return "model"


def command(server: str, exported: Exported) -> list[str]:
    """The command that starts `server`, by words; `shlex.join` quotes them.

    Raises:
        OptionError: no such server, or it lacks something, which the message names.
    """
    if server not in SERVERS:
        raise OptionError(f"no server {server!r:.40} to export to; there are {', '.join(SERVERS)}")
    return SERVERS[server](exported)


def _vllm(exported: Exported) -> list[str]:
    k = exported.k
    config: dict[str, object] = {"num_speculative_tokens": k}
    match exported.method:
        case "n-gram":
            config |= {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
        case "mtp":
            _require_in_checkpoint(exported)
            config |= {"method": "mtp"}
        case "model" | "pard":
            config |= {"method": "draft_model", "model": _draft_checkpoint(exported)}
            if exported.method == "pard":
                config |= {"parallel_drafting": True}
        case method:
            config |= {"method": method, "model": _draft_checkpoint(exported)}
    return ["vllm", "serve", _target_checkpoint(exported), "--speculative-config", json.dumps(config)]


def _sglang(exported: Exported) -> list[str]:
    names = {"model": "STANDALONE", "eagle3": "EAGLE3", "eagle": "EAGLE", "mtp": "NEXTN", NGRAM: "NGRAM"}
    name = _carried("SGLang", names, exported.method)
    words = ["python", "-m", "sglang.launch_server", "--model-path", _target_checkpoint(exported)]
    words += ["--speculative-algorithm", name]
    if exported.method == "mtp":
        _require_in_checkpoint(exported)
    elif exported.method != NGRAM:
        words += ["--speculative-draft-model-path", _draft_checkpoint(exported)]
    if exported.method == NGRAM:
        return [*words, "--speculative-num-draft-tokens", str(exported.k)]
    # A chain: one candidate a step. The count includes the token that is verified without a guess.
    steps = ["--speculative-num-steps", str(exported.k), "--speculative-eagle-topk", "1"]
    return [*words, *steps, "--speculative-num-draft-tokens", str(exported.k + 1)]


def _llama_server(exported: Exported) -> list[str]:
    names = {"model": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp", NGRAM: "ngram-simple"}
    name = _carried("llama-server", names, exported.method)
    words = ["llama-server", "-m", str(_gguf(exported.target))]
    if exported.draft is not None:
        words += ["-md", str(_gguf(exported.draft))]
    words += ["--spec-type", name]
    return words if name == "ngram-simple" else [*words, "--spec-draft-n-max", str(exported.k)]


#: The servers by name.
SERVERS: dict[str, Callable[[Exported], list[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama-server": _llama_server,
}


def _carried(server: str, names: dict[str, str], method: str) -> str:
    if method not in names:
        raise OptionError(f"{server} has no drafts of the kind {method}; it has {', '.join(names)}: --draft gives one")
    return names[method]


def _target_checkpoint(exported: Exported) -> str:
    if exported.target_checkpoint is None:
        raise OptionError(
            f"{exported.target} says no checkpoint that it was made of, which this server reads; give it with "
            "--checkpoint ORG/NAME"
        )
    return exported.target_checkpoint


def _draft_checkpoint(exported: Exported) -> str:
    if exported.draft_checkpoint is None:
        raise OptionError(
            f"{exported.draft} says no checkpoint that it was made of, which this server reads; give it with "
            "--draft-checkpoint ORG/NAME"
        )
    return exported.draft_checkpoint


def _require_in_checkpoint(exported: Exported) -> None:
    """OptionError where the head for multi-token prediction is in a file of its own: checkpoints hold theirs."""
    if exported.draft is not None and exported.draft_checkpoint is not None:
        raise OptionError(
            "a head for multi-token prediction is taken from the target's checkpoint; leave the draft's out"
        )


def _gguf(path: Path) -> Path:
    engine, file = find_model(path, "auto")
    if engine != "llama":
        raise OptionError(f"llama-server reads GGUF files, and {path} is none; convert its checkpoint with --to gguf")
    return file


def _header(path: Path) -> Header | None:
    """The header of a GGUF file; None for other models."""
    engine, file = find_model(path, "auto")
    return header(file) if engine == "llama" else None


def _differ(target: Header, draft: Header) -> bool:
    shared = min(target.vocabulary.size, draft.vocabulary.size)
    return any(target.vocabulary.tokens[token] != draft.vocabulary.tokens[token] for token in range(shared))
