"""The options that commands share, grouped into dataclasses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .completion import model_names
from .remarks import LOG

if TYPE_CHECKING:
    from ..backends import Device
    from ..library import Job
    from ..runtime.loading import Files
    from ..runtime.runtime import Runtime
    from ..runtime.speculation import Speculation
    from ..sampling import Sampling

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The models to load, how to run them, and how to speculate."""

    model: Path | None
    draft: tuple[str, ...]
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
    draft_backend: str | None
    rpc: str | None
    remember: bool
    yes: bool

    def open(self) -> Runtime:
        """Load the models, with progress bars on a terminal.

        Raises:
            OptionError: a wrong option.
            and as `edgespec.load`.
        """
        from ..library import open_model_files  # noqa: PLC0415
        from ..runtime.outside import require_known  # noqa: PLC0415
        from ..runtime.speculation import Speculation  # noqa: PLC0415
        from . import background  # noqa: PLC0415
        from .terminal_job import terminal_job  # noqa: PLC0415

        names = tuple(name.strip() for name in self.drafter.split(",")) if self.drafter is not None else None
        require_known(names or (), ())  # checked before anything is fetched
        speculation = Speculation(names, self._k(), self.verifier, remember=self.remember)
        with terminal_job(yes=self.yes) as job:
            files, device = _resolved(self, job, self.exact, speculation)
            LOG.info("target %s, drafts %s, %s", files.target, [str(each) for each in files.drafts], device)
            runtime = background.call(lambda: open_model_files(files, device, speculation, job), job.interrupt.set)
            LOG.info("loaded %s, context %d", runtime.description, runtime.context)
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
class PairOptions:
    """The options of `convert --pair`: what it converts, and how it measures the pair."""

    pair: tuple[Path, Path] | None
    draft_quant: str | None
    prompts: Path | None
    max_tokens: int | None
    as_json: bool
    yes: bool

    @property
    def misplaced(self) -> str:
        """The first given option that requires --pair; empty if there is none."""
        given = {
            "--draft-quant": self.draft_quant,
            "--prompts": self.prompts,
            "--max-tokens": self.max_tokens,
            "--json": self.as_json,
        }
        return next((name for name, value in given.items() if value is not None and value is not False), "")


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """The options of `convert` for drafts that are no models of their own: heads, and parts of SOURCE."""

    target: Path | None
    rows: int | None
    exit_layer: int | None
    keep_layers: str | None

    def cuts_file(self, source: Path, fmt: str) -> bool:
        """Whether SOURCE is a converted model of which layers are used, and not a checkpoint to convert."""
        if self.keep_layers is not None:
            return True
        return self.exit_layer is not None and (fmt != "onnx" or (source / "model.onnx").is_file())


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The models to measure, and where they run."""

    model: Path | None
    draft: tuple[str, ...]
    ctx: int
    threads: int
    gpu_layers: int | None
    draft_gpu_layers: int | None
    provider: str
    backend: str
    draft_backend: str | None
    yes: bool

    def resolved(self, job: Job) -> tuple[Files, Device]:
        """The files of the models, and the device: the requested context and layers, else what fits."""
        return _resolved(self, job)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """The options of sampling; None takes the recommendation of the model's file, else llama.cpp's default."""

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
        """The given options, then the model's recommendations, then llama.cpp's defaults.

        Args:
            recommended: the sampling that the model's file recommends.
            seed: the seed where none was given.

        Raises:
            OptionError: a value is out of range.
        """
        from ..sampling import Sampling  # noqa: PLC0415

        defaults: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
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
            **defaults,
            **recommended,
            **{name: value for name, value in given.items() if value is not None},
        }
        top_k = int(chosen.pop("top_k"))
        return Sampling(top_k=top_k, seed=self.seed if self.seed is not None else seed, **chosen)


def _device(given: LoadOptions | MachineOptions, exact: int = 0) -> Device:
    """The requested device; without a request all layers are on the GPU."""
    from ..backends import Device  # noqa: PLC0415

    workers = given.rpc.split(",") if isinstance(given, LoadOptions) and given.rpc is not None else ()
    return Device(
        context=given.ctx,
        threads=given.threads,
        gpu_layers=-1 if given.gpu_layers is None else given.gpu_layers,
        exact=exact,
        provider=given.provider,
        backend=given.backend,
        draft_gpu_layers=given.draft_gpu_layers,
        draft_backend=given.draft_backend,
        rpc=tuple(each.strip() for each in workers),
    )


def _resolved(
    given: LoadOptions | MachineOptions, job: Job, exact: int = 0, speculation: Speculation | None = None
) -> tuple[Files, Device]:
    """The files that the options name, without a model the demo pair's, and the device that fits them.

    Args:
        speculation: how to speculate; None takes the defaults.
    """
    from ..library import fitted, resolve  # noqa: PLC0415

    device = _device(given, exact)  # first: wrong options are refused before anything is fetched
    model = given.model.as_posix() if given.model is not None else None
    files = resolve(model, given.draft, job, context=given.ctx)
    if given.draft != ("auto",):
        _require_others(files.target, files.drafts)
    _require_graph(given.provider, [files.target, *files.drafts])
    return files, fitted(files, device, job, anywhere=given.gpu_layers is None, speculation=speculation)


def _require_others(target: Path, drafts: Sequence[Path]) -> None:
    """OptionError where a draft model is the target: each guess would cost as much as a plain step."""
    from ..errors import OptionError  # noqa: PLC0415

    for draft in drafts:
        with suppress(OSError):  # opening the file reports the error
            if target.samefile(draft):
                raise OptionError(
                    f"--draft names the target itself, {draft}; name a smaller model of its family, or none"
                )


def _require_graph(provider: str, paths: Sequence[Path]) -> None:
    """OptionError where a provider of ONNX Runtime or a device of OpenVINO is given, and neither model is for these."""
    from edgespec.models.graph_file import is_graph  # noqa: PLC0415

    from ..errors import OptionError  # noqa: PLC0415

    if provider != "auto" and not any(map(is_graph, paths)):
        raise OptionError(
            f"--provider {provider} is for ONNX and OpenVINO models, and llama.cpp runs {paths[0]}; --gpu-layers puts "
            "layers of a GGUF file on a GPU"
        )


def grouped_options(
    kind: type[Any], name: str, *options: Callable[..., Any]
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A decorator that adds click `options` to a command, which gets them as one parameter `name` of type `kind`."""

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
_model = click.argument("model", type=PATH, required=False, shell_complete=model_names)
_draft = click.option(
    "--draft",
    multiple=True,
    default=("auto",),
    metavar="PATH|NAME|auto|none",
    help="Draft model or head; several times for several [default: auto, a known one or one that is found for MODEL]",
)
_ctx = click.option(
    "--ctx", default=0, metavar="N", help="Context in tokens [default: the model's, at most 4096, or what fits]"
)
_gpu_layers = click.option(
    "--gpu-layers", type=int, metavar="N", help="Layers on the GPU; -1 is all [default: as many as fit]"
)
_draft_gpu_layers = click.option(
    "--draft-gpu-layers", type=int, metavar="N", help="Each draft model's [default: all if they fit, else none]"
)
_provider = click.option(
    "--provider",
    default="auto",
    metavar="NAME",
    help="What ONNX Runtime or OpenVINO runs on: cpu, cuda, gpu ... [default: auto]",
)
_backend = click.option(
    "--backend", default="auto", metavar="NAME", help="Engine: llama, onnx or openvino [default: auto, by the file]"
)
_draft_backend = click.option(
    "--draft-backend", metavar="NAME", help="Each draft model's [default: --backend where it opens the file, else auto]"
)
_yes = click.option("-y", "--yes", is_flag=True, help="Download models without asking")
machine_options = grouped_options(
    MachineOptions,
    "machine_options",
    _model,
    _draft,
    _ctx,
    click.option(
        "--threads",
        default=0,
        metavar="N",
        help="CPU threads [default: tune tries several, bench takes one per physical core]",
    ),
    _gpu_layers,
    _draft_gpu_layers,
    _provider,
    _backend,
    _draft_backend,
    _yes,
)
load_options = grouped_options(
    LoadOptions,
    "load_options",
    _model,
    _draft,
    click.option(
        "--drafter",
        metavar="NAME,...",
        help="Drafters: lookup, recycling, model, cross-vocabulary, pard (a PARD draft model), mtp (the model's head), "
        "eagle, eagle3 or medusa (a head given with --draft), exit (the model's first layers), model2 (a second draft "
        "model), lookahead, or those of an installed package [default: those that are possible; recycling and the "
        "model's own head only without a draft, never lookahead]",
    ),
    click.option(
        "--k",
        default="auto",
        metavar="auto|N",
        help="Tokens to draft per round; 0 is plain decoding. By each drafter that --drafter names, else by the first",
    ),
    click.option("--verifier", default="match", show_default=True, metavar="NAME", help="match, rejection or block"),
    _ctx,
    click.option("--threads", default=0, metavar="N", help="CPU threads [default: one per physical core]"),
    _gpu_layers,
    _draft_gpu_layers,
    click.option(
        "--exact",
        default=0,
        metavar="N",
        help="Compute every pass with a width of N tokens, for bit-identical output: 2, 4, 8, 12 ... 32; 0 is off",
    ),
    _provider,
    _backend,
    _draft_backend,
    click.option(
        "--rpc",
        metavar="HOST:PORT,...",
        help="Workers (`edgespec worker`) that compute the layers of MODEL, a GGUF file; drafts stay here",
    ),
    click.option(
        "--remember/--no-remember",
        help="Keep the texts of chats for look-ups in later ones; `edgespec forget` deletes it",
    ),
    _yes,
)
draft_options = grouped_options(
    DraftOptions,
    "draft_options",
    click.option("--for", "target", type=PATH, metavar="TARGET", help="SOURCE is a head (EAGLE, say) for this model"),
    click.option("--head-rows", "rows", type=int, metavar="N", help="Write a head with N tokens; also of a GGUF"),
    click.option("--exit-layer", type=int, metavar="L", help="The first L layers of SOURCE are its draft"),
    click.option("--keep-layers", metavar="RANGES", help="Write only these layers of SOURCE, a GGUF, as 0-5,26-31"),
)
pair_options = grouped_options(
    PairOptions,
    "pair_options",
    click.option("--pair", nargs=2, type=PATH, metavar="TARGET DRAFT", help="Convert both, and measure the pair"),
    click.option("--draft-quant", metavar="NAME", help="With --pair: the draft's quantization [default: 8 bits]"),
    click.option(
        "--prompts", type=PATH, metavar="FILE", help="With --pair: prompts to measure with, in the form of `check`"
    ),
    click.option("--max-tokens", type=int, metavar="N", help="With --pair: tokens of each answer [default: 64]"),
    click.option("--json", "as_json", is_flag=True, help="With --pair: print the report as one JSON object"),
    _yes,
)
sampling_options = grouped_options(
    SamplingOptions,
    "sampling_options",
    click.option("--temp", type=float, help="Temperature; 0 is greedy [default: the model's, else 0.8; bench 0]"),
    click.option("--top-k", type=int, help="Keep the k likeliest tokens; 0 keeps all [default: 40]"),
    click.option("--top-p", type=float, help="Keep the likeliest tokens with this total probability [default: 0.95]"),
    click.option("--min-p", type=float, help="Minimum probability relative to the likeliest token [default: 0.05]"),
    click.option("--repeat-penalty", type=float, help="Divide the logits of recent tokens by this; 1 is off"),
    click.option("--presence-penalty", type=float, help="Subtract this from the logits of recent tokens"),
    click.option("--frequency-penalty", type=float, help="Subtract this from them for each occurrence"),
    click.option("--seed", type=int, help="The same seed gives the same text [default: chat a random one, else 0]"),
    click.option("--max-tokens", type=int, metavar="N", help="Longest answer [default: chat what fits, else 128]"),
)
