"""The calls about tokens: `/tokenize` and `/detokenize`."""

from __future__ import annotations

import asyncio

from .fields import Fields
from .messages import messages
from .openai_requests import think
from .outgoing import Outgoing
from .service import Service

_LONGEST = 1 << 20  # characters; tokenizing takes up to 300 bytes of memory for each


async def tokenize(service: Service, fields: Fields, out: Outgoing) -> None:
    """`POST /tokenize`: `{"content"}`, a text (`"prompt"` is another name), or `{"messages"}`, by the chat template, to
    `{"tokens", "count"}`. `"add_special": true` begins a text as a prompt begins."""
    runtime = service.runtime
    if fields.has("messages"):
        conversation, how = messages(fields), think(fields)
        tokens = await asyncio.to_thread(runtime.prompt, conversation, how)
    else:
        name = "content" if fields.has("content") else "prompt"
        if not fields.has(name):
            raise fields.wrong("content", "a text")
        text, start = fields.text(name, most=_LONGEST), fields.flag("add_special")
        tokens = await asyncio.to_thread(lambda: runtime.vocabulary.tokenize(text, start=start))
    await out.json({"tokens": tokens, "count": len(tokens)})


async def detokenize(service: Service, fields: Fields, out: Outgoing) -> None:
    """`POST /detokenize`: `{"tokens"}` to `{"content"}`."""
    tokens = fields.items("tokens", most=_LONGEST)
    text = await asyncio.to_thread(service.runtime.text, tokens)
    await out.json({"content": text})
