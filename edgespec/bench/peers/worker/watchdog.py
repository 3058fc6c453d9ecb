"""Run a program until standard input is closed, so that it ends with the parent process, however that ends.

    python watchdog.py PROGRAM [ARGUMENT ...]

The program's process id is the only line on standard output; what it prints goes to standard error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

_GRACE = 3.0  # seconds to exit before it is killed


def main() -> int:
    """Run it. Returns its exit status, 128 plus a signal's number, or 127 if it cannot be run."""
    try:
        program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr)  # noqa: S603
    except OSError as error:
        sys.stderr.write(f"{sys.argv[1]} cannot be run: {error.strerror or error}\n")
        return 127
    sys.stdout.write(f"{program.pid}\n")
    sys.stdout.flush()
    threading.Thread(target=_end_with_input, args=(program,), daemon=True).start()
    status = program.wait()
    return status if status >= 0 else 128 - status


def _end_with_input(program: subprocess.Popen[Any]) -> None:
    while os.read(0, 1):
        pass
    program.terminate()
    try:
        program.wait(_GRACE)
    except subprocess.TimeoutExpired:
        program.kill()


if __name__ == "__main__":
    sys.exit(main())
