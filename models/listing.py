"""The files of a repository, and the choice among them; names of repositories and addresses of pages."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from edgespec.errors import HubError, OptionError

from .graph_file import IR
from .sizes import amount

QUANTIZATION = "q4_k_m"  #: the default, as in llama.cpp
#: Alternatives to the default, of which the largest that fits is chosen. Finer ones do not improve the output, coarser
#: ones degrade it too much.
_ALTERNATIVES = (
    *("q8_0", "q6_k", "q5_k_m", "q5_k_s", "q5_0", "q4_k_s", "q4_0", "iq4_nl", "iq4_xs"),
    *("q3_k_l", "q3_k_m", "q3_k_s", "iq3_m", "q2_k"),
)
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
_HOSTS = ("huggingface.co", "hf.co")
# `Path` collapses the two slashes after the scheme into one.
_PAGE = re.compile(
    r"(?P<scheme>https?:/{1,2})?(?P<host>[^/]+)/(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quantization>[\w.-]+))?"
    r"(?:/(?:tree|blob|resolve)/(?P<revision>[^/?#]+)(?:/(?P<file>[^?#]+\.gguf))?)?/?(?:[?#].*)?"
)
_HEADS = ("mtp-", "dflash")  # the beginnings of the names of heads
_GRAPH, _WEIGHTS = IR, IR.replace(".xml", ".bin")  # of an OpenVINO model
#: The files of an OpenVINO model besides these that are needed, and those that it may have.
_NEEDED = ("config.json", "tokenizer.json")
_BESIDE = (
    *("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja"),
    *("README.md", "LICENSE"),
)
_CHECKPOINT_FILES = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt", "README.md", "LICENSE*")
#: Weights of heads, in place of a checkpoint's.
_HEAD_WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "medusa_lm_head.bin")
#: A checkpoint's weights, in one file or in several; the first of these that there are.
_CHECKPOINT_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    Args:
        name: its path in the repository.
        size: bytes.
        digest: SHA-256 of a file in LFS, else git's object id; empty where the listing is of the cache.
    """

    name: str
    size: int
    digest: str = ""

    def hasher(self) -> Any:
        """A new hash object of the kind of `digest`."""
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at a commit."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]


#: Chooses files of a listing. Raises HubError where the repository lacks them.
Choose = Callable[[Listing], tuple[RemoteFile, ...]]


def file_named(name: str) -> Choose:
    """Choose the file of this name, and the other parts if it is the first of several, or the graph of a model."""

    def choose(listing: Listing) -> tuple[RemoteFile, ...]:
        file = next((file for file in listing.files if file.name == name), None)
        if file is None:
            raise HubError(f"{listing.repo} has no file {name}; its page lists what there is")
        return _openvino(listing) if name == _GRAPH else _with_parts(listing, file)

    return choose


def gguf(quantization: str = "", room: int | None = None) -> Choose:
    """Choose the GGUF file of this quantization, with all its parts.

    If `quantization` is empty, choose `QUANTIZATION`; where the repository has no such file, or it has more than
    `room` bytes, the largest of the alternatives that fits. The only GGUF file of a repository is always chosen; of a
    repository without one, its OpenVINO model.
    """

    def choose(listing: Listing) -> tuple[RemoteFile, ...]:
        found = [file for file in listing.files if is_model(file.name)]
        if not found and not quantization and any(file.name == _GRAPH for file in listing.files):
            return _openvino(listing)
        asked = (quantization or QUANTIZATION).lower()
        file = _of(asked, found)
        if quantization or not found:
            if file is None:
                names = ", ".join(file.name for file in found[:12]) or "no GGUF file at all"
                raise HubError(
                    f"{listing.repo} has no GGUF file of {asked}, but {names}; name a quantization it has, as :Q8_0"
                )
            return _with_parts(listing, file)
        if len(found) == 1:
            return _with_parts(listing, found[0])
        if file is not None and room is None:
            return _with_parts(listing, file)
        return _largest(listing, found, file, room)

    return choose


def _openvino(listing: Listing) -> tuple[RemoteFile, ...]:
    """The graph of an OpenVINO model first and its weights last: where these are, all files were fetched."""
    there = {file.name: file for file in listing.files}
    if lacking := [name for name in (_GRAPH, *_NEEDED, _WEIGHTS) if name not in there]:
        raise HubError(
            f"{listing.repo} has an OpenVINO model without {lacking[0]}, which edgespec needs; take another repository "
            "of this model, or `edgespec convert` a checkpoint"
        )
    return tuple(there[name] for name in (_GRAPH, *_NEEDED, *_BESIDE, _WEIGHTS) if name in there)


def _of(quantization: str, found: Sequence[RemoteFile]) -> RemoteFile | None:
    """The file with this quantization in its name, the one with the shortest name of several."""
    pattern = rf"(^|[-._/]){re.escape(quantization)}([-.]|$)"
    fitting = [file for file in found if re.search(pattern, file.name.lower())]
    return min(fitting, key=lambda file: (len(file.name), file.name)) if fitting else None


def _largest(
    listing: Listing, found: Sequence[RemoteFile], usual: RemoteFile | None, room: int | None
) -> tuple[RemoteFile, ...]:
    """`usual` if it has no more than `room` bytes, else the largest alternative that has."""
    others = [file for name in _ALTERNATIVES if (file := _of(name, found)) is not None]
    known = [_with_parts(listing, file) for file in ([usual] if usual is not None else []) + others] or [
        _with_parts(listing, min(found, key=lambda file: (file.size, file.name)))
    ]
    fitting = [files for files in known if room is None or total(files) <= room]
    if usual is not None and fitting and fitting[0] == known[0]:
        return known[0]
    if not fitting:
        least = min(known, key=total)
        raise HubError(
            f"nothing of {listing.repo} fits into {amount(room or 0)} of memory: {least[0].name} has "
            f"{amount(total(least))}; take a model of fewer parameters, or name a quantization, as :q4_k_m"
        )
    return max(fitting, key=total)


