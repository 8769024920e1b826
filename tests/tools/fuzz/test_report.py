"""The report of a night: schema, verdict, tables, estimates of unseen events, and history."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import random
import typing
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sample_nights import (
    NIGHTS,
    bad_night,
    declared,
    empty_night,
    good_night,
    interrupted_night,
    make_finding,
    make_night,
    make_tallies,
)

from kvtwin.fuzz import actions
from kvtwin.fuzz.report import SCHEMA, record, write_reports
from kvtwin.fuzz.report.estimates import estimate_unseen
from kvtwin.fuzz.report.history import NO_HISTORY, append_night, read_history
from kvtwin.fuzz.report.record import Error, Night, Profile
from kvtwin.fuzz.report.tally import digests_of, with_tables
from kvtwin.fuzz.report.words import attention, facts, headline, scope_words

# The record.


def schema() -> dict[str, Any]:
    """Return the schema, which must be valid."""
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return found


@pytest.mark.parametrize("name", NIGHTS)
def test_a_report_is_of_the_schema(name: str, tmp_path: Path) -> None:
    """The report of each sample night validates."""
    paths = write_reports(NIGHTS[name](), tmp_path / "new" / "folder")
    assert ["report.json", "report.md", "report.html"] == [path.name for path in paths]
    found = json.loads(paths[0].read_text(encoding="utf-8"))
    jsonschema.validate(found, schema(), jsonschema.Draft202012Validator)
    assert sorted(paths) == sorted(paths[0].parent.iterdir())


def test_the_schema_has_each_field() -> None:
    """Each field of each class is in the schema, required, with a description."""
    found = schema()
    classes = [one for one in vars(record).values() if dataclasses.is_dataclass(one)]
    names = {one.__name__.lower() for one in classes} - {"row", "night"}
    assert names == {name.lower() for name in found["$defs"]} - {"row"}
    computed = {"schema_version", "verdict", "cases_per_second", "cases_per_second_per_core"}
    for one in classes:
        name = one.__name__[0].lower() + one.__name__[1:]
        part = found if one is Night else found["$defs"][name]
        fields = {field.name for field in dataclasses.fields(one)}
        assert fields | (computed if one is Night else set()) == set(part["properties"]), name
        assert sorted(part["properties"]) == sorted(part["required"]), name
        assert not part["additionalProperties"]
        assert all(field["description"] for field in part["properties"].values()), name
        hints = typing.get_type_hints(one)
        for field in fields:
            choices = typing.get_args(hints[field])
            if typing.get_origin(hints[field]) is typing.Literal:
                assert list(choices) == part["properties"][field]["enum"]


@pytest.mark.parametrize(
    ("changes", "verdict", "line"),
    [
        ({}, "passed", "no failures; 1.2 million cases in 30 min"),
        ({"cases": 0}, "failed", "nothing was checked; 0 cases in 30 min"),
        (
            {
                "findings": [make_finding(0), make_finding(1)]
                + [make_finding(2 + i, status="known") for i in range(3)]
                + [make_finding(9, status="fixed")]
            },
            "failed",
            "2 new failures, 1 fixed, 3 still open; 1.2 million cases in 30 min",
        ),
        (
            {"findings": [make_finding(0, status="known")], "cases": 1},
            "failed",
            "no new failures, 1 still open; 1 case in 30 min",
        ),
        (
            {"findings": [make_finding(0, status="fixed")], "seconds": 29.0},
            "passed",
            "no failures, 1 fixed; 1.2 million cases in 29 s",
        ),
        (
            {"interrupted_by": "SIGTERM", "seconds": 700, "cases": 12_345},
            "interrupted",
            "no failures; 12,345 cases in 12 min of 30 min, stopped by SIGTERM",
        ),
        (
            {"interrupted_by": "SIGINT", "seconds": 60, "findings": [make_finding(0)]},
            "failed",
            "1 new failure; 1.2 million cases in 60 s of 30 min, stopped by SIGINT",
        ),
        (
            {"errors": [Error(where="the pool", message="no worker started")]},
            "failed",
            "no failures, 1 error in the run itself; 1.2 million cases in 30 min",
        ),
        (
            {"exhaustive": bad_night().exhaustive},
            "failed",
            "no failures, 1 small scope with differences; 1.2 million cases in 30 min",
        ),
    ],
)
def test_the_verdict_in_a_sentence(changes: dict[str, Any], verdict: str, line: str) -> None:
    """One sentence says what is new, fixed and open, how much was run, and why it ended."""
    night = make_night(**changes)
    assert verdict == night.verdict
    assert f"fast: {line}" == headline(night.to_json())


def test_rates_are_for_each_used_core() -> None:
    """Cases per second are those of all workers; a core is used if there is a worker for it."""
    night = make_night(cases=1000, seconds=10.0, workers=2)
    [machine] = night.machines
    for workers, cores, expected in ((2, 2, 50.0), (2, 16, 50.0), (8, 2, 50.0), (1, 2, 100.0)):
        one = dataclasses.replace(
            night, workers=workers, machines=[dataclasses.replace(machine, cores=cores)]
        )
        assert (100.0, expected) == (one.cases_per_second, one.cases_per_second_per_core)
    assert 0.0 == dataclasses.replace(night, seconds=0.0).cases_per_second


def test_passwords_are_not_published(tmp_path: Path) -> None:
    """A database's password is in no report, wherever its URL stands."""
    url = "redis://user:s3cret@host:6379/0"
    night = make_night(
        command=["--database", url, f"--database={url}", "redis://:s3cret@host"],
        profile=Profile(is_random=True, database=url),
    )
    for path in write_reports(night, tmp_path):
        text = path.read_text(encoding="utf-8")
        assert "s3cret" not in text
        assert "host" in text


