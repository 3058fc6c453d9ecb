"""Cancel an answer from another thread, as the stop button of a user interface does.

    python examples/cancelling.py [MODEL]

A worker thread generates the answer, and this thread shows it. `Runtime.cancel` may be called from any thread: it ends
the answer within one pass of the model, also while the prompt is processed. The stream still ends with `Finished`.
"""

from __future__ import annotations

import sys
import threading
from queue import Queue

import edgespec
from edgespec import models

QUESTION = {"role": "user", "content": "Book a train to London on Friday for 2 people and summarize everything."}
ENOUGH = 20  # characters after which the user presses stop


def main(model: str = "") -> None:
    events: Queue[edgespec.Event | None] = Queue(maxsize=1)  # the worker is at most one event ahead

    def work() -> None:
        try:
            for event in runtime.chat([QUESTION]):
                events.put(event)
        finally:
            events.put(None)

    with edgespec.load(model or models.demo().target) as runtime:
        worker = threading.Thread(target=work)
        worker.start()
        shown = 0
        while (event := events.get()) is not None:  # an app does this in its event loop
            if isinstance(event, edgespec.Text):
                print(event.text, end="", flush=True)
                shown += len(event.text)
                if shown >= ENOUGH:
                    runtime.cancel()
            elif isinstance(event, edgespec.Finished):
                print(f"\n[ended by: {event.reason}]")
        worker.join()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except edgespec.EdgespecError as error:
        sys.exit(f"Error: {error}")
