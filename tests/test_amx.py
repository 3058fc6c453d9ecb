"""ggml does without AMX, whose kernels crash in builds by GCC; elsewhere nothing is touched."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.backends.amx import _SignalStack, disable_amx, uses_amx
from edgespec.backends.llama_library import bindings


def test_a_machine_with_amx_decodes_a_quantized_model(small_pair: dict[str, Any]) -> None:
    library = bindings()._lib
    if sys.platform != "linux" or not library.ggml_cpu_has_amx_int8():
        pytest.skip("this ggml was built for a processor without AMX")
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from edgespec.backends import Device, Interrupt, open_model\n"
        "open_model(Path(sys.argv[1]), Device(threads=1), Interrupt()).session(256).decode([1, 2, 3])\n"
        "print('decoded')\n"
    )
    run = [sys.executable, "-c", program, str(small_pair["target"])]
    ended = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "decoded\n", "")


@pytest.mark.parametrize("first", ["onnx", "gguf"])
def test_models_of_both_engines_decode_in_one_process(
    first: str, small_pair: dict[str, Any], onnx_folders: Callable[[str], Path]
) -> None:
    """ONNX Runtime asks for AMX too: once it has it, the kernel refuses it to nobody in the process."""
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from edgespec.backends import Device, Interrupt, open_model\n"
        "for model in sys.argv[1:]:\n"
        "    open_model(Path(model), Device(threads=1), Interrupt()).session(256).decode([1, 2, 3])\n"
        "print('decoded')\n"
    )
    paths = [str(onnx_folders("int8")), str(small_pair["target"])]
    run = [sys.executable, "-c", program, *(paths if first == "onnx" else reversed(paths))]
    ended = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "decoded\n", "")


def test_the_signal_stack_and_stderr_are_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    if sys.platform != "linux":
        pytest.skip("signal stacks are Linux's here")
    before, after = _SignalStack(), _SignalStack()
    libc = ctypes.CDLL(None)
    libc.sigaltstack(None, ctypes.byref(before))
    disable_amx(bindings())
    libc.sigaltstack(None, ctypes.byref(after))
    os.write(2, b"heard")
    assert (after.pointer, after.size) == (before.pointer, before.size)
    assert capfd.readouterr().err == "heard"


def test_an_engine_that_declares_nothing_is_left_alone() -> None:
    disable_amx(SimpleNamespace())
    assert not uses_amx(SimpleNamespace())
    disable_amx(SimpleNamespace(_lib=SimpleNamespace(ggml_cpu_has_amx_int8=lambda: 0)))
