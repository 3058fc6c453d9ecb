"""`edgespec serve`: listens, loads the model, and serves until a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import EngineError, OptionError
from ..extras import require
from .options import LoadOptions, SamplingOptions
from .remarks import remark
from .serve_options import ServeOptions

if TYPE_CHECKING:
    from ..runtime.runtime import Runtime
    from ..server.running import Running
    from ..server.service import Service

_POLL = 0.2  # seconds; on Windows a signal does not end a wait without a timeout
_SLOTS = 2  # where none are given, and memory allows


def serve(load: LoadOptions, sampling: SamplingOptions, options: ServeOptions) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises as `LoadOptions.open`, and OptionError for wrong options."""
    for package in ("starlette", "uvicorn", "prometheus_client", "httpx"):
        require(package, "serve")
    from ..server.app import make_app  # noqa: PLC0415
    from ..server.running import Running, address, listen  # noqa: PLC0415
    from ..server.service import Service  # noqa: PLC0415

    settings = options.settings(load.model)
    service = Service(settings)
    if options.upstream is not None:
        _pass_on(load, options, service)
        return
    with ExitStack() as closing:
        listening = closing.enter_context(listen(settings))
        running = closing.enter_context(_stopped(Running(make_app(service), service, listening)))
        runtime = closing.enter_context(load.open())
        closing.callback(service.close)
        runtimes = [runtime, *map(closing.enter_context, _others(runtime, options.slots))]
        chosen = sampling.sampling(runtime.sampling, seed=0)
        settings = replace(
            settings,
            slots=len(runtimes),
            sampling=chosen,
            max_tokens=sampling.max_tokens,
            seeded=sampling.seed is not None,
        )
        service.open(runtimes, settings)
        remark(
            f"{runtime.description}, context {runtime.context}, {len(runtimes)} slot{'s' * (len(runtimes) > 1)}\n"
            f"{address(listening)}/v1 for clients of OpenAI's API, model {settings.name!r}; Ctrl-C ends it"
        )
        _wait(running)


def _pass_on(load: LoadOptions, options: ServeOptions, service: Service) -> None:
    """Serve what another server answers."""
    from ..server.running import Running, address, listen  # noqa: PLC0415
    from ..server.upstream import Upstream, make_proxy  # noqa: PLC0415

    if load.model is not None:
        raise OptionError(f"--upstream loads no model, and {load.model} is given; leave one of them out")
    upstream = Upstream.parse(options.upstream or "", options.upstream_key())
    with ExitStack() as closing:
        listening = closing.enter_context(listen(service.settings))
        app = make_proxy(upstream, service.settings)
        running = closing.enter_context(_stopped(Running(app, service, listening)))
        remark(f"{address(listening)}/v1 passes requests on to {upstream.url}; Ctrl-C ends it")
        _wait(running)


def _others(runtime: Runtime, slots: int | None) -> Iterator[Runtime]:
    """The runtimes of the slots after the first one."""
    for _ in range((_SLOTS if slots is None else slots) - 1):
        try:
            yield runtime.another()
        except EngineError as error:
            if slots is not None:
                raise
            remark(f"one slot, since there is no memory for a second one: {error}")
            return


@contextmanager
def _stopped(running: Running) -> Iterator[Running]:
    """`running`, which has ended after the block."""
    try:
        yield running
    finally:
        running.stop()
        while not running.ended(_POLL):
            pass


def _wait(running: Running) -> None:
    """Wait until the server has ended. SIGTERM and Ctrl-C end it."""
    with _on_signals(running.stop):
        while not running.ended(_POLL):
            pass


@contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    before: dict[int, Any] = {}
    try:
        for heard in (signal.SIGINT, signal.SIGTERM):
            before[heard] = signal.signal(heard, lambda _signal, _frame: stop())
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
