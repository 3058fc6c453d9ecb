"""The output is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from edgespec.converters import convert, quantize
from edgespec.converters.checkpoint import header
from edgespec.errors import ConversionError, OptionError

from . import checkpoints


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.llama(tmp_path_factory.mktemp("output") / "source")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "model.gguf"


def exhaust(source: Path, output: Path, **options: object) -> None:
    for _ in convert(source, output, **options):  # type: ignore[arg-type]
        pass


def files(output: Path) -> list[str]:
    return [path.name for path in output.parent.iterdir()]


def test_nothing_has_its_name_before_the_end(source: Path, output: Path) -> None:
    for _ in convert(source, output):
        assert output.name not in files(output)
        assert all(name.endswith(".part") for name in files(output))
    assert files(output) == [output.name]


@pytest.mark.parametrize("steps", [1, 3, 12])
def test_a_closed_conversion_leaves_nothing(steps: int, source: Path, output: Path) -> None:
    work = convert(source, output)
    for _ in range(steps):
        next(work)
    work.close()  # type: ignore[attr-defined]
    assert files(output) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_conversion_leaves_nothing(
    error: type[BaseException], source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a tensor, as Ctrl-C comes."""
    calls = []

    def interrupted(*_: object) -> object:
        calls.append(files(output))
        raise error

    monkeypatch.setattr(quantize, "packed", interrupted)
    with pytest.raises(error):
        exhaust(source, output)
    assert calls != [[]], "it was interrupted before the file was begun"
    assert files(output) == []


def test_an_existing_output_is_kept(source: Path, output: Path) -> None:
    output.write_text("mine")
    with pytest.raises(ConversionError, match="exists"):
        convert(source, output)
    assert output.read_text() == "mine"
    exhaust(source, output, force=True)
    assert output.read_bytes()[:4] == b"GGUF"
    assert files(output) == [output.name]


def test_a_failed_replacement_keeps_the_old(source: Path, output: Path) -> None:
    output.write_text("mine")
    work = convert(source, output, force=True)
    for _ in range(6):
        next(work)
    work.close()  # type: ignore[attr-defined]
    assert output.read_text() == "mine"


@pytest.mark.parametrize("links", [True, False])
def test_an_output_that_comes_into_being_meanwhile(
    links: bool, source: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:

        def no_links(*_: object) -> None:
            raise OSError(95, "not supported")

        monkeypatch.setattr(os, "link", no_links)
    work = convert(source, output)
    while getattr(next(work), "what", "") != "done":
        pass
    output.write_text("theirs")
    with pytest.raises(ConversionError, match="meanwhile"):
        next(work)
    assert output.read_text() == "theirs"
    assert files(output) == [output.name]
    output.unlink()
    exhaust(source, output)
    assert files(output) == [output.name]


def test_places_that_cannot_be(source: Path, output: Path) -> None:
    with pytest.raises(ConversionError, match="does not exist"):
        convert(source, output.parent / "no" / "x.gguf")
    with pytest.raises(ConversionError, match="is a folder"):
        convert(source, output.parent)
    with pytest.raises(OptionError, match=r"known: f32, f16, .*q4_k_m"):
        convert(source, output, quantization="q4")
    with pytest.raises(OptionError, match="known: gguf"):
        convert(source, output, fmt="onyx")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(source: Path, output: Path) -> None:
    output.parent.chmod(0o500)
    try:
        with pytest.raises(ConversionError, match="cannot be written"):
            convert(source, output)
    finally:
        output.parent.chmod(0o700)


def test_no_room_is_found_before_starting(source: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    exhaust(source, output)
    size = output.stat().st_size
    output.unlink()
    for free, fits in ((size - 1, False), (size, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(0, 0, free))
        if fits:
            exhaust(source, output)
        else:
            with pytest.raises(ConversionError, match=f"not enough space.*{size:,} bytes.*{free:,} free"):
                exhaust(source, output)
            assert files(output) == []


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(os.name == "nt", reason="resource limits are POSIX")
def test_a_write_that_fails_leaves_nothing(source: Path, output: Path) -> None:
    code = """
        import resource, signal, sys
        from pathlib import Path
        from edgespec.converters import convert
        from edgespec.errors import ConversionError
        work = convert(Path(sys.argv[1]), Path(sys.argv[2]), quantization="f32")
        assert getattr(next(work), "what", "") == "the tokenizer" and getattr(next(work), "what", "") == "the plan"
        steps = [next(work)]
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            list(work)
        except ConversionError as error:
            print(error)
    """
    assert "larger than this system or folder allows" in run_python(code, str(source), str(output))
    assert files(output) == []


@pytest.mark.skipif(os.name == "nt", reason="peak memory is read the POSIX way")
def test_memory_does_not_grow_with_the_tensors(tmp_path: Path) -> None:
    """A checkpoint of 190 MB, a third of it one tensor, in less than that beside the libraries' own."""
    folder = checkpoints.llama(tmp_path / "source", hidden=64, ffn=500_000, layers=1, dtype="BF16")
    assert (folder / "model.safetensors").stat().st_size > 190_000_000
    code = """
        import resource, sys
        from pathlib import Path
        import gguf, tokenizers
        from edgespec.converters import convert, native
        native.ggml()
        status = Path("/proc/self/status")
        def peak():
            if status.exists():  # ru_maxrss would begin at what the parent process held
                return next(int(line.split()[1]) >> 10 for line in status.open() if line.startswith("VmHWM"))
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20
        before = peak()
        for _ in convert(Path(sys.argv[1]), Path(sys.argv[2]), quantization=sys.argv[3]):
            pass
        print(peak() - before)
    """
    for quantization in ("q8_0", "q4_k_m"):
        grown = int(run_python(code, str(folder), str(tmp_path / f"{quantization}.gguf"), quantization))
        assert grown < 120, f"{grown} MB with {quantization}"


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = """
        import sys
        import edgespec.converters
        edgespec.converters.formats()
        heavy = {"gguf", "llama_cpp", "tokenizers", "sentencepiece"}
        print(sorted(heavy & set(sys.modules)))
    """
    assert run_python(code) == "[]"


def test_rows_longer_than_a_block(tmp_path: Path) -> None:
    """Rows of more numbers than a block is meant to hold are blocks of their own."""
    path = tmp_path / "x.safetensors"
    checkpoints.write_safetensors(path, {"x": np.ones((3, 50), np.float32)})
    assert [block.shape for block in header(path)["x"].blocks(weights=10)] == [(1, 50)] * 3
