"""Draw a chat of the demo pair in a terminal, with its drafts marked, as docs/chat.svg: `python docs/picture.py`.

The text is what `edgespec chat --show-drafts --k 5 --temp 0` prints. K is fixed, so that the picture does not depend on
the prices of the machine that it is made on.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

import edgespec
from edgespec import models
from edgespec.terminal.chat import Chat
from edgespec.terminal.show import MarkedText

OUT = Path(__file__).parent / "chat.svg"
COLUMNS = 88
QUESTIONS = (
    models.DEMO_PROMPT.read_text("utf-8").strip(),
    "I need a table for two in Oakland tonight.",
)
#: The colours of GitHub's dark pages, on which green and red are told apart from the text.
DARK = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [(72, 79, 88), (255, 123, 114), (86, 211, 100), *[(230, 237, 243)] * 5],
)


def conversation() -> str:
    """The chat as a terminal gets it, with escape sequences."""
    pair, said = models.demo(), [""]
    with edgespec.load(pair.target, draft=pair.drafts[0], speculation=edgespec.Speculation(k=5)) as runtime:
        chat = Chat(runtime, edgespec.Sampling(temperature=0), drafts=True, out=said.append, note=said.append)
        said += [MarkedText(runtime, colour=True).legend(), "\n\n"]
        for question in QUESTIONS:
            said.append(f"> {question}\n")
            chat.answer(question)
            said.append("\n")
    return "".join(said).rstrip()


def drawn(text: str) -> str:
    """An SVG that needs nothing from elsewhere: the reader's own font, and no script."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="edgespec chat --show-drafts", theme=DARK, unique_id="chat")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    OUT.write_text(drawn(conversation()), "utf-8")
