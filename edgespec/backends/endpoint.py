"""The address of a worker that computes layers of a model: HOST:PORT, by IPv4 as llama.cpp's RPC has it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from ..errors import EngineError, OptionError

DEFAULT = "127.0.0.1:50052"  #: llama.cpp's own default
MOST = 16  #: workers of one model; llama.cpp's GGML_RPC_MAX_SERVERS
_PORTS = (1, 65535)
_PATIENCE = 5.0  # seconds until a worker answers a greeting
# The greeting: the command's number, the size of what follows, and 24 bytes of capabilities. The answer: its size, the
# version of the protocol in 3 bytes, one byte of padding, and 24 bytes again.
_GREETING = bytes([14]) + (24).to_bytes(8, "little") + bytes(24)
_ANSWER = 8 + 28


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a worker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """The endpoint that `text` names.

        Raises:
            OptionError: it is not of the form HOST:PORT.
        """
        host, colon, port = text.rpartition(":")
        number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
        plain = host.isascii() and not set(host) & set(":/@,[]") and host == "".join(host.split())
        if not (colon and host and plain and _PORTS[0] <= number <= _PORTS[1]):
            raise OptionError(
                f"{text!r:.80} is not the address of a worker; give HOST:PORT, with an IPv4 address or a name, and a "
                f"port from {_PORTS[0]} to {_PORTS[1]}, as {DEFAULT}"
            )
        return cls(host, number)

    def address(self) -> str:
        """The IPv4 address of the host.

        Raises:
            EngineError: there is none.
        """
        try:
            return socket.gethostbyname(self.host)
        except (OSError, UnicodeError) as error:
            raise EngineError(f"the host of the worker {self} is not known ({error}); correct its name") from error

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.address().startswith("127.")

    def greet(self) -> tuple[int, int, int]:
        """The version of the protocol that the worker speaks.

        Raises:
            EngineError: nothing listens, it does not answer, or it is no worker.
        """
        start = f"start one there with `edgespec worker --listen {self}`"
        try:
            with socket.create_connection((self.address(), self.port), _PATIENCE) as connection:
                connection.sendall(_GREETING)
                answer = b""
                while len(answer) < _ANSWER and (more := connection.recv(_ANSWER - len(answer))):
                    answer += more
        except TimeoutError as error:
            raise EngineError(
                f"the worker at {self} does not answer: it serves one client at a time, or its machine is off; end the "
                "other client, or give it a worker of its own"
            ) from error
        except OSError as error:
            raise EngineError(f"no worker can be reached at {self} ({error.strerror or error}); {start}") from error
        if len(answer) < _ANSWER or int.from_bytes(answer[:8], "little") != _ANSWER - 8:
            raise EngineError(f"what listens at {self} is no worker, or of another version of llama.cpp; {start}")
        return answer[8], answer[9], answer[10]
