"""Threads of OpenMP that wait: how, is set before llama.cpp is loaded, unless the user has said it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """import os
from edgespec.backends.llama_library import bindings
bindings()
print(os.environ.get("GOMP_SPINCOUNT"))"""


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["nothing", "turns", "policy"],
)
def test_threads_spin_for_a_moment_unless_the_user_says_otherwise(given: dict[str, str], spins: str) -> None:
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**others, **given}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == spins
