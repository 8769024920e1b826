"""The pages of a night: HTML and Markdown, their charts, and texts that could break them."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
from page_reader import check_page
from sample_nights import (
    NASTY,
    NIGHTS,
    SCRIPT,
    bad_night,
    good_night,
    hostile_night,
    make_curve,
    make_finding,
    make_night,
    make_tallies,
)

from kvtwin.fuzz.report import write_reports
from kvtwin.fuzz.report.charts import (
    HEIGHT,
    WIDTH,
    Chart,
    Line,
    short_number,
    ticks_of,
    time_ticks,
)
from kvtwin.fuzz.report.pages import ENVIRONMENT, MAX_LINES, html_of, markdown_of
from kvtwin.fuzz.report.record import PastNight
from kvtwin.fuzz.report.tally import with_tables
from kvtwin.fuzz.report.trends import MAX_NIGHTS, MAX_POINTS, history_charts, night_charts

# The page.


@pytest.mark.parametrize("name", NIGHTS)
def test_the_page_is_whole_and_accessible(name: str) -> None:
    """Each page is self-contained, and works with a keyboard and on a phone."""
    check_page(html_of(NIGHTS[name]().to_json()))


def test_the_sections_follow_the_night() -> None:
    """Failures come first, each with its script; a section without content is left out."""

    def sections(name: str) -> list[str]:
        tags = check_page(html_of(NIGHTS[name]().to_json())).tags
        return [str(attrs["id"]) for tag, attrs in tags if tag == "section"]

    always = ["coverage", "trend", "targets", "functions", "workers", "run"]
    assert always == sections("good")
    assert ["attention", *always] == sections("empty")
    assert ["failures", "attention", "fixed", "exhaustive", *always] == sections("bad")


def test_failures_stand_with_their_scripts() -> None:
    """New failures come before known ones; scripts, flakiness and pictures are shown."""
    page = html_of(bad_night().to_json())
    found = re.findall(r'<article class="card failure (\w+)" id="finding-(\d+)">', page)
    assert [("new", str(i)) for i in range(1, 7)] == found[:6]
    assert [("known", str(i)) for i in range(7, 13)] == found[6:]
    assert 12 == page.count('<details class="script">')
    assert 'id="finding-13"' in page
    assert "flaky: fails 3 of 20" in page
    assert 11 == page.count('<svg class="batch"')
    assert "python out/scripts/compute_slot_mapping-0.py" in page
    functions = page[page.index('id="functions"') : page.index('id="workers"')]
    assert '<a href="#finding-1">1</a>, <a href="#finding-3">3</a>' in functions


@pytest.mark.parametrize(
    ("name", "tone"), [("good", "good"), ("bad", "bad"), ("empty", "bad"), ("interrupted", "warn")]
)
def test_the_colour_is_the_verdict(name: str, tone: str) -> None:
    """Green is for a night that passed, amber for one that was stopped, red for the rest."""
    assert f'<header class="top {tone}">' in html_of(NIGHTS[name]().to_json())


def test_text_is_escaped() -> None:
    """Text that looks like HTML or Markdown stays text, wherever it comes from."""
    record = hostile_night().to_json()
    page, markdown = html_of(record), markdown_of(record)
    assert "<img" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 10
    outside = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", markdown)
    outside = re.sub(r"(`+).*?\1", "", outside)
    assert "<script>" not in outside
    assert "<img" not in outside
    assert not re.search(r"(?m)^\|.*[^\\]\| `b`", outside)


def test_odd_characters_are_written(tmp_path: Path) -> None:
    """Lone surrogates and control characters are replaced, and every report is written."""
    for path in write_reports(hostile_night(), tmp_path):
        text = path.read_text(encoding="utf-8")
        assert "\x00" not in text
        assert "? " in text
        assert path.suffix == ".json" or "\ufffd" in text


def test_long_texts_are_cut() -> None:
    """Long lines, a script of a million characters and empty lines do not make a huge page."""
    assert len(html_of(hostile_night().to_json())) < 1_000_000
    long = "x = 1\n" * 200_000
    night = make_night(findings=[make_finding(0, script_text=long)])
    record = with_tables(night, make_tallies()).to_json()
    assert "(1,100,000 more characters in the file)" in html_of(record)
    markdown = markdown_of(record)
    assert MAX_LINES == markdown.count("x = 1\n")
    assert "(cut: see report.html)" in markdown
    assert long == record["findings"][0]["script_text"]


def test_goals_that_were_not_met_are_listed() -> None:
    """HTML and Markdown list the goals that no case met; if all were met there is no list."""
    declared = {"goals": ["f: empty", "f: never met"]}
    met = dataclasses.replace(make_tallies(1)[0], counts={"goals": {"f: empty": 3}})
    record = with_tables(make_night(), [met], declared=declared).to_json()
    all_met = with_tables(make_night(), [met], declared={"goals": ["f: empty"]}).to_json()
    for text_of in (html_of, markdown_of):
        assert "goals not met: 1" in text_of(record)
        assert "f: never met" in text_of(record)
        assert "not met:" not in text_of(all_met)


# Charts.


@pytest.mark.parametrize(
    ("low", "high", "minimum"),
    [
        *((0, high, 1) for high in (0, 1, 2, 3, 7, 97, 1000, 123_456, 10**12)),
        *((low, low + 1, 1) for low in (0, 99, 10**6)),
        *((0, high, 0) for high in (1e-6, 0.3, 1.0, 685.4)),
        (7, 7, 1),
        (0.1, 0.1, 0),
    ],
)
def test_ticks_enclose_the_values(low: float, high: float, minimum: float) -> None:
    """Ticks are few, in equal steps, around the values, and whole numbers for counts."""
    ticks = ticks_of(low, high, min_step=minimum)
    assert 2 <= len(ticks) <= 6
    assert ticks[0] <= low
    assert ticks[-1] >= high
    steps = {f"{b - a:.6g}" for a, b in itertools.pairwise(ticks)}
    assert 1 == len(steps)
    assert min(ticks[1:]) > ticks[0]
    assert len(set(map(short_number, ticks))) == len(ticks)
    assert not minimum or all(tick.is_integer() for tick in ticks)


@pytest.mark.parametrize("seconds", [0.5, 3, 61, 180, 1800, 3600, 30_000, 100_000, 1_000_000])
def test_time_has_a_unit_and_few_ticks(seconds: float) -> None:
    """An axis of time has two to six ticks within the time."""
    unit, ticks = time_ticks(seconds)
    assert unit in {"seconds", "minutes", "hours"}
    assert 1 <= len(ticks) <= 6
    assert all(0 <= value <= seconds * 1.000001 for value, _ in ticks)


def draw(chart: Chart) -> str:
    """Return a chart as SVG."""
    charts = ENVIRONMENT.get_template("chart.html.j2").make_module({"next_number": lambda: 1})
    return str(charts.draw(chart))


def chart_of(*lines: Line, **changes: object) -> Chart:
    """Return a chart of lines."""
    chart = Chart("Cases", "5", lines, "nights", [(0, "1 Nov"), (3, "4 Nov")], "In words.")
    return dataclasses.replace(chart, **changes)


@pytest.mark.parametrize(
    "values", [[5], [0, 0], [0, 3, 2], [10**6, 10**6 + 1], [0.25, 1e9], [1e-9]]
)
@pytest.mark.parametrize("has_zero", [True, False])
def test_lines_lie_within_their_chart(values: list[float], has_zero: bool) -> None:
    """Every point, label and line across lies inside of the drawing, whatever the values."""
    line = Line("x", list(enumerate(values)), hints=["hint"] * len(values))
    drawn = draw(chart_of(line, has_zero=has_zero, level=(values[0], "all of them")))
    xs = [float(x) for x in re.findall(r'(?: c?x="|M)(-?[\d.]+)', drawn)]
    ys = [float(y) for y in re.findall(r' c?y="(-?[\d.]+)', drawn)]
    assert all(0 <= x <= WIDTH for x in xs)
    assert all(0 <= y <= HEIGHT for y in ys)
    assert len(values) == drawn.count("<circle")
    assert "nan" not in drawn
    assert '<title id="chart-1">In words.</title>' in drawn


def test_a_stepped_line_has_steps() -> None:
    """The line of a value that holds until the next point is drawn as steps."""
    points = [(0, 0), (10, 2), (20, 3)]
    assert re.search(
        r'd="M[\d.]+ [\d.]+(H[\d.]+V[\d.]+){2}"',
        draw(chart_of(Line("", points, is_stepped=True))),
    )


def test_a_night_has_a_chart_for_each_kind() -> None:
    """Each kind of coverage is drawn over time, with the declared total; so are failures."""
    record = bad_night().to_json()
    charts = night_charts(record)
    names = ["Different goals", "Different pairs", "Different branches", "Cases"]
    assert [*names, "Different failures"] == [chart.title for chart in charts]
    assert (69, "declared: 69") == charts[0].level
    assert all(len(chart.lines[0].points) <= MAX_POINTS for chart in charts)
    assert (1800, 12) == charts[-1].lines[0].points[-1]
    assert ["0", "10", "20", "30"] == [label for _, label in charts[0].x_ticks]
    assert names == [chart.title for chart in night_charts(good_night().to_json())]
    assert [] == night_charts(make_night(curve=make_curve(60, 5)[:1]).to_json())


def test_nights_are_drawn_as_a_trend() -> None:
    """Speed, failures and each kind of coverage are drawn over nights, tonight last."""
    assert [] == history_charts(good_night().to_json())
    record = bad_night(30).to_json()
    charts = {chart.title: chart for chart in history_charts(record)}
    kinds = [f"Different {kind}" for kind in ("goals", "pairs", "branches")]
    assert ["Cases per second", "Failures", *kinds] == list(charts)
    lines = charts["Failures"].lines
    assert ["new", "still open", "fixed"] == [line.name for line in lines]
    assert [6, 6, 1] == [line.points[-1][1] for line in lines]
    assert all(len(line.points) == 31 for chart in charts.values() for line in chart.lines)
    assert "22 Nov" == charts["Failures"].x_ticks[-1][1]
    assert "2026-11-22 01:00:00 UTC: 6 new" == lines[0].hints[-1]


def test_the_latest_nights_are_drawn() -> None:
    """After a year the charts have the latest nights, and the table has all."""
    record = bad_night(300).to_json()
    charts = history_charts(record)
    assert all(MAX_NIGHTS == len(chart.lines[0].points) for chart in charts)
    assert "301 nights as a table" in html_of(record)


def test_a_kind_that_is_new_has_no_trend_yet() -> None:
    """A kind of coverage that earlier nights did not have is drawn from its second night on."""
    night = good_night(3)
    history = [dataclasses.replace(past, met={"goals": 5}) for past in night.history]
    charts = history_charts(dataclasses.replace(night, history=history).to_json())
    assert ["Cases per second", "Failures", "Different goals"] == [c.title for c in charts]


def test_nights_of_one_day_have_times() -> None:
    """Nights that began on one day are distinguished by the hour, others by the date, once each."""

    def labels(*moments: str) -> list[str]:
        night = good_night(1)
        past = [dataclasses.replace(night.history[0], started=moment) for moment in moments]
        record = dataclasses.replace(night, history=past).to_json()
        return [label for _, label in history_charts(record)[0].x_ticks]

    assert ["00:15", "00:30", "01:00"] == labels(
        "2026-11-22T00:15:00+00:00", "2026-11-22T00:30:00+00:00"
    )
    assert ["21 Nov", "", "22 Nov"] == labels(
        "2026-11-21T00:15:00+00:00", "2026-11-21T09:30:00+00:00"
    )


# Markdown.


def test_markdown_says_the_same() -> None:
    """Markdown has the headline, each failure with its script, the coverage and the tables."""
    markdown = markdown_of(bad_night().to_json())
    lines = markdown.splitlines()
    assert lines[0].startswith("# fast: 6 new failures, 1 fixed, 6 still open, 1 small scope")
    titles = [line for line in lines if line.startswith("## ")]
    expected = "New failures, Still open, Fixed, Small scopes, enumerated, Coverage"
    assert f"{expected}, Targets, Functions, Workers, The run" == ", ".join(
        line[3:] for line in titles
    )
    assert "### `compute_causal_conv1d_metadata` on host: hang (flaky: fails 3 of 20)" in lines
    assert SCRIPT.splitlines()[4] in lines
    assert any(line.startswith("| goals | 63 of 69 | 55 | 0% |") for line in lines)
    assert any(line.startswith("| host | 617,274 | 30 min 22 s | 63 |") for line in lines)
    assert (
        "- **slots:** Every batch of at most 3 requests of at most 4 tokens: 345,678 cases"
        in markdown
    )


def test_a_table_of_markdown_has_a_row_for_each_night_kind() -> None:
    """All rows of a table have as many cells as its head."""
    for make in NIGHTS.values():
        widths = [
            len(re.findall(r"(?<!\\)\|", line))
            for line in markdown_of(make().to_json()).splitlines()
            if line.startswith("| ")
        ]
        assert set(widths) <= {6, 8}


def test_a_past_night_may_have_any_text() -> None:
    """An edited file of the history cannot bring markup into the page."""
    night = good_night(2)
    evil = dataclasses.replace(night.history[0], commit=NASTY, verdict="<b>")  # type: ignore[arg-type]
    assert isinstance(evil, PastNight)
    page = html_of(dataclasses.replace(night, history=[evil]).to_json())
    check_page(page)
    assert "<b>&" not in page
