"""The response stream of `llama-server`: server-sent events, a JSON object per token, with the timings in the last.

The tokens of a round of speculation come together. A token that ends inside a character is not reported; those
that end the turn are, without text.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ..contender import Chunk, Done


class Completion:
    """The chunks of a streamed answer.

    Args:
        patience: seconds without a token after which it is given up; it may send signs of life for ever.
    """

    def __init__(self, response: http.client.HTTPResponse, patience: float) -> None:
        self._response = response
        self._patience = patience
        self._seen = 0

    def __iter__(self) -> Iterator[Chunk | Done]:
        """Yield the chunks; `Done` is last.

        Raises:
            TimeoutError: nothing came for too long.
            EOFError, OSError, HTTPException: it broke off.
            ValueError, KeyError: it was refused, or is no such stream.
        """
        if self._response.status != http.client.OK:
            raise ValueError(f"it refused: {_complaint(self._response.read())}")
        held: Chunk | None = None  # without a text: it may turn out to be what ended the turn
        for event in self._events():
            if event.get("stop"):
                yield from self._rest(event, held)
                yield Done(_prompt_seconds(event["timings"]))
                return
            said = self._said(event)
            if held is not None:
                yield held
            held = None if said.text else said
            if held is None:
                yield said
        raise EOFError("its answer broke off")

    def _events(self) -> Iterator[Mapping[str, Any]]:
        heard = time.monotonic()
        while line := self._response.readline():
            kind, _, body = line.partition(b": ")
            if kind in (b"data", b"error"):
                event = json.loads(body)
                if "stop" not in event:
                    raise ValueError(f"it gave up: {_complaint(body)}")
                heard = time.monotonic()
                yield event
            elif time.monotonic() - heard > self._patience:
                raise TimeoutError

    def _said(self, event: Mapping[str, Any]) -> Chunk:
        tokens, total = tuple(event["tokens"]), event["tokens_predicted"]
        count, self._seen = total - self._seen, total
        return Chunk(event["content"], tokens if len(tokens) == count else None, count)

    def _rest(self, last: Mapping[str, Any], held: Chunk | None) -> Iterator[Chunk]:
        """The remaining tokens, without the one that ended the turn."""
        tokens, count = (held.tokens, held.count) if held is not None else (None, 0)
        owed = count + last["tokens_predicted"] - self._seen - (last["stop_type"] == "eos")
        if owed > 0:
            yield Chunk("", tokens if owed == count else None, owed)


def _prompt_seconds(timings: Mapping[str, Any]) -> float:
    """The server's time for the prompt without the last token's share: the arrival of the first token is less exact."""
    computed = timings["prompt_n"]
    return float(timings["prompt_ms"]) / 1000 * (computed - 1) / computed if computed else 0.0


def _complaint(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return " ".join(body.decode("utf-8", "replace").split())[:200] or "without a reason"
