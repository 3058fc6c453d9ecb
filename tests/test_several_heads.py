"""Heads of several kinds at once, beside draft models: all read the states of one session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec import Device, Runtime, Sampling, Speculation
from edgespec.converters import convert, convert_head
from edgespec.engine import Finished
from edgespec.errors import OptionError
from edgespec.library import Job, fitted
from edgespec.models import fit
from edgespec.models.memory import MachineMemory
from edgespec.models.sizes import Sizes
from edgespec.runtime.loading import Files
from edgespec.tools.check import check

from . import checkpoints, eagle3_heads, heads, hybrids

DEVICE = Device(context=256, threads=1)
FREE, ASKED = MachineMemory(1 << 30), fit.Requested(256)


def medusa(folder: Path, target: Path, width: int, vocabulary: int) -> Path:
    """Two random Medusa heads."""
    draw, made = np.random.default_rng(1), dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]()
    for head in range(2):
        made[f"{head}.0.linear.weight"] = (draw.standard_normal((width, width)) / 20).astype(np.float32)
        made[f"{head}.0.linear.bias"] = np.zeros(width, np.float32)
        made[f"{head}.1.weight"] = draw.standard_normal((vocabulary, width)).astype(np.float32)
    (folder / "medusa").mkdir()
    checkpoints.write_safetensors(folder / "medusa" / "medusa_lm_head.safetensors", made)
    list(convert_head(folder / "medusa", target, folder / "medusa.onnx"))
    return folder / "medusa.onnx"


def eagle3(folder: Path, target: Path, width: int, vocabulary: int) -> Path:
    """A random EAGLE-3 head."""
    config = eagle3_heads.config()
    tensors = eagle3_heads.tensors(config, {"hidden": width, "vocabulary": vocabulary})
    list(convert_head(eagle3_heads.write(folder / "eagle", config, tensors), target, folder / "eagle.gguf"))
    return folder / "eagle.gguf"


def is_lossless(runtime: Runtime, prompt: Sequence[int]) -> bool:
    verdicts = [
        verdict
        for sampling in (Sampling(), Sampling(temperature=0.8, seed=2))
        for verdict in check(runtime, [prompt], sampling, 40)
    ]
    return all(verdict.divergence is None or verdict.divergence.near_tie for verdict in verdicts)


def test_models_and_heads_at_once(small_pair: dict[str, Path], tmp_path: Path) -> None:
    """A model, a model with other tokens, an EAGLE-3 head and Medusa heads: all draft, and none changes the text."""
    list(convert(checkpoints.llama(tmp_path / "source"), tmp_path / "other.gguf", quantization="f16"))
    target, two = small_pair["target"], medusa(tmp_path, small_pair["target"], 512, 4096)
    drafts = [two, small_pair["draft"], eagle3(tmp_path, target, 512, 4096), tmp_path / "other.gguf"]
    with edgespec.load(target, drafts, device=DEVICE) as runtime:
        names = ("model", "cross-vocabulary", "eagle3", "medusa")
        assert runtime.drafters == ("lookup", *names)
        assert all(runtime.step_prices[name] > 0 for name in names)
        assert runtime.step_prices["eagle3"] != 2 * runtime.step_prices["medusa"], "two heads, two prices"
        assert "The drafter model is" in " ".join(runtime.notices)
        prompt = runtime.prompt([{"role": "user", "content": "I need a table for two."}])
        assert is_lossless(runtime, prompt)
        *_, finished = runtime.complete(prompt, max_tokens=40, speculation=Speculation(names, 3))
        assert isinstance(finished, Finished)
        drafted = {name for label in finished.stats.by_drafter for name in label.split("+")}
        assert drafted >= {"model", "eagle3", "medusa"}  # random text mostly is no text of the other vocabulary
        with runtime.another() as second:
            assert second.drafters == runtime.drafters
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(two.read_bytes())
    with pytest.raises(OptionError, match="2 heads of the kind medusa"):
        edgespec.load(target, [two, copy], device=DEVICE)


@pytest.mark.parametrize("kind", ["in the file", "apart", "gemma4"])
def test_a_head_for_multi_token_prediction_beside_other_heads(kind: str, tmp_path: Path) -> None:
    """In whatever order they are given: one of them is opened over a context that another one opens anew. The head in
    the target's file is used if it is named, unless there is another one."""
    if kind == "in the file":
        made = [heads.qwen35(tmp_path, right=True)]
    else:
        made = [*(heads.qwen35_apart if kind == "apart" else heads.gemma4)(tmp_path, right=True)]
    target, *apart = made
    others = [each(tmp_path, target, hybrids.WIDTH, len(hybrids.TOKENS)) for each in (medusa, eagle3)]
    files = [*apart, *others]
    for drafts in (files, files[::-1]):
        speculation = Speculation(("mtp", "eagle3", "medusa"))
        with edgespec.load(target, drafts, device=DEVICE, speculation=speculation) as runtime:
            assert runtime.drafters == ("lookup", "eagle3", "mtp", "medusa")
            assert is_lossless(runtime, list(heads.RING))
            *_, finished = runtime.complete(list(heads.RING), max_tokens=40, speculation=Speculation(("mtp",), 1))
            assert isinstance(finished, Finished)
            assert finished.stats.acceptance_rate > 0.9
    with edgespec.load(target, others, device=DEVICE) as runtime:
        assert "mtp" not in runtime.drafters
    counted, left_out = (fit.plan(target, others, beside=beside).needed for beside in (True, False))
    assert (counted > left_out) is (kind == "in the file")


@pytest.mark.parametrize("named", [("mtp", "eagle3"), ("eagle3",), None])
def test_a_named_head_in_the_targets_file_counts_in_memory(
    named: tuple[str, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def planned(*_files: object, **given: bool) -> fit.Plan:
        asked.append(given)
        return fit.choose(Sizes(0), None, FREE, ASKED)

    monkeypatch.setattr(fit, "plan", planned)
    fitted(Files(tmp_path), DEVICE, Job(), speculation=Speculation(named))
    assert asked == [{"head": True, "beside": named is not None and "mtp" in named}]