def test_what_a_person_should_know_is_said() -> None:
    """Lost workers, properties without cases, a short night and a fixed seed are reported."""
    assert [] == attention(good_night().to_json())
    text = " ".join(attention(bad_night().to_json()))
    assert "1 worker died" in text
    tallies = make_tallies()
    tallies[0].cases = 0
    night = make_night(seconds=1700.0, profile=Profile(is_random=False, database="x"))
    text = " ".join(attention(with_tables(night, tallies).to_json()))
    assert f"1 property was not run: {tallies[0].name}." in text
    assert "The night was 1 min 40 s shorter than its budget." in text
    assert "The seed is fixed" in text
    assert "No case was run" in attention(empty_night().to_json())[0]
    assert [] == attention(interrupted_night().to_json())


def test_a_resumed_exhaustive_run_may_have_no_cases_left() -> None:
    """A resumed run that was complete passes, and is not called shorter than its budget."""
    scope = bad_night().exhaustive[0]
    night = make_night(cases=0, seconds=2.0, exhaustive=[scope])
    assert "passed" == night.verdict
    found = night.to_json()
    assert "fast: no failures; 0 cases in 2.0 s" == headline(found)
    assert [] == attention(found)
    assert "the last case of its scopes" == dict(facts(found))["ended by"]
    partial = dataclasses.replace(scope, is_finished=False)
    assert "failed" == make_night(cases=0, exhaustive=[partial]).verdict
    found = make_night(seconds=2.0, exhaustive=[partial]).to_json()
    assert "shorter than its budget" in attention(found)[0]
    error = Error(where="exhaustive", message="The run ended early")
    found = make_night(exhaustive=[partial], errors=[error]).to_json()
    assert "an error" == dict(facts(found))["ended by"]


def test_a_scope_without_cases_says_nothing_of_equality() -> None:
    """A scope without cases is reported as not compared."""
    found = {"bounds": "batch", "cases": 0, "different": 0, "declared": 0}
    found |= {"is_finished": False, "total": 9}
    assert "Every batch: 0 of 9 cases so far, not compared." == scope_words(found)


# Tables.


def test_events_are_counted_once_in_each_table() -> None:
    """An event that two properties of a function met counts once for the function and the night."""
    [first, second, *_] = make_tallies()
    first.counts = {"goals": {"a": 1, "b": 0, "c": 2}}
    second.counts = {"goals": {"a": 1, "d": 1}}
    finding = make_finding(0, property=first.name, function=first.function, target=first.target)
    fixed = dataclasses.replace(finding, id="other", status="fixed")
    night = with_tables(
        make_night(findings=[finding, fixed]),
        [first, second],
        declared={"goals": ["a", "b", "c", "d", "e"]},
    )
    [coverage] = night.coverage
    assert (3, 5, ["b", "e"], None, None) == (
        coverage.met,
        coverage.total,
        coverage.unmet,
        coverage.new,
        coverage.lost,
    )
    assert [2, 2] == [row.met["goals"] for row in night.properties]
    [row] = night.by_function
    assert (first.function, 3, None, [finding.id]) == (
        row.name,
        row.met["goals"],
        row.new,
        row.findings,
    )
    assert first.cases + second.cases == row.cases
    assert [[finding.id], []] == [row.findings for row in night.properties]
    assert coverage.estimate is not None
    assert (4 + 1, 1, 2) == (
        coverage.estimate.observations,
        coverage.estimate.once,
        coverage.estimate.twice,
    )


