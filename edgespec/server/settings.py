"""The settings of a server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from ipaddress import ip_address

from ..errors import OptionError
from ..sampling import Sampling
from ..values import whole

PATIENCE = 60.0
HEARTBEAT = 10.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Settings:
    """How to serve.

    Args:
        name: of the model, as clients see it.
        host: the address to listen on.
        port: likewise; 0 takes a free one.
        slots: requests that are computed at the same time, each with a KV cache of its own.
        queue: requests that wait at most; further ones are refused with 429.
        keys: API keys, of which a request must have one; empty asks for none.
        open: whether a host other than loopback may be served without keys.
        cors: origins of web pages that may call the server.
        hosts: names in the header Host that are accepted beside loopback, IP addresses and `host`.
        strict_model: whether a request for a model of another name is refused with 404.
        sampling: of requests that do not say otherwise.
        max_tokens: of answers to such requests; None continues to the end of the context.
        patience: seconds that a client may take to send the head of a request, to send its body, and to read what it
            was sent; then the connection is closed.
        heartbeat: seconds without an event after which a comment keeps a stream open.
        seeded: whether `sampling.seed` is for all requests without one; otherwise each gets a random one.

    Raises:
        OptionError: a value out of range, or a host that others can reach, without a key.
    """

    name: str = "edgespec"
    host: str = "127.0.0.1"
    port: int = 8080
    slots: int = 1
    queue: int = 16
    keys: tuple[str, ...] = ()
    open: bool = False
    cors: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    strict_model: bool = False
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen
    max_tokens: int | None = None
    seeded: bool = False
    patience: float = PATIENCE
    heartbeat: float = HEARTBEAT

    def __post_init__(self) -> None:
        whole("port", self.port, 0, 65535)
        whole("slots", self.slots, 1, 64)
        whole("queue", self.queue, 0, 4096)
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 1)
        for name in ("patience", "heartbeat"):
            if not 0 < getattr(self, name) < math.inf:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be a number of seconds above 0")
        if not all(key.isascii() and key.isprintable() and key.strip() == key != "" for key in self.keys):
            raise OptionError("an API key must be printable ASCII without spaces around it, and not empty")
        if not (is_loopback(self.host) or self.keys or self.open):
            raise OptionError(
                f"other machines may reach {self.host}: give --api-key or --api-key-file, or --no-key to serve anyone"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host in LOOPBACK:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
