"""Downloads from a Hugging Face hub: a file is in the cache complete and with the right checksum, or not at all.

The cache is the one that the Hugging Face tools share (HF_HOME moves it), in the layout of
https://huggingface.co/docs/huggingface_hub/guides/manage-cache. huggingface-hub makes the requests. It restarts a file
in every process and compares lengths only; here a partial file is kept, so that a later run resumes it, and it gets its
final name once its checksum is the one that the hub states.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
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
from .hub_errors import as_hub_error
from .listing import Choose, Listing, RemoteFile, is_model
from .partial_file import ChunkReader, NoProgressBar, PartialFile
from .sizes import amount

_HEAD = 64 << 20  # bytes requested to read a header, which has 15 million with the largest vocabularies
_KEPT = 30 * 86400.0  # seconds after which partial files of interrupted downloads are deleted
_MARGIN = 64 << 20  # bytes to leave free on the disk

#: Called with the name of the file, the bytes downloaded so far, and the bytes in all.
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Pulled:
    """Files in the cache, in the order in which they were chosen, and their commit. `digests` are those that the hub
    states; empty where it was not asked."""

    repo: str
    commit: str
    paths: tuple[Path, ...]
    digests: tuple[str, ...] = field(default=(), compare=False)

    @property
    def folder(self) -> Path:
        """The folder of this commit, with all its files that were ever fetched."""
        return next(parent for parent in self.paths[0].parents if parent.name == self.commit)


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub and its cache. The defaults are those of the environment (HF_ENDPOINT, HF_HOME, HF_TOKEN)."""

    endpoint: str = field(default_factory=lambda: constants.ENDPOINT)
    cache: Path = field(default_factory=lambda: Path(constants.HF_HUB_CACHE).expanduser())
    token: str | None = None

    def listing(self, repo: str, revision: str = "main") -> Listing:
        """The files of `repo` at a branch, tag or commit.

        Raises:
            HubError: no network, no such repository, no access to it, or a malformed response.
        """
        with as_hub_error(self.endpoint, repo):
            if not hub_metadata.is_path(revision):
                raise HFValidationError(f"{revision!r} is no branch, tag or commit")
            info = self._info(repo, revision)
            if not hub_metadata.is_commit(info.sha):
                raise ValueError(f"the commit {str(info.sha)[:80]!r}")
            # Files whose names are not valid on every system are left out.
            files = [_remote(each) for each in info.siblings or () if hub_metadata.is_path(each.rfilename)]
            return Listing(repo, str(info.sha), tuple(files))

    def _info(self, repo: str, revision: str) -> ModelInfo:
        """The hub's metadata of `repo`; ValueError where that is malformed."""
        try:
            return HfApi(self.endpoint, token=self.token).model_info(
                repo, revision=revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def search(self, words: str, limit: int) -> tuple[str, ...]:
        """Repositories with GGUF files whose names contain these words, those with most downloads first.

        Makes a single request: HfApi.list_models retries for half a minute, too long for an optional draft. Raises
        HubError.
        """
        asked: dict[str, str | int] = {"search": words, "filter": "gguf", "sort": "downloads", "limit": limit}
        headers = build_hf_headers(token=self.token, library_name="edgespec")
        with as_hub_error(self.endpoint, f"a search for {words}"):
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
        """The header of a GGUF file, read from its first megabytes; nothing is stored.

        Raises:
            HubError: it cannot be fetched.
            ModelFileError: it is not a GGUF file.
        """
        url = hf_hub_url(repo, file, revision=revision, endpoint=self.endpoint)
        headers = {
            **build_hf_headers(token=self.token, library_name="edgespec"),
            "Range": f"bytes=0-{_HEAD - 1}",
        }
        with as_hub_error(self.endpoint, f"{file} of {repo}"):
            if constants.is_offline_mode():
                raise OfflineModeIsEnabled
            with get_session().stream(
                "GET", url, headers=headers, follow_redirects=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
            ) as response:
                hf_raise_for_status(response)
                return parsed(ChunkReader(response.iter_bytes()), f"{file} of {repo}")

    def models(self) -> Iterator[tuple[str, Path]]:
        """Repository and path of each GGUF model in the cache, of one in several parts the first. Makes no request."""
        for path in sorted(self.cache.glob("models--*/snapshots/*/**/*.gguf")):
            folder, _, _, *name = path.relative_to(self.cache).parts
            if path.is_file() and is_model("/".join(name)):
                yield folder.removeprefix("models--").replace("--", "/", 1), path

    def cached(self, repo: str, revision: str = "main") -> Listing | None:
        """The files of `repo` in the cache, without a request; None where there are none."""
        try:
            with as_hub_error(self.endpoint, repo):
                given = snapshot_download(
                    repo, revision=revision, cache_dir=self.cache, local_files_only=True, allow_patterns=[]
                )
        except HubError as error:
            if isinstance(error.__cause__, LocalEntryNotFoundError):
                return None
            raise
        folder = Path(given)
        # Excludes links whose file was deleted.
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = (RemoteFile(path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths)
        return Listing(repo, folder.name, tuple(files))

    def find(self, repo: str, choose: Choose, revision: str = "main") -> Pulled | None:
        """The files that `choose` chooses, if all of them are in the cache. Makes no request."""
        listing = self.cached(repo, revision)
        try:
            wanted = choose(listing) if listing is not None else ()
        except HubError:
            return None
        return self._pulled(listing, wanted) if listing is not None and wanted else None

    def pull(
        self, repo: str, choose: Choose, *, revision: str = "main", on_progress: OnProgress | None = None
    ) -> Pulled:
        """Fetch the files of `repo` that `choose` chooses: those that are not in the cache, resuming partial ones.

        A file gets its final name once it has the length and the checksum that the hub states. Several processes may
        pull the same files. Offline (HF_HUB_OFFLINE) only the cache is used.

        Raises:
            HubError: a file cannot be fetched, or has another length or checksum. No partial file has a final name.
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
            with as_hub_error(self.endpoint, f"{file.name} of {repo}"):
                self._fetch(listing, file, lambda n, file=file, before=before: tell(file.name, before + n, total))  # type: ignore[misc]
                self._link(listing, file, revision)
            done += file.size
        return self._pulled(listing, wanted)

    def missing(self, listing: Listing, wanted: Iterable[RemoteFile]) -> int:
        """Bytes of `wanted` that are not downloaded yet."""
        return sum(file.size - self._held(listing, file) for file in wanted)

    def _held(self, listing: Listing, file: RemoteFile) -> int:
        if _has_size(self._path(listing, file), file.size):
            return file.size
        return min(file.size, _size(self._blob(listing, file, ".edgespec-part")) or 0)

    def _require_room(self, listing: Listing, wanted: Iterable[RemoteFile]) -> None:
        needed = self.missing(listing, wanted)
        with as_hub_error(self.endpoint, listing.repo):
            self.cache.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.cache).free
        if needed and needed + _MARGIN > free:
            raise HubError(
                f"{listing.repo} needs {amount(needed)}, and the disk of {self.cache} has {amount(free)} free; free "
                "space, or move the cache with HF_HOME"
            )

    def _fetch(self, listing: Listing, file: RemoteFile, tell: Callable[[int], None]) -> None:
        """Download the file's content into the cache, under the name of its digest, unless it is there."""
        blob = self._blob(listing, file)
        if _has_size(self._path(listing, file), file.size):
            tell(file.size)
            return
        blob.parent.mkdir(parents=True, exist_ok=True)
        lock = self.cache / ".locks" / blob.parents[1].name / f"{file.digest}.edgespec.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        # Not the lock of huggingface-hub for this file, which it takes while it makes links.
        with WeakFileLock(lock):
            # Another process may have finished it meanwhile; without links the content is moved to its final name.
            if not _has_size(blob, file.size) and not _has_size(self._path(listing, file), file.size):
                part = self._blob(listing, file, ".edgespec-part")
                resumed = bool(_size(part))
                # The partial file of an earlier run may be damaged: then download once more from the start.
                tries = 1 + resumed
                if not any(self._download(listing, file, part, tell) for _ in range(tries)):
                    raise HubError(
                        f"{file.name} of {listing.repo} has another checksum than the hub states; it was discarded: "
                        "try again, and if that repeats, check the network and the repository"
                    )
                part.replace(blob)

    def _download(self, listing: Listing, file: RemoteFile, part: Path, tell: Callable[[int], None]) -> bool:
        """Download the rest of the file into `part`; whether its checksum is right. If not, `part` is deleted."""
        url = hf_hub_url(listing.repo, file.name, revision=listing.commit, endpoint=self.endpoint)
        with PartialFile.open(part, file, tell) as growing:
            try:
                http_get(
                    url,
                    growing,  # type: ignore[arg-type]
                    resume_size=growing.size,
                    headers=build_hf_headers(token=self.token, library_name="edgespec"),
                    expected_size=file.size,
                    displayed_filename=file.name,
                    tqdm_class=NoProgressBar,
                )
            except OSError as error:
                if error.errno is None and not hasattr(error, "response"):
                    growing.discard = True  # the wrong length: a later run could not resume from it
                raise
            growing.discard = growing.digest != file.digest
        return not growing.discard

    def _link(self, listing: Listing, file: RemoteFile, revision: str) -> None:
        """Link the content to its name in the commit, and record the commit of `revision`.

        Without hf_hub_download, which makes another request and uses the digest of the response in a path unchecked.
        """
        path, blob = self._path(listing, file), self._blob(listing, file)
        if not _has_size(path, file.size):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                _symlink(path, blob)
            except OSError:  # links are not allowed here: move the content to the name
                with suppress(FileNotFoundError):  # another process did so first
                    blob.replace(path)
        if revision != listing.commit:
            self._note(self._folder(listing.repo) / "refs" / PurePosixPath(revision), listing.commit)

    def _note(self, reference: Path, commit: str) -> None:
        reference.parent.mkdir(parents=True, exist_ok=True)
        if not reference.is_file() or reference.read_text("utf-8", "replace") != commit:
            part = reference.with_name(f".{secrets.token_hex(8)}.edgespec-part")
            part.write_text(commit, "utf-8")
            part.replace(reference)

    def _pulled(self, listing: Listing, wanted: tuple[RemoteFile, ...]) -> Pulled:
        paths = tuple(self._path(listing, file) for file in wanted)
        return Pulled(listing.repo, listing.commit, paths, tuple(file.digest for file in wanted if file.digest))

    def _folder(self, repo: str) -> Path:
        return self.cache / repo_folder_name(repo_id=repo, repo_type="model")

    def _path(self, listing: Listing, file: RemoteFile) -> Path:
        return self._folder(listing.repo) / "snapshots" / listing.commit / PurePosixPath(file.name)

    def _blob(self, listing: Listing, file: RemoteFile, suffix: str = "") -> Path:
        return self._folder(listing.repo) / "blobs" / f"{file.digest}{suffix}"


def _remote(sibling: RepoSibling) -> RemoteFile:
    """A file by the hub's metadata; ValueError for an invalid size."""
    size = sibling.size or 0
    if not hub_metadata.is_size(size):
        raise ValueError(f"{sibling.rfilename} of {str(size)[:80]!r} bytes")
    return RemoteFile(sibling.rfilename, size, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id or "")


def _require_digests(listing: Listing, wanted: Iterable[RemoteFile]) -> None:
    for file in wanted:
        if not hub_metadata.is_digest(file.digest):
            raise HubError(
                f"the hub states the checksum {str(file.digest)[:80]!r} for {file.name} of {listing.repo}, which is "
                "neither SHA-256 nor git's; check HF_ENDPOINT"
            )


def _symlink(path: Path, blob: Path) -> None:
    """Make a relative link, as the other tools do; OSError where links are not allowed."""
    if getattr(constants, "HF_HUB_DISABLE_SYMLINKS", False):
        raise OSError(errno.EPERM, "links are disabled", str(path))
    link = path.with_name(f".{secrets.token_hex(8)}.edgespec-link")
    try:
        link.symlink_to(os.path.relpath(blob, path.parent))
        link.replace(path)
    finally:
        link.unlink(missing_ok=True)


def _has_size(path: Path, size: int) -> bool:
    return _size(path) == size


def _size(path: Path) -> int | None:
    """Bytes of a file; None if there is none. Another process may rename it between two looks, so there is only one."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return None
    return state.st_size if stat.S_ISREG(state.st_mode) else None
