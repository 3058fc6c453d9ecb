"""pyproject.toml maps folders; this maps the one file, `cli.py`, to `edgespec.cli`."""

from setuptools import setup
from setuptools.command.build_py import build_py

CLI = "edgespec.cli"


class BuildPy(build_py):
    def find_package_modules(self, package, package_dir):
        return [(CLI, "cli", "cli.py")] if package == CLI else super().find_package_modules(package, package_dir)

    def build_module(self, module, module_file, package):
        return super().build_module(module, module_file, "edgespec" if package == CLI else package)


setup(cmdclass={"build_py": BuildPy})
