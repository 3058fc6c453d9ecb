"""The checkpoint that is trained: opened by transformers, made from scratch, and written as `edgespec convert` reads
it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgespec.converters.atomic_folder import atomic_folder
from edgespec.converters.checkpoint import Checkpoint
from edgespec.errors import ConversionError, OptionError
from edgespec.extras import require

_WEIGHTS = re.compile(r".*\.(safetensors|bin|pt|pth|gguf|onnx|h5|msgpack)(\.index\.json)?")
_HEAD = 64  # numbers of an attention head
_WIDEST = 16_384
_LEAST_LAYERS = 2  # one alone cannot find what followed a token before, so it cannot copy (Olsson et al. 2022)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def require_packages() -> None:
    """Raises MissingPackage unless what training needs is installed; nothing is imported."""
    for package in ("torch", "transformers"):  # with which safetensors comes
        require(package, "training a draft or a head")


def parameters_of(size: str) -> int:
    """The number of parameters that `size` means: 500K, 20M, 0.5B.

    Raises:
        OptionError: it means none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", size.strip().upper())
    if found is None or not float(found[1]):
        raise OptionError(f"--from-scratch is {size!r}; it must be a number of parameters such as 20M or 0.5B")
    return int(float(found[1]) * _UNITS[found[2]])


def shape(parameters: int, vocabulary: int) -> tuple[int, int]:
    """The width and the layers of the largest Llama with at most so many parameters: a layer for each 128 of its width,
    two at least, and as many parameters of an MLP as Llama has, 8 times the width squared.

    Raises:
        OptionError: the embeddings alone take more.
    """
    fitting = [width for width in range(_HEAD, _WIDEST, _HEAD) if _count(width, vocabulary) <= parameters]
    if not fitting:
        least = _count(_HEAD, vocabulary)
        raise OptionError(
            f"--from-scratch asks for {parameters:,} parameters; with {vocabulary:,} tokens the least is {least:,}"
        )
    return fitting[-1], _layers(fitting[-1])


def _layers(width: int) -> int:
    return max(_LEAST_LAYERS, width // 128)


def _count(width: int, vocabulary: int) -> int:
    ffn = _ffn(width)
    return vocabulary * width + _layers(width) * (4 * width * width + 3 * width * ffn + 2 * width) + width


def _ffn(width: int) -> int:
    return width * 8 // 3 // _HEAD * _HEAD


def make(target: Path, parameters: int, output: Path) -> None:
    """Write a random Llama with the tokenizer of the checkpoint `target` into the folder `output`.

    Raises:
        ConversionError: the checkpoint cannot be read, or the output not written.
        OptionError: as `shape`.
    """
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: PLC0415

    known = Checkpoint.open(target).config
    vocabulary = known.get("vocab_size")
    if not isinstance(vocabulary, int):
        raise ConversionError(f"{target / 'config.json'} has no vocab_size; give another target's checkpoint")
    width, layers = shape(parameters, vocabulary)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": _ffn(width),
        "num_hidden_layers": layers,
        "num_attention_heads": width // _HEAD,
        "num_key_value_heads": width // _HEAD,
        "head_dim": _HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": known.get("max_position_embeddings", 4096),
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        **{key: known[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in known},
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**config), dtype=torch.float32)
    write(model, target, output, config)


def open_student(folder: Path) -> Any:
    """The causal language model in the checkpoint `folder`, in float32.

    Raises:
        ConversionError: transformers cannot open it.
    """
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConversionError(
            f"{folder} cannot be trained: transformers says {error}; give the Hugging Face checkpoint of a small model"
        ) from error


def write(model: Any, source: Path, output: Path, config: dict[str, Any] | None = None) -> None:
    """Write the model as a checkpoint, with the tokenizer and all other files of the checkpoint `source`. An existing
    folder is replaced.

    Args:
        config: of the model; None takes that of `source`.

    Raises:
        ConversionError: it cannot be written.
    """
    from safetensors import SafetensorError  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    need = sum(each.numel() * each.element_size() for each in model.parameters())
    with atomic_folder(output, need, replace=True) as folder:
        try:
            model.save_pretrained(folder, max_shard_size="1000GB")
        except SafetensorError as error:
            raise ConversionError(
                f"{output} cannot be written: {error}; free space on the disk or choose another folder"
            ) from error
        # transformers writes the config in the form of its own version; the original one is known to be readable.
        for path in _described(source):
            shutil.copyfile(path, folder / path.name)
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def _described(source: Path) -> Iterator[Path]:
    """The files of a checkpoint beside its weights."""
    return (path for path in sorted(source.iterdir()) if path.is_file() and not _WEIGHTS.fullmatch(path.name))
