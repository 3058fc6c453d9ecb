"""PARD draft models: from config.json to the file's header, and from that to blocks of guesses, in every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgespec
from edgespec import Device, Finished, Sampling, Speculation
from edgespec.backends import Interrupt, open_model
from edgespec.backends.parallel import Parallel, parallel_of
from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.bench.replay import SharedModel
from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.converters import Note, convert
from edgespec.drafters import Drafter, Target
from edgespec.drafters.block_rows import BlockRows
from edgespec.drafters.pard import PardDrafter
from edgespec.errors import ConversionError, ModelFileError
from edgespec.prices import Prices
from edgespec.sampling import distribution
from edgespec.terminal.expected_speedup import speedup_lines
from edgespec.terminal.models import shown as models_shown
from edgespec.testing import DRAFTER_LAWS, DrafterCase, LawError
from edgespec.types import Floats, Guess

from . import checkpoints
from .fuzz.gguf_file import Gguf
from .helpers import in_blocks, round_context

MASK = 7
PROMPT = list(range(20, 60))
SAMPLINGS = {"greedy": Sampling(), "0.8": Sampling(temperature=0.8, seed=3)}


def checkpoint(folder: Path, **config: object) -> Path:
    """A random model that is its own draft: after the last real token it says what the target says."""
    return checkpoints.llama(folder, config=config)


def converted(source: Path, output: Path, fmt: str) -> tuple[Path, list[str]]:
    """The model, and what the conversion noted."""
    quantization = {"gguf": "f16", "onnx": "fp32"}[fmt]
    notes = [
        step.text for step in convert(source, output, fmt=fmt, quantization=quantization) if isinstance(step, Note)
    ]
    return output, notes


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target and a PARD draft with the same weights, by format."""
    folder = tmp_path_factory.mktemp("pard")
    plain = checkpoint(folder / "target")
    pard = checkpoint(folder / "draft", pard_token=MASK, edgespec_parallel=6)
    found = {}
    for fmt, suffix in ("gguf", ".gguf"), ("onnx", "-onnx"):
        found[f"target {fmt}"], notes = converted(plain, folder / f"target{suffix}", fmt)
        assert not any("PARD" in note for note in notes)
        found[f"draft {fmt}"], notes = converted(pard, folder / f"draft{suffix}", fmt)
        assert any(note.startswith("a PARD draft: a pass guesses up to 6 tokens") for note in notes)
    return found


#: Engines of the target and of the draft.
ENGINES = [("llama", "llama"), ("onnx", "onnx"), ("openvino", "openvino"), ("llama", "onnx"), ("openvino", "llama")]


def opened(models: dict[str, Path], engines: tuple[str, str], **options: object) -> edgespec.Runtime:
    fmt = {"llama": "gguf", "onnx": "onnx", "openvino": "onnx"}
    target, draft = (models[f"{role} {fmt[engine]}"] for role, engine in zip(("target", "draft"), engines, strict=True))
    device = Device(threads=1, context=256, backend=engines[0], draft_backend=engines[1])
    return edgespec.load(target, draft=draft, device=device, speculation=Speculation(**options))  # type: ignore[arg-type]


def said(runtime: edgespec.Runtime, sampling: Sampling, **options: object) -> tuple[list[int], edgespec.Stats]:
    tokens, stats = list[int](), None
    speculation = Speculation(**options)  # type: ignore[arg-type]
    for event in runtime.complete(PROMPT, sampling, max_tokens=40, speculation=speculation):
        if isinstance(event, Finished):
            stats = event.stats
        tokens += getattr(event, "tokens", ())
    assert stats is not None
    return tokens, stats


# --- the header


@pytest.mark.parametrize("fmt", ["gguf", "onnx"])
def test_the_mask_token_is_passed_on_and_read(models: dict[str, Path], fmt: str) -> None:
    backends = {"gguf": ["llama"], "onnx": ["onnx", "openvino"]}[fmt]
    for backend in backends:
        for role, expected in ("draft", Parallel(MASK, 6)), ("target", None):
            model = open_model(models[f"{role} {fmt}"], Device(threads=1, backend=backend), Interrupt())
            assert parallel_of(model) == parallel_of(SharedModel(model)) == expected
            model.close()


