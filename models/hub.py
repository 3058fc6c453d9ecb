"""Files of a Hugging Face repository: whole and checked, or not there.

They lie in the cache that the Hugging Face tools share (HF_HOME moves it), laid out as its documentation says:
https://huggingface.co/docs/huggingface_hub/guides/manage-cache. huggingface-hub finds, asks and downloads. It
starts a file afresh in every process and compares lengths only; here a file is kept while it grows, so that a later
run goes on where this one ended, and it gets its name when its checksum is the hub's.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, ModelInfo, constants, hf_hub_url, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    WeakFileLock,
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from edgespec.backends.gguf_header import Header, parsed
from edgespec.errors import HubError
from edgespec.storage.leftovers import sweep

from . import hub_metadata
from .hub_errors import told
from .listing import Choose, Listing, Remote, is_model
from .partial_file import Coming, Growing, Silent
from .sizes import amount

_HEAD = 64 << 20  # bytes of a file asked for to read its head, which has 15 million where the vocabulary is largest
_KEPT = 30 * 86400.0  # seconds that what an interrupted pull left is kept to go on with
_MARGIN = 64 << 20  # bytes to leave free on the disk

#: Told which file comes, and how many bytes are here of how many.
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Pulled:
    """Files that are here now, the first asked for first, and the commit they are of."""

    repo: str
    commit: str
    paths: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        """Where the repository's root lies, with all that was ever fetched of this commit."""
        return next(parent for parent in self.paths[0].parents if parent.name == self.commit)


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub and its cache; what the environment says (HF_ENDPOINT, HF_HOME, HF_TOKEN) where nothing is given."""

    endpoint: str = field(default_factory=lambda: constants.ENDPOINT)
    cache: Path = field(default_factory=lambda: Path(constants.HF_HUB_CACHE).expanduser())
    token: str | None = None

    def listing(self, repo: str, revision: str = "main") -> Listing:
        """What `repo` holds now.

        Raises:
            HubError: no network, no such repository, no right to see it, or a hub out of order.
        """
        with told(self.endpoint, repo):
            if not hub_metadata.is_path(revision):
                raise HFValidationError(f"{revision!r} is no branch, tag or commit")
            info = self._info(repo, revision)
            if not hub_metadata.is_commit(info.sha):
                raise ValueError(f"the commit {str(info.sha)[:80]!r}")
            # What cannot be the name of a file here is not there.
            files = [_remote(each) for each in info.siblings or () if hub_metadata.is_path(each.rfilename)]
            return Listing(repo, str(info.sha), tuple(files))

    def _info(self, repo: str, revision: str) -> ModelInfo:
        """What the hub states of `repo`; ValueError where that is malformed."""
        try:
            return HfApi(self.endpoint, token=self.token).model_info(
                repo, revision=revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def search(self, words: str, limit: int) -> tuple[str, ...]:
        """Repositories with GGUF files whose names have these words, the most fetched first.

        Asked once: HfApi.list_models tries again for half a minute, which no draft is worth. Raises HubError.
        """
        asked: dict[str, str | int] = {"search": words, "filter": "gguf", "sort": "downloads", "limit": limit}
        headers = build_hf_headers(token=self.token, library_name="edgespec")
        with told(self.endpoint, f"a search for {words}"):
            if constants.is_offline_mode():
                raise OfflineModeIsEnabled
            response = get_session().get(
                f"{self.endpoint}/api/models", params=asked, headers=headers, timeout=constants.HF_HUB_ETAG_TIMEOUT
            )
            hf_raise_for_status(response)
            found = response.json()
            if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
                raise ValueError("no list of models")
            return tuple(str(each.get("id", "")) for each in found)

    def head(self, repo: str, file: str, revision: str = "main") -> Header:
        """What the head of a GGUF file says: its first megabytes are read, as far as they go, and nothing is kept.

        Raises:
            HubError: it cannot be had.
            ModelFileError: it is no GGUF file.
        """
        url = hf_hub_url(repo, file, revision=revision, endpoint=self.endpoint)
        headers = {
            **build_hf_headers(token=self.token, library_name="edgespec"),
            "Range": f"bytes=0-{_HEAD - 1}",
        }
        with told(self.endpoint, f"{file} of {repo}"):
            if constants.is_offline_mode():
                raise OfflineModeIsEnabled
            with get_session().stream(
                "GET", url, headers=headers, follow_redirects=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
            ) as response:
                hf_raise_for_status(response)
                return parsed(Coming(response.iter_bytes()), f"{file} of {repo}")

    def models(self) -> Iterator[tuple[str, Path]]:
        """The GGUF files in the cache that are models, by repository; of several parts the first. Asks nobody."""
        for path in sorted(self.cache.glob("models--*/snapshots/*/**/*.gguf")):
            folder = path.relative_to(self.cache).parts[0]
            if path.is_file() and is_model(path.name):
                yield folder.removeprefix("models--").replace("--", "/", 1), path

    def cached(self, repo: str, revision: str = "main") -> Listing | None:
        """What the cache holds of `repo`, without asking anybody; None where that is nothing."""
        try:
            with told(self.endpoint, repo):
                given = snapshot_download(
                    repo, revision=revision, cache_dir=self.cache, local_files_only=True, allow_patterns=[]
                )
        except HubError as error:
            if isinstance(error.__cause__, LocalEntryNotFoundError):
                return None
            raise
        folder = Path(given)
        # A link whose file was deleted is no file.
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = (Remote(path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths)
        return Listing(repo, folder.name, tuple(files))

    def find(self, repo: str, choose: Choose, revision: str = "main") -> Pulled | None:
        """What `choose` wants, if all of it is in the cache. Asks nobody."""
        listing = self.cached(repo, revision)
        try:
            wanted = choose(listing) if listing is not None else ()
        except HubError:
            return None
        return self._pulled(listing, wanted) if listing is not None and wanted else None

    def pull(
        self, repo: str, choose: Choose, *, revision: str = "main", on_progress: OnProgress | None = None
    ) -> Pulled:
        """Fetch what `choose` wants of `repo`; what is here already is not fetched again, and half a file goes on.

        A file gets its name when it has the length and the checksum that the hub states. Several processes may pull
        the same. Offline (HF_HUB_OFFLINE) the cache answers alone.

        Raises:
            HubError: it cannot be fetched, or is not what it should be. Nothing half-written has a name then.
        """
        if constants.is_offline_mode() and (found := self.find(repo, choose, revision)) is not None:
            return found
        sweep(self.cache.glob("models--*/blobs/*.edgespec-part"), _KEPT)
        listing = self.listing(repo, revision)
        wanted = choose(listing)
        _require_digests(listing, wanted)
        total = sum(file.size for file in wanted)
        self._require_room(listing, wanted)
        tell = on_progress or (lambda _what, _done, _total: None)
        done = 0
        for file in wanted:
            before = done
            with told(self.endpoint, f"{file.name} of {repo}"):
                self._fetch(listing, file, lambda n, file=file, before=before: tell(file.name, before + n, total))  # type: ignore[misc]
                self._link(listing, file, revision)
            done += file.size
        return self._pulled(listing, wanted)

    def missing(self, listing: Listing, wanted: Iterable[Remote]) -> int:
        """Bytes of `wanted` that are still to come."""
        return sum(file.size - self._held(listing, file) for file in wanted)

    def _held(self, listing: Listing, file: Remote) -> int:
        if _has_size(self._path(listing, file), file.size):
            return file.size
        part = self._blob(listing, file, ".edgespec-part")
        return min(file.size, part.stat().st_size) if part.is_file() else 0

    def _require_room(self, listing: Listing, wanted: Iterable[Remote]) -> None:
        needed = self.missing(listing, wanted)
        with told(self.endpoint, listing.repo):
            self.cache.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.cache).free
        if needed and needed + _MARGIN > free:
            raise HubError(
                f"{listing.repo} needs {amount(needed)} more, and the disk of {self.cache} is full but for "
                f"{amount(free)}; make room, or move the cache with HF_HOME"
            )

    def _fetch(self, listing: Listing, file: Remote, tell: Callable[[int], None]) -> None:
        """Have the file's content in the cache, under the name of its digest, unless it is there."""
        blob = self._blob(listing, file)
        if _has_size(self._path(listing, file), file.size):
            tell(file.size)
            return
        blob.parent.mkdir(parents=True, exist_ok=True)
        lock = self.cache / ".locks" / blob.parents[1].name / f"{file.digest}.edgespec.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        # Not the lock that huggingface-hub takes for this file: it will take that while it links.
        with WeakFileLock(lock):
            # Another process may have had it meanwhile, and without links the content is where its name is.
            if not _has_size(blob, file.size) and not _has_size(self._path(listing, file), file.size):
                part = self._blob(listing, file, ".edgespec-part")
                resumed = part.is_file() and part.stat().st_size > 0
                # What an earlier run left may have been spoilt: then once more from the start.
                tries = 1 + resumed
                if not any(self._download(listing, file, part, tell) for _ in range(tries)):
                    raise HubError(
                        f"{file.name} of {listing.repo} came with another checksum than the hub states; it was "
                        "discarded: try again, and if that repeats, distrust the network or the repository"
                    )
                part.replace(blob)

    def _download(self, listing: Listing, file: Remote, part: Path, tell: Callable[[int], None]) -> bool:
        """Let `part` grow to the whole file; whether its checksum is right. If it is wrong, `part` is gone."""
        url = hf_hub_url(listing.repo, file.name, revision=listing.commit, endpoint=self.endpoint)
        with Growing.open(part, file, tell) as growing:
            try:
                http_get(
                    url,
                    growing,  # type: ignore[arg-type]
                    resume_size=growing.size,
                    headers=build_hf_headers(token=self.token, library_name="edgespec"),
                    expected_size=file.size,
                    displayed_filename=file.name,
                    tqdm_class=Silent,
                )
            except OSError as error:
                if error.errno is None and not hasattr(error, "response"):
                    growing.discard = True  # of a wrong length: not the beginning of the right file
                raise
            growing.discard = growing.digest != file.digest
        return not growing.discard

    def _link(self, listing: Listing, file: Remote, revision: str) -> None:
        """Give the content its name in the commit, and note which commit `revision` is.

        Not by hf_hub_download: that asks the hub again, and makes a path of whatever digest it answers.
        """
        path, blob = self._path(listing, file), self._blob(listing, file)
        if not _has_size(path, file.size):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                _symlink(path, blob)
            except OSError:  # links are not allowed here: the content itself takes the name
                with suppress(FileNotFoundError):  # another process was first
                    blob.replace(path)
        if revision != listing.commit:
            self._note(self._folder(listing.repo) / "refs" / PurePosixPath(revision), listing.commit)

    def _note(self, reference: Path, commit: str) -> None:
        reference.parent.mkdir(parents=True, exist_ok=True)
        if not reference.is_file() or reference.read_text("utf-8", "replace") != commit:
            part = reference.with_name(f".{secrets.token_hex(8)}.edgespec-part")
            part.write_text(commit, "utf-8")
            part.replace(reference)

    def _pulled(self, listing: Listing, wanted: tuple[Remote, ...]) -> Pulled:
        return Pulled(listing.repo, listing.commit, tuple(self._path(listing, file) for file in wanted))

    def _folder(self, repo: str) -> Path:
        return self.cache / repo_folder_name(repo_id=repo, repo_type="model")

    def _path(self, listing: Listing, file: Remote) -> Path:
        return self._folder(listing.repo) / "snapshots" / listing.commit / PurePosixPath(file.name)

    def _blob(self, listing: Listing, file: Remote, suffix: str = "") -> Path:
        return self._folder(listing.repo) / "blobs" / f"{file.digest}{suffix}"


def _remote(sibling: RepoSibling) -> Remote:
    """A file as the hub states it; ValueError unless its size is one."""
    size = sibling.size or 0
    if not hub_metadata.is_size(size):
        raise ValueError(f"{sibling.rfilename} of {str(size)[:80]!r} bytes")
    return Remote(sibling.rfilename, size, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id or "")


def _require_digests(listing: Listing, wanted: Iterable[Remote]) -> None:
    for file in wanted:
        if not hub_metadata.is_digest(file.digest):
            raise HubError(
                f"{file.name} of {listing.repo} has the checksum {str(file.digest)[:80]!r} by what the hub states, "
                "which is neither SHA-256 nor git's; check HF_ENDPOINT, or distrust the hub"
            )


def _symlink(path: Path, blob: Path) -> None:
    """A relative link, as the other tools make them; OSError where there may be none."""
    if getattr(constants, "HF_HUB_DISABLE_SYMLINKS", False):
        raise OSError(errno.EPERM, "links are disabled", str(path))
    link = path.with_name(f".{secrets.token_hex(8)}.edgespec-link")
    try:
        link.symlink_to(os.path.relpath(blob, path.parent))
        link.replace(path)
    finally:
        link.unlink(missing_ok=True)


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
