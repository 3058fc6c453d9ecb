"""A GGUF model of which workers compute the layers, by llama.cpp's RPC.

The model is in a process of its own, see `llama_remote_process`; its vocabulary is read here. When a worker is lost the
call that needs it raises EngineError, and the next one loads the model again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ClosedError, EngineError, Interrupted
from ..types import Floats
from . import Device, Interrupt
from .endpoint import Endpoint
from .llama_library import bindings
from .llama_remote_process import RemoteProcess, error_of, shown
from .llama_remote_protocol import Said
from .llama_rpc import library
from .llama_vocabulary import LlamaVocabulary
from .llama_weights import load


def open_model(path: Path, device: Device, interrupt: Interrupt) -> RemoteModel:
    """Load a GGUF file over the workers `device.rpc`.

    Raises:
        MissingPackage: this llama.cpp has no RPC.
        EngineError: a worker cannot be reached, or was lost.
        ModelFileError, OptionError, Interrupted: as those of `llama`.
    """
    library()
    return RemoteModel(path, device, interrupt)


class RemoteModel:
    """The weights of a GGUF file on workers."""

    def __init__(self, path: Path, device: Device, interrupt: Interrupt) -> None:
        self._path, self._device = path, device
        self._endpoints = [Endpoint.parse(each) for each in device.rpc]
        self.interrupt = interrupt
        self._closed = False
        self._process: RemoteProcess | None = None
        facts = self._load(interrupt)
        self.trained_context = int(facts["trained_context"])
        self.description = f"{facts['description']} on {', '.join(map(str, self._endpoints))}"
        self.sampling: dict[str, float] = facts["sampling"]
        self.weights: str = facts["weights"]
        self._notices = [*facts["notices"], *self._open_to_others()]
        low = bindings()
        params = low.llama_model_default_params()
        params.vocab_only = True
        self._low, self._tokens = low, load(low, path, params, interrupt)
        self.vocabulary = LlamaVocabulary(low, self._tokens)

    @property
    def notices(self) -> Sequence[str]:
        return tuple(self._notices)

    def session(self, context: int, interrupt: Interrupt | None = None) -> RemoteSession:
        """A new sequence, stopped by `interrupt`, by default the model's own.

        Raises:
            OptionError, EngineError: as the sessions of `llama.LlamaModel`; a worker was lost.
        """
        return RemoteSession(self, context, interrupt or self.interrupt)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.vocabulary.close()
            self._low.llama_model_free(self._tokens)
            if self._process is not None:
                self._process.close()

    def process(self, interrupt: Interrupt) -> RemoteProcess:
        """The process that holds the model, which is loaded again if it was lost.

        Raises:
            ClosedError: the model was closed.
            EngineError, Interrupted: as `open_model`.
        """
        if self._closed:
            raise ClosedError("this model is closed; load it again")
        if self._process is None or not self._process.is_alive:
            self._load(interrupt)
        assert self._process is not None  # noqa: S101 - loaded
        return self._process

    def failed(self, error: EngineError) -> EngineError:
        """The error for users where the process has ended with `error`: which worker was lost."""
        for endpoint in self._endpoints:
            try:
                endpoint.greet()
            except EngineError as reason:
                return EngineError(f"a worker was lost: {reason}; then ask again, and the model is loaded again")
        return EngineError(
            f"the process of {self._path.name} on {', '.join(map(str, self._endpoints))} ended ({error}); ask again, "
            "and the model is loaded again; workers need the same version of llama.cpp"
        )

    def _load(self, interrupt: Interrupt) -> Said:
        for endpoint in self._endpoints:
            endpoint.greet()
        process = RemoteProcess()
        plain = replace(self._device, rpc=(), backend="llama")
        given = {field.name: getattr(plain, field.name) for field in fields(plain)}
        try:
            said, _ = process.ask("load", interrupt, path=shown(self._path), device=given, rpc=list(self._device.rpc))
            if (error := error_of(said)) is not None:
                raise error
        except BaseException as error:
            process.close()
            if isinstance(error, EngineError) and not process.was_answered:
                raise self.failed(error) from error
            raise
        self._process = process
        return said

    def _open_to_others(self) -> list[str]:
        far = [str(each) for each in self._endpoints if not each.is_local]
        if not far:
            return []
        said = f"What is sent to {', '.join(far)} is neither encrypted nor authenticated"
        return [f"{said}: use a network that you trust, or an SSH tunnel (docs/rpc.md)"]


class RemoteSession:
    """One sequence of a model on workers; see `backends.Session`."""

    vocab: int
    context: int
    reach: int | None
    replays: bool
    settling: int
    can_tree: bool
    leaves: int
    widest: int
    identity: str

    def __init__(self, model: RemoteModel, context: int, interrupt: Interrupt) -> None:
        self._model, self._asked_context, self.interrupt = model, context, interrupt
        self._held: list[int] = []
        self.owed = 0
        self._closed = False
        self._process: RemoteProcess | None = None
        self._number = -1
        self._open()

    @property
    def tokens(self) -> Sequence[int]:
        return self._held

    def prefill(self, tokens: Sequence[int]) -> None:
        self._ask("prefill", tokens=_plain(tokens))

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        rows = self._ask("decode", tokens=_plain(tokens), tree=None if tree is None else _plain(tree))
        return np.frombuffer(rows, np.float32).reshape(len(tokens), self.vocab)

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        self._ask("rollback", length=int(length), keep=_plain(keep))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._process is not None and self._process.is_alive:
            try:
                self._process.ask("close", Interrupt(), session=self._number)
            except (EngineError, Interrupted):
                return  # it has ended, and with it the session

    def _open(self) -> None:
        """Open the session in the process of the model, empty."""
        process = self._model.process(self.interrupt)
        said, _ = self._heard(process, "open", context=self._asked_context)
        self._process, self._number = process, said.pop("session")
        for name, value in said.items():
            setattr(self, name, value)
        self.identity += f"|rpc={self._model.description}"

    def _ask(self, do: str, **said: Any) -> bytearray:
        if self._closed:
            raise ClosedError("this session is closed; open another")
        if self._process is None or not self._process.is_alive:
            self._lose()
            self._open()
        assert self._process is not None  # noqa: S101 - opened
        answer, rows = self._heard(self._process, do, session=self._number, **said)
        del self._held[answer["same"] :]
        self._held += answer["rest"]
        self.owed = answer["owed"]
        if (error := error_of(answer)) is not None:
            raise error
        return rows

    def _heard(self, process: RemoteProcess, do: str, **said: Any) -> tuple[Said, bytearray]:
        try:
            answer, rows = process.ask(do, self.interrupt, **said)
        except Interrupted:
            self._lose()
            raise
        except EngineError as error:
            self._lose()
            raise self._model.failed(error) from error
        if "same" not in answer and (refused := error_of(answer)) is not None:
            raise refused
        answer.pop("number")
        return answer, rows

    def _lose(self) -> None:
        """What the session held is lost with the process."""
        self._held, self.owed, self._process = [], 0, None


def _plain(numbers: Sequence[int]) -> list[int]:
    """As JSON has them: NumPy's integers are none."""
    return [int(number) for number in numbers]
