"""Where a model runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import OptionError
from ..values import instance, shown, whole

_EXACT = (0, 2, *range(4, 33, 4))
BACKENDS = ("auto", "llama", "onnx")


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs and how much it may hold.

    Args:
        context: tokens of prompt and answer together; 0 takes the model's own limit, at most 4096.
        threads: CPU threads; 0 takes one per physical core.
        gpu_layers: layers to keep on the GPU; -1 takes as many as the engine can, 0 none. ONNX Runtime takes all or
            none.
        exact: pad every decode to so many tokens, so that a token's logits are the same to the last bit whatever is
            decoded beside it, and greedy output the same whatever is drafted. 0 does not; else 2, or a multiple of 4
            up to 32: engines compute rows by fours, and a remainder by other kernels. It costs what so wide a pass
            costs, and drafts cannot be longer than one token less. On ONNX Runtime, whose bits do not change from one
            multiple to another (tried when a session opens), 2 will do and drafts may be as long as ever.
        draft_gpu_layers: the draft model's own `gpu_layers`; None takes the target's.
    """

    context: int = 0
    threads: int = 0
    gpu_layers: int = -1
    exact: int = 0
    provider: str = "auto"
    backend: str = "auto"
    draft_gpu_layers: int | None = None

    def __post_init__(self) -> None:
        layers = (-1, 1 << 16)
        limits = {"context": (0, 1 << 24), "threads": (0, 512), "gpu_layers": layers, "draft_gpu_layers": layers}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is not None or name != "draft_gpu_layers":
                object.__setattr__(self, name, whole(name, value, low, high))
        if isinstance(self.exact, bool) or self.exact not in _EXACT:
            raise OptionError(f"exact is {shown(self.exact)}; it must be one of {', '.join(map(str, _EXACT))}")
        object.__setattr__(self, "exact", int(self.exact))
        instance("provider", self.provider, str)
        if not isinstance(self.backend, str) or self.backend not in BACKENDS:
            raise OptionError(f"no backend {shown(self.backend)}; there are {', '.join(BACKENDS)}")

    def of_draft(self) -> Device:
        """Where the draft model runs. Only the target's output must not depend on the width of its passes."""
        layers = self.gpu_layers if self.draft_gpu_layers is None else self.draft_gpu_layers
        return replace(self, exact=0, gpu_layers=layers)
