"""The step "peers": edgespec against llama-server of the same build, on the same pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from edgespec.bench.peers import PEERS
from edgespec.bench.records import OURS
from edgespec.bench.suites import read

from .race import answered, contenders, figures, over
from .results import Item
from .setting import Setting

_SERVER = "llama-server"
_CONFIGURATIONS = tuple(
    f"{_SERVER}{kind}" for kind in ("", ":draft-3", ":draft-8", ":draft-16", ":ngram-simple", ":ngram-mod")
)
_CONTEXT = 2048


def items(setting: Setting) -> Iterator[Item]:
    """A race for each shape and type of weights."""
    for weights in ("Q4_0", "Q8_0")[: 1 if setting.small else None]:
        for size in reversed(setting.sizes):
            yield Item(f"{size} {weights}, llama-server", _race(setting, size, weights))


def _race(setting: Setting, size: str, weights: str) -> Callable[[], dict[str, Any]]:
    def work() -> dict[str, Any]:
        names = _CONFIGURATIONS[:2] if setting.small else _CONFIGURATIONS
        target, drafts = setting.target(size, weights), [setting.draft()]  # llama-server takes one
        with contenders(target, drafts, setting.place(context=_CONTEXT), names, setting) as (found, left_out):
            if not any(each.name in PEERS for each in found):
                raise RuntimeError(f"no {_SERVER} started: {'; '.join(left_out.values())}")
            run = answered(found, read("demo").limited(setting.questions), 0.0, setting.tokens)
        ours = {each.name: over(run, OURS, each.name) for each in run.contenders if each.name in PEERS}
        return {**figures(run), "edgespec over": ours, "left out": left_out}

    return work
