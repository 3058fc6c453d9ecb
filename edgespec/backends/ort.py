"""ONNX Runtime, for models that `edgespec convert --to onnx` wrote.

Every session has its own thread pool, whose threads stop spinning at the end of a pass, so that a target and its draft
model (or llama.cpp) do not compete for cores; in measurements that is as fast as one shared pool. A shared pool would
be global to the process: ONNX Runtime then refuses pools of another size, also to sessions of the app.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ClosedError, EngineError, Interrupted, MissingPackage, ModelFileError, OptionError
from ..storage.checksum import sampled
from ..storage.files import contents
from . import Device, Interrupt, Session
from .exactness import Exactness
from .machine import physical_cores
from .onnx_checked import check_weights
from .onnx_file import Described, read
from .onnx_parts import split
from .onnx_vocabulary import OnnxVocabulary, TokenizerFiles
from .ort_exit import LoadedParts, OrtExitHead, OrtExitSession
from .ort_package import CPU, CUDA, UNSATURATED, bindings, chosen, load_cuda, providers
from .ort_passes import LoadedGraph
from .ort_recurrent_session import OrtRecurrentSession
from .ort_session import OrtSession

_QUIET = 4
#: The option with the folder of the weights of a graph that is given by its content.
_WEIGHTS_IN = "session.model_external_initializers_file_folder_path"
_NEWEST = ("LinearAttention", "QMoE", "MoE")  # operators that older versions of ONNX Runtime lack, or know less of
_UNKNOWN = ("not a registered function", "not find an implementation", "Unrecognized attribute")
# Bytes of weights of a model whose passes one thread computes. For a draft model of 3 MB two threads are no faster
# (0.22 ms a pass), and wait for each other where it takes turns with a target (0.42 ms on average). For 16 MB two are
# faster (0.82 ms instead of 1.25); nothing between was measured.
_SMALL = 4 << 20


def open_model(path: Path, device: Device, interrupt: Interrupt) -> OrtModel | OrtExitModel:
    """Load a converted model: an .onnx file with its weights and its tokenizer in the same folder.

    Raises:
        MissingPackage: onnxruntime (or tokenizers) is not installed, or too old.
        ModelFileError: a file of the model is missing, truncated, or was written by another converter.
        OptionError: this onnxruntime, or this model, cannot run on the requested provider.
        EngineError: the requested provider could not be loaded.
        Interrupted: `interrupt` was set.
    """
    bindings()
    described = read(path)
    check_weights(described, interrupt)
    files, provider = TokenizerFiles(described.path.parent), _provider(described, device)
    if device.head and described.exit_layer and provider == CPU and not device.exact:
        return OrtExitModel(described, files, device, interrupt)
    return OrtModel(described, files, device, interrupt, provider)


class _Weights:
    """What models have in common, in whatever graphs they are loaded."""

    def __init__(self, described: Described, files: TokenizerFiles, device: Device, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._threads = 1 if described.data_bytes <= _SMALL else device.threads or physical_cores()
        self._exactness = Exactness(device.exact)
        self._notices: dict[str, None] = dict.fromkeys(files.ignored)  # each once, in order
        self.trained_context = described.context - self._exactness.most_padding
        self.description = described.summary
        self.sampling = files.sampling
        self.parallel = described.parallel
        self.weights = f"{described.digest or sampled(described.data)}|{described.weights}|{described.quantization}"
        self.vocabulary = OnnxVocabulary(files, described.vocabulary)

    @property
    def notices(self) -> Sequence[str]:
        """Messages for the user: what is not as requested."""
        return (*self._notices, *self._exactness.notices)

    def close(self) -> None:
        self.vocabulary.close()

    def _identity(self, model: Described, provider: str) -> str:
        """A key for the price of a pass: shapes, quantization, provider, machine, engine version, threads."""
        parts = [model.weights, model.quantization, provider, platform.node(), platform.machine()]
        parts += [f"onnxruntime {bindings().__version__}", f"threads={self._threads}"]
        return "|".join(parts) + self._exactness.key

    def _note_shorter(self, context: int, wanted: int) -> None:
        if context < wanted:
            self._note(f"{self.description} holds {context} tokens and not {wanted}: it has no more positions")

    def _note(self, notice: str) -> None:
        self._notices[notice] = None


class OrtModel(_Weights):
    """The weights of a converted model, as one graph."""

    def __init__(
        self, described: Described, files: TokenizerFiles, device: Device, interrupt: Interrupt, provider: str
    ) -> None:
        super().__init__(described, files, device, interrupt)
        session = _load(described, provider, self._threads, interrupt)
        if provider != CPU and providers()[provider] not in session.get_providers():
            self._fell_back(provider, device)
            provider = CPU
        self._graph: LoadedGraph | None = LoadedGraph(session, described, provider)

    def session(self, context: int, interrupt: Interrupt | None = None, hidden: Sequence[int] = ()) -> OrtSession:
        """A new sequence. Its context is at most the model's number of positions.

        Args:
            interrupt: stops it; by default the model's own.
            hidden: layers, from 0, whose hidden states every decode returns in `OrtSession.hidden`.

        Raises:
            OptionError: a layer that the model does not have.
            EngineError, Interrupted: a pass that tests exactness failed, or was interrupted.
            ClosedError: the model is closed.
        """
        if self._graph is None:
            raise ClosedError(f"{self.description} is closed; load it again")
        model = self._graph.model
        if strange := [layer for layer in hidden if not 0 <= layer < model.layers]:
            raise OptionError(f"no layer {strange[0]}: {self.description} has layers 0 to {model.layers - 1}")
        kind = OrtSession if model.recurrence is None else OrtRecurrentSession
        session = kind(
            self._graph,
            interrupt or self._interrupt,
            context,
            identity=self._identity(model, self._graph.provider),
            exactness=self._exactness,
            hidden=hidden,
        )
        self._exactness.limit(session)
        if model.recurrence is not None and self._exactness.notices:
            session.close()
            raise OptionError(
                f"exact is {self._exactness.width}, but on this machine logits depend on the width of passes, and "
                f"those of {self.description} cannot all have the same: leave exact out"
            )
        self._note_shorter(session.context, context)
        return session

    def close(self) -> None:
        self._graph = None
        super().close()

    def _fell_back(self, requested: str, device: Device) -> None:
        hint = "; its libraries come with `pip install onnxruntime-gpu[cuda,cudnn]`" if requested == CUDA else ""
        if device.provider != "auto":
            raise EngineError(f"{requested} could not be loaded by ONNX Runtime{hint}; provider cpu always works")
        self._note(f"{self.description} runs on the CPU: {requested} could not be loaded{hint}")


class OrtExitModel(_Weights):
    """The weights of a converted model in parts, the first of which drafts for it; also a `HeadWeights`."""

    holds_head = True
    head_drafter = "exit"

    def __init__(self, described: Described, files: TokenizerFiles, device: Device, interrupt: Interrupt) -> None:
        super().__init__(described, files, device, interrupt)
        self._parts: LoadedParts | None = _load_parts(described, self._threads, interrupt)

    def session(self, context: int, interrupt: Interrupt | None = None) -> OrtExitSession:
        """A new sequence, as of `OrtModel`.

        Raises:
            ClosedError: the model is closed.
        """
        if self._parts is None:
            raise ClosedError(f"{self.description} is closed; load it again")
        model = self._parts.model
        identity = f"{self._identity(model, CPU)}|exit={model.exit_layer}"
        session = OrtExitSession(self._parts, interrupt or self._interrupt, context, identity=identity)
        self._note_shorter(session.context, context)
        return session

    def head(self, target: Session, interrupt: Interrupt | None = None) -> OrtExitHead:  # noqa: ARG002 - the target's
        """The first layers as a draft over a session of this model; see `HeadWeights`."""
        if not isinstance(target, OrtExitSession):
            raise EngineError(f"{self.description} drafts for sessions of its own only; use another drafter")
        return OrtExitHead(target)

    def close(self) -> None:
        self._parts = None
        super().close()


def _provider(described: Described, device: Device) -> str:
    """The execution provider for a model. OptionError where it cannot be as requested."""
    cpu_only = _cpu_only(described)
    on_cpu = device.provider == "auto" and bool(device.exact or not device.gpu_layers or cpu_only)
    requested = chosen(CPU if on_cpu else device.provider, half=described.half)
    if device.exact and requested != CPU:
        raise OptionError(
            f"exact is {device.exact}, but passes of equal width may differ in their last bits unless on the CPU; "
            "give provider cpu"
        )
    if cpu_only and requested != CPU:
        raise OptionError(
            f"{described.summary} has {cpu_only}, which run on the CPU only in ONNX Runtime; give provider cpu"
        )
    if device.exact and described.experts:
        raise OptionError(
            f"exact is {device.exact}, but in a mixture of experts the last bits of a token depend on the tokens "
            f"beside it, in ONNX Runtime: leave exact out for {described.summary}"
        )
    return requested


def _cpu_only(described: Described) -> str:
    """What in the model runs on the CPU only; empty if nothing does."""
    if described.recurrence is not None:
        return "layers with a recurrent state"
    # On GPUs the operator takes these matrices in another order.
    return "experts" if described.experts else ""


class _Options:
    """onnxruntime's options to load a model, as a `Stoppable`."""

    def __init__(self, threads: int) -> None:
        self.native = bindings().SessionOptions()
        self.native.log_severity_level = _QUIET
        self.native.intra_op_num_threads = threads
        self.native.inter_op_num_threads = 1
        self.native.add_session_config_entry("session.force_spinning_stop", "1")
        self.native.add_session_config_entry(*UNSATURATED)

    def stop(self) -> None:
        """Cancel loading."""
        self.native.set_load_cancellation_flag(True)


