"""A target with EAGLE-3 heads for it, and sessions with a head over them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgespec import Device, Interrupt, Runtime, Sampling, Speculation, load
from edgespec.backends import HeadWeights, Session, open_model
from edgespec.backends.gguf_header import header
from edgespec.backends.llama import LlamaModel
from edgespec.backends.llama_eagle3 import Eagle3Head
from edgespec.converters import convert, convert_head
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.stored_tensor import float32
from edgespec.engine import Text
from edgespec.types import Floats

from . import checkpoints, eagle3_heads
from .helpers import TreeController

GREEDY = Sampling(temperature=0)
TEXT = [5 + 7 * n % 250 for n in range(40)]
RING_PROMPT = [*TEXT[:20], *eagle3_heads.RING[:3]]
ROUNDING = 0.02  # of logits: the caches have 16 bits

Array = npt.NDArray[Any]


def values(folder: Path) -> dict[str, Array]:
    """The tensors of a checkpoint."""
    stored = Checkpoint.open(folder).tensors
    return {
        name: np.concatenate([float32(block) for block in tensor.blocks()]).reshape(tensor.shape)
        for name, tensor in stored.items()
    }


class Place:
    """A target and heads for it in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = {"max_position_embeddings": 1024}
        self.source = checkpoints.llama(folder / "source", layers=4, tied=False, dtype="F32", config=config)
        ring = eagle3_heads.ring(values(self.source), 64)
        self.ring = folder / "ring-source"
        shutil.copytree(self.source, self.ring)
        checkpoints.write_safetensors(self.ring / "model.safetensors", ring)
        for name, source in (("target", self.source), ("ring", self.ring)):
            list(convert(source, folder / f"{name}.gguf", quantization="f32"))
            list(convert(source, folder / f"{name}-onnx", fmt="onnx", quantization="fp32"))
        self.vocabulary = header(folder / "target.gguf").vocabulary.size
        self.config = eagle3_heads.config()
        self.tensors = eagle3_heads.tensors(self.config, {"hidden": 64, "vocabulary": self.vocabulary})
        self.head = self.converted("head", self.config, self.tensors)
        right = eagle3_heads.config(draft_vocab_size=len(eagle3_heads.RING), eagle_aux_hidden_state_layer_ids=[1, 2, 3])
        self.right = self.converted("right", right, eagle3_heads.knowing(right, ring), self.ring)

    def converted(self, name: str, config: Any, tensors: Any, target: Path | None = None, quant: str = "f32") -> Path:
        source = eagle3_heads.write(self.folder / f"{name}-source", config, tensors)
        output = self.folder / f"{name}.head.gguf"
        list(convert_head(source, target or self.folder / "target.gguf", output, quantization=quant))
        return output

    def target(self, kind: str, name: str = "target") -> tuple[Path, Device]:
        device = Device(context=256, threads=1, backend="auto" if kind == "llama" else kind)
        return self.folder / (f"{name}.gguf" if kind == "llama" else f"{name}-onnx"), device


KINDS = ("llama", "onnx", "openvino")


class Over:
    """A session and an EAGLE-3 head over it."""

    def __init__(self, session: Session, head: Eagle3Head) -> None:
        self.session, self.head = session, head

    def rows(self, last: int, path: Sequence[int]) -> Floats:
        return np.stack([self.head.logits(last, path[:n]).copy() for n in range(len(path) + 1)])


@contextmanager
def opening(place: Place) -> Iterator[Callable[..., Over]]:
    """Opens sessions with heads over them, which are closed at the end."""
    with ExitStack() as stack:

        def over(kind: str, head: Path | None = None, context: int = 256) -> Over:
            path, device = place.target(kind)
            target = open_model(path, device, Interrupt())
            stack.callback(target.close)
            weights = open_model(head or place.head, Device(threads=1, drafts=True), Interrupt())
            stack.callback(weights.close)
            assert isinstance(weights, HeadWeights)
            session = stack.enter_context(closing(target.session(context)))
            found = stack.enter_context(closing(weights.head(session)))
            assert isinstance(found, Eagle3Head)
            return Over(session, found)

        yield over


def near(found: Floats, expected: Floats, rounding: float = ROUNDING) -> None:
    finite = np.isfinite(expected)
    assert (np.isfinite(found) == finite).all()
    np.testing.assert_allclose(found[finite], expected[finite], atol=rounding)


def runtime(place: Place, kind: str, head: Path, name: str = "target", **options: Any) -> Runtime:
    path, device = place.target(kind, name)
    speculation = options.pop("speculation", None) or Speculation(("eagle3",))
    return load(path, head, device=device, speculation=speculation, **options)


def wide_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of 32 bits, so that only sums are rounded."""
    params = LlamaModel._context_params

    def wide(self: LlamaModel, context: int) -> Any:
        found = params(self, context)
        found.type_k = found.type_v = found.flash_attn_type = 0
        return found

    monkeypatch.setattr(LlamaModel, "_context_params", wide)


def said(speaker: Runtime, speculation: Speculation) -> list[int]:
    """The tokens of a greedy answer to `RING_PROMPT`."""
    events = speaker.complete(RING_PROMPT, GREEDY, max_tokens=30, speculation=speculation)
    return [token for event in events if isinstance(event, Text) for token in event.tokens]


def drafts_trees(speaker: Runtime) -> None:
    """Further guesses of a row cost nothing: a draft has siblings, and the answer is that of plain decoding."""
    answer = speaker.complete(
        RING_PROMPT, GREEDY, max_tokens=30, controlled=lambda drafters: TreeController(list(drafters), 8)
    )
    rounds = [event for event in answer if isinstance(event, Text)]
    assert [token for event in rounds for token in event.tokens] == said(speaker, Speculation((), 0))
    assert any(not event.round.draft.is_chain for event in rounds)
