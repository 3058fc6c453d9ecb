"""Tiny Hugging Face checkpoints, made on the spot: random weights, real tokenizers.

    llama(folder, tokenizer="qwen2", heads=4, kv_heads=2, rope={"rope_type": "linear", "factor": 2.0})

The weights are drawn so that the logits are far apart: greedy text of two implementations can be compared.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

Raw = tuple[str, tuple[int, ...], bytes]  # dtype, shape, data
Json = dict[str, Any]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Not special by their flag, but to llama.cpp.
FILLING = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = "<tool>"

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind: it's used to that by now.",
    "I'll book a table for 2 at 19:30 on 2024-02-29; that's $45.60 each, isn't it? They've said they'd call.",
    "In 1234567 cases out of 10000000 there's nothing to do. Numbers: 1 12 123 1234 12345 007 3.14159",
    "def add(a, b):\n    return a + b\n\n\nclass Point:\n\tx: int = 0\n\ty: int = 0\n",
    "Grüße aus München! Ça va? El niño comió piñas. Žluťoučký kůň. Łódź, Århus, İstanbul.",
    "Привет, мир! Как дела? Всё хорошо, спасибо.",
    "你好，世界！今天天气很好。こんにちは、世界。안녕하세요 세계.",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดี",
    "WE'RE SHOUTING AND CAN'T STOP: IT'S WHAT WE'VE ALWAYS DONE!!! ??? ...",
    "emoji 😀 😃 👍🏽 👩‍👩‍👧 and symbols → ∑ ≤ € § “quotes” — dashes…",
    "  indented   text\twith tabs \n\n and  \r\n line ends\n",
)

# The regular expressions, normalizers and flags of added tokens are those of the models' own files: Llama 3, Qwen3,
# GPT-4o (Phi-4-mini's), GPT-4 (OLMo 2's), Mistral's tekken.json, Gemma 3, Phi-3.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BY_CASE = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = _BY_CASE % (*["(?i:'s|'t|'re|'ve|'m|'ll|'d)?"] * 2, r"\p{N}{1,3}")
_TEKKEN = _BY_CASE % ("", "", r"\p{N}")
# Qwen3.5's: combining marks belong to words.
_QWEN35 = _QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
BYTE_LEVEL = ("gpt-2", "llama-3", "qwen2", "qwen3", "qwen35", "smollm", "cl100k", "o200k", "tekken")
GEMMA_SIZE = 602
SENTENCEPIECE = ("spm-model", "spm-json", "spm-both")


_KINDS = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "BOOL": np.bool_}


def bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounded down to the 16 upper bits: for random weights that is as good as rounding to nearest."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[Any] | Raw]) -> None:
    """One safetensors file. Arrays are of `_KINDS`; all else is given as (dtype, shape, bytes)."""
    names = {np.dtype(kind): name for name, kind in _KINDS.items()}
    raw = {
        name: tensor if isinstance(tensor, tuple) else (names[tensor.dtype], tensor.shape, tensor.tobytes())
        for name, tensor in tensors.items()
    }
    header, offset = {}, 0
    for name, (dtype, shape, data) in raw.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in raw.values():
            file.write(data)


def stored(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any] | Raw:
    if dtype == "BF16":
        return "BF16", values.shape, bfloat16(values).tobytes()
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype])


def byte_level(kind: str, size: int = 700, corpus: tuple[str, ...] = CORPUS) -> Any:
    """A byte-level BPE trained on `corpus` with one of the ways of cutting text in BYTE_LEVEL."""

    tokenizer = Tokenizer(models.BPE())
    bare = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = {
        "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "smollm": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
        "llama-3": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_LLAMA3), "isolated"), bare]),
        "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_QWEN2), "isolated"), bare]),
        "qwen3": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_QWEN2), "isolated"), bare]),
        "qwen35": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_QWEN35), "isolated"), bare]),
        "cl100k": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_LLAMA3), "removed", invert=True), bare]),
        "o200k": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_O200K), "removed", invert=True), bare]),
        "tekken": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_TEKKEN), "isolated"), bare]),
    }[kind]
    if kind in {"qwen2", "qwen3", "qwen35"}:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus * 3, trainer)
    added = (USER_DEFINED, *(FILLING if kind == "qwen3" else ()))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    return tokenizer


@cache
def byte_level_json(kind: str, size: int = 700, corpus: tuple[str, ...] = CORPUS) -> str:
    description = json.loads(byte_level(kind, size, corpus).to_str())
    if kind in {"llama-3", "tekken"}:
        description["model"]["ignore_merges"] = True
    return json.dumps(description)


@cache
def sentencepiece_model(size: int = 600, kind: str = "bpe", byte_fallback: bool = True, prefix: bool = True) -> bytes:
    """A SentencePiece model as Llama 2's is made: identity normalization, byte fallback, a dummy prefix."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.splitlines() if line] * 3),
        model_writer=written,
        vocab_size=size,
        model_type=kind,
        byte_fallback=byte_fallback,
        add_dummy_prefix=prefix,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.98,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return written.getvalue()


