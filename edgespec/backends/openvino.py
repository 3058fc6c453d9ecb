"""OpenVINO, for models that `edgespec convert --to onnx` wrote, and for IR models of optimum-intel.

On processors its passes over several tokens cost little more than those over one: matrices stay quantized, and so are
activations, in groups.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ClosedError, EngineError, Interrupted, OptionError
from . import Device, Interrupt
from .exactness import Exactness
from .machine import physical_cores
from .onnx_vocabulary import OnnxVocabulary, TokenizerFiles
from .openvino_device import chosen
from .openvino_graph import PagedGraph
from .openvino_package import bindings, core, reason
from .openvino_passes import CompiledGraph
from .openvino_session import OpenvinoSession
from .openvino_source import ModelSource, source


def open_model(path: Path, device: Device, interrupt: Interrupt) -> OpenvinoModel:
    """Load a model: an .onnx file of `edgespec convert`, or an .xml file of OpenVINO, with its weights and its
    tokenizer in the same folder.

    Raises:
        MissingPackage: openvino (or tokenizers) is not installed, or too old.
        ModelFileError: a file of the model is missing, truncated, or of an unknown form, or OpenVINO cannot compute
            the model.
        OptionError: a provider that OpenVINO does not have here, or exact on a device other than the CPU.
        EngineError: OpenVINO cannot compile the model, or its first pass failed.
        Interrupted: `interrupt` was set.
    """
    bindings()
    files = source(path, interrupt)
    return OpenvinoModel(files, TokenizerFiles(path.parent), device, interrupt)


class OpenvinoModel:
    """The weights of a model, compiled for a device.

    A model is compiled again for sessions that return hidden states of other layers, when the first is opened.
    """

    def __init__(self, model: ModelSource, files: TokenizerFiles, device: Device, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._source: ModelSource | None = model
        self._threads = device.threads or physical_cores()
        self._exactness = Exactness(device.exact)
        self._device = chosen(device.provider, self._threads, model.group)
        if self._device.remote and device.exact:
            raise OptionError(
                f"exact is {device.exact}, but passes of equal width may differ in their last bits unless on the CPU; "
                "give provider cpu"
            )
        self.trained_context = model.context - self._exactness.most_padding
        self.description = model.summary
        self.sampling = files.sampling
        self.parallel = model.parallel
        self.weights = model.weights
        self.vocabulary = OnnxVocabulary(files, model.vocabulary)
        self._notices: dict[str, None] = dict.fromkeys(files.ignored)  # each once, in order
        self._compiled: dict[tuple[int | str, ...], CompiledGraph] = {}
        self._graph(())

    @property
    def notices(self) -> Sequence[str]:
        """Messages for the user: what is not as requested."""
        return (*self._notices, *self._exactness.notices)

    def session(self, context: int, interrupt: Interrupt | None = None, hidden: Sequence[int] = ()) -> OpenvinoSession:
        """A new sequence. Its context is at most the model's number of positions.

        Args:
            interrupt: stops it; by default the model's own.
            hidden: layers, from 0, whose hidden states every decode returns in `OpenvinoSession.hidden`.

        Raises:
            OptionError: a layer that the model does not have, or whose hidden states it does not return.
            EngineError: OpenVINO cannot compile the model with these outputs, or a pass failed.
            Interrupted: the model's interrupt was set while it was compiled, or that of the session in a test pass.
            ClosedError: the model is closed.
        """
        graph = self._graph(tuple(hidden))
        session = self._session(graph, context, interrupt or self._interrupt, self._exactness)
        self._exactness.limit(session)
        if session.context < context:
            self._note(f"{self.description} holds {session.context} tokens and not {context}: it has no more positions")
        return session

    def close(self) -> None:
        self._source = None
        self._compiled.clear()
        self.vocabulary.close()

    def _opened(self) -> ModelSource:
        if self._source is None:
            raise ClosedError(f"{self.description} is closed; load it again")
        return self._source

    def _graph(self, hidden: tuple[int | str, ...]) -> CompiledGraph:
        """The graph with these hidden states: layers, or names of outputs."""
        model = self._opened()
        if (found := self._compiled.get(hidden)) is None:
            paged = model.graph(hidden, masks=not self._device.remote)
            compiled = self._compile(paged)
            found = CompiledGraph(compiled, self._device, paged.weights, paged.widths, paged.trees, hidden)
            # The plugin packs the matrices in the first pass, and does not need their file after that.
            first = self._session(found, 2, self._interrupt, Exactness(0))
            try:
                first.decode((0,))
            finally:
                first.close()
            paged.weights.release(model.data)
            self._compiled[hidden] = found
        return found

    def _session(
        self, graph: CompiledGraph, context: int, interrupt: Interrupt, exactness: Exactness
    ) -> OpenvinoSession:
        model = self._opened()
        return OpenvinoSession(
            graph,
            interrupt,
            context,
            vocabulary=model.vocabulary,
            positions=model.context,
            identity=self._identity(model),
            exactness=exactness,
            rows=(model.layers, model.hidden),
            with_rows=self._with_rows,
        )

    def _with_rows(self, names: tuple[str, ...]) -> CompiledGraph:
        """A graph with outputs of hidden states. Later sessions have them, too: a second graph would have a second
        copy of the weights."""
        known = (graph for graph in self._compiled.values() if {*names} <= {*graph.hidden})
        graph = next(known, None) or self._graph(names)
        self._compiled = {(): graph, names: graph}
        return graph

    def _compile(self, graph: PagedGraph) -> Any:
        if self._interrupt.is_set:
            raise Interrupted
        try:
            compiled = core().compile_model(graph.model, self._device.name, dict(self._device.config))
        except Exception as error:  # RuntimeError of pybind, of any cause
            raise EngineError(
                f"OpenVINO cannot compile {self.description} for {self._device.name} ({reason(error)}); take the model "
                "in another format"
            ) from error
        if self._interrupt.is_set:
            raise Interrupted
        return compiled

    def _identity(self, model: ModelSource) -> str:
        """A key for the price of a pass: shapes, quantization, device, machine, engine version, threads."""
        parts = [model.shapes, self._device.name, platform.node(), platform.machine()]
        parts += [f"openvino {bindings().__version__}", f"threads={self._threads}"]
        return "|".join(parts) + self._exactness.key

    def _note(self, notice: str) -> None:
        self._notices[notice] = None
