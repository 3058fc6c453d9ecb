"""Speculation under a grammar is plain decoding under it in every engine, by SentencePiece's tokens, and beside PARD
and Medusa, which guess without knowing the grammar."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

import edgespec
from edgespec import Device, Finished, Grammar, Sampling, Speculation, Text
from edgespec.converters import convert

from . import checkpoints
from .grammar_runs import PERSON
from .medusa_heads import chain_in, doubting, head_file

SAMPLINGS = (Sampling(), Sampling(temperature=0.9, seed=5))
ENGINES = ("llama", "onnx", "openvino")
Made = Callable[[str, str, int], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A random model by its tokenizer, format and seed, converted when first asked for."""
    folder = tmp_path_factory.mktemp("engines")

    def model(tokenizer: str, fmt: str, seed: int) -> Path:
        output = folder / f"{tokenizer}-{seed}.{fmt}"
        if not output.exists():
            source = folder / f"{tokenizer}-{seed}"
            config = {"pard_token": 7, "edgespec_parallel": 6} if seed == 2 else None
            checkpoints.llama(source, tokenizer=tokenizer, seed=min(seed, 1), config=config)
            list(convert(source, output, fmt=fmt, quantization={"gguf": "f16", "onnx": "fp32"}[fmt]))
        return output

    return model


def opened(target: Path, draft: Path, engine: str) -> edgespec.Runtime:
    return edgespec.load(target, draft, device=Device(512, 1, backend=engine))


def held(runtime: edgespec.Runtime, sampling: Sampling, speculation: Speculation) -> tuple[str, Finished]:
    """What is said by the schema, which it is valid by."""
    grammar = Grammar.json_schema(PERSON)
    events = list(runtime.complete("A person:", sampling, max_tokens=80, grammar=grammar, speculation=speculation))
    text = "".join(event.text for event in events if isinstance(event, Text))
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "end"
    assert not events[-1].notices
    jsonschema.validate(json.loads(text), PERSON)
    return text, events[-1]


def lossless(runtime: edgespec.Runtime, *drafters: str) -> None:
    """The text is that of plain decoding, and some of the drafts were wrong."""
    drafted = accepted = 0
    for sampling in SAMPLINGS:
        plain, _ = held(runtime, sampling, Speculation(k=0))
        for rule in ("match", "rejection", "block") if not sampling.temperature else ("match",):
            for k in (2, 6) if rule == "match" else (6,):
                text, finished = held(runtime, sampling, Speculation(drafters, k, rule))
                assert text == plain, (sampling, rule, k)
                drafted += finished.stats.drafted
                accepted += finished.stats.accepted
    assert 0 < accepted < drafted


@pytest.mark.parametrize("tokenizer", ["gpt-2", "spm-both"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_and_both_kinds_of_vocabularies(made: Made, engine: str, tokenizer: str) -> None:
    """The draft is another random model, which is mostly wrong, and forced tokens."""
    fmt = "gguf" if engine == "llama" else "onnx"
    with opened(made(tokenizer, fmt, 0), made(tokenizer, fmt, 1), engine) as runtime:
        lossless(runtime, "grammar", "model")
        assert held(runtime, Sampling(), Speculation(("grammar",), 6))[1].stats.by_drafter["grammar"][1] > 0


@pytest.mark.parametrize(("engine", "tokenizer"), [*zip(ENGINES, ("spm-both", "gpt-2", "spm-both"), strict=True)])
def test_beside_pard(made: Made, engine: str, tokenizer: str) -> None:
    fmt = "gguf" if engine == "llama" else "onnx"
    with opened(made(tokenizer, fmt, 0), made(tokenizer, fmt, 2), engine) as runtime:
        lossless(runtime, "pard")


@pytest.mark.parametrize("engine", ENGINES)
def test_beside_medusa(tmp_path: Path, engine: str) -> None:
    chain = chain_in(tmp_path / "chain")
    path = head_file(tmp_path, chain, doubting(chain))
    with opened(chain.gguf if engine == "llama" else chain.onnx, path, engine) as runtime:
        lossless(runtime, "medusa")
