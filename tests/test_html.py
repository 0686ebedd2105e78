"""The page of a run: what it holds, what it escapes, how a browser shows it, what is refused."""

from __future__ import annotations

import gzip
import html
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from asv_site import browser, served
from conftest import SHAPE, Answer
from records import (
    CASE,
    make_choice,
    make_header,
    make_run,
    make_sample,
    make_samples,
    times,
    verified,
)

from gemvbench.case import Gemv
from gemvbench.jobs import Choice
from gemvbench.plan import ROOF, TWIN
from gemvbench.record import Line
from gemvbench.record import Run as RecordedRun
from gemvbench.report.comparison import comparison_document
from gemvbench.report.html import picture, pictures
from gemvbench.report.html.page import make_page
from gemvbench.report.html.palette import (
    ARM_COLORS,
    BASELINE_COLOR,
    DARK,
    LIGHT,
    ROOF_COLOR,
    TWIN_COLOR,
)
from gemvbench.report.side_by_side import Shown
from gemvbench.results import summarise

Run = Callable[..., Answer]
ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "records"
NAMES = {
    "sweep": "20261130-sweep-h200",
    "decode": "20261201-decode-cuda-h200",
    "attention": "20261201-attention-q8_0-pocl",
}
NASTY = "<script>alert(1)</script>"


def shown(run: RecordedRun, name: str = "r.jsonl") -> Shown:
    summary = summarise(run)
    return Shown(name, summary, comparison_document(summary))


def titles(page: str) -> list[str]:
    return [html.unescape(t) for t in re.findall(r"<figure><h3>(.*?)</h3>", page)]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of real records, and one of two runs."""
    from gemvbench import cli

    folder = tmp_path_factory.mktemp("pages")
    records = {name: [RECORDS / f"{file}.jsonl.gz"] for name, file in NAMES.items()}
    records["two"] = [RECORDS / f"20261130-sweep-{device}.jsonl.gz" for device in ("intel", "pocl")]
    for name, paths in records.items():
        target = folder / f"{name}.html"
        assert cli.main(["report", *map(str, paths), "-o", str(target)]) == 0
    return folder


@pytest.mark.parametrize(
    ("name", "verdict", "expected"),
    [
        (
            "sweep",
            "of 17 comparisons: 16 FASTER, 1 SLOWER.",
            ["Ratios", "on cuda0: ratio to", "speed of nvcl0 over cuda0", "Clocks, temperature"],
        ),
        (
            "decode",
            "on token-qwen3.6-27b-f16-f16, of 5 comparisons: 4 FASTER, 1 SLOWER.",
            ["Where a token's time goes", "Bytes against time", "Effect of the slot"],
        ),
        (
            "attention",
            "of 8 comparisons: ",
            ["Speed-up by context, attention-16x16x192v128-q8_0-tkd", "Share of the roof"],
        ),
    ],
)
def test_a_page_has_the_verdict_first_and_every_picture(
    pages: Path, name: str, verdict: str, expected: Sequence[str]
) -> None:
    page = (pages / f"{name}.html").read_text()
    first = page.index('<p class="verdict">')
    assert verdict in html.unescape(page[first : page.index("</p>", first)])
    assert first < page.index("<figure>")
    found = titles(page)
    for part in (*expected, "Every measurement, ", "Distributions, "):
        assert any(part in title for title in found), (part, found)
    for part in ("How sure", "Flags", "What was built", "Environment", "Repeat it"):
        assert re.search(rf"<h[23][^>]*>{part}</h", page)
    assert "gemvbench " + name.replace("attention", "ab") in page  # the command
    assert not re.search(r'<script|https?://(?!www\.w3\.org)|src="(?!data:)', page)


def test_pages_in_a_browser_at_two_widths(pages: Path, tmp_path: Path) -> None:
    """No horizontal scrolling, every picture drawn, no errors: all pages in one browser."""
    names = sorted(path.name for path in pages.glob("*.html"))
    (pages / "harness.htm").write_text(
        f"""<!DOCTYPE html><pre id="out"></pre><script>
