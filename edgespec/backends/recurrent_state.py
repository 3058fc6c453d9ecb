"""The recurrent state of a model: its bytes by layer, and how many copies of it a session keeps.

Rejected tokens are taken back by returning to an earlier copy of the state. The formulas are those of llama.cpp
(llama-hparams.cpp, n_embd_r and n_embd_s); states are kept in 32-bit numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from .gguf_header import Header

#: Architectures whose state is in llama_memory_recurrent alone, or with a plain KV cache. Others keep more beside it,
#: such as the cells of an indexer.
_WITHOUT_SNAPSHOTS = ("falcon-h1", "granitehybrid", "jamba", "mamba", "mamba2", "plamo2", "qwen3next")
#: llama.cpp takes a request for snapshots of a model of another architecture for none, without a message.
_WITH_SNAPSHOTS = ("lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe")
SUPPORTED = (*_WITHOUT_SNAPSHOTS, *_WITH_SNAPSHOTS)

_SNAPSHOTS_BYTES = 512 << 20  # for all snapshots together, as far as that allows the fewest
_FEWEST, _MOST, _OF_SMALL = 3, 8, 32  # snapshots
_SMALL = 1 << 20  # bytes of a state that costs nothing
_TWICE = 64 << 20  # bytes of the largest state of which two are saved

_BOTH = ("falcon-h1",)  # each layer has a state and attention
_ALL_RECURRENT = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", *_BOTH)
_INTERVALS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}  # llama.cpp's, where the file has none
_BYTES = 4


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of a state of `size` bytes that a session has.

    Args:
        snapshots: states kept by llama.cpp beside the present one; 0 for a spare sequence.
        saved: states kept in the memory of the CPU.
    """

    size: int
    snapshots: int
    saved: int

    @classmethod
    def of(cls, architecture: str, size: int, *, drafts: bool) -> Copies:
        """The copies for a model with a state of `size` bytes. Snapshots do not help draft models (`drafts`), whose
        passes are single tokens."""
        saved = 2 if size <= _TWICE else 1
        if drafts or architecture not in _WITH_SNAPSHOTS:
            return cls(size, 0, saved)
        if size <= _SMALL:
            return cls(size, _OF_SMALL, saved)
        return cls(size, max(_FEWEST, min(_MOST, _SNAPSHOTS_BYTES // size - 1)), saved)

    @property
    def in_context(self) -> int:
        """States in the engine's context: the present one, and snapshots or the spare sequence's."""
        return 1 + (self.snapshots or 1)


def state_bytes(head: Header) -> tuple[int, ...]:
    """Bytes of one copy of one sequence's state in each layer; 0 in layers of attention."""
    one = _BYTES * max(0, _numbers(head))
    return tuple(one * recurrent for recurrent in recurrent_layers(head))


def recurrent_layers(head: Header) -> tuple[bool, ...]:
    """Which layers have a recurrent state."""
    layers, attention = head.layers, head.layers - head.number("nextn_predict_layers")
    if _numbers(head) <= 0:
        return (False,) * layers
    if head.architecture in _ALL_RECURRENT:
        return (True,) * layers
    listed = head.fields.get(head.key("attention.recurrent_layers"))
    if isinstance(listed, tuple) and len(listed) == layers:
        return tuple(bool(each) for each in listed)
    if interval := head.number("full_attention_interval") or _INTERVALS.get(head.architecture, 0):
        return tuple(i < attention and (i + 1) % interval != 0 for i in range(layers))
    # A layer of Nemotron models is either attention, or recurrent, or an MLP.
    widths = _listed(head, "feed_forward_length") if head.architecture.startswith("nemotron_h") else None
    groups = _listed(head, "attention.head_count_kv") or (1,) * layers
    return tuple(not heads and not width for heads, width in zip(groups, widths or (0,) * layers, strict=True))


def has_attention_too(head: Header) -> bool:
    """Whether the recurrent layers of the model have attention, too."""
    return head.architecture in _BOTH


def _listed(head: Header, key: str) -> tuple[int, ...] | None:
    """The numbers at `key`, one for each layer."""
    found = head.by_layer(key)
    return found if found is not None and len(found) == head.layers else None


def _numbers(head: Header) -> int:
    """The numbers in the state of a layer."""
    width, kernel = head.number("embedding_length"), head.number("ssm.conv_kernel")
    if window := head.number("shortconv.l_cache"):
        return width * (window - 1)
    if size := head.number("wkv.head_size"):
        return width * (head.number("token_shift_count") + size)
    if size := head.number("kda.head_dim"):
        heads = max(head.by_layer("attention.head_count") or (0,))
        return heads * size * (3 * ((kernel or 4) - 1) + size)
    inner, state = head.number("ssm.inner_size"), head.number("ssm.state_size")
    return max(0, kernel - 1) * (inner + 2 * head.number("ssm.group_count") * state) + state * inner
