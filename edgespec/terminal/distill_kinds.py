"""What `edgespec distill` trains: a draft model or a head, from its beginning to the file that drafts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgespec import converters
from edgespec.converters import decoder, pair
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.head_target import HeadTarget
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.distill import eagle3, head_checkpoint, medusa, student
from edgespec.distill.estimate import Student
from edgespec.distill.example import Example
from edgespec.distill.head_tokens import MOST, likeliest
from edgespec.distill.learner import Draft, Learner
from edgespec.distill.lora import Lora
from edgespec.distill.states import Read
from edgespec.distill.training import Training

from ..backends import FINAL
from ..errors import OptionError
from ..library import run
from ..library.job import Job
from ..storage import pair_file as pairfile
from ..tools.draft_value import DEPTH
from ..types import Floats
from .distill_options import DistillOptions

_RATE, _SCRATCH_RATE, _LORA_RATE = 1e-4, 1e-3, 1e-3
_HEAD_RATES = {"medusa": 2e-3, "eagle3": 3e-3}


@dataclass(frozen=True, slots=True)
class Place:
    """The files of a distillation: the pair in `folder`, and everything that an unfinished run needs in `work`."""

    folder: Path
    fmt: str
    target: Path

    @property
    def work(self) -> Path:
        return self.folder / ".distill"

    @property
    def trained(self) -> Path:
        """The checkpoint that the training writes."""
        return self.folder / "checkpoint"


class Kind(Protocol):
    """What is trained."""

    #: The name of its drafter, and its guesses in a round.
    drafter: str
    guesses: int
    #: What the pair file and the state of the training call it.
    name: str
    #: The file that drafts before it is trained, and the trained one.
    before: Path
    draft: Path

    @property
    def read(self) -> Read | None:
        """The parts of the target's rows that it reads; None if it reads none."""
        ...

    @property
    def rate(self) -> float:
        """The highest learning rate where none is asked for."""
        ...

    @property
    def sizes(self) -> Student:
        """For the estimate."""
        ...

    def prepare(self, job: Job) -> tuple[Path, ...]:
        """Whatever can be done before the answers are known. Returns the files that may help to collect them."""
        ...

    def learner(self, examples: Sequence[Example]) -> Learner:
        """It, as it is before the training on these examples; on none for an estimate."""
        ...

    def begin(self, examples: Sequence[Example], job: Job) -> None:
        """Write the file `before`."""
        ...

    def write(self, learner: Any, output: Path) -> None:
        """Write the checkpoint of a trained learner of this kind."""
        ...

    def convert(self, checkpoint: Path, output: Path, job: Job) -> None:
        """Write the file that drafts."""
        ...


class DraftKind:
    """A draft model.

    Args:
        source: its checkpoint before the training.
    """

    drafter, guesses, read = "model", DEPTH, None

    def __init__(self, options: DistillOptions, place: Place, source: Path) -> None:
        self._options, self._fmt, self._source = options, place.fmt, source
        self._quantization = converters.chosen_quantization(place.fmt, options.quant)
        self.name = options.from_scratch or str(source)
        self.before = pair.output(place.work, "before", place.fmt)
        self.draft = pair.output(place.folder, "draft", place.fmt)
        self._lora: Lora | None = None

    @property
    def rate(self) -> float:
        if self._options.from_scratch is not None:
            return _SCRATCH_RATE
        return _RATE if self._options.lora is None else _LORA_RATE

    @property
    def sizes(self) -> Student:
        graph, rank = decoder.read(Checkpoint.open(self._source)), self._options.lora
        sizes = Student(graph.parameters(), graph.vocabulary, graph.hidden, graph.layers)
        if rank is None:
            return sizes
        shapes = [each.shape for each in graph.weights() if each.layer is not None and len(each.shape) == 2]
        changed = rank * sum(map(sum, shapes))
        return Student(changed, graph.vocabulary, graph.hidden, graph.layers, frozen=graph.parameters())

    def prepare(self, job: Job) -> tuple[Path, ...]:
        part = pair.ModelConversion(self._source, self.before, self._fmt, self._quantization)
        run(pair.convert_part(part, force=True), job)
        return (self.before,)

    def learner(self, examples: Sequence[Example]) -> Draft:  # noqa: ARG002 - a Kind's
        model, rank = student.open_student(self._source), self._options.lora
        self._lora = None if rank is None else Lora(model, rank)
        return Draft(model, None if self._lora is None else self._lora.weights)

    def begin(self, examples: Sequence[Example], job: Job) -> None:
        """It was made by `prepare`."""

    def write(self, learner: Draft, output: Path) -> None:
        if self._lora is not None:
            self._lora.merge()
        student.write(learner.model, self._source, output)

    def convert(self, checkpoint: Path, output: Path, job: Job) -> None:
        steps = converters.convert(checkpoint, output, fmt=self._fmt, quantization=self._quantization, force=True)
        run(steps, job)