const found = [];
let left = 0;
for (const name of {json.dumps(names)}) for (const width of [360, 1280]) {{
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900; frame.src = name; left += 1;
  frame.onload = () => {{
    const page = frame.contentDocument, root = page.documentElement;
    const boxes = [...page.querySelectorAll("figure svg")].map(
      svg => [svg.getBoundingClientRect().width, svg.getBoundingClientRect().height,
              svg.querySelectorAll("path, use, image").length,
              svg.querySelectorAll("text").length]);
    const ink = getComputedStyle(page.querySelector("figure svg text")).fill;
    found.push({{name, width, scroll: root.scrollWidth, client: root.clientWidth, boxes, ink}});
    if (--left === 0) document.getElementById("out").textContent = JSON.stringify(found);
  }};
  document.body.append(frame);
}}
</script>"""
    )
    with served(pages) as address:
        done = subprocess.run(
            [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=20000",
             f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"{address}/harness.htm"],
            capture_output=True, text=True, timeout=100, check=True,
        )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    found = json.loads(html.unescape(re.findall(r'<pre id="out">(.*?)</pre>', done.stdout)[0]))
    assert len(found) == 2 * len(names)
    for page in found:
        where = (page["name"], page["width"])
        assert page["scroll"] <= page["client"], where
        assert page["boxes"], where
        for width, height, marks, texts in page["boxes"]:
            assert 250 < width <= page["width"], where
            assert height > 60, where
            assert marks > 5, where
            assert texts > 3, where
        assert page["ink"] in ("rgb(27, 31, 36)", "rgb(87, 96, 106)"), where


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """By WCAG 2: 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_marks_can_be_told_from_their_paper(colors: dict[str, str]) -> None:
    for name in ("ink", "muted", "faster", "slower", "same", "undecided"):
        assert contrast(colors[name], colors["paper"]) >= 4.5, name
        assert contrast(colors[name], colors["shade"]) >= 4.5, name
    for color in (*ARM_COLORS, BASELINE_COLOR, TWIN_COLOR, ROOF_COLOR):
        assert contrast(color, colors["paper"]) >= 3, color
    assert colors.keys() == LIGHT.keys()


def test_names_from_a_record_are_text() -> None:
    label, odd = NASTY, "_a\"b'$x$&\x07" + "l" * 80
    header = make_header(())
    nasty: list[Choice] = [
        msgspec.structs.replace(make_choice("pack2"), label=name) for name in (label, odd)
    ]
    header = msgspec.structs.replace(
        header,
        choices=(*header.choices, *nasty),
        arguments=("ab", "--arm", NASTY),
        notes=(NASTY,),
        environment={"cpu": NASTY},
    )
    run = make_run(header, make_samples({**times(), label: 9e-4, odd: 8e-4}))
    page = make_page([shown(run, NASTY)])
    assert "<script" not in page
    assert "<title>&lt;script&gt;alert(1)&lt;/script&gt;: " in page
    assert page.count("&lt;script&gt;") > 10
    assert "\x07" not in "".join(re.findall(r"<text.*?</text>", page, re.DOTALL))


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_run_without_results_has_a_page_all_the_same(blocks: int) -> None:
    page = make_page([shown(make_run(make_header(), make_samples(times(pack2=9e-4), blocks)))])
    assert "UNDECIDED" in page


def test_a_large_run_is_quick_and_small() -> None:
    arms = [f"pack{pack}+rows{rows}" for pack in (0, 1, 2) for rows in (1, 2, 4)]
    names = ["base", TWIN, *arms, ROOF]
    header = make_header(arms, looks=(16,))
    samples = [
        make_sample(arm, block, pass_, 1e-3 * (1 + 0.01 * ((7 * block + 3 * slot) % 5)), slot=slot)
        for block in range(16)
        for pass_ in range(3)
        for slot, arm in enumerate(names[block % 12 :] + names[: block % 12])
    ]
    run = make_run(header, samples)
    begin = time.process_time()
    page = make_page([shown(run)])
    assert time.process_time() - begin < 6  # 1.5 s where nothing else runs
    assert len(page) < 1e6
    assert len(run.of(type(samples[0]))) == 16 * 3 * 12


def many_cases(count: int, blocks: int = 6) -> RecordedRun:
    """As many cases, all with the same three arms and a slow sample each."""
    cases = [Gemv(k=512 * (1 + number), n=64) for number in range(count)]
    headers = [make_header(case=case) for case in cases]
    header = msgspec.structs.replace(
        headers[0],
        cases=tuple(cases),
        choices=tuple(choice for header in headers for choice in header.choices),
    )
    lines: list[Line] = []
    for case in cases:
        right = (msgspec.structs.replace(verified(arm), case=case.id) for arm in ("base", "pack2"))
        lines += [*right, *make_samples(times(pack2=9e-4), blocks, case=case.id)]
    return make_run(header, lines)


