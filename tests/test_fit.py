"""What fits into memory: heads of GGUF files, sizes, and the plan made of them; against what llama.cpp allocates."""

from __future__ import annotations

import logging
import os
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest

from edgespec.backends import Device, Interrupt, open_model
from edgespec.backends.gguf_header import header
from edgespec.errors import ModelFileError, OptionError
from edgespec.models import fit, memory
from edgespec.models.fit import ALL, Requested, choose
from edgespec.models.memory import Gpu, MachineMemory, machine_memory, used_by_llamacpp
from edgespec.models.sizes import Layer, Sizes, size_of, sizes

GB = 1 << 30
#: 8 GB of weights in 32 layers of 7 GB, an output of half, embeddings of half; half a GB of cache for 4096 tokens.
TARGET = Sizes(
    8 * GB, (*[Layer(7 * GB // 32, 4096)] * 32, Layer(GB // 2)), cache=32 * 4096, buffers=GB // 4, trained=32768
)
#: Half a GB, whose output is its embeddings: 1/8 GB there as here.
DRAFT = Sizes(
    GB // 2,
    (*[Layer(GB // 64, 1024)] * 24, Layer(GB // 8, copied=True)),
    cache=24 * 1024,
    buffers=GB // 8,
    trained=32768,
)


# --- heads


def written(path: Path, fields: Callable[[gguf.GGUFWriter], None], architecture: str = "llama") -> Path:
    """A GGUF file with these fields, and two tensors of 256 and 64 bytes."""
    writer = gguf.GGUFWriter(path, architecture)
    fields(writer)
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((8, 8), np.float32))
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shaped(writer: gguf.GGUFWriter) -> None:
    writer.add_block_count(3)
    writer.add_embedding_length(64)
    writer.add_head_count(8)
    writer.add_context_length(2048)
    writer.add_feed_forward_length(128)


def test_a_head_says_what_the_reader_of_gguf_does(tmp_path: Path) -> None:
    def fields(writer: gguf.GGUFWriter) -> None:
        shaped(writer)
        writer.add_name("Ünder")
        writer.add_token_list(["a", "b", "ö", "<s>"])
        writer.add_token_scores([0.5] * 5000)
        writer.add_token_merges(["a b"] * 10)
        writer.add_chat_template("{{ messages }}")
        writer.add_array("x.flags", [True, False])
        writer.add_float64("x.ratio", 0.25)

    path = written(tmp_path / "x.gguf", fields)
    head = header(path)
    assert (head.name, head.template, head.layers) == ("Ünder", "{{ messages }}", 3)
    assert [head.vocabulary.label(i) for i in range(head.vocabulary.size)] == ["a", "b", "ö", "<s>"]
    assert (head.fields["x.ratio"], head.fields["x.flags"]) == (0.25, (True, False))
    assert head.fields["tokenizer.ggml.scores"] is None, "long arrays are left"
    theirs = gguf.GGUFReader(path)
    assert head.length == theirs.data_offset
    assert set(head.fields) | {"tokenizer.ggml.tokens"} == {key for key in theirs.fields if not key.startswith("GGUF.")}
    assert head.tensor_sizes(path.stat().st_size) == {each.name: int(each.n_bytes) for each in theirs.tensors}


def test_heads_may_differ_by_layer(tmp_path: Path) -> None:
    def arrays(writer: gguf.GGUFWriter) -> None:
        shaped(writer)
        writer.add_head_count_kv([2, 0, 4])
        writer.add_key_length(16)
        writer.add_value_length(8)

    assert header(written(tmp_path / "a.gguf", arrays)).cache() == (2 * 2 * 24, 0, 2 * 4 * 24)
    assert header(written(tmp_path / "b.gguf", shaped)).cache() == (2 * 8 * 16,) * 3, "as many as queries have"
    assert header(written(tmp_path / "c.gguf", lambda _w: None)).cache() is None

    def two(writer: gguf.GGUFWriter) -> None:
        shaped(writer)
        writer.add_head_count_kv([1, 2])

    assert header(written(tmp_path / "d.gguf", two)).cache() is None, "two for three layers"


@pytest.mark.parametrize("cut", [0, 3, 4, 12, 100, 5000, 130_000])
def test_half_a_head_is_no_head(small_pair: dict[str, Path], tmp_path: Path, cut: int) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(small_pair["draft"].read_bytes()[:cut])
    with pytest.raises(ModelFileError, match=r"half.gguf is (truncated|no GGUF)"):
        header(path)


@pytest.mark.parametrize("at", [8, 16, 24])
def test_a_head_of_nonsense_is_told(small_pair: dict[str, Path], tmp_path: Path, at: int) -> None:
    path = tmp_path / "odd.gguf"
    content = small_pair["draft"].read_bytes()
    path.write_bytes(content[:at] + struct.pack("<Q", 1 << 62) + content[at + 8 :])
    with pytest.raises(ModelFileError, match="fetch it again"):
        header(path)
    with pytest.raises(ModelFileError, match="cannot be opened"):
        header(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="cannot be opened"):
        header(tmp_path / f"{'x' * 300}.gguf")
    with pytest.raises(ModelFileError, match="is not a file"):
        header(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such pipes on Windows")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="is not a file"):
        header(tmp_path / "pipe.gguf")


def test_a_vocabulary_is_labelled_as_llama_cpp_does(small_pair: dict[str, Path]) -> None:
    model = open_model(small_pair["draft"], Device(), Interrupt())
    ours = header(small_pair["draft"])
    assert ours.vocabulary.size == model.vocabulary.size
    labels = [model.vocabulary.label(token) for token in range(model.vocabulary.size)]
    assert [ours.vocabulary.label(token) for token in range(ours.vocabulary.size)] == labels
    assert ours.template == model.vocabulary.template
    model.close()


# --- sizes


@pytest.mark.parametrize("context", [512, 2048])
def test_sizes_are_what_llama_cpp_allocates(
    small_pair: dict[str, Path], caplog: pytest.LogCaptureFixture, context: int
) -> None:
    """Weights and cache to a hundredth of a MiB, buffers enough and not twice too many."""
    caplog.set_level(logging.DEBUG, "edgespec.llama")
    model = open_model(small_pair["target"], Device(gpu_layers=0), Interrupt())
    model.session(context).close()
    model.close()

    def logged(what: str) -> float:
        found = re.findall(rf"{what} buffer size = +([\d.]+) MiB", caplog.text)
        return sum(map(float, found)) * 2**20

    found = sizes(small_pair["target"])
    assert found.cache is not None
    assert context * found.cache == pytest.approx(logged("KV"), abs=1e4)
    assert found.weights == small_pair["target"].stat().st_size == pytest.approx(logged("model"), rel=0.02)
    assert logged("compute") + logged("output") < found.computing(context) < 2 * logged("compute")
    assert found.trained == 2048


def test_layers_and_output_are_counted_apart(tmp_path: Path, small_pair: dict[str, Path]) -> None:
    found = sizes(small_pair["target"])
    assert len(found.layers) == 5
    assert len({layer.weights for layer in found.layers[:4]}) == 1
    tensors = header(small_pair["target"]).tensor_sizes(small_pair["target"].stat().st_size)
    output = tensors["output_norm.weight"] + tensors["token_embd.weight"]
    assert found.layers[-1] == Layer(output, copied=True)
    tied = written(tmp_path / "tied.gguf", shaped)
    assert sizes(tied).layers == (
        Layer(256, 2 * 8 * 16),
        Layer(0, 2 * 8 * 16),
        Layer(0, 2 * 8 * 16),
        Layer(64, copied=True),
    )
    vocabulary = written(tmp_path / "vocabulary.gguf", lambda _w: None)
    assert sizes(vocabulary) == Sizes(vocabulary.stat().st_size)


def test_parts_count_together(tmp_path: Path) -> None:
    def fields(writer: gguf.GGUFWriter) -> None:
        shaped(writer)
        writer.add_uint16("split.count", 3)

    first = written(tmp_path / "x-q4-00001-of-00003.gguf", fields)
    for n in (2, 3):
        (tmp_path / f"x-q4-0000{n}-of-00003.gguf").write_bytes(b"x" * 1000)
    whole = first.stat().st_size + 2000
    assert size_of(first) == whole
    assert [layer.weights for layer in sizes(first).layers] == [whole // 4] * 4


def test_of_an_onnx_model(onnx_folders: Callable[[str], Path]) -> None:
    folder = onnx_folders("int8")
    found = sizes(folder)
    assert found == sizes(folder / "model.onnx")
    assert found.weights == (folder / "model.onnx.data").stat().st_size
    assert found.layers == ()
    half = sizes(onnx_folders("fp16"))
    assert found.cache == 2 * (half.cache or 0) > 0
    assert size_of(folder) > size_of(folder / "model.onnx") > found.weights


# --- the plan


def test_on_the_cpu_alone_all_that_is_free_counts() -> None:
    plan = choose(TARGET, DRAFT, MachineMemory(12 * GB), Requested())
    assert plan.fits
    assert (plan.context, plan.shortened, plan.gpu_layers, plan.draft_gpu_layers) == (4096, False, ALL, ALL)
    assert plan.weights == 8.5 * GB
    assert plan.cache == 4096 * (32 * 4096 + 24 * 1024)
    assert plan.buffers == 3 * GB // 8 + 2 * 4096 * 1024
    assert plan.needed == plan.in_ram == plan.weights + plan.cache + plan.buffers
    assert plan.on_gpu == 0
    alone = choose(TARGET, None, MachineMemory(12 * GB), Requested())
    assert alone.needed == 8 * GB + 4096 * 32 * 4096 + GB // 4 + 4096 * 1024


def test_a_context_is_cut_to_what_fits_unless_it_was_asked_for() -> None:
    needed = choose(TARGET, DRAFT, MachineMemory(12 * GB), Requested()).needed
    tight = MachineMemory(needed + (100 << 20))
    plan = choose(TARGET, DRAFT, tight, Requested())
    assert plan.fits
    assert plan.shortened
    assert plan.context % 256 == 0
    assert plan.context == fit.longest(TARGET, DRAFT, tight)
    assert not choose(TARGET, DRAFT, tight, Requested(plan.context + 256)).fits
    asked = choose(TARGET, DRAFT, tight, Requested(4096))
    assert (asked.context, asked.fits) == (4096, False)
    assert choose(replace(TARGET, trained=1000), DRAFT, MachineMemory(12 * GB), Requested()).context == 1000
    assert choose(replace(TARGET, trained=0), DRAFT, MachineMemory(12 * GB), Requested()).context == 4096


def test_weights_that_do_not_fit_may_stay_on_the_disk_and_nothing_else() -> None:
    short = choose(TARGET, DRAFT, MachineMemory(4 * GB), Requested())
    assert not short.fits
    assert short.context == 4096, "less context would not help"
    assert short.lacking == short.needed + (200 << 20) - 4 * GB
    assert short.largest < 4 * GB < short.largest + (1 << 30) + (200 << 20) + (short.cache or 0)
    with pytest.raises(OptionError, match=r"a context of 32768 tokens takes .* GB besides the weights.*--ctx \d+ fits"):
        choose(replace(TARGET, weights=GB, layers=()), None, MachineMemory(3 * GB), Requested(32768))
    with pytest.raises(OptionError, match="give a smaller --ctx"):
        choose(TARGET, None, MachineMemory(4 * GB), Requested(32768))
    with pytest.raises(OptionError, match=r"a context of 512 tokens .*take a smaller model"):
        choose(TARGET, DRAFT, MachineMemory(3 * GB // 8), Requested())


def test_an_unknown_cache_is_not_made_up() -> None:
    plan = choose(replace(TARGET, cache=None, layers=()), DRAFT, MachineMemory(12 * GB), Requested())
    assert plan.cache is None
    assert plan.fits


@pytest.mark.parametrize(
    ("gpus", "layers", "drafts"),
    [
        ([24], ALL, ALL),
        ([10.5], ALL, ALL),
        ([6], 18, ALL),
        ([2], 1, ALL),
        ([1.5], 0, ALL),
        ([1], 0, 0),
        ([0.2], 0, 0),
        ([6, 6], ALL, ALL),
        ([3, 3], 15, ALL),
    ],
)
def test_the_draft_goes_on_the_gpu_first_and_whole(gpus: list[float], layers: int, drafts: int) -> None:
    plan = choose(TARGET, DRAFT, MachineMemory(16 * GB, tuple(Gpu(int(each * GB)) for each in gpus)), Requested())
    assert (plan.gpu_layers, plan.draft_gpu_layers) == (layers, drafts)
    assert plan.fits
    assert (plan.on_gpu > 0) == bool(layers or drafts)
    assert plan.on_gpu <= max(0, sum(gpus) * GB - len(gpus) * (400 << 20))
    # Every layer is somewhere once; embeddings twice, buffers on each GPU and the CPU.
    assert plan.on_gpu + plan.in_ram >= plan.weights + (plan.cache or 0)
    assert plan.layers == 33


def test_what_is_on_a_gpu_needs_no_other_memory() -> None:
    plan = choose(TARGET, DRAFT, MachineMemory(2 * GB, (Gpu(24 * GB),)), Requested(32768))
    assert plan.fits
    assert plan.in_ram == GB // 2 + (GB // 2 - 24 * GB // 64), "embeddings"
    assert not choose(TARGET, DRAFT, MachineMemory(2 * GB, (Gpu(4 * GB),)), Requested()).fits


def test_a_gpu_that_shares_the_cpus_memory_adds_none() -> None:
    shared = MachineMemory(12 * GB, (Gpu(11 * GB, shared=True),))
    plan = choose(TARGET, DRAFT, shared, Requested())
    assert (plan.gpu_layers, plan.draft_gpu_layers, plan.fits) == (ALL, ALL, True)
    assert plan.in_ram > plan.on_gpu > 8 * GB
    assert not choose(TARGET, DRAFT, MachineMemory(8 * GB, (Gpu(8 * GB, shared=True),)), Requested()).fits
    assert choose(TARGET, DRAFT, MachineMemory(8 * GB, (Gpu(8 * GB),)), Requested()).fits
    assert fit.room(shared) == 12 * GB - (200 << 20)
    assert fit.room(replace(shared, gpus=(Gpu(11 * GB),))) == 23 * GB - (600 << 20)


def test_integrated_gpus_count_only_where_there_is_no_other() -> None:
    one, other = Gpu(GB, shared=True), Gpu(2 * GB)
    assert used_by_llamacpp((one, other)) == (other,)
    assert used_by_llamacpp((one, one)) == (one,)
    assert used_by_llamacpp(()) == ()
    assert used_by_llamacpp((one, Gpu(0))) == (), "it does not tell"


def test_llamacpps_devices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the installed bindings: by the number of its kind the processor, which every machine has, is a GPU here."""
    monkeypatch.setattr(memory, "_GPU", 0)
    found = memory.machine_memory().gpus
    assert len(found) == 1
    assert 0 < found[0].free <= psutil.virtual_memory().total


def test_layers_that_are_asked_for_are_honoured_or_refused() -> None:
    free = MachineMemory(16 * GB, (Gpu(6 * GB),))

    def chosen(*asked: int | None) -> tuple[int, int]:
        plan = choose(TARGET, DRAFT, free, Requested(0, *asked))
        return plan.gpu_layers, plan.draft_gpu_layers

    assert chosen(10) == (10, ALL)
    assert chosen(0) == (0, 0), "no GPU is no GPU"
    assert chosen(0, ALL) == (0, ALL)
    assert chosen(20) == (20, 0), "the target's come first then, and the draft has no room"
    assert chosen(None, 0) == (21, 0)
    assert chosen(10, 99) == (10, ALL)
    with pytest.raises(OptionError, match=r"33 layers on the GPU take 8.\d\d GB, and 6.02 GB are free there; 21 fit"):
        chosen(ALL)
    with pytest.raises(OptionError, match="give fewer --gpu-layers"):
        chosen(20, ALL)


def test_heads_that_are_no_numbers_are_not_known(tmp_path: Path) -> None:
    def odd(writer: gguf.GGUFWriter) -> None:
        shaped(writer)
        writer.add_array("llama.attention.head_count_kv", [0.5, 0.5, 0.5])
        writer.add_key_length(16)
        writer.add_value_length(8)

    assert header(written(tmp_path / "a.gguf", odd)).cache() == (2 * 8 * 24,) * 3, "as if it were not there"


def test_without_a_gpu_what_was_asked_is_the_engines_to_refuse() -> None:
    plan = choose(TARGET, DRAFT, MachineMemory(16 * GB), Requested(0, 5, 7))
    assert (plan.gpu_layers, plan.draft_gpu_layers) == (5, 7)
    onnx = choose(replace(TARGET, layers=()), None, MachineMemory(16 * GB, (Gpu(24 * GB),)), Requested())
    assert (onnx.gpu_layers, onnx.on_gpu) == (ALL, 0)
    kept = choose(replace(TARGET, layers=()), None, MachineMemory(16 * GB, (Gpu(24 * GB),)), Requested(0, 0))
    assert kept.gpu_layers == 0


def test_this_machine_has_memory(small_pair: dict[str, Path]) -> None:
    assert machine_memory().free > 0
    plan = fit.plan(small_pair["target"], small_pair["draft"])
    assert plan.fits
    assert plan.context == 2048
    assert plan.weights == sum(path.stat().st_size for path in small_pair.values())


def test_a_file_that_ends_before_its_last_tensor(small_pair: dict[str, Path], tmp_path: Path) -> None:
    """Its head is whole, and would promise that all of it fits."""
    whole = small_pair["target"].read_bytes()
    short = tmp_path / "short.gguf"
    short.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match=r"is truncated: at least \d\.\d MB"):
        header(short)
    short.write_bytes(whole)
    assert header(short).tensors
