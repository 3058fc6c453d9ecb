"""What can go wrong, and how it is told.

    EdgespecError
    ├── ModelError              a model, its vocabulary or its files
    │   ├── ModelFileError      missing, truncated, or not what its name says
    │   ├── VocabularyMismatch  target and draft do not speak the same tokens
    │   └── TemplateError       the chat template cannot be used
    ├── ConversionError         a checkpoint that cannot be converted, or an output that cannot be written
    ├── HubError                a model hub that cannot be reached, or refuses
    ├── ContextOverflow         the prompt does not fit the context
    ├── RollbackError           a cache that cannot go back
    ├── EngineError             the engine below reported a failure
    ├── MissingPackage          an optional package is not installed
    ├── DrafterError            a drafter from outside that cannot be loaded, or does what no drafter may
    ├── OptionError             an option that makes no sense
    ├── BusyError               a second use while the first goes on
    ├── ClosedError             use after close
    └── Interrupted             cancelled on request: no failure

Every message says what was wrong, what was expected, and the way out, on one line. Who handles `EdgespecError` as a
failure must let `Interrupted` pass first.
"""

_LONGEST, _END = 1500, 500  #: characters of a message, and of its end where its middle is left out


class EdgespecError(Exception):
    """The root: catch this to catch everything that edgespec raises on purpose.

    Its text is printable and not long: messages quote files, in which there may be anything, and an escape sequence
    must not reach the terminal.
    """

    def __str__(self) -> str:
        text = printable(super().__str__())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - _END]} ... {text[-_END:]}"


def printable(text: str) -> str:
    """`text` on one line, and characters that show nothing but may do something as escapes: `\\x1b`."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class ModelError(EdgespecError):
    """A model, its vocabulary or its files."""


class ModelFileError(ModelError):
    """A file that is missing, truncated, or not what its name says."""


class VocabularyMismatch(ModelError):
    """Target and draft do not speak the same tokens."""


class TemplateError(ModelError):
    """The model's chat template is missing or cannot be rendered."""


class ConversionError(EdgespecError):
    """A checkpoint that cannot be converted, or an output that cannot be written."""


class HubError(EdgespecError):
    """A model hub that cannot be reached, refuses, or sends what it should not; or no room for what it sends."""


class ContextOverflow(EdgespecError):
    """The prompt does not fit the context."""


class RollbackError(EdgespecError):
    """A cache that cannot go back to the length asked for."""


class EngineError(EdgespecError):
    """The engine below (llama.cpp, say) reported a failure."""


class MissingPackage(EdgespecError):
    """An optional package is not installed."""


class DrafterError(EdgespecError):
    """A drafter of an app or of an installed package that cannot be made, or guesses what no drafter may guess."""


class OptionError(EdgespecError):
    """An option that makes no sense; the message lists what does."""


class BusyError(EdgespecError):
    """A second answer asked of a runtime whose first has not ended, without `wait`."""


class ClosedError(EdgespecError):
    """Use of a runtime after close, or in a process that was forked from the one that loaded it."""


class Interrupted(EdgespecError):
    """The work was cancelled; a session holds what it held before the call."""

    def __init__(self, message: str = "cancelled before it was done; start it again") -> None:
        super().__init__(message)
