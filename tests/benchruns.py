"""Runs of a benchmark that nobody ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgespec.bench.records import (
    OURS,
    PLAIN,
    AnswerRecord,
    Burst,
    ContenderEntry,
    Depth,
    Pass,
    PassPrices,
    Problem,
    Run,
    Stretch,
)

PEER = "llama-server"
HOSTILE = '<script>alert("x")</script> & <img src="https://example.com/x.png"> \x1b[31m\x00 | `code`'

TAKING = (
    ContenderEntry(PLAIN, "plain decoding", peer=False, memory=1_200_000_000),
    ContenderEntry(OURS, "edgespec", peer=False, memory=1_200_000_000),
    ContenderEntry("k=4", "edgespec, fixed K = 4", peer=False),
    ContenderEntry(PEER, "llama.cpp's server", peer=True, memory=900_000_000),
    ContenderEntry(f"{PEER}:draft-8", "llama.cpp's server, draft model, K = 8", peer=True, memory=1_100_000_000),
    ContenderEntry("transformers", "transformers", peer=True, skipped="it is not installed"),
)
#: By category: questions, and how many times faster than plain each contender is there.
_SPEEDS: Mapping[str, tuple[int, Mapping[str, float]]] = {
    "chat": (8, {PLAIN: 1.0, OURS: 1.5, "k=4": 1.2, PEER: 1.05, f"{PEER}:draft-8": 1.3}),
    "summarization": (8, {PLAIN: 1.0, OURS: 1.3, "k=4": 1.1, PEER: 1.05, f"{PEER}:draft-8": 0.9}),
    "copy": (6, {PLAIN: 1.0, OURS: 2.8, "k=4": 1.9}),
    "hard": (8, {PLAIN: 1.0, OURS: 0.96, "k=4": 0.6}),
}
_REPLAYED = ("copy", "hard")


def answer(question: str, contender: str, tokens: int, seconds: float, **more: Any) -> AnswerRecord:
    """An answer in category "chat", whose prompt took no time, unless said otherwise."""
    known = {"category": "chat", "turn": 0, "replayed": False, "prompt": 10, "text": "", "digest": ""}
    times = {"tokens": tokens, "seconds": seconds, "prompt_seconds": 0.0}
    return AnswerRecord(**{**known, **times, "question": question, "contender": contender, **more})


def run(answers: Sequence[AnswerRecord] = (), **more: Any) -> Run:
    """A run of these answers, with as many questions as there are."""
    asked = {a.category: len({b.question for b in answers if b.category == a.category}) for a in answers}
    names = {a.contender: a.contender for a in answers}
    takes = [ContenderEntry(name, name, peer=name.startswith(("peer", PEER))) for name in names]
    known = {"about": {}, "suite": "made up", "questions": asked, "contenders": takes, "prices": None}
    return Run(**{**known, "answers": tuple(answers), **more})


def fabricated(**more: Any) -> Run:
    """Several categories, two of them replayed; six contenders, one of them left out; problems."""
    rng = np.random.default_rng(1)
    answers = [
        _answer(rng, category, n, contender, speed)
        for category, (questions, speeds) in _SPEEDS.items()
        for n in range(questions)
        for contender, speed in speeds.items()
    ]
    known = {
        "about": {
            "date": "2026-01-01",
            "machine": "an imaginary processor, 2 threads",
            "versions": "edgespec 0.1.0, llama-cpp-python 0.3.36",
            "command": "edgespec bench model.gguf --draft draft.gguf --suite made-up --peers llama-server",
        },
        "suite": "made up",
        "questions": {category: questions for category, (questions, _) in _SPEEDS.items()},
        "contenders": TAKING,
        "prices": PassPrices(tuple(0.02 * (1 + 0.16 * n + 0.1 * (n > 0)) for n in range(32)), 0.002),
        "problems": (Problem("made-up.jsonl, line 7", HOSTILE), Problem("transformers", "it is not installed")),
    }
    return Run(**{**known, "answers": tuple(answers), **more})


def _answer(rng: np.random.Generator, category: str, n: int, contender: str, speed: float) -> AnswerRecord:
    drafts = contender not in (PLAIN, PEER)
    replayed = category in _REPLAYED
    bursts, passes, strip = [], [], []
    now, tokens = 0.2, 0
    while tokens < 60 + 5 * n:
        drafted = int(rng.integers(1, 7)) if drafts and contender == OURS else 4 * drafts
        accepted = int(rng.binomial(drafted, min(0.95, speed / 3)))
        now += 0.02 * (1 + accepted) / speed * float(rng.uniform(0.9, 1.1))
        tokens += 1 + accepted
        bursts.append(Burst(now, 1 + accepted))
        passes.append(Pass(drafted, accepted, 1 + accepted, 0.02))
        strip += [Stretch("sure <b>thing</b>, ", "accepted")] * (accepted > 0)
        strip += [Stretch("no\nway ", "rejected")] * (accepted < drafted) + [Stretch("it is ", "own")]
    rows = (Depth(40, 34), Depth(30, 21), Depth(12, 6))
    return answer(
        f"{category}-{n}",
        contender,
        tokens,
        now,
        category=category,
        replayed=replayed,
        text="" if replayed else HOSTILE,
        prompt_seconds=0.2,
        digest="" if contender.startswith(PEER) else f"{category}-{n}",
        bursts=tuple(bursts),
        passes=tuple(passes) if contender in (OURS, "k=4") else (),
        depths={"model": rows, "lookup": rows[::-1][1:]} if contender == OURS else {},
        strip=tuple(strip) if contender == OURS else (),
        joules=tokens * 0.5,
    )
