"""The GGUF writer: metadata through the `gguf` package, tensors streamed straight to their place.

The layout is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the keys and the tensor names of the
`llama` architecture are llama.cpp's (gguf-py/gguf/constants.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np
import numpy.typing as npt

from edgespec.backends.parallel import GUESSES, Parallel
from edgespec.converters import (
    ConversionProgress,
    Note,
    card,
    decoder,
    gguf_graph,
    mxfp4,
    native,
    parallel,
    quantize,
    tokenizer_check,
    vocabulary,
)
from edgespec.converters.atomic_file import atomic_file, check_file, scratch
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.mxfp4 import Mxfp4Tensor
from edgespec.converters.thread_pool import OrderedThreadPool
from edgespec.converters.vocabulary import GgufVocabulary
from edgespec.errors import ConversionError

DEFAULT = "q8_0"  # quantization
_ALIGNMENT: int = gguf.GGUF_DEFAULT_ALIGNMENT
_REPORT = 16_000_000  # parameters between two progress reports of one tensor


def quantizations() -> tuple[str, ...]:
    return tuple(quantize.FILE_TYPES)


def check(quantization: str) -> None:
    """OptionError unless this quantization can be made."""
    quantize.file_type(quantization)


def check_output(output: Path, force: bool) -> None:
    """ConversionError unless a GGUF can be written there."""
    check_file(output, ".gguf", force)


def write(checkpoint: Checkpoint, output: Path, quantization: str, force: bool) -> Iterator[ConversionProgress | Note]:
    """Convert `checkpoint` into the GGUF `output`. See `edgespec.converters.convert`."""
    pard = parallel.read(checkpoint)
    graph = decoder.read(checkpoint)
    gguf_graph.check(checkpoint, graph)
    total = graph.parameters()
    yield ConversionProgress("the tokenizer", 0, total)
    words, notes = _words(checkpoint, graph.vocabulary)
    if pard is not None:
        words = replace(words, ids={**words.ids, "mask": pard.mask})
        yield Note(parallel.note(pard))
    for note in (*graph.notes, *notes):
        yield Note(note)
    yield ConversionProgress("the plan", 0, total)
    plan = _Plan.make(checkpoint, graph, words, quantization, pard)
    with atomic_file(output, plan.size(), force) as file:
        file.write(plan.header)
        file.truncate(plan.size())
        file.flush()
        native.check_loads(Path(file.name), runs=graph.gemma4 is None or not graph.gemma4.backbone)
        yield from plan.write(file, total)


def add_vocabulary_of(writer: gguf.GGUFWriter, checkpoint: Checkpoint, size: int) -> None:
    """Add the tokenizer of a checkpoint with a vocabulary of `size` tokens."""
    _add_vocabulary(writer, _words(checkpoint, size)[0])


def _words(checkpoint: Checkpoint, size: int) -> tuple[GgufVocabulary, Sequence[str]]:
    """The tokenizer of a checkpoint, and notes for the user."""
    spec = vocabulary.read(checkpoint, size)
    words = _with_ends(tokenizer_check.matching_candidate(spec, open_tokenizer, "llama.cpp"), spec.ends)
    return words, spec.notes


class TensorInfo(Protocol):
    """A tensor of a file: `shape` in NumPy's order, `kind` a ggml type."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def kind(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor to write: `shape` in NumPy's order, `kind` a ggml type; `source` is a weight or an array."""

    name: str
    shape: tuple[int, ...]
    kind: int
    source: decoder.Weight | npt.NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return prod(self.shape[:-1]) * native.row_bytes(self.kind, self.shape[-1])

    @property
    def padding(self) -> int:
        return -self.nbytes % _ALIGNMENT


def _is_mxfp4(checkpoint: Checkpoint, source: decoder.Weight | npt.NDArray[np.float32]) -> bool:
    """Whether the checkpoint has all parts of a weight as MXFP4."""
    if not isinstance(source, decoder.Weight):
        return False
    found = {isinstance(checkpoint.tensors[name], Mxfp4Tensor) for name in source.sources()}
    if len(found) > 1:
        raise ConversionError(f"{checkpoint.folder}: {source.source} is MXFP4 in part; fetch the checkpoint again")
    return found == {True}


@dataclass(frozen=True, slots=True)
class _Plan:
    """The layout of the file: the header's bytes and the tensors in their order."""

    checkpoint: Checkpoint
    graph: decoder.Decoder
    tensors: list[_Tensor]
    header: bytes

    @classmethod
    def make(
        cls,
        checkpoint: Checkpoint,
        graph: decoder.Decoder,
        words: GgufVocabulary,
        quantization: str,
        pard: Parallel | None,
    ) -> _Plan:
        file_type = quantize.file_type(quantization)
        sources: dict[str, decoder.Weight | npt.NDArray[np.float32]] = dict(gguf_graph.tables(graph))
        weights = [gguf_graph.arranged(weight, graph) for weight in graph.weights()]
        sources |= {gguf_graph.name(weight, graph.family.gguf): weight for weight in weights}
        shapes = {name: source.shape for name, source in sources.items()}
        kinds = quantize.tensor_types(lambda path, few: _skeleton(path, graph, few), shapes, file_type)
        kinds |= {name: mxfp4.GGML_TYPE for name, source in sources.items() if _is_mxfp4(checkpoint, source)}
        tensors = [_Tensor(name, source.shape, kinds[name], source) for name, source in sources.items()]

        writer = gguf.GGUFWriter(None, gguf_graph.architecture(graph))
        _add_origin(writer, checkpoint, _size_label(graph))
        gguf_graph.describe(writer, graph)
        writer.add_file_type(mxfp4.FILE_TYPE if mxfp4.GGML_TYPE in kinds.values() else file_type)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _add_vocabulary(writer, words)
        if pard is not None:
            writer.add_uint32(GUESSES, pard.guesses)
        _add_chat(writer, checkpoint)
        return cls(checkpoint, graph, tensors, header_of(writer, tensors))

    def size(self) -> int:
        return len(self.header) + sum(tensor.nbytes + tensor.padding for tensor in self.tensors)

    def write(self, file: Any, total: int) -> Iterator[ConversionProgress]:
        done = 0
        with OrderedThreadPool() as pool:
            for tensor in self.tensors:
                reported = done
                yield ConversionProgress(tensor.name, done, total)
                for weights, data in self._data(tensor, pool):
                    file.write(data)
                    done += weights
                    if done - reported >= _REPORT:
                        reported = done
                        yield ConversionProgress(tensor.name, done, total)
                file.write(bytes(tensor.padding))
        yield ConversionProgress("done", done, total)

    def _data(self, tensor: _Tensor, pool: OrderedThreadPool) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        weight = tensor.source
        if not isinstance(weight, decoder.Weight):
            yield 0, weight.view(np.uint8)
            return
        stored = weight.stored(self.checkpoint)
        if tensor.kind == mxfp4.GGML_TYPE:  # copied, whatever the rest is quantized to
            yield from (part for each in stored if isinstance(each, Mxfp4Tensor) for part in each.packed())
            return
        # llama.cpp rotates neighbouring rows of some families: the two halves of a checkpoint's heads are interleaved.
        turned = weight.rotary and self.graph.family.interleaved
        order = self.graph.permutation() if turned else None
        yield from quantize.packed(stored, tensor.kind, order, pool)


