"""`edgespec models export`: commands of other servers, by words."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from edgespec.converters import exit_layer
from edgespec.errors import OptionError
from edgespec.models.export import SERVERS, Exported, command, method_of
from edgespec.terminal.export import ExportOptions

from .commandline import refused, run
from .heads import qwen35, qwen35_apart
from .small_pair import SMALL_PAIR
from .workers import free_endpoint

SERVER = "EDGESPEC_LLAMA_SERVER"
T, D = Path("t.gguf"), Path("d.gguf")


def exported(method: str, **given: Any) -> Exported:
    return Exported(T, None if method == "n-gram" else D, method, "org/t", "org/d", **given)


def flags(options: list[str]) -> dict[str, str]:
    """Options by name; each has a value."""
    assert len(options) % 2 == 0, options
    assert all(name.startswith("-") for name in options[::2]), options
    return dict(zip(options[::2], options[1::2], strict=True))


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("model", {"method": "draft_model", "model": "org/d"}),
        ("pard", {"method": "draft_model", "model": "org/d", "parallel_drafting": True}),
        ("eagle", {"method": "eagle", "model": "org/d"}),
        ("eagle3", {"method": "eagle3", "model": "org/d"}),
        ("medusa", {"method": "medusa", "model": "org/d"}),
        ("n-gram", {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
    ],
)
def test_vllm(method: str, config: dict[str, Any]) -> None:
    words = command("vllm", exported(method, k=7))
    assert words[:3] == ["vllm", "serve", "org/t"]
    assert json.loads(flags(words[3:])["--speculative-config"]) == {**config, "num_speculative_tokens": 7}


def test_a_head_in_the_target_needs_no_draft() -> None:
    own = Exported(T, None, "mtp", "org/t", k=2)
    assert json.loads(command("vllm", own)[4]) == {"method": "mtp", "num_speculative_tokens": 2}
    assert "NEXTN" in command("sglang", own)
    assert command("llama-server", Exported(SMALL_PAIR.target, None, "mtp"))[3:5] == ["--spec-type", "draft-mtp"]
    for server in ("vllm", "sglang"):
        with pytest.raises(OptionError, match="taken from the target's checkpoint"):
            command(server, exported("mtp"))


@pytest.mark.parametrize(("method", "name"), [("model", "STANDALONE"), ("eagle3", "EAGLE3"), ("eagle", "EAGLE")])
def test_sglang(method: str, name: str) -> None:
    words = command("sglang", exported(method, k=3))
    assert words[:3] == ["python", "-m", "sglang.launch_server"]
    assert flags(words[3:]) == {
        "--model-path": "org/t",
        "--speculative-algorithm": name,
        "--speculative-draft-model-path": "org/d",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4",
    }


def test_sglang_without_a_draft() -> None:
    assert flags(command("sglang", exported("n-gram", k=6))[3:]) == {
        "--model-path": "org/t",
        "--speculative-algorithm": "NGRAM",
        "--speculative-num-draft-tokens": "6",
    }


@pytest.mark.parametrize(
    ("server", "method"),
    [("sglang", "medusa"), ("sglang", "pard"), *(("llama-server", m) for m in ("medusa", "eagle", "pard"))],
)
def test_what_a_server_lacks_is_named(server: str, method: str) -> None:
    with pytest.raises(OptionError, match=f"no drafts of the kind {method}"):
        command(server, Exported(SMALL_PAIR.target, SMALL_PAIR.draft, method, "org/t", "org/d"))


def test_unknown_checkpoints_are_asked_for() -> None:
    for server in ("vllm", "sglang"):
        with pytest.raises(OptionError, match="--checkpoint ORG/NAME"):
            command(server, Exported(T, D, "model", None, "org/d"))
        with pytest.raises(OptionError, match="--draft-checkpoint ORG/NAME"):
            command(server, Exported(T, D, "model", "org/t", None))
    with pytest.raises(OptionError, match="there are vllm, sglang, llama-server"):
        command("tgi", exported("model"))


def test_methods_are_read_from_the_files(small_pair: dict[str, Path], tmp_path: Path) -> None:
    target, draft = small_pair["target"], small_pair["draft"]
    assert method_of(target, (draft,)) == "model"
    assert method_of(target, ()) == "n-gram"
    assert method_of(qwen35(tmp_path), ()) == "mtp"
    (tmp_path / "apart").mkdir()
    model, head = qwen35_apart(tmp_path / "apart")
    assert method_of(model, (head,)) == "mtp"
    with pytest.raises(OptionError, match="2 drafts do not carry over"):
        method_of(target, (draft, draft))
    with pytest.raises(OptionError, match="another vocabulary"):
        method_of(qwen35(tmp_path), (draft,))
    part = tmp_path / "part.gguf"
    list(exit_layer.keep(target, part, "0-1", force=False))
    with pytest.raises(OptionError, match="layers of its target"):
        method_of(target, (part,))


def pair_in(folder: Path, **about: Any) -> Path:
    folder.mkdir()
    for name in ("target", "draft"):
        shutil.copy(getattr(SMALL_PAIR, name), folder / f"{name}.gguf")
    (folder / "pair.json").write_text(json.dumps({"target": "target.gguf", "draft": "draft.gguf", **about}))
    return folder


def test_a_pair_file_says_checkpoints_and_length(tmp_path: Path) -> None:
    made_of = {"target": {"source": "org/it's big"}, "draft": {"source": "org/small; rm -rf ~"}}
    pair = pair_in(tmp_path / "a pair", made_of=made_of, measured={"k": 6})

    def words(server: str, *draft: str, k: int | None = None) -> list[str]:
        return shlex.split(ExportOptions(str(pair), server, draft or ("auto",), None, None, k).line())

    assert words("vllm")[2] == "org/it's big"
    assert json.loads(words("vllm")[4]) == {
        "method": "draft_model",
        "model": "org/small; rm -rf ~",
        "num_speculative_tokens": 6,
    }
    assert flags(words("sglang")[3:])["--speculative-num-steps"] == "6"
    assert flags(words("llama-server", k=2)[1:]) == {
        "-m": str(pair / "target.gguf"),
        "-md": str(pair / "draft.gguf"),
        "--spec-type": "draft-simple",
        "--spec-draft-n-max": "2",
    }
    assert json.loads(words("vllm", "none")[4])["num_speculative_tokens"] == 4, "measured with another draft"
    with pytest.raises(OptionError, match="--draft-checkpoint"):
        words("vllm", str(SMALL_PAIR.draft))


def test_the_command_prints_one_line_or_says_why_not(tmp_path: Path) -> None:
    done = run("models", "export", SMALL_PAIR.target, "--to", "llama-server", "--k", "3")
    assert done.returncode == 0, done.stderr
    assert shlex.split(done.stdout)[:3] == ["llama-server", "-m", str(SMALL_PAIR.target)]
    assert "-checkpoint ORG/NAME" in refused(run("models", "export", SMALL_PAIR.target, "--to", "vllm"))
    assert "from 1 to 64" in refused(run("models", "export", SMALL_PAIR.target, "--to", "llama-server", "--k", "0"))
    assert refused(run("models", "export", tmp_path / "none.gguf", "--to", "llama-server"))


def test_all_servers_are_in_the_help() -> None:
    text = run("models", "export", "--help").stdout
    assert all(server in text for server in SERVERS)


@pytest.mark.parametrize("draft", ["auto", "none"])
def test_the_server_itself_takes_the_command(draft: str) -> None:
    """EDGESPEC_LLAMA_SERVER names the program."""
    program = os.environ.get(SERVER)
    if not program:
        pytest.skip(f"{SERVER} names no llama-server")
    words = shlex.split(ExportOptions(str(SMALL_PAIR.target), "llama-server", (draft,), None, None, 3).line())
    port = free_endpoint().rpartition(":")[2]
    words = [program, *words[1:], "--port", port, "--host", "127.0.0.1", "-c", "512", "-t", "1"]
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asked = json.dumps({"prompt": [5, 6, 7, 8] * 8, "n_predict": 24, "temperature": 0}).encode()
        deadline = time.monotonic() + 120
        answer = None
        while answer is None:
            assert running.poll() is None, "it refused the command"
            assert time.monotonic() < deadline
            time.sleep(0.2)
            request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", asked)
            with suppress(OSError), urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                answer = json.load(response)
        assert answer["tokens_predicted"] > 0
        if draft == "auto":
            assert answer["timings"]["draft_n"] > 0
    finally:
        running.kill()
        running.wait()
