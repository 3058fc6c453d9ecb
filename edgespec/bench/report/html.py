"""A run as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from importlib import resources

import jinja2

from ...terminal.show import printable
from ..records import Run, Stretch
from .charts import charts
from .tables import tables
from .wording import headline, interruption, remarks


def page(run: Run) -> str:
    """All of it."""
    folder = resources.files(__package__)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_shown
    )
    template = environment.from_string((folder / "page.html.j2").read_text("utf-8"))
    return template.render(
        run=run,
        style=(folder / "page.css").read_text("utf-8"),
        headline=headline(run),
        interruption=interruption(run),
        remarks=list(remarks(run)),
        charts=charts(run),
        tables=tables(run),
        strip=[_visible(stretch) for stretch in run.typical.strip] if run.typical else [],
    )


def _shown(value: object) -> object:
    """Texts without the characters that a page must not hold, wherever they came from."""
    return printable(value) if type(value) is str else value


def _visible(stretch: Stretch) -> Stretch:
    """A rejected line break, which must not break the line."""
    return stretch._replace(text=stretch.text.replace("\n", "⏎")) if stretch.kind == "rejected" else stretch
