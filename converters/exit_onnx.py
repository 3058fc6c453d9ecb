"""The first layers of an ONNX model as its draft: a line of its metadata, and the same weights.

ONNX Runtime loads such a model in parts (`edgespec.backends.onnx_parts`), so that draft and target share weights, cache
and the work of the first layers. Other engines, and edgespec without the drafter `exit`, run it as any other model.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from onnx import helper, load_model

from edgespec.backends.onnx_file import EXIT, read
from edgespec.backends.onnx_parts import split
from edgespec.converters import ConversionProgress
from edgespec.converters.atomic_folder import atomic_folder, check_folder
from edgespec.errors import ConversionError, OptionError


def check_exit(layer: int, layers: int, source: Path, *, recurrent: bool) -> None:
    """OptionError unless there is such a layer; ConversionError for a model whose layers have a state."""
    if recurrent:
        raise ConversionError(
            f"{source} cannot be cut for onnx, for some of its layers have a state in place of a cache; leave "
            "--exit-layer out"
        )
    if not 1 <= layer < layers:
        raise OptionError(f"the exit layer is {layer}; {source} has {layers} layers: give 1 to {layers - 1}")


def mark(source: Path, output: Path, layer: int, *, force: bool = False) -> Iterator[ConversionProgress]:
    """Write the converted ONNX model in the folder `source` into the folder `output`, with an exit after its first
    `layer` layers. Its weights are linked where the disk can, else copied.

    Raises:
        OptionError: there is no such layer.
        ConversionError: the model cannot be cut, or the output not be written.
        ModelFileError: the model cannot be read.
    """
    from edgespec.converters import onnx  # noqa: PLC0415 - imports this module

    check_folder(output, onnx.foreign, force)
    model = read(source / onnx.MODEL)
    check_exit(layer, model.layers, source, recurrent=model.recurrence is not None)
    return _marked(source, output, layer, model.layers, force=force)


def _marked(source: Path, output: Path, layer: int, layers: int, *, force: bool) -> Iterator[ConversionProgress]:
    from edgespec.converters import onnx  # noqa: PLC0415

    graph = load_model(source / onnx.MODEL, load_external_data=False)
    props = {entry.key: entry.value for entry in graph.metadata_props}
    helper.set_model_props(graph, {**props, EXIT: str(layer)})
    data = graph.SerializeToString()
    split(data, layer, layers)  # whether it is possible
    with atomic_folder(output, 2 * len(data), force) as folder:
        yield ConversionProgress(onnx.MODEL, 0, 1)
        for path in sorted(source.rglob("*")):
            if path.is_file() and path.name != onnx.MODEL:
                _take(path, folder / path.relative_to(source))
        (folder / onnx.MODEL).write_bytes(data)
    yield ConversionProgress("done", 1, 1)


def _take(file: Path, name: Path) -> None:
    """A second name of a file; a copy where the disk cannot link."""
    name.parent.mkdir(exist_ok=True)
    try:
        os.link(file.resolve(), name)
    except OSError:
        shutil.copyfile(file, name)
