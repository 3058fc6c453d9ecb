"""The site of docs/ builds without a warning, and links to nothing that is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
for package in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(package, reason="the site needs the extra docs: pip install 'edgespec[docs]'")


def test_the_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'id="edgespec.Runtime.chat"' in (tmp_path / "site" / "api.html").read_text("utf-8")
