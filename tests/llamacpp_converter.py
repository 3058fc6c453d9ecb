"""llama.cpp's own converter at work on the same checkpoints, and in what its files differ from ours without a reason.

    convert(python, folder, [(source, output, pre), ...])
    unexplained(ours, theirs)

Nothing is known to it of tiny tokenizers: the pre-tokenizer, which it would look up by a hash, is given to it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Fields = Mapping[str, Any]
Explained = Mapping[str, Callable[[Any, Any, Fields], bool]]

_DRIVER = """
import json, sys
folder, jobs = sys.argv[1:]
sys.path.insert(0, folder)
import convert_hf_to_gguf
from conversion import TextModel
for source, output, pre in json.loads(jobs):
    TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    sys.argv = ["convert_hf_to_gguf.py", source, "--outfile", output, "--outtype", "f32"]
    convert_hf_to_gguf.main()
"""
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

#: Keys, without the architecture, that only our file has: what llama.cpp would take for itself. (key, ours, all ours)
_OURS: Explained = {
    "attention.key_length": lambda value, _, own: value == own["embedding_length"] // own["attention.head_count"],
    "attention.value_length": lambda value, _, own: value == own["attention.key_length"],
    "attention.head_count_kv": lambda value, _, own: value == own["attention.head_count"],
    "rope.dimension_count": lambda value, _, own: value == own["attention.key_length"],
    "rope.freq_base": lambda value, _, own: value == 10000,
    "rope.freq_base_swa": lambda value, _, own: value == own["rope.freq_base"],
    "vocab_size": lambda value, _, own: value == len(own["tokenizer.ggml.tokens"]),
    # Its graphs have a pattern of their own where the file names none; ours is what config.json says.
    "attention.sliding_window_pattern": lambda value, _, own: True in value and False in value,
    # Its default goes by the pre-tokenizer's name; ours is what the tokenizer does.
    "tokenizer.ggml.add_bos_token": lambda *_: True,
    "tokenizer.ggml.add_eos_token": lambda value, *_: value is False,
    "tokenizer.ggml.add_space_prefix": lambda value, *_: value is True,
    "general.quantized_by": lambda *_: True,
    # llama.cpp has one for this kind of tokenizer, whatever a file says.
    "tokenizer.ggml.pre": lambda value, _, own: value == own["tokenizer.ggml.model"],
}
#: Keys that only its file has, which do nothing.
_THEIRS: Explained = {
    "attention.sliding_window": lambda _, value, own: value == 0,
    "rope.scaling.original_context_length": lambda _, value, own: value == own["context_length"],
    "attention.layer_norm_rms_epsilon": lambda _, value, own: "attention.layer_norm_epsilon" in own,
    # Granite 4: experts that there are none of, rotations where attention knows no positions, states without a layer.
    **dict.fromkeys(
        ("expert_count", "expert_used_count", "expert_shared_feed_forward_length"),
        lambda _, value, own: "expert_count" not in own,
    ),
    "rope.freq_base": lambda _, value, own: own.get("rope.scaling.finetuned") is False,
    "rope.scaling.finetuned": lambda _, value, own: value is True,
    **dict.fromkeys(
        (f"ssm.{size}" for size in ("conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank")),
        lambda _, value, own: own["general.architecture"] == "granite",
    ),
}


def _types(ours: Sequence[int], theirs: Sequence[int], own: Fields) -> bool:
    """It goes by a token's looks, ours by its flag; and an unknown token that is special is control to it."""
    texts = own["tokenizer.ggml.tokens"]
    wrong = [(text, a, b) for text, a, b in zip(texts, ours, theirs, strict=True) if a != b]
    return all(
        b == _CONTROL and (a == _UNKNOWN or (a == _USER_DEFINED and text.startswith("<|"))) for text, a, b in wrong
    )


def _scores(ours: Sequence[float], theirs: Sequence[float], own: Fields) -> bool:
    """No merge makes a token that is not a normal one: its score is never read."""
    types = own["tokenizer.ggml.token_type"]
    return all(a == b or kind != _NORMAL for a, b, kind in zip(ours, theirs, types, strict=True))


#: Keys of both with other values.
_BOTH: Explained = {
    "tokenizer.ggml.token_type": _types,
    "tokenizer.ggml.scores": _scores,
    # A window or divisors for long contexts that llama.cpp's graph does not honour: ours ends where it is exact.
    "context_length": lambda ours, theirs, own: ours < theirs,
    "general.name": lambda ours, theirs, own: ours.lower() == theirs.lower(),
    "attention.head_count_kv": lambda ours, theirs, own: set(theirs) == {ours},  # a list of the same
}


def convert(python: str, folder: str, jobs: Sequence[tuple[Path, Path, str]]) -> None:
    """Run the converter of llama.cpp's source in `folder` on jobs of (checkpoint, GGUF to write, pre-tokenizer)."""
    listed = json.dumps([[str(source), str(output), pre] for source, output, pre in jobs])
    command = [python, "-c", _DRIVER, folder, listed]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def unexplained(ours: Path, theirs: Path) -> list[str]:
    """The tensors and keys that differ, but for what is explained above."""
    readers = gguf.GGUFReader(ours), gguf.GGUFReader(theirs)
    tensors = [{t.name: (t.tensor_type.name, t.shape.tolist(), t.data) for t in r.tensors} for r in readers]
    found = list(tensors[0].keys() ^ tensors[1].keys())
    for name in tensors[0].keys() & tensors[1].keys():
        (*kind, values), (*their_kind, their_values) = tensors[0][name], tensors[1][name]
        # torch's exponential is not rounded as NumPy's is.
        close = name.endswith(".ssm_a") and np.allclose(values, their_values, rtol=2e-7, atol=0)
        if kind != their_kind or not (close or np.array_equal(values, their_values)):
            found.append(name)
    fields, types = _fields(readers[0]), _types_of(readers[0])
    their_fields, their_types = _fields(readers[1]), _types_of(readers[1])
    for key in fields.keys() | their_fields.keys():
        table = _OURS if key not in their_fields else _THEIRS if key not in fields else _BOTH
        mine, other = fields.get(key), their_fields.get(key)
        same = key in fields and key in their_fields and mine == other and types[key] == their_types[key]
        if not same and not (key in table and table[key](mine, other, fields)):
            found.append(key)
    return sorted(found)


def _fields(reader: Any) -> dict[str, Any]:
    """The metadata, without the reader's own and the architecture's name in keys."""
    kind = reader.fields["general.architecture"].contents()
    named = {key.removeprefix(f"{kind}."): field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    return {key: field.contents() for key, field in named.items()}


def _types_of(reader: Any) -> dict[str, list[str]]:
    kind = reader.fields["general.architecture"].contents()
    return {key.removeprefix(f"{kind}."): [t.name for t in field.types] for key, field in reader.fields.items()}
