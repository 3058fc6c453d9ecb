"""OpenVINO GenAI as a peer of the benchmark, with a stand-in for its package."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edgespec.bench.contender import AnswerRequest, Chunk, ContenderFailed
from edgespec.bench.peers import PEERS, Setup, peer
from edgespec.sampling import Sampling

from . import openvinogenai
from .peers import intermediate, said


@pytest.fixture
def openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """A setup for the stand-in. The ends of a turn are those of the folder."""
    packages = tmp_path / "packages"
    packages.mkdir()
    shutil.copy(openvinogenai.__file__, packages / "openvino_genai.py")
    (packages / "openvino.py").write_text("class Tensor:\n    def __init__(self, data):\n        self.data = data\n")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    target, draft = intermediate(tmp_path / "target"), intermediate(tmp_path / "draft")
    (target / "generation_config.json").write_text('{"eos_token_id": [2, 14], "do_sample": true}', encoding="utf-8")
    named: dict[str, Any] = {"openvino_genai": target, "openvino_genai_draft": draft, "python": Path(sys.executable)}
    return Setup(tmp_path / "model.gguf", threads=3, context=16, patience=60.0, **named)


def written(setup: Setup, name: str) -> dict[str, Any]:
    """What the stand-in wrote."""
    assert setup.openvino_genai is not None
    found: dict[str, Any] = json.loads((setup.openvino_genai / f"{name}.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize(
    ("name", "opened", "options", "counts"),
    [
        ("openvino-genai", set(), {}, [1, 1, 1, 1]),
        ("openvino-genai:draft-3", {"draft_model"}, {"num_assistant_tokens": 3}, [1, 3]),
        ("openvino-genai:draft-5", {"draft_model"}, {"num_assistant_tokens": 5}, [1, 3]),
        ("openvino-genai:draft-8", {"draft_model"}, {"num_assistant_tokens": 8}, [1, 3]),
        ("openvino-genai:draft-confidence", {"draft_model"}, {"assistant_confidence_threshold": 0.4}, [1, 1, 1, 1]),
        ("openvino-genai:lookup", {"prompt_lookup"}, {"num_assistant_tokens": 5, "max_ngram_size": 3}, [1, 3]),
    ],
)
def test_openvino_genai_answers_in_rounds(
    name: str, opened: set[str], options: dict[str, Any], counts: list[int], openvino: Setup
) -> None:
    """Without the end of the turn, with the text that was held back, and with nothing of the folder's settings."""
    with closing(peer(name, openvino)) as contender:
        assert contender.title == f"{PEERS[name]} (2026-stand-in)"
        *chunks, done = contender.answer(AnswerRequest([5, 6, 7], Sampling(), 9))
        assert [chunk.count for chunk in chunks if isinstance(chunk, Chunk)] == [*counts, 0]
        assert said(iter([*chunks, done]))[:2] == ([10, 11, 12, 13], " 10 11 12 13")
    properties = written(openvino, "opened")
    assert {"draft_model", "prompt_lookup"} & set(properties) == opened
    assert (properties["INFERENCE_NUM_THREADS"], properties["device"], properties["reuses"]) == (3, "CPU", True)
    assert properties["ATTENTION_BACKEND"] == "PA", "others do not speculate"
    if "draft_model" in properties:
        draft = {"folder": str(openvino.openvino_genai_draft), "device": "CPU", "INFERENCE_NUM_THREADS": 3}
        assert properties["draft_model"] == draft
    ends = {"eos_token_id": 2, "stop_token_ids": [2, 14]}
    assert written(openvino, "asked") == {
        "prompt": [[5, 6, 7]],
        "max_new_tokens": 9,
        "do_sample": False,
        **ends,
        **options,
    }


@pytest.mark.parametrize("name", ["openvino-genai", "openvino-genai:draft-5", "openvino-genai:lookup"])
def test_openvino_genai_in_float32(name: str, openvino: Setup) -> None:
    """The type of computation of the target and of the draft; all else as without it."""
    opened, asked = [], []
    for each in (name, f"{name}-f32"):
        with closing(peer(each, openvino)) as contender:
            assert contender.title == f"{PEERS[each]} (2026-stand-in)"
            said(contender.answer(AnswerRequest([5, 6, 7], Sampling(), 9)))
        opened.append(written(openvino, "opened"))
        asked.append(written(openvino, "asked"))
    float32 = {"INFERENCE_PRECISION_HINT": "f32"}
    if "draft_model" in opened[0]:
        opened[0]["draft_model"].update(float32)
    assert opened[1] == {**opened[0], **float32}
    assert asked[0] == asked[1]


def test_openvino_genai_is_asked_for_the_same_sampling(openvino: Setup) -> None:
    """At most as many tokens as fit; and only without the cache that it cannot sample with."""
    warm = Sampling(0.8, 40, 0.9, 0.05, seed=(1 << 32) + 7)
    with closing(peer("openvino-genai:draft-3", openvino)) as contender:
        first = said(contender.answer(AnswerRequest([5] * 14, Sampling(), 9)))
        assert (first[0], written(openvino, "opened")["reuses"]) == ([10, 11], True)
        for _ in range(2):
            assert said(contender.answer(AnswerRequest([5] * 14, warm, 9)))[0] == [10, 11]
        with pytest.raises(ContenderFailed, match="knows no repetition_penalty like ours"):
            list(contender.answer(AnswerRequest([5], Sampling(repetition_penalty=1.1), 9)))
    opened, asked = written(openvino, "opened"), written(openvino, "asked")
    assert (opened["reuses"], opened["batched"] > 1 << 32) == (False, True)
    assert asked["max_new_tokens"] == 2
    chosen = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "rng_seed": 7}
    assert {name: asked[name] for name in chosen} == chosen
    with closing(peer("openvino-genai", openvino)) as contender:
        assert said(contender.answer(AnswerRequest([5], warm, 2)))[0] == [10, 11]
    assert written(openvino, "opened")["reuses"], "without a draft model it works"


def test_openvino_genai_does_not_count_what_is_cached(openvino: Setup) -> None:
    """A prompt that was answered needs one token; a folder without settings has the tokenizer's end of a turn."""
    assert openvino.openvino_genai is not None
    (openvino.openvino_genai / "generation_config.json").unlink()
    with closing(peer("openvino-genai", openvino)) as contender:
        tokens, _, seconds = said(contender.answer(AnswerRequest([5, 6, 7], Sampling(), 9)))
        assert tokens == [*openvinogenai.ANSWER]
        assert (seconds or 0) > 0
        assert said(contender.answer(AnswerRequest([5, 6, 7], Sampling(), 9)))[2] == 0
        further = AnswerRequest([5, 6, 7, *openvinogenai.ANSWER, 8], Sampling(), 9)
        assert said(contender.answer(further))[2] == 0
        assert (said(contender.answer(AnswerRequest([5, 6, 8], Sampling(), 9)))[2] or 0) >= 0
