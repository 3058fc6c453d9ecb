"""The engine of a model that several engines open: measured once, and recalled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgespec import Device, Interrupt, load
from edgespec.backends import engine_choice, model_files
from edgespec.backends.engine_choice import EngineChoice, installed, keep_choice, recall_choice
from edgespec.backends.parallel import Parallel
from edgespec.errors import Interrupted, ModelFileError
from edgespec.prices import Prices, engine_comparison
from edgespec.prices.engine_comparison import PairEngines, with_engine, with_engines
from edgespec.terminal import models as terminal_models

from .commandline import run
from .onnxfolders import Folders

pytestmark = pytest.mark.usefixtures("own_cache")


class Measured:
    """Stands in for measurements: prices by engine, and which engines were measured."""

    def __init__(self, **curves: Sequence[float]) -> None:
        self.curves = curves
        self.seen: list[str] = []
        self.busy: set[str] = set()

    def __call__(self, session: Any, text: Sequence[int], on_share: Any) -> Prices:
        assert len(text) > 300
        engine = "openvino" if "openvino" in session.identity else "onnx"
        self.seen.append(engine)
        on_share(1.0)
        prices = Prices(self.curves[engine])
        prices.trusted = engine not in self.busy
        return prices


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """In OpenVINO a plain step is dearer, and wide passes are cheap."""
    stand_in = Measured(onnx=[1.0, 1.9, 2.8, 3.7], openvino=[1.2, 1.2, 1.2, 1.2])
    monkeypatch.setattr(engine_comparison, "measure_and_keep", stand_in)
    monkeypatch.setattr(engine_comparison, "installed", installed)
    return stand_in


def test_the_fastest_is_taken_and_nobody_waits_twice(onnx_folders: Folders, measured: Measured) -> None:
    folder, told = onnx_folders("int8"), list[str]()
    device, choice = with_engine(folder, Device(threads=1), Interrupt(), on_progress=lambda what, _: told.append(what))
    assert device == Device(threads=1, backend="openvino")
    assert choice is not None
    assert choice.new
    assert str(choice) == "OpenVINO, measured: 2.11 tokens/s, 1 in ONNX Runtime"
    assert told == ["target in ONNX Runtime", "target in OpenVINO"]
    again, choice = with_engine(folder / "model.onnx", Device(threads=1), Interrupt())
    assert (again, choice and choice.new) == (device, False)
    assert measured.seen == ["onnx", "openvino"]
    with_engine(folder, Device(threads=1), Interrupt(), again=True)
    with_engine(folder, Device(threads=2), Interrupt())
    assert measured.seen == ["onnx", "openvino"] * 3


def test_a_choice_that_was_measured_has_the_curves_of_all_engines(onnx_folders: Folders, measured: Measured) -> None:
    measured.busy = {"onnx"}
    _, choice = with_engine(onnx_folders("int8"), Device(threads=1), Interrupt())
    assert choice is not None
    assert choice.curves == measured.curves
    assert list(choice.busy) == ["onnx"]
    _, choice = with_engine(onnx_folders("int8"), Device(threads=1), Interrupt())
    assert choice is not None
    assert not choice.curves


def test_a_draft_is_judged_by_its_plain_steps(onnx_folders: Folders, measured: Measured) -> None:
    device, _ = with_engine(onnx_folders("int8"), Device(threads=1), Interrupt(), drafts=True)
    assert device.backend == "onnx"
    device, _ = with_engine(onnx_folders("int8"), Device(threads=1), Interrupt())
    assert device.backend == "openvino"


def test_a_draft_in_blocks_is_judged_by_what_a_block_costs(
    onnx_folders: Folders, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plain steps are cheaper in ONNX Runtime, and passes of several guesses in OpenVINO. At 70% a block of three
    has 0.7 + 0.49 + 0.343 right guesses for 1.2 seconds; in ONNX Runtime the best is 0.7 + 0.49
    for 2.8."""
    monkeypatch.setattr(engine_comparison, "parallel_of", lambda _model: Parallel(7, 3))
    device, choice = with_engine(onnx_folders("int8"), Device(threads=1), Interrupt(), drafts=True)
    assert device.backend == "openvino"
    assert choice is not None
    assert choice.speeds == pytest.approx({"openvino": 1.533 / 1.2, "onnx": 1.19 / 2.8})
    device, _ = with_engine(onnx_folders("int8"), Device(threads=1), Interrupt())
    assert device.backend == "openvino"
    monkeypatch.setattr(engine_comparison, "parallel_of", lambda _model: Parallel(7, 1))
    measured.curves = {"onnx": [1.0, 1.1, 3.0, 3.0], "openvino": [1.2] * 4}
    device, _ = with_engine(onnx_folders("int8"), Device(threads=1), Interrupt(), drafts=True, again=True)
    assert device.backend == "onnx", "it guesses one token a pass"


