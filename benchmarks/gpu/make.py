"""python -m benchmarks.gpu.make KIT WORK DEVICE ARCHITECTURE JOBS: the step "build", in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from .build import BuildFailed
from .run import begin

if __name__ == "__main__":
    kit, work, device, architecture, jobs = sys.argv[1:]
    try:
        begin(Path(kit), Path(work), device, "" if architecture == "-" else architecture, int(jobs))
    except BuildFailed as error:
        sys.exit(f"The build failed: {error}")
