"""The page of a run, from its JSON alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .results import BEGUN, DONE, FAILED, Results

_CLIFF = 1.25  # of a pass to the one before it: a step of the curve
_SHOWN = (1, 2, 3, 4, 6, 8, 9, 12, 16, 24, 32)
_LIST = 3  # figures of an estimate with its interval
Item = Mapping[str, Any]


def write(work: Path) -> Path:
    """Write `page.md` from `results.json` in the folder `work`; returns its path."""
    path = work / "page.md"
    path.write_text(text(Results(work / "results.json").content), "utf-8")
    return path


def text(content: Mapping[str, Any]) -> str:
    """The page, for any part of a run."""
    lines = ["# edgespec on a graphics card", "", *_machine(content.get("machine") or {}), ""]
    if error := content.get("build failed"):
        lines += [f"**The build failed:** {error}", ""]
    steps = content.get("steps") or {}
    lines += [*_state(steps)]
    for title, step, shown in _PARTS:
        if steps.get(step):
            lines += ["", f"## {title}", "", *shown(steps[step])]
    lines += ["", "## Not measured", "", *_NOT_MEASURED]
    return "\n".join(lines) + "\n"


_NOT_MEASURED = (
    "- ONNX Runtime's CUDA provider: its wheel alone has 260 MB, four times what a kit may have. Where the machine has",
    "  `onnxruntime-gpu`, convert a model with `--quant int4-fp16`, and run `edgespec tune` on it.",
    "- Heads and draft models of other trained models than the demo pair: give heads with `--head`.",
)


def _machine(facts: Mapping[str, Any]) -> Iterator[str]:
    card = facts.get("card")
    if card:
        name, memory, driver = (card.get(key, "?") for key in ("name", "memory.total", "driver_version"))
        clocks = f"{card.get('clocks.max.sm', '?')}, memory {card.get('clocks.max.mem', '?')}"
        power = card.get("power.limit", "?")
        yield f"{name}, {memory}, compute capability {card.get('compute_cap', '?')}, {clocks}, {power};"
        yield f"driver {driver}, CUDA {facts.get('cuda')};"
    elif facts:
        yield "**A rehearsal without a card: these figures are of the processor and of tiny models, and no claims.**"
        yield ""
    yield f"{facts.get('processor')}, {facts.get('cores')} cores, {facts.get('memory')} GB; {facts.get('system')};"
    yield f"Python {facts.get('python')}."


def _state(steps: Mapping[str, Any]) -> Iterator[str]:
    yield "| step | done | failed | left out | cut off | seconds |"
    yield "|---|---|---|---|---|---|"
    for name, items in steps.items():
        states = [item["state"] for item in items.values()]
        counts = [states.count(state) for state in (DONE, FAILED, "left out", BEGUN)]
        spent = sum(item.get("seconds", 0) for item in items.values())
        yield f"| {name} | {' | '.join(map(str, counts))} | {spent:.0f} |"


def _build(items: Mapping[str, Item]) -> Iterator[str]:
    for name, item in items.items():
        value = item.get("value") or {}
        yield f"- {name}: {', '.join(f'{key} {each}' for key, each in value.items()) or item['state']}"


def _checks(items: Mapping[str, Item]) -> Iterator[str]:
    yield "| check | | |"
    yield "|---|---|---|"
    for name, item in items.items():
        state = {DONE: "passed", FAILED: "**failed**", BEGUN: "cut off"}.get(item["state"], item["state"])
        yield f"| {name} | {state} | {_told(item)} |"


def _told(item: Item) -> str:
    """What a check said, in a cell."""
    value = item.get("value")
    said = item.get("error", "") if not isinstance(value, dict) else "; ".join(filter(None, map(_pair, value.items())))
    return " ".join(said.split()).replace("|", "/")


def _pair(pair: tuple[str, Any]) -> str:
    name, value = pair
    if name == "passed":
        return ""
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    if isinstance(value, dict):
        value = ", ".join(f"{key} {each}" for key, each in value.items())
    return f"{name}: {value}"


def _prices(items: Mapping[str, Item]) -> Iterator[str]:
    curves = {name: item["value"] for name, item in items.items() if item["state"] == DONE and _is_curve(item)}
    yield "A plain step in milliseconds, the bytes of the weights over it, and passes over n tokens in plain steps: the"
    yield "first and the second pass in a row of its width, and later ones."
    yield ""
    yield f"| | tokens in the cache | ms | GB/s | {' | '.join(f'n = {n}' for n in _SHOWN[1:])} | steps of the curve |"
    yield "|---" * (len(_SHOWN) + 4) + "|"
    for name, value in curves.items():
        for context, passes in value.items():
            if context.partition(",")[0].isdecimal():
                yield f"| {name} | {context} | {' | '.join(_curve(passes, value.get('MB of weights', 0)))} |"
    for name, item in items.items():
        if item["state"] == DONE and not _is_curve(item):
            yield from ("", f"### {name}", "")
            yield from _host(item["value"])
        elif item["state"] != DONE:
            yield from ("", f"{name}: {item['state']}: {_told(item)}")


def _is_curve(item: Item) -> bool:
    return any(key.isdecimal() and "1" in each and "2" in each for key, each in item["value"].items() if _is_map(each))


def _is_map(value: object) -> bool:
    return isinstance(value, dict)


def _curve(passes: Mapping[str, float], megabytes: float) -> Iterator[str]:
    plain = passes["1"]
    yield f"{plain:.2f}"
    yield f"{megabytes / plain:.0f}"
    for n in _SHOWN[1:]:
        yield f"{passes[str(n)] / plain:.2f}" if str(n) in passes else ""
    yield ", ".join(f"{n - 1} to {n}: x {ratio:.2f}" for n, ratio in cliffs(passes)) or "none"


def cliffs(passes: Mapping[str, float]) -> list[tuple[int, float]]:
    """The widths whose pass costs at least a quarter more than the next narrower one, with the ratio of the two."""
    widths = sorted(map(int, passes))
    ratios = ((n, passes[str(n)] / passes[str(n - 1)]) for n in widths if n - 1 in widths)
    return [(n, ratio) for n, ratio in ratios if ratio >= _CLIFF]


def _host(value: Mapping[str, Any]) -> Iterator[str]:
    ways = ("pass", "with logits", "session, argmax")
    yield f"A plain round of the engine: {value['round']} ms. Milliseconds by the width of the pass:"
    yield ""
    device = value.get("on the device") or {}
    yield f"| n | {' | '.join(ways)} | logits and argmax, bare | tokens chosen on the device |"
    yield "|---|---|---|---|---|---|"
    for width, times in value.items():
        if width.isdecimal():
            bare = [device.get(kind, {}).get(width, "") for kind in ("logits", "tokens")]
            yield f"| {width} | {' | '.join(str(each) for each in (*(times[way] for way in ways), *bare))} |"
    if "refused" in device:
        yield f"\n{device['refused']}"
    elif device:
        yield f"\nThe tokens chosen on the device are {'the same' if device['same tokens'] else '**not the same**'}."


def _races(items: Mapping[str, Item]) -> Iterator[str]:
    yield "Speed over plain decoding in the same run, without the prompt; in brackets the 95% interval over questions."
    for name, item in items.items():
        yield from ("", f"### {name}", "")
        if item["state"] != DONE:
            yield "cut off" if item["state"] == BEGUN else f"{item['state']}: {_told(item)}"
            continue
        yield from _race(item["value"])


def _race(value: Mapping[str, Any]) -> Iterator[str]:
    contenders = value["contenders"]
    scopes = list(dict.fromkeys(scope for each in contenders.values() for scope in each["x plain"]))
    yield f"| | tokens/s | {' | '.join(scopes)} | accepted of drafted |"
    yield "|---" * (len(scopes) + 3) + "|"
    for name, each in contenders.items():
        cells = [estimate(each["x plain"].get(scope)) for scope in scopes]
        drafts = f"{each['accepted']} of {each['drafted']}" if each["drafted"] else ""
        yield f"| {name} | {each['tokens a second']} | {' | '.join(cells)} | {drafts} |"
    if over := value.get("edgespec over"):
        yield ""
        yield f"edgespec over {'; '.join(f'{name}: {estimate(each)}' for name, each in over.items())}."
    for told in (*value["problems"], *(f"{name} is left out: {why}" for name, why in value["left out"].items())):
        yield f"\n- {told}"


def estimate(value: list[float] | None) -> str:
    """A figure with its interval."""
    if not value:
        return ""
    return f"{value[0]:.2f}" + (f" ({value[1]:.2f} to {value[2]:.2f})" if len(value) == _LIST else "")


_PARTS = (
    ("Build", "build", _build),
    ("Checks", "check", _checks),
    ("Prices", "prices", _prices),
    ("Speeds", "speeds", _races),
    ("Beside other engines", "peers", _races),
)
