"""What CI runs, by name: `nox -l` lists the sessions, `nox -s lint types` runs two of them.

All use the environment that nox runs in: that of `pip install -e '.[dev]'`, or of `pip install '.[dev]'` for `wheel`.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PYTHON, SCRIPTS = sys.executable, Path(sysconfig.get_path("scripts"))
#: Packages that mypy checks: the installed one, and two that lie beside it.
TYPED = ("edgespec", "tests", "benchmarks", "examples")

nox.options.sessions = ["tests", "lint", "types", "docs"]


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """The tests; arguments after -- go to pytest."""
    session.run(here("pytest"), *session.posargs)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Ruff's rules and its formatting."""
    session.run(here("ruff"), "check", ".")
    session.run(here("ruff"), "format", "--check", ".")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """mypy --strict over the package as a wheel lays it out, the tests, the benchmarks and the examples."""
    folder = Path(session.create_tmp()).resolve()
    build = (PYTHON, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(fresh(folder / "dist")), str(ROOT))
    session.run(*build, external=True)
    with zipfile.ZipFile(next((folder / "dist").glob("*.whl"))) as wheel:
        wheel.extractall(fresh(folder / "typed"))
    check_types(session, folder / "typed", here("mypy"))


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """The site of docs/, with the API reference, into build/docs; warnings are errors."""
    session.run(PYTHON, "-m", "mkdocs", "build", "--strict", external=True)


@nox.session(venv_backend="none")
def wheel(session: nox.Session) -> None:
    """mypy against the installed wheel, with which the README's command has run the tests."""
    folder = fresh(Path(session.create_tmp()).resolve() / "typed")
    check = "import edgespec, sys; sys.exit(not edgespec.__file__.startswith(sys.prefix) and edgespec.__file__)"
    with session.chdir(folder):
        session.run(PYTHON, "-c", check, external=True)  # an editable install lies in the checkout
    check_types(session, folder, here("mypy"))


def here(tool: str) -> str:
    """The command `tool` of the environment that nox runs in, which need not be on the PATH."""
    return str(SCRIPTS / tool)


def check_types(session: nox.Session, folder: Path, mypy: str) -> None:
    """Run mypy in `folder`, where it finds copies of what lies beside the package and nothing else of this one."""
    for name in TYPED[1:]:
        shutil.copytree(ROOT / name, folder / name)
    with session.chdir(folder):
        for name in TYPED:
            session.run(mypy, "--config-file", str(ROOT / "pyproject.toml"), "-p", name)


def fresh(folder: Path) -> Path:
    """`folder`, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