def test_many_cases_share_pictures_and_lose_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pictures, "MOST_CASES", 1)
    monkeypatch.setattr(picture, "MOST_PAGES", 1)
    monkeypatch.setattr(picture, "_MOST_ROWS", 3)
    run = many_cases(4)
    first, *others = [case.id for case in run.header.cases]
    page = make_page([shown(run)])
    found = titles(page)
    for kind in ("Every measurement", "Distributions"):
        assert [t for t in found if kind in t] == [f"{kind}, {first}", f"{kind}, 3 more cases"]
    # Every sample is a mark, and marks say which arm, block and case they are of.
    said = set(re.findall(r"<title>pack2, block (\d), (.*?): median", page))
    assert said == {(str(block), case) for block in range(6) for case in (first, *others)}
    # 54 of 54: 18 of each of three cases.
    assert "<title>pack2: 54 of 54 measurements" in page
    assert [t for t in found if "Ratios" in t or "Share" in t] == ["Ratios", "Share of the roof"]
    assert page.count("3 more cases stand in the tables alone.") == 4  # captions and labels
    tables = page[page.index(">Tables</h2>") : page.index(">How sure</h2>")]
    assert all(case in tables for case in others)


def test_one_case_beyond_the_last_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_CASES", 1)
    run = many_cases(2, blocks=1)
    last = run.header.cases[-1].id
    assert f"Every measurement, {last}" in titles(make_page([shown(run)]))


def test_reading_lines_of_a_kind_costs_the_same_for_any_number_of_cases() -> None:
    """A report asks a run for its lines case by case: 200,000 samples of 170 cases took minutes."""
    run = many_cases(3)
    lines = CountedLines(run.lines)
    summarise(msgspec.structs.replace(run, lines=lines))
    assert lines.walks <= 2


class CountedLines(tuple[Line, ...]):
    """Knows how often all of it was gone through."""

    walks = 0

    def __iter__(self) -> Iterator[Line]:
        self.walks += 1
        return super().__iter__()


def hovers(page: str, title: str) -> list[str]:
    (figure,) = re.findall(
        rf"<figure><h3>{re.escape(html.escape(title))}</h3>.*?</figure>", page, re.DOTALL
    )
    return [html.unescape(said) for said in re.findall(r"<g[^>]*><title>(.*?)</title>", figure)]


def test_marks_say_their_numbers(pages: Path) -> None:
    """Without scripts: by the titles of marks, which a browser shows where the pointer rests."""
    sweep, decode, attention = ((pages / f"{name}.html").read_text() for name in NAMES)
    said = hovers(sweep, "Ratios")
    assert len(said) == 2 * 18  # interval and ratio of each arm
    assert any(re.fullmatch(r"\S+: FASTER, ratio 1\.\d+, interval .+ \.\. .+, \d+ blocks", s)
               for s in said)  # fmt: skip
    assert all(re.search(r"\d%, .* GB/s, .*s a call$", s.replace(" %", "%"))
               for s in hovers(sweep, "Share of the roof"))  # fmt: skip
    assert any(" ms of " in s for s in hovers(decode, "Where a token's time goes"))
    (context,) = {t for t in titles(attention) if t.startswith("Speed-up by context")}
    points = hovers(attention, context)
    assert points
    assert all(re.match(r"\S+, \d+ tokens: [A-Z]+, ratio ", point) for point in points)


def test_runs_of_different_devices_stand_side_by_side(pages: Path) -> None:
    page = html.unescape((pages / "two.html").read_text())
    assert "These runs are of different devices" in page
    (table,) = re.findall(r"<h3>The same case and arm.*?</table>", page, re.DOTALL)
    assert "1 (intel)" in table
    assert "2 (pocl)" in table
    row = next(row for row in table.split("<tr") if ">pack1+rows2<" in row)
    assert len(re.findall(r"\d\.\d{3} [-+=?]", row)) == 2


def test_runs_of_one_device_are_not_marked() -> None:
    run = shown(make_run(make_header(), make_samples(times(pack2=9e-4))))
    page = make_page([run, run])
    assert "different devices" not in page
    assert len(re.findall(r'id="run[12]-ratios"', page)) == 2


def broken(kind: str) -> bytes:
    good = gzip.decompress((RECORDS / f"{NAMES['attention']}.jsonl.gz").read_bytes())
    first = good.partition(b"\n")[0]
    return {
        "empty": b"",
        "cut header": first[:200],
        "foreign": b'{"benchmarks": []}\n',
        "binary": bytes(range(256)),
        "newer": first.replace(b'"schema":1', b'"schema":99') + b"\n",
    }[kind]


@pytest.mark.parametrize(
    ("kind", "code", "says"),
    [
        ("empty", 2, "not a gemvbench record"),
        ("cut header", 2, "not part of a gemvbench record"),
        ("foreign", 2, "not part of a gemvbench record"),
        ("binary", 2, "not part of a gemvbench record"),
        ("newer", 4, "schema 99"),
    ],
)
def test_what_is_no_record_makes_no_page(
    gemvbench: Run, tmp_path: Path, kind: str, code: int, says: str
) -> None:
    record, target = tmp_path / "r.jsonl", tmp_path / "r.html"
    record.write_bytes(broken(kind))
    answer = gemvbench("report", record, "-o", target)
    assert (answer.code, answer.out) == (code, "")
    assert says in answer.err
    assert not target.exists()


