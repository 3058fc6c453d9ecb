"""The kit for graphics cards: what it packs, how its run goes on after a cut, its large models, and its page."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import build as building
from benchmarks.gpu import machine, packing, page, run, step
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.build import Build, BuildFailed
from benchmarks.gpu.curves import measured
from benchmarks.gpu.prices import in_a_row
from benchmarks.gpu.results import Item, LeftOut, Results
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.shapes import WEIGHTS, Shape, kind_of, write
from benchmarks.gpu.sources import is_kept, trim
from benchmarks.simulator import cards
from edgespec import Device, Interrupt, models
from edgespec.backends import open_model
from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.errors import OptionError
from edgespec.types import Floats

from .small_pair import SMALL_PAIR

SMI = "NVIDIA GeForce RTX 3090, 24576 MiB, 580.1, 8.6, 2100 MHz, 9751 MHz, 350.00 W\n"
LONG = 120 * "n" + ".cpp"  # which tar keeps apart from the other fields
FACTS = {"device": "cpu", "card": None, "processor": "a processor", "cores": 2, "memory": 4.0}


# What is packed


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("CMakeLists.txt", True),
        ("ggml/src/ggml-cuda/template-instances/mmq-instance-q4_0.cu", True),
        ("ggml/src/ggml-cpu/arch/x86/quants.c", True),
        ("ggml/src/ggml.c", True),
        ("ggml/src/ggml-vulkan/ggml-vulkan.cpp", False),
        ("ggml/src/ggml-metal/CMakeLists.txt", False),
        ("tools/server/server.cpp", True),
        ("tools/server/tests/unit/test_basic.py", False),
        ("tools/ui/CMakeLists.txt", True),
        ("tools/ui/src/app.html", False),
        ("models/ggml-vocab-aquila.gguf", False),
        ("docs/build.md", False),
    ],
)
def test_what_the_build_needs(name: str, kept: bool) -> None:
    assert is_kept(name) is kept


def archive(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            file.addfile(member, io.BytesIO(b"abc"))
    return path


def test_a_distribution_is_trimmed(tmp_path: Path) -> None:
    inside = "llama_cpp_python-1/vendor/llama.cpp"
    whole = archive(tmp_path / "whole.tar.gz", f"{inside}/src/{LONG}", f"{inside}/docs/a.md", "llama_cpp_python-1/b.c")
    output = tmp_path / "part.tar.gz"
    assert trim(whole, output) == 1
    with tarfile.open(output) as file:
        assert file.getnames() == [f"llama.cpp/src/{LONG}"]


def test_another_archive_is_refused(tmp_path: Path) -> None:
    other, output = archive(tmp_path / "other.tar.gz", "a/b.c"), tmp_path / "part.tar.gz"
    with pytest.raises(OptionError, match="give the source distribution of llama-cpp-python"):
        trim(other, output)
    other.write_bytes(b"no archive")
    with pytest.raises(OptionError, match="cannot be read"):
        trim(other, output)
    assert not output.exists()


def test_a_kit_is_not_too_large() -> None:
    packing.check_size({"wheels": packing.MOST})
    with pytest.raises(OptionError, match=r"the kit has 62.9 MB, and at most 62.9 may travel .*--without numpy"):
        packing.check_size({"wheels": packing.MOST, "run.py": 1})


def test_packages_that_travel() -> None:
    names = {packing._name(each) for each in packing.requirements()}
    assert {"numpy", "gguf", "tokenizers", "diskcache"} <= names
    assert not names & {"llama-cpp-python", "onnxruntime", "onnxruntime-gpu", "torch", "matplotlib", "pytest"}


def test_a_kit_with_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but pip, which reaches an index."""
    asked: list[Sequence[str]] = []

    def pip(*words: str) -> None:
        asked.append(words)
        if words[0] == "download":
            for name in ("hf_xet", "click"):
                with zipfile.ZipFile(
                    Path(words[words.index("--dest") + 1]) / f"{name}-1-py3-none-any.whl", "w"
                ) as wheel:
                    wheel.writestr("a.py", "a = 1\n" * 1000)

    monkeypatch.setattr(packing, "_pip", pip)
    inside = "llama_cpp_python-1"
    bindings = archive(tmp_path / "b.tar.gz", f"{inside}/vendor/llama.cpp/src/llama.cpp", f"{inside}/llama_cpp/a.py")
    built = archive(tmp_path / "built-86-real.tar.gz", "lib/libllama.so")
    kit = tmp_path / "kit"
    packing.pack(kit, packing.Wanted(("3.11", "3.12"), ("numpy",), bindings, (built,)))
    assert {"run.py", "README.md", "kit.json", "llama.cpp.tar.gz", "source", "wheels", built.name} == {
        path.name for path in kit.iterdir()
    }
    assert (kit / "source" / "benchmarks" / "gpu" / "run.py").is_file()
    (wheel,) = (kit / "wheels").iterdir()
    assert wheel.name.startswith("click-")
    with zipfile.ZipFile(wheel) as packed:
        assert {each.compress_type for each in packed.infolist()} == {zipfile.ZIP_LZMA}
    downloads = [words for words in asked if words[0] == "download"]
    assert [words[words.index("--python-version") + 1] for words in downloads] == ["3.11", "3.12"]
    assert not any(word.startswith("numpy") for words in downloads for word in words)
    with pytest.raises(OptionError, match="give the name of a new folder"):
        packing.pack(kit, packing.Wanted())


