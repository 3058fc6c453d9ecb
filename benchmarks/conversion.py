"""What a conversion costs: a random checkpoint of the shape of Llama 3.2 1B or Llama 3 8B, converted block by block.

The conversion runs in a process of its own, whose CPU time and peak memory are all that is counted.

    python -m benchmarks.conversion [--shape 8b] [--to onnx] [--quant int4] [--layers 16] [--keep FOLDER]

With llama.cpp's source, a Python that has what its converter needs, and its quantizer, the same checkpoint is converted
by these too, to compare:

    python -m benchmarks.conversion --shape 8b --to gguf --quant q4_k_m --llama-cpp FOLDER --python PATH \\
        --quantizer PATH
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click
import numpy as np

from edgespec.converters.bytelevel import characters
from edgespec.converters.decoder import Decoder, Scales, Weight
from edgespec.converters.families import FAMILIES
from edgespec.converters.rope import Rope, Scaling
from edgespec.terminal.options import grouped_options

from .dialogues import FILE

_SHARDS, _BLOCK = 3, 1 << 22
_CONVERT = """
import resource, sys, time
from pathlib import Path
from edgespec.converters import convert
for _ in convert(Path(sys.argv[1]), Path(sys.argv[2]), fmt=sys.argv[3], quantization=sys.argv[4]):
    pass
status = Path("/proc/self/status")
if status.exists():  # ru_maxrss would begin at what the parent process held
    peak = next(int(line.split()[1]) * 1024 for line in status.open() if line.startswith("VmHWM"))
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(time.process_time(), peak)
"""


_THEIRS = """
import sys
sys.path.insert(0, sys.argv[1])
import convert_hf_to_gguf
from conversion import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"  # it looks names up by a hash, and this one is made up
sys.argv = ["convert_hf_to_gguf.py", sys.argv[2], "--outtype", "bf16", "--outfile", sys.argv[3]]
convert_hf_to_gguf.main()
"""


class Size(NamedTuple):
    """What tells one shape of Llama 3 from another."""

    hidden: int
    ffn: int
    layers: int
    head_dim: int
    tied: bool


_SIZES = {"1b": Size(2048, 8192, 16, 64, tied=True), "8b": Size(4096, 14336, 32, 128, tied=False)}


def shape(layers: int, size: Size = _SIZES["1b"]) -> Decoder:
    """So many layers of Llama 3."""
    rope = Rope(500000.0, size.head_dim, Scaling("llama3", 32.0, 1.0, 4.0, 8192))
    return Decoder(
        family=FAMILIES["LlamaForCausalLM"],
        root="model.",
        vocabulary=128256,
        context=131072,
        hidden=size.hidden,
        ffn=size.ffn,
        layers=layers,
        heads=32,
        kv_heads=8,
        head_dim=size.head_dim,
        epsilon=1e-5,
        rope=rope,
        local_rope=rope,
        turned=(True,) * layers,
        windowed=(True,) * layers,
        window=0,
        scales=Scales(size.head_dim**-0.5),
        tied=size.tied,
    )


def write_checkpoint(folder: Path, graph: Decoder) -> None:
    """A bf16 checkpoint of random weights in three shards."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": graph.vocabulary,
        "hidden_size": graph.hidden,
        "intermediate_size": graph.ffn,
        "num_hidden_layers": graph.layers,
        "num_attention_heads": graph.heads,
        "num_key_value_heads": graph.kv_heads,
        "max_position_embeddings": graph.context,
        "rms_norm_eps": graph.epsilon,
        "rope_theta": graph.rope.theta,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": graph.rope.scaling.factor,
            "low_freq_factor": graph.rope.scaling.low,
            "high_freq_factor": graph.rope.scaling.high,
            "original_max_position_embeddings": graph.rope.scaling.original_context,
        },
        "tie_word_embeddings": graph.tied,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    weights = graph.weights()
    third = -(-len(weights) // _SHARDS)
    places: dict[str, str] = {}
    for shard in range(_SHARDS):
        name = f"model-{shard + 1:05}-of-{_SHARDS:05}.safetensors"
        part = weights[shard * third : (shard + 1) * third]
        places |= {weight.source: name for weight in part}
        with (folder / name).open("wb") as file:
            _write_shard(file, part, np.random.default_rng(shard))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _write_shard(file: BinaryIO, weights: Sequence[Weight], draw: np.random.Generator) -> None:
    header, at = {}, 0
    for weight in weights:
        end = at + 2 * prod(weight.shape)
        header[weight.source] = {"dtype": "BF16", "shape": weight.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    file.write(len(text).to_bytes(8, "little") + text)
    for weight in weights:
        for start in range(0, prod(weight.shape), _BLOCK):
            values = draw.standard_normal(min(_BLOCK, prod(weight.shape) - start), np.float32) * np.float32(0.02)
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).data)


