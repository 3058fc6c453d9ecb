"""Heads for multi-token prediction with fewer rows in their output matrix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgespec import Sampling
from edgespec.backends.gguf_header import header
from edgespec.backends.head_header import TOKENS, tokens_of, written
from edgespec.converters import head_rows
from edgespec.errors import (
    ConversionError,
)
from edgespec.tools.check import check

from . import heads, hybrids
from .commandline import refused, run
from .mtp_cases import PROMPT, RIGHT_PROMPT, Files, acceptance, all_kinds, fresh, opened, runtime


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Files]:
    return all_kinds(tmp_path_factory)


@pytest.mark.parametrize("kind", ["in the file", "apart"])
def test_a_head_with_fewer_rows_is_right_as_often(
    made: dict[tuple[str, bool], Files], kind: str, tmp_path: Path
) -> None:
    """Tokens of the prompt that have no row are taken for another; the text is the same."""
    target, apart = made[kind, True]
    small = tmp_path / "small.gguf"
    size = head_rows.write(apart or target, small, 140)
    assert size == small.stat().st_size < (apart or target).stat().st_size
    assert acceptance((target, small)) > 0.9
    for temperature in (0.0, 0.8):
        with runtime((target, small)) as speaker:
            (verdict,) = check(speaker, [RIGHT_PROMPT], Sampling(temperature=temperature, top_k=0), 30)
            assert verdict.divergence is None or verdict.divergence.near_tie


@pytest.mark.parametrize("quantized", [False, True])
def test_rows_are_copied_byte_by_byte(quantized: bool, tmp_path: Path) -> None:
    """The logits of the tokens that stay are the same to the last bit; no other token is guessed."""
    target, small = heads.qwen35(tmp_path, quantized=quantized), tmp_path / "small.gguf"
    head_rows.write(target, small, 100)
    tokens, of = tokens_of(header(small)) or ([], 0)
    assert (len(tokens), of) == (100, len(hybrids.TOKENS))
    text = [token for token in PROMPT if token in tokens]
    assert len(text) > 15
    with opened((target, small)) as over:
        over.session.prefill(text)
        rows = over.rows(9, [8])
    expected = fresh((target, None), [*text, 9], [8])
    assert np.array_equal(rows[:, tokens], expected[:, tokens])
    assert np.isneginf(rows[:, np.setdiff1d(np.arange(of), tokens)]).all()


def test_files_of_fewer_rows_that_cannot_be(made: dict[tuple[str, bool], Files], tmp_path: Path) -> None:
    target, assistant = made["in the file", False][0], made["gemma4", False][1]
    assert assistant is not None
    small = tmp_path / "small.gguf"
    for source, rows, says in (
        (target, 1, "cannot have 1 rows; give a number from 64 to 270"),
        (target, 1000, "cannot have 1000 rows"),
        (assistant, 100, "holds no head whose rows can be chosen"),
        (made["apart", False][0], 100, "holds no head whose rows can be chosen"),
    ):
        with pytest.raises(ConversionError, match=says):
            head_rows.write(source, small, rows)
    assert list(tmp_path.iterdir()) == []
    head_rows.write(target, small, 100)
    with pytest.raises(ConversionError, match="holds no head whose rows"):
        head_rows.write(small, tmp_path / "again.gguf", 80)
    with pytest.raises(ConversionError, match="exists"):
        head_rows.write(target, small, 100)


@pytest.mark.parametrize("text", ["5-3", "0-5,4", "x", "", "0-999", "0-98", "-1"])
def test_tokens_of_a_head_that_contradict_the_file(text: str, tmp_path: Path) -> None:
    """They would be read beyond the end of its matrix."""
    target, small = heads.qwen35(tmp_path), tmp_path / "small.gguf"
    head_rows.write(target, small, 100)
    head = header(small)
    fields = {**head.fields, TOKENS: text}
    with pytest.raises(ValueError, match=r"edgespec\.head\.tokens|invalid literal"):
        tokens_of(replace(head, fields=fields))
    found = tokens_of(head)
    assert found is not None
    assert written(found[0]) == head.fields[TOKENS]


def test_the_command_that_writes_fewer_rows(made: dict[tuple[str, bool], Files], tmp_path: Path) -> None:
    target = made["in the file", True][0]
    done = run("convert", target, "--head-rows", "140", "--out", tmp_path / "small.gguf")
    assert done.returncode == 0, done.stderr
    assert "small.gguf: 0." in done.stderr
    assert "give a number from 64" in refused(run("convert", target, "--head-rows", "3", "--out", tmp_path / "a.gguf"))
