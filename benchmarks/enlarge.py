"""Make a small Llama checkpoint, or a head of EAGLE-1 or EAGLE-3, large without changing what it says.

Extra FFN neurons get a zero down projection; extra layers an attention output and a down projection of about 1e-7,
which add nothing that the residual stream's bits can hold: each costs what a real one costs. So a small trained pair
has real acceptance at a realistic price of a pass. All matrices are different, for OpenVINO stores equal ones once.

    python -m benchmarks.enlarge SOURCE OUTPUT [--layers 16] [--ffn 16384] [--context 2048]

A head has one layer, whatever --layers says.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from edgespec.converters.checkpoint import Checkpoint

_LAYER = "model.layers."
_LOUD, _SILENT = 0.02, 1e-7  # standard deviations of random weights
_KINDS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "BOOL": np.dtype("?"),
}
Array = npt.NDArray[Any]
Tensor = tuple[str, Array]


def enlarged(tensors: dict[str, Array], layers: int, ffn: int) -> Iterator[Tensor]:
    """The tensors (bf16 as uint16) of the larger checkpoint. Padding is random: zeros might be cheaper to compute."""
    rng = np.random.default_rng(0)
    for name, tensor in tensors.items():
        yield name, _widened(name, tensor, ffn, rng)
    numbers = [int(name.split(".")[2]) for name in tensors if name.startswith(_LAYER)]
    if not numbers:  # a head
        return
    own = 1 + max(numbers)
    first = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{_LAYER}0.")}
    for layer in range(own, layers):
        for name, tensor in first.items():
            wide = _widened(name, tensor, ffn, rng)
            silent = name.endswith(("o_proj.weight", "down_proj.weight"))
            other = wide if wide.ndim < 2 else _noise(wide.shape, wide.dtype, rng, _SILENT if silent else _LOUD)
            yield name.replace(f"{_LAYER}0.", f"{_LAYER}{layer}."), other


def _widened(name: str, tensor: Array, ffn: int, rng: np.random.Generator) -> Array:
    if name.endswith(("gate_proj.weight", "up_proj.weight")):
        return np.concatenate([tensor, _noise((ffn - len(tensor), tensor.shape[1]), tensor.dtype, rng)])
    if name.endswith("down_proj.weight"):
        return np.concatenate([tensor, np.zeros((len(tensor), ffn - tensor.shape[1]), tensor.dtype)], axis=1)
    return tensor


def _noise(shape: tuple[int, ...], kind: np.dtype[Any], rng: np.random.Generator, loud: float = _LOUD) -> Array:
    values: Array = rng.standard_normal(shape, dtype=np.float32) * np.float32(loud)
    if kind == _KINDS["BF16"]:
        values = values.view(np.uint32) >> 16
    return values.astype(kind)


def read_tensors(folder: Path) -> dict[str, Array]:
    """All tensors of a checkpoint as they are stored, bf16 as uint16."""
    return {
        name: np.fromfile(each.path, _KINDS[each.dtype], prod(each.shape), offset=each.offset).reshape(each.shape)
        for name, each in Checkpoint.open(folder).tensors.items()
    }


def write_safetensors(path: Path, tensors: list[Tensor]) -> None:
    """Write tensors (bf16 as uint16) in the safetensors format: length, JSON header, bytes."""
    names = {kind: name for name, kind in _KINDS.items()}
    header: dict[str, object] = {}
    at = 0
    for name, tensor in tensors:
        header[name] = {"dtype": names[tensor.dtype], "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in tensors:
            file.write(np.ascontiguousarray(tensor).data)


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--layers", default=16, show_default=True)
@click.option("--ffn", default=16384, show_default=True)
@click.option("--context", default=2048, show_default=True, help="Positions")
def main(source: Path, output: Path, layers: int, ffn: int, context: int) -> None:
    """Enlarge the checkpoint in SOURCE into the folder OUTPUT."""
    output.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix in (".json", ".jinja", ".model"):
            shutil.copy(path, output)
    config = json.loads((source / "config.json").read_text())
    tensors = list(enlarged(read_tensors(source), layers, ffn))
    if any(name.startswith(_LAYER) for name, _ in tensors):
        config["num_hidden_layers"] = layers
    config |= {"intermediate_size": ffn, "max_position_embeddings": context}
    (output / "config.json").write_text(json.dumps(config, indent=2))
    write_safetensors(output / "model.safetensors", tensors)
    click.echo(f"{output}: {sum(tensor.size for _, tensor in tensors) / 1e6:.0f}M parameters")


if __name__ == "__main__":
    main()
