"""Hidden rows out of a llama.cpp context: the input of a layer, and the state from which logits are computed.

The graphs of some architectures publish the input of each layer. llama.cpp ends the process if another graph is asked
for one, so these architectures are listed, for one version. Others call the name of each node while a pass runs: their
layers end with "l_out-{layer}", which is the input of the next one. That costs about 0.6 us a node, and each row that
is read is a synchronisation on a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import EngineError, MissingPackage, OptionError
from ..types import Floats
from .llama_head import VERSION

#: Architectures whose graphs publish the inputs of all layers in llama-cpp-python `VERSION`.
_PUBLISHING = frozenset({
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "mimo2",
    "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3", "qwen3moe",
    "qwen3next", "qwen35", "qwen35moe", "qwen4exp",
})  # fmt: skip
_NODE = "l_out-{}"  # the output of a layer, by its name in the graph
_NAMES = {
    "set": ("_Z30llama_set_embeddings_layer_inpP13llama_contextjb", "llama_set_embeddings_layer_inp"),
    "get": ("_Z30llama_get_embeddings_layer_inpP13llama_contextj", "llama_get_embeddings_layer_inp"),
}
_WINDOWS = {
    "set": "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
    "get": "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
}


def _node(layer: int) -> bytes:
    """The name of the node that is the input of `layer`."""
    return _NODE.format(layer - 1).encode()


def check_layers(layers: Sequence[int], count: int, architecture: str) -> None:
    """OptionError unless the inputs of `layers` can be read in a model of `count` layers."""
    first = 0 if publishes(architecture) else 1
    if strange := [layer for layer in layers if not first <= layer < count]:
        raise OptionError(
            f"the input of layer {strange[0]} cannot be read in this model of {count} layers of the architecture "
            f"{architecture!r:.40}; its layers are {first} to {count - 1}: use a drafter made for this model"
        )


def publishes(architecture: str) -> bool:
    """Whether graphs of this architecture publish the inputs of all layers, and the functions to read them exist."""
    return architecture in _PUBLISHING and layer_functions() is not None


@cache
def layer_functions() -> tuple[Any, Any] | None:
    """llama.cpp's private functions that request and read the input of a layer; None if another version is installed
    than the one of which it is known which architectures have them."""
    import llama_cpp  # noqa: PLC0415

    if llama_cpp.__version__ != VERSION:
        return None
    low = llama_cpp.llama_cpp
    found = []
    for kind, names in _NAMES.items():
        function = next((f for name in (*names, _WINDOWS[kind]) if (f := getattr(low._lib, name, None))), None)
        if function is None:
            return None
        found.append(function)
    request, read = found
    request.argtypes, request.restype = (low.llama_context_p_ctypes, ctypes.c_uint32, ctypes.c_bool), None
    read.argtypes, read.restype = (low.llama_context_p_ctypes, ctypes.c_uint32), ctypes.POINTER(ctypes.c_float)
    return request, read


def request_layer(context: Any, layer: int) -> None:
    """Let passes of `context` keep the input of `layer`. Only if its architecture `publishes` it."""
    _functions()[0](context, layer, True)


def read_layer(context: Any, layer: int) -> Any:
    """The address of the input of `layer` for all tokens of the last pass, which was requested."""
    return _functions()[1](context, layer)


def _functions() -> tuple[Any, Any]:
    found = layer_functions()
    if found is None:
        raise MissingPackage(f"hidden rows of layers need llama-cpp-python {VERSION}; install it")
    return found


@cache
def _tensor_functions() -> Any:
    """The library with ggml's functions for tensors.

    Raises:
        MissingPackage: the installed bindings do not have it.
    """
    import llama_cpp  # noqa: PLC0415
    from llama_cpp import _ctypes_extensions  # noqa: PLC0415

    library = llama_cpp.llama_cpp._lib
    try:
        if not hasattr(library, "ggml_backend_tensor_get"):  # Windows does not look into the libraries it depends on
            folder = Path(llama_cpp.__file__).parent / "lib"
            library = _ctypes_extensions.load_shared_library("ggml-base", folder)
        library.ggml_get_name.argtypes, library.ggml_get_name.restype = (ctypes.c_void_p,), ctypes.c_char_p
        library.ggml_nbytes.argtypes, library.ggml_nbytes.restype = (ctypes.c_void_p,), ctypes.c_size_t
        read = library.ggml_backend_tensor_get
        read.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
        read.restype = None
    except (AttributeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise MissingPackage(
            f"this llama-cpp-python does not give the hidden rows of layers ({reason}); install llama-cpp-python "
            f"{VERSION}, or use another drafter"
        ) from error
    return library


class NamedRows:
    """Reads the outputs of layers during the passes of a context that is opened with `callback`.

    Args:
        low: llama_cpp's low-level module.
        width: numbers of a row.
    """

    def __init__(self, low: Any, width: int) -> None:
        self._library, self._width = _tensor_functions(), width
        self._rows: dict[bytes, Floats] = {}
        self._wanted: dict[bytes, Floats] = {}
        self._failed: BaseException | None = None
        self.callback = low.ggml_backend_sched_eval_callback(self._asked)

    def want(self, layers: Sequence[int]) -> None:
        """Read the inputs of `layers` from the next pass on."""
        for layer in layers:
            self._wanted.setdefault(_node(layer), np.zeros((0, self._width), np.float32))

    def begin(self) -> None:
        """A pass begins."""
        self._rows, self._failed = {}, None

    def row(self, layer: int, n: int) -> Floats:
        """The input of `layer` for the first `n` tokens of the last pass.

        Raises:
            EngineError: the graph of the model has no such node.
        """
        if self._failed is not None:
            raise self._failed
        found = self._rows.get(_node(layer))
        if found is None or len(found) < n:
            raise EngineError(
                f"the graph of this architecture has no output of layer {layer - 1} by the name of 'l_out'; use "
                "another drafter"
            )
        return found[:n]

    def _asked(self, tensor: int, ask: bool, _data: object) -> bool:
        """llama.cpp's question whether a node is wanted (`ask`), and the node when it was computed."""
        name = self._library.ggml_get_name(tensor)
        if ask:
            return name in self._wanted
        try:
            self._read(name, tensor)
        except BaseException as error:  # noqa: BLE001 - ctypes drops what a callback raises, and the pass would end
            self._failed = error
        return True

    def _read(self, name: bytes, tensor: int) -> None:
        size = int(self._library.ggml_nbytes(tensor))
        n = size // (4 * self._width)
        if n * 4 * self._width != size:
            raise EngineError(
                f"{name.decode('utf-8', 'replace')} has no rows of {self._width} numbers of 32 bits; "
                "use another drafter"
            )
        if len(self._wanted[name]) < n:
            self._wanted[name] = np.zeros((n, self._width), np.float32)
        self._library.ggml_backend_tensor_get(tensor, self._wanted[name].ctypes.data, 0, size)
        self._rows[name] = self._wanted[name][:n]
