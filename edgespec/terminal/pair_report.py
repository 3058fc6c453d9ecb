"""What `edgespec convert --pair` found, in words, in JSON and for the pair file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgespec.converters.compatibility import Likeness
from edgespec.models import fit
from edgespec.models.sizes import amount

from ..library import size
from ..tools.draft_value import ENOUGH, Worth
from ..tools.tuning import plausible
from .check_report import Report
from .tune import DEAR, WORTH

_TENTH = 0.1  # of the target's parameters, for a draft that costs little
_WIDE = 1.5  # plain steps, for a pass over two tokens: one that is dear
_MORE = "give more prompts, or a larger --max-tokens"
_ENGINES = {"gguf": "llama-cpp-python", "onnx": "onnxruntime"}


@dataclass(frozen=True, slots=True)
class Made:
    """A model of the pair and what it is made of; `commit` where it came from a hub."""

    role: str
    source: str
    commit: str
    output: Path
    quantization: str


@dataclass(frozen=True, slots=True)
class Findings:
    """All of it: the models, how alike they are, and, once it is measured, the draft's worth.

    `file` is where the prompts come from; empty for those that edgespec brings along.
    """

    likeness: Likeness
    made: Sequence[Made]
    worth: Worth = Worth((), (1.0, 1.0), 0.0)  # noqa: RUF009 - frozen
    report: Report = field(default_factory=lambda: Report(0))
    plan: fit.Plan | None = None
    prompts: int = 0
    file: str = ""
    temperature: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether no output was another; where nothing was drafted none can be."""
        return self.report.passed or not self.report.drafted

    def beforehand(self) -> Iterator[str]:
        """What the checkpoints say of each other."""
        alike, share = self.likeness, self.likeness.share
        ours, theirs = alike.target, alike.draft
        if alike.mismatch:
            yield f"vocabulary: {alike.mismatch}: it drafts through text, which costs more and is right less often"
        else:
            yield f"vocabulary: the same {min(ours.size, theirs.size)} tokens"
        if ours.ends != theirs.ends and not alike.mismatch:
            yield f"special tokens: {_texts(ours.ends)} end a turn of the target, {_texts(theirs.ends)} of the draft"
        yield f"template: {_template(ours.template, theirs.template)}"
        sizes = f"{ours.parameters / 1e6:,.1f} and {theirs.parameters / 1e6:,.1f} million parameters"
        yield f"size: {sizes}; the draft has {share:.0%} of the target's" + "; a tenth pays most" * (share > _TENTH)

    def lines(self) -> Iterator[str]:
        """What was made and measured, and what to do better."""
        for each in self.made:
            yield f"{each.role:6}  {each.output}  {amount(size(each.output))}  {each.quantization}"
        yield f"acceptance by depth: {self._acceptance()}"
        yield self._speedup()
        yield f"check: {self.report.text().splitlines()[-1]}"
        yield self._memory()
        yield from self._advice()
        yield f"edgespec chat {self.made[0].output.parent}"

    def as_json(self) -> str:
        """The same figures, for a program; seconds and bytes."""
        plan, worth = self.plan, self.worth
        return json.dumps(
            {
                **self.as_pair(),
                "vocabulary": self.likeness.mismatch or "same",
                "share": self.likeness.share,
                "prices": list(worth.curve),
                "step": worth.step,
                "break_even": worth.break_even if plausible(worth.curve) else None,
                "ceiling": worth.ceiling._asdict() if plausible(worth.curve) else None,
                "check": self.report.text().splitlines()[-1],
                "passed": self.passed,
                "memory": {"needed": plan.needed, "context": plan.context, "fits": plan.fits} if plan else None,
                "advice": list(self._advice()),
            }
        )

    def as_pair(self) -> dict[str, Any]:
        """The pair file's content but for the date; see `edgespec.storage.pair_file`."""
        worth, engine = self.worth, _ENGINES[self._fmt]
        return {
            **{each.role: each.output.name for each in self.made},
            "made_of": {
                each.role: {"source": each.source, "commit": each.commit, "quantization": each.quantization}
                for each in self.made
            },
            "measured": {
                "acceptance": [round(share, 4) for share in worth.acceptance],
                "tries": [tried for tried, _ in worth.depths],
                "prompts": self.file or "the bundled prompts",
                "tokens": worth.tokens,
                "temperature": self.temperature,
                **self._expected(),
            },
            "versions": {"edgespec": _version("edgespec"), "engine": f"{engine} {_version(engine)}"},
        }

    @property
    def _fmt(self) -> str:
        return "gguf" if self.made[0].output.suffix else "onnx"

    def _expected(self) -> dict[str, float]:
        """What follows for the pair file; nothing where it is not known."""
        worth, (k, gain) = self.worth, self.worth.best
        if not worth.known:
            return {}
        return {"k": k, "speedup": round(gain, 3), "mean_accepted_length": round(worth.length(k), 3)}

    def _acceptance(self) -> str:
        if not self.worth.depths:
            return "nothing was drafted"
        if not self.worth.acceptance:
            return f"not known: drafts were judged {self.worth.depths[0][0]} times, and it takes {ENOUGH}; {_MORE}"
        shares = " ".join(f"{share:.0%}" for share in self.worth.acceptance)
        return f"{shares} ({self.prompts} prompts, {self.worth.tokens} tokens, temperature {self.temperature:g})"

    def _speedup(self) -> str:
        worth, (k, gain) = self.worth, self.worth.best
        if not worth.known:
            why = "too few drafts were judged" if plausible(worth.curve) else "the prices measured cannot be true"
            return f"speedup expected at the prices of this machine: not known, for {why}"
        step = f"a guess costs {worth.step / worth.curve[0]:.2f} of a plain step"
        if not k:
            return f"speedup expected at the prices of this machine: none, plain decoding is fastest; {step}"
        return (
            f"speedup expected at the prices of this machine: {gain:.2f}x at K = {k}, "
            f"mean accepted length {worth.length(k):.2f}; {step}"
        )

    def _advice(self) -> Iterator[str]:
        """What would bring more."""
        worth = self.worth
        if not plausible(worth.curve):
            yield (
                "These prices are no good: wide passes took less than narrow ones, or far more than their tokens would "
                "alone, so something else was running. Close what you can and measure again, with --force."
            )
            return
        if worth.ceiling.speedup < WORTH or worth.break_even is None:
            yield (
                f"Even a draft that is always right would bring {worth.ceiling.speedup:.2f}x. Take a smaller one, a "
                "larger target, or a quantization whose wide passes are cheaper."
            )
        elif worth.acceptance and not worth.best.k:
            yield (
                f"The draft is right too seldom: {worth.acceptance[0]:.0%} of its first tokens are accepted, and "
                f"drafts pay from {worth.break_even:.0%} on. Take one that was distilled from the target, or made for "
                "the same texts."
            )
        if self._fmt == "gguf" and worth.curve[1] > _WIDE * worth.curve[0]:
            yield (
                f"A pass over two tokens takes {worth.curve[1] / worth.curve[0]:.1f} plain steps: --to onnx --quant r8 "
                "may make wide passes cheaper."
            )
        if worth.step > DEAR * worth.curve[0]:
            yield "The draft model is dear for this target: a smaller one, or a coarser --draft-quant, would pay more."
        if self.likeness.mismatch:
            yield "A draft of the target's own family shares its vocabulary, costs less and is right more often."

    def _memory(self) -> str:
        plan = self.plan
        if plan is None:
            return "memory: unknown"
        but = "" if plan.cache is not None else " and a cache of unknown size"
        verdict = "it fits" if plan.fits else "more than is free now: take a coarser quantization or smaller models"
        return f"memory: {amount(plan.needed)}{but} with a context of {plan.context} tokens; {verdict}"


def _texts(tokens: frozenset[str]) -> str:
    return ", ".join(map(repr, sorted(tokens))) or "none"


def _template(ours: str | None, theirs: str | None) -> str:
    if ours is None:
        return "the target has none, so chats have no form of their own"
    if theirs is None:
        return "the target's; the draft has none, and may guess worse in chats"
    return "the same" if ours == theirs else "they differ; the target's is used, and the draft may guess worse in chats"


def _version(package: str) -> str:
    for name in (package, f"{package}-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""