def test_pip_installs_a_wheel_that_was_compressed_again(tmp_path: Path) -> None:
    wheel, site = tmp_path / "word-1-py3-none-any.whl", tmp_path / "site"
    text = "".join(f"WORD_{each} = {each * each}\n" for each in range(1000))
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word.py", text)
        archive.writestr("word-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: word\nVersion: 1\n")
        archive.writestr("word-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("word-1.dist-info/RECORD", "word.py,,\nword-1.dist-info/RECORD,,\n")
    before = wheel.stat().st_size
    packing._compress(wheel)
    assert wheel.stat().st_size < before
    assert [path.name for path in tmp_path.iterdir()] == [wheel.name]
    packing._pip("install", "--no-index", "--no-deps", "--target", str(site), str(wheel))
    assert (site / "word.py").read_text("utf-8") == text


def test_modules_of_the_run_need_no_package() -> None:
    """They are imported before the kit's packages are installed."""
    code = (
        "import sys, benchmarks.gpu.make; sys.exit(any(name in sys.modules for name in ('numpy', 'edgespec', 'click')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=packing.ROOT, check=False).returncode == 0


# The run


def fails() -> None:
    raise ValueError("no")


def leaves_out() -> None:
    raise LeftOut("no room")


def test_every_item_is_kept_and_done_once(tmp_path: Path) -> None:
    done: list[int] = []
    items = [
        Item("counts", lambda: done.append(1)),
        Item("fails", fails),
        Item("left out", leaves_out),
        Item("does not pass", lambda: {"passed": False}),
    ]
    for _ in range(2):
        results = Results(tmp_path / "results.json")
        for item in results.open("check", items):
            results.run("check", item)
    kept = json.loads((tmp_path / "results.json").read_text())["steps"]["check"]
    assert [each["state"] for each in kept.values()] == ["done", "failed", "left out", "failed"]
    assert kept["fails"]["error"] == "ValueError: no"
    assert len(done) == 1


def ended_in_the_middle(path: Path, item: Item) -> None:
    """What is left of an item whose process ended."""
    with pytest.raises(KeyboardInterrupt):
        Results(path).run("check", Item(item.name, lambda: (_ for _ in ()).throw(KeyboardInterrupt)))


def test_an_item_that_ends_its_process_is_tried_twice(tmp_path: Path) -> None:
    path, item = tmp_path / "results.json", Item("ends", lambda: 1)
    for _ in range(2):
        assert list(Results(path).open("check", [item]))
        ended_in_the_middle(path, item)
    assert not list(Results(path).open("check", [item]))
    assert Results(path).step("check")["ends"]["state"] == "failed"


def test_an_item_that_was_cut_off_is_done_by_the_next_call(tmp_path: Path) -> None:
    path, item = tmp_path / "results.json", Item("long", lambda: 1)
    ended_in_the_middle(path, item)
    Results(path).forgive("check")
    ended_in_the_middle(path, item)
    assert list(Results(path).open("check", [item])), "cut off once, and ended once"
    Results(path).forgive("check")
    assert not list(Results(path).open("check", [item])), "it does not fit into the time of a call"


class Ended:
    """A process that has made all models."""

    def poll(self) -> int:
        return 0

    def wait(self, _seconds: float) -> int:
        return 0


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command with a build that is there, and with given ends of its processes."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "built").touch()
    monkeypatch.setattr(run, "facts", lambda _device: FACTS)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(page, "write", lambda work: (work / "page.md").write_text("a page"))

    monkeypatch.setattr(run, "_started", lambda _command, _build: Ended())

    def call(ends: Sequence[int | None], *options: str) -> tuple[int, list[str]]:
        said: list[str] = []

        def bounded(command: Sequence[str], _build: Build, _budget: object) -> int | None:
            name = command[3]
            said.append(name)
            end = ends[len(said) - 1]
            results = Results(work / "results.json")
            item = Item("one", lambda: 1)
            if end == 0:
                results.run(name, item)
            elif results.step(name).get("one", {}).get("tries", 0) < 2:
                results.step(name)["one"] = {
                    "state": "begun",
                    "tries": results.step(name).get("one", {}).get("tries", 0) + 1,
                }
                results.set("kept", True)
            return end

        monkeypatch.setattr(run, "_bounded", bounded)
        status = run.main(tmp_path, ["--work", str(work), "--device", "cpu", *options])
        assert (work / "page.md").read_text() == "a page"
        return status, said

    return call


def test_steps_one_after_the_other(called: Any) -> None:
    assert called([0, 0, 0, 0]) == (run.DONE, ["check", "prices", "speeds", "peers"])


def test_a_build_alone_needs_no_card(called: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "facts", lambda device: {**FACTS, "device": device})
    assert called([], "--device", "cuda", "--steps", "build", "--architecture", "86-real") == (run.DONE, [])


def test_items_are_chosen_by_parts_of_their_names() -> None:
    assert step.wanted("8B Q4_0, demo", [])
    assert step.wanted("8B Q4_0, demo", ["1B", "Q4_0"])
    assert not step.wanted("8B Q4_0, demo", ["1B", "Q8_0"])


def test_a_step_goes_on_after_an_item_ended_it(called: Any) -> None:
    assert called([-6, 0, 0], "--steps", "check,prices") == (run.DONE, ["check", "check", "prices"])


def test_time_is_up(called: Any) -> None:
    assert called([None, 0], "--steps", "check,prices") == (run.MORE, ["check", "prices"])
    assert called([], "--minutes", "0.1") == (run.MORE, [])


def test_a_process_is_ended_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_GRACE", 0.2)
    build, budget = Build(tmp_path, tmp_path, "cpu"), Budget.of_minutes(0.02)
    command = [
        sys.executable,
        "-c",
        "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); time.sleep(60)",
    ]
    assert run._bounded(command, build, budget) is None
    assert run._bounded([sys.executable, "-c", "raise SystemExit(5)"], build, Budget.of_minutes(1)) == 5


# The build


def test_the_card_present_is_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/nowhere/bin/{name}")
    monkeypatch.setattr(machine, "output", lambda _command: SMI)
    options = Build(tmp_path, tmp_path, "cuda").options()
    assert "-DCMAKE_CUDA_ARCHITECTURES=86-real" in options
    assert "-DCMAKE_INSTALL_RPATH=$ORIGIN;$ORIGIN/../lib;/nowhere/lib64" in options, "the toolkit's, beside its bin"
    assert "-DCMAKE_CUDA_ARCHITECTURES=90a-real" in Build(tmp_path, tmp_path, "cuda", "90a-real").options()
    assert Build(tmp_path, tmp_path, "cuda").archive.name == "built-86-real.tar.gz"
    assert not any("CUDA" in option for option in Build(tmp_path, tmp_path, "cpu").options())


def test_a_machine_without_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name, path=None: None)
    with pytest.raises(machine.NoCard, match="give --device cpu for a rehearsal"):
        machine.facts("cuda")
    with pytest.raises(BuildFailed, match="nvcc is missing; install the CUDA toolkit"):
        Build(tmp_path, tmp_path, "cuda", "86-real").options()


def test_an_earlier_build_is_taken_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(tmp_path / "built-cpu.tar.gz", "lib/libllama.so", "bin/llama-server")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr(Build, "install", lambda _self: None)
    run.begin(tmp_path, work, "cpu", "", 1)
    build = Build(tmp_path, work, "cpu")
    assert build.done
    assert build.server.is_file()
    assert Results(work / "results.json").step("build")["llama.cpp"]["value"]["kept from before"] is True


def test_a_build_that_fails_says_why_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Build, "install", lambda _self: None)
    code = "print('x.cu: error: no such type'); raise SystemExit(2)"
    monkeypatch.setattr(
        Build, "compile", lambda self, _jobs: building.call([sys.executable, "-c", code], self.work / "l")
    )
    for _ in range(2):
        with pytest.raises(BuildFailed, match=r"failed with status 2: x\.cu: error: no such type; see "):
            run.begin(tmp_path, tmp_path, "cpu", "", 1)
    assert "no such type" in page.text(Results(tmp_path / "results.json").content)