def test_a_checkpoint_that_does_not_say_how_many_guesses_a_pass_makes(tmp_path: Path) -> None:
    path, _ = converted(checkpoint(tmp_path / "source", pard_token=MASK), tmp_path / "model.gguf", "gguf")
    model = open_model(path, Device(threads=1), Interrupt())
    assert parallel_of(model) == Parallel(MASK, 12)
    model.close()


@pytest.mark.parametrize("fmt", ["gguf", "onnx"])
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"pard2": True}, "pard2 marks a PARD-2 draft"),
        ({"pard_token": MASK, "pard2_target_layers": [1, 2]}, "pard2_target_layers marks a PARD-2 draft"),
        ({"pard_token": 10**6}, "pard_token is 1000000; expected a token below vocab_size"),
        ({"pard_token": -1}, "pard_token is -1"),
        ({"pard_token": "<mask>"}, "pard_token is '<mask>'"),
        ({"pard_token": True}, "pard_token is True"),
        ({"pard_token": MASK, "edgespec_parallel": 0}, "edgespec_parallel is 0"),
    ],
)
def test_what_is_no_pard_draft_is_refused_in_one_line(
    config: dict[str, object], says: str, fmt: str, tmp_path: Path
) -> None:
    output = tmp_path / {"gguf": "model.gguf", "onnx": "model"}[fmt]
    with pytest.raises(ConversionError, match=says) as raised:
        converted(checkpoint(tmp_path / "source", **config), output, fmt)
    assert "\n" not in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize(
    ("mask", "guesses", "says"),
    [
        (None, 8, "edgespec.parallel needs a mask token, and tokenizer.ggml.mask_token_id is 'None'"),
        (1 << 20, 8, "mask_token_id is '1048576', not one of"),
        (MASK, 0, "edgespec.parallel is '0', not a number of guesses from 1 to 64"),
        (MASK, 1 << 30, "edgespec.parallel is '1073741824'"),
    ],
)
def test_a_gguf_header_that_contradicts_itself_is_refused(
    mask: int | None, guesses: int, says: str, models: dict[str, Path], tmp_path: Path
) -> None:
    file = Gguf.read(models["draft gguf"]).put("edgespec.parallel", 4, guesses)
    file = file.without("tokenizer.ggml.mask_token_id")
    if mask is not None:
        file = file.put("tokenizer.ggml.mask_token_id", 4, mask)
    (tmp_path / "bad.gguf").write_bytes(file.written())
    with pytest.raises(ModelFileError, match=says) as raised:
        open_model(tmp_path / "bad.gguf", Device(threads=1), Interrupt())
    assert "\n" not in str(raised.value)


def test_a_gguf_mask_token_alone_makes_no_pard_draft(models: dict[str, Path], tmp_path: Path) -> None:
    """Models that fill gaps in a text have one, too."""
    file = Gguf.read(models["draft gguf"]).without("edgespec.parallel")
    (tmp_path / "filling.gguf").write_bytes(file.written())
    model = open_model(tmp_path / "filling.gguf", Device(threads=1), Interrupt())
    assert parallel_of(model) is None
    model.close()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("edgespec.mask_token", None, "edgespec.parallel needs a mask token"),
        ("edgespec.mask_token", "99999999", "not one of"),
        ("edgespec.mask_token", "seven", "not one of"),
        ("edgespec.parallel", "-3", "not a number of guesses"),
    ],
)
def test_onnx_metadata_that_contradicts_itself_is_refused(
    key: str, value: str | None, says: str, models: dict[str, Path], tmp_path: Path
) -> None:
    for file in models["draft onnx"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    model = onnx.load_model(tmp_path / "model.onnx", load_external_data=False)
    entries = {entry.key: entry.value for entry in model.metadata_props if entry.key != key}
    onnx.helper.set_model_props(model, {**entries, **({key: value} if value is not None else {})})
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match=says) as raised:
        open_model(tmp_path, Device(threads=1, backend="onnx"), Interrupt())
    assert "\n" not in str(raised.value)


