"""The kit: all that a training needs, in one folder of a few megabytes, so that a machine without a network can train.

sentences.jsonl.gz, dialogues.jsonl.gz, talk.jsonl.gz    records as sources.py describes them
tokenizer.json, tokenizer_config.json
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from . import sources
from .sources import Record
from .tasks import Texts, texts

_READERS = {"sentences": sources.sentences, "dialogues": sources.dialogues, "talk": sources.small_talk}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def write_kit(checkouts: Path, folder: Path) -> dict[str, int]:
    """Read the checkouts and write the kit's texts; returns how many records each file has."""
    folder.mkdir(parents=True, exist_ok=True)
    return {name: _write(folder / f"{name}.jsonl.gz", reader(checkouts)) for name, reader in _READERS.items()}


def _write(path: Path, records: Iterable[Record]) -> int:
    unique = dict.fromkeys(json.dumps(record, ensure_ascii=False) for record in records)
    unfinished = path.with_suffix(".unfinished")
    with gzip.open(unfinished, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in unique)
    unfinished.replace(path)
    return len(unique)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Take the tokenizer of a checkpoint."""
    for name in TOKENIZER:
        shutil.copy(source / name, folder / name)


def records(folder: Path, name: str, split: str) -> list[Record]:
    """The records of one split ("train" or "held")."""
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [record for line in file if (record := json.loads(line))["split"] == split]


def kit_texts(folder: Path, split: str) -> Texts:
    """What the tasks of one split are made from."""
    return texts(*(records(folder, name, split) for name in ("sentences", "dialogues", "talk")))
