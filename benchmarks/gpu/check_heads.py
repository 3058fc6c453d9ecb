"""Checks of heads: for multi-token prediction, EAGLE-3 and PARD with random weights, and trained ones that are given.

A random head is wrong most of the time, so most of its drafts are rolled back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edgespec import Sampling, Speculation, load
from edgespec.backends.gguf_header import header
from edgespec.converters import convert, convert_head
from edgespec.terminal.check_report import CheckReport, read_prompts
from edgespec.tools.check import check
from tests import checkpoints, eagle3_heads, heads

from .results import Item
from .setting import Setting

_PROMPT = [5 + 7 * n % 250 for n in range(60)]
_TOKENS = 48
_MASK = 7
Made = Callable[[Path], tuple[Path, Path | None]]
Found = dict[str, Any]


def items(setting: Setting) -> Iterator[Item]:
    """A check for each kind of head, and one for each head that was given."""
    made: dict[str, tuple[str, Made]] = {
        "a random head for multi-token prediction": ("mtp", lambda folder: (heads.qwen35(folder), None)),
        "a head for multi-token prediction that is right": (
            "mtp",
            lambda folder: (heads.qwen35(folder, right=True), None),
        ),
        "a random head in a file of its own": ("mtp", heads.qwen35_apart),
        "a random EAGLE-3 head": ("eagle3", _eagle3),
        "a random PARD draft": ("pard", _pard),
    }
    for name, (drafter, make) in made.items():
        yield Item(name, partial(_random, setting, drafter, make))
    for path in setting.heads:
        yield Item(f"trained head {path.name}", partial(_trained, setting, path))


def _random(setting: Setting, drafter: str, make: Made) -> Found:
    found: Found = {"passed": True}
    with tempfile.TemporaryDirectory() as name:
        target, head = make(Path(name))
        device = setting.place(context=256)
        speculation = Speculation((drafter,))
        with load(target, head or "none", device=device, speculation=speculation) as runtime:
            found["drafters"] = list(runtime.drafters)
            for temperature in (0.0, 0.8):
                report = CheckReport(1)
                sampling = Sampling(temperature=temperature, seed=1, top_k=0)
                for verdict in check(runtime, [_PROMPT], sampling, _TOKENS):
                    report.add(verdict)
                found[f"T = {temperature:g}"] = report.text().splitlines()[-2:]
                found["passed"] &= report.passed and drafter in runtime.drafters
    return found


def _eagle3(folder: Path) -> tuple[Path, Path]:
    source = checkpoints.llama(folder / "source", layers=4, tied=False, config={"max_position_embeddings": 1024})
    target, head = folder / "target.gguf", folder / "head.gguf"
    list(convert(source, target, quantization="f16"))
    config = eagle3_heads.config()
    tensors = eagle3_heads.tensors(config, {"hidden": 64, "vocabulary": header(target).vocabulary.size})
    list(convert_head(eagle3_heads.write(folder / "head", config, tensors), target, head, quantization="f16"))
    return target, head


def _pard(folder: Path) -> tuple[Path, Path]:
    """A target and a draft of other weights, which guesses several tokens in a pass."""
    found = []
    for name, config in (("target", {}), ("draft", {"pard_token": _MASK, "edgespec_parallel": 6})):
        source = checkpoints.llama(folder / name, config=config)
        found.append(folder / f"{name}.gguf")
        list(convert(source, found[-1], quantization="f16"))
    return found[0], found[1]


def _trained(setting: Setting, path: Path) -> Found:
    found: Found = {"passed": True}
    with load(setting.pair.target, path, device=replace(setting.place(), backend="llama")) as runtime:
        prompts = read_prompts(None, runtime)[: 2 if setting.small else None]
        found["drafters"] = list(runtime.drafters)
        for temperature in (0.0, 0.8):
            report = CheckReport(len(prompts))
            for verdict in check(runtime, prompts, Sampling(temperature=temperature, seed=1), _TOKENS):
                report.add(verdict)
            found[f"T = {temperature:g}"] = report.text().splitlines()[-2:]
            found["passed"] &= report.passed
    return found
