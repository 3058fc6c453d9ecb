"""`models pair --exit-layers`: first layers are measured before one is offered, and nothing is left on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgespec.cli import app
from edgespec.converters import convert
from edgespec.errors import ConversionError, EdgespecError, OptionError
from edgespec.storage.cache import cache_folder
from edgespec.terminal import exit_layers
from edgespec.terminal import models as terminal
from edgespec.tools.draft_value import DraftValue

from . import checkpoints
from .small_pair import SMALL_PAIR

CURVE = tuple(1 + 0.05 * n for n in range(16))  # seconds


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offer")
    list(convert(checkpoints.llama(folder / "source", layers=8), folder / "whole.gguf", quantization="f16"))
    return folder / "whole.gguf"


def left() -> list[Path]:
    return [path for path in cache_folder().rglob("*") if path.suffix in (".gguf", ".part", ".onnx")]


class Runtime:
    """What is measured, without an engine."""

    sampling: dict[str, float] = {}  # noqa: RUF012

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def measuring(monkeypatch: pytest.MonkeyPatch, values: dict[int, DraftValue | BaseException]) -> list[int]:
    """Let drafts of so many layers be worth these values. Returns the layers that were asked for."""
    from edgespec.backends.gguf_header import header  # noqa: PLC0415

    asked: list[int] = []

    def opened(files: Any, speculation: Any) -> Runtime:
        assert speculation.drafters == ("exit",)
        assert header(files.drafts[0]).fields["edgespec.layers_kept"] in {f"0-{n - 1}" for n in values}
        asked.append(header(files.drafts[0]).layers)
        return Runtime()

    def measured(*_: object) -> DraftValue:
        value = values[asked[-1]]
        if isinstance(value, BaseException):
            raise value
        return value

    monkeypatch.setattr(exit_layers, "opened", opened)
    monkeypatch.setattr(exit_layers, "read_prompts", lambda _file, _runtime: [[1]] * 24)
    monkeypatch.setattr(exit_layers, "measured", measured)
    return asked


def worth(step: float, *accepted: int) -> DraftValue:
    return DraftValue(tuple((100, n) for n in accepted), CURVE, step, 300)


def test_the_best_is_offered_with_its_figures(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measuring(monkeypatch, {2: worth(0.2, 10), 4: worth(0.3, 90, 80), 6: worth(0.7, 95)})
    said = list(terminal.with_own_layers(str(whole)))
    assert asked == [2, 4, 6]
    assert said[1].startswith("the first 2 of 8 layers: accepted by depth 10%; a guess costs 0.20 of a plain step;")
    assert said[1].endswith("expected: plain decoding is faster")
    gain = worth(0.3, 90, 80).best
    assert said[2].endswith(f"accepted by depth 90% 80%; a guess costs 0.30 of a plain step; expected: "
                            f"{gain.speedup:.2f}x at K = {gain.k}")  # fmt: skip
    assert said[-1] == f"to have it: edgespec convert {whole} --exit-layer 4 --out FOLDER"
    assert not left()


@pytest.mark.parametrize(
    "values",
    [
        (worth(0.2, 10), worth(0.5, 30), worth(0.9, 60)),
        (worth(0.2), worth(0.5), worth(0.9)),
        (DraftValue(((19, 19),), CURVE, 0.1), DraftValue(((100, 99),), (1.0, 90.0, 2.0), 0.1), worth(0.9, 60)),
    ],
    ids=["rejected", "nothing drafted", "too little measured"],
)
def test_none_is_offered_where_none_pays(
    values: tuple[DraftValue, ...], whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, dict(zip((2, 4, 6), values, strict=True)))
    said = list(terminal.with_own_layers(str(whole)))
    assert len(said) == 5
    known = "" if all(value.known for value in values) else ", where that is known"
    assert said[-1] == f"none of them is offered: plain decoding, with look-ups, is expected to be faster{known}"


@pytest.mark.parametrize("end", [KeyboardInterrupt(), OptionError("x")], ids=["ctrl-c", "an error"])
def test_an_end_leaves_nothing(end: BaseException, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measuring(monkeypatch, {2: worth(0.2, 10), 4: end, 6: worth(0.9, 60)})
    with pytest.raises(type(end)):
        list(terminal.with_own_layers(str(whole)))
    assert asked == [2, 4]
    assert cache_folder().is_dir()
    assert not left()


def test_a_conversion_that_is_interrupted_leaves_nothing(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, {2: worth(0.2, 10), 4: worth(0.2, 10), 6: worth(0.2, 10)})

    def stopped(steps: Iterator[Any], _job: object) -> None:
        next(steps)
        raise KeyboardInterrupt

    monkeypatch.setattr(exit_layers, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        list(terminal.with_own_layers(str(whole)))
    assert not left()


def test_it_measures_with_an_engine(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_layers, "_SHARES", (0.5,))
    monkeypatch.setattr(exit_layers, "_PROMPTS", 1)
    monkeypatch.setattr(exit_layers, "_TOKENS", 12)
    done = CliRunner().invoke(app, ["models", "pair", str(whole), "--exit-layers"])
    assert done.exit_code == 0, done.exception
    assert "the first 4 of 8 layers: accepted by depth" in done.stdout
    assert not left()


def test_what_cannot_be_measured_is_said_on_one_line(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    for name, kind in ((tmp_path / "text.gguf", EdgespecError), (tmp_path / "missing.gguf", OptionError)):
        with pytest.raises(kind) as caught:
            list(terminal.with_own_layers(str(name)))
        assert "\n" not in str(caught.value)
    list(convert(checkpoints.llama(tmp_path / "one", layers=1), tmp_path / "one.gguf", quantization="f16"))
    with pytest.raises(ConversionError, match="of several layers"):
        list(terminal.with_own_layers(str(tmp_path / "one.gguf")))
    both = CliRunner().invoke(app, ["models", "pair", str(whole), str(SMALL_PAIR.draft), "--exit-layers"])
    assert both.exit_code == 2


def test_an_onnx_model_is_measured_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(convert(checkpoints.llama(tmp_path / "source", layers=4), tmp_path / "onnx", fmt="onnx", quantization="fp32"))
    for name, value in (("_SHARES", (0.5,)), ("_PROMPTS", 1), ("_TOKENS", 12)):
        monkeypatch.setattr(exit_layers, name, value)
    said = list(terminal.with_own_layers(str(tmp_path / "onnx")))
    assert said[1].startswith("the first 2 of 4 layers: accepted by depth")
    assert not left()
