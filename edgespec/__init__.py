"""edgespec: on-device inference by speculative decoding.

    import edgespec

    with edgespec.load("target.gguf") as runtime:
        for event in runtime.chat([{"role": "user", "content": "Hello"}]):
            if isinstance(event, edgespec.Text):
                print(event.text, end="", flush=True)

Importing this loads no engine; one is loaded with the first model. `edgespec.aio` has answers for `async for`.
"""

from pathlib import Path as _Path

from .backends import Device, Interrupt
from .drafters import BlockDrafter, Drafter, Follower, HoldingDrafter, PassengerDrafter, ReadingDrafter, Target
from .engine import Event, Finished, Started, Text
from .errors import (
    BusyError,
    ClosedError,
    ContextOverflow,
    ConversionError,
    DrafterError,
    EdgespecError,
    EngineError,
    GrammarError,
    HubError,
    Interrupted,
    MissingPackage,
    ModelError,
    ModelFileError,
    OptionError,
    RollbackError,
    TemplateError,
    VocabularyMismatch,
)
from .grammar import Grammar
from .library import Notice, Progress, Wanted, load
from .runtime.answer import Answer
from .runtime.as_json import as_json
from .runtime.loading import assemble
from .runtime.runtime import Runtime
from .runtime.speculation import DRAFTERS, Speculation
from .sampling import Sampling
from .stats import Stats
from .types import Evaluated, Guess, Passengers, Round, Top
from .verify import VERIFIERS, RoundContext

_HERE = _Path(__file__).parent
if not (_HERE / "cli.py").exists() and (_HERE.parent / "cli.py").exists():
    # Python was started in a clone and found this folder before the installed package. In a clone `cli.py`,
    # `converters` and `models` are in the parent folder.
    __path__.append(str(_HERE.parent))

__all__ = [
    "DRAFTERS",
    "VERIFIERS",
    "Answer",
    "BlockDrafter",
    "BusyError",
    "ClosedError",
    "ContextOverflow",
    "ConversionError",
    "Device",
    "Drafter",
    "DrafterError",
    "EdgespecError",
    "EngineError",
    "Evaluated",
    "Event",
    "Finished",
    "Follower",
    "Grammar",
    "GrammarError",
    "Guess",
    "HoldingDrafter",
    "HubError",
    "Interrupt",
    "Interrupted",
    "MissingPackage",
    "ModelError",
    "ModelFileError",
    "Notice",
    "OptionError",
    "PassengerDrafter",
    "Passengers",
    "Progress",
    "ReadingDrafter",
    "RollbackError",
    "Round",
    "RoundContext",
    "Runtime",
    "Sampling",
    "Speculation",
    "Started",
    "Stats",
    "Target",
    "TemplateError",
    "Text",
    "Top",
    "VocabularyMismatch",
    "Wanted",
    "as_json",
    "assemble",
    "load",
]
