"""The options of `serve`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import PATH, grouped_options

if TYPE_CHECKING:
    from ..server.settings import Settings


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where to listen, for whom, and how many requests at a time."""

    host: str
    port: int
    slots: int | None
    queue: int
    api_key: tuple[str, ...]
    api_key_file: Path | None
    no_key: bool
    cors: tuple[str, ...]
    allow_host: tuple[str, ...]
    name: str
    strict_model: bool
    upstream: str | None
    upstream_key_file: Path | None

    def upstream_key(self) -> str | None:
        """The key for another server: of the file, else of EDGESPEC_UPSTREAM_KEY, else none.

        Raises:
            OptionError: a file that cannot be read, or has several keys.
        """
        if self.upstream_key_file is None:
            return os.environ.get("EDGESPEC_UPSTREAM_KEY")
        keys = _keys(self.upstream_key_file)
        if len(keys) > 1:
            from ..errors import OptionError  # noqa: PLC0415

            raise OptionError(f"{self.upstream_key_file} has {len(keys)} keys; leave the one for --upstream")
        return keys[0]

    def settings(self, model: Path | None) -> Settings:
        """The settings of the server of `model`.

        Raises:
            OptionError: a wrong option, or a file of keys that cannot be read.
        """
        from ..server.settings import Settings  # noqa: PLC0415

        return Settings(
            name=self.name or _name(model),
            host=self.host,
            port=self.port,
            slots=1 if self.slots is None else self.slots,
            queue=self.queue,
            keys=(*self.api_key, *_keys(self.api_key_file)),
            open=self.no_key,
            cors=self.cors,
            hosts=self.allow_host,
            strict_model=self.strict_model,
        )


def _name(model: Path | None) -> str:
    """The name of a model for clients: that of its file or folder, or of its repository."""
    if model is None:
        return "demo"
    return model.name.removesuffix(".gguf").removesuffix(".toml") or "model"


def _keys(file: Path | None) -> list[str]:
    from ..errors import OptionError  # noqa: PLC0415

    if file is None:
        return []
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise OptionError(f"the keys in {file} cannot be read: {reason}; give a file with one key in a line") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise OptionError(f"{file} has no key; write one into each line")
    return keys


serve_options = grouped_options(
    ServeOptions,
    "serve_options",
    click.option("--host", default="127.0.0.1", show_default=True, metavar="NAME", help="Address to listen on"),
    click.option("--port", type=int, default=8080, show_default=True, metavar="N", help="Port; 0 takes a free one"),
    click.option(
        "--slots", type=int, metavar="N", help="Requests at a time, each with a cache [default: 2 if memory allows]"
    ),
    click.option("--queue", type=int, default=16, show_default=True, metavar="N", help="Requests that wait at most"),
    click.option("--api-key", multiple=True, metavar="KEY", envvar="EDGESPEC_API_KEY", help="Key that requests need"),
    click.option("--api-key-file", type=PATH, metavar="FILE", help="A file with keys, one in each line"),
    click.option("--no-key", is_flag=True, help="Serve other machines without a key"),
    click.option("--cors", multiple=True, metavar="ORIGIN", help="Origin of web pages that may call; may be repeated"),
    click.option("--allow-host", multiple=True, metavar="NAME", help="A further name of this server; may be repeated"),
    click.option("--name", default="", metavar="NAME", help="Name of the model for clients [default: its file's]"),
    click.option("--strict-model/--no-strict-model", help="Refuse requests for a model of another name"),
    click.option("--upstream", metavar="URL", help="Load no model: pass requests on to another server of OpenAI's API"),
    click.option(
        "--upstream-key-file",
        type=PATH,
        metavar="FILE",
        help="Its key [default: that in EDGESPEC_UPSTREAM_KEY, if any]",
    ),
)