def test_a_truncated_record_says_so_on_its_page(gemvbench: Run, tmp_path: Path) -> None:
    data = gzip.decompress((RECORDS / "20261130-sweep-pocl.jsonl.gz").read_bytes())
    (tmp_path / "r.jsonl").write_bytes(data[: len(data) // 2])
    assert gemvbench("report", tmp_path / "r.jsonl", "-o", tmp_path / "r.html").code == 0
    page = (tmp_path / "r.html").read_text()
    assert "which is cut short" in page[page.index('class="alarm"') :]


@pytest.mark.usefixtures("in_process")
def test_a_page_of_the_latest_run_and_its_pictures_as_files(gemvbench: Run, tmp_path: Path) -> None:
    assert "There is no record" in gemvbench("report", "--latest").err
    assert gemvbench("ab", "--shape", SHAPE, "--arm", "pack2", "--quick").code == 0
    (kept,) = json.loads(gemvbench("list", "runs", "--format", "json").out)
    assert (kept["command"], kept["arms"], kept["ended"]) == ("ab", "base, pack2", "complete")
    target, folder = tmp_path / "r.html", tmp_path / "plots"
    words = ("report", "--latest", "--plots", folder, "-o", target)
    assert gemvbench(*words).code == 0
    names = {path.stem for path in folder.iterdir()}
    assert {"ratios-1", "roof-1", "time-1", "distribution-1", "slots"} <= names
    assert len(list(folder.iterdir())) == 2 * len(names)
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in folder.glob("*.png"))
    assert all("var(--" not in p.read_text() for p in folder.glob("*.svg"))
    page = target.read_text()
    assert kept["record"] in page
    target.write_text("mine")
    for refused in (words[:4], words[:2] + words[4:]):
        answer = gemvbench(*refused)
        assert answer.code == 2
        assert "give --force" in answer.err
    assert target.read_text() == "mine"
    assert gemvbench(*words, "--force").code == 0
    assert target.read_text() == page


def test_a_place_that_cannot_be_written_is_refused(gemvbench: Run, tmp_path: Path) -> None:
    record = RECORDS / "20261201-planted-h200.jsonl.gz"
    for folder in (tmp_path / "no" / "plots", "/proc/plots", record):
        answer = gemvbench("report", record, "--plots", folder)
        assert (answer.code, answer.out) == (2, "")
        assert "cannot be made" in answer.err
    assert "no such folder" in gemvbench("report", record, "-o", tmp_path / "no" / "r.html").err
    for target in (tmp_path / ("x" * 300 + ".html"), "/proc/r.html"):
        answer = gemvbench("report", record, "-o", target, "--force")
        assert (answer.code, answer.out) == (2, "")
        assert "cannot be written" in answer.err


@pytest.mark.parametrize(
    ("words", "says"), [((), "needs a RECORD"), (("r.jsonl", "--latest"), "not both")]
)
def test_report_wants_records_or_the_latest(
    gemvbench: Run, words: tuple[str, ...], says: str
) -> None:
    answer = gemvbench("report", *words)
    assert answer.code == 2
    assert says in answer.err


def test_several_records_as_text(gemvbench: Run) -> None:
    paths = [RECORDS / f"20261130-sweep-{device}.jsonl.gz" for device in ("intel", "pocl")]
    text = gemvbench("report", *paths).out
    assert "The same case and arm in each run" in text
    assert len(gemvbench("report", *paths, "--format", "json").json) == 2
    rows = gemvbench("report", *paths, "--format", "csv").out.splitlines()
    assert rows[0].startswith("record,case,arm")


def test_the_case_stands_in_the_pictures() -> None:
    page = make_page([shown(make_run(make_header(), make_samples(times(pack2=9e-4))))])
    assert f"Every measurement, {CASE.id}" in titles(page)


def test_of_very_many_cases_the_first_has_pictures_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = many_cases(4, blocks=1)
    first = run.header.cases[0].id
    monkeypatch.setattr(pictures, "MANY_CASES", 3)
    found = [title for title in titles(make_page([shown(run)])) if "Every measurement" in title]
    assert found == [f"Every measurement, {first}", "Every measurement, 3 more cases"]
    monkeypatch.setattr(pictures, "MANY_CASES", 4)
    assert sum("Every measurement" in title for title in titles(make_page([shown(run)]))) == 4
