"""The GPU kit's races of several drafts: which are made, who uses them, what is asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf

from benchmarks.gpu import speeds
from benchmarks.gpu.race import FIRST, contenders
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.shapes import Shape, write
from edgespec import Device
from edgespec.bench.edgespec_contender import EdgespecContender
from edgespec.bench.records import OURS
from edgespec.converters import convert

from . import checkpoints
from .small_pair import SMALL_PAIR


def test_a_pard_draft_stays_one(tmp_path: Path) -> None:
    checkpoint = checkpoints.llama(tmp_path / "checkpoint", hidden=128, heads=2, kv_heads=1, head_dim=64)
    config = json.loads((checkpoint / "config.json").read_text()) | {"pard_token": 5, "edgespec_parallel": 6}
    (checkpoint / "config.json").write_text(json.dumps(config))
    small, large = tmp_path / "small.gguf", tmp_path / "large.gguf"
    list(convert(checkpoint, small, quantization="q8_0"))
    vocabulary = len(gguf.GGUFReader(small).fields["tokenizer.ggml.tokens"].contents())
    write(small, large, Shape(2, 256, 256, 4, 2, vocabulary + 64), "Q8_0")
    before, after = (gguf.GGUFReader(path).fields for path in (small, large))
    for key in ("tokenizer.ggml.mask_token_id", "edgespec.parallel"):
        assert before[key].contents() == after[key].contents(), key


def test_races_on_dialogues_have_all_of_them(tmp_path: Path) -> None:
    assert speeds._asked(speeds.DIALOGUE, 1).categories == {"dialogue": 16}
    assert speeds._asked("demo", 1).categories["dialogue"] == 1
    setting = Setting(tmp_path, "cuda", small=False, server=tmp_path)
    assert "8B F16, dialogue, T = 0" in [item.name for item in speeds.items(setting)]


def test_the_first_draft_races_alone_beside_all(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "cpu", small=True, server=tmp_path)
    first, second = SMALL_PAIR.drafts[0], tmp_path / "second.gguf"
    shutil.copy(first, second)
    with contenders(SMALL_PAIR.target, (first, second), Device(512, 1), (FIRST,), setting) as (found, left_out):
        runtimes = {each.name: each.runtime for each in found if isinstance(each, EdgespecContender)}
        drafters = {name: runtime.drafters for name, runtime in runtimes.items()}
        used = runtimes[FIRST].speculation.drafters
    assert not left_out
    assert drafters[OURS] == ("lookup", "model", "model2")
    assert drafters[FIRST] == ("lookup", "model")
    assert used == ("model",)
