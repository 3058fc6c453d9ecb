"""Hooks of mkdocs for the site of this folder: links out of it, and that nothing comes from elsewhere."""

from __future__ import annotations

import logging
import os
import posixpath
import re
from pathlib import Path
from typing import Any

#: Warnings of this logger are errors of a strict build.
log = logging.getLogger("mkdocs.hooks.edgespec")
#: A link of Markdown to a relative address, up to its anchor.
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)")
#: What a browser loads by itself.
ASSET = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(?:https?:)?//"
    r"|<link[^>]*rel=[\"']?(?:stylesheet|preload|preconnect)[^>]*\shref=[\"']?(?:https?:)?//"
    r"|url\([\"']?(?:https?:)?//"
)


def on_page_markdown(markdown: str, page: Any, config: Any, **_kwargs: Any) -> str:
    """Links to files of the repository that are no pages lead to the repository's address."""
    docs = Path(config["docs_dir"])
    folder = posixpath.dirname(page.file.src_uri)

    def address(link: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join(docs.name, folder, link[1]))
        if place.startswith(docs.name + "/") and not place.endswith(".py"):
            return link[1]
        found = docs.parent / place
        if not found.exists():
            log.warning("%s: no file %s", page.file.src_uri, link[1])
        kind = "tree" if found.is_dir() else "blob"
        return f"{config['repo_url']}/{kind}/main/{place}"

    return LINK.sub(address, markdown)


def on_post_build(config: Any, **_kwargs: Any) -> None:
    """No page loads a script, a style, a font or a picture from another place."""
    for name in (os.path.join(root, each) for root, _, files in os.walk(config["site_dir"]) for each in files):  # noqa: PTH118
        if name.endswith((".html", ".css", ".svg")) and (found := ASSET.search(Path(name).read_text("utf-8"))):
            log.warning("%s loads from elsewhere: %s", name, found[0])
