"""Acceptance by depth of several drafts for one target, on held-out dialogues, and what a guess costs.

    python -m benchmarks.acceptance TARGET DIALOGUES.jsonl DRAFT... [--server llama-server]

A draft is a draft model or the file of a head. Answers are greedy, one for each dialogue; `--server` loads the same
files in llama.cpp's server, answers the same prompts, and reports for both which share of the answers' tokens was
drafted. Shares of the drafted tokens cannot be compared: the server drafts beyond the end of an answer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edgespec import Device, Runtime, Sampling, Speculation, load
from edgespec.backends import state_head_kind
from edgespec.backends.head_header import head_in
from edgespec.engine import Text

from .dialogues import FILE, Dialogues, dialogues

_HOST, _PORT = "127.0.0.1", 18431


@dataclass(slots=True)
class Depth:
    """Guesses at one depth that were tried, as all before them were right, and those that were right."""

    tried: int = 0
    right: int = 0


def drafter_of(draft: Path) -> str:
    """The name of the drafter that uses a file."""
    return state_head_kind(draft) or head_in(draft) or "model"


def depths(speaker: Runtime, prompts: Sequence[Sequence[int]], name: str, k: int, most: int) -> list[Depth]:
    """What became of the guesses at each depth."""
    found = [Depth() for _ in range(k)]
    for prompt in prompts:
        speculation = Speculation((name,), k)
        for event in speaker.complete(prompt, Sampling(temperature=0), max_tokens=most, speculation=speculation):
            if isinstance(event, Text):
                accepted, drafted = len(event.round.path), len(event.round.draft)
                for depth in range(min(drafted, accepted + 1)):
                    found[depth].tried += 1
                    found[depth].right += depth < accepted
    return found


def prompts_of(speaker: Runtime, chosen: Dialogues, most: int) -> list[list[int]]:
    """For each dialogue the prompt of an answer in its middle."""
    turns = chosen.turns(speaker.vocabulary, speaker.context - most)
    return [prompts[len(prompts) // 2] for prompts in turns if prompts]


@contextlib.contextmanager
def served(server: Path, target: Path, draft: Path, k: int) -> Iterator[None]:
    """llama.cpp's server with a target and its draft."""
    kind = {"model": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}[drafter_of(draft)]
    options = ["-t", "2", "-np", "1", "-c", "2048", "--no-webui", "--spec-type", kind, "--spec-draft-n-max", str(k)]
    command = [str(server), "-m", str(target), "-md", str(draft), *options, "--host", _HOST, "--port", str(_PORT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(300):
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    if _asked("GET", "/health", None).get("status") == "ok":
                        break
                time.sleep(0.2)
            yield
        finally:
            process.terminate()


def _asked(method: str, path: str, body: Any) -> dict[str, Any]:
    connection = http.client.HTTPConnection(_HOST, _PORT, timeout=120)
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body))
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found


def of_server(prompts: Sequence[Sequence[int]], most: int) -> tuple[int, int]:
    """Tokens that the server says after the first of each answer, and those of them that were drafted."""
    tokens = accepted = 0
    for prompt in prompts:
        body = {"prompt": list(prompt), "n_predict": most, "temperature": 0, "top_k": 1, "cache_prompt": True}
        timings = _asked("POST", "/completion", body)["timings"]
        tokens += timings["predicted_n"] - 1
        accepted += timings.get("draft_n_accepted", 0)
    return tokens, accepted


@click.command()
@click.argument("target", type=FILE)
@dialogues(100)
@click.argument("drafts", nargs=-1, type=FILE, required=True)
@click.option("--k", default=4, show_default=True, help="Tokens drafted a round")
@click.option("--max-tokens", "most", default=64, show_default=True, help="Tokens of an answer")
@click.option("--server", type=FILE, help="llama.cpp's llama-server")
def main(target: Path, dialogues: Dialogues, drafts: tuple[Path, ...], k: int, most: int, server: Path | None) -> None:
    """Report the acceptance by depth of DRAFTS for TARGET."""
    for draft in drafts:
        name = drafter_of(draft)
        with load(target, draft, device=Device(threads=2), speculation=Speculation((name,))) as speaker:
            prompts = prompts_of(speaker, dialogues, most)
            found = depths(speaker, prompts, name, k, most)
            ours = totals(speaker, prompts, name, k, most) if server is not None else (0, 0)
            share = speaker.step_prices[name] / speaker.prices.plain()
        shares = " ".join(f"{each.right / max(1, each.tried):.1%}" for each in found)
        drafted = sum(each.right for each in found), sum(each.tried for each in found)
        click.echo(f"{draft.name} ({name}): {shares}; {drafted[0]} right; a guess costs {share:.2f} of a plain step")
        if server is not None:
            with served(server, target, draft, k):
                tokens, accepted = of_server(prompts, most)
            click.echo(f"  of the answers, drafted: edgespec {_share(*ours)}, llama-server {_share(tokens, accepted)}")


def totals(speaker: Runtime, prompts: Sequence[Sequence[int]], name: str, k: int, most: int) -> tuple[int, int]:
    """As `of_server`, which computes the first token with the prompt, and does not count a drafted end of an answer."""
    tokens = accepted = 0
    for prompt in prompts:
        ((first,),) = (each.tokens for each in _rounds(speaker, prompt, 1, Speculation((), 0)))
        for each in _rounds(speaker, [*prompt, first], most - 1, Speculation((name,), k)):
            ended = speaker.vocabulary.is_eog(each.tokens[-1]) and len(each.round.path) == len(each.tokens)
            tokens, accepted = tokens + len(each.tokens), accepted + len(each.round.path) - ended
    return tokens, accepted


def _rounds(speaker: Runtime, prompt: Sequence[int], most: int, speculation: Speculation) -> list[Text]:
    events = speaker.complete(prompt, Sampling(temperature=0), max_tokens=most, speculation=speculation)
    return [event for event in events if isinstance(event, Text) and event.tokens]


def _share(tokens: int, accepted: int) -> str:
    return f"{accepted / max(1, tokens):.1%} of {tokens}"


if __name__ == "__main__":
    main()