# Large models


def logits(path: Path) -> Floats:
    """Of a text of 40 tokens, [tokens, vocabulary]."""
    with closing(open_model(path, Device(256, 1, gpu_layers=0), Interrupt())) as model:
        with closing(model.session(256)) as session:
            found = np.array(session.decode(range(300, 340)))
        assert model.vocabulary.size == found.shape[1]
        return found


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_large_model_says_what_the_small_one_says(tmp_path: Path, weights: str) -> None:
    """Logits of its tokens are those of the small model, but for the rounding of the weights; others are banned."""
    small, large = SMALL_PAIR.drafts[0], tmp_path / "large.gguf"
    write(small, large, Shape(3, 512, 768, 16, 4, 4200), weights)
    expected, found = logits(small), logits(large)
    # F16 does not round activations, as the small model in Q8_0 does: 0.10 was seen.
    most = {"F16": 0.2, "Q8_0": 0.3}.get(weights, 6.0)
    assert np.abs(found[:, : expected.shape[1]] - expected).max() < most
    assert (found[:, : expected.shape[1]].argmax(1) == expected.argmax(1)).mean() > (0.9 if most < 1 else 0.5)
    assert found[:, expected.shape[1] :].max() < -50


def test_an_output_matrix_of_its_own_is_kept(tmp_path: Path) -> None:
    """That of the demo pair's target is no copy of its embeddings."""
    small, large = models.demo().target, tmp_path / "large.gguf"
    write(small, large, Shape(7, 1024, 1536, 8, 4, 4200), "F16")
    expected, found = logits(small), logits(large)
    assert (found.argmax(1) == expected.argmax(1)).mean() > 0.9
    assert found[:, expected.shape[1] :].max() < found.max(1).min() - 20


