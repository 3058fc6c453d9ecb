"""Where a model runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import OptionError
from ..values import instance, shown, texts, whole
from .endpoint import MOST, Endpoint
from .model_files import engines

_EXACT = (0, 2, *range(4, 33, 4))
BACKENDS = ("auto", "llama", "onnx", "openvino")


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model runs, and its limits.

    Args:
        context: tokens of prompt and answer together; 0 takes the model's own limit, at most 4096.
        threads: CPU threads; 0 takes one per physical core. ONNX models of at most 4 MB take one.
        gpu_layers: layers on the GPU; -1 for as many as the engine can, 0 for none. ONNX Runtime takes all or none.
        exact: pad every decode to this number of tokens, so that the logits of a token are bit-identical whatever else
            is decoded in the pass, and greedy output does not depend on drafts. 0 for no padding; else 2, or a multiple
            of 4 up to 32: engines compute four rows at a time, and the remainder with other kernels. Every pass costs
            as much as one of that width, and a draft has at most one token less. In ONNX Runtime 2 suffices and drafts
            may be as long as without, if logits are the same for all multiples (tested when a session opens).
        provider: the execution provider of ONNX Runtime: "auto", "cpu", "cuda", ..., or the device of OpenVINO: "auto"
            or "cpu", "gpu", "gpu.1", ...
        backend: the engine: "auto", "llama", "onnx" or "openvino".
        draft_gpu_layers: `gpu_layers` of the draft model; None for that of the target.
        draft_backend: `backend` of the draft model; None for that of the target where it opens the draft's file, else
            "auto".
        drafts: whether the model drafts, token by token, for another; `of_draft` sets it. A model with a recurrent
            state then keeps it for other rollbacks.
        beside: the engine of that target, "auto" where it is that of the draft or not known; `of_draft` sets it.
        head: whether to load what drafts in the model's file, if there is such: a head for multi-token prediction, or
            an exit after its first layers; loading sets it.
        rpc: workers that compute the layers of the target, as "HOST:PORT", by llama.cpp's RPC; see `edgespec worker`.

    Raises:
        OptionError: a value of a wrong type or out of range.
    """

    context: int = 0
    threads: int = 0
    gpu_layers: int = -1
    exact: int = 0
    provider: str = "auto"
    backend: str = "auto"
    draft_gpu_layers: int | None = None
    draft_backend: str | None = None
    drafts: bool = False
    beside: str = "auto"
    head: bool = False
    rpc: tuple[str, ...] = ()

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
        instance("drafts", self.drafts, bool)
        instance("head", self.head, bool)
        for backend in (self.backend, "auto" if self.draft_backend is None else self.draft_backend):
            if not isinstance(backend, str) or backend not in BACKENDS:
                raise OptionError(f"no backend {shown(backend)}; there are {', '.join(BACKENDS)}")
        self._check_workers()

    def _check_workers(self) -> None:
        object.__setattr__(self, "rpc", texts("rpc", self.rpc))
        for endpoint in self.rpc:
            Endpoint.parse(endpoint)
        if len(set(self.rpc)) < len(self.rpc) or len(self.rpc) > MOST:
            raise OptionError(f"rpc has {len(self.rpc)} workers; give at most {MOST}, each once")
        if self.rpc and self.backend not in ("auto", "llama"):
            raise OptionError(f"rpc is for llama.cpp, and the backend is {self.backend}; leave one of them out")
        if self.rpc and self.exact:
            raise OptionError(f"exact is {self.exact}, and workers may round otherwise; leave exact or rpc out")

    def of_draft(self, path: Path) -> Device:
        """The device of the draft model at `path`. It has no `exact`, which only the target's output needs.

        Raises:
            ModelFileError: there is no model at `path`, or several.
        """
        layers = self.gpu_layers if self.draft_gpu_layers is None else self.draft_gpu_layers
        own = self.backend in engines(path)
        backend, beside = self.draft_backend or (self.backend if own else "auto"), "auto" if own else self.backend
        return replace(
            self, exact=0, gpu_layers=layers, backend=backend, drafts=True, beside=beside, head=False, rpc=()
        )
