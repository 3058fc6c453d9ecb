"""The families on trial: tiny random checkpoints, each as transformers, ONNX Runtime and llama.cpp compute them.

    python -m benchmarks.families PYTHON [--out docs/families.md]

PYTHON is one with torch and transformers. Differences are shares of the largest logit, over 73 tokens, in float32.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from edgespec.converters import convert
from edgespec.converters.native import Tokenizer
from tests import family_checkpoints
from tests.onnxrun import Onnx
from tests.test_convert import engine, fields
from tests.test_families import PROMPT, difference

_TEXT = "Hello, world! Grüße  2024, it's 3.14 <tool>\n\n你好"
_TRANSFORMERS = """
import json, sys
import numpy, tokenizers, torch, transformers
source, out, prompt, text = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
with torch.no_grad():
    numpy.save(out, model(torch.tensor([json.loads(prompt)])).logits[0].numpy())
tokenizer = tokenizers.Tokenizer.from_file(source + "/tokenizer.json")
print(json.dumps(tokenizer.encode(text, add_special_tokens=False).ids))
"""
_HEAD = """# Families

Tiny random checkpoints of each family, converted (`f32`, `fp32`) and run on 73 tokens; differences from Hugging Face
transformers are shares of the largest logit. llama.cpp looks GELU up in a table of float16, which is what the Gemmas,
StarCoder2 and GPT-2 show. The tokenizers are tiny ones of the kinds that the families use, not their own.

    python -m benchmarks.families PYTHON --out docs/families.md

| | GGUF: convert | logits | tokenizer | chat template | ONNX: convert | logits | tokenizer | chat template |
|---|---|---|---|---|---|---|---|---|
"""


@click.command()
@click.argument("python")
@click.option("--out", type=click.Path(path_type=Path))
def main(python: str, out: Path | None) -> None:
    """Print the table, or write the page."""
    lines = []
    for kind in family_checkpoints.CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(f"| {kind} | {' | '.join(_row(Path(folder), kind, python))} |")
        print(lines[-1], flush=True)
    if out:
        out.write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def _row(folder: Path, kind: str, python: str) -> list[str]:
    source = family_checkpoints.make(folder / "source", kind)
    command = [python, "-c", _TRANSFORMERS, str(source), str(folder / "x.npy"), json.dumps(PROMPT), _TEXT]
    said = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    tokens, logits = json.loads(said.stdout.splitlines()[-1]), np.load(folder / "x.npy")
    template = json.loads((source / "tokenizer_config.json").read_text()).get("chat_template", "")
    return [*_gguf(source, folder / "m.gguf", tokens, logits, template), *_onnx(source, folder / "m", logits, template)]


def _gguf(source: Path, output: Path, tokens: list[int], logits: Any, template: str) -> list[str]:
    for _ in convert(source, output, quantization="f32"):
        pass
    with engine(output) as llama:
        llama.eval(PROMPT)
        found = difference(llama.scores[: len(PROMPT)], logits)
    with Tokenizer(output) as tokenizer:
        same = tokenizer.encode(_TEXT) == tokens
    kept = fields(output).get("tokenizer.chat_template", "") == template
    return ["yes", f"{found:.0e}", _word(same), _word(kept) if template else "none"]


def _onnx(source: Path, output: Path, logits: Any, template: str) -> list[str]:
    for _ in convert(source, output, fmt="onnx", quantization="fp32"):
        pass
    found = difference(Onnx(output).feed(PROMPT), logits)
    same = (output / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    page = output / "chat_template.jinja"
    kept = page.is_file() and page.read_text(encoding="utf-8") == template
    return ["yes", f"{found:.0e}", _word(same), _word(kept) if template else "none"]


def _word(good: bool) -> str:
    return "equal" if good else "NOT equal"


if __name__ == "__main__":
    main()
