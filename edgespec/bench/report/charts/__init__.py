"""The charts of a report, a file each."""

from __future__ import annotations

from ...records import Run
from . import acceptance, latency, lengths, prices, speedups
from .chart import Chart


def charts(run: Run) -> list[Chart]:
    """The charts with data."""
    drawn = (kind.chart(run) for kind in (speedups, prices, lengths, acceptance, latency))
    return [chart for chart in drawn if chart is not None]