def test_models_show_tells_a_pard_draft(models: dict[str, Path]) -> None:
    for fmt in "gguf", "onnx":
        lines = list(models_shown(str(models[f"draft {fmt}"]), 0))
        assert "PARD: as a draft model it guesses up to 6 tokens in one pass" in lines
    with_draft = list(models_shown(str(models["target gguf"]), 0))  # found beside it
    assert "PARD: the draft model guesses up to 6 tokens in one pass" in with_draft
    assert not any("PARD" in line for line in models_shown(str(models["target onnx"]), 0))


def test_the_speedup_expected_of_a_pard_draft_counts_blocks() -> None:
    """A step that takes half a plain one pays; a guess in a block of four for the same price takes an eighth."""
    prices = Prices([1.0 + 0.05 * n for n in range(16)])
    lines = [next(speedup_lines(prices, Prices([0.5] * 16), None, guesses)) for guesses in (1, 4)]
    assert [line.split()[-3] for line in lines] == ["0.50", "0.12"]


# --- in the runtime


@pytest.mark.parametrize("engines", ENGINES, ids="-".join)
def test_blocks_are_lossless_in_every_engine(models: dict[str, Path], engines: tuple[str, str]) -> None:
    """The first guess of each block is right here, the others are what a random model says after masks."""
    with opened(models, engines, drafters=("pard",), k=5) as runtime:
        assert runtime.drafters == ("lookup", "pard")
        for sampling in SAMPLINGS.values():
            plain, _ = said(runtime, sampling, k=0)
            for verifier in ("match", *(("rejection", "block") if sampling.greedy else ())):
                for k in (3, 5, 9, None):
                    tokens, stats = said(runtime, sampling, drafters=("pard",), k=k, verifier=verifier)
                    assert tokens == plain, f"{verifier}, k={k}"
                    if k is not None:
                        assert 0 < stats.accepted < stats.drafted
        for verifier in ("rejection", "block"):
            tokens, stats = said(runtime, SAMPLINGS["0.8"], drafters=("pard",), k=5, verifier=verifier)
            assert len(tokens) == 40
            assert stats.accepted > 0


def test_a_pard_draft_is_an_ordinary_one_by_name(models: dict[str, Path]) -> None:
    for drafters, expected in (None, "pard"), (("model",), "model"), (("pard", "lookup"), "pard"):
        with opened(models, ("llama", "llama"), drafters=drafters) as runtime:
            assert expected in runtime.drafters
            assert len(set(runtime.drafters) & {"model", "pard"}) == 1
    with opened(models, ("llama", "llama"), drafters=("model",), k=4) as runtime:
        _, stats = said(runtime, Sampling(), k=4, drafters=("model",))
        assert stats.accepted >= 0.8 * stats.drafted, "step by step it says what the target says"


def test_there_is_no_pard_drafter_without_its_header(models: dict[str, Path]) -> None:
    plain = {**models, "draft gguf": models["target gguf"]}
    with pytest.raises(edgespec.OptionError, match="'pard' a PARD draft model"):
        opened(plain, ("llama", "llama"), drafters=("pard",))


def test_the_demo_draft_as_a_pard_draft(small_pair: dict[str, Path], tmp_path: Path) -> None:
    """Its first guesses know the target; it was never trained on masks."""
    file = Gguf.read(small_pair["draft"]).put("tokenizer.ggml.mask_token_id", 4, 190).put("edgespec.parallel", 4, 4)
    (tmp_path / "draft.gguf").write_bytes(file.written())
    device, speculation = Device(threads=1, context=512), Speculation(drafters=("pard",), k=3)
    with edgespec.load(
        small_pair["target"], draft=tmp_path / "draft.gguf", device=device, speculation=speculation
    ) as runtime:
        for sampling in SAMPLINGS.values():
            prompt = "I need a train to San Diego on the 7th of this month. "
            texts = []
            for each in Speculation(k=0), speculation, Speculation(drafters=("pard",)):
                events = list(runtime.complete(prompt, sampling, max_tokens=48, speculation=each))
                texts.append("".join(getattr(event, "text", "") for event in events))
                if each is speculation:
                    depths = events[-1].stats.by_depth  # type: ignore[union-attr]
                    assert depths[0][1] >= 0.5 * depths[0][0]
            assert len(set(texts)) == 1


# --- passes


