"""Models from a hub: the choice of a file and of a draft model, and their download."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends.llama_library import bindings
from ..errors import HubError, OptionError
from .job import Job, Wanted

if TYPE_CHECKING:
    from edgespec.models.hub import Pulled
    from edgespec.models.model_source import Source

PICTURES = "Pictures are not read: the model chats in text, without its image projector (mmproj)."

# The import of the hub's client takes 0.3 s, so it is imported where it is needed.


def fetched(
    target: Source, draft: Source | None, job: Job, *, context: int = 0, look: bool = False
) -> tuple[Path, Path | None]:
    """The files of a target and its draft, downloaded unless they are in the cache. A draft that cannot be downloaded
    is left out.

    Args:
        context: tokens of context that must fit into memory with the file that is chosen; 0 for the default.
        look: search the hub for a draft model if the target is not in the cache.

    Raises:
        HubError: the target cannot be downloaded.
        MissingPackage: llama-cpp-python is not installed, and something must be downloaded.
        OptionError: downloading is not allowed.
        Interrupted: the job was stopped; the next download continues from the same byte.
    """
    if not target.file and target.here() is None:
        target, draft = _chosen(target, draft, job, context=context, look=look)
    here = {source: source.here() for source in (target, draft) if source is not None}
    lacking = [source for source, path in here.items() if path is None]
    if draft in lacking and job.fetch is False:
        job.notice("no-draft", f"The draft model is left out: {draft} is not here, and fetching is off")
        lacking.remove(draft)
        draft = None
    if lacking:
        bindings()  # files of the hub are GGUF: without their engine gigabytes would come in vain
        size = sum(source.size for source in lacking) if all(source.size for source in lacking) else 0
        weights = sum(source.size for source in here if source is not None)
        other = ", or leave out the draft with --draft none" if here[target] is not None else ""
        _require_consent(" and ".join(map(str, lacking)), size, weights, job, other)
    path = here[target] or pulled(target, job).paths[0]
    if draft is None:
        return path, None
    try:
        return path, here[draft] or pulled(draft, job).paths[0]
    except HubError as error:
        job.notice("no-draft", f"The draft model is left out: {error}")
        return path, None


def pulled(source: Source, job: Job) -> Pulled:
    """The files of `source`, downloaded or updated. Raises as `fetched`."""
    job.check()
    with quietly():
        found = source.pull(lambda what, done, total: job.progress("fetch", what, done, total))
    expected = source.listed.sha256 if source.listed is not None else ""
    if expected and found.digests and expected not in found.digests:
        job.notice(
            "checksum",
            f"{source} has another checksum on the hub than in the registry: it was replaced there since then.",
        )
    return found


def pull(name: str, job: Job, quantization: str = "", revision: str = "") -> list[Pulled]:
    """The pair or model called `name`, downloaded or updated without a request for consent.

    Args:
        quantization: of the target, instead of the one in the name.
        revision: a branch, tag or commit of the target's repository; empty for the registry's commit, else main.

    Raises:
        OptionError: `name` is a path, or has a quantization already.
        and as `fetched`.
    """
    from edgespec.models.model_source import Source, resolve_name  # noqa: PLC0415

    known = resolve_name(name)
    if known is None:
        raise OptionError(f"{name} is a path; give a name of `edgespec models list`, or org/repo on the hub")
    if quantization and known.target.quantization:
        raise OptionError(f"{name} names a quantization already; leave out either it or --quant {quantization}")
    target = known.target
    if quantization:
        target = Source(target.repo, quantization=quantization, revision=revision)
    elif revision:
        target = replace(target, revision=revision, listed=None)
    notice_pictures(known.entry is not None and known.entry.pictures, job)
    found = [pulled(_settled(target, job), job)]
    return found if known.draft is None else [*found, pulled(known.draft, job)]


def checkpoint(source: Path, job: Job, *, head: bool = False) -> Path:
    """The folder of a checkpoint: `source` itself if it exists; downloaded if it has the form org/name, or is the URL
    of a page on the hub. Raises as `fetched`.

    Args:
        head: whether it is the checkpoint of a head.
    """
    from edgespec.models import listing  # noqa: PLC0415

    choose = listing.head if head else listing.checkpoint
    if _exists(source):
        return source
    page = listing.split_page(source.as_posix())
    if page is None and (source.is_absolute() or len(source.parts) != 2 or _exists(source.parent)):
        return source
    from edgespec.models import hub  # noqa: PLC0415

    repo = page.repo if page else listing.require_repo(source.as_posix())[0]
    client = hub.Hub()
    with quietly():
        if client.find(repo, choose) is None:
            _require_fetching(repo, job)
            found = client.listing(repo)
            _require_consent(f"the checkpoint {repo}", client.missing(found, choose(found)), 0, job)
        job.check()
        return client.pull(
            repo, choose, on_progress=lambda what, done, total: job.progress("fetch", what, done, total)
        ).folder


def target_of_head(target: Path, job: Job) -> Path:
    """The model that a head is converted for: `target` itself if it exists, the GGUF file of a name of the registry,
    else a checkpoint; both downloaded. Raises as `fetched`."""
    if _exists(target):
        return target
    from edgespec.models import model_source  # noqa: PLC0415

    known = model_source.resolve_name(target.as_posix())
    if known is not None and (known.entry is not None or known.target.file):
        return fetched(known.target, None, job)[0]
    return checkpoint(target, job)


def _chosen(
    target: Source, draft: Source | None, job: Job, *, context: int, look: bool
) -> tuple[Source, Source | None]:
    """Which file of a repository, by what the hub holds, and a draft for it where none is given."""
    from edgespec.models import draft_head, hub_search, model_source  # noqa: PLC0415

    _require_fetching(str(target), job)
    with quietly():
        seen = hub_search.inspect(target, context)
        notice_pictures(seen.pictures, job)
        if seen.instead_of:
            job.notice("quantization", f"{seen.instead_of} does not fit into memory, so it is {seen.source.file}.")
        limit = seen.source.size // model_source.MIN_SIZE_RATIO
        if draft is not None or not look or seen.head is None or draft_head.used_in(seen.head):
            return seen.source, draft
        if model_source.cached_draft(seen.head.vocabulary, limit):
            return seen.source, None
        job.check()
        try:
            match = hub_search.find_draft(seen.source.repo, seen.head.vocabulary, seen.source.size)
        except HubError as error:
            job.notice("no-draft", f"No draft model was looked for: {error}")
            return seen.source, None
    if match is not None:
        job.notice("draft", f"The draft model is {match.source.repo}, {match.why}; --draft none leaves it out.")
    return seen.source, match.source if match is not None else None


def _settled(source: Source, job: Job) -> Source:
    """Which file it is to be, where that was left open and nothing of it is here."""
    from edgespec.models import hub_search  # noqa: PLC0415

    if source.file or source.quantization or source.revision or source.here() is not None:
        return source
    with quietly():
        seen = hub_search.inspect(source)
    notice_pictures(seen.pictures, job)
    return seen.source


def notice_pictures(there: bool, job: Job) -> None:
    """Say that pictures are not read, of a model that is made to read them."""
    if there and not any(notice.kind == "pictures" for notice in job.notices):
        job.notice("pictures", PICTURES)


def _require_consent(what: str, size: int, weights: int, job: Job, other: str = "") -> None:
    """Raises OptionError unless `what` may be downloaded; `other` is another way out than to name a model."""
    from edgespec.models import fit, hub, memory  # noqa: PLC0415

    job.check()
    _require_fetching(what, job)
    if callable(job.fetch):
        wanted = Wanted(what, size, hub.Hub().cache, weights, fit.room(memory.machine_memory()))
        if not job.fetch(wanted):
            raise OptionError(
                f"nothing was fetched; name a model that is here{other}: {what} would have to be downloaded"
            )


def _require_fetching(what: str, job: Job) -> None:
    if job.fetch is False:
        raise OptionError(
            f"{what} is not here, and fetching is off; allow it (fetch=True), or name a model that is here"
        )


@contextmanager
def quietly() -> Iterator[None]:
    """Inside the block the hub's client prints no warnings; failures raise errors."""
    from huggingface_hub.utils import logging  # noqa: PLC0415

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long, which no repository has either
        return True
