"""Draft models that guess several tokens in one pass (PARD): the mask token that config.json names.

PARD: An et al. 2025, arXiv 2504.18583; `pard_token` is a token that no text has. PARD-2 reads hidden states of the
target beside the tokens, which no graph written here takes.
"""

from __future__ import annotations

from edgespec.backends.parallel import MOST, Parallel
from edgespec.converters.checkpoint import Checkpoint
from edgespec.errors import ConversionError

_GUESSES = 12  # of a pass, where config.json does not say: as many as AMD's inference draws by default


def read(checkpoint: Checkpoint) -> Parallel | None:
    """How the model guesses several tokens in one pass; None for ordinary models.

    Raises:
        ConversionError: it is a PARD-2 model, or config.json contradicts itself.
    """
    config, path = checkpoint.config, checkpoint.folder / "config.json"
    if second := next((key for key in config if key.startswith("pard2")), None):
        raise ConversionError(
            f"{path}: {second} marks a PARD-2 draft, which reads hidden states of its target and is not converted; "
            "take a PARD draft (pard_token)"
        )
    mask = config.get("pard_token")
    if mask is None:
        return None
    vocabulary = config.get("vocab_size")
    if type(mask) is not int or not (type(vocabulary) is int and 0 <= mask < vocabulary):
        raise ConversionError(
            f"{path}: pard_token is {mask!r:.80}; expected a token below vocab_size, {vocabulary!r:.80}"
        )
    guesses = config.get("edgespec_parallel", _GUESSES)
    if type(guesses) is not int or not 1 <= guesses <= MOST:
        raise ConversionError(f"{path}: edgespec_parallel is {guesses!r:.80}; expected a number from 1 to {MOST}")
    return Parallel(mask, guesses)


def note(found: Parallel) -> str:
    """A message for the user."""
    return f"a PARD draft: a pass guesses up to {found.guesses} tokens; {found.mask} is its mask token"
