"""Errors of the hub's package and of the disk as `HubError`, with a message of one line."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from edgespec.errors import HubError

# httpx or httpx2, depending on the version of huggingface-hub: neither may be imported here, so their errors are
# recognized by the names of their classes.
_TRANSPORT: type[Exception] = HfHubHTTPError.__bases__[0]
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


@contextmanager
def as_hub_error(endpoint: str, what: str) -> Iterator[None]:
    """Convert what the hub's package or the disk raises inside the block to a HubError about `what`."""
    try:
        yield
    except (OSError, ValueError, RecursionError, _TRANSPORT) as error:  # RecursionError: deeply nested JSON
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
        raise HubError(_explained(cause or error, endpoint, what)) from error


def _explained(error: BaseException, endpoint: str, what: str) -> str:
    if isinstance(error, HfHubHTTPError):
        return _refused(error, endpoint, what)
    if isinstance(error, OfflineModeIsEnabled | LocalEntryNotFoundError):
        return f"{what} is not in the cache, and HF_HUB_OFFLINE forbids downloads; unset it, or download elsewhere"
    if isinstance(error, _TRANSPORT):
        return _lost(error, endpoint, what)
    if isinstance(error, HFValidationError):
        return f"{what} cannot be asked of a hub: {error}; a repository is written org/name"
    if isinstance(error, OSError):
        return _unwritten(error, what)
    return f"{endpoint} sent a malformed response for {what} ({error}); check HF_ENDPOINT, and any proxy or portal"


def _refused(error: HfHubHTTPError, endpoint: str, what: str) -> str:
    status = error.response.status_code
    known = {
        GatedRepoError: f"{what} is gated: accept its terms on its page at {endpoint}, then {_LOG_IN}",
        RevisionNotFoundError: f"{what} has no such revision at {endpoint}; leave it out for the newest",
        RemoteEntryNotFoundError: f"{what} has no such file at {endpoint}; its page lists what there is",
        RepositoryNotFoundError: f"{what} is not at {endpoint}, or is private; check the name, or {_LOG_IN}",
    }
    for kind, text in known.items():
        if isinstance(error, kind):
            return text
    if status == 401:
        return f"{endpoint} rejects the token for {what}, or requires one (401); {_LOG_IN} again"
    if status == 403:
        return f"this token may not read {what} at {endpoint} (403); {_LOG_IN}, with a token that may"
    if status == 429:
        wait = error.response.headers.get("Retry-After", "")
        some = f"{wait} seconds" if wait.isdigit() else "some minutes"
        return f"{endpoint} received too many requests (429), so {what} cannot be fetched now; try again in {some}"
    if status >= 500:
        return f"{endpoint} has an internal error ({status}), so {what} cannot be fetched; try again later"
    return f"{endpoint} answered {status} for {what}; check the name"


def _lost(error: BaseException, endpoint: str, what: str) -> str:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "TimeoutException" in kinds:
        return f"{endpoint} did not respond in time for {what}; try again: what was downloaded is kept"
    if "ConnectError" in kinds or "UnsupportedProtocol" in kinds or "ProxyError" in kinds:
        return f"{endpoint} cannot be reached for {what} ({error}); check the network, or HF_ENDPOINT and the proxy"
    return (
        f"the connection to {endpoint} was lost during the download of {what} ({error}); try again: what was "
        "downloaded is kept"
    )


def _unwritten(error: OSError, what: str) -> str:
    if error.errno in _FULL:
        return (
            f"the disk is full, so {what} cannot be stored; free space, or move the cache with HF_HOME; then try again"
        )
    if error.errno is None:  # the package's own check of the length
        return f"{what} has another length than the hub stated; it was discarded: try again"
    return f"{what} cannot be stored: {error.strerror} ({error.filename}); HF_HOME moves the cache"