def test_a_draft_is_beside_the_only_engine_that_opens_the_target(
    onnx_folders: Folders, small_pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no engine to choose, and the device says "auto"."""
    monkeypatch.setattr(engine_comparison, "installed", lambda engine: engine != "openvino")
    pair = with_engines(onnx_folders("int8"), [small_pair["draft"], onnx_folders("int8")], Device(), Interrupt())
    assert (pair.device.backend, [each.beside for each in pair.draft_devices]) == ("auto", ["onnx", "auto"])
    alike = with_engines(small_pair["target"], [small_pair["draft"]], Device(), Interrupt())
    assert alike.draft_devices[0].beside == "auto"


def test_each_model_of_a_pair_has_an_engine_of_its_own(
    onnx_folders: Folders, small_pair: dict[str, Path], measured: Measured
) -> None:
    folder, device = onnx_folders("int8"), Device(threads=1)
    both = with_engines(folder, [folder], device, Interrupt())
    assert (both.device.backend, both.draft_devices[0].backend) == ("openvino", "onnx")
    assert both.target is not None
    assert both.drafts[0] is not None
    assert (both.target.engine, both.drafts[0].engine) == ("openvino", "onnx")
    alone = with_engines(folder, (), device, Interrupt())
    assert (alone.device.backend, alone.draft_devices, alone.drafts) == ("openvino", (), ())
    other = with_engines(folder, [small_pair["draft"]], device, Interrupt())
    assert (other.device.backend, other.draft_devices[0].backend) == ("openvino", "auto")
    assert other.draft_devices[0].beside == "openvino", "the engine that was chosen"
    named = Device(threads=1, backend="onnx", draft_backend="openvino")
    assert with_engines(folder, [folder], named, Interrupt()) == PairEngines(
        named, None, (named.of_draft(folder),), (None,)
    )
    assert measured.seen == ["onnx", "openvino"] * 2
    with load(folder, folder, device=Device(256, 1)) as runtime:
        assert ["openvino" in model.session(64).identity for model in runtime._pair.models] == [True, False]


def test_an_engine_that_does_not_load_the_model_is_left_out(
    onnx_folders: Folders, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.backends import openvino_graph  # noqa: PLC0415

    def refuse(*_: object, **_options: object) -> None:
        raise ModelFileError("no")

    monkeypatch.setattr(openvino_graph, "read_paged", refuse)
    device, choice = with_engine(onnx_folders("int8"), Device(threads=1), Interrupt())
    assert device.backend == "onnx"
    assert str(choice) == "ONNX Runtime, measured: 1 tokens/s: no other engine loads it"


def test_an_interrupt_ends_the_comparison(onnx_folders: Folders, measured: Measured) -> None:
    interrupt = Interrupt()
    interrupt.set()
    with pytest.raises(Interrupted):
        with_engine(onnx_folders("int8"), Device(threads=1), interrupt)


def test_where_there_is_no_choice_nothing_is_measured(
    onnx_folders: Folders, small_pair: dict[str, Path], measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, device in ((small_pair["target"], Device()), (onnx_folders("int8"), Device(backend="onnx"))):
        assert with_engine(path, device, Interrupt()) == (device, None)
    monkeypatch.setattr(engine_comparison, "installed", lambda engine: engine == "onnx")
    assert with_engine(onnx_folders("int8"), Device(), Interrupt()) == (Device(), None)
    assert not measured.seen


def test_what_is_kept_and_makes_no_sense_is_not_there(onnx_folders: Folders) -> None:
    folder, device = onnx_folders("int8"), Device(threads=1)
    for speeds in ({"onnx": -1.0}, {"tpu": 2.0, "onnx": 1.0}, {"openvino": 2.0}):
        keep_choice(folder, device, EngineChoice("onnx", speeds))
        assert recall_choice(folder, device) is None
    for damaged in ({"engine": ["onnx"], "speeds": {"onnx": 2.0}}, {"engine": "onnx", "speeds": ["onnx"]}, {}):
        shelf = engine_choice._shelf(folder, device, False)
        assert shelf is not None
        shelf.write(damaged)
        assert recall_choice(folder, device) is None
    keep_choice(folder, device, EngineChoice("onnx", {"onnx": 2.0}))
    assert recall_choice(folder, device) == EngineChoice("onnx", {"onnx": 2.0})


@pytest.mark.parametrize("late", [False, True])
def test_a_file_that_is_removed_meanwhile_has_no_choice(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is listed, or between that and the look at its size."""
    file, device = tmp_path / "model.onnx", Device(threads=1)

    def found(path: Path, backend: str) -> tuple[str, Path]:
        if late:
            listed = model_files.find_model(path, backend)
            file.unlink()
            return listed
        file.unlink()
        return model_files.find_model(path, backend)

    monkeypatch.setattr(engine_choice, "find_model", found)
    file.touch()
    assert recall_choice(file, device) is None
    file.touch()
    keep_choice(file, device, EngineChoice("onnx", {"onnx": 2.0}))


def test_other_versions_are_measured_anew(onnx_folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_choice(onnx_folders("int8"), Device(), EngineChoice("onnx", {"onnx": 2.0}))
    monkeypatch.setattr(engine_choice, "version", lambda _name: "99")
    assert recall_choice(onnx_folders("int8"), Device()) is None


def test_loading_says_once_which_engine_and_why(onnx_folders: Folders, measured: Measured) -> None:
    for said in ([True], [False]):
        with load(onnx_folders("int8"), "none", device=Device(256, 1)) as runtime:
            assert ["runs in OpenVINO, measured: " in " ".join(runtime.notices)] == said
            assert "openvino" in runtime._pair.session.identity


def test_models_show_and_tune_say_which_engine_and_why(onnx_folders: Folders) -> None:
    folder = onnx_folders("int8")
    assert "engine: measured at the first load" in "\n".join(terminal_models.shown(str(folder), 0))
    done = run("tune", folder, "--draft", "none", "--threads", "1", "--budget", "1")
    assert done.returncode == 0, done.stderr
    assert "engine of the target: " in done.stderr
    assert " in ONNX Runtime" in done.stderr or " in OpenVINO" in done.stderr
