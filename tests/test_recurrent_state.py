"""The bytes of recurrent states, their copies in the plan, and heads in a file, by headers of published shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from edgespec.backends.gguf_header import Header, HeaderVocabulary, Tensor
from edgespec.backends.recurrent_state import Copies, recurrent_layers, state_bytes
from edgespec.errors import OptionError
from edgespec.models import draft_head, fit, runtime_support
from edgespec.models.fit import ALL, Requested
from edgespec.models.memory import Gpu, MachineMemory
from edgespec.models.sizes import Layer, Sizes, of_header

GB = 1 << 30
DELTA = {"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16}

#: 40 windowed layers of 8 heads of 256, 8 others of one head of 512.
GEMMA4_12B: Mapping[str, Any] = {
    "attention.head_count": 16,
    "attention.head_count_kv": (8, 8, 8, 8, 8, 1) * 8,
    "attention.key_length": 512,
    "attention.value_length": 512,
    "attention.key_length_swa": 256,
    "attention.value_length_swa": 256,
    "attention.sliding_window": 1024,
    "attention.sliding_window_pattern": (True, True, True, True, True, False) * 8,
}


def shaped(architecture: str, layers: int, fields: Mapping[str, Any], *tensors: str, kind: int = 0) -> Header:
    """A header with these fields of the architecture, and with tensors of 4 bytes."""
    of_architecture = {f"{architecture}.{key}": value for key, value in {"block_count": layers, **fields}.items()}
    found = {name: Tensor((1,), kind, 4 * i) for i, name in enumerate(tensors)}
    return Header({"general.architecture": architecture, **of_architecture}, HeaderVocabulary(()), found, 0)


def qwen(
    layers: int, inner: int, more: Mapping[str, Any] | None = None, *, head: int = 0, architecture: str = "qwen35"
) -> Header:
    names = (
        *(f"blk.{i}.attn_norm.weight" for i in range(layers)),
        *(head * [f"blk.{layers - 1}.nextn.eh_proj.weight"]),
    )
    fields = {"ssm.inner_size": inner, "nextn_predict_layers": head, **DELTA, **(more or {})}
    return shaped(architecture, layers, fields, *names)


@pytest.mark.parametrize(
    ("head", "bytes_", "recurrent"),
    [
        (qwen(24, 2048), 20_201_472, 18),
        (qwen(32, 4096, {"full_attention_interval": 4}), 52_690_944, 24),  # as llama.cpp allocates it
        (qwen(33, 4096, head=1), 52_690_944, 24),
        (qwen(65, 6144, head=1), 156_893_184, 48),
        (qwen(41, 4096, head=1, architecture="qwen35moe"), 65_863_680, 30),
        (shaped("lfm2", 16, {"embedding_length": 2048, "shortconv.l_cache": 3,
                             "attention.head_count_kv": (0, 0, 8) * 3 + (0, 8) * 3 + (0,)}), 163_840, 10),
        (shaped("granitehybrid", 40, {**DELTA, "ssm.group_count": 1, "ssm.inner_size": 3072,
                                      "attention.head_count_kv": (0,) * 36 + (4,) * 4}), 58_060_800, 36),
        (shaped("nemotron_h", 4, {**DELTA, "ssm.group_count": 8, "ssm.inner_size": 4096,
                                  "attention.head_count_kv": (0, 2, 0, 0), "feed_forward_length": (0, 0, 9, 0)}),
         2 * 4 * (3 * (4096 + 2048) + 128 * 4096), 2),
        (shaped("mamba2", 2, {**DELTA, "ssm.group_count": 1, "ssm.inner_size": 512}),
         2 * 4 * (3 * 768 + 128 * 512), 2),
        (shaped("rwkv7", 2, {"embedding_length": 64, "wkv.head_size": 16, "token_shift_count": 2}),
         2 * 4 * 64 * 18, 2),
        (shaped("kimi-linear", 2, {"kda.head_dim": 8, "attention.head_count": 2, "ssm.conv_kernel": 4,
                                   "attention.head_count_kv": (0, 2)}), 4 * 2 * 8 * (9 + 8), 1),
        (shaped("llama", 4, {"attention.head_count_kv": (2, 0, 2, 2), "embedding_length": 64}), 0, 0),
        (shaped("qwen35", 4, {"ssm.inner_size": -5000, **DELTA}), 0, 0),
        (Header({}, HeaderVocabulary(()), {}, 0), 0, 0),
    ],
)  # fmt: skip
def test_a_copy_of_a_state_has_the_bytes_that_llama_cpp_allocates(head: Header, bytes_: int, recurrent: int) -> None:
    assert sum(state_bytes(head)) == bytes_
    assert recurrent_layers(head).count(True) == recurrent
    assert len(state_bytes(head)) == head.layers


def test_layers_with_a_state_may_be_listed() -> None:
    head = qwen(4, 256, {"attention.recurrent_layers": (True, False, False, True)})
    assert recurrent_layers(head) == (True, False, False, True)
    odd = qwen(4, 256, {"attention.recurrent_layers": (True,)})
    assert recurrent_layers(odd) == (True, True, True, False), "a list of another length is none"


# --- what they add to sizes and plans

ATTENTION = {"attention.head_count": 24, "attention.head_count_kv": 4, "attention.key_length": 256,
             "attention.value_length": 256, "embedding_length": 5120, "context_length": 262144}  # fmt: skip


def test_recurrent_layers_and_unused_heads_have_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    head = qwen(65, 6144, ATTENTION, head=1)
    used = of_header(head, 66 * 4)
    assert (used.cache, used.weights, used.head_layers) == (65536 + 4096, 66 * 4, 1)
    monkeypatch.setattr(runtime_support, "HEADS", set())
    found = of_header(head, 66 * 4)
    assert replace(used.without_head(), trained=0) == replace(found, trained=0)
    assert found.without_head() is found
    assert found.cache == 65536, "of 16 layers"
    assert found.copies == Copies(156_893_184, 3, 1)
    assert found.weights == 64 * 4, "the head stays on the disk"
    assert [layer.weights for layer in found.layers[-3:]] == [4, 0, 0]
    assert [layer.cache for layer in found.layers[:4]] == [0, 0, 0, 4096]
    assert [layer.state > 0 for layer in found.layers[:5]] == [True, True, True, False, True]


def test_a_model_without_attention_has_no_cache() -> None:
    assert of_header(shaped("mamba2", 2, {**DELTA, "ssm.inner_size": 512}), 100).cache == 0
    both = {**DELTA, **ATTENTION, "ssm.inner_size": 512}
    assert of_header(shaped("falcon-h1", 2, both), 100).cache == 2 * 4096, "each layer has both"


def test_windowed_layers_have_heads_of_their_own_width() -> None:
    """E models share caches."""
    caches = shaped("gemma4", 48, GEMMA4_12B).cache()
    assert caches is not None
    assert sum(caches[:5]) * 8 == 327_680
    assert caches[5] == 2 * 1024
    shared = shaped("gemma4", 48, {**GEMMA4_12B, "attention.shared_kv_layers": 20}).cache()
    assert shared is not None
    assert (shared[:28], shared[28:]) == (caches[:28], (0,) * 20)


def hybrid() -> Sizes:
    """A model of 4 GB of weights whose state has 1 MB in each of 30 layers."""
    each = 4 * GB // 41
    layers = [Layer(each, 1024) if i % 4 == 3 else Layer(each, state=1 << 20) for i in range(40)]
    return Sizes(41 * each, (*layers, Layer(each)), 10 * 1024, GB // 4, 32768, Copies(30 << 20, 8, 2))


def test_copies_are_counted_where_their_layers_are() -> None:
    plan = fit.choose(hybrid(), None, MachineMemory(8 * GB), Requested())
    assert plan.state == 11 * (30 << 20), "nine, and two that are saved"
    assert plan.copies == 9
    assert plan.needed == plan.in_ram == plan.weights + (plan.cache or 0) + plan.buffers + plan.state
    on_gpu = fit.choose(hybrid(), None, MachineMemory(8 * GB, (Gpu(8 * GB),)), Requested())
    assert on_gpu.gpu_layers == ALL
    assert on_gpu.in_ram == 60 << 20, "the saved states are in the CPU's memory"
    half = fit.choose(hybrid(), None, MachineMemory(8 * GB, (Gpu(3 * GB),)), Requested())
    assert 0 < half.gpu_layers < 41
    assert half.on_gpu + half.in_ram == half.needed + half.buffers, "buffers are on both"


def test_a_draft_keeps_a_spare_copy_only() -> None:
    target = replace(hybrid(), copies=None, layers=())
    plan = fit.choose(target, hybrid(), MachineMemory(16 * GB), Requested())
    assert plan.state == (2 + 2) * (30 << 20)
    assert plan.copies == 0


def test_states_that_do_not_fit_are_part_of_the_message() -> None:
    with pytest.raises(OptionError, match=r"takes 799.0 MB besides the weights"):
        fit.choose(hybrid(), None, MachineMemory(GB // 2), Requested(16384))
    without = replace(hybrid(), copies=None)
    assert fit.choose(without, None, MachineMemory(GB // 2), Requested(16384)).context == 16384


# --- heads


def test_a_head_is_found_by_the_header() -> None:
    assert draft_head.has_head(qwen(33, 4096, head=1))
    assert not draft_head.has_head(qwen(32, 4096))
    lacking = shaped("qwen35", 4, {"nextn_predict_layers": 1}, "blk.0.attn_norm.weight")
    assert not draft_head.has_head(lacking), "the key alone is no head"
    alone = shaped("qwen35", 33, {"nextn_predict_layers": 1}, "blk.32.nextn.eh_proj.weight", "token_embd.weight")
    assert draft_head.is_alone(alone)
    assert not draft_head.has_head(alone)
    assert draft_head.is_alone(shaped("gemma4-assistant", 4, {"nextn_predict_layers": 4}, "blk.0.attn_q.weight"))
    assert not draft_head.is_alone(qwen(33, 4096, head=1))
    assert not draft_head.is_alone(shaped("llama", 1, {}, "blk.0.attn_norm.weight"))