class HeadKind:
    """A head of the target: "medusa" or "eagle3"."""

    def __init__(self, options: DistillOptions, place: Place, kind: str) -> None:
        self.drafter = self.name = kind
        self.guesses = medusa.HEADS if kind == "medusa" else DEPTH
        self.rate = _HEAD_RATES[kind]
        suffix = "onnx" if kind == "medusa" else "gguf"
        self.before, self.draft = place.work / f"before.{suffix}", place.folder / f"draft.{suffix}"
        self._initial, self._target = place.work / "initial", place.target
        # The tokens of an ONNX model cannot be copied into a GGUF file; those of its checkpoint can.
        self._described = options.target if is_checkpoint(options.target) else place.target

    @cached_property
    def _of(self) -> HeadTarget:
        return HeadTarget.of(self._target)

    @cached_property
    def read(self) -> Read:
        """Medusa heads read the state before each token; an EAGLE-3 head attends to all rows before."""
        window = Training().window
        if self.drafter == "medusa":
            return Read((FINAL,), 2, window)
        return Read(eagle3.layers(self._of.layers), window, window)

    @property
    def sizes(self) -> Student:
        width, vocabulary = self._of.width, self._of.tokens
        rows = min(vocabulary, MOST)
        if self.drafter == "medusa":
            return Student(medusa.HEADS * (width + rows + 1) * width, medusa.HEADS * rows, width, 1, row=width)
        hidden = eagle3.width_of(width)
        parameters = (vocabulary + 3 * width + rows + 12 * hidden) * hidden
        return Student(parameters, eagle3.AHEAD * rows, hidden, eagle3.AHEAD, row=3 * width)

    def prepare(self, job: Job) -> tuple[Path, ...]:  # noqa: ARG002 - a Kind's
        return ()  # it depends on the answers

    def learner(self, examples: Sequence[Example]) -> medusa.Medusa | eagle3.Eagle3:
        size = self._of.tokens
        tokens = likeliest(examples, size) if examples else np.arange(min(size, MOST))
        weights = self._of.weights
        if self.drafter == "medusa":
            return medusa.Medusa(_matrix(weights.output()), tokens)
        return eagle3.Eagle3(_matrix(weights.embedding()), tokens, self.read.layers)

    def begin(self, examples: Sequence[Example], job: Job) -> None:
        self.write(self.learner(examples), self._initial)
        self.convert(self._initial, self.before, job)
        shutil.rmtree(self._initial)

    def write(self, learner: medusa.Medusa | eagle3.Eagle3, output: Path) -> None:
        name = "medusa_lm_head.safetensors" if self.drafter == "medusa" else "model.safetensors"
        head_checkpoint.write(learner, output, name)

    def convert(self, checkpoint: Path, output: Path, job: Job) -> None:
        run(converters.convert_head(checkpoint, self._described, output, force=True), job)


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is the folder of a Hugging Face checkpoint."""
    files = {each.suffix for each in path.iterdir()} if path.is_dir() else set()
    return bool(files & {".safetensors", ".bin"}) and not files & {".gguf", ".onnx", ".xml"}


def require_tokenizer(target: Path) -> None:
    """OptionError unless a new draft can copy the tokenizer of `target`, the folder of a checkpoint."""
    if not is_checkpoint(target):
        raise OptionError(
            f"--from-scratch copies the tokenizer of a checkpoint, and {target} is none; give the folder of the "
            "checkpoint that it was made from as TARGET, or take --head eagle3, which needs no tokenizer"
        )


def made(options: DistillOptions, folder: Path) -> Path:
    """A new draft in `folder`, or the one that an unfinished run made there. OptionError for a size that cannot be."""
    size = student.parameters_of(options.from_scratch or "")
    if not folder.exists():
        student.make(options.target, size, folder)
    return folder


def known_draft(target: Path) -> Path:
    """The checkpoint of the draft of a pair that `edgespec convert --pair` made. OptionError if none is known."""
    file = pairfile.at(target)
    source = pairfile.read(file).about.get("made_of", {}).get("draft", {}).get("source") if file is not None else None
    if not source:
        raise OptionError(
            f"no draft is known for {target}; give the Hugging Face checkpoint of a small model with the same "
            "tokenizer as DRAFT, or --from-scratch SIZE, or --head eagle3"
        )
    return Path(source)


def _matrix(stored: StoredTensor) -> Floats:
    """A matrix as float32."""
    from edgespec.converters.stored_tensor import float32  # noqa: PLC0415

    return np.concatenate([float32(block) for block in stored.blocks()])
