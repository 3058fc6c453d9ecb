"""The command `models export`: from a pair to the command of another server."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.models import export

from ..errors import OptionError
from ..library import Job, resolve
from ..storage import pair_file
from ..values import whole


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export, and to which server."""

    pair: str
    server: str
    draft: tuple[str, ...]
    checkpoint: str | None
    draft_checkpoint: str | None
    k: int | None

    def line(self) -> str:
        """The command, quoted for a shell. Nothing is downloaded.

        Raises:
            OptionError: something does not carry over; the message names it.
            ModelError: the files of the pair cannot be read.
        """
        if self.server not in export.SERVERS:
            raise OptionError(f"no server {self.server!r:.40} to export to; there are {', '.join(export.SERVERS)}")
        files = resolve(self.pair, self.draft, Job(fetch=False))
        about = self._about()
        made_of = about.get("made_of", {})
        own = self.draft == ("auto",)
        measured = about.get("measured", {}).get("k", 0) if own else 0
        k = whole("k", self.k, 1, 64) if self.k is not None else measured or export.USUAL_K
        exported = export.Exported(
            files.target,
            files.drafts[0] if files.drafts else None,
            export.method_of(files.target, files.drafts),
            self.checkpoint or made_of.get("target", {}).get("source"),
            self.draft_checkpoint or (made_of.get("draft", {}).get("source") if own else None),
            k,
        )
        return shlex.join(export.command(self.server, exported))

    def _about(self) -> dict[str, Any]:
        """What the pair file says beside its paths; empty without one."""
        file = pair_file.at(Path(self.pair))
        return dict(pair_file.read(file).about) if file is not None else {}
