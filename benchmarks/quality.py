"""How much of a model its quantizations keep, on held-out dialogues: divergence, perplexity and agreement.

    python -m benchmarks.quality DIALOGUES.jsonl REFERENCE OTHER... [--dialogues 20]

All read the same dialogues, as the reference's chat template writes them, and predict every token but the first. KL is
the mean of KL(reference || other) over these, in nats; perplexity is the text's own under each model; top-1 says how
often the likeliest token is the reference's. Models take turns, a few tokens at a time, so that no more logits are held
than of one narrow pass each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from edgespec.backends import Device, Interrupt, Model, Session, context_length, open_model, require_same_tokens
from edgespec.errors import VocabularyMismatch
from edgespec.terminal.progress import Tell, progress
from edgespec.text.template import ChatTemplate
from edgespec.types import Doubles, Floats

from .dialogues import FILE, Dialogues, dialogues
from .report import table

_COLUMNS = ("", "KL, nats", "perplexity", "x reference", "top-1")
_WIDTH = 32  # tokens of a pass


@dataclass
class Score:
    """What a model's predictions came to: sums over `tokens` of them."""

    tokens: int = 0
    divergence: float = 0.0  #: KL(reference || model), nats
    surprise: float = 0.0  #: -log p of the text, nats
    agreed: int = 0  #: times that the likeliest token was the reference's

    def add(self, reference: Doubles, own: Doubles, token: int) -> None:
        """Count a prediction, the reference's and this model's: log-probabilities, float64 [vocabulary]. The text goes
        on with `token`."""
        possible = reference > -np.inf  # 0 log 0 is 0
        gaps = reference[possible] - own[possible]
        self.tokens += 1
        self.divergence += float(np.exp(reference[possible]) @ gaps)
        self.surprise -= float(own[token])
        self.agreed += int(reference.argmax() == own.argmax())

    @property
    def perplexity(self) -> float:
        return math.exp(self.surprise / self.tokens)


def log_softmax(row: Floats) -> Doubles:
    """Log-probabilities, float64 [vocabulary], of logits float32 [vocabulary]."""
    shifted = row.astype(np.float64) - row.max()
    log_probs: Doubles = shifted - np.log(np.exp(shifted).sum())
    return log_probs


def compare(models: Sequence[Model], texts: Sequence[Sequence[int]], tell: Tell) -> list[Score]:
    """The score of each of `models`, the first being the reference, on texts in tokens, as far as contexts go.

    All must have the same tokens; padding that only some have is left out. `tell` is told how far it is.
    """
    room = min(context_length(Device(), model) for model in models)
    texts = [text[:room] for text in texts]
    scores = [Score() for _ in models]
    done, total = 0, sum(map(len, texts))
    with ExitStack() as opened:
        sessions = [opened.enter_context(closing(model.session(max(map(len, texts))))) for model in models]
        for text in texts:
            tell("predicting", done, total)
            for token, rows in _predictions(sessions, text):
                for score, row in zip(scores, rows, strict=True):
                    score.add(rows[0], row, token)
            done += len(text)
    return scores


def _predictions(sessions: Sequence[Session], text: Sequence[int]) -> Iterator[tuple[int, list[Doubles]]]:
    """Each token of `text` after the first, and every session's log-probabilities for it."""
    shared = min(session.vocab for session in sessions)
    width = min(_WIDTH, *(session.widest for session in sessions))
    for session in sessions:
        session.rollback(0)
    for at in range(0, len(text) - 1, width):
        passes = [session.decode(text[at : at + width]) for session in sessions]
        for i, token in enumerate(text[at + 1 : at + width + 1]):
            yield token, [log_softmax(rows[i, :shared]) for rows in passes]


def report(names: Sequence[str], scores: Sequence[Score]) -> str:
    """A row for each model, the reference first."""
    rows = [
        [
            name,
            f"{max(0.0, score.divergence / score.tokens):.5f}",
            f"{score.perplexity:.3f}",
            f"{score.perplexity / scores[0].perplexity:.4f}",
            f"{score.agreed / score.tokens:.2%}",
        ]
        for name, score in zip(names, scores, strict=True)
    ]
    return table(_COLUMNS, rows)


def _require_same(reference: Model, other: Model, path: Path) -> None:
    try:
        require_same_tokens(reference.vocabulary, other.vocabulary)
    except VocabularyMismatch as error:
        raise click.ClickException(f"{path} has not the reference's vocabulary; compare forms of one model") from error


@click.command()
@dialogues(20)
@click.argument("reference", type=FILE)
@click.argument("others", type=FILE, nargs=-1, required=True)
@click.option("--threads", default=0, help="CPU threads [default: one a physical core]")
@click.option("--backend", default="auto", help="The engine of OTHERS [default: the first that opens the file]")
def main(dialogues: Dialogues, reference: Path, others: tuple[Path, ...], threads: int, backend: str) -> None:
    """Compare OTHERS with REFERENCE on DIALOGUES."""
    paths, interrupt = (reference, *others), Interrupt()
    with ExitStack() as opened, progress("opening") as tell:
        models: list[Model] = []
        for i, path in enumerate(paths):
            tell(f"opening {path.name}", i, len(paths))
            device = Device(threads=threads, backend=backend if i else "auto")
            models.append(opened.enter_context(closing(open_model(path, device, interrupt))))
            _require_same(models[0], models[i], path)
        template = ChatTemplate(models[0].vocabulary)
        texts = [template.tokens(messages) for messages in dialogues.read()]
        scores = compare(models, texts, tell)
    click.echo(f"{len(texts)} dialogues, {scores[0].tokens} tokens")
    click.echo(report([str(path) for path in paths], scores))


if __name__ == "__main__":
    main()