def test_weights_of_q4_k_m() -> None:
    kinds = [kind_of("Q4_K_M", "ffn_down", layer, 32).name for layer in range(32)]
    assert kinds.count("Q6_K") == 16
    assert kind_of("Q4_K_M", "output", 0, 32).name == "Q6_K"
    assert kind_of("Q4_K_M", "ffn_up", 0, 32).name == "Q4_K"
    assert kind_of("Q8_0", "output", 0, 32).name == "Q8_0"


def test_prices_by_the_place_in_a_row() -> None:
    """The session's clock ticks once for a first pass of its width in a row, twice for a second, thrice for others."""
    ticks = {"now": 0.0}

    class Recorded(ToySession):
        row: tuple[int, int] = (0, 0)

        def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Any:
            last, count = self.row
            self.row = (len(tokens), count + 1 if last == len(tokens) else 1)
            ticks["now"] += min(3, self.row[1]) / 1000
            return super().decode(tokens, tree)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("time.perf_counter", lambda: ticks["now"])
        found = in_a_row(Recorded(ngram_rule(4096), 4096), (1, 2, 4), {16: 3})
    assert found["16, first"]["2"] == 1.0
    assert found["16, second"] == {"1": 2.0, "2": 2.0, "4": 2.0}
    assert found["16"] == {"1": 3.0, "2": 3.0, "4": 3.0}