@cache
def sentencepiece_json(size: int = 600) -> str:
    """The same model as tokenizer.json: merges are all pairs that make a token, best score first."""
    model = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(size))
    vocab = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    merges = []
    for text, token in vocab.items():
        if model.is_control(token) or model.is_unknown(token) or model.is_byte(token):
            continue
        pairs = [(text[:i], text[i:]) for i in range(1, len(text)) if text[:i] in vocab and text[i:] in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(-model.get_score(token), index, pair) for index, pair in enumerate(pairs)]
    merges.sort(key=lambda merge: merge[0])
    special = [{"id": i, "content": model.id_to_piece(i), "special": True} for i in range(3)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{**entry, **flags} for entry in special],
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "▁"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                ],
            },
            "pre_tokenizer": None,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": "<s>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                ],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
            },
            "decoder": None,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": "<unk>",
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": vocab,
                "merges": [f"{left} {right}" for _, _, (left, right) in merges],
            },
        }
    )


@cache
def gemma_json(size: int = 600) -> str:
    """Gemma's way of the same: no space is prefixed, and those that are there are written SentencePiece's way.

    Some runs of spaces and lines are tokens of their own; the token of an image lies outside the text models.
    """
    description = json.loads(sentencepiece_json(size))
    description["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    description["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    }
    vocab, merges = description["model"]["vocab"], description["model"]["merges"]
    runs = ["▁" * n for n in (2, 3, 4)]
    for run in runs:
        vocab.setdefault(run, _free(vocab, size))
    # As Gemma's: before all others, the longest first.
    whole = [f"{run[:cut]} {run[cut:]}" for run in reversed(runs) for cut in range(len(run) - 1, 0, -1)]
    merges[:] = list(dict.fromkeys([*whole, *merges]))
    vocab["\n\n"] = _free(vocab, size)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for text in (*runs, "\n\n"):
        description["added_tokens"].append({"id": vocab[text], "content": text, "special": False, **flags})
    outside = {"id": GEMMA_SIZE, "content": "<image_soft_token>", "special": True, **flags}
    description["added_tokens"] = sorted([*description["added_tokens"], outside], key=lambda entry: entry["id"])
    return json.dumps(description)