# Estimates of unseen events.


@pytest.mark.parametrize("seed", range(3))
def test_good_turing_predicts_what_comes(seed: int) -> None:
    """For events of very different frequency, the estimated share of new observations is right."""
    draw = random.Random(seed)  # noqa: S311  # no secret
    weights = [1 / (i + 1) for i in range(3000)]
    events = draw.choices(range(3000), weights, k=24_000)
    counts = Counter(events[:4000])
    found = estimate_unseen(counts.values(), 4000)
    assert found is not None
    new = sum(event not in counts for event in events[4000:]) / 20_000
    assert new == pytest.approx(found.share_new, rel=0.15)
    unseen = 3000 - len(counts)
    assert 0.3 * unseen < found.unseen_at_least < 1.1 * unseen


def test_unreached_goals_bound_the_estimate() -> None:
    """The estimate never exceeds the number of declared events that were not met."""
    tally = make_tallies()[0]
    tally.counts = {"goals": {f"s{i}": 1 for i in range(50)}}
    night = with_tables(make_night(), [tally], declared={"goals": [f"s{i}" for i in range(53)]})
    [coverage] = night.coverage
    assert coverage.estimate is not None
    assert 3 == coverage.estimate.unseen_at_least


def test_cases_that_were_not_observed_do_not_count() -> None:
    """The rate of new branches refers to the cases in which branches were observed."""
    tally = make_tallies()[0]
    tally.counts = {"goals": {"a": 1, "b": 5}, "branches": {"x": 1, "y": 3}}
    tally.cases, tally.observed = 1000, {"branches": 10}
    rates = [
        one.estimate.new_per_case
        for one in with_tables(make_night(), [tally]).coverage
        if one.estimate is not None
    ]
    assert [1 / 1000, 1 / 10] == rates


# Earlier nights.


def at(minute: int, **changes: object) -> Night:
    """Return a night that began at the given minute, with its tables."""
    night = make_night(started=f"2026-11-22T01:{minute:02}:00+00:00", **changes)
    return with_tables(night, make_tallies(), declared=declared())


def test_a_night_is_compared_with_the_last(tmp_path: Path) -> None:
    """Events that the last night did not meet are new, and those that only it met are lost.

    A night is not compared with itself or with later ones.
    """
    folder = tmp_path / "history"
    first, second = at(1), at(2)
    assert NO_HISTORY == read_history(folder, first)
    old = make_tallies()
    old[0].counts = {"goals": {"only before": 3, "not met": 0}}
    append_night(folder, first, digests_of(old))
    other = dataclasses.replace(at(3), targets=["cuda"])
    append_night(folder, other, digests_of(make_tallies()))
    append_night(folder, second, digests_of(make_tallies()))
    append_night(folder, at(9), digests_of(make_tallies()))
    night = with_tables(second, make_tallies(), history=read_history(folder, second))
    assert [first.started] == [past.started for past in night.history]
    assert first.cases == night.history[0].cases
    coverage = {one.kind: one for one in night.coverage}
    assert (0, 1) == (coverage["goals"].new, coverage["goals"].lost)
    gone = {event for event in make_tallies()[0].counts["pairs"] if "host answer" in event}
    assert len(gone) == coverage["pairs"].new
    row = night.properties[0]
    assert row.new is not None
    assert row.new["pairs"] == sum(make_tallies()[0].counts["pairs"][event] > 0 for event in gone)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"targets": ["host"]}, 0),
        ({"selected": ["compute_slot_mapping"]}, 0),
        ({"targets": ["simulator", "host"]}, 1),
        ({"seed": 5, "workers": 7, "seconds_budgeted": 60}, 1),
    ],
)
def test_only_nights_of_the_same_kind_are_compared(
    tmp_path: Path, change: dict[str, Any], expected: int
) -> None:
    """Targets, implementations and functions make the kind; seed, workers and budget do not."""
    append_night(tmp_path, at(1, **change), {})
    assert expected == len(read_history(tmp_path, at(2)).nights)


