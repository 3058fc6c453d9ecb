"""What went wrong between here and a hub, said in one line."""

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

# httpx or httpx2, by the version of huggingface-hub: neither may be named here, so their errors are told by class name.
_TRANSPORT: type[Exception] = HfHubHTTPError.__bases__[0]
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


@contextmanager
def told(endpoint: str, what: str) -> Iterator[None]:
    """Inside the block, whatever the hub's package or the disk raises becomes a HubError about `what`."""
    try:
        yield
    except (OSError, ValueError, RecursionError, _TRANSPORT) as error:  # brackets in brackets, of JSON
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
        raise HubError(_explained(cause or error, endpoint, what)) from error


def _explained(error: BaseException, endpoint: str, what: str) -> str:
    if isinstance(error, HfHubHTTPError):
        return _refused(error, endpoint, what)
    if isinstance(error, OfflineModeIsEnabled | LocalEntryNotFoundError):
        return f"{what} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it; unset that, or fetch it elsewhere"
    if isinstance(error, _TRANSPORT):
        return _lost(error, endpoint, what)
    if isinstance(error, HFValidationError):
        return f"{what} cannot be asked of a hub: {error}; a repository is written org/name"
    if isinstance(error, OSError):
        return _unwritten(error, what)
    return f"{endpoint} answered for {what} what no hub says ({error}); check HF_ENDPOINT, and any proxy or portal"


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
        return f"{endpoint} accepts no such token for {what}, or none at all (401); {_LOG_IN} anew"
    if status == 403:
        return f"{endpoint} does not let this token read {what} (403); {_LOG_IN} to one that may"
    if status == 429:
        wait = error.response.headers.get("Retry-After", "")
        some = f"{wait} seconds" if wait.isdigit() else "some minutes"
        return f"{endpoint} has had too many requests (429), so {what} must wait; try again in {some}"
    if status >= 500:
        return f"{endpoint} is out of order ({status}), so {what} cannot be fetched; try again later"
    return f"{endpoint} answered {status} for {what}; check the name"


def _lost(error: BaseException, endpoint: str, what: str) -> str:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "TimeoutException" in kinds:
        return f"{endpoint} did not answer in time for {what}; try again, what has come is kept"
    if "ConnectError" in kinds or "UnsupportedProtocol" in kinds or "ProxyError" in kinds:
        return f"{endpoint} cannot be reached for {what} ({error}); check the network, or HF_ENDPOINT and the proxy"
    return f"the connection to {endpoint} was cut while {what} came ({error}); try again, what has come is kept"


def _unwritten(error: OSError, what: str) -> str:
    if error.errno in _FULL:
        return f"the disk is full, so {what} cannot be kept; make room, or move the cache with HF_HOME, and try again"
    if error.errno is None:  # the package's own check of what came
        return f"{what} came with another length than the hub promised; it was discarded: try again"
    return f"{what} cannot be kept: {error.strerror} ({error.filename}); HF_HOME moves the cache"
