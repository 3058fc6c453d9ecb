"""GGUF files that contradict themselves: each is refused, or runs; llama.cpp ends the process on none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from edgespec import Device, Interrupt, Runtime, Sampling, load
from edgespec.backends import Model, open_model
from edgespec.backends.gguf_header import header
from edgespec.backends.llama_file import check
from edgespec.errors import EdgespecError, ModelFileError, OptionError

U32, I32, F32, TEXT, TRUTH, ARRAY = (
    gguf.GGUFValueType[name] for name in ("UINT32", "INT32", "FLOAT32", "STRING", "BOOL", "ARRAY")
)
F32_TENSOR, F16, I8, Q8_0 = (gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "I8", "Q8_0"))

Fields = dict[str, tuple[gguf.GGUFValueType, Any]]

WIDTH, HEADS = 32, 2
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, "\u2581", *"abcdefghij"]

FIELDS: Fields = {
    "llama.context_length": (U32, 64),
    "llama.embedding_length": (U32, WIDTH),
    "llama.block_count": (U32, 1),
    "llama.feed_forward_length": (U32, WIDTH),
    "llama.attention.head_count": (U32, HEADS),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "general.name": (TEXT, "tiny"),
    "tokenizer.ggml.model": (TEXT, "llama"),
    "tokenizer.ggml.tokens": (ARRAY, TOKENS),
    "tokenizer.ggml.scores": (ARRAY, [-float(n) for n in range(len(TOKENS))]),
    "tokenizer.ggml.token_type": (ARRAY, [2, 3, 3, *[6] * 256, *[1] * 11]),
    "tokenizer.chat_template": (TEXT, "{{ messages[0]['content'] }}"),
}


BYTE_PAIRS: Fields = {"tokenizer.ggml.model": (TEXT, "gpt2"), "tokenizer.ggml.merges": (ARRAY, ["a b"])}


@cache
def tensors() -> Mapping[str, np.ndarray[Any, Any]]:
    draw = np.random.default_rng(0)
    square = (WIDTH, WIDTH)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    shapes |= {f"blk.0.{name}": square for name in names}
    shapes |= {f"blk.0.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    return {f"{name}.weight": draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write(
    path: Path,
    fields: Mapping[str, tuple[gguf.GGUFValueType, Any] | None] | None = None,
    kinds: Mapping[str, gguf.GGMLQuantizationType | None] | None = None,
    alignment: int = 0,
) -> Path:
    """A model of one layer, with these fields in place of its own, and tensors of these types; None for none."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for key, given in {**FIELDS, **(fields or {})}.items():
        if given is not None:
            writer.add_key_value(key, given[1], given[0])
    for name, values in tensors().items():
        kind = (kinds or {}).get(name, F32_TENSOR)
        if kind is not None:
            data = values.astype(np.int8) if kind == I8 else gguf.quantize(values, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def twice(first: str, second: str) -> list[str]:
    """The tokens, of which two are these."""
    return [*TOKENS[:-2], first, second]


#: What is wrong, and how the message says it. llama.cpp ends the process on each of these.
MALFORMED: dict[str, tuple[str, dict[str, Any]]] = {
    "a token twice": ("has a token twice: 'a'", {"fields": {"tokenizer.ggml.tokens": (ARRAY, twice("a", "a"))}}),
    "tokens equal up to a zero byte": (
        "has a token twice: 'q'",
        {"fields": {"tokenizer.ggml.tokens": (ARRAY, twice("q", "q\0r"))}},
    ),
    "no layers": ("block_count is 0", {"fields": {"llama.block_count": (U32, 0)}}),
    "65536 layers": ("block_count is 65536", {"fields": {"llama.block_count": (U32, 65536)}}),
    "more layers of prediction": (
        "nextn_predict_layers is more than",
        {"fields": {"llama.nextn_predict_layers": (U32, 2)}},
    ),
    "no tokens of bytes": (
        "lacks the token <0x00>, and those of 255 other bytes",
        {"fields": {"tokenizer.ggml.tokens": (ARRAY, [f"{token}x" for token in TOKENS])}},
    ),
    "one byte without a token": (
        "lacks the token <0x41>, and those of 0",
        {"fields": {"tokenizer.ggml.tokens": (ARRAY, [text.replace("<0x41>", "A?") for text in TOKENS])}},
    ),
    "no vocabulary": ("is 'none'", {"fields": {"tokenizer.ggml.model": (TEXT, "none")}}),
    "no vocabulary by its other name": ("is 'no_vocab'", {"fields": {"tokenizer.ggml.model": (TEXT, "no_vocab")}}),
    "no vocabulary behind a zero byte": ("is 'none", {"fields": {"tokenizer.ggml.model": (TEXT, "none\0llama")}}),
    "text cut at spaces": ("is 'whitespace'", {"fields": {**BYTE_PAIRS, "tokenizer.ggml.pre": (TEXT, "whitespace")}}),
    "a window of 2^31": ("window is 2147483647", {"fields": {"llama.attention.sliding_window": (U32, (1 << 31) - 1)}}),
    "keys of a million": ("key_length is 1000000", {"fields": {"llama.attention.key_length": (U32, 10**6)}}),
    "no tokens": ("tokens is missing or empty", {"fields": {"tokenizer.ggml.tokens": None}}),
    "tokens that are numbers": (
        "tokens is missing or empty",
        {"fields": {"tokenizer.ggml.tokens": (ARRAY, [1, 2, 3])}},
    ),
    "a context of 2^31": ("context_length is 2147483648", {"fields": {"llama.context_length": (U32, 1 << 31)}}),
    "an embedding of 0": ("embedding_length is 0", {"fields": {"llama.embedding_length": (U32, 0)}}),
    "no heads": ("head_count is missing or 0", {"fields": {"llama.attention.head_count": None}}),
    "0 heads": ("head_count is missing or 0", {"fields": {"llama.attention.head_count": (U32, 0)}}),
    "heads of no whole width": ("head_count is 3", {"fields": {"llama.attention.head_count": (U32, 3)}}),
    "heads that cannot share": (
        "not a multiple of",
        {"fields": {"llama.attention.head_count": (U32, 4), "llama.attention.head_count_kv": (U32, 3)}},
    ),
    "rotations wider than a head": ("at most the 16", {"fields": {"llama.rope.dimension_count": (U32, 18)}}),
    "no rotations": ("dimension_count is 0", {"fields": {"llama.rope.dimension_count": (U32, 0)}}),
    "an odd number of rotations": ("is 15; it must be even", {"fields": {"llama.rope.dimension_count": (U32, 15)}}),
    "an unknown scaling of positions": ("is 'su'; it must", {"fields": {"llama.rope.scaling.type": (TEXT, "su")}}),
    "too many experts": ("expert_count is 4096", {"fields": {"llama.expert_count": (U32, 4096)}}),
    "experts that are none": ("expert_used_count is 2", {"fields": {"llama.expert_used_count": (U32, 2)}}),
    "groups of no experts": ("expert_group_count is 2", {"fields": {"llama.expert_group_count": (U32, 2)}}),
    "no queries": ("neither attn_qkv nor attn_q", {"kinds": {"blk.0.attn_q.weight": None}}),
    "a name with a zero byte": ("contains a zero byte", {"fields": {"llama.block_count\0": (U32, 1)}}),
    "alignment 1": ("alignment is 1", {"alignment": 1}),
    "alignment 8": ("alignment is 8", {"alignment": 8}),
    "a quantized norm": ("output_norm.weight is of type 8", {"kinds": {"output_norm.weight": Q8_0}}),
    "a norm of halves": ("attn_norm.weight is of type 1", {"kinds": {"blk.0.attn_norm.weight": F16}}),
    "a matrix of whole numbers": ("attn_k.weight is of type 24", {"kinds": {"blk.0.attn_k.weight": I8}}),
    **{
        f"an epsilon of {value}": (
            f"epsilon is {value}",
            {"fields": {"llama.attention.layer_norm_rms_epsilon": (F32, value)}},
        )
        for value in (-1.0, float("nan"), float("-inf"))
    },
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused(name: str, tmp_path: Path) -> None:
    match, how = MALFORMED[name]
    path = write(tmp_path / "tiny.gguf", **how)
    with pytest.raises(ModelFileError) as caught:
        load(path)
    message = str(caught.value)
    assert match in message
    assert "tiny.gguf" in message
    assert "download or convert it again" in message
    assert "\n" not in message


def opened(path: Path) -> Model:
    return open_model(path, Device(threads=1), Interrupt())


def test_the_file_itself_is_sound(tmp_path: Path, small_pair: dict[str, Path]) -> None:
    """Else the cases above may be refused for another reason."""
    model = opened(write(tmp_path / "tiny.gguf"))
    assert not model.notices
    assert model.vocabulary.tokenize("ab", start=True)[0] == 1
    session = model.session(64)
    assert session.decode([5, 6]).shape == (2, len(TOKENS))
    session.close()
    model.close()
    for path in small_pair.values():
        check(path)


def test_what_a_file_calls_things_stays_on_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", {"an\n\x1b[2Jepsilon": (F32, -1.0)})
    with pytest.raises(ModelFileError, match="epsilon is -1") as caught:
        check(path)
    assert str(caught.value).isprintable()
    path = write(path, {**BYTE_PAIRS, "tokenizer.ggml.pre": (TEXT, "a\n\x1bb")})
    with pytest.raises(ModelFileError, match="unknown pre-tokenizer") as caught:
        load(path)
    assert str(caught.value).isprintable()


def test_a_model_whose_first_layer_has_no_heads(tmp_path: Path) -> None:
    """As in models with recurrent layers, which are refused later and for that."""
    none = (U32, 0)
    check(write(tmp_path / "tiny.gguf", {"llama.attention.head_count": none, "llama.ssm.state_size": (U32, 16)}))


def test_empty_tokens_are_no_duplicates(tmp_path: Path) -> None:
    """llama.cpp gives each a name."""
    opened(write(tmp_path / "tiny.gguf", {"tokenizer.ggml.tokens": (ARRAY, twice("", ""))})).close()


def test_all_parts_of_a_model_are_checked(tmp_path: Path) -> None:
    split = {"split.count": (U32, 2), "split.no": (U32, 0), "split.tensors.count": (U32, 22)}
    first = write(tmp_path / "m-00001-of-00002.gguf", split)
    assert header(first).parts == 2
    write(tmp_path / "m-00002-of-00002.gguf", kinds={"output_norm.weight": Q8_0})
    with pytest.raises(ModelFileError, match="output_norm"):
        load(first)


@pytest.mark.skipif(sys.platform not in {"linux", "darwin"}, reason="ggml's assertions are fatal elsewhere")
def test_an_assertion_of_the_loader_is_an_error(
    tmp_path: Path, small_pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the checks do not know, llama.cpp's own assertions tell."""
    monkeypatch.setattr("edgespec.backends.llama.check", header)
    for name in ("a token twice", "no layers", "alignment 8", "too many experts"):
        path = write(tmp_path / "tiny.gguf", **MALFORMED[name][1])
        with pytest.raises(ModelFileError, match="GGML_ASSERT"):
            opened(path)
    opened(small_pair["draft"]).close()


USING = """
import sys
from pathlib import Path
from edgespec import Device, Interrupt
from edgespec.backends import open_model
from edgespec.errors import EdgespecError

used = 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path.name, flush=True)
    try:
        model = open_model(path, Device(threads=1), Interrupt())
        words = model.vocabulary
        for token in range(words.size):
            words.token_bytes(token), words.label(token), words.is_eog(token)
        words.specials()
        for text in ("Hello, \\u4f60\\u597d", "<s>", ""):
            for way in (False, True):
                words.tokenize(text, special=way, start=way)
        session = model.session(16)
        session.prefill([0, 1 % words.size])
        for token in (0, words.size - 1):
            session.decode([token])
        session.close()
        model.close()
        used += 1
    except EdgespecError:
        pass
print(used, "used")
"""


def test_mutants_end_no_process(tmp_path: Path) -> None:
    """In a process of its own: what is malformed above, and files of which bytes and values were changed."""
    draw, mutants = np.random.default_rng(0), tmp_path / "mutants"
    mutants.mkdir()
    for number, (_, how) in enumerate(MALFORMED.values()):
        write(mutants / f"malformed-{number}.gguf", **how)
    values = (0, 1, 2, 3, 33, 255, 1 << 16, 1 << 31, (1 << 32) - 1)
    whole = [key for key, (kind, _) in FIELDS.items() if kind == U32]
    optional = ("rope.dimension_count", "attention.key_length", "attention.head_count_kv", "expert_count", "vocab_size")
    whole += [f"llama.{key}" for key in optional] + ["tokenizer.ggml.bos_token_id"]
    for number in range(40):
        changed = {str(draw.choice(whole)): (U32, int(draw.choice(values))) for _ in range(1 + number % 2)}
        write(mutants / f"value-{number}.gguf", changed)
    sound = write(tmp_path / "sound.gguf")
    length = header(sound).length
    for number in range(60):
        data = bytearray(sound.read_bytes())
        for _ in range(1 + number % 3):
            data[draw.integers(8, length)] = draw.choice([0, 1, 255, int(draw.integers(256))])
        (mutants / f"bytes-{number}.gguf").write_bytes(data)
    run = [sys.executable, "-I", "-c", USING, str(mutants)]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, (done.stdout[-200:], done.stderr[-2000:])
    assert int(done.stdout.split()[-2]) > 10, "some of them must get past the checks"


# --- what is stated and cannot be used


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("top_k", (F32, float("nan"))),
        ("top_k", (F32, float("inf"))),
        ("top_k", (I32, -5)),
        ("top_k", (TEXT, "many")),
        ("temp", (TEXT, "hot")),
        ("temp", (TRUTH, True)),
        ("temp", (F32, -1.0)),
        ("top_p", (F32, float("nan"))),
        ("top_p", (F32, 7.0)),
        ("min_p", (F32, float("-inf"))),
        ("penalty_repeat", (F32, 0.0)),
        ("penalty_repeat", (F32, float("inf"))),
    ],
)
def test_stated_sampling_that_cannot_be_is_ignored(
    key: str, given: tuple[gguf.GGUFValueType, Any], tmp_path: Path
) -> None:
    stated: Fields = {"general.sampling.temp": (F32, 0.5), f"general.sampling.{key}": given}
    model = opened(write(tmp_path / "tiny.gguf", stated))
    assert model.sampling == ({} if key == "temp" else {"temperature": 0.5})
    (notice,) = model.notices
    assert f"general.sampling.{key}" in notice
    model.close()


def test_stated_sampling_makes_a_sampling(tmp_path: Path) -> None:
    stated: Fields = {"general.sampling.top_k": (F32, 20.0), "general.sampling.top_p": (F32, 0.5)}
    with load(write(tmp_path / "tiny.gguf", stated), device=Device(threads=1)) as runtime:
        assert runtime.sampling == {"top_k": 20, "top_p": 0.5}
        assert isinstance(runtime.sampling["top_k"], int)
        assert Sampling(**runtime.sampling) == Sampling(top_k=20, top_p=0.5)  # type: ignore[arg-type]
        assert not runtime.notices


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    """It is shown as far as it can be; of templates see tests/test_llama.py."""
    path = write(tmp_path / "tiny.gguf")
    data = path.read_bytes()
    assert data.count(b"tiny") == 1
    path.write_bytes(data.replace(b"tiny", b"ti\xffy"))
    model = opened(path)
    assert "ti\ufffdy" in model.description
    assert not model.notices
    model.close()


def test_a_start_without_its_token(tmp_path: Path) -> None:
    """The file asks for a token at the start, and has none."""
    fields: Fields = {
        **BYTE_PAIRS,
        "tokenizer.ggml.pre": (TEXT, "chatglm-bpe"),
        "tokenizer.ggml.add_bos_token": (TRUTH, True),
        "tokenizer.ggml.add_eos_token": (TRUTH, True),
    }
    model = opened(write(tmp_path / "tiny.gguf", fields))
    assert model.vocabulary.bos is None
    assert model.vocabulary.tokenize("ab", start=True) == model.vocabulary.tokenize("ab")
    model.close()


# --- tokens that an app gives


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    return load(write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"), device=Device(threads=1))


STRANGE = [10**6, -5, 1 << 40, 10**5000, len(TOKENS), 1.0, True, np.bool_(True), np.float32(1), "a", None]


@pytest.mark.parametrize("token", STRANGE, ids=[str(n) for n in range(len(STRANGE))])
def test_what_is_no_token_is_refused(token: Any, tiny: Runtime) -> None:
    for use in (tiny.text, tiny.complete, lambda tokens: tiny.vocabulary.token_bytes(tokens[1])):
        with pytest.raises(OptionError, match=rf"no token .*{len(TOKENS) - 1}") as caught:
            use([5, token])
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("tokens", [b"ab", "", None, 5])
def test_what_holds_no_tokens_is_refused(tokens: Any, tiny: Runtime) -> None:
    with pytest.raises(OptionError):
        tiny.text(tokens)
    if tokens != "":
        with pytest.raises(OptionError):
            tiny.complete(tokens)


def test_numbers_of_numpy_are_tokens(tiny: Runtime) -> None:
    tokens = np.array(tiny.vocabulary.tokenize("abc"), dtype=np.int16)
    assert tiny.text(tokens).strip() == "abc"  # type: ignore[arg-type]
    assert list(tiny.complete(tokens, max_tokens=1))  # type: ignore[arg-type]


# --- what is no file


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_no_model(tmp_path: Path, small_pair: dict[str, Path]) -> None:
    """To open it would wait for ever."""
    pipe, pair = tmp_path / "pipe.gguf", tmp_path / "pair.json"
    os.mkfifo(pipe)
    os.mkfifo(pair)
    (tmp_path / "zero.gguf").symlink_to("/dev/zero")
    for path in (pipe, pair, tmp_path / "zero.gguf"):
        with pytest.raises(EdgespecError, match="a pipe") as caught:
            load(path)
        assert path.name in str(caught.value)
    with pytest.raises(EdgespecError, match="a pipe"):
        load(small_pair["target"], pipe)
