"""Answer requests on standard input, a line of JSON each, with an engine that is a file beside this one.

    python protocol.py ENGINE.py

The first line has the settings of the engine, and is answered by {"ready": VERSION}. Each further line is a request,
answered by {"tokens", "text"} for each chunk, and {"done": SECONDS OF THE PROMPT} or {"failed": REASON} at the end. The
process ends when its input is closed.
"""

from __future__ import annotations

import json
import os
import queue
import runpy
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Tells tokens that came together and their text.
Say = Callable[[Sequence[int], str], None]
#: Answers what is asked; the seconds of all of the prompt but its last token.
Answer = Callable[[Mapping[str, Any], Say], float]


def main() -> None:
    """Serve until the input ends, or the engine fails."""
    # An engine's file has the name of its package, and must not be taken for it.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what an engine prints is not part of this

    def tell(message: Mapping[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")

    def say(tokens: Sequence[int], text: str) -> None:
        tell({"tokens": list(tokens), "text": text})

    asked = _lines()
    try:
        answer, version = runpy.run_path(sys.argv[1])["load"](asked.get())
    except Exception as error:
        tell(_failed(error))
        raise
    tell({"ready": version})
    while True:
        try:
            tell({"done": answer(asked.get(), say)})
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is part of the response
            tell(_failed(error))


def _failed(error: Exception) -> dict[str, str]:
    return {"failed": " ".join(f"{type(error).__name__}: {error}".split())}


def _lines() -> queue.SimpleQueue[Any]:
    """The requests. The process exits at the end of the input, even during an answer."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        with os.fdopen(os.dup(0), encoding="utf-8") as lines:
            for line in lines:
                found.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return found


if __name__ == "__main__":
    main()
