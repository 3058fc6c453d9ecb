"""What `edgespec tune` reports of the engines that open a model: a table, a plot in text, JSON and an SVG."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from edgespec import extras
from edgespec.backends import EngineChoice
from edgespec.bench.report.charts.price_curves import Panel, drawing, style
from edgespec.errors import MissingPackage, OptionError
from edgespec.prices.draft_length import best
from edgespec.terminal import engine_report
from edgespec.terminal.engine_report import plot, require_plot, svg, write_svg
from edgespec.terminal.tune import Comparison, TuneReport
from edgespec.tools.tuning import Measured

from .commandline import refused, run
from .onnxfolders import Folders

pytestmark = pytest.mark.usefixtures("own_cache")

STEEP = [0.010 * (1 + 0.5 * n) for n in range(16)]
FLAT = [0.012 * (1 + 0.02 * n) for n in range(16)]
CHOICE = EngineChoice("openvino", {"onnx": 130.0, "openvino": 200.0}, {"onnx": STEEP, "openvino": FLAT})
DRAFT = EngineChoice("onnx", {"onnx": 5000.0, "openvino": 4000.0}, {"onnx": [2e-4], "openvino": [2.5e-4]})


def report(choice: EngineChoice | None) -> TuneReport:
    made = TuneReport(default=2)
    made.compared(Comparison("openvino", choice, DRAFT if choice else None))
    made.add(Measured(2, {64: FLAT}))
    return made


def test_the_report_shows_which_engine_is_used_and_why() -> None:
    said = report(CHOICE).text()
    onnx, openvino = (next(line for line in said.splitlines() if line.startswith(n)) for n in ("ONNX", "OpenVINO "))
    assert onnx.split()[2:] == ["10.00", "ms", "2.50", "4.50", "8.50", "100.0", *_best(STEEP)]
    assert openvino.split()[1:] == ["12.00", "ms", "1.06", "1.14", "1.30", "83.3", *_best(FLAT), "<-", "used"]
    assert "OpenVINO is used: the most tokens/s" in said
    assert "plain steps take less time in ONNX Runtime (10 ms, 12 ms)" in said
    assert "--backend onnx" in said
    assert "A step of the draft model takes 0.2 ms in ONNX Runtime, 0.25 ms in OpenVINO; ONNX Runtime runs it." in said
    assert "Other programs" not in said


def _best(curve: list[float]) -> list[str]:
    k, gain = best(curve, 0.0, 0.7)
    return [f"{gain / curve[0]:.1f}", "(K", "=", f"{k})"]


def test_without_a_choice_no_engines_are_reported() -> None:
    assert "Engines" not in report(None).text()
    assert json.loads(report(None).as_json())["engines"] == {"target": None, "draft": None}


def test_programs_get_the_curves() -> None:
    told = json.loads(report(CHOICE).as_json())["engines"]
    assert told["target"]["chosen"] == "openvino"
    assert told["target"]["prices"] == {"onnx": STEEP, "openvino": FLAT}
    assert told["draft"]["speeds"] == {"onnx": 5000.0, "openvino": 4000.0}


def test_curves_that_were_measured_beside_other_programs_are_marked() -> None:
    busy = EngineChoice("openvino", CHOICE.speeds, CHOICE.curves, ["onnx"])
    assert "Other programs were running while ONNX Runtime was measured" in report(busy).text()
    odd = EngineChoice("openvino", CHOICE.speeds, {"onnx": STEEP, "openvino": [0.012, 0.12, 0.013]})
    assert "Other programs were running while OpenVINO was measured" in report(odd).text()


def test_one_engine_alone_needs_no_reason() -> None:
    alone = EngineChoice("onnx", {"onnx": 130.0}, {"onnx": STEEP})
    said = report(alone).text()
    assert "ONNX Runtime is used: no other engine that is installed loads this model." in said
    assert "both" not in said


def test_the_plot_has_a_marker_for_every_price() -> None:
    lines = [line.partition("|")[2] for line in plot(CHOICE.curves) if "|" in line]
    placed: dict[str, dict[int, int]] = {"o": {}, "x": {}}
    for row, line in enumerate(lines):
        for column, mark in enumerate(line):
            for name in {"=": "ox"}.get(mark, mark.strip()):
                assert column % 3 == 0
                placed[name][column // 3] = row
    assert all(sorted(columns) == list(range(1, 17)) for columns in placed.values())
    assert [placed["o"][n] for n in range(1, 17)] == sorted(placed["o"].values(), reverse=True), "dearer is higher"
    assert placed["o"][16] == 0
    assert placed["x"][16] > 8, "a flat curve stays low"


def test_the_plot_is_ascii_without_colour() -> None:
    assert "\n".join(plot(CHOICE.curves)).isascii()


def test_the_drawing_is_a_document_of_its_own() -> None:
    drawn = svg(CHOICE.curves, "openvino")
    root = ElementTree.fromstring(drawn)  # noqa: S314 - our own
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {"".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"ONNX Runtime", "OpenVINO (used)", "What a pass takes, after 64 tokens", "tokens a second"} <= texts
    assert not [word for word in ("var(", "currentColor", "#010101", "#020202", "#030303") if word in drawn]
    assert svg(CHOICE.curves, "openvino") == drawn, "the same bytes every time"


def test_a_plot_that_cannot_be_made_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path, tmp_path / "none" / "plot.svg"):
        with pytest.raises(OptionError, match="--plot is"):
            require_plot(path)
    assert "--plot is" in refused(run("tune", "--plot", tmp_path / "none" / "plot.svg"))
    require_plot(tmp_path / "plot.svg")
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "matplotlib" else name)
    with pytest.raises(MissingPackage, match=r"edgespec\[bench\]"):
        require_plot(tmp_path / "plot.svg")


def test_a_plot_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(OptionError, match="the plot cannot be written"):
        write_svg(tmp_path / "folder.svg", CHOICE.curves, "openvino")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


def test_tune_plots_the_engines_that_it_measured(onnx_folders: Folders, tmp_path: Path) -> None:
    options = ("--draft", "none", "--threads", "1", "--budget", "1", "--ctx", "128", "--plot", tmp_path / "plot.svg")
    done = run("tune", onnx_folders("int8"), *options, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["engines"]["target"]
    assert set(told["prices"]) == {"onnx", "openvino"}
    assert told["chosen"] in told["prices"]
    assert all(len(curve) == 16 for curve in told["prices"].values())
    drawn = (tmp_path / "plot.svg").read_text("utf-8")
    assert "ONNX Runtime" in drawn
    assert "OpenVINO" in drawn


def test_tune_plots_an_engine_that_has_no_rival(small_pair: dict[str, Path], tmp_path: Path) -> None:
    options = ("--draft", "none", "--threads", "1", "--budget", "1", "--ctx", "128", "--plot", tmp_path / "plot.svg")
    done = run("tune", small_pair["target"], *options)
    assert done.returncode == 0, done.stderr
    assert "Engines that open" not in done.stdout
    assert "llama.cpp (used)" in (tmp_path / "plot.svg").read_text("utf-8")


def test_the_best_length_is_marked_in_the_drawing() -> None:
    """As a ring around the point."""
    both = svg(CHOICE.curves, "openvino").count("<use ")
    one = svg({"openvino": FLAT}, "openvino").count("<use ")
    assert both > one > 0


def test_the_table_leaves_out_widths_that_were_not_measured() -> None:
    narrow = EngineChoice("onnx", {"onnx": 1.0, "openvino": 0.9}, {"onnx": [1.0, 1.1], "openvino": [1.2, 1.2]})
    assert "8 tokens" not in engine_report.text(narrow, None)


def test_lines_stay_apart_where_there_are_more_than_colours() -> None:
    """Eight formats of three engines are in one drawing of the docs."""
    styles = [style(i) for i in range(12)]
    assert len({(each.colour, each.marker, str(each.dash)) for each in styles}) == 12
    names = [f"format {i}" for i in range(8)]
    drawn = drawing([Panel("title", "tokens", "ms", {name: {1: 1.0, 2: 2.0} for name in names})], 1)
    assert all(name in drawn for name in names)
