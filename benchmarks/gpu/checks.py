"""The step "check": what must hold on a card, each with small models of random or trained weights.

Texts are compared with plain decoding (`edgespec check`), states with those of a new session (`tests.hybrid_steps`).
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edgespec import Device, Runtime, Sampling, Speculation, load, models
from edgespec.engine import Finished, Text
from edgespec.errors import OptionError
from edgespec.models.fit import Requested, plan
from edgespec.terminal.check_report import CheckReport, read_prompts
from edgespec.tools.check import check
from tests import hybrid_steps, hybrids

from . import check_heads
from .results import Item, LeftOut
from .setting import Setting

_TEMPERATURES = (0.0, 0.8)
_TOKENS = 96
_FEW = 2  # prompts of a rehearsal
_STEPS = 300
#: Logits of one text in passes of other widths differ by this much at most: a card has other kernels by width, some of
#: which round to 16 bits. Another last token changes them by more than 1.
_ROUNDING = 0.3
#: Share of the passes that may differ by more, where a router near a tie takes another expert: weights that are moved
#: by a thousandth move the logits of such a model by up to 5.4, those of the same without experts by 0.9.
_BEYOND = {"qwen35moe": 0.1}
_KEPT = 64 << 20  # bytes that a closed model may leave, for the kernels that were loaded
_ROUNDS = 4
_PART = 0.25  # of a plan's bytes on the card, by which it may be off
Found = dict[str, Any]


def items(setting: Setting) -> Iterator[Item]:
    """All checks, the most important first."""
    demo = models.demo()
    for temperature in _TEMPERATURES:
        yield Item(f"demo pair, chains and trees, T = {temperature:g}", _texts(setting, demo.target, temperature))
    yield from check_heads.items(setting)
    for name in hybrids.ARCHITECTURES:
        for drafts in (False, True):
            use = "draft" if drafts else "target"
            yield Item(f"recurrent states of {name} as a {use}", _states(setting, name, drafts=drafts))
    yield Item("exact passes on the processor", _texts(setting, demo.target, 0.0, setting.place(layers=0, exact=2)))
    yield Item("exact passes are refused on the card", partial(_exact_refused, setting))
    yield Item("half of the layers on the card", partial(_half, setting))
    yield Item("cancelled between passes", partial(cancelled, setting))
    yield Item("memory after closing", partial(after_closing, setting))
    for size in setting.sizes:
        yield Item(f"fit plan of {size}", partial(fit_plan, setting, size))
        for temperature in _TEMPERATURES:
            yield Item(f"{size} in Q4_0, T = {temperature:g}", partial(_large, setting, size, temperature))


def _texts(
    setting: Setting, target: Path, temperature: float, device: Device | None = None, draft: Path | None = None
) -> Callable[[], Found]:
    def work() -> Found:
        with load(target, draft, device=device or setting.place()) as runtime:
            prompts = read_prompts(None, runtime)
            return compared(runtime, prompts[: _FEW if setting.small else None], temperature, setting.tokens)

    return work


def _half(setting: Setting) -> Found:
    if not setting.gpu:
        raise LeftOut("there is no card")
    return _texts(setting, models.demo().target, 0.0, setting.place(layers=2))()


def _large(setting: Setting, size: str, temperature: float) -> Found:
    return _texts(setting, setting.target(size, "Q4_0"), temperature, draft=setting.draft())()


def compared(runtime: Runtime, prompts: Sequence[Sequence[int]], temperature: float, tokens: int) -> Found:
    """Texts with drafts in every round, and plain ones."""
    report = CheckReport(len(prompts))
    for verdict in check(runtime, prompts, Sampling(temperature=temperature, seed=1), tokens):
        report.add(verdict)
    return {
        "passed": report.passed,
        "said": report.text().splitlines()[-2:],
        "drafters": list(runtime.drafters),
        "trees": runtime.session.can_tree,
    }


def _states(setting: Setting, name: str, *, drafts: bool) -> Callable[[], Found]:
    def work() -> Found:
        with tempfile.TemporaryDirectory() as folder:
            path = hybrid_steps.written(Path(folder), name)
            steps = _STEPS // (5 if setting.small else 1)
            done = hybrid_steps.random_steps(
                path,
                steps,
                rounding=_ROUNDING,
                beyond=_BEYOND.get(name, 0.0),
                drafts=drafts,
                gpu_layers=setting.place().gpu_layers,
            )
        return {"passed": done.decodes > 0, **done._asdict()}

    return work


def _exact_refused(setting: Setting) -> Found:
    if not setting.gpu:
        raise LeftOut("there is no card")
    try:
        load(models.demo().target, "none", device=Device(exact=2, gpu_layers=99)).close()
    except OptionError as error:
        return {"passed": True, "said": str(error)}
    return {"passed": False, "said": "it was not refused"}


def cancelled(setting: Setting) -> Found:
    """An answer that is cancelled after its first round, by another thread, and the same question again in full."""
    demo = models.demo()
    # Of the answer's 9 tokens a round has 3 at most, so that there is something left to cancel.
    with load(demo.target, device=setting.place(), speculation=Speculation(k=2)) as runtime:
        prompt = read_prompts(None, runtime)[0]

        def said(cancel_after: int | None) -> tuple[list[int], str]:
            tokens, reason = list[int](), ""
            for event in runtime.complete(prompt, Sampling(temperature=0.0), max_tokens=_TOKENS):
                if isinstance(event, Text):
                    tokens += event.tokens
                    if cancel_after is not None and len(tokens) >= cancel_after:
                        thread = threading.Thread(target=runtime.cancel)
                        thread.start()
                        thread.join()
                elif isinstance(event, Finished):
                    reason = event.reason
            return tokens, reason

        whole, _ = said(None)
        part, reason = said(1)
        again, _ = said(None)
    passed = reason == "cancelled" and again == whole and part == whole[: len(part)] and len(part) < len(whole)
    return {"passed": passed, "tokens before": len(part), "tokens": len(whole), "reason": reason}


def after_closing(setting: Setting) -> Found:
    """Memory after models were opened, asked and closed some times: the first time may leave kernels."""
    left = []
    for _ in range(_ROUNDS):
        with load(models.demo().target, device=setting.place(), speculation=Speculation()) as runtime:
            for _event in runtime.complete(read_prompts(None, runtime)[0], Sampling(), max_tokens=8):
                pass
        left.append(setting.free())
    lost = left[0] - left[-1]
    found: Found = {"MB lost": round(lost / 1e6, 1), "times": _ROUNDS - 1}
    return {**found, "passed": lost < _KEPT} if setting.gpu else found  # other programs use this machine's memory, too


def fit_plan(setting: Setting, size: str) -> Found:
    """What a plan says of a pair on the card, and what it takes there."""
    if not setting.gpu:
        raise LeftOut("there is no card")
    target, draft = setting.target(size, "Q4_0"), setting.draft()
    found: Found = {"passed": True}
    for context in (2048, 16384):
        before = setting.free()
        planned = plan(target, draft, Requested(context))
        device = Device(context, 0, gpu_layers=planned.gpu_layers, draft_gpu_layers=planned.draft_gpu_layers)
        with load(target, draft, device=device) as runtime:
            for _event in runtime.complete(read_prompts(None, runtime)[0], Sampling(), max_tokens=8):
                pass
            used = before - setting.free()
        found[f"context {context}"] = {
            "planned MB": round(planned.on_gpu / 1e6),
            "used MB": round(used / 1e6),
            "layers": planned.gpu_layers,
        }
        found["passed"] &= abs(used - planned.on_gpu) <= _PART * planned.on_gpu + _KEPT * 8
    return found
