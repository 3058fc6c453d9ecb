"""The process that reads grammars: for each line of its input one of its output. It is run as a file, and imports
nothing of edgespec, so it starts in a tenth of a second.

A thread with a deep stack reads: the parser of grammars descends rule by rule, about 5 KB of stack for each, and 256 KB
of text has at most 40000 rules. A reading that takes too long ends the process, and so does one that takes too much
memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading

_STACK = 256 * 1024 * 1024
_MEMORY = 4 << 30


def main() -> None:
    patience = float(sys.argv[1])
    del sys.path[0]  # the folder of this file, where `llguidance` is another module
    import llguidance  # noqa: PLC0415

    _limit_memory()
    threading.stack_size(_STACK)
    limits = llguidance.LLParserLimits(verbose_errors=False)
    check = llguidance.LLMatcher.validate_grammar_with_warnings
    _say("ready")
    for line in sys.stdin.buffer:
        done: list[tuple[bool, list[str]]] = []

        def read(line: bytes = line, done: list[tuple[bool, list[str]]] = done) -> None:
            done.append(check(line.decode(), None, limits=limits))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(patience)
        if thread.is_alive():
            _say("late")
            os._exit(1)
        failed, messages = done[0]
        _say((messages[0] if messages else "no reason is given") if failed else None)


def _say(value: str | None) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on Windows; a lower limit stays
        import resource  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


if __name__ == "__main__":
    main()
