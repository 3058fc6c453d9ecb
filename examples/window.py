"""A chat in a window of one's own, without a server: the answer streams, accepted drafts are green, rejected ones red.

    python examples/window.py [MODEL]

Tkinter is not safe on other threads: the answer is read on a thread, and its events reach the window by a queue.
"""

from __future__ import annotations

import queue
import sys
import threading
import tkinter as tk

import edgespec
from edgespec import models


class Window:
    """A question, Send and Stop, and the text of the chat."""

    def __init__(self, root: tk.Tk, runtime: edgespec.Runtime) -> None:
        self.root, self.runtime = root, runtime
        self.messages: list[dict[str, str]] = []
        self.events: queue.Queue[edgespec.Event | Exception] = queue.Queue()
        self.answer: edgespec.Answer | None = None
        root.title(f"edgespec: {runtime.description}")
        self.log = tk.Text(root, wrap="word", height=20, width=72, state="disabled", padx=8, pady=8)
        self.log.tag_configure("accepted", foreground="#116329", underline=True)
        self.log.tag_configure("rejected", foreground="#a40e26", overstrike=True)
        self.log.tag_configure("question", background="#f0f2f4")
        self.log.tag_configure("figures", foreground="#59636e")
        self.log.pack(fill="both", expand=True)
        row = tk.Frame(root)
        row.pack(fill="x")
        self.question = tk.Entry(row)
        self.question.pack(side="left", fill="x", expand=True, padx=4, pady=4)
        self.question.bind("<Return>", lambda _event: self.send())
        self.button = tk.Button(row, text="Send", command=self.send)
        self.button.pack(side="right", padx=4)
        self.question.focus()
        root.protocol("WM_DELETE_WINDOW", self.close)
        self.poll()

    def send(self) -> None:
        """Ask, or stop the answer under way."""
        if self.answer is not None:
            self.answer.cancel()
            return
        text = self.question.get().strip()
        if not text:
            return
        self.question.delete(0, "end")
        self.write(f"{text}\n", "question")
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": ""}]
        self.answer = self.runtime.chat(self.messages[:-1], max_tokens=200)
        self.button["text"] = "Stop"
        threading.Thread(target=self.read, args=(self.answer,), daemon=True).start()

    def read(self, answer: edgespec.Answer) -> None:
        """On a thread: hand the events to the window."""
        try:
            for event in answer:
                self.events.put(event)
        except edgespec.EdgespecError as error:
            self.events.put(error)

    def poll(self) -> None:
        """Show what has arrived, 50 times a second."""
        while not self.events.empty():
            self.show(self.events.get())
        self.root.after(20, self.poll)

    def show(self, event: edgespec.Event | Exception) -> None:
        """Show one event."""
        if isinstance(event, edgespec.Text):
            drafted = [span for span in event.spans if span.drafted]
            for span in drafted:
                self.write(span.text, "accepted")
            draft = event.round.draft
            lost = [token for node, token in enumerate(draft.tokens) if node not in event.round.path]
            self.write(self.runtime.text(lost), "rejected")
            for span in event.spans[len(drafted) :]:  # the target's own token is the last of a round
                self.write(span.text)
            self.messages[-1]["content"] += event.text
        elif isinstance(event, edgespec.Finished):
            stats = event.stats
            self.write(f"\n{stats.tokens} tokens in {stats.rounds} passes; ended by: {event.reason}\n\n", "figures")
        if isinstance(event, Exception):
            self.write(f"\n{event}\n", "rejected")
        if isinstance(event, edgespec.Finished | Exception):
            self.answer, self.button["text"] = None, "Send"

    def write(self, text: str, *tags: str) -> None:
        """Add text at the end."""
        self.log["state"] = "normal"
        self.log.insert("end", text, tags)
        self.log["state"] = "disabled"
        self.log.see("end")

    def close(self) -> None:
        """Stop the answer, then close the window."""
        self.runtime.cancel()
        self.root.destroy()


def main(model: str = "") -> None:
    with edgespec.load(model or models.demo().target) as runtime:
        root = tk.Tk()
        Window(root, runtime)
        root.mainloop()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (edgespec.EdgespecError, tk.TclError) as error:
        sys.exit(f"Error: {error}")