def test_models_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the step that is first, though another process asks for the same one meanwhile."""
    made: list[Path] = []

    def slow(_small: Path, output: Path, _shape: Shape, _weights: str) -> None:
        made.append(output)
        time.sleep(0.2)
        output.write_text("a model")

    monkeypatch.setattr("benchmarks.gpu.setting.write", slow)
    setting = Setting(tmp_path, "cpu", True, tmp_path / "server")
    threads = [threading.Thread(target=setting.target, args=("tiny", "Q4_0")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_another_pair_is_enlarged_and_contenders_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[Path, int]] = []

    def written(small: Path, output: Path, shape: Shape, _weights: str) -> None:
        taken.append((small, shape.layers))
        output.write_text("a model")

    monkeypatch.setattr("benchmarks.gpu.setting.write", written)
    small, other = SMALL_PAIR.drafts[0], models.demo().target
    pair = ["--pair", "target.gguf", str(small), str(other), "--contender", "k=3", "--contender", "k=5"]
    chosen = run.options(["--work", str(tmp_path), *pair])
    with pytest.raises(SystemExit):
        run.options(["--work", str(tmp_path), "--pair", "target.gguf"])
    command = run._command("speeds", Build(tmp_path, tmp_path, "cpu"), chosen)
    setting = step.setting_of(step.options(command[command.index("speeds") :]))
    setting.target("tiny", "Q4_0")
    first, second = setting.drafts()
    assert setting.draft() == first != second
    assert taken == [(Path("target.gguf").resolve(), 8), (small.resolve(), 2), (other.resolve(), 7)]
    assert setting.contenders == ("k=3", "k=5")


# The page

CURVE = {str(n): 2.0 * (1 if n <= 8 else 1.5) for n in range(1, 33)}
RACE = {
    "contenders": {
        "plain": {
            "x plain": {"dialogue": [1.0]},
            "tokens": 9,
            "tokens a second": 90.0,
            "drafted": 0,
            "accepted": 0,
            "rounds": 9,
        },
        "edgespec": {
            "x plain": {"dialogue": [2.1, 1.9, 2.3]},
            "tokens": 9,
            "tokens a second": 189.0,
            "drafted": 8,
            "accepted": 6,
            "rounds": 3,
        },
    },
    "problems": ["edgespec, question 3: too long"],
    "left out": {"transformers": "there is none"},
    "edgespec over": {"llama-server": [1.2]},
}
HOST = {
    "1": {"pass": 1.0, "with logits": 1.1, "session, argmax": 1.2},
    "round": 1.3,
    "on the device": {"same tokens": True, "logits": {"1": 1.05}, "tokens": {"1": 0.95}},
}


def test_the_page_of_a_run() -> None:
    card = dict(zip(machine._FIELDS, SMI.strip().split(", "), strict=True))
    content = {
        "machine": {**FACTS, "card": card, "cuda": "13.0", "python": "3.12"},
        "steps": {
            "build": {"llama.cpp": {"state": "done", "seconds": 300.0, "value": {"kept from before": False}}},
            "check": {
                "trees": {"state": "done", "seconds": 3.0, "value": {"passed": True, "said": ["6 identical"]}},
                "states": {"state": "failed", "error": "AssertionError: off by 3 | after 4 tokens"},
                "long": {"state": "begun", "tries": 1},
            },
            "prices": {
                "1B Q4_0": {"state": "done", "value": {"256": CURVE, "MB of weights": 700}},
                "8B F16": {"state": "left out", "error": "it takes 18 GB"},
                "host, 1B Q4_0": {"state": "done", "value": HOST},
            },
            "speeds": {"1B Q4_0, demo, T = 0": {"state": "done", "value": RACE}},
            "peers": {"1B": {"state": "failed", "error": "no server"}},
        },
    }
    text = page.text(content)
    for expected in (
        "NVIDIA GeForce RTX 3090, 24576 MiB, compute capability 8.6",
        "| check | 1 | 1 | 0 | 1 | 3 |",
        "| trees | passed | said: 6 identical |",
        "| states | **failed** | AssertionError: off by 3 / after 4 tokens |",
        f"| 1B Q4_0 | 256 | 2.00 | 350 |{' 1.00 |' * 5}{' 1.50 |' * 5} 8 to 9: x 1.50 |",
        "8B F16: left out: it takes 18 GB",
        "| 1 | 1.0 | 1.1 | 1.2 | 1.05 | 0.95 |",
        "| edgespec | 189.0 | 2.10 (1.90 to 2.30) | 6 of 8 |",
        "edgespec over llama-server: 1.20.",
        "- transformers is left out: there is none",
    ):
        assert expected in text
    assert "rehearsal" not in text


def test_curves_for_the_simulator() -> None:
    twice = {n: 2 * ms for n, ms in CURVE.items()}
    curves = {"256": CURVE, "256, first": twice, "256, second": CURVE, "4096": CURVE}
    value = {**curves, "MB of weights": 700, "threads": 4, "version": "llama-cpp-python 1"}
    items = {
        "8B Q4_0": {"state": "done", "value": value},
        "8B F16": {"state": "left out", "error": "no room"},
        "host, 8B Q4_0": {"state": "done", "value": HOST},
    }
    (line,) = measured({"machine": {**FACTS, "card": {"name": "a card"}}, "steps": {"prices": items}}, "2026-12-31")
    assert (line.model, line.weights, line.machine, line.threads) == ("8B", "q4_0", "a card", 4)
    assert line.curve(4096).prices[8:10] == (1.5, 1.5)
    card = cards.curve(line)
    assert card.prices[8:10] == (1.5, 1.5)
    assert [prices[0] for prices in card.in_a_row] == [2.0, 1.0, 1.0], "of the first, the second and later plain steps"


def test_the_page_of_a_run_that_has_not_begun() -> None:
    assert "A rehearsal without a card" in page.text({"machine": FACTS})
    assert page.text({}).startswith("# edgespec on a graphics card")