@pytest.mark.parametrize("backend", ["llama", "onnx", "openvino"])
def test_the_guesses_of_a_block_are_the_rows_of_one_pass(models: dict[str, Path], backend: str) -> None:
    fmt = "gguf" if backend == "llama" else "onnx"
    model = open_model(models[f"draft {fmt}"], Device(threads=1, backend=backend), Interrupt())
    session, other = model.session(256), model.session(256)
    drafter = PardDrafter(session, session.vocab, MASK, [0.1] * 6)
    for context, planned in (PROMPT, 6), (PROMPT[:-3], 4), ([*PROMPT, 9, 8, 7, 6], 6):
        other.rollback(0)
        rows = other.decode((*context, *[MASK] * (planned - 1)))[-planned:]
        place = round_context(context)
        drafter.begin(place)
        drafter.plan(planned)
        before = list(session.tokens)
        guesses = [drafter.guess((11,) * depth, 1)[0].token for depth in range(planned)]
        rows[:, MASK] = -np.inf
        assert guesses == rows.argmax(axis=1).tolist()
        assert list(session.tokens) == [*context, *[MASK] * (planned - 1)] != before
    other.close()
    drafter.close()
    model.close()


def toy(rule: Callable[[Sequence[int]], Floats], vocab: int, guesses: int = 4) -> tuple[PardDrafter, ToySession]:
    session = ToySession(in_blocks(rule, vocab - 1), vocab, 40)
    return PardDrafter(session, vocab, vocab - 1, [0.1] * guesses), session


def test_one_pass_a_block_and_masks_are_never_guessed() -> None:
    rule = ngram_rule(16, order=2, seed=1)
    drafter, session = toy(lambda context: rule(context) + 99 * np.eye(16, dtype=np.float32)[15], 16)
    drafter.begin(round_context([1, 2, 3]))
    guesses = [drafter.guess((4,) * depth, 3) for depth in range(4)]
    assert len(session.passes) == 1
    assert all(len(each) == 3 and 15 not in [guess.token for guess in each] for each in guesses)
    assert drafter.guess((4, 4), 3) is guesses[2], "it is made once"
    drafter.guess((4,) * 4, 1)
    assert len(session.passes) == 2
    assert list(session.tokens) == [1, 2, 3, 4, 4, 4, 4, 15, 15, 15]


def test_a_block_ends_where_the_context_is_full() -> None:
    drafter, session = toy(ngram_rule(16, seed=1), 16)
    for held, n in (38, 3), (39, 2), (40, 1), (41, 0):
        drafter.begin(round_context([1] * held))
        guesses = drafter.guess((), 1)
        assert len(guesses) == (n > 0)
        assert n == 0 or len(session.tokens) == 40


# --- the law of the text


class Shifted(BlockRows):
    """A planted error: the token is drawn from its own row, and the q given with it is that of the first."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        (guess,) = super().guess(path, most)
        if guess.q is None:
            return (guess,)
        q = distribution(self._rows[0], self._round_context.sampling, ())
        return (guess._replace(q=q if q.of(guess.token) > 0 else guess.q),)


def drafts_in_blocks(target: Target) -> PardDrafter:
    vocab = target.vocabulary.size
    return toy(ngram_rule(vocab, order=1, seed=4, sharpness=1.0), vocab, 3)[0]


def test_the_distribution_is_kept_exactly_and_a_planted_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By enumeration of all outcomes of a round, which sees any error above 1e-9."""
    law = DRAFTER_LAWS["keeps_the_distribution"]
    law(DrafterCase(drafts_in_blocks))
    monkeypatch.setattr("edgespec.drafters.pard.BlockRows", Shifted)
    with pytest.raises(LawError, match="has the probability"):
        law(DrafterCase(drafts_in_blocks))


@pytest.mark.parametrize("trees", [False, True])
def test_the_adaptive_controller_keeps_the_distribution(trees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far a block is drawn must not depend on the tokens drawn."""

    def controller(drafters: Sequence[Drafter], _k: int) -> Controller:
        return Adaptive(drafters, Prices([1.0, 1.05, 1.1]), trees=trees, clock=lambda: 0.0)

    monkeypatch.setattr("edgespec.testing.drafters.ChainController", controller)
    case = DrafterCase(drafts_in_blocks)
    DRAFTER_LAWS["keeps_the_distribution"](case)
    assert case.guesses > 0