def total(files: Sequence[RemoteFile]) -> int:
    """The sum of their sizes, in bytes."""
    return sum(file.size for file in files)


def checkpoint(listing: Listing) -> tuple[RemoteFile, ...]:
    """Choose the files that `edgespec convert` reads: config, tokenizer, model card, and weights."""
    own = [file for file in listing.files if "/" not in file.name]
    weights = _weights(own, _CHECKPOINT_WEIGHTS)
    if not weights or not any(file.name == "config.json" for file in own):
        raise HubError(
            f"{listing.repo} is no checkpoint with config.json and model.safetensors or pytorch_model.bin; for a GGUF "
            "file there is `edgespec models pull`"
        )
    templates = [file for file in listing.files if fnmatch.fnmatchcase(file.name, "additional_chat_templates/*.jinja")]
    beside = [file for file in own if any(fnmatch.fnmatchcase(file.name, pattern) for pattern in _CHECKPOINT_FILES)]
    return (*sorted(beside, key=lambda file: file.name != "config.json"), *templates, *weights)


def head(listing: Listing) -> tuple[RemoteFile, ...]:
    """Choose the files that `edgespec convert --for` reads of a head: its config, if it has one, and its weights."""
    own = [file for file in listing.files if "/" not in file.name]
    weights = _weights(own, (*_HEAD_WEIGHTS, *_CHECKPOINT_WEIGHTS))
    if not weights:
        raise HubError(
            f"{listing.repo} holds no head: expected {', '.join(_HEAD_WEIGHTS)}, model.safetensors or "
            "pytorch_model.bin; a GGUF head needs no conversion, only --draft"
        )
    described = (file for file in own if file.name == "config.json" or file.name.endswith(".index.json"))
    return (*described, *weights)


def _weights(files: Sequence[RemoteFile], patterns: Sequence[str]) -> list[RemoteFile]:
    """The files with the first of these names that there are."""
    found = ([file for file in files if fnmatch.fnmatchcase(file.name, pattern)] for pattern in patterns)
    return next(filter(None, found), [])


def is_model(name: str) -> bool:
    """Whether this is the GGUF file of a language model: not an image projector, a head that drafts or an importance
    matrix, and of a model in several parts the first."""
    path = PurePosixPath(name.lower())
    part = _SPLIT.search(path.name.removesuffix(".gguf"))
    return (
        path.name.endswith(".gguf")
        and not path.name.startswith(("imatrix", *_HEADS))
        and path.parent.name != "mtp"
        and (part is None or int(part[1]) == 1)
        and "imatrix.gguf" not in path.name
        and not is_projector(name)
    )


def is_projector(name: str) -> bool:
    """Whether this is, by its name, the GGUF file of an image projector: of a model that reads pictures, too."""
    stem = PurePosixPath(name.lower()).name
    return stem.endswith(".gguf") and re.search(r"(^|[-._])mmproj([-._]|$)", stem) is not None


def _with_parts(listing: Listing, file: RemoteFile) -> tuple[RemoteFile, ...]:
    stem = file.name.removesuffix(".gguf")
    part = _SPLIT.search(stem)
    if part is None:
        return (file,)
    names = [f"{stem[: part.start()]}-{n:05}-of-{part[2]}.gguf" for n in range(1, int(part[2]) + 1)]
    by_name = {each.name: each for each in listing.files}
    if lacking := [name for name in names if name not in by_name]:
        raise HubError(f"{listing.repo} lacks {lacking[0]}, a part of the model; choose another quantization")
    return tuple(by_name[name] for name in names)


def split_name(text: str) -> tuple[str, str] | None:
    """Split `org/name` or `org/name:quantization` into repository and quantization; None where `text` is neither."""
    found = re.fullmatch(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w.-]+))?", text)
    return (found[1], found[2] or "") if found and not text.lower().endswith(".gguf") else None


class Page(NamedTuple):
    """The page of a repository on a hub, or of a GGUF file in it; with the quantization, if one was appended."""

    repo: str
    file: str
    quantization: str = ""

    @property
    def name(self) -> str:
        """The repository as `split_name` takes it."""
        return f"{self.repo}:{self.quantization}" if self.quantization else self.repo


def split_page(text: str) -> Page | None:
    """Parse the address of a hub page, with or without https://; None where `text` is not one.

    Raises:
        OptionError: the page is of another host, or of another revision than main.
    """
    found = _PAGE.fullmatch(text)
    if found is None:
        return None
    repo, revision = found["repo"], found["revision"] or "main"
    own = {*_HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc}
    if found["host"] not in own and not found["scheme"]:
        return None  # a path
    if found["host"] not in own:
        raise OptionError(f"{found['host']} is not the hub, which is {' or '.join(sorted(own - {''}))}; give org/name")
    if revision != "main":
        raise OptionError(
            f"that page is of the revision {revision}; `edgespec models pull {repo} --revision {revision}` fetches it"
        )
    return Page(repo, unquote(found["file"] or ""), found["quantization"] or "")


def require_repo(text: str) -> tuple[str, str]:
    """As `split_name`, but raises OptionError where `text` is not a repository."""
    found = split_name(text)
    if found is None:
        raise OptionError(f"{text!r} is no repository of a hub; write org/name, or org/name:q8_0 for a quantization")
    return found
