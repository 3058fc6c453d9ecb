"""The report of `convert --pair`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgespec.backends import EngineChoice
from edgespec.converters import pair
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.compatibility import Compatibility
from edgespec.terminal import pair_report
from edgespec.terminal.check_report import CheckReport
from edgespec.terminal.pair_report import ConvertedModel, PairReport
from edgespec.tools.check import Divergence, Verdict
from edgespec.tools.draft_value import DraftValue


def compatibility(small_llama: Path, **draft: Any) -> Compatibility:
    found = Compatibility.of(Checkpoint.open(small_llama), Checkpoint.open(small_llama))
    return replace(found, draft=replace(found.draft, **draft))


def test_what_checkpoints_say_of_each_other(small_llama: Path) -> None:
    def said(**draft: Any) -> list[str]:
        return list(PairReport(compatibility(small_llama, **draft), ()).compatibility_lines())

    assert "the draft has none" in said(template=None)[1]
    assert "different" in said(template="x")[1]
    assert "special tokens: " in said(ends=frozenset({"<end>"}))[1]
    assert "'<end>' of the draft" in said(ends=frozenset({"<end>"}))[1]
    assert said(parameters=1)[-1].endswith("the draft has 0% of the target's")


@pytest.mark.parametrize(
    ("worth", "says", "advises"),
    [
        (DraftValue(((100, 90),), (1.0, 1.1), 0.1), "1.58x at K = 1, mean accepted length 1.90", ""),
        (
            DraftValue(((100, 10),), (1.0, 1.1), 0.1),
            "none, plain decoding is fastest",
            "rate is too low: 10% of the first",
        ),
        (
            DraftValue(((100, 90),), (1.0, 1.4), 0.6),
            "none, plain decoding",
            "Even a draft that is always accepted",
        ),
        (
            DraftValue(((100, 90),), (1.0, 1.6), 0.0),
            "1.19x at K = 1",
            "over two tokens takes 1.6 plain steps",
        ),
        (DraftValue(((100, 90),), (1.0, 1.1), 0.3), "a guess costs 0.30 of a plain step", "is slow for this target"),
    ],
)
def test_the_verdict_and_what_to_do_better(small_llama: Path, worth: DraftValue, says: str, advises: str) -> None:
    made = [ConvertedModel(role, "org/x", "abc", small_llama / "config.json", "q8_0") for role in pair.ROLES]
    found = PairReport(compatibility(small_llama), made, worth, CheckReport(0))
    lines = lines_without_memory(found)
    assert any(says in line for line in lines), lines
    advice = lines[lines.index("memory") + 1 : -1]
    assert len(advice) == bool(advises) + (worth.step == 0.6)
    assert not advises or advises in advice[0]


@pytest.mark.parametrize(
    ("worth", "acceptance", "why"),
    [
        (
            DraftValue(((19, 19), (3, 3)), (1.0, 1.1, 1.2), 0.1),
            "19 drafts were verified",
            "too few drafts were verified",
        ),
        (DraftValue(((200, 150),), (1.0, 1e-3, 1e-3), 0.1), "75% (", "the measured prices are implausible"),
    ],
)
def test_what_is_not_known_of_a_pair_is_not_claimed(
    worth: DraftValue, acceptance: str, why: str, small_llama: Path
) -> None:
    output = small_llama.parent / "made.gguf"
    output.touch()
    made = [ConvertedModel(role, "org/x", "abc", output, "q8_0") for role in pair.ROLES]
    found = PairReport(compatibility(small_llama), made, worth, CheckReport(0))
    lines = lines_without_memory(found)
    assert any(line.startswith("acceptance by depth: ") and acceptance in line for line in lines)
    assert f"speedup expected at the prices of this machine: not known: {why}" in lines
    assert not any("too low" in line or "x at K" in line for line in lines)
    assert not {"k", "speedup", "mean_accepted_length"} & found.as_pair()["measured"].keys()


def test_another_word_is_no_pass(small_llama: Path) -> None:
    """Nothing that was drafted can have changed one."""

    def passed(*verdicts: Verdict) -> bool:
        report = CheckReport(len(verdicts))
        for verdict in verdicts:
            report.add(verdict)
        return PairReport(compatibility(small_llama), (), check=report).passed

    parted = Divergence(3, 1.0, 0.1, flips=False)
    assert passed(Verdict(9, 4, 2, None))
    assert not passed(Verdict(9, 4, 2, None), Verdict(9, 4, 2, parted))
    assert passed(Verdict(9, 0, 0, None))


def lines_without_memory(found: PairReport) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PairReport, "_memory", lambda _self: "memory")
        return list(found.lines())


@pytest.mark.parametrize(
    ("choice", "package"), [(None, "onnxruntime"), (EngineChoice("openvino", {"openvino": 9.0}), "openvino")]
)
def test_the_pair_file_names_the_engine_that_runs_the_target(
    choice: EngineChoice | None, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_report, "engines", lambda _path: ("onnx", "openvino"))
    monkeypatch.setattr(pair_report, "recall_choice", lambda _path, _device: choice)
    assert pair_report.versions(Path("model"))["engine"].split()[0] == package