def test_what_is_no_night_is_reported_and_ignored(tmp_path: Path) -> None:
    """Foreign, truncated and tampered files are ignored, with a note for each."""
    good = append_night(tmp_path, at(1), digests_of(make_tallies()))
    data = json.loads(good.read_text(encoding="utf-8"))
    night = data["night"]
    bad: dict[str, object] = {
        "a list": [],
        "another format": {**data, "format": "kvtwin night 99"},
        "no key": {name: value for name, value in data.items() if name != "key"},
        "a field too many": {**data, "night": {**night, "more": 1}},
        "a field too few": {**data, "night": {"started": "now"}},
        "no time": {**data, "night": {**night, "started": "yesterday"}},
        "no count": {**data, "night": {**night, "cases": "many"}},
        "no number": {**data, "night": {**night, "seconds": float("nan")}},
        "coverage": {**data, "night": {**night, "met": {"pairs": "x"}}},
        "no coverage": {**data, "night": {**night, "met": 3}},
        "events": {**data, "seen": {"pairs": "not packed"}},
        "odd events": {**data, "seen": {"pairs": 3}},
    }
    for name, content in bad.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "cut.json").write_text(good.read_text(encoding="utf-8")[:100], encoding="utf-8")
    (tmp_path / "deep.json").write_text("[" * 200_000, encoding="utf-8")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "README.md").write_text("left alone", encoding="utf-8")
    found = read_history(tmp_path, at(2))
    assert 1 == len(found.nights)
    names = sorted([*bad, "cut", "deep", "binary"])
    assert len(names) == len(found.notes)
    for name, note in zip(names, found.notes, strict=True):
        assert note.startswith(
            f"{tmp_path / name}.json is not a night of kvtwin.fuzz, and is ignored: "
        )
    assert list(found.notes) == attention(
        with_tables(at(2), make_tallies(), history=found).to_json()
    )


def test_old_names_of_kinds_are_read(tmp_path: Path) -> None:
    """`situations`, the old name of the kind `goals`, is read as such."""
    path = append_night(tmp_path, at(1), digests_of(make_tallies()))
    new = read_history(tmp_path, at(2))
    text = path.read_text(encoding="utf-8")
    assert '"goals"' in text
    path.write_text(text.replace('"goals"', '"situations"'), encoding="utf-8")
    assert new == read_history(tmp_path, at(2))


def test_nights_that_end_together_keep_their_files(tmp_path: Path) -> None:
    """Nights that began and ended in the same second are all in the history, each whole."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        digests = digests_of(make_tallies())
        paths = list(pool.map(lambda _: append_night(tmp_path, at(1), digests), range(16)))
    assert 16 == len(set(paths))
    found = read_history(tmp_path, at(2))
    assert (16, []) == (len(found.nights), list(found.notes))
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}


def test_a_file_of_the_history_is_small(tmp_path: Path) -> None:
    """A night with 50,000 events takes less than 300 kB, and the next night reads all of them."""
    tally = make_tallies()[0]
    tally.counts = {"pairs": {f"f: {a} + {b}": 1 for a, b in itertools.combinations(range(317), 2)}}
    path = append_night(tmp_path, at(1), digests_of([tally]))
    assert path.stat().st_size < 300_000
    history = read_history(tmp_path, at(2))
    [coverage] = with_tables(at(2), [tally], history=history).coverage
    assert (50_086, 0, 0) == (coverage.met, coverage.new, coverage.lost)


def test_the_last_line_says_what_was_not_run() -> None:
    """A short night passes, but its last line counts the properties that got no time."""
    night = good_night()
    rows = [dataclasses.replace(row, cases=row.cases or 1) for row in night.properties]
    night = dataclasses.replace(night, properties=rows)
    assert "not run" not in actions._summary(night, Path("night"))
    rows[0] = dataclasses.replace(rows[0], cases=0)
    line = actions._summary(night, Path("night"))
    assert f"; 1 of {len(rows)} properties not run; night/report.html" in line
