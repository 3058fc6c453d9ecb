"""Checks that the weights of a converted model have the checksum of the conversion, once per state of the file."""

from __future__ import annotations

from ..errors import ModelFileError
from ..storage.cache import Shelf
from ..storage.checksum import digest
from . import Interrupt
from .machine import physical_cores
from .onnx_file import Described

_VERSION = 1


def check_weights(described: Described, interrupt: Interrupt) -> None:
    """Compare the weights with the checksum in the model's file, unless this was done before and the file of weights
    has the same size and modification time.

    Takes about 0.8 s per GB and core. Models of an older edgespec have no checksum and are not checked.

    Raises:
        ModelFileError: the checksum differs, or the file cannot be read.
        Interrupted: `interrupt` was set.
    """
    if not described.digest:
        return
    data = described.data
    try:
        state = data.stat()
        seen = {"size": state.st_size, "changed": state.st_mtime_ns, "digest": described.digest}
        shelf = Shelf("checked", str(data.resolve()), _VERSION)
        if shelf.read() == seen:
            return
        found = digest(data, physical_cores(), lambda: interrupt.is_set)
    except OSError as error:
        raise ModelFileError(f"{data} cannot be read: {error.strerror}; give a file that can be read") from error
    if found != described.digest:
        raise ModelFileError(
            f"{data} is damaged: its bytes are not those that the conversion wrote (another checksum than in "
            f"{described.path.name}); convert it again, or copy it again"
        )
    shelf.write(seen)
