"""The model files that OpenVINO computes: what is known of a model, and its graph with paged attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelFileError, OptionError
from ..storage.checksum import sampled
from . import Interrupt, onnx_file, openvino_graph, openvino_ir, openvino_ir_file
from .onnx_checked import check_weights
from .openvino_graph import PagedGraph
from .parallel import Parallel

#: Numbers of an activation that share a scale. In groups of 64 wide passes are the cheapest and plain steps as cheap as
#: in groups of 128; groups larger than the blocks of the weights turn the fast kernels off (docs/openvino.md).
_GROUP = 64
_BLOCKS = {"int4-b32": 32}


@dataclass(frozen=True, slots=True)
class ModelSource(ABC):
    """A model's files.

    Args:
        summary: name, number of parameters and quantization.
        vocabulary: the width of a row of logits.
        context: the number of positions.
        weights: a key for the weights.
        shapes: a key for the price of a pass: shapes and types of the weights.
        group: the numbers of an activation that share a scale.
        data: the file of the weights.
        layers, hidden: how many it has, and numbers of a hidden row; 0 where the file gives no hidden rows.
        parallel: how the model guesses several tokens in one pass, if it does.
    """

    summary: str
    vocabulary: int
    context: int
    weights: str
    shapes: str
    group: int
    data: Path
    layers: int
    hidden: int
    parallel: Parallel | None

    @abstractmethod
    def graph(self, outputs: Sequence[int | str], *, masks: bool) -> PagedGraph:
        """The model with paged attention.

        Args:
            outputs: layers whose hidden states are outputs, or names of such outputs.
            masks: whether it has inputs for the masks of trees.

        Raises:
            OptionError: a layer that the model does not have, or whose hidden states it does not return.
            ModelFileError: OpenVINO cannot compute the model.
        """


def source(path: Path, interrupt: Interrupt) -> ModelSource:
    """The model at `path`: an .onnx file of `edgespec convert`, or an .xml file of OpenVINO.

    Raises:
        ModelFileError: a file of the model is missing, truncated, or of an unknown form.
        Interrupted: `interrupt` was set.
    """
    if path.suffix.lower() == ".xml":
        return _of_ir(openvino_ir_file.read(path))
    described = onnx_file.read(path)
    if described.recurrence is not None:
        raise ModelFileError(
            f"{path} has layers with a recurrent state, which edgespec does not run in OpenVINO; take --backend onnx"
        )
    if described.experts:
        raise ModelFileError(
            f"{path} is a mixture of experts, which edgespec does not run in OpenVINO; take --backend onnx"
        )
    check_weights(described, interrupt)
    return _of_onnx(described)


@dataclass(frozen=True, slots=True)
class _OnnxSource(ModelSource):
    path: Path

    def graph(self, outputs: Sequence[int | str], *, masks: bool) -> PagedGraph:
        if strange := [layer for layer in outputs if isinstance(layer, int) and not 0 <= layer < self.layers]:
            raise OptionError(f"no layer {strange[0]}: {self.summary} has layers 0 to {self.layers - 1}")
        return openvino_graph.read_paged(self.path, outputs, masks=masks)


@dataclass(frozen=True, slots=True)
class _IrSource(ModelSource):
    described: openvino_ir_file.DescribedIr

    def graph(self, outputs: Sequence[int | str], *, masks: bool) -> PagedGraph:
        if outputs:
            raise OptionError(
                f"{self.summary} is an OpenVINO IR model, which returns no hidden states; convert the checkpoint with "
                "`edgespec convert --to onnx`"
            )
        return openvino_ir.read_paged(self.described, masks=masks)


def _of_onnx(described: onnx_file.Described) -> ModelSource:
    digest, group = described.digest or sampled(described.data), _BLOCKS.get(described.quantization, _GROUP)
    common = _common(described, digest, group)
    return _OnnxSource(*common, described.layers, described.hidden, described.parallel, described.path)


def _of_ir(described: openvino_ir_file.DescribedIr) -> ModelSource:
    group = min(_GROUP, described.group or _GROUP)
    return _IrSource(*_common(described, sampled(described.data), group), 0, 0, None, described)


def _common(
    described: onnx_file.Described | openvino_ir_file.DescribedIr, digest: str, group: int
) -> tuple[str, int, int, str, str, int, Path]:
    """The fields of a `ModelSource`, in their order."""
    shapes = f"{described.weights}|{described.quantization}"
    weights = f"{digest}|{shapes}"
    return described.summary, described.vocabulary, described.context, weights, shapes, group, described.data
