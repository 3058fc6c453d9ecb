"""The command `worker`: compute layers of models for other machines."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from ..backends.endpoint import Endpoint
from ..errors import OptionError
from ..values import whole


def build(source: Path) -> None:
    """Build llama.cpp's RPC from `source`, and print where it is. Raises as `build_rpc.build`."""
    from ..tools import build_rpc  # noqa: PLC0415

    click.echo(build_rpc.build(source))


def run(listen: str, threads: int, *, cache: bool, any_client: bool) -> None:
    """Serve clients until the process is ended.

    Raises:
        OptionError: `listen` is no address, or one of a network without `any_client`.
        MissingPackage: this llama.cpp has no RPC.
        EngineError: the address cannot be used.
    """
    from ..backends import llama_rpc  # noqa: PLC0415
    from ..storage.cache import cache_folder  # noqa: PLC0415

    endpoint = Endpoint.parse(listen)
    threads = whole("threads", threads, 0, 512)
    if not endpoint.is_local and not any_client:
        raise OptionError(
            f"{endpoint} can be reached from a network, and a worker knows no passwords: listen at "
            f"127.0.0.1:{endpoint.port} and use an SSH tunnel, or give --any-client where you trust all of the network"
        )
    if not endpoint.is_local:
        click.echo(f"whoever reaches {endpoint} may use, read and crash this worker", err=True)
    # llama.cpp waits in native code, where Python's handlers do not run.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    llama_rpc.serve(endpoint, threads, cache_folder() / "rpc" / "tensors" if cache else None)
