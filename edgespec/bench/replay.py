"""Sessions whose output is a given text while each pass is computed in full."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends import (
    Head,
    HeadWeights,
    HiddenRows,
    Interrupt,
    KeepingSession,
    Listener,
    Model,
    PartOfTarget,
    Session,
    Vocabulary,
    Wanted,
)
from ..backends.parallel import Parallel, parallel_of
from ..errors import EngineError, ModelFileError
from ..types import Floats

_CERTAIN = 1e4  # a logit far above all others


class ReplaySession:
    """A session that computes each pass in full, and then replaces its choice after each beginning of `text`, which is
    prompt and answer, by the next token; an empty `text` replaces nothing. Rows after other tokens, of rejected drafts,
    stay the model's own."""

    def __init__(self, session: Session) -> None:
        self.vocab = session.vocab
        self.context = session.context
        self.reach = session.reach
        self.replays = session.replays
        self.settling = session.settling
        self.can_tree = session.can_tree
        self.leaves = session.leaves
        self.widest = session.widest
        self.identity = session.identity
        self.layers = session.layers if isinstance(session, HiddenRows) else 0
        self.layer_width = session.layer_width if isinstance(session, HiddenRows) else 0
        self.text: Sequence[int] = ()
        #: The session inside.
        self.inner = session

    @property
    def tokens(self) -> Sequence[int]:
        return self.inner.tokens

    @property
    def owed(self) -> int:
        return self.inner.owed

    def prefill(self, tokens: Sequence[int]) -> None:
        self.inner.prefill(tokens)

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        held = len(self.inner.tokens)
        rows = self.inner.decode(tokens, tree)
        if self.text:
            parents = tree if tree is not None else range(-1, len(tokens) - 1)
            for row, place in zip(rows, _places(self.text, held, tokens, parents), strict=True):
                if place is not None and place + 1 < len(self.text):
                    row[self.text[place + 1]] = _CERTAIN
        return rows

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        self.inner.rollback(length, keep)

    def kept(self, tokens: Sequence[int]) -> int:
        """See `KeepingSession`."""
        return self.inner.kept(tokens) if isinstance(self.inner, KeepingSession) else 0

    def resume(self, tokens: Sequence[int]) -> None:
        """See `KeepingSession`."""
        if isinstance(self.inner, KeepingSession):
            self.inner.resume(tokens)

    def follow(self, layers: Sequence[int], listener: Listener, wanted: Wanted = Wanted.ALL) -> None:
        """See `HiddenRows`."""
        if not isinstance(self.inner, HiddenRows):
            raise EngineError("this engine gives no hidden rows; use another drafter")
        self.inner.follow(layers, listener, wanted)

    def close(self) -> None:
        self.inner.close()


def _places(text: Sequence[int], held: int, tokens: Sequence[int], parents: Sequence[int]) -> list[int | None]:
    """For each node of a tree after the first `held` tokens of `text` its place in the text; None where it, or a node
    above it, is another token."""
    places: list[int | None] = []
    for token, parent in zip(tokens, parents, strict=True):
        above = held - 1 if parent < 0 else places[parent]
        place = None if above is None or above + 1 >= len(text) else above + 1
        places.append(place if place is not None and text[place] == token else None)
    return places


class SharedModel:
    """A model that several runtimes use and do not close, with sessions of the kind `ReplaySession`."""

    def __init__(self, model: Model) -> None:
        self.trained_context = model.trained_context
        self.description = model.description
        self.sampling = model.sampling
        self.weights = model.weights
        self.sessions: list[ReplaySession] = []
        self._model = model

    @property
    def notices(self) -> Sequence[str]:
        return self._model.notices

    @property
    def vocabulary(self) -> Vocabulary:
        return self._model.vocabulary

    def session(self, context: int, interrupt: Interrupt | None = None) -> Session:
        session = ReplaySession(self._model.session(context, interrupt))
        self.sessions.append(session)
        return session

    @property
    def is_part(self) -> bool:
        return isinstance(self._model, PartOfTarget) and self._model.is_part

    @property
    def parallel(self) -> Parallel | None:
        return parallel_of(self._model)

    @property
    def holds_head(self) -> bool:
        return isinstance(self._model, HeadWeights) and self._model.holds_head

    @property
    def head_drafter(self) -> str:
        return self._model.head_drafter if isinstance(self._model, HeadWeights) else ""

    def head(self, target: Session, interrupt: Interrupt | None = None) -> Head:
        """The head over the session inside a `ReplaySession`; see `HeadWeights`."""
        if not isinstance(self._model, HeadWeights) or not isinstance(target, ReplaySession):
            raise ModelFileError(f"{self.description} holds no head; use another drafter")
        return self._model.head(target.inner, interrupt)

    def close(self) -> None:
        """Does nothing: the owner of the model closes it."""