def header_of(writer: gguf.GGUFWriter, tensors: Sequence[TensorInfo]) -> bytes:
    """Everything before the tensors' data, padded to the alignment."""
    for tensor in tensors:
        kind = gguf.GGMLQuantizationType(tensor.kind)
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, kind)
    with scratch() as folder:
        path = folder / "header.gguf"
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        data = path.read_bytes()
    return data + bytes(-len(data) % _ALIGNMENT)


def _skeleton(path: Path, graph: decoder.Decoder, shapes: Mapping[str, tuple[int, ...]]) -> None:
    writer = gguf.GGUFWriter(path, gguf_graph.architecture(graph))
    gguf_graph.describe(writer, graph)
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _vocabulary_file(path: Path, words: GgufVocabulary) -> None:
    """Write a GGUF file with only a vocabulary, which llama.cpp loads with `vocab_only`."""
    writer = gguf.GGUFWriter(path, "llama")  # any architecture
    _add_vocabulary(writer, words)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


@contextmanager
def open_tokenizer(words: GgufVocabulary) -> Iterator[native.LlamaTokenizer]:
    """llama.cpp's tokenizer with this vocabulary."""
    with scratch() as folder:
        path = folder / "vocabulary.gguf"
        _vocabulary_file(path, words)
        with native.LlamaTokenizer(path) as tokenizer:
            yield tokenizer


def _with_ends(words: GgufVocabulary, ends: Sequence[int]) -> GgufVocabulary:
    """Add end tokens as eot and eom: llama.cpp stops only at eos, at some known texts, and at these two."""
    with open_tokenizer(words) as tokenizer:
        missing = [token for token in ends if not tokenizer.ends(token)]
    if len(missing) > 2:
        named = [words.tokens[token] for token in missing]
        raise ConversionError(
            f"generation_config.json ends a text at {named} beside eos, and GGUF can name two; "
            "remove those that do not occur from its eos_token_id"
        )
    return replace(words, ids={**words.ids, **dict(zip(("eot", "eom"), missing, strict=False))})


def _size_label(graph: decoder.Decoder) -> str:
    """ "30M"; of experts their number by the size of a model with one of them, "8x7B"."""
    total, experts = graph.parameters(), graph.experts.count if graph.experts else 0
    apart = sum(prod(weight.shape) for weight in graph.weights() if len(weight.shape) > 2)
    return str(gguf.size_label(total, total - apart, apart // max(1, experts), experts))


def _add_origin(writer: gguf.GGUFWriter, checkpoint: Checkpoint, label: str) -> None:
    about = card.read(checkpoint)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(about.name)
    writer.add_size_label(label)
    writer.add_license(about.licence)
    writer.add_license_name(about.licence_name)
    writer.add_license_link(about.licence_link)
    try:
        made_by = f"edgespec {version('edgespec')}"
    except PackageNotFoundError:  # run from a bare checkout
        made_by = "edgespec"
    writer.add_quantized_by(made_by)
    for key, value in card.sampling(checkpoint).items():
        getattr(writer, f"add_sampling_{key}")(value)


def _add_vocabulary(writer: gguf.GGUFWriter, words: GgufVocabulary) -> None:
    writer.add_tokenizer_model(words.model)
    writer.add_tokenizer_pre(words.pre)
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    if words.scores is not None:
        writer.add_token_scores(words.scores)
    if words.merges is not None:
        writer.add_token_merges(words.merges)
    for name, token in words.ids.items():
        getattr(writer, f"add_{name}_token_id")(token)
    writer.add_add_bos_token(words.add_bos)
    writer.add_add_eos_token(words.add_eos)
    if words.add_space_prefix is not None:
        writer.add_add_space_prefix(words.add_space_prefix)


def _add_chat(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    templates = card.templates(checkpoint)
    writer.add_string(gguf.Keys.Tokenizer.CHAT_TEMPLATE, templates.pop("default", ""))
    for name, text in templates.items():
        writer.add_string(gguf.Keys.Tokenizer.CHAT_TEMPLATE_N.format(name=name), text)
    writer.add_array(gguf.Keys.Tokenizer.CHAT_TEMPLATES, sorted(templates))
