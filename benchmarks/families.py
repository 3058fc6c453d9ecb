"""The families on trial: tiny random checkpoints, each as transformers, ONNX Runtime and llama.cpp compute them.

    python -m benchmarks.families PYTHON [--llama-cpp FOLDER] [--out docs/families.md]

PYTHON is one with torch and transformers, FOLDER llama.cpp's source, whose converter has to write the same file.
Differences are shares of the largest logit, over 73 tokens, in float32. Exit status 1 where anything is not as it
should be. What stands below the table of an existing page is kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from edgespec import Device, Interrupt
from edgespec.backends import open_model
from edgespec.converters import convert
from edgespec.converters.native import LlamaTokenizer
from edgespec.types import Floats
from tests import family_checkpoints, llamacpp_converter
from tests.onnxrun import Onnx
from tests.test_convert import engine, fields
from tests.test_convert_tokenizer import beyond
from tests.test_families import LOOKED_UP, PRE, PROMPT, difference

_TEXTS = (
    "Hello, world! Grüße  2024, it's 3.14 <tool>\n\n你好",
    "camelCase O'Donnell WE'RE 1234567 // x\n\n\n    y = f(a)\t# Привет, мир 😀",
    "हिन्दी สวัสดี e\u0301 x²",
)
_TRANSFORMERS = """
import json, sys
import numpy, tokenizers, torch, transformers
source, out, prompt, texts = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
with torch.no_grad():
    numpy.save(out, model(torch.tensor([json.loads(prompt)])).logits[0].numpy())
tokenizer = tokenizers.Tokenizer.from_file(source + "/tokenizer.json")
tokenizer.encode_special_tokens = True
if tokenizer.normalizer and "NFC" in repr(tokenizer.normalizer):
    texts = json.dumps([tokenizer.normalizer.normalize_str(text) for text in json.loads(texts)])
print(json.dumps([[text, tokenizer.encode(text, add_special_tokens=False).ids] for text in json.loads(texts)]))
"""
_HEAD = """# Families

Tiny random checkpoints of each family, converted (`f32`, `fp32`) and run on 73 tokens; differences from Hugging Face
transformers are shares of the largest logit. llama.cpp looks GELU up in a table of float16, which is what the Gemmas,
StarCoder2 and GPT-2 show. "llama.cpp's converter": its `convert_hf_to_gguf.py` writes the same tensors and keys, but
for the differences that `tests/llamacpp_converter.py` explains. The tokenizers are tiny ones that cut text as the
families' own do; llama.cpp cuts some texts otherwise than Mistral's tekken and Phi-4-mini's do, of which a conversion
warns. "Drafts": edgespec's session computes the file in passes of 8 tokens, the last 3 of which are wrong and rolled
back, and all other logits equal those of passes without them, to the last bit.

    python -m benchmarks.families PYTHON --llama-cpp FOLDER --out docs/families.md

