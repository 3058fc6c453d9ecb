"""OpenVINO on devices other than the CPU, for which the CPU stands in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgespec.backends import Model, openvino, openvino_device, openvino_package
from edgespec.backends.openvino_cache import PagedCache
from edgespec.backends.openvino_device import ComputeDevice
from edgespec.errors import EngineError, OptionError
from edgespec.testing import check_model

from . import irfolders
from .onnxfolders import Folders
from .onnxrun import Onnx
from .openvinomodels import PROMPT, opened
from .reference import Reference
from .test_llama_exact import plainly


class HostMemory:
    """The CPU's memory as that of a device, whose layout only the device knows."""

    def create_tensor(self, kind: Any, shape: Any, _properties: object) -> Any:
        return openvino_package.bindings().Tensor(kind, shape)


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for a device with a memory of its own."""
    on_cpu = openvino_device.chosen

    def chosen(provider: str, threads: int, group: int) -> ComputeDevice:
        return replace(on_cpu(provider, threads, group), remote=True)

    monkeypatch.setattr(openvino, "chosen", chosen)
    monkeypatch.setattr(ComputeDevice, "memory", lambda _self: HostMemory())


@pytest.mark.usefixtures("remote")
def test_an_ir_model_with_its_cache_in_the_memory_of_a_device(checkpoint: Path, tmp_path: Path) -> None:
    model = opened(irfolders.write(checkpoint, tmp_path / "ir"))
    session = model.session(64)
    assert not session.can_tree
    expected = Reference(checkpoint).logits(PROMPT)
    assert np.linalg.norm(session.decode(PROMPT) - expected) < 0.01 * np.linalg.norm(expected)
    session.close()
    model.close()


@pytest.mark.usefixtures("remote")
def test_a_cache_in_the_memory_of_a_device(onnx_folders: Folders, openvino_target: Model) -> None:
    """Nothing of it is read or moved: rollbacks are to any length, and there are no trees."""
    model = opened(onnx_folders("fp32"), threads=2)
    session, right = model.session(256), openvino_target.session(256)
    assert (session.can_tree, session.leaves, session.reach) == (False, 0, None)
    with pytest.raises(EngineError, match="decodes chains only"):
        session.decode([7, 8], [-1, -1])
    for each in (session, right):
        each.prefill(PROMPT)
    found = [plainly(each, [7], 60) for each in (session, right)]
    assert found[0].tokens == found[1].tokens
    np.testing.assert_allclose(found[0].rows, found[1].rows, atol=1e-2)
    check_model(model, 0.2)
    hidden = model.session(64, hidden=(1,))
    hidden.decode([5])
    assert hidden.hidden[1].shape == (1, 64)
    for each in (session, right, hidden):
        each.close()
    model.close()


@pytest.mark.usefixtures("remote")
def test_exact_mode_takes_the_cpu(onnx_folders: Folders) -> None:
    with pytest.raises(OptionError, match="exact is 2, but passes of equal width may differ"):
        opened(onnx_folders("fp32"), exact=2)


class Port:
    """An input of a compiled model."""

    def __init__(self, shape: Sequence[int], kind: str) -> None:
        self._shape, self._kind = shape, kind

    def get_any_name(self) -> str:
        return "key_cache.0"

    def get_partial_shape(self) -> Any:
        return openvino_package.bindings().PartialShape(list(self._shape))

    def get_element_type(self) -> Any:
        return getattr(openvino_package.bindings().Type, self._kind)


@pytest.mark.parametrize(
    ("shape", "kind", "block"),
    [((-1, 2, 32, 16), "f16", 32), ((-1, 2, 16, 16), "f16", 16), ((-1, 2, 16, 256), "f16", 256)],
)
def test_blocks_of_devices(shape: Sequence[int], kind: str, block: int) -> None:
    cache = PagedCache(_compiled(shape, kind), {"key_cache.0": 32}, 1000, ComputeDevice("CPU", {}))
    assert cache.blocks == -(-1000 // block)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((-1, 2, 20, 15), "f16"), ((-1, 2, 32, 16), "u8"), ((-1, 2, -1, 16), "f16"), ((-1, 512), "f16")],
)
def test_blocks_of_an_unknown_form(shape: Sequence[int], kind: str) -> None:
    with pytest.raises(
        EngineError, match=r"in a form that edgespec does not know \(key_cache.0 is .*take provider cpu"
    ):
        PagedCache(_compiled(shape, kind), {"key_cache.0": 32}, 1000, ComputeDevice("GPU", {}, remote=True))


def _compiled(shape: Sequence[int], kind: str) -> Any:
    return SimpleNamespace(inputs=[Port(shape, kind)])


class Core:
    """A machine with these devices."""

    def __init__(self, *devices: str) -> None:
        self.available_devices = list(devices)


@pytest.mark.parametrize(
    ("provider", "present", "name"),
    [
        ("auto", ("CPU", "GPU"), "CPU"),
        ("cpu", ("CPU",), "CPU"),
        ("gpu", ("CPU", "GPU"), "GPU"),
        ("gpu", ("CPU", "GPU.0", "GPU.1"), "GPU"),
        ("GPU.1", ("CPU", "GPU.0", "GPU.1"), "GPU.1"),
    ],
)
def test_devices(provider: str, present: Sequence[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_device, "core", lambda: Core(*present))
    found = openvino_device.chosen(provider, 2, 64)
    assert (found.name, found.remote) == (name, name != "CPU")
    assert ("INFERENCE_NUM_THREADS" in found.config) == (name == "CPU")


@pytest.mark.parametrize(
    ("provider", "present", "words"),
    [
        ("gpu", ("CPU", "NPU"), "finds no device 'gpu' here, only cpu; install its driver, or leave provider out"),
        ("gpu.2", ("CPU", "GPU.0", "GPU.1"), "finds no device 'gpu.2' here, only cpu, gpu.0, gpu.1;"),
        ("cuda", ("CPU", "GPU"), "finds no device 'cuda' here, only cpu, gpu;"),
        ("NPU", ("CPU", "GPU", "NPU"), "no paged attention on NPUs.* choose cpu or gpu, or leave"),
        ("", ("CPU",), "finds no device ''"),
    ],
)
def test_devices_that_cannot_be(
    provider: str, present: Sequence[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_device, "core", lambda: Core(*present))
    with pytest.raises(OptionError, match=words) as caught:
        openvino_device.chosen(provider, 2, 64)
    assert "\n" not in str(caught.value)


def test_other_devices(onnx_folders: Folders) -> None:
    opened(onnx_folders("fp32"), provider="cpu").close()
    with pytest.raises(OptionError, match="finds no device 'tpu' here, only cpu"):
        opened(onnx_folders("fp32"), provider="tpu")


@pytest.mark.parametrize("quantization", ["fp32", "int8", "int4"])
def test_on_a_gpu(onnx_folders: Folders, quantization: str) -> None:
    if not [name for name in openvino_package.core().available_devices if name.startswith("GPU")]:
        pytest.skip("OpenVINO has no GPU here")
    expected = Onnx(onnx_folders(quantization)).feed(PROMPT)
    model = opened(onnx_folders(quantization), provider="gpu")
    session = model.session(64)
    found = session.decode(PROMPT)
    assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)
    assert not session.can_tree
    session.close()
    check_model(model, 0.5)
    model.close()
