"""The options of `edgespec bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from .options import PATH, grouped_options


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The questions, the contenders, and the output folder."""

    suite: str
    compare: str
    limit: int | None
    out: Path
    resume: bool
    force: bool
    llama_server: Path | None
    source: Path | None
    draft_source: Path | None
    genai: Path | None
    genai_draft: Path | None
    openvino_genai: Path | None
    openvino_genai_draft: Path | None
    python: Path | None

    def __post_init__(self) -> None:
        from ..errors import OptionError  # noqa: PLC0415

        if self.limit is not None and self.limit < 1:
            raise OptionError(f"--limit is {self.limit}; it must be 1 or more")
        if self.resume and self.force:
            raise OptionError("--resume continues the run in --out, and --force begins a new one; give one of them")


bench_options = grouped_options(
    BenchOptions,
    "bench_options",
    click.option(
        "--suite",
        default="demo",
        show_default=True,
        metavar="NAME|FILE",
        help="Questions: demo, replay, or a file in the form of Spec-Bench or MT-bench",
    ),
    click.option(
        "--compare",
        default="",
        metavar="NAME,...",
        help="Other contenders: k=4, lookup, recycling, model, llama-server:draft-3, llama-cpp-python, transformers, "
        "genai, openvino-genai:draft-5 ...; a wrong name lists them; peers means all other engines",
    ),
    click.option("--limit", type=int, metavar="N", help="Questions per category [default: all]"),
    click.option(
        "--out",
        type=PATH,
        default=Path("edgespec-bench"),
        show_default=True,
        metavar="DIR",
        help="The folder of the report",
    ),
    click.option("--resume", is_flag=True, help="Continue the interrupted run in --out"),
    click.option("--force", is_flag=True, help="Begin a new run in --out, and overwrite what is there"),
    click.option("--llama-server", type=PATH, metavar="PATH", help="llama.cpp's server [default: the one on the PATH]"),
    click.option("--source", type=PATH, metavar="DIR", help="MODEL's checkpoint, for transformers"),
    click.option("--draft-source", type=PATH, metavar="DIR", help="The draft's checkpoint, for transformers"),
    click.option("--genai", type=PATH, metavar="DIR", help="MODEL as a folder of ONNX Runtime GenAI"),
    click.option("--genai-draft", type=PATH, metavar="DIR", help="The draft as a folder of ONNX Runtime GenAI"),
    click.option(
        "--openvino-genai",
        type=PATH,
        metavar="DIR",
        help="MODEL as a folder of OpenVINO IR, for OpenVINO GenAI [default: MODEL]",
    ),
    click.option(
        "--openvino-genai-draft",
        type=PATH,
        metavar="DIR",
        help="The draft as a folder of OpenVINO IR, for OpenVINO GenAI [default: the draft]",
    ),
    click.option(
        "--python",
        type=PATH,
        metavar="PATH",
        help="A Python with transformers, onnxruntime-genai or openvino-genai [default: this one]",
    ),
)
