"""PyInstaller's hook: what edgespec loads by name, the data that it ships, and the libraries of llama.cpp."""

from PyInstaller.utils.hooks import (
    can_import_module,
    collect_data_files,
    collect_dynamic_libs,
    collect_submodules,
    copy_metadata,
)

#: Measuring and training have no place in an app, and bring matplotlib and torch.
_NOT_OF_AN_APP = ("edgespec.bench", "edgespec.cli", "edgespec.distill", "edgespec.packaging", "edgespec.testing")
#: Packages of extras that load libraries, and read their own version from their metadata.
_OPTIONAL = ("openvino", "llguidance")

hiddenimports = collect_submodules("edgespec", filter=lambda name: not name.startswith(_NOT_OF_AN_APP))
datas = collect_data_files("edgespec", excludes=["packaging/*"])
# Versions are read from it, and so are the drafters that packages register.
datas += copy_metadata("edgespec", recursive=True)
binaries = collect_dynamic_libs("llama_cpp")
for package in filter(can_import_module, _OPTIONAL):
    binaries += collect_dynamic_libs(package)
    datas += copy_metadata(package)
