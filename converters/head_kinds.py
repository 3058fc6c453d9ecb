"""Which kind of head a checkpoint holds, by its config.json and the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from edgespec.converters import checkpoint, eagle3
from edgespec.converters.checkpoint import Json
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.errors import ConversionError

EAGLE, EAGLE3, MEDUSA = "eagle", "eagle3", "medusa"
#: The names of a Medusa head's tensors, after `MEDUSA_PREFIX` in a file with other tensors.
MEDUSA_NAME = re.compile(r"(\d{1,3})\.(\d{1,3})\.(linear\.weight|linear\.bias|weight)")
MEDUSA_PREFIX = "medusa_head."
MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "medusa_lm_head.bin")
#: Kinds that are not converted, by a part of the name of an architecture or of a tensor, and the way out.
_OTHERS = {
    "dflash": ("a DFlash draft", "take an EAGLE-3 head or a draft model"),
    "dspark": ("a DSpark draft", "take an EAGLE-3 head or a draft model"),
    "peagle": ("a P-EAGLE head", "take a plain EAGLE-3 head, or a PARD draft model"),
    "hydra": ("Hydra heads", "take Medusa or EAGLE heads of the same model"),
    "res_connection": ("Hydra heads", "take Medusa or EAGLE heads of the same model"),
    "mlpspeculator": ("an MLP speculator", "take Medusa or EAGLE heads of the same model"),
}
_KEYS = ("architectures", "speculators_model_type", "model_type")


def kind_of(source: Path) -> str:
    """`EAGLE`, `EAGLE3` or `MEDUSA`: the kind of the head in `source`, a folder or a file of weights.

    Raises:
        ConversionError: it is none, is of a kind that is not converted, or cannot be read.
    """
    config = None if source.is_file() else checkpoint.read_json(source / "config.json")
    if config is not None:
        _refuse_others(source, _described(config))
        if eagle3.is_head(config):
            return EAGLE3
    names = [*tensors(source)]
    _refuse_others(source, names)
    if config is not None and {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= {*names}:
        return EAGLE
    if any(MEDUSA_NAME.fullmatch(name.removeprefix(MEDUSA_PREFIX)) for name in names):
        return MEDUSA
    met = f"its first tensor is {names[0]}" if names else "no tensors"
    raise ConversionError(
        f"{source} holds no head of a known kind ({met}); expected the folder of an EAGLE head with its config.json, "
        "or Medusa heads as in medusa_lm_head.safetensors"
    )


def tensors(source: Path) -> Mapping[str, StoredTensor]:
    """The tensors in `source`, a folder or a file of weights. ConversionError if they cannot be read."""
    if source.is_file():
        return checkpoint.tensors(source)
    if not source.is_dir():
        raise ConversionError(f"{source} is neither a file nor a folder; give a head's file of weights, or its folder")
    found = next((source / name for name in MEDUSA_FILES if (source / name).is_file()), None)
    return checkpoint.folder_tensors(source) if found is None else checkpoint.tensors(found)


def _described(config: Json) -> list[str]:
    """What config.json says of the kind."""
    found = [config.get(key) for key in _KEYS]
    texts = [str(each) for value in found for each in (value if isinstance(value, list) else [value])]
    return texts + [key for key in config if key.endswith(("_config", "_arch"))]


def _refuse_others(source: Path, names: Iterable[str]) -> None:
    """Raise ConversionError for a kind that is not converted."""
    for name in names:
        for part, (kind, way_out) in _OTHERS.items():
            if part in name.lower().replace("mlp_speculator", "mlpspeculator"):
                raise ConversionError(f"{source} holds {kind}, which edgespec does not draft with; {way_out}")
