"""The recurrent state of a model: its bytes by layer, and how many copies of it a session keeps.

Rejected tokens are taken back by returning to an earlier copy of the state. The formulas are those of llama.cpp
(llama-hparams.cpp, n_embd_r and n_embd_s); states are kept in 32-bit numbers.
"""

from __future__ import annotations

from edgespec.backends.gguf_header import Header

from .draft_head import head_layers

#: Architectures of which llama.cpp keeps snapshots of the state within a pass (`llm_arch_supports_rs_rollback`).
_SNAPSHOTS = (
    *("qwen35", "qwen35moe", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"),
    *("kimi-k3", "qwen4exp", "deepseek4", "glm5-next", "bailingmoe3"),
)
_SMALL_STATES = ("lfm2", "lfm2moe")  # a copy has 0.3 MB
_SNAPSHOT_COPIES, _SMALL_COPIES = 1 + 8, 1 + 32
_SPARE_COPIES = 2  # the state itself, and the one before the last pass in a spare sequence
DRAFT_COPIES = _SPARE_COPIES  #: of a draft model, whose passes are too narrow for snapshots
SAVED_COPIES = 1  #: in the CPU's memory, of the end of the last prompt

_BOTH = ("falcon-h1",)  # each layer has a state and attention
_ALL_RECURRENT = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", *_BOTH)
_INTERVALS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}  # llama.cpp's, where the file has none
_BYTES = 4


def default_copies(architecture: str) -> int:
    """The copies of the state that a session of a target keeps, unless it is told another number."""
    if architecture in _SMALL_STATES:
        return _SMALL_COPIES
    return _SNAPSHOT_COPIES if architecture in _SNAPSHOTS else _SPARE_COPIES


def state_bytes(head: Header) -> tuple[int, ...]:
    """Bytes of one copy of one sequence's state in each layer; 0 in layers of attention."""
    one = _BYTES * max(0, _numbers(head))
    return tuple(one * recurrent for recurrent in recurrent_layers(head))


def recurrent_layers(head: Header) -> tuple[bool, ...]:
    """Which layers have a recurrent state."""
    layers, attention = head.layers, head.layers - head_layers(head)
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
