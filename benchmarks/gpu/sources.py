"""What the CUDA build of llama.cpp needs of llama-cpp-python's source distribution."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

from edgespec.errors import OptionError

INSIDE = "vendor/llama.cpp"
#: Folders of llama.cpp that are kept whole. Vendored libraries are part of the server.
_WHOLE = ("cmake", "common", "include", "src", "vendor", "ggml/cmake", "ggml/include", "ggml/src/ggml-cpu")
_KERNELS = "ggml/src/ggml-cuda"
_FILES = ("CMakeLists.txt", "LICENSE", "ggml/CMakeLists.txt", "scripts/ui-assets.cmake")
_CODE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".in", ".txt", ".cmake")
_PAGE = "tools/ui"  # the server's web page, which needs npm: its CMakeLists.txt then embeds an empty one


def is_kept(name: str) -> bool:
    """Whether the build needs a file, by its path within llama.cpp."""
    path = PurePosixPath(name)
    if name in _FILES:
        return True
    if any(path.is_relative_to(folder) for folder in (*_WHOLE, _KERNELS)):
        return True
    if path.parent == PurePosixPath("ggml/src"):
        return True
    if path.is_relative_to(_PAGE):
        return path.parent == PurePosixPath(_PAGE) and path.suffix in _CODE
    return path.is_relative_to("tools") and path.suffix in _CODE and "tests" not in path.parts


def trim(distribution: Path, output: Path) -> int:
    """Write the needed files of the .tar.gz `distribution` to the .tar.gz `output`, below the folder "llama.cpp".

    Returns the number of files.

    Raises:
        OptionError: it is no source distribution of llama-cpp-python.
    """
    kept = 0
    try:
        with tarfile.open(distribution) as whole, tarfile.open(output, "w:gz", compresslevel=9) as part:
            for member in whole:
                name = member.name.partition("/")[2]
                inside = name.removeprefix(f"{INSIDE}/")
                if inside == name or not member.isfile() or not is_kept(inside):
                    continue
                member.name = f"llama.cpp/{inside}"
                # That of a long name would be written instead.
                member.pax_headers = {key: value for key, value in member.pax_headers.items() if key != "path"}
                part.addfile(member, whole.extractfile(member))
                kept += 1
    except (OSError, tarfile.TarError) as error:
        output.unlink(missing_ok=True)
        raise OptionError(f"{distribution} cannot be read ({error}); give llama-cpp-python's .tar.gz") from error
    if not kept:
        output.unlink()
        raise OptionError(f"{distribution} has no {INSIDE}; give the source distribution of llama-cpp-python")
    return kept
