"""`edgespec worker` and --rpc: addresses, refusals, and the library that is built beside the wheel."""

from __future__ import annotations

import io
import signal
import socket
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgespec import Device
from edgespec.backends import Interrupt, llama_rpc, open_model
from edgespec.backends.endpoint import Endpoint
from edgespec.errors import EngineError, MissingPackage, OptionError
from edgespec.runtime.loading import Files, with_head
from edgespec.runtime.speculation import Speculation
from edgespec.tools import build_rpc

from .commandline import refused, run, unix
from .small_pair import SMALL_PAIR
from .workers import free_endpoint, require_rpc, worker


@pytest.mark.parametrize("text", ["127.0.0.1:50052", "localhost:1", "desk.example:65535"])
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    assert str(Endpoint.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":1", "host:", "host:0", "host:65536", "host:1x", "[::1]:5", "a b:5", "host:٥", "host:-1"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="give HOST:PORT"):
        Endpoint.parse(text)


def test_only_loopback_is_local() -> None:
    assert Endpoint("127.0.0.1", 1).is_local
    assert Endpoint("localhost", 1).is_local
    assert not Endpoint("0.0.0.0", 1).is_local  # noqa: S104
    assert not Endpoint("192.0.2.1", 1).is_local
    with pytest.raises(EngineError, match="is not known"):
        Endpoint("no.such.host.invalid", 1).address()


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """Something that listens, answers any greeting so, and hangs up; without an answer it keeps silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)
                if not answer:
                    done.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        done.set()
        thread.join()


def test_a_greeting_tells_the_version() -> None:
    with saying((28).to_bytes(8, "little") + bytes([7, 1, 2]) + bytes(25)) as endpoint:
        assert Endpoint.parse(endpoint).greet() == (7, 1, 2)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n0123456789", b"short"])
def test_what_is_no_worker_is_told(answer: bytes) -> None:
    with saying(answer) as endpoint, pytest.raises(EngineError, match="is no worker"):
        Endpoint.parse(endpoint).greet()


def test_a_busy_worker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.backends.endpoint._PATIENCE", 0.2)
    with saying(b"") as endpoint, pytest.raises(EngineError, match="one client at a time"):
        Endpoint.parse(endpoint).greet()


def test_options_that_workers_exclude_are_refused(small_pair: dict[str, Path], tmp_path: Path) -> None:
    here = ("127.0.0.1:50052",)
    for wrong, reason in (
        ({"exact": 4}, "exact is 4"),
        ({"backend": "onnx"}, "the backend is onnx"),
        ({"rpc": here * 2}, "each once"),
        ({"rpc": tuple(f"127.0.0.1:{port}" for port in range(1, 18))}, "at most 16"),
        ({"rpc": "127.0.0.1:50052"}, "list of texts"),
    ):
        with pytest.raises(OptionError, match=reason):
            Device(**{"rpc": here, **wrong})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="the drafter eagle3 reads rows"):
        with_head(Files(small_pair["target"]), Device(rpc=here), Speculation(("eagle3",)))
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(OptionError, match="workers compute GGUF files"):
        open_model(tmp_path / "model.onnx", Device(rpc=here), Interrupt())


def test_a_draft_model_stays_here(small_pair: dict[str, Path]) -> None:
    assert Device(rpc=("127.0.0.1:50052",)).of_draft(small_pair["draft"]).rpc == ()


def test_a_network_is_refused_without_its_flag() -> None:
    line = refused(run("worker", "--listen", "0.0.0.0:50052"))
    assert "--any-client" in line
    assert "SSH tunnel" in line
    assert "HOST:PORT" in refused(run("worker", "--listen", "50052"))


def test_a_build_without_rpc_says_how_to_get_it(own_cache: Path) -> None:
    if (llama_rpc.library_folder() / llama_rpc._NAME).is_file():
        pytest.skip("this llama.cpp was built with RPC")
    for line in (refused(run("worker")), refused(run("chat", "-p", "Hi", "--rpc", "127.0.0.1:9"))):
        assert f"pip download --no-deps --no-binary :all: llama-cpp-python=={llama_rpc.installed_version()}" in line
        assert f"edgespec worker --build llama_cpp_python-{llama_rpc.installed_version()}.tar.gz" in line
        assert "GGML_RPC=on" in line


def sources(folder: Path, release: str = "", ggml: str = "") -> Path:
    """Sources that compile to nothing useful, of these versions, by default those that are installed."""
    inside = folder / "vendor" / "llama.cpp" / "ggml"
    (inside / "src" / "ggml-rpc").mkdir(parents=True)
    for name in ("ggml-rpc.cpp", "transport.cpp"):
        (inside / "src" / "ggml-rpc" / name).write_text("// nothing\n")
    parts = (ggml or llama_rpc.ggml_version()).split(".")
    named = zip(("MAJOR", "MINOR", "PATCH"), parts, strict=False)
    (inside / "CMakeLists.txt").write_text("".join(f"set(GGML_VERSION_{name} {part})\n" for name, part in named))
    (folder / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nVersion: {release or llama_rpc.installed_version()}\n")
    return folder


def test_sources_of_another_version_are_refused(tmp_path: Path, own_cache: Path) -> None:
    with pytest.raises(OptionError, match=r"of llama-cpp-python 0\.0\.1, and .* is installed"):
        build_rpc.build(sources(tmp_path / "release", release="0.0.1"))
    with pytest.raises(OptionError, match=r"of ggml 0\.0\.1, and .* is installed"):
        build_rpc.build(sources(tmp_path / "ggml", ggml="0.0.1"))
    with pytest.raises(OptionError, match=r"has no ggml/src/ggml-rpc"):
        build_rpc.build(tmp_path)
    (tmp_path / "damaged.tar.gz").write_bytes(b"\x1f\x8bno archive")
    with pytest.raises(OptionError, match=r"neither a folder nor a \.tar\.gz"):
        build_rpc.build(tmp_path / "damaged.tar.gz")
    assert not list(own_cache.rglob("*.so*"))


def test_a_compiler_that_fails_leaves_nothing(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sources(tmp_path / "source")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EngineError, match="no C\\+\\+ compiler \\(no-such-compiler\\)"):
        build_rpc.build(folder)
    failing = tmp_path / "c++"
    failing.write_text(
        '#!/bin/sh\necho "x.cpp:1: error: no such header" >&2\nfor last; do :; done\necho half > "$last"\nexit 1\n'
    )
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    with pytest.raises(EngineError, match=r"cannot build RPC: x\.cpp:1: error: no such header"):
        build_rpc.build(folder)
    assert [path for path in own_cache.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("filtered", [True, False], ids=["with tarfile's filter", "as Python 3.11.3"])
def test_an_archive_is_read_and_may_not_leave_its_folder(
    tmp_path: Path, own_cache: Path, filtered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not filtered:
        monkeypatch.setattr(build_rpc, "_FILTER", {})
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        about = tarfile.TarInfo("x/../../ggml/outside")
        about.size = 1
        archive.addfile(about, io.BytesIO(b"x"))
    with pytest.raises(OptionError, match="neither a folder"):
        build_rpc.build(path)


@unix
def test_a_worker_ends_by_a_signal_and_frees_its_port() -> None:
    require_rpc()
    endpoint = free_endpoint()
    with worker(endpoint) as running:
        with pytest.raises(EngineError, match=f"cannot listen at {endpoint}"):
            llama_rpc.serve(Endpoint.parse(endpoint), 1, None)
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == -signal.SIGTERM
    with worker(endpoint, "--cache") as running:
        done = run("chat", "-p", "Hi", "--max-tokens", "3", "--temp", "0", "--rpc", endpoint)
        plain = run("chat", "-p", "Hi", "--max-tokens", "3", "--temp", "0")
        assert done.returncode == 0, done.stderr
        assert done.stdout == plain.stdout
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == -signal.SIGINT


def test_chat_says_which_worker_cannot_be_reached() -> None:
    require_rpc()
    endpoint = free_endpoint()
    line = refused(run("chat", SMALL_PAIR.target, "-p", "Hi", "--rpc", endpoint))
    assert f"no worker can be reached at {endpoint}" in line


def test_a_missing_library_is_told_before_the_model_is_read(small_pair: dict[str, Path], own_cache: Path) -> None:
    (own_cache / "x").mkdir(parents=True)
    with pytest.raises(MissingPackage, match="built without RPC"):
        open_model(small_pair["target"], Device(rpc=("127.0.0.1:9",)), Interrupt())
