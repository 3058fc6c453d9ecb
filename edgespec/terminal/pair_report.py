"""The report of `edgespec convert --pair`: as text, as JSON and for the pair file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgespec.converters.compatibility import Compatibility
from edgespec.models import fit
from edgespec.models.sizes import amount

from ..backends import Device, engines, recall_choice
from ..library import size
from ..tools.draft_value import ENOUGH, DraftValue
from ..tools.tuning import plausible
from .check_report import CheckReport
from .tune import EXPENSIVE_STEP, MIN_SPEEDUP

_TENTH = 0.1  # the draft's parameters over the target's, at most, for a cheap draft
_WIDE = 1.5  # the price of a pass over two tokens in plain steps, above which another format is suggested
_MORE = "give more prompts, or a larger --max-tokens"
_PACKAGES = {"llama": "llama-cpp-python", "onnx": "onnxruntime", "openvino": "openvino"}


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """A model of the pair and its source; `commit` is empty unless it came from a hub."""

    role: str
    source: str
    commit: str
    output: Path
    quantization: str


@dataclass(frozen=True, slots=True)
class PairReport:
    """The models, their compatibility, and the measurements of the pair once there are any.

    Args:
        compatibility: of the two checkpoints.
        made: the converted models, the target first.
        value: acceptance by depth, and the prices of passes.
        check: the result of the losslessness check.
        plan: how the pair fits into memory.
        prompts: how many prompts were answered.
        file: the file of prompts; empty for the bundled ones.
        temperature: of the measured answers.
    """

    compatibility: Compatibility
    made: Sequence[ConvertedModel]
    value: DraftValue = DraftValue((), (1.0, 1.0), 0.0)  # noqa: RUF009 - frozen
    check: CheckReport = field(default_factory=lambda: CheckReport(0))
    plan: fit.Plan | None = None
    prompts: int = 0
    file: str = ""
    temperature: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the losslessness check passed; without drafts speculation cannot change an output."""
        return self.check.passed or not self.check.drafted

    def compatibility_lines(self) -> Iterator[str]:
        """The compatibility of the checkpoints, a line each."""
        compatibility, share = self.compatibility, self.compatibility.share
        ours, theirs = compatibility.target, compatibility.draft
        if compatibility.mismatch:
            yield f"vocabulary: {compatibility.mismatch}: it drafts through text, at a higher cost and lower acceptance"
        else:
            yield f"vocabulary: the same {min(ours.size, theirs.size)} tokens"
        if ours.ends != theirs.ends and not compatibility.mismatch:
            yield f"special tokens: {_texts(ours.ends)} end a turn of the target, {_texts(theirs.ends)} of the draft"
        yield f"template: {_template(ours.template, theirs.template)}"
        sizes = f"{ours.parameters / 1e6:,.1f} and {theirs.parameters / 1e6:,.1f} million parameters"
        yield f"size: {sizes}; the draft has {share:.0%} of the target's" + "; a tenth pays most" * (share > _TENTH)

    def lines(self) -> Iterator[str]:
        """The converted models, the measurements, and advice."""
        for each in self.made:
            yield f"{each.role:6}  {each.output}  {amount(size(each.output))}  {each.quantization}"
        yield f"acceptance by depth: {self._acceptance()}"
        yield self._speedup()
        yield f"check: {self.check.text().splitlines()[-1]}"
        yield self._memory()
        yield from self._advice()
        yield f"edgespec chat {self.made[0].output.parent}"

    def as_json(self) -> str:
        """The report for programs; times in seconds, sizes in bytes."""
        plan, value = self.plan, self.value
        return json.dumps(
            {
                **self.as_pair(),
                "vocabulary": self.compatibility.mismatch or "same",
                "share": self.compatibility.share,
                "prices": list(value.curve),
                "step": value.step,
                "break_even": value.break_even if plausible(value.curve) else None,
                "ceiling": value.ceiling._asdict() if plausible(value.curve) else None,
                "check": self.check.text().splitlines()[-1],
                "passed": self.passed,
                "memory": {"needed": plan.needed, "context": plan.context, "fits": plan.fits} if plan else None,
                "advice": list(self._advice()),
            }
        )

    def as_pair(self) -> dict[str, Any]:
        """The content of the pair file, without the date; see `edgespec.storage.pair_file`."""
        value = self.value
        return {
            **{each.role: each.output.name for each in self.made},
            "made_of": {
                each.role: {"source": each.source, "commit": each.commit, "quantization": each.quantization}
                for each in self.made
            },
            "measured": measurement(value, self.file or "the bundled prompts", self.temperature),
            "versions": versions(self.made[0].output),
        }

    def _acceptance(self) -> str:
        if not self.value.depths:
            return "nothing was drafted"
        if not self.value.acceptance:
            return f"not known: {self.value.depths[0][0]} drafts were verified, and {ENOUGH} are needed; {_MORE}"
        shares = " ".join(f"{share:.0%}" for share in self.value.acceptance)
        return f"{shares} ({self.prompts} prompts, {self.value.tokens} tokens, temperature {self.temperature:g})"

    def _speedup(self) -> str:
        value, (k, gain) = self.value, self.value.best
        if not value.known:
            why = "too few drafts were verified" if plausible(value.curve) else "the measured prices are implausible"
            return f"speedup expected at the prices of this machine: not known: {why}"
        step = f"a guess costs {value.step / value.curve[0]:.2f} of a plain step"
        if not k:
            return f"speedup expected at the prices of this machine: none, plain decoding is fastest; {step}"
        return (
            f"speedup expected at the prices of this machine: {gain:.2f}x at K = {k}, "
            f"mean accepted length {value.length(k):.2f}; {step}"
        )

    def _advice(self) -> Iterator[str]:
        """What would increase the speedup."""
        value = self.value
        if not plausible(value.curve):
            yield (
                "These prices are implausible: wide passes took less time than narrow ones, or far more than their "
                "tokens one by one, so other programs were running. Close them and measure again, with --force."
            )
            return
        if value.ceiling.speedup < MIN_SPEEDUP or value.break_even is None:
            yield (
                f"Even a draft that is always accepted would give {value.ceiling.speedup:.2f}x. Use a smaller draft, a "
                "larger target, or a quantization whose wide passes are cheaper."
            )
        elif value.acceptance and not value.best.k:
            yield (
                f"The acceptance rate is too low: {value.acceptance[0]:.0%} of the first drafted tokens are accepted, "
                f"and drafts pay from {value.break_even:.0%} on. Use a draft that was distilled from the target, "
                "as `edgespec distill` does, or trained on the same texts."
            )
        if self.made[0].output.suffix and value.curve[1] > _WIDE * value.curve[0]:
            yield (
                f"A pass over two tokens takes {value.curve[1] / value.curve[0]:.1f} plain steps: --to onnx --quant r8 "
                "may make wide passes cheaper."
            )
        if value.step > EXPENSIVE_STEP * value.curve[0]:
            yield "The draft model is slow for this target: a smaller one, or a coarser --draft-quant, would pay more."
        if self.compatibility.mismatch:
            yield "A draft of the target's own family shares its vocabulary, costs less and is accepted more often."

    def _memory(self) -> str:
        plan = self.plan
        if plan is None:
            return "memory: unknown"
        cache = "" if plan.cache is not None else " and a cache of unknown size"
        verdict = "it fits" if plan.fits else "more than is free now: use a coarser quantization or smaller models"
        return f"memory: {amount(plan.needed)}{cache} with a context of {plan.context} tokens; {verdict}"


