"""A synthetic mixture of experts: what its passes cost by the tokens they have, and what speculation may lose there.

    python -m benchmarks.experts MODEL.gguf [--experts 64] [--used 4] [--threads 2] [--tokens 400]

Writes the model first where there is none: a Qwen3 MoE of random weights in Q8_0 with the tokens of the demo pair, by
default of 343 MB. Passes of 1 to 16 tokens are timed by turns with tokens 1, 2, 3, ..., with text, and with one
repeated token. Then plain decoding, look-ups and a drafter that is always wrong take turns on sampled text, which
cannot be guessed: with prices measured on text, and with those of consecutive tokens.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import resources
from itertools import count, cycle, islice
from pathlib import Path

import click
import gguf
import numpy as np

from edgespec import Sampling
from edgespec.backends import Device, Interrupt, Session, open_model
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.drafters.lookup import Lookup
from edgespec.engine import Engine, Request, Text
from edgespec.prices import Prices, measure, sample_text
from edgespec.types import Guess, Round
from edgespec.verify import RoundContext, verifier

from .bench import Endless, race

_LAYERS, _WIDTH, _INNER, _HEADS, _KV_HEADS, _HEAD = 8, 768, 256, 12, 4, 64
_Q8_0 = gguf.GGMLQuantizationType.Q8_0
_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_SWEEPS = 15
_CONTEXT = 2048


class AlwaysWrong:
    """Guesses at no price, and is never right."""

    name = "wrong"
    step_price = 0.0

    def __init__(self, vocab: int) -> None:
        self._vocab, self._random = vocab, random.Random(1)  # noqa: S311 - no secret

    def begin(self, round_context: RoundContext) -> None:
        """Nothing to prepare."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:  # noqa: ARG002
        return [Guess(self._random.randrange(self._vocab), 0.9)]

    def observe(self, round: Round) -> None:  # noqa: A002
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to free."""


def write(path: Path, experts: int, used: int) -> None:
    """A model of random weights."""
    demo = gguf.GGUFReader(Path(str(resources.files("edgespec.models"))) / "demo" / "target.gguf")
    writer, draw = gguf.GGUFWriter(path, "qwen3moe"), np.random.default_rng(0)
    writer.add_context_length(32768)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_key_length(_HEAD)
    writer.add_value_length(_HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(used)
    writer.add_expert_feed_forward_length(_INNER)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for field in demo.fields.values():
        if field.name.startswith("tokenizer.") and field.name != "tokenizer.chat_template":
            part = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], part)
    tokens = len(demo.fields["tokenizer.ggml.tokens"].data)
    for name, shape in _shapes(tokens, experts):
        values = (draw.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, np.abs(values) + 1)
        elif name.endswith("ffn_gate_inp.weight"):
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, _Q8_0), raw_dtype=_Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(tokens: int, experts: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (tokens, _WIDTH)
    yield "output.weight", (tokens, _WIDTH)
    yield "output_norm.weight", (_WIDTH,)
    for layer in range(_LAYERS):
        for name, shape in {
            "attn_norm": (_WIDTH,),
            "attn_q": (_HEADS * _HEAD, _WIDTH),
            "attn_k": (_KV_HEADS * _HEAD, _WIDTH),
            "attn_v": (_KV_HEADS * _HEAD, _WIDTH),
            "attn_output": (_WIDTH, _HEADS * _HEAD),
            "attn_q_norm": (_HEAD,),
            "attn_k_norm": (_HEAD,),
            "ffn_norm": (_WIDTH,),
            "ffn_gate_inp": (experts, _WIDTH),
            "ffn_gate_exps": (experts, _INNER, _WIDTH),
            "ffn_up_exps": (experts, _INNER, _WIDTH),
            "ffn_down_exps": (experts, _WIDTH, _INNER),
        }.items():
            yield f"blk.{layer}.{name}.weight", shape


def curves(session: Session, streams: dict[str, Iterator[int]]) -> dict[str, dict[int, float]]:
    """The median seconds of a pass by the name of its tokens and its width."""
    times: dict[str, dict[int, list[float]]] = {name: {n: [] for n in _WIDTHS} for name in streams}
    for _ in range(_SWEEPS):
        for width in _WIDTHS:
            for name, stream in streams.items():
                tokens, before = list(islice(stream, width)), time.perf_counter()
                held = len(session.tokens)
                session.decode(tokens)
                times[name][width].append(time.perf_counter() - before)
                session.rollback(held)
    return {name: {n: statistics.median(seconds[1:]) for n, seconds in row.items()} for name, row in times.items()}


def seconds_a_token(engines: Mapping[str, Engine], request: Request) -> dict[str, float]:
    """Seconds a token of each engine, without the prompt; they take turns by the round."""
    seconds, said = dict.fromkeys(engines, 0.0), dict.fromkeys(engines, 0)
    for name, event, took in race(engines, request):
        if isinstance(event, Text):
            seconds[name] += took
            said[name] += len(event.tokens)
    return {name: seconds[name] / said[name] for name in engines}


@click.command()
@click.argument("path", metavar="MODEL.gguf", type=click.Path(path_type=Path))
@click.option("--experts", default=64, show_default=True)
@click.option("--used", default=4, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--tokens", default=400, show_default=True, help="Tokens of each answer")
@click.option("--answers", default=4, show_default=True)
@click.option("--only-write", is_flag=True)
def main(path: Path, experts: int, used: int, threads: int, tokens: int, answers: int, only_write: bool) -> None:
    """Measure passes and speculation of a mixture of experts."""
    if not path.exists():
        write(path, experts, used)
    if only_write:
        return
    say: Callable[[str], None] = click.echo
    interrupt = Interrupt()
    with closing(open_model(path, Device(_CONTEXT, threads), interrupt)) as model:
        text, vocab = sample_text(model.vocabulary), model.vocabulary.size
        with closing(model.session(_CONTEXT)) as session:
            session.prefill(text[:64])
            ids = (1 + n % (vocab - 2) for n in count())
            found = curves(session, {"1, 2, 3": ids, "text": cycle(text), "one token": cycle(text[:1])})
            for name, row in found.items():
                relative = "  ".join(f"{n}: {seconds / row[1]:.2f}" for n, seconds in row.items())
                say(f"{name:10} t(1) {row[1] * 1e3:.2f} ms; t(n)/t(1) {relative}")
            session.rollback(0)
            priced = {"text": measure(session, text=text, budget=4.0), "1, 2, 3": measure(session, budget=4.0)}
        sessions = [model.session(_CONTEXT) for _ in range(6)]
        rule, pieces = verifier("match"), Endless(model.vocabulary)
        engines = {}
        for name, curve in priced.items():
            for what, drafters in (("wrong", [AlwaysWrong(vocab)]), ("look-ups", [Lookup()])):
                prices = Prices(curve)
                controller = Adaptive(drafters, prices)
                engines[f"{what}, priced by {name}"] = Engine(
                    sessions.pop(), pieces, controller, rule, interrupt, prices
                )
        for name in ("plain, again", "plain"):
            engines[name] = Engine(sessions.pop(), pieces, Fixed([], 0), rule, interrupt, Prices(priced["text"]))
        took: dict[str, list[float]] = {name: [] for name in engines}
        for seed in range(answers):
            prompt = list(islice(cycle(text), seed * 40, seed * 40 + 120))
            request = Request(prompt, Sampling(temperature=1.0, seed=seed), max_tokens=tokens)
            for name, each in seconds_a_token(engines, request).items():
                took[name].append(each)
            ratios = ", ".join(f"{name}: {took['plain'][-1] / took[name][-1]:.3f}" for name in engines)
            say(f"answer {seed}: {ratios}")
        for name, all_ in took.items():
            say(f"{name}: {sum(took['plain']) / sum(all_):.3f} of plain")


if __name__ == "__main__":
    main()
