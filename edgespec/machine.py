"""What is asked of the machine."""

from __future__ import annotations

import os

import psutil


def physical_cores() -> int:
    """Cores this process may use, hyper-threads not counted twice."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
