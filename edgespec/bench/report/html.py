"""The report as one self-contained HTML file, without scripts, fonts or images from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

import jinja2

from ...terminal.show import printable
from ..records import Run, Stretch
from .charts import charts
from .charts.chart import Chart
from .tables import ReportTable, tables
from .wording import headline, interruption, remarks


class Section(NamedTuple):
    """A chart, a table, or both of the same data."""

    title: str
    chart: Chart | None
    table: ReportTable | None


def page(run: Run) -> str:
    """The whole report."""
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
        sections=list(_sections(run)),
        strip=[_visible(stretch) for stretch in run.typical.strip] if run.typical else [],
    )


def _sections(run: Run) -> Iterator[Section]:
    """Charts first, each with its table, then the tables that are left."""
    left = {table.title: table for table in tables(run)}
    for chart in charts(run):
        yield Section(chart.words.title, chart, left.pop(chart.words.title, None))
    for title, table in left.items():
        yield Section(title, None, table)


def _shown(value: object) -> object:
    """Texts without control characters, which a page must not contain."""
    return printable(value) if type(value) is str else value


def _visible(stretch: Stretch) -> Stretch:
    """A rejected line break as a visible character."""
    return stretch._replace(text=stretch.text.replace("\n", "⏎")) if stretch.kind == "rejected" else stretch
