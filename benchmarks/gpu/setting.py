"""Where the steps run: the folder, the device, and the models that they make there."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgespec import Device, models
from edgespec.backends.machine import physical_cores
from edgespec.models.memory import machine_memory

from .results import LeftOut
from .shapes import SHAPES, Shape, Small, write

_SPARE = 2 << 30  # bytes of disk and memory to leave free
_FILE = {"Q4_0": 0.56, "Q4_K_M": 0.62, "Q8_0": 1.06, "F16": 2.0}  # bytes a weight, at most


@dataclass(frozen=True, slots=True)
class Setting:
    """One run.

    Args:
        work: the folder for models.
        device: "cuda" or "cpu".
        small: whether models are tiny.
        server: llama-server.
        heads: trained heads of the demo target.
        questions: of each category of a suite.
        pair: the small models that are enlarged.
        contenders: of the step "speeds", beside plain decoding and adaptive speculation; all if there are none.
    """

    work: Path
    device: str
    small: bool
    server: Path
    heads: Sequence[Path] = ()
    questions: int = 4
    pair: models.Pair = field(default_factory=models.demo)
    contenders: Sequence[str] = ()

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def sizes(self) -> tuple[str, ...]:
        """The shapes that are measured."""
        return ("tiny",) if self.small else ("1B", "8B")

    @property
    def tokens(self) -> int:
        """Of an answer, at most."""
        return 16 if self.small else 128

    def place(self, *, context: int = 2048, layers: int = -1, exact: int = 0) -> Device:
        """A device with all layers on the card unless another number is given."""
        threads = 1 if self.small else min(4, physical_cores()) if self.gpu else physical_cores()
        return Device(context, threads, gpu_layers=layers if self.gpu else 0, exact=exact)

    def target(self, size: str, weights: str) -> Path:
        """The pair's target in a larger shape, made where it is not there.

        Raises:
            LeftOut: there is no room for it, on the disk or on the card.
        """
        return self._made(self.pair.target, size, weights)

    def draft(self) -> Path:
        """The pair's first draft with the vocabulary of the targets."""
        return self.drafts()[0]

    def drafts(self) -> list[Path]:
        """The pair's drafts with the vocabulary of the targets.

        They keep their layers: the kernels of a narrow one take as long to start as those of a wide one.
        """
        return [
            self._made(small, f"draft-{number}", "Q8_0", self._draft_shape(Small(small)))
            for number, small in enumerate(self.pair.drafts or (self.pair.target,), 1)
        ]

    def _draft_shape(self, small: Small) -> Shape:
        """As a draft's, and wider than the small model: one column more bans the tokens that it does not have."""
        shape = SHAPES["tiny-draft" if self.small else "draft"]
        return replace(shape, layers=small.layers, width=max(shape.width, (small.width // 128 + 1) * 128))

    def _made(self, small: Path, name: str, weights: str, shape: Shape | None = None) -> Path:
        path, shape = self.work / "models" / f"{name}-{weights}.gguf", shape or SHAPES[name]
        path.parent.mkdir(exist_ok=True)
        with _alone(path.with_suffix(".lock")):  # the step "models" may be at it
            if not path.exists():
                self._require_room(shape, weights)
                write(small, path, shape, weights)
        return path

    def _require_room(self, shape: Shape, weights: str) -> None:
        need = int(shape.parameters * _FILE[weights]) + _SPARE
        if (free := shutil.disk_usage(self.work).free) < need:
            raise LeftOut(f"the file takes {need / 1e9:.0f} GB, and {free / 1e9:.0f} GB of disk are free")
        gpus = machine_memory().gpus
        if self.gpu and gpus and max(gpu.free for gpu in gpus) < need:
            raise LeftOut(
                f"it takes {need / 1e9:.0f} GB, and the card has {max(g.free for g in gpus) / 1e9:.0f} GB free"
            )

    def drop(self, size: str, weights: str) -> None:
        """Delete a model that is no longer needed."""
        (self.work / "models" / f"{size}-{weights}.gguf").unlink(missing_ok=True)

    def free(self) -> int:
        """Free bytes of the card, or of this machine's memory without one."""
        memory = machine_memory()
        return sum(gpu.free for gpu in memory.gpus) if self.gpu else memory.free


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is within."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
