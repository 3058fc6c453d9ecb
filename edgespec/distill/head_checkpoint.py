"""The checkpoint of a head, as its makers write it and `edgespec convert HEAD --for TARGET` reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgespec.converters.atomic_folder import atomic_folder

from ..errors import ConversionError


class Written(Protocol):
    """A head."""

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """By name."""
        ...

    def config(self) -> dict[str, Any]:
        """What config.json says."""
        ...


def write(head: Written, output: Path, name: str = "model.safetensors") -> None:
    """Write a head into the folder `output`; an existing one is replaced.

    Args:
        name: of the file of weights.

    Raises:
        ConversionError: it cannot be written.
    """
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.numpy import save_file  # noqa: PLC0415

    tensors = {name: np.ascontiguousarray(each) for name, each in head.tensors().items()}
    with atomic_folder(output, sum(each.nbytes for each in tensors.values()), replace=True) as folder:
        try:
            save_file(tensors, folder / name)
        except SafetensorError as error:
            raise ConversionError(
                f"{output} cannot be written: {error}; free space on the disk or choose another folder"
            ) from error
        (folder / "config.json").write_text(json.dumps(head.config(), indent=2) + "\n", "utf-8")
