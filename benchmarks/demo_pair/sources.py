"""Text for the demo pair, read from checkouts of the public repositories that hold it.

| folder | what | licence |
|---|---|---|
| dstc8-schema-guided-dialogue | dialogues about bookings, and the values of their slots | CC BY-SA 4.0 |
| Taskmaster | dialogues that order coffee (TM-4-2024) | CC BY 4.0 |
| wiki-split | sentences of Wikipedia, and the same cut in two | CC BY-SA 4.0 |
| botframework-cli | small talk: questions in many wordings, an answer for each group | MIT |
| chatterbot-corpus | small talk and simple knowledge | BSD-3-Clause |

Everything is split into "train" and "held" here, once, so that no task is tested on a text that it was trained on: by
the sources' own test splits, and small talk by a hash of the question.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

REPOSITORIES = {
    "dstc8-schema-guided-dialogue": "google-research-datasets/dstc8-schema-guided-dialogue",
    "Taskmaster": "google-research-datasets/Taskmaster",
    "wiki-split": "google-research-datasets/wiki-split",
    "botframework-cli": "microsoft/botframework-cli",
    "chatterbot-corpus": "gunthercox/chatterbot-corpus",
}
_CHATTER = (
    "conversations",
    "greetings",
    "emotion",
    "food",
    "ai",
    "botprofile",
    "science",
    "history",
    "sports",
    "movies",
)
_ODD = re.compile(r"[^ -~]|[{}<>|=\[\]]|''|http")
Record = dict[str, Any]


def _split(held: bool) -> str:
    return "held" if held else "train"


def held_by_hash(text: str, one_in: int = 10) -> bool:
    """Whether `text` is held out: always the same, and about one text in `one_in`."""
    return int(hashlib.sha256(text.strip().lower().encode()).hexdigest(), 16) % one_in == 0


def sentences(root: Path) -> Iterator[Record]:
    """Sentences of Wikipedia: {"text", "parts", "split"}, where `parts` are two sentences that say the same."""
    for name in ("tune", "validation", "test"):
        for line in (root / "wiki-split" / f"{name}.tsv").read_text(encoding="utf-8").splitlines():
            whole, _, cut = line.partition("\t")
            parts = [_joined(part) for part in cut.split("<::::>")]
            text = _joined(whole)
            if not any(_ODD.search(each) for each in (text, *parts)) and text[:1].isupper():
                yield {"text": text, "parts": parts, "split": _split(name == "test")}


def _joined(text: str) -> str:
    """A sentence as people write it: the source has spaces around punctuation."""
    text = re.sub(r" (['’](?:s|re|ve|ll|d|m|t)\b|n't\b|[.,;:!?)%])", r"\1", " ".join(text.split()))
    return re.sub(r"([($]) ", r"\1", text).replace(" - ", "-")


def dialogues(root: Path) -> Iterator[Record]:
    """{"messages": [...], "slots": [{"text", "values"}], "split"}: turns of user and assistant in alternation."""
    folder = root / "dstc8-schema-guided-dialogue"
    for split in ("train", "dev", "test"):
        for path in sorted((folder / split).glob("dialogues_*.json")):
            for dialogue in json.loads(path.read_text(encoding="utf-8")):
                turns = [(turn["speaker"] == "USER", turn["utterance"]) for turn in dialogue["turns"]]
                slots = [each for turn in dialogue["turns"] if (each := _slots(turn))]
                yield {"messages": messages(turns), "slots": slots, "split": _split(split == "test")}
    for path in sorted((root / "Taskmaster" / "TM-4-2024" / "data").glob("*.json")):
        for dialogue in json.loads(path.read_text(encoding="utf-8")):
            turns = [(turn["speaker"].lower() == "user", turn["text"]) for turn in dialogue["utterances"]]
            held = held_by_hash(dialogue["conversation_id"], 20)
            yield {"messages": messages(turns), "slots": [], "split": _split(held)}


def messages(turns: list[tuple[bool, str]]) -> list[dict[str, str]]:
    """Turns (of the user or not, text) as a chat that the user begins and the assistant ends."""
    made: list[dict[str, str]] = []
    for user, text in turns:
        role, clean = ("user" if user else "assistant"), " ".join(text.split())
        if made and made[-1]["role"] == role:
            made[-1]["content"] += f" {clean}"
        elif made or user:
            made.append({"role": role, "content": clean})
    return made[: len(made) // 2 * 2]


def _slots(turn: dict[str, Any]) -> Record | None:
    """The values of a user's turn that stand in its text word for word."""
    text = turn["utterance"]
    spans = [slot for frame in turn["frames"] for slot in frame["slots"] if "start" in slot]
    if turn["speaker"] != "USER" or not spans:
        return None
    values = {span["slot"]: text[span["start"] : span["exclusive_end"]] for span in spans}
    return {"text": " ".join(text.split()), "values": values}


def small_talk(root: Path) -> Iterator[Record]:
    """{"question", "answer", "split"}: a group of questions has one answer; one in ten questions is held out."""
    folder = root / "botframework-cli" / "packages" / "qnamaker" / "docs" / "qnaFormat" / "english"
    text = (folder / "qna_chitchat_friendly.qna").read_text(encoding="utf-8")
    for group in text.split("# ? ")[1:]:
        asked, _, answered = group.partition("```markdown")
        answer = answered.partition("```")[0].strip()
        for question in asked.splitlines():
            clean = question.removeprefix("- ").strip()
            if clean and not clean.startswith(("**", ">")) and answer:
                yield {"question": clean, "answer": answer, "split": _split(held_by_hash(clean))}
    yield from _chatter(root / "chatterbot-corpus" / "chatterbot_corpus" / "data" / "english")


def _chatter(folder: Path) -> Iterator[Record]:
    """The first question and answer of each conversation: what it has of YAML is `- - question` and `  - answer`."""
    for name in _CHATTER:
        lines = (folder / f"{name}.yml").read_text(encoding="utf-8").splitlines()
        for first, second in pairwise(lines):
            if first.startswith("- - ") and second.startswith("  - "):
                question, answer = (line[4:].strip().strip("'\"") for line in (first, second))
                if question and answer and answer.isascii():
                    yield {"question": question, "answer": answer, "split": "train"}