@cache
def gemma4_json(size: int = 600) -> str:
    """Gemma 4's: merges in order, no SentencePiece model beside, and special tokens that a chat has to show."""
    description = json.loads(gemma_json(size))
    vocab = description["model"]["vocab"]
    del vocab["\n\n"]  # which no merge makes
    own = [entry for entry in description["added_tokens"] if entry["special"] and entry["content"] in vocab]
    description["added_tokens"] = own
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for text in ("<pad>", "<mask>", "<|channel>", "<channel|>"):
        vocab[text] = _free(vocab, size)
        description["added_tokens"].append({"id": vocab[text], "content": text, "special": True, **flags})
    description["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    }
    return json.dumps(description)


@cache
def gemma_model() -> bytes:
    """The same as a SentencePiece model."""
    model = ModelProto.FromString(sentencepiece_model())
    description = json.loads(gemma_json())
    model.normalizer_spec.add_dummy_prefix = False
    for entry in description["added_tokens"]:
        if not entry["special"]:
            piece = model.pieces.add() if entry["id"] == len(model.pieces) else model.pieces[entry["id"]]
            piece.piece, piece.score, piece.type = entry["content"], 0.0, ModelProto.SentencePiece.USER_DEFINED
    return bytes(model.SerializeToString())


def _free(vocab: Mapping[str, int], size: int) -> int:
    return max(size, *(token + 1 for token in vocab.values()))


@cache
def phi3_json(size: int = 600) -> str:
    """Phi-3's: Llama 2's, and special tokens that swallow the space after them."""
    description = json.loads(sentencepiece_json(size))
    flags = {"single_word": False, "lstrip": False, "rstrip": True, "normalized": False}
    for token, text in enumerate(("<|assistant|>", "<|end|>", "<|user|>"), size):
        description["added_tokens"].append({"id": token, "content": text, "special": True, **flags})
    return json.dumps(description)


def write_tokenizer(folder: Path, kind: str) -> int:
    """The tokenizer files of one kind (BYTE_LEVEL, SENTENCEPIECE, "gemma" or "phi-3"); how many tokens it has."""
    if kind in BYTE_LEVEL:
        text = byte_level_json(kind)
        settings: Json = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[2], "chat_template": CHATML}
        settings["tokenizer_class"] = {"o200k": "GPT2Tokenizer"}.get(kind, "PreTrainedTokenizerFast")
    else:
        text = {"gemma": gemma_json, "gemma4": gemma4_json, "phi-3": phi3_json}.get(kind, sentencepiece_json)()
        settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": {"content": "<unk>"}}
        settings["tokenizer_class"] = "LlamaTokenizer"
    if kind == "gemma4":
        settings |= {"tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>"}
    if kind in {"gemma", "gemma4", "phi-3", "spm-both"}:
        settings["chat_template"] = CHATML
    if kind == "gemma":
        (folder / "tokenizer.model").write_bytes(gemma_model())
    if kind in {"spm-model", "spm-both", "phi-3"}:
        (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    description = json.loads(text)
    if kind != "spm-model":
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        settings["added_tokens_decoder"] = {str(entry["id"]): entry for entry in description["added_tokens"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    last = max([*description["model"]["vocab"].values(), *(t["id"] for t in description["added_tokens"])])
    return GEMMA_SIZE if kind == "gemma" else last + 1


def llama(
    folder: Path,
    *,
    tokenizer: str = "gpt-2",
    seed: int = 0,
    dtype: str = "BF16",
    hidden: int = 64,
    ffn: int = 96,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    tied: bool = True,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    rope: Json | None = None,
    shards: int = 1,
    padding: int = 0,
    config: Json | None = None,
    generation: Json | None = None,
    family: str = "llama",
) -> Path:
    """A random Llama, qwen2 or qwen3; `padding` tokens more than the tokenizer has; `config` overrides config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder, tokenizer) + padding
    width = head_dim or hidden // heads
    described = {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        "hidden_act": "silu",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": rope,
        "attention_bias": attention_bias,
        "mlp_bias": mlp_bias,
        "tie_word_embeddings": tied,
        "bos_token_id": 0,
        "eos_token_id": 2,
        **({"head_dim": head_dim} if head_dim else {}),
        **(config or {}),
    }
    described = {key: value for key, value in described.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    tensors = _tensors(
        seed, vocabulary, hidden, ffn, layers, heads * width, kv_heads * width, tied, attention_bias, mlp_bias
    )
    if family == "qwen2":
        attention = _tensors(seed, vocabulary, hidden, ffn, layers, heads * width, kv_heads * width, tied, True, False)
        tensors |= {
            name: values
            for name, values in attention.items()
            if name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))
        }
    if family == "qwen3":
        draw = np.random.default_rng(seed)
        for layer in range(layers):
            for part in "qk":
                values = 1 + 0.3 * draw.standard_normal(width)
                tensors[f"model.layers.{layer}.self_attn.{part}_norm.weight"] = values.astype(np.float32)
    _write_shards(folder, {name: stored(values, dtype) for name, values in tensors.items()}, shards)
    return folder


def _tensors(  # noqa: PLR0917
    seed: int,
    vocabulary: int,
    hidden: int,
    ffn: int,
    layers: int,
    q: int,
    kv: int,
    tied: bool,
    attention_bias: bool,
    mlp_bias: bool,
) -> dict[str, npt.NDArray[np.float32]]:
    draw = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        return (draw.standard_normal((rows, columns)) * gain / columns**0.5).astype(np.float32)

    def norm() -> npt.NDArray[np.float32]:
        return (1 + 0.1 * draw.standard_normal(hidden)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(vocabulary, hidden, hidden**0.5)}
    for layer in range(layers):
        name = f"model.layers.{layer}"
        tensors[f"{name}.input_layernorm.weight"] = norm()
        for part, rows, columns, biased in (
            ("self_attn.q_proj", q, hidden, attention_bias),
            ("self_attn.k_proj", kv, hidden, attention_bias),
            ("self_attn.v_proj", kv, hidden, attention_bias),
            ("self_attn.o_proj", hidden, q, attention_bias),
            ("mlp.gate_proj", ffn, hidden, mlp_bias),
            ("mlp.up_proj", ffn, hidden, mlp_bias),
            ("mlp.down_proj", hidden, ffn, mlp_bias),
        ):
            tensors[f"{name}.{part}.weight"] = matrix(rows, columns, 2.0)
            if biased:
                tensors[f"{name}.{part}.bias"] = draw.standard_normal(rows).astype(np.float32)
        tensors[f"{name}.post_attention_layernorm.weight"] = norm()
    tensors["model.norm.weight"] = norm()
    if not tied:
        tensors["lm_head.weight"] = matrix(vocabulary, hidden, 3.0)
    return tensors


def _write_shards(folder: Path, tensors: Mapping[str, npt.NDArray[Any] | Raw], shards: int) -> None:
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensor for index, (name, tensor) in enumerate(tensors.items()) if index % shards == shard}
        write_safetensors(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