def measurement(value: DraftValue, prompts: str, temperature: float) -> dict[str, Any]:
    """A measurement as the pair file has it; without the speedup where that is not known.

    Args:
        prompts: a name for them.
        temperature: of the answers.
    """
    k, gain = value.best
    expected = {"k": k, "speedup": round(gain, 3), "mean_accepted_length": round(value.length(k), 3)}
    return {
        "acceptance": [round(share, 4) for share in value.acceptance],
        "tries": [tried for tried, _ in value.depths],
        "prompts": prompts,
        "tokens": value.tokens,
        "temperature": temperature,
        **(expected if value.known else {}),
    }


def versions(target: Path) -> dict[str, str]:
    """The versions of edgespec and of the engine that runs the target, for the pair file."""
    choice = recall_choice(target, Device())
    package = _PACKAGES[choice.engine if choice is not None else engines(target)[0]]
    return {"edgespec": _version("edgespec"), "engine": f"{package} {_version(package)}"}


def _texts(tokens: frozenset[str]) -> str:
    return ", ".join(map(repr, sorted(tokens))) or "none"


def _template(ours: str | None, theirs: str | None) -> str:
    if ours is None:
        return "the target has none, so chats are not formatted"
    if theirs is None:
        return "the target's; the draft has none, and may be accepted less often in chats"
    return "the same" if ours == theirs else "different; the target's is used, and chats may have lower acceptance"


def _version(package: str) -> str:
    for name in (package, f"{package}-gpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""
