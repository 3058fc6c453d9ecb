"""Minutes of load, and other clients. `pytest -m slow`."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest

from edgespec import Sampling, Text

from .served import HELLO, Served, body, reciting, serving

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("EDGESPEC_LOAD_SECONDS", "300"))
CLIENTS, SEEDS = 64, 20
#: The Python of an environment with llm, langchain-openai and litellm; by default the present one.
PYTHON = os.environ.get("EDGESPEC_CLIENTS_PYTHON", sys.executable)


def expected(served: Served) -> list[str]:
    """What the library says for each seed."""
    texts = []
    for seed in range(SEEDS):
        events = served.runtime.chat(HELLO, Sampling(temperature=1, seed=seed), max_tokens=12)
        texts.append("".join(event.text for event in events if isinstance(event, Text)))
    return texts


def test_many_clients_for_minutes() -> None:
    """Each answer is the library's or 429, and memory does not grow."""
    with serving(slots=4, queue=32) as served:
        known, end = expected(served), time.monotonic() + SECONDS
        memory: list[int] = []
        statuses: Counter[int] = Counter()

        def work(number: int) -> Counter[int]:
            rng, found = random.Random(number), Counter[int]()  # noqa: S311 - no secret
            with httpx.Client(base_url=served.url, timeout=60) as client:  # one of its own: its pool is not for threads
                while time.monotonic() < end:
                    seed = rng.randrange(SEEDS)
                    response = client.post("/v1/chat/completions", json=body(temperature=1, seed=seed))
                    found[response.status_code] += 1
                    if response.status_code == 200:
                        assert response.json()["choices"][0]["message"]["content"] == known[seed]
                    else:
                        assert response.status_code == 429
                        time.sleep(0.05)
            return found

        with ThreadPoolExecutor(CLIENTS) as threads:
            working = [threads.submit(work, number) for number in range(CLIENTS)]
            while time.monotonic() < end:
                time.sleep(SECONDS / 20)
                gc.collect()
                memory.append(psutil.Process().memory_info().rss)
            for each in working:
                statuses.update(each.result(60))
        assert statuses[200] > 100
        assert {*statuses} <= {200, 429}
        assert served.busy() == 0
        settled = memory[len(memory) // 4 :]
        assert max(settled[-3:]) - settled[0] < 16 << 20, memory


#: A folder with `node_modules/openai`, which `npm install openai` makes.
NODE = os.environ.get("EDGESPEC_NPM_CLIENT", "")


@pytest.mark.skipif(not NODE, reason="EDGESPEC_NPM_CLIENT is not set: the folder where `npm install openai` was run")
def test_the_client_for_javascript(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("openai_client.mjs"), tmp_path)
    (tmp_path / "node_modules").symlink_to(Path(NODE) / "node_modules")
    with serving(reciting(), context=1024) as served:
        events = served.runtime.chat(HELLO, Sampling(), max_tokens=100)
        text = "".join(event.text for event in events if isinstance(event, Text))
        command = ["node", str(tmp_path / "openai_client.mjs"), served.url]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not found.stderr
    said = json.loads(found.stdout)
    assert said["refused"] == [400, "context_length_exceeded"]
    assert (said["plain"], said["streamed"], said["predicted"], said["tokens"]) == (text, text, text, 100)
    assert said["accepted"] > 0


SCRIPTS = {
    "langchain_openai": """
from langchain_openai import ChatOpenAI
model = ChatOpenAI(base_url=URL, api_key="x", model="toy", temperature=0, max_tokens=12)
print(repr(model.invoke("Hello").content))
print(repr("".join(chunk.content for chunk in model.stream("Hello"))))
""",
    "litellm": """
from litellm import completion
messages = [{"role": "user", "content": "Hello"}]
asked = dict(model="openai/toy", api_base=URL, api_key="x", messages=messages, temperature=0, max_tokens=12)
print(repr(completion(**asked).choices[0].message.content))
print(repr("".join(chunk.choices[0].delta.content or "" for chunk in completion(**asked, stream=True))))
""",
    "llm": """
from llm.default_plugins.openai_models import Chat
model = Chat(model_id="toy", model_name="toy", api_base=URL, can_stream=True)
model.key = "x"
print(repr(model.prompt("Hello", stream=False, temperature=0, max_tokens=12, key="x").text()))
print(repr("".join(model.prompt("Hello", stream=True, temperature=0, max_tokens=12, key="x"))))
""",
}


@pytest.mark.parametrize("package", SCRIPTS)
def test_other_clients(package: str) -> None:
    installed = f"from importlib.util import find_spec; raise SystemExit(find_spec({package!r}) is None)"
    if find_spec(package) is None and subprocess.run([PYTHON, "-c", installed], check=False).returncode:
        pytest.skip(f"{package} is not installed; EDGESPEC_CLIENTS_PYTHON names the Python of an environment with it")
    with serving() as served:
        script = f"URL = {served.url + '/v1'!r}\n{SCRIPTS[package]}"
        done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        events = served.runtime.chat(HELLO, Sampling(), max_tokens=12)
        text = "".join(event.text for event in events if isinstance(event, Text))
        assert done.stdout.splitlines() == [repr(text)] * 2
