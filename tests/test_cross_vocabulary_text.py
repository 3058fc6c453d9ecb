"""Drafting across vocabularies does not change the target's text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from edgespec.backends import Device, Interrupt, Session, common_prefix, open_model
from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.drafters.cross_vocabulary import CrossVocabularyDrafter
from edgespec.sampling import Sampling
from edgespec.text.template import ChatTemplate
from edgespec.types import Draft
from edgespec.verify import RoundContext, verifier

from .helpers import decode_plain, never
from .pair_checkpoints import checkpoint_of
from .respelt import respelt
from .vocabularies import BYTES, FINE, by_text


def speculate(
    target: Session,
    drafter: CrossVocabularyDrafter,
    prompt: Sequence[int],
    round_context: Callable[[Sequence[int]], RoundContext],
    n: int,
) -> tuple[list[int], int, int]:
    """Rounds of up to four guesses. The text, the tokens drafted and those accepted."""
    context, drafted, accepted = list(prompt), 0, 0
    target.rollback(common_prefix(target.tokens, context[:-1]))
    target.prefill(context[len(target.tokens) : -1])
    while len(context) < len(prompt) + n:
        place = round_context(context)
        draft: list[int] = []
        drafter.begin(place)
        while len(draft) < 4 and (more := drafter.guess(draft, 1)):
            draft.append(more[0].token)
        rows = target.decode([context[-1], *draft])
        chain = Draft.chain(draft, drafter.name)
        acceptance = place.verifier.accept(chain, rows, place.sampling, context)
        drafted, accepted = drafted + len(draft), accepted + len(acceptance.path)
        target.rollback(len(context) + len(acceptance.path))
        for token in (*(draft[node] for node in acceptance.path), acceptance.token):
            context.append(token)
            if place.is_eog(token):
                return context[len(prompt) :], drafted, accepted
    return context[len(prompt) : len(prompt) + n], drafted, accepted


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_wrong_drafts_cost_time_and_nothing_else(rule: str, temperature: float) -> None:
    """A model of noise, in another vocabulary: its bytes are often no text at all."""
    target = ngram_rule(BYTES.size, order=2, seed=4, sharpness=1.5)
    for draft in (ngram_rule(FINE.size, seed=9), by_text(FINE)):
        drafter = CrossVocabularyDrafter(ToySession(draft, FINE.size), BYTES, FINE)
        for seed, prompt in enumerate((b"one", b"\xf0\x9f\x98", b"\xff\xff2", b"1\xff2\xff")):
            sampling = Sampling(temperature=temperature, seed=seed)
            place = place_of(rule, sampling)
            got, drafted, accepted = speculate(ToySession(target, BYTES.size), drafter, list(prompt), place, 40)
            assert accepted < drafted
            if rule == "match" or not temperature:
                assert got == decode_plain(target, list(prompt), sampling, 40)
            assert len(got) == 40


def place_of(
    rule: str, sampling: Sampling, is_eog: Callable[[int], bool] = never
) -> Callable[[Sequence[int]], RoundContext]:
    return lambda context: RoundContext(verifier(rule), sampling, context, is_eog)


def plain(target: Session, prompt: Sequence[int], place: Callable[[Sequence[int]], RoundContext], n: int) -> list[int]:
    """Plain decoding, token by token."""
    context = list(prompt)
    target.rollback(0)
    target.prefill(context[:-1])
    while len(context) < len(prompt) + n:
        round_context = place(context)
        rows = target.decode(context[-1:])
        context.append(round_context.verifier.accept(Draft(), rows, round_context.sampling, context).token)
        if round_context.is_eog(context[-1]):
            break
    return context[len(prompt) :]


CHATS = (
    ("I need a train.",),
    ("I need a train.", "Where from, and to which city?", "From Sacramento to San Diego on the 7th."),
    (
        "Find me a restaurant in San Jose, please.",
        "Which food 😀 do you like?",
        "你好! Mexican – or sushi, for 2 at 19:30.",
    ),
)


@pytest.mark.parametrize("kind", ["bytes", "spaces"])
def test_a_real_pair_of_two_vocabularies_says_what_the_target_says(
    kind: str, small_pair: Mapping[str, Path], tmp_path: Path
) -> None:
    source = checkpoint_of(small_pair["draft"], tmp_path / "source")
    output = respelt(source, tmp_path / "draft", merges=1500, kind=kind)
    model, draft = (open_model(path, Device(threads=1), Interrupt()) for path in (small_pair["target"], output))
    vocabulary = model.vocabulary
    template = ChatTemplate(vocabulary)
    target, alone, drafting = model.session(512), model.session(512), draft.session(512)
    drafter = CrossVocabularyDrafter(drafting, vocabulary, draft.vocabulary)
    for temperature, least in ((0.0, 0.25), (0.8, 0.1)):
        drafted = accepted = 0
        for seed, chat in enumerate(CHATS):
            roles = ("user", "assistant", "user")
            prompt = template.tokens([{"role": r, "content": c} for r, c in zip(roles, chat, strict=False)])
            place = place_of("match", Sampling(temperature=temperature, seed=seed), vocabulary.is_eog)
            got, tried, kept = speculate(target, drafter, prompt, place, 40)
            assert got == plain(alone, prompt, place, 40)
            drafted, accepted = drafted + tried, accepted + kept
        assert least * drafted < accepted < drafted
    for opened in (target, alone, drafting, model, draft):
        opened.close()