def _tokenizer() -> dict[str, object]:
    """Byte-level BPE with as many tokens and merges as Llama 3's: the bytes, their pairs, and some triples."""
    letters = list(characters())
    pairs = [(left, right) for left in letters for right in letters]
    triples = [("".join(pair), letter) for letter in letters[:244] for pair in pairs[:256]]
    merges = [*pairs, *triples][: 128000 - len(letters)]
    vocabulary = {text: i for i, text in enumerate([*letters, *("".join(merge) for merge in merges)])}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "added_tokens": [{"id": 128000 + i, "content": f"<|{i}|>", **special} for i in range(256)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


class Cost(NamedTuple):
    """Seconds on the clock, and bytes of memory at the peak."""

    seconds: float
    peak: float


def _cost(command: Sequence[str | Path]) -> Cost:
    """Of a process."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            last = said.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise click.ClickException(f"{command[0]} failed with {process.returncode}: {last}")
    return Cost(time.perf_counter() - began, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


@dataclass(frozen=True, slots=True)
class Theirs:
    """llama.cpp's source, a Python for its converter, its quantizer."""

    llama_cpp: Path | None
    python: Path | None
    quantizer: Path | None

    def costs(self, source: Path, folder: Path, quant: str) -> list[Cost]:
        """What its two steps cost; nothing where one of the three is not given."""
        if self.llama_cpp is None or self.python is None or self.quantizer is None:
            return []
        between, output = folder / "theirs-bf16.gguf", folder / f"theirs-{quant}.gguf"
        steps = [_cost([self.python, "-c", _THEIRS, self.llama_cpp, source, between])]
        steps.append(_cost([self.quantizer, between, output, quant]))
        between.unlink()
        return steps


@click.command()
@click.option("--shape", "size", type=click.Choice(list(_SIZES)), default="1b", show_default=True)
@click.option("--to", "fmt", default="onnx", show_default=True)
@click.option("--quant", default="int4", show_default=True)
@click.option("--layers", type=int, help="[default: all]")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep checkpoint and output here, and use them again")
@grouped_options(
    Theirs,
    "theirs",
    click.option("--llama-cpp", type=FILE, help="llama.cpp's source, to compare with its converter"),
    click.option("--python", type=FILE, help="A Python for that, with torch and transformers"),
    click.option("--quantizer", type=FILE, help="llama.cpp's llama-quantize"),
)
def main(theirs: Theirs, size: str, fmt: str, quant: str, layers: int | None, keep: Path | None) -> None:
    """Convert a random checkpoint and say what it cost."""
    graph = shape(layers or _SIZES[size].layers, _SIZES[size])
    with _folder(keep) as folder:
        source, output = folder / f"checkpoint-{size}-{graph.layers}", folder / f"{quant}.{fmt}"
        if not source.exists():
            source.mkdir()
            write_checkpoint(source, graph)
        began = time.perf_counter()
        command = [sys.executable, "-I", "-c", _CONVERT, str(source), str(output), fmt, quant]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - began
        if done.returncode:
            raise click.ClickException(done.stderr.strip())
        seconds, peak = map(float, done.stdout.split())
        files = [path for path in output.rglob("*") if path.is_file()] or [output]
        written = sum(path.stat().st_size for path in files)
        costs = theirs.costs(source, folder, quant)
    million = graph.parameters() / 1e6
    cost = f"{seconds:.1f} s CPU ({wall:.1f} s wall), {million / seconds:.0f}M/s"
    print(f"{million:.0f}M parameters to {fmt} {quant}: {cost}")
    print(f"peak memory {peak / 1e6:.0f} MB, {written / 1e6:.0f} MB written")
    if costs:
        steps = " + ".join(f"{cost.seconds:.1f}" for cost in costs)
        most = max(cost.peak for cost in costs)
        print(f"llama.cpp's converter and quantizer: {steps} s wall, peak memory {most / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
