"""An agent that calls tools through the server, with OpenAI's client (pip install openai).

    edgespec serve qwen3-8b
    python examples/agent.py "How many lines has README.md?" [URL]

The model reads files of this folder, and no others, until it answers in text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from openai import OpenAI

FOLDER = Path.cwd()
MOST = 8  # answers, after which it gives up
TOOLS = [
    ("list_files", "The names of the files", {}),
    ("read_file", "The text of a file", {"name": {"type": "string"}}),
]


def call(name: str, arguments: str) -> str:
    """The result of a tool, or what is wrong, for the model."""
    try:
        if name == "list_files":
            return "\n".join(sorted(path.name for path in FOLDER.iterdir() if path.is_file()))
        path = (FOLDER / json.loads(arguments)["name"]).resolve()
        return path.read_text(encoding="utf-8")[:4000] if path.parent == FOLDER else "it is not in this folder"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"error: {error}"


def main(question: str, url: str = "http://127.0.0.1:8080") -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="any")
    schema = {"type": "object", "additionalProperties": False}
    functions = [
        {"name": n, "description": d, "parameters": {**schema, "properties": p, "required": list(p)}}
        for n, d, p in TOOLS
    ]
    tools: Any = [{"type": "function", "function": function} for function in functions]
    messages: Any = [{"role": "user", "content": question}]
    for _ in range(MOST):
        said = client.chat.completions.create(model="any", messages=messages, tools=tools).choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            print(said.content)
            return
        for each in said.tool_calls:
            if each.type != "function":
                continue
            print(f"[{each.function.name} {each.function.arguments}]", file=sys.stderr)
            result = call(each.function.name, each.function.arguments)
            messages.append({"role": "tool", "tool_call_id": each.id, "content": result})


if __name__ == "__main__":
    main(*sys.argv[1:])