def _load_parts(described: Described, threads: int, interrupt: Interrupt) -> LoadedParts:
    parts = split(contents(described.path) or b"", described.exit_layer, described.layers)
    front, back, head = (_load(described, CPU, threads, interrupt, part) for part in parts[:3])
    return LoadedParts(front, back, head, parts.early, parts.final, described)


def _load(described: Described, provider: str, threads: int, interrupt: Interrupt, part: bytes = b"") -> Any:
    """The onnxruntime session of a model, or of a `part` of it, given by its content."""
    options = _Options(threads)
    if part:
        options.native.add_session_config_entry(_WEIGHTS_IN, str(described.path.parent.resolve()))
    interrupt.register(options)
    if interrupt.is_set:
        raise Interrupted
    if provider == CUDA:
        load_cuda()
    wanted = list(dict.fromkeys([providers()[provider], providers()[CPU]]))
    try:
        # Without its own fallback: that prints to stdout.
        session = bindings().InferenceSession(part or str(described.path), options.native, wanted, enable_fallback=0)
    except Exception as error:
        if interrupt.is_set:
            raise Interrupted from None
        reason = " ".join(str(error).split())
        lacking = next((name for name in _NEWEST if name in reason), "")
        if lacking and any(words in reason for words in _UNKNOWN):
            raise MissingPackage(
                f"onnxruntime {bindings().__version__} has no operator {lacking} as {described.path} needs it; update "
                "it with `pip install -U onnxruntime`"
            ) from error
        raise ModelFileError(f"{described.path} cannot be loaded: {reason}; convert it again") from error
    if interrupt.is_set:
        raise Interrupted
    return session