| | GGUF: convert | llama.cpp's converter | logits | drafts | tokens | template | ONNX | logits | tokens | template |
|---|---|---|---|---|---|---|---|---|---|---|
"""
_EQUAL, _UNEQUAL = "equal", "NOT equal"
_NEAR, _LOOKED_UP = 5e-5, 2e-3
_PREFIX, _KEPT = 8, 5  # tokens of the prompt, and of each pass after it that are kept


@dataclass(frozen=True)
class Judge:
    """What transformers says of one checkpoint; `kind` is its family and `tokens` are pairs of a text and its own."""

    kind: str
    source: Path
    logits: Any
    tokens: Sequence[tuple[str, list[int]]]
    template: str


@click.command()
@click.argument("python")
@click.option("--llama-cpp", help="The folder of llama.cpp's source.")
@click.option("--out", type=click.Path(path_type=Path))
def main(python: str, llama_cpp: str | None, out: Path | None) -> None:
    """Print the table, or write the page."""
    lines = []
    for kind in family_checkpoints.CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(f"| {kind} | {' | '.join(_row(Path(folder), kind, python, llama_cpp))} |")
        print(lines[-1], flush=True)
    if out:
        notes = _notes(out.read_text(encoding="utf-8")) if out.exists() else ""
        out.write_text(_HEAD + "\n".join(lines) + "\n" + notes, encoding="utf-8")
    sys.exit(int(any("NOT" in line for line in lines)))


def _notes(page: str) -> str:
    """What stands below the table of a page."""
    lines = page.splitlines(keepends=True)
    last = max((at for at, line in enumerate(lines) if line.startswith("|")), default=len(lines) - 1)
    return "".join(lines[last + 1 :])


def _row(folder: Path, kind: str, python: str, llama_cpp: str | None) -> list[str]:
    source = family_checkpoints.make(folder / "source", kind)
    judge = _judge(source, kind, python)
    cells = _gguf(judge, folder / "m.gguf")
    theirs = _converter(judge, folder, python, llama_cpp) if llama_cpp else "not asked"
    onnx = ["-"] * 4 if kind in family_checkpoints.GGUF_ONLY else _onnx(judge, folder / "m")
    return [cells[0], theirs, *cells[1:], *onnx]


def _judge(source: Path, kind: str, python: str) -> Judge:
    out = source.parent / "x.npy"
    command = [python, "-c", _TRANSFORMERS, str(source), str(out), json.dumps(PROMPT), json.dumps(_TEXTS)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    template = json.loads((source / "tokenizer_config.json").read_text()).get("chat_template", "")
    return Judge(kind, source, np.load(out), json.loads(said.stdout.splitlines()[-1]), template)


def _gguf(judge: Judge, output: Path) -> list[str]:
    for _ in convert(judge.source, output, quantization="f32"):
        pass
    with engine(output) as llama:
        llama.eval(PROMPT)
        found = difference(llama.scores[: len(PROMPT)], judge.logits)
    rejected = np.array_equal(_computed(output, []), _computed(output, [7, 8, 9]))
    cut = family_checkpoints.TOKENIZERS[judge.kind]
    with LlamaTokenizer(output) as tokenizer:
        same = [tokenizer.encode(text) == ids for text, ids in judge.tokens if not beyond(cut, text)]
    kept = fields(output).get("tokenizer.chat_template", "") == judge.template
    most = _LOOKED_UP if judge.kind in LOOKED_UP else _NEAR
    template = _word(kept) if judge.template else "none"
    return ["yes", _share(found, most), _word(rejected), _word(all(same)), template]


def _computed(model: Path, wrong: Sequence[int]) -> Floats:
    """The logits after each token behind the prompt, from passes that end with `wrong` tokens, rolled back."""
    rows, device = [], Device(context=256)
    with closing(open_model(model, device, Interrupt())) as opened, closing(opened.session(256)) as session:
        session.prefill(PROMPT[:_PREFIX])
        for start in range(_PREFIX, len(PROMPT), _KEPT):
            kept = PROMPT[start : start + _KEPT]
            rows.append(session.decode([*kept, *wrong])[: len(kept)].copy())
            session.rollback(start, range(len(kept)))
    return np.concatenate(rows)


def _converter(judge: Judge, folder: Path, python: str, llama_cpp: str) -> str:
    ours, theirs = folder / "m.gguf", folder / "theirs.gguf"
    llamacpp_converter.convert(python, llama_cpp, [(judge.source, theirs, fields(ours)[PRE])])
    return _word(not llamacpp_converter.unexplained(ours, theirs))


def _onnx(judge: Judge, output: Path) -> list[str]:
    for _ in convert(judge.source, output, fmt="onnx", quantization="fp32"):
        pass
    found = difference(Onnx(output).feed(PROMPT), judge.logits)
    same = (output / "tokenizer.json").read_bytes() == (judge.source / "tokenizer.json").read_bytes()
    page = output / "chat_template.jinja"
    kept = page.is_file() and page.read_text(encoding="utf-8") == judge.template
    return ["yes", _share(found, _NEAR), _word(same), _word(kept) if judge.template else "none"]


def _share(found: float, most: float) -> str:
    return f"{found:.0e}" if found < most else f"NOT near: {found:.0e}"


def _word(good: bool) -> str:
    return _EQUAL if good else _UNEQUAL


if __name__ == "__main__":
    main()
