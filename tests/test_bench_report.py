"""The reports of a benchmark: whole files, nothing from elsewhere, nothing unsaid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from edgespec.bench.records import OURS, PLAIN, ContenderEntry, Depth, Pass, PassPrices, Run
from edgespec.bench.report import VERSION, html, markdown, write
from edgespec.bench.report.charts import charts
from edgespec.bench.report.charts.chart import NARROW, WIDE, Chart, leading
from edgespec.bench.report.tables import ReportTable, tables
from edgespec.bench.report.wording import bounds, headline, interruption, ratio, remarks, three, with_bounds
from edgespec.bench.speedups import Estimate
from edgespec.errors import OptionError

from .benchruns import HOSTILE, answer, fabricated, run

VOID = {"meta", "link", "img", "br"}
FORCED = fabricated(answers=tuple(each for each in fabricated().answers if each.replayed))
PARTIAL = {
    "nothing": run(),
    "no answers": fabricated(answers=()),
    "no answers, interrupted": fabricated(answers=(), interrupted=True),
    "plain alone": fabricated(answers=tuple(fabricated().by(PLAIN))),
    "ours alone": fabricated(answers=tuple(fabricated().by(OURS))),
    "one question": fabricated(answers=tuple(a for a in fabricated().answers if a.question == "chat-0")),
    "no bursts, no rounds": run([answer(q, name, 10, 1.0) for q in "ab" for name in (PLAIN, OURS)]),
    "no time, no tokens": run([answer(q, name, 0, 0.0) for q in "ab" for name in (PLAIN, OURS)]),
    "replayed alone": FORCED,
    "no prices": fabricated(prices=PassPrices((), None)),
    "prices of narrow passes alone": fabricated(prices=PassPrices((0.02, 0.03), None)),
}


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.shown: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.shown.append(data)

    def of(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag in tags]

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name)) is not None]


@pytest.fixture(scope="module")
def text() -> str:
    """The page of the run that was made up."""
    return html.page(fabricated())


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


@pytest.fixture(scope="module")
def drawings() -> list[Chart]:
    return charts(fabricated())


def test_json_holds_all_of_a_run(tmp_path: Path) -> None:
    made = fabricated(interrupted=True)
    paths = write(made, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["bench.json", "report.md", "report.html"]
    assert sorted(tmp_path.glob("new/folder/*")) == sorted(paths)
    kept = json.loads(paths[0].read_bytes())
    assert kept.pop("version") == VERSION
    assert Run.of(kept) == made
    assert Run.of(json.loads(json.dumps(run().as_dict()))) == run(contenders=())


def test_reports_are_the_same_to_the_byte(text: str) -> None:
    assert html.page(fabricated()) == text
    assert markdown.page(fabricated()) == markdown.page(fabricated())


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"cannot be written to .*file.*--resume writes it"):
        write(run(), tmp_path / "file")


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_report_is_there_whole_or_as_it_was(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write(run(), tmp_path)
    before = [path.read_bytes() for path in paths]

    def half(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise fault

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises((KeyboardInterrupt, OptionError)):
        write(fabricated(), tmp_path)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_half_a_character_is_no_obstacle(tmp_path: Path) -> None:
    made = run([answer("\ud800", PLAIN, 1, 1.0)], suite="\ud800")
    json_path, _, page_path = write(made, tmp_path)
    assert Run.of({k: v for k, v in json.loads(json_path.read_bytes()).items() if k != "version"}).suite == "\ud800"
    assert "bench: \ufffd" in page_path.read_text("utf-8")


@pytest.mark.parametrize("name", PARTIAL)
def test_a_part_of_a_run_renders(name: str) -> None:
    made = PARTIAL[name]
    for shown in ("".join(Page(html.page(made)).shown), markdown.page(made)):
        assert "nan" not in shown.lower()
        assert " inf" not in shown
        assert ("interrupted" in shown) == made.interrupted


def test_a_run_without_answers_says_so() -> None:
    assert headline(run()).startswith("No result")
    assert headline(PARTIAL["plain alone"]).startswith("No result")


def test_the_page_needs_nothing_else(text: str, page: Page) -> None:
    assert not page.of("script", "iframe", "object", "embed", "base", "img", "image", "foreignobject", "form")
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.of("link") == [{"rel": "icon", "href": "data:,"}]
    references = [*page.values("href"), *page.values("xlink:href"), *page.values("src")]
    assert [each for each in references if not each.startswith(("#", "data:,"))] == []
    assert [each for each in re.findall(r"url\(([^)]*)", text) if not each.startswith("#")] == []
    assert "@import" not in text


def test_references_within_the_page_lead_to_one_place(text: str, page: Page) -> None:
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    asked = {*re.findall(r"url\(#([^)]*)", text), *(each[1:] for each in page.values("xlink:href"))}
    assert asked
    assert asked <= set(ids)


def test_what_is_said_cannot_become_markup(text: str, page: Page) -> None:
    assert "alert" in text
    assert "<script" not in text
    assert "<b>thing" not in text
    assert "example.com" not in "".join(page.values("src"))
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", text)
    shown = "".join(page.shown)
    assert '<script>alert("x")</script> & <img src="https://example.com/x.png"> ␛[31m␀ | `code`' in shown
    assert "sure <b>thing</b>, " in page.shown


@pytest.mark.parametrize("field", ["category", "contender", "question", "drafter", "suite", "title", "about"])
def test_no_name_is_trusted(field: str) -> None:
    name = HOSTILE + "\n# $x_1^{$"
    names = {"category": "chat", "contender": "peer", "question": "q", "drafter": "model", field: name}
    ours = next(each for each in fabricated().by(OURS) if not each.replayed)
    told: dict[str, Any] = {
        "bursts": ours.bursts,
        "passes": ours.passes,
        "strip": ours.strip,
        "category": names["category"],
    }
    depths = {names["drafter"]: ours.depths["model"]}
    both = [
        answer(names["question"], each, 10, 2.0, depths=depths, **told) for each in (PLAIN, OURS, names["contender"])
    ]
    takes = [ContenderEntry(each, name, peer=each not in (PLAIN, OURS)) for each in (PLAIN, OURS, names["contender"])]
    fields: dict[str, Any] = {
        "suite": {"suite": name},
        "title": {"contenders": takes},
        "about": {"about": {name: name}},
    }
    rest = fields.get(field, {})
    page = html.page(run(both, **rest))
    assert not Page(page).of("script", "img")
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", page)
    for line in markdown.page(run(both, **rest)).splitlines():
        assert line.startswith("    ") or not re.search(r"(?<!\\)[<`]|^\\#", line)


def test_the_page_can_be_read_without_seeing_it(page: Page) -> None:
    assert page.of("html") == [{"lang": "en"}]
    assert len(page.of("title")) == len(page.of("h1")) == len(page.of("main")) == 1
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.of("meta")
    assert len(page.of("caption")) == len(page.of("table")) == len(tables(fabricated())) > 3
    assert len(page.of("figcaption")) == len(page.of("figure")) == 6
    pictures = [each for each in page.of("div") if each.get("role") == "img"]
    assert len(pictures) == 5
    assert all(len(each["aria-label"] or "") > 40 for each in pictures)
    assert all(each.get("scope") in ("col", "row") for each in page.of("th"))


def test_where_tokens_came_from_is_told_without_colour(page: Page) -> None:
    typical = fabricated().typical
    assert typical is not None
    kinds = [stretch.kind for stretch in typical.strip]
    assert len(page.of("ins")) == kinds.count("accepted") + 1  # and the legend's
    assert len(page.of("del")) == kinds.count("rejected") + 1
    assert "no⏎way " in page.shown  # a rejected line break


def test_drawings_fit_a_phone_and_can_be_read_there(drawings: list[Chart]) -> None:
    assert len(drawings) == 5
    for chart in drawings:
        for width, round_context in ((WIDE, chart.wide), (NARROW, chart.narrow)):
            assert round_context.startswith(f'<svg viewBox="0 0 {width} ')
            sizes = [float(size) for size in re.findall(r"font(?:-size)?: [^;\"]*?([\d.]+)px", round_context)]
            assert len(sizes) == round_context.count("<text")
            assert min(sizes) >= 11
    assert NARROW <= 360 - 2 * 16


def test_drawings_take_the_colours_of_the_page(drawings: list[Chart]) -> None:
    for chart in drawings:
        for round_context in (chart.wide, chart.narrow):
            assert {"currentColor", "var(--rule)"} <= set(re.findall(r"currentColor|var\(--\w+\)", round_context))
            assert not re.search(r"#0[123]0[123]0[123]|#000000|#ffffff", round_context)


def test_drawings_show_every_contender_and_kind(drawings: list[Chart]) -> None:
    by_title = {chart.words.title: chart for chart in drawings}
    speedups = by_title["Speedup over plain decoding"]
    for word in ("edgespec", "k=4", "llama-server:draft-8", "chat", "summarization", "1.49", "times plain decoding"):
        assert f">{word}</text>" in speedups.wide
        assert f">{word}</text>" in speedups.narrow
    assert ">llama-server<" not in speedups.wide  # its draft-8 is better
    assert "chat 1.49 (1.48 to 1.50)" in speedups.words.alt
    for name in ("model", "lookup"):
        assert f">{name}</text>" in by_title["Acceptance by drafter and depth"].narrow
    latency = by_title["Time between tokens"]
    assert "plain 0%; edgespec 6" in latency.words.alt


def test_half_as_fast_is_as_far_from_plain_as_twice_as_fast() -> None:
    seconds = {PLAIN: 8.0, OURS: 4.0, "peer:slow": 16.0}
    (chart,) = charts(run([answer("a", name, 40, each) for name, each in seconds.items()]))
    places = {tick: float(x) for x, tick in re.findall(r'<text [^>]* x="([\d.]+)"[^>]*>([\d.]+)</text>', chart.wide)}
    assert places["1"] - places["0.5"] == pytest.approx(places["2"] - places["1"], abs=0.01)


def test_prices_that_cannot_be_true_are_not_drawn() -> None:
    for passes in ((0.02, 1e-5, 1e-5), (1e-5, 0.02, 0.02)):
        drawn = charts(fabricated(prices=PassPrices(passes, 0.002)))
        assert not [chart for chart in drawn if chart.words.title.startswith("What passes cost")]


def test_a_rate_of_few_guesses_is_not_drawn() -> None:
    depths = {"model": (Depth(40, 34), Depth(20, 14), Depth(19, 19)), "lookup": (Depth(19, 1),)}
    (chart,) = charts(run([answer("a", OURS, 1, 1.0, depths=depths)]))
    assert chart.words.alt == "Accepted: model, free answers, 85% at depth 1, 70% at 2."


def test_of_several_configurations_the_best_is_drawn() -> None:
    seconds = {PLAIN: 9.0, OURS: 5.0, "lookup": 7.0, "k=2": 8.0, "k=4": 6.0, "peer:x": 4.0, "peer:y": 3.0}
    made = run([answer("a", name, 40, each) for name, each in seconds.items()])
    assert [*leading(made)] == [OURS, "k=4", "peer:y", "lookup"]


def table(made: Run, title: str) -> ReportTable:
    return next(each for each in tables(made) if each.title == title)


def test_replayed_is_said_wherever_it_is() -> None:
    """Of a run of replayed answers alone no figure stands without that word."""
    speedups = table(FORCED, "Speedup over plain decoding")
    assert speedups.head[1:] == ["total, replayed", "copy (replayed)", "hard (replayed)"]
    for title in ("Other figures", "Acceptance by drafter and depth", "Draft length K"):
        for row in table(FORCED, title).rows:
            assert "replayed" in f"{row[0]} {row[1]}", title
    assert "replayed" in headline(FORCED)
    speedup, prices, lengths, acceptance, latency = charts(FORCED)
    assert speedup.wide.count(">(replayed)</text>") == lengths.narrow.count(" (replayed)</text>") == 2
    assert ">replayed</text>" in prices.wide
    assert ">replayed</text>" in acceptance.wide
    assert "Of replayed answers" in latency.words.caption
    assert ", replayed)" in html.page(FORCED)


def test_replayed_marks_are_hollow() -> None:
    free = fabricated(answers=tuple(each for each in fabricated().answers if not each.replayed))
    assert "fill: var(--page)" in charts(FORCED)[0].wide
    assert "fill: var(--page)" not in charts(free)[0].wide


def test_replayed_and_free_stand_apart_and_together() -> None:
    speedups = table(fabricated(), "Speedup over plain decoding")
    assert speedups.head[1:] == [
        "total, free",
        "total, replayed",
        "total, free and replayed",
        "chat",
        "summarization",
        "copy (replayed)",
        "hard (replayed)",
    ]
    rows = {row[0]: row[1:] for row in speedups.rows}
    assert rows["questions"] == ["16", "14", "30", "8", "8", "6", "8"]
    assert rows["plain"] == ["1"] * 7
    assert [cell == "–" for cell in rows["llama-server"]] == [False, True, True, False, False, True, True]
    assert "replayed" not in headline(fabricated())
    assert any(remark.startswith("Made to say given texts (replayed)") for remark in remarks(fabricated()))
    others = {row[0]: row for row in table(fabricated(), "Other figures").rows if row[1] == "free"}
    assert [others[name][-1] for name in (PLAIN, OURS, "llama-server")] == ["–", "16 of 16", "unknown"]
    kinds = [row[1] for row in table(fabricated(), "Other figures").rows if row[0] == OURS]
    assert kinds == ["free", "replayed", "free and replayed"]


def test_fewer_questions_than_plain_answered_are_told() -> None:
    answers = [answer(q, PLAIN, 40, 10.0) for q in "abcdefghi"] + [answer(q, OURS, 40, 5.0) for q in "abcdefgh"]
    (_, _, ours) = table(run(answers), "Speedup over plain decoding").rows
    assert ours == ["edgespec", "2.00 (2.00 to 2.00), of 8", "2.00 (2.00 to 2.00), of 8"]


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        (Estimate(1.4812, (1.41, 1.55)), "1.48 (1.41 to 1.55)"),
        (Estimate(1.4812, (1.3, 1.7)), "1.5 (1.3 to 1.7)"),
        (Estimate(14.8, (4, 25)), "15 (4 to 25)"),
        (Estimate(1.4812, (0.31, 4.2)), "1.5 (0.3 to 4.2)"),
        (Estimate(1.4812, (0.031, 4.2)), "1.48 (0.03 to 4.20)"),
        (Estimate(1.4812, (1.481, 1.482)), "1.48 (1.48 to 1.48)"),
        (Estimate(1.4812, (1.4812, 1.4812)), "1.48 (1.48 to 1.48)"),
        (Estimate(1.4812), "1.5"),
        (Estimate(0.0412), "0.04"),
        (Estimate(0.0412, (0.03, 0.95)), "0.04 (0.03 to 0.95)"),
        (None, "–"),
    ],
)
def test_decimals_are_those_that_the_interval_bears(estimate: Estimate | None, said: str) -> None:
    assert with_bounds(estimate) == said
    if estimate and estimate.interval:
        assert f"{ratio(estimate)} ({bounds(estimate)})" == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (0.01234, "0.012"), (1.0, "1.00"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12346"), (None, "–")],
)
def test_three_digits_say_enough(value: float | None, said: str) -> None:
    assert three(value) == said


def paces(*ratios: float, drafted: int = 4) -> Run:
    """Ours so many times as fast as plain, a question each, in rounds that say two tokens."""
    answers = [answer(str(i), PLAIN, 100, 10.0) for i in range(len(ratios))]
    rounds = (Pass(drafted, 1, 2, 0.1),) * 50
    ours = (answer(str(i), OURS, 100, 10.0 / each, passes=rounds) for i, each in enumerate(ratios))
    return run([*answers, *ours])


def test_the_result_comes_in_a_sentence() -> None:
    assert headline(paces(*[1.5] * 8)) == (
        "edgespec came to 1.50x plain decoding (95% 1.50 to 1.50) over 8 questions on this machine."
    )
    assert headline(paces(*[0.9, 0.95] * 6)).endswith("on this machine: speculation does not pay here.")
    assert headline(paces(*[0.9, 1.1] * 4)).endswith("on this machine: no significant difference.")


def test_where_there_is_no_interval_it_is_said_how_many_questions_there_would_have_to_be() -> None:
    assert headline(paces(1.5, 0.5)) == (
        "edgespec came to 0.8x plain decoding (no interval: it needs 8 questions, and there are 2) over 2 questions on "
        "this machine."
    )
    assert "(no interval: it needs 8 questions, and there is 1)" in headline(paces(0.5))
    assert "Too few questions to say how sure it is, fewer than 8, in chat." in remarks(paces(1.5, 0.5))
    (_, _, ours) = table(paces(1.5, 0.5), "Speedup over plain decoding").rows
    assert ours == ["edgespec", "0.8", "0.8"]
    for shown in (markdown.page(paces(0.5)), "".join(Page(html.page(paces(0.5))).shown)):
        assert "8 questions" in shown


def test_of_a_run_in_which_nothing_was_drafted_no_speedup_is_claimed() -> None:
    """Whatever the stopwatch says: plain decoding ran twice."""
    for made in (paces(*[2.2] * 9, drafted=0), paces(*[0.5] * 9, drafted=0)):
        for said in (headline(made), *remarks(made)):
            assert "came to" not in said
            assert "does not pay" not in said
            assert "significant" not in said
    assert headline(paces(2.2, 2.2, drafted=0)) == (
        "edgespec drafted nothing over 2 questions on this machine: it decoded plainly. Its 2.2x plain decoding is "
        "the difference between two runs of plain decoding."
    )


def test_where_nothing_was_drafted_in_a_category_that_is_what_is_said_of_it() -> None:
    losing = [answer(str(i), PLAIN, 100, 10.0, category="dull") for i in range(9)]
    rounds = (Pass(0, 0, 1, 0.1),) * 100
    losing += [answer(str(i), OURS, 100, 11.0 + i / 9, category="dull", passes=rounds) for i in range(9)]
    made = run([*paces(*[1.5] * 9).answers, *losing])
    assert [*remarks(made)] == ["edgespec drafted nothing, and so decoded plainly, in dull."]
    (table,) = (each for each in tables(made) if each.title == "Speedup over plain decoding")
    ours = next(row for row in table.rows if row[0] == OURS)
    marked = {name for name, cell in zip(table.head, ours, strict=True) if cell.endswith(", no drafts")}
    assert marked == {"dull"}


def test_turns_are_told_from_questions() -> None:
    answers = [answer("a", name, 50, 5.0, turn=turn) for name in (PLAIN, OURS) for turn in (0, 1)]
    (table,) = (each for each in tables(run(answers)) if each.title == "Contenders")
    assert [row[-1] for row in table.rows] == ["2 answers in the turns of 1 question"] * 2


def test_a_speedup_beyond_what_its_passes_bring_is_called_a_disturbance() -> None:
    """Two tokens a pass, none cheaper than a plain one, make it at most twice as fast."""
    said = headline(paces(*[3.0] * 9))
    assert said.endswith(
        ": more than its 2.00 tokens a pass can bring, so plain decoding was disturbed; measure again."
    )
    assert "disturbed" not in headline(paces(*[2.1] * 9)), "within noise"


def test_a_ratio_of_a_few_tokens_is_no_result() -> None:
    few = run([answer("a", PLAIN, 29, 10.0), answer("a", OURS, 29, 0.1)])
    assert headline(few) == (
        "No result: over 1 question plain decoding or edgespec has fewer than 30 tokens, too few for a ratio."
    )


def test_remarks_say_where_speculation_does_not_pay() -> None:
    said = list(remarks(fabricated()))
    assert "Speculation does not pay in hard (replayed), 0.96x." in said
    assert "The best in hindsight of 2 configurations of llama-server, llama-server:draft-8, came to 1.1 (" in said[-1]
    assert any(each.startswith("k=4 came to") and "14 of them replayed" in each for each in said)
    assert "No significant difference in chat." in remarks(paces(*[0.9, 1.1] * 4))


def test_an_interruption_is_said_first() -> None:
    made = fabricated(interrupted=True)
    said = "This run was interrupted: 30 of 30 questions had been answered both plainly and by edgespec."
    assert interruption(made) == said
    for shown in (markdown.page(made), "".join(Page(html.page(made)).shown)):
        assert 0 < shown.index(said) < shown.index("edgespec came to")
    assert interruption(fabricated()) == ""


def test_markdown_holds_all_but_the_charts() -> None:
    lines = markdown.page(fabricated()).splitlines()
    assert lines[0] == "# edgespec bench: made up"
    for each in tables(fabricated()):
        start = lines.index(f"## {each.title}") + 2
        grid = [re.split(r"(?<!\\)\|", line) for line in lines[start : start + 2 + len(each.rows)]]
        assert {len(cells) for cells in grid} == {len(each.head) + 2}
    contenders = "\n".join(lines)
    assert "| transformers | transformers | – | left out: it is not installed |" in contenders
    assert r"- made-up.jsonl, line 7: \<script\>alert" in contenders
    assert "    edgespec bench model.gguf --draft draft.gguf --suite made-up --peers llama-server" in lines


def test_a_browser_shows_it_without_asking_anyone(text: str, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on PATH")
    (tmp_path / "report.html").write_text(text, "utf-8")
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    log = tmp_path / "net.json"
    done = subprocess.run(
        [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            *quiet,
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            f"--log-net-log={log}",
            "--dump-dom",
            (tmp_path / "report.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "edgespec came to 1.39x plain decoding" in done.stdout
    assert "CONSOLE" not in done.stderr
    assert "example.com" not in log.read_text("utf-8", "replace")
