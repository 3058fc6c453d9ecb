"""The runtime: invalid options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import Device, Sampling, Speculation, assemble
from edgespec.backends.toy import Bytes
from edgespec.errors import OptionError

from .toy_runtime import USER, Recorded, opened, read


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(OptionError, match="no drafter 'oracle'; there are lookup, model"):
        assemble(Recorded(), speculation=Speculation(drafters=("lookup", "oracle")))
    with pytest.raises(OptionError, match="no verifier 'hope'; there are match, rejection, block"):
        Speculation(verifier="hope")
    with pytest.raises(OptionError, match="k is -1"):
        Speculation(k=-1)
    for name, value in (
        ("context", -1),
        ("threads", -1),
        ("threads", 100_000),
        ("gpu_layers", -2),
        ("context", 1 << 33),
    ):
        given: dict[str, Any] = {name: value}
        with pytest.raises(OptionError, match=f"{name} is {value}; it must be from"):
            Device(**given)


WRONG: dict[str, Sequence[Any]] = {
    "max_tokens": ("10", 1.5, True, float("nan"), float("inf"), 0, -3, 10**400, [5], b"5"),
    "stop": (5, [5], b"x", ["a", None], {"a": 1}, True, [["a"]]),
    "sampling": ({"temperature": 1}, "greedy", 0.7, Sampling, Device()),
    "speculation": ({"k": 4}, "auto", 4, Speculation, Device()),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_options_of_another_kind_are_refused_on_one_line(name: str, value: Any) -> None:
    runtime, _ = opened()
    asks: list[Callable[[], object]] = [
        lambda: runtime.complete("a", **{name: value}),
        lambda: runtime.chat([USER], **{name: value}),
    ]
    for ask in asks:
        with pytest.raises(OptionError, match=f"{name} is .*; it must be") as caught:
            ask()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (Speculation, "k", ("4", "auto", 1.5, True, float("nan"), 10**400, [4])),
        (Speculation, "drafters", ("lookup", 5, [5], (None,), {"lookup": 1}, [["lookup"]])),
        (Speculation, "verifier", (None, 5, ["match"], {})),
        (Device, "context", ("512", 1.5, True, None, float("inf"), 10**400)),
        (Device, "threads", ("2", 0.5, False, None)),
        (Device, "gpu_layers", ("all", 1.5, None)),
        (Device, "draft_gpu_layers", ("all", float("nan"))),
        (Device, "exact", ("4", 3, 4.5, None, True, [4])),
        (Device, "provider", (None, 5, ["cpu"])),
        (Device, "backend", (None, 5, ["llama"])),
    ],
)
def test_values_of_another_kind_are_refused_on_one_line(kind: type, name: str, values: Sequence[Any]) -> None:
    for value in values:
        with pytest.raises(OptionError, match=name) as caught:
            kind(**{name: value})
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 250


def test_options_that_say_the_same_are_taken() -> None:
    runtime, _ = opened()
    given: dict[str, Any] = {"max_tokens": 3.0, "stop": ["\0\0"], "speculation": Speculation(["lookup"], 4.0)}  # type: ignore[arg-type]
    assert read(runtime.complete("a", **given))[1].stats.tokens == 3
    numpy: Any = np.int64(2)
    assert Speculation(k=numpy).k == 2
    assert (Device(512.0, numpy).context, Device(exact=4.0).exact) == (512, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [None, 5, b"model.gguf", ["a"], object()])
def test_a_model_that_is_no_path_is_refused(model: Any) -> None:
    for arguments in ((model,), ("no such file.gguf", model)):
        with pytest.raises(edgespec.EdgespecError) as caught:
            edgespec.load(*arguments)
        assert "\n" not in str(caught.value)
    wrong: list[dict[str, Any]] = [{"device": "cpu"}, {"speculation": {"k": 4}}]
    for options in wrong:
        with pytest.raises(OptionError, match="it must be a"):
            edgespec.load("x.gguf", **options)
        with pytest.raises(OptionError, match="it must be a"):
            assemble(Recorded(), **options)


def test_a_logit_bias_that_cannot_be_is_refused_before_any_work() -> None:
    runtime, model = opened()
    for bias, said in (
        (((Bytes.size, 1.0),), f"logit bias for token {Bytes.size}"),
        (((-1, 1.0),), "logit bias for token -1"),
        (tuple((token, -np.inf) for token in range(Bytes.size)), "bans them all"),
    ):
        with pytest.raises(OptionError, match=said):
            runtime.complete("abc", Sampling(logit_bias=bias))
    assert list(model.sessions[0].tokens) == []
    banned = tuple((token, -np.inf) for token in range(Bytes.size) if token != 65)
    assert read(runtime.complete("abc", Sampling(1.0, logit_bias=banned), max_tokens=5))[0] == [65] * 5


def test_tokens_and_messages_that_are_none() -> None:
    runtime, _ = opened()
    for tokens in ([99999], [-1]):
        with pytest.raises(OptionError, match="no token"):
            runtime.complete(tokens)
    for messages in ("hi", [1], [{"role": "user"}]):
        with pytest.raises(OptionError):
            runtime.chat(messages)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="pairs"):
        Sampling(logit_bias={5: 1.0})  # type: ignore[arg-type]
