"""The GPU kit's step "peers" where llama-server does not start."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.gpu import peers
from benchmarks.gpu.results import FAILED, Results
from benchmarks.gpu.setting import Setting

from .small_pair import SMALL_PAIR


def test_it_fails_where_no_server_starts(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\necho no such device >&2\nexit 1\n")
    server.chmod(0o755)
    made = tmp_path / "models"
    made.mkdir()
    shutil.copy(SMALL_PAIR.target, made / "tiny-Q4_0.gguf")
    shutil.copy(SMALL_PAIR.drafts[0], made / "draft-1-Q8_0.gguf")
    setting = Setting(tmp_path, "cpu", small=True, server=server, questions=1, pair=SMALL_PAIR)
    results = Results(tmp_path / "results.json")
    (item,) = peers.items(setting)
    assert results.run("peers", item) == FAILED
    assert "no llama-server started" in (told := results.step("peers")[item.name]["error"])
    assert "no such device" in told
