"""What a pass over n tokens costs on this machine: measured at load, kept on disk, corrected by every round.

Prices are a staircase that depends on machine, quantization, threads, cache length and what else runs (llama.cpp's
kernels take rows in groups of 4 or 8), so nothing is assumed of their shape.
"""

from .head_step import head_step, state_head_step
from .measuring import WIDTHS, Clock, Curve, calmed, filler, measure, measure_here, refresh, restless
from .prices import BASE, Prices
from .running import RunningPrice
from .sample_text import sample_text
from .store import keep, measure_and_keep, recall
from .table import Table

__all__ = [
    "BASE",
    "WIDTHS",
    "Clock",
    "Curve",
    "Prices",
    "RunningPrice",
    "Table",
    "calmed",
    "filler",
    "head_step",
    "keep",
    "measure",
    "measure_and_keep",
    "measure_here",
    "recall",
    "refresh",
    "restless",
    "sample_text",
    "state_head_step",
]
