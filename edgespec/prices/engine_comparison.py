"""Which engine is the fastest for a model file that several engines open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..backends import (
    TITLES,
    Device,
    EngineChoice,
    Interrupt,
    engines,
    exit_layer,
    installed,
    keep_choice,
    open_model,
    parallel_of,
    recall_choice,
)
from ..errors import EngineError, MissingPackage, ModelError, OptionError
from .draft_length import TYPICAL, best, committed
from .prices import Prices
from .sample_text import sample_text
from .store import measure_and_keep

_CONTEXT = 256  # tokens: prices are measured at the base cache length alone

Report = Callable[[str, float], None]


def with_engine(
    path: Path,
    device: Device,
    interrupt: Interrupt,
    *,
    drafts: bool = False,
    again: bool = False,
    on_progress: Report | None = None,
) -> tuple[Device, EngineChoice | None]:
    """The device with the fastest engine for the model at `path`, and the choice, None where there was none to make.

    Every engine that opens the file is measured once, with its prices kept for the next load; later runs recall the
    choice. An engine that cannot load the model is left out.

    Args:
        drafts: whether the model drafts: by its header token by token, or in blocks (PARD), of which 70% are accepted
            at each place; else it verifies drafts, of which 70% are accepted.
        again: whether to measure although the choice is known.
        on_progress: called with what is being measured, such as "target in OpenVINO", and the share done.

    Raises:
        Interrupted, ModelFileError.
    """
    if device.backend != "auto" or device.rpc:
        return device, None
    if device.head and exit_layer(path):
        return replace(device, backend="onnx"), None  # the only engine in which first layers draft
    candidates = [engine for engine in engines(path) if installed(engine)]
    if len(candidates) < 2:
        return device, None
    choice = None if again else recall_choice(path, device, drafts=drafts)
    if choice is None:
        job = _Job(path, device, interrupt, drafts, on_progress or (lambda _engine, _share: None))
        choice = job.compared(candidates)
    return (device if choice is None else replace(device, backend=choice.engine)), choice


@dataclass(frozen=True, slots=True)
class PairEngines:
    """The engines of a target and its drafts.

    Args:
        device: with the engine of the target.
        target: what led to the target's engine; None where there was none to choose.
        draft_devices: for each draft.
        drafts: what led to the engine of each draft.
    """

    device: Device
    target: EngineChoice | None
    draft_devices: tuple[Device, ...] = ()
    drafts: tuple[EngineChoice | None, ...] = ()


def with_engines(
    target: Path,
    drafts: Sequence[Path],
    device: Device,
    interrupt: Interrupt,
    *,
    again: bool = False,
    on_progress: Report | None = None,
) -> PairEngines:
    """The fastest engines for a target and its drafts; see `with_engine`.

    Raises:
        Interrupted, ModelFileError.
    """
    chosen, choice = with_engine(target, device, interrupt, again=again, on_progress=on_progress)
    engine = engines(target)[0] if chosen.backend == "auto" else chosen.backend
    found = []
    for draft in drafts:
        place = replace(device.of_draft(draft), beside="auto" if engine in engines(draft) else engine)
        found.append(with_engine(draft, place, interrupt, drafts=True, again=again, on_progress=on_progress))
    return PairEngines(chosen, choice, tuple(each for each, _ in found), tuple(each for _, each in found))


@dataclass(frozen=True, slots=True)
class _Job:
    """A file, and how it is measured."""

    path: Path
    device: Device
    interrupt: Interrupt
    drafts: bool
    report: Report

    def compared(self, candidates: Sequence[str]) -> EngineChoice | None:
        """Measure the engines and keep the choice; None if none loads the model, as opening it will report."""
        found: dict[str, tuple[Prices, int]] = {}
        for engine in candidates:
            with suppress(ModelError, EngineError, MissingPackage, OptionError):
                found[engine] = self._measured(engine)
        if not found:
            return None
        curves = {engine: prices.curve() for engine, (prices, _) in found.items()}
        speeds = {engine: self._speed(*each) for engine, each in found.items()}
        busy = [engine for engine, (prices, _) in found.items() if not prices.trusted]
        choice = EngineChoice(max(speeds, key=lambda engine: speeds[engine]), speeds, curves, busy)
        keep_choice(self.path, self.device, choice, drafts=self.drafts)
        return choice

    def _measured(self, engine: str) -> tuple[Prices, int]:
        """The prices of passes, and how many tokens one guesses at most; 0 for models that guess the next one only."""
        device = replace(self.device, backend=engine)
        what = f"{'draft' if self.drafts else 'target'} in {TITLES[engine]}"
        with ExitStack() as opened:
            model = opened.enter_context(closing(open_model(self.path, device, self.interrupt)))
            session = opened.enter_context(closing(model.session(_CONTEXT)))
            text = sample_text(model.vocabulary)
            prices = measure_and_keep(session, text, lambda share: self.report(what, share))
            return prices, parallel.guesses if (parallel := parallel_of(model)) else 0

    def _speed(self, prices: Prices, guesses: int) -> float:
        """Tokens per second: committed, or guessed, of a block those that are expected to be right."""
        curve = prices.curve()
        if not self.drafts:
            return best(curve, 0.0, TYPICAL).speedup / curve[0]
        if not guesses:
            return 1.0 / curve[0]
        # A block reads about two committed tokens and a mask for each guess but the first.
        return max((committed(TYPICAL, n) - 1) / prices.price(1 + n) for n in range(1, 1 + guesses))
