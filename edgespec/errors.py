"""The tree of errors.

    EdgespecError
    ├── ModelError              a model, its vocabulary or its files
    │   ├── ModelFileError      missing, truncated, or not what its name says
    │   ├── VocabularyMismatch  target and draft have different tokens
    │   └── TemplateError       the chat template cannot be used
    ├── ConversionError         a checkpoint that cannot be converted, or an output that cannot be written
    ├── HubError                a model hub that cannot be reached, or refuses
    ├── ContextOverflow         the prompt does not fit the context
    ├── RollbackError           a cache that cannot be rolled back to a length
    ├── EngineError             the inference engine reported a failure
    ├── MissingPackage          an optional package is not installed
    ├── DrafterError            a drafter of an app or package that cannot be loaded, or makes an invalid guess
    ├── OptionError             an invalid option
    ├── GrammarError            a grammar or schema that cannot be used
    ├── BusyError               a second answer while the first is computed
    ├── ClosedError             use after close
    └── Interrupted             cancelled on request, which is not a failure

Every message says on one line what was wrong, what was expected and how to proceed. Code that handles `EdgespecError`
as a failure must handle `Interrupted` before it.
"""

_LONGEST, _END = 1500, 500  #: characters of a message, and of its end if its middle is cut


class EdgespecError(Exception):
    """The base class of all errors that edgespec raises.

    The text is printable and at most 1500 characters long: messages quote untrusted files, and an escape sequence must
    not reach the terminal.
    """

    def __str__(self) -> str:
        text = printable(super().__str__())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - _END]} ... {text[-_END:]}"


def printable(text: str) -> str:
    """`text` on one line, with escapes such as `\\x1b` for characters that are not printable."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


class ModelError(EdgespecError):
    """A model, its vocabulary or its files."""


class ModelFileError(ModelError):
    """A file that is missing, truncated, or not what its name says."""


class VocabularyMismatch(ModelError):
    """Target and draft have different tokens."""


class TemplateError(ModelError):
    """The model's chat template is missing or cannot be rendered."""


class ConversionError(EdgespecError):
    """A checkpoint that cannot be converted, or an output that cannot be written."""


class HubError(EdgespecError):
    """A model hub that cannot be reached, refuses a request or sends invalid data; or no disk space for a download."""


class ContextOverflow(EdgespecError):
    """The prompt does not fit the context."""


class RollbackError(EdgespecError):
    """A cache that cannot be rolled back to the requested length."""


class EngineError(EdgespecError):
    """The inference engine (such as llama.cpp) reported a failure."""


class MissingPackage(EdgespecError):
    """An optional package is not installed."""


class DrafterError(EdgespecError):
    """A drafter of an app or of an installed package that cannot be made, or makes an invalid guess."""


class OptionError(EdgespecError):
    """An invalid option; the message lists the valid ones."""


class GrammarError(EdgespecError):
    """A grammar or a JSON schema that is not valid, too large, or not possible for a vocabulary."""


class BusyError(EdgespecError):
    """An answer was requested without `wait` while another one is computed."""


class ClosedError(EdgespecError):
    """A runtime was used after `close`, or in a process forked from the one that loaded it."""


class Interrupted(EdgespecError):
    """The work was cancelled. A session holds the same tokens as before the call."""

    def __init__(self, message: str = "cancelled before it was done; start it again") -> None:
        super().__init__(message)
