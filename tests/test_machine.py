"""What other programs use of the machine, and what follows for prices."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from edgespec.backends.toy import ToyModel
from edgespec.loading import assemble
from edgespec.machine import OtherPrograms
from edgespec.prices import recall


def fake(monkeypatch: pytest.MonkeyPatch, *moments: tuple[float, float, float]) -> None:
    """Let the machine have 4 cores, and its clocks show `moments`: processor seconds of all, our own, and the time."""
    left = iter(moments)
    monkeypatch.setattr("edgespec.machine._seconds", lambda: next(left))
    monkeypatch.setattr("edgespec.machine.psutil.cpu_count", lambda: 4)


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


def test_prices_measured_beside_busy_programs_are_used_and_not_kept(
    own_cache: object, busy: Callable[[bool], None]
) -> None:
    """They once were, several times too dear, and speculation was off for good."""
    told: list[str] = []

    def load() -> SimpleNamespace:
        told.clear()
        with assemble(ToyModel(), on_progress=lambda what, _share: told.append(what)) as runtime:
            list(runtime.complete([1, 2, 3], max_tokens=20))
            return SimpleNamespace(kept=recall(runtime.session), notices=list(runtime.notices))

    busy(True)
    for _ in range(2):
        found = load()
        assert told, "measured again"
        assert found.kept is None
        assert "timed again at the next start" in found.notices[0]
    busy(False)
    found = load()
    assert told
    assert (found.kept is not None, found.notices) == (True, [])
    load()
    assert not told
