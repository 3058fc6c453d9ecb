"""`edgespec models pair TARGET --exit-layers`: what the first layers of a model are worth as its draft.

Drafts of a quarter, a half and three quarters of the layers are cut into a temporary folder, one after the other. Their
acceptance is measured on the bundled prompts and their prices on this machine, and one is offered only if it is
expected to be faster than plain decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from shutil import rmtree

from edgespec.backends.gguf_header import header
from edgespec.converters import exit_layer, mark_exit
from edgespec.models.graph_file import described, graph_in, is_graph

from ..errors import ConversionError
from ..library import run
from ..runtime.loading import Files
from ..runtime.speculation import Speculation
from ..storage.cache import cache_folder
from ..storage.leftovers import sweep, temporary
from ..tools.draft_value import DraftValue
from .check_report import read_prompts
from .measured_draft import measured, opened
from .options import SamplingOptions
from .terminal_job import terminal_job

_SHARES = (0.25, 0.5, 0.75)  # of the layers
_DRAFTER = "exit"
_DEPTH = 4  # tokens of each draft while acceptance is measured
_PROMPTS, _TOKENS = 6, 48  # answers for each draft, and tokens of each


@dataclass(frozen=True, slots=True)
class ExitLayer:
    """The first `layer` layers of `layers`, and what they are worth as a draft."""

    layer: int
    layers: int
    value: DraftValue

    @property
    def speedup(self) -> float:
        """The expected speedup with the best draft length; 1 where that is plain decoding, or nothing is known."""
        return self.value.best.speedup if self.value.known else 1.0

    def line(self) -> str:
        """Its figures."""
        value = self.value
        shares = " ".join(f"{share:.0%}" for share in value.acceptance) or "not known"
        k = value.best.k
        expected = f"{self.speedup:.2f}x at K = {k}" if k else "plain decoding is faster"
        if not value.known:
            expected = "not known: too few drafts were verified, or other programs were running"
        step = f"a guess costs {value.step / value.curve[0]:.2f} of a plain step"
        return (
            f"the first {self.layer} of {self.layers} layers: accepted by depth {shares}; {step}; expected: {expected}"
        )


def lines(target: Path) -> Iterator[str]:
    """Measure the first layers of the model at `target` as its draft, and offer the best if it pays.

    Args:
        target: a GGUF file, or the folder or file of a converted ONNX model.

    Raises:
        ConversionError: the model cannot be cut.
        ModelError: it cannot be read or loaded.
        Interrupted, KeyboardInterrupt: Ctrl-C; nothing is left on the disk.
    """
    found = [_measured(target, layer, layers) for layer, layers in _candidates(target)]
    yield from (each.line() for each in found)
    best = max(found, key=lambda each: each.speedup)
    if best.speedup > 1:
        source = graph_in(target).parent if is_graph(target) else target
        yield f"to have it: edgespec convert {source} --exit-layer {best.layer} --out FOLDER"
    else:
        known = "" if all(each.value.known for each in found) else ", where that is known"
        yield f"none of them is offered: plain decoding, with look-ups, is expected to be faster{known}"


def _candidates(target: Path) -> list[tuple[int, int]]:
    """Numbers of first layers, and how many the model has."""
    # The metadata of OpenVINO IR models have no number of layers.
    layers = getattr(described(target), "layers", 0) if is_graph(target) else header(target).layers
    if layers < 2:
        raise ConversionError(
            f"{target} cannot be cut: expected a GGUF file or a converted ONNX model, of several layers; convert the "
            "checkpoint"
        )
    return [(layer, layers) for layer in sorted({max(1, round(layers * share)) for share in _SHARES} - {layers})]


def _measured(target: Path, layer: int, layers: int) -> ExitLayer:
    with _folder() as folder, terminal_job() as job:
        if is_graph(target):
            files = Files(folder / "marked")
            run(mark_exit(graph_in(target).parent, files.target, layer), job)
        else:
            files = Files(target, (folder / "draft.gguf",))
            run(exit_layer.keep(target, folder / "draft.gguf", f"0-{layer - 1}"), job)
        with opened(files, Speculation((_DRAFTER,), _DEPTH)) as runtime:
            prompts = read_prompts(None, runtime)
            some = prompts[:: max(1, len(prompts) // _PROMPTS)][:_PROMPTS]
            sampling = SamplingOptions(*[None] * len(fields(SamplingOptions))).sampling(runtime.sampling, seed=0)
            value = measured(runtime, some, sampling, _TOKENS, f"measuring the first {layer} layers")
    return ExitLayer(layer, layers, value)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that is removed at the end."""
    path = temporary(cache_folder() / "exit")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent.glob("exit.*-????????.part"))
        path.mkdir()
    except OSError as error:
        raise ConversionError(f"{path.parent} cannot be written: {error.strerror}; EDGESPEC_CACHE moves it") from error
    try:
        yield path
    finally:
        with suppress(OSError):
            rmtree(path)
