"""The options that commands share, gathered into values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .progress import progress

if TYPE_CHECKING:
    from ..backends import Device
    from ..runtime.runtime import Runtime
    from ..sampling import Sampling

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Loading:
    """Which models to load, and how to speculate with them."""

    model: Path | None
    draft: str
    drafter: str | None
    k: str
    verifier: str
    ctx: int
    threads: int
    gpu_layers: int | None
    draft_gpu_layers: int | None
    exact: int
    provider: str
    backend: str
    remember: bool
    yes: bool

    def open(self) -> Runtime:
        """Load, with a progress bar for what is measured once."""
        from ..backends import Interrupt  # noqa: PLC0415
        from ..errors import VocabularyMismatch  # noqa: PLC0415
        from ..runtime.loading import load  # noqa: PLC0415
        from ..runtime.outside import require_known  # noqa: PLC0415
        from ..runtime.pair import Speculation  # noqa: PLC0415
        from ..storage.pair_file import at  # noqa: PLC0415
        from . import background  # noqa: PLC0415
        from .fitting import fitted  # noqa: PLC0415

        names = tuple(name.strip() for name in self.drafter.split(",")) if self.drafter is not None else None
        require_known(names or (), ())  # before anything is fetched
        target, draft = files(self.model, self.draft, self.ctx, yes=self.yes)
        named = self.draft != "auto" or (self.model is not None and at(self.model) is not None)
        speculation = Speculation(names, self._k(), self.verifier, named, self.remember)
        device = fitted(target, draft, _device(self, self.exact), anywhere=self.gpu_layers is None)
        interrupt = Interrupt()

        def opened(draft: Path | None) -> Runtime:
            return load(
                target,
                draft or "none",
                device=device,
                speculation=speculation,
                interrupt=interrupt,
                on_progress=lambda what, share: tell(f"measuring passes of the {what}", share, 1.0),
            )

        with progress("measuring this machine (once for each model)") as tell:
            try:
                runtime = background.call(lambda: opened(draft), interrupt.set)
            except VocabularyMismatch as error:
                if named:
                    raise
                click.echo(f"{draft}, found beside the model, is left out: {error}", err=True)
                runtime = background.call(lambda: opened(None), interrupt.set)
        for notice in runtime.notices:
            click.echo(notice, err=True)
        if "words" in runtime.drafters:
            click.echo("The draft model has a vocabulary of its own, so it drafts through text.", err=True)
        return runtime

    def _k(self) -> int | None:
        from ..errors import OptionError  # noqa: PLC0415

        if self.k == "auto":
            return None
        try:
            return int(self.k)
        except ValueError:
            raise OptionError(f"--k is {self.k!r}; it must be auto, or a number from 0 (plain decoding)") from None


@dataclass(frozen=True, slots=True)
class Pairing:
    """What `convert --pair` makes of a target and its draft, and how it measures them."""

    pair: tuple[Path, Path] | None
    draft_quant: str | None
    prompts: Path | None
    max_tokens: int | None
    as_json: bool
    yes: bool

    @property
    def asked(self) -> str:
        """The first option that means nothing without --pair; empty if none was given."""
        given = {
            "--draft-quant": self.draft_quant,
            "--prompts": self.prompts,
            "--max-tokens": self.max_tokens,
            "--json": self.as_json,
        }
        return next((name for name, value in given.items() if value is not None and value is not False), "")


@dataclass(frozen=True, slots=True)
class Machine:
    """Which models to measure, and where they run."""

    model: Path | None
    draft: str
    ctx: int
    threads: int
    gpu_layers: int | None
    draft_gpu_layers: int | None
    provider: str
    backend: str
    yes: bool

    def fitted(self, target: Path, draft: Path | None) -> Device:
        """Where they run, as far as it was asked for, and else what fits."""
        from .fitting import fitted  # noqa: PLC0415

        return fitted(target, draft, _device(self), anywhere=self.gpu_layers is None)


@dataclass(frozen=True, slots=True)
class Choosing:
    """How tokens are chosen; None takes what the model's file recommends, else llama.cpp's usual values."""

    temp: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    max_tokens: int | None

    def sampling(self, recommended: dict[str, float], *, seed: int) -> Sampling:
        """These options over the model's own over the usual ones; `seed` where none was given."""
        from ..sampling import Sampling  # noqa: PLC0415

        usual: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
        given = {
            "temperature": self.temp,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        chosen: dict[str, Any] = {
            **usual,
            **recommended,
            **{name: value for name, value in given.items() if value is not None},
        }
        top_k = int(chosen.pop("top_k"))
        return Sampling(top_k=top_k, seed=self.seed if self.seed is not None else seed, **chosen)


def _device(given: Loading | Machine, exact: int = 0) -> Device:
    """What was asked for; layers on the GPU as many as the engine can, where nothing was."""
    from ..backends import Device  # noqa: PLC0415

    layers = -1 if given.gpu_layers is None else given.gpu_layers
    own = given.draft_gpu_layers
    return Device(given.ctx, given.threads, layers, exact, given.provider, given.backend, own)


def files(model: Path | None, draft: str, context: int = 0, *, yes: bool = False) -> tuple[Path, Path | None]:
    """The target and the draft model that the options name: the demo pair without a model.

    What is named and not here is fetched, announced and, unless `yes`, asked for first. A draft is looked for by its
    name beside the target, in the registry, among the files that are here, and on the hub for a model that comes from
    there.
    """
    from edgespec import models  # noqa: PLC0415
    from edgespec.models import finding  # noqa: PLC0415

    from .pulling import Fetching, fetched  # noqa: PLC0415

    known = finding.named(model.as_posix()) if model is not None else None
    wanted = (draft == "auto" and known and known.draft) or None
    if known is not None:
        target, second = fetched(known.target, wanted, Fetching(context, draft == "auto", yes))
        found = models.Pair(target, second)
    else:
        found = models.demo() if model is None else models.with_draft(converted(model))
    if draft == "none":
        return found.target, None
    if draft != "auto":
        named = finding.named(draft)
        second = fetched(named.target, how=Fetching(yes=yes))[0] if named is not None else converted(Path(draft))
        _require_other(found.target, second)
        return found.target, second
    if found.draft is None and model is not None:
        found = models.Pair(found.target, finding.local_draft(found.target))
    return found


def _require_other(target: Path, draft: Path) -> None:
    """OptionError where the draft model is the target: each of its guesses would cost a plain step."""
    from ..errors import OptionError  # noqa: PLC0415

    try:
        same = target.samefile(draft)
    except OSError:  # what is wrong with a path is told when it is opened
        return
    if same:
        raise OptionError(f"--draft names the target itself, {draft}; name a smaller model of its family, or none")


def converted(path: Path) -> Path:
    """`path`, or where it is the folder of a checkpoint the model that is made of it, once."""
    try:
        inside = {each.suffix.lower() for each in path.iterdir()} if path.is_dir() else set()
    except OSError:  # what is wrong with it is told when it is opened
        return path
    if ".safetensors" not in inside or inside & {".gguf", ".onnx"}:
        return path
    from .converting import of_checkpoint  # noqa: PLC0415

    return of_checkpoint(path)


def gathered(
    kind: type[Any], name: str, *options: Callable[..., Any]
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add click `options` to a command and hand them to it as one value of `kind`, called `name`."""

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(command)
        def wrapped(*args: Any, **given: Any) -> R:
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            return command(*args, **given)

        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return decorate


PATH = click.Path(path_type=Path)
_model = click.argument("model", type=PATH, required=False)
_draft = click.option(
    "--draft",
    default="auto",
    metavar="PATH|NAME|auto|none",
    help="Draft model [default: auto, the one that is known or found for MODEL]",
)
_ctx = click.option(
    "--ctx", default=0, metavar="N", help="Context in tokens [default: the model's, at most 4096, or what fits]"
)
_gpu_layers = click.option(
    "--gpu-layers", type=int, metavar="N", help="Layers on the GPU; -1 is all [default: as many as fit]"
)
_draft_gpu_layers = click.option(
    "--draft-gpu-layers", type=int, metavar="N", help="The draft model's [default: all if they fit, else none]"
)
_provider = click.option(
    "--provider", default="auto", metavar="NAME", help="What ONNX Runtime runs on: cpu, cuda ... [default: auto]"
)
_backend = click.option(
    "--backend", default="auto", metavar="NAME", help="Engine: llama or onnx [default: auto, by the file]"
)
_yes = click.option("-y", "--yes", is_flag=True, help="Fetch what is not here without asking")
machine = gathered(
    Machine,
    "machine",
    _model,
    _draft,
    _ctx,
    click.option(
        "--threads",
        default=0,
        metavar="N",
        help="So many CPU threads only [default: tune several, bench one a physical core]",
    ),
    _gpu_layers,
    _draft_gpu_layers,
    _provider,
    _backend,
    _yes,
)
loading = gathered(
    Loading,
    "loading",
    _model,
    _draft,
    click.option(
        "--drafter",
        metavar="NAME,...",
        help="Drafters to use: lookup, model, words, or of an installed package [default: the first three]",
    ),
    click.option("--k", default="auto", metavar="auto|N", help="Tokens to draft a round; 0 is plain decoding"),
    click.option("--verifier", default="match", show_default=True, metavar="NAME", help="match, rejection or block"),
    _ctx,
    click.option("--threads", default=0, metavar="N", help="CPU threads [default: one a physical core]"),
    _gpu_layers,
    _draft_gpu_layers,
    click.option(
        "--exact",
        default=0,
        metavar="N",
        help="Compute every pass as if for N tokens, so that drafts change no bit: 2, 4, 8, 12 ... 32; 0 is off",
    ),
    _provider,
    _backend,
    click.option(
        "--remember", is_flag=True, help="Keep what is said and look it up in later chats; `edgespec forget` deletes it"
    ),
    _yes,
)
pairing = gathered(
    Pairing,
    "pairing",
    click.option("--pair", nargs=2, type=PATH, metavar="TARGET DRAFT", help="Convert both, and measure them together"),
    click.option("--draft-quant", metavar="NAME", help="With --pair: the draft's quantization [default: 8 bits]"),
    click.option(
        "--prompts", type=PATH, metavar="FILE", help="With --pair: JSON lines to measure with, as `check` takes them"
    ),
    click.option("--max-tokens", type=int, metavar="N", help="With --pair: tokens of each answer [default: 64]"),
    click.option("--json", "as_json", is_flag=True, help="With --pair: the figures as one JSON object"),
    _yes,
)
choosing = gathered(
    Choosing,
    "choosing",
    click.option("--temp", type=float, help="Temperature; 0 is greedy [default: the model's, else 0.8; bench 0]"),
    click.option("--top-k", type=int, help="Only the k likeliest tokens; 0 for all [default: 40]"),
    click.option("--top-p", type=float, help="Only the likeliest that reach this together [default: 0.95]"),
    click.option("--min-p", type=float, help="Only those this likely relative to the likeliest [default: 0.05]"),
    click.option("--repeat-penalty", type=float, help="Divides the logits of recent tokens; 1 is off"),
    click.option("--presence-penalty", type=float, help="Taken once from the logits of recent tokens"),
    click.option("--frequency-penalty", type=float, help="Taken from them once per occurrence"),
    click.option("--seed", type=int, help="Same seed, same text [default: chat another each time, else 0]"),
    click.option("--max-tokens", type=int, metavar="N", help="Longest answer [default: chat what fits, else 128]"),
)
