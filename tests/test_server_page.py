"""The page in a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec.backends.toy import Bytes, Rule, scripted
from edgespec.prices import Prices

from .served import HELLO, Served, serving
from .test_server_tools import saying
from .toy_runtime import TALK, Gate

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
TEXT = "def f(x): return x + 1\ndef f(x): return x + 2\ndef f(x): return <b>3</b>"
TEXT += "<script>document.title='owned'</script>\n"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium (apt install chromium)")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails the test for messages of the console."""
    context = browser.new_context(viewport={"width": 900, "height": 760})
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text) if _is_wrong(message) else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    yield opened
    context.close()
    assert said == []


def _is_wrong(message: Any) -> bool:
    """The browser itself tells of answers with a status of an error."""
    return message.type in ("error", "warning") and "status of 429" not in message.text


def keep(page: Any, name: str) -> None:
    """A screenshot, where EDGESPEC_SCREENSHOTS names a folder."""
    if folder := os.environ.get("EDGESPEC_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def ask(page: Any, served: Served, text: str = "Hello") -> None:
    page.goto(served.url)
    page.fill("#most", "150")
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answered(page: Any) -> None:
    page.wait_for_selector("#send:visible")
    page.wait_for_selector("article.assistant")


def text_of(page: Any) -> str:
    """The text of the first answer, without what was rejected."""
    found: str = page.evaluate(
        "[...document.querySelector('article.assistant').querySelectorAll(':scope > .text')]"
        ".map(each => [...each.childNodes].filter(n => n.className != 'rejected').map(n => n.textContent).join(''))"
        ".join('')"
    )
    return found


@pytest.fixture
def flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of any width have one price, so that drafts pay."""
    monkeypatch.setattr("edgespec.runtime.opening._priced", lambda *_: Prices([1.0] * 16))


def repeating() -> Rule:
    return scripted(Bytes.size, list(TEXT.encode()))


def test_accepted_is_green_and_rejected_red_and_text_is_inert(page: Any, flat: None) -> None:
    with serving(repeating(), context=1024) as served:
        ask(page, served, "<img src=x onerror=\"document.title='owned'\">")
        answered(page)
        assert page.title() == "edgespec"
        assert page.locator("article script, article b, article img").count() == 0
        assert "<script>document.title='owned'</script>" in text_of(page)
        for name, color in (("accepted", "rgb(17, 99, 41)"), ("rejected", "rgb(164, 14, 38)")):
            span = page.locator(f"article.assistant .{name}").first
            assert span.evaluate("each => getComputedStyle(each).color") == color
            line = span.evaluate("each => getComputedStyle(each).textDecorationLine")
            assert line == ("underline" if name == "accepted" else "line-through")
        rounds = page.locator(".column").count()
        figures = page.inner_text(".figures")
        assert "150 tokens" in figures
        assert "accepted" in figures
        assert 5 < rounds < 150
        keep(page, "toy")


def test_what_was_rejected_is_not_in_the_text_nor_in_the_next_request(page: Any, flat: None) -> None:
    with serving(repeating(), context=1024) as served:
        sent: list[Any] = []
        page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
        ask(page, served)
        answered(page)
        page.fill("#prompt", "Again")
        page.press("#prompt", "Enter")
        page.wait_for_function("document.querySelectorAll('article.assistant').length == 2")
        answered(page)
        kept = text_of(page)
        assert len(kept) == 150
        assert [message["content"] for message in sent[1]["messages"]] == ["Hello", kept, "Again"]
        page.uncheck("#drafts")
        assert page.locator(".rejected:visible").count() == 0


def test_stop_ends_the_answer_and_frees_the_slot(page: Any) -> None:
    gate = Gate(TALK, 60)
    with serving(gate, context=1024) as served:
        ask(page, served)
        assert gate.reached.wait(20)
        page.wait_for_selector(".column")
        page.click("#stop")
        answered(page)
        gate.go_on.set()
        assert "stopped" in page.inner_text(".figures")
        page.wait_for_function(
            "async () => !(await (await fetch('/v1/edgespec/status')).json()).slots.some(slot => slot.busy)"
        )


def test_escape_stops_too_and_enter_sends(page: Any) -> None:
    gate = Gate(TALK, 60)
    with serving(gate, context=1024) as served:
        ask(page, served)
        assert gate.reached.wait(20)
        page.wait_for_selector(".column")
        page.fill("#prompt", "Second")
        page.press("#prompt", "Enter")  # waits, as there is an answer under way
        page.keyboard.press("Escape")
        answered(page)
        gate.go_on.set()
        assert "stopped" in page.inner_text(".figures")
        assert page.locator("article.user").count() == 1
        assert page.input_value("#prompt") == "Second"
        assert page.evaluate("document.activeElement.id") == "prompt"


def test_a_phone_needs_no_horizontal_scrolling(browser: Any) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640}, color_scheme="dark")
    page = context.new_page()
    with serving(scripted(Bytes.size, [*b"x" * 90, 32, *b"word ", 10]), context=1024) as served:
        ask(page, served, "y" * 200)
        answered(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)", "dark"
        page.click("#details")
        page.wait_for_selector("#facts dd")
        assert page.locator("#facts dd").count() > 6
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        keep(page, "phone")
    context.close()


def test_nothing_comes_from_elsewhere(browser: Any) -> None:
    page = browser.new_page()
    with serving() as served:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(served.url)
        page.wait_for_function("document.getElementById('model').textContent")
        assert all(url.startswith(served.url) for url in asked)
        assert served.get("/").headers["content-security-policy"].startswith("default-src 'self'")
        policy = page.evaluate("fetch('https://example.org').then(() => 'sent', () => 'refused')")
        assert policy == "refused"
    page.close()


def test_a_server_with_a_key_asks_for_it(browser: Any) -> None:
    page = browser.new_page()
    with serving(keys=("secret",)) as served:
        page.goto(served.url)
        page.wait_for_selector("#key:visible")
        assert "key" in page.inner_text("#error")
        page.fill("#key", "secret")
        page.fill("#prompt", "Hello")
        page.press("#prompt", "Enter")
        page.wait_for_selector("article.assistant .column")
        assert not page.is_visible("#error")
    page.close()


def test_figures_are_those_of_the_answer(page: Any, flat: None) -> None:
    """As another server counts them, which has not seen this text either."""
    asked = {"messages": HELLO, "temperature": 0, "max_tokens": 150, "edgespec": {"spans": True, "k": 4}}
    with serving(repeating(), context=1024) as served:
        stats = served.post("/v1/chat/completions", asked).json()["edgespec"][0]["stats"]
    assert 0 < stats["accepted"] < stats["drafted"]
    with serving(repeating(), context=1024) as served:
        page.goto(served.url)
        for field, value in (("temperature", "0"), ("length", "4"), ("most", "150"), ("prompt", "Hello")):
            page.fill(f"#{field}", value)
        with page.expect_response("**/v1/chat/completions") as waiting:
            page.press("#prompt", "Enter")
        answered(page)
        chunks = [json.loads(line[6:]) for line in waiting.value.text().splitlines() if line.startswith("data: {")]
        (speedup,) = (each["edgespec"]["stats"]["speedup"] for each in chunks if each["choices"][0]["finish_reason"])
        assert f"{speedup:.2f}× plain decoding" in page.inner_text(".figures")
        share = f"{100 * stats['accepted'] / stats['drafted']:.0f}% of {stats['drafted']} drafted accepted"
        assert share in page.inner_text(".figures")
        title = re.compile(r"(\d+) tokens, (\d+) of (\d+) drafted were accepted")
        found = [title.search(each.get_attribute("title")) for each in page.locator(".column").all()]
        sums = [sum(int(each[n]) for each in found if each) for n in (1, 2, 3)]
        assert sums == [150, stats["accepted"], stats["drafted"]]


def test_an_error_is_shown_and_the_prompt_comes_back(page: Any) -> None:
    with serving() as served:
        page.route(
            "**/v1/chat/completions", lambda route: route.fulfill(status=429, json={"error": {"message": "Full"}})
        )
        ask(page, served, "Hello there")
        page.wait_for_selector("#error:visible")
        assert page.inner_text("#error") == "Full"
        assert page.input_value("#prompt") == "Hello there"
        assert page.locator("article").count() == 0
        page.unroute("**/v1/chat/completions")
        with page.expect_request("**/v1/chat/completions") as sent:
            page.press("#prompt", "Enter")
        answered(page)
        assert [message["content"] for message in sent.value.post_data_json["messages"]] == ["Hello there"]


def test_an_error_within_a_stream_is_shown(page: Any) -> None:
    stream = 'data: {"error": {"message": "Out of memory"}}\n\n'
    with serving() as served:
        page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
        ask(page, served, "Hello there")
        page.wait_for_selector("#error:visible")
        assert page.inner_text("#error") == "Out of memory"


def test_shift_and_enter_is_a_new_line(page: Any) -> None:
    with serving() as served:
        page.goto(served.url)
        page.fill("#prompt", "One")
        page.press("#prompt", "Shift+Enter")
        assert page.input_value("#prompt") == "One\n"
        assert page.locator("article").count() == 0


def test_a_new_chat_and_the_theme(page: Any) -> None:
    with serving() as served:
        ask(page, served)
        answered(page)
        color = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(color)
        page.click("#theme")
        assert page.evaluate(color) != before
        page.click("#new")
        assert page.locator("article").count() == 0
        sent: list[Any] = []
        page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
        page.fill("#prompt", "Again")
        page.press("#prompt", "Enter")
        page.wait_for_selector("article.assistant .column")
        assert [message["content"] for message in sent[0]["messages"]] == ["Again"]


def test_thoughts_are_apart(page: Any) -> None:
    with serving(saying("<think>Hm.</think>Yes."), context=1024) as served:
        vocabulary: Any = served.runtime.vocabulary
        vocabulary.template = f"{Bytes.template}{{% if false %}}<think></think>{{% endif %}}"
        ask(page, served)
        answered(page)
        page.wait_for_selector("details.reasoning:visible")
        page.click("details.reasoning summary")
        assert page.inner_text("details.reasoning .text") == "Hm."
        assert text_of(page) == "Yes."
