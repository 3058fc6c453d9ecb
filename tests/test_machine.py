"""What other programs use of the machine, and what follows for prices."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from edgespec.backends import Device, Interrupt
from edgespec.backends.machine import OtherPrograms
from edgespec.backends.toy import ToyModel, ToySession, ngram_rule
from edgespec.prices import Prices, calmed, keep, recall, restless
from edgespec.runtime.loading import assemble


def fake(monkeypatch: pytest.MonkeyPatch, *moments: tuple[float, float, float]) -> None:
    """Let the machine have 4 cores, and its clocks show `moments`: processor seconds of all, our own, and the time."""
    left = iter(moments)
    monkeypatch.setattr("edgespec.backends.machine._seconds", lambda: next(left))
    monkeypatch.setattr("edgespec.backends.machine.psutil.cpu_count", lambda: 4)


@pytest.mark.parametrize(
    ("everything", "own", "share"),
    [(2.0, 2.0, 0.0), (2.0, 2.1, 0.0), (2.4, 2.0, 0.1), (4.0, 2.0, 0.5)],
)
def test_the_share_is_of_all_cores_and_not_our_own(
    monkeypatch: pytest.MonkeyPatch, everything: float, own: float, share: float
) -> None:
    fake(monkeypatch, (100.0, 50.0, 10.0), (100.0 + everything, 50.0 + own, 11.0))
    with OtherPrograms() as others:
        pass
    assert others.share == pytest.approx(share)


def test_a_busy_program_is_seen() -> None:
    """By what the machine really says: it uses half a second of a processor at least."""
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    with OtherPrograms() as others:
        subprocess.run([sys.executable, "-c", spin], check=True)
    with OtherPrograms() as ourselves:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
    assert others.share > 0
    assert ourselves.share < 1


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    return lambda is_busy: monkeypatch.setattr(OtherPrograms, "busy", property(lambda _self: is_busy))


def test_prices_measured_beside_busy_programs_serve_while_these_are_busy(
    own_cache: object, busy: Callable[[bool], None]
) -> None:
    """They once were kept, several times too dear, and speculation was off for good."""
    told: list[str] = []

    def load() -> SimpleNamespace:
        told.clear()
        with assemble(ToyModel(), on_progress=lambda what, _share: told.append(what)) as runtime:
            list(runtime.complete([1, 2, 3], max_tokens=20))
            return SimpleNamespace(measured=bool(told), trusted=runtime.prices.trusted)

    busy(True)
    for measured in (True, False):
        assert load() == SimpleNamespace(measured=measured, trusted=False)
    busy(False)
    assert load() == SimpleNamespace(measured=True, trusted=True)
    busy(True)
    assert load() == SimpleNamespace(measured=False, trusted=True)


class Named(ToyModel):
    """A toy model whose prices are kept apart from those of others."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def session(self, context: int, interrupt: Interrupt | None = None) -> ToySession:
        session = super().session(context, interrupt)
        session.identity = self._name
        return session


@pytest.mark.parametrize(("target", "is_believed"), [(1.0, False), (1e-8, True)])
def test_a_draft_model_is_slowed_down_no_more_than_its_target(
    own_cache: object, busy: Callable[[bool], None], target: float, is_believed: bool
) -> None:
    """A step takes some microseconds, a hundred times as long as the draft's recalled 10 ns and more; the target was
    faster than recalled, or slowed down as much."""
    busy(False)
    recalled = 1e-8
    for name, seconds in (("target", target), ("draft", recalled)):
        keep(Named(name).session(64), Prices([seconds] * 16))
    with assemble(Named("target"), Named("draft"), device=Device(64)) as runtime:
        found = runtime.step_prices["model"]
    assert (found > 10 * recalled) if is_believed else (found == pytest.approx(recalled))


def test_what_was_measured_beside_busy_programs_never_replaces_better(own_cache: object) -> None:
    session = ToySession(ngram_rule(5), 64)
    good, doubtful = Prices([1.0] * 16), Prices([2.0] * 16)
    doubtful.trusted = False
    for prices, left in ((doubtful, 2.0), (good, 1.0), (doubtful, 1.0)):
        keep(session, prices)
        found = recall(session)
        assert found is not None
        assert (found.plain(), found.trusted) == (left, left == 1.0)


def test_prices_of_a_busy_machine_are_made_possible() -> None:
    curve = [1.0, 3.0, 2.0, 2941.0, 7.0, 6.0]
    assert calmed(curve) == [1.0, 2.0, 2.0, 4.0, 5.0, 6.0]
    assert calmed([9.0, 2.0, 4.0]) == [2.0, 2.0, 4.0]
    assert not restless(calmed(curve))
