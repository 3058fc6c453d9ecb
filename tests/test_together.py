"""All drafters together against single ones, over several runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from benchmarks import categories, together
from benchmarks.categories import Timed
from benchmarks.drafters import TOGETHER
from benchmarks.kinds import Item
from benchmarks.together import BEST, Ratio, main, parts


def test_a_ratio_is_a_geometric_mean_with_its_standard_error() -> None:
    ratio = Ratio.of([0.5, 2.0, 0.5, 2.0])
    assert ratio.mean == pytest.approx(1.0)
    assert ratio.error == pytest.approx(2 * math.log(2) / math.sqrt(3) / 2)
    assert math.isnan(Ratio.of([2.0]).error)
    assert str(Ratio(0.98765, 0.01234)) == "0.988 +- 0.012"


def test_each_run_begins_at_another_place_of_the_texts() -> None:
    pool = [Item("list", [n], [n] * 5) for n in range(20)]
    begun = [[item.prompt[0] for item in run] for run in parts(pool, 26, 3)]
    assert begun == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [13, 14, 15, 16, 17, 18]]
    ((*_, last),) = parts(pool, 10**6, 1)
    assert last == pool[-1]
    *_, again = parts(pool, 50, 2)
    assert [item.prompt[0] for item in again] == [*range(10, 20)]
    _, _, _, wrapped = parts(pool, 50, 4)
    assert [item.prompt[0] for item in wrapped] == [*range(15, 20), *range(5)]


def test_texts_of_several_kinds_are_compared_with_the_fastest_drafter_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {
        "copy": {"lookup": 1.0, "model": 3.0, TOGETHER: 1.0},
        "dialogue": {"lookup": 5.0, "model": 4.0, TOGETHER: 3.0},
    }
    rounds = [(name, kind, Timed(1, 1, each)) for kind, found in seconds.items() for name, each in found.items()]
    monkeypatch.setattr(together, "measured", lambda *_: rounds)
    monkeypatch.setattr(categories, "_HICCUP", math.inf)
    nothing = Mock(runtimes=lambda *_: {})
    ratios = together.compared(nothing, ("lookup", "model"), [], 0)
    assert ratios == pytest.approx({"lookup": 6 / 4, "model": 7 / 4, BEST: 5 / 4}, abs=1e-3)
    assert together.compared(nothing, ("lookup",), [], 0).keys() == {"lookup"}
    rounds = rounds[:3]
    assert together.compared(nothing, ("lookup", "model"), [], 0).keys() == {"lookup", "model"}


def test_a_run_writes_its_ratios(small_pair: dict[str, Path], tmp_path: Path) -> None:
    found = tmp_path / "ratios.jsonl"
    sizes = ["--tokens", "20", "--warm-up", "10", "--pool", "60", "--longest", "10", "--runs", "2"]
    command = [str(small_pair["target"]), "--draft", str(small_pair["draft"]), *sizes, "--out", str(found)]
    done = CliRunner().invoke(main, [*command, "--kind", "mix", "--single", "lookup", "--single", "model"])
    assert done.exit_code == 0, done.output
    kept = json.loads(found.read_text(encoding="utf-8"))
    assert kept["kind"] == "mix"
    assert {name: len(each) for name, each in kept["ratios"].items()} == {"lookup": 2, "model": 2, BEST: 2}
    assert f"mix: all together over model {Ratio.of(kept['ratios']['model'])} (standard error, 2 runs)" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--single", "eagle"], "no configuration eagle; there are plain"),
        (["--single", "lookup", "--pool", "20"], "the texts of list end before 750 tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused(small_pair: dict[str, Path], arguments: list[str], said: str) -> None:
    pair = [str(small_pair["target"]), "--draft", str(small_pair["draft"])]
    refused = CliRunner().invoke(main, [*pair, "--kind", "list", "--longest", "5", *arguments])
    assert refused.exit_code == 1
    assert said in refused.output
