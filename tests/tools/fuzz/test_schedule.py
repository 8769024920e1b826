"""The schedule: which job comes next, and which inputs a slice runs first."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis.internal.conjecture.choice import ChoiceT

from kvtwin.fuzz.cases.case import Input
from kvtwin.fuzz.cases.properties import Property, Subject, properties_of
from kvtwin.fuzz.chooser import Chooser
from kvtwin.fuzz.findings.database import open_database
from kvtwin.fuzz.findings.failures import Failure
from kvtwin.fuzz.findings.minimize import MinimizeJob
from kvtwin.fuzz.findings.records import Findings
from kvtwin.fuzz.options import Options
from kvtwin.fuzz.schedule import MAX_DEATHS, Schedule
from kvtwin.fuzz.slices import SliceJob

SUBJECT = Subject(target="host", functions="split_attn_metadata")


def schedule_of(*properties: Property, folder: Path) -> Schedule:
    """Return the schedule of a night about some properties."""
    options = Options(SUBJECT, 60.0, folder)
    by_name = {prop.name: prop for prop in properties}
    chooser = Chooser(dict.fromkeys(by_name, ()), 0)
    database = open_database(None, folder)
    return Schedule(options, 5, by_name, chooser, Findings(folder / "found"), database)


def next_slice(schedule: Schedule) -> SliceJob:
    """Return the next slice of a night that has two workers."""
    job = schedule.next([], 0.0, 2)
    assert isinstance(job, SliceJob)
    return job


def choices_of(job: SliceJob) -> list[tuple[ChoiceT, ...]]:
    """Return the choices with which the first inputs of a slice begin."""
    return [Input.from_bytes(data).prefix for data in job.first]


def test_each_preset_of_size_axes_is_tried_once(tmp_path: Path) -> None:
    """Two slices do not get the same presets, and a slice gets those that another has left."""
    [prop] = [one for one in properties_of(SUBJECT).values() if one.check.axes]
    schedule = schedule_of(prop, folder=tmp_path)
    first, second = next_slice(schedule), next_slice(schedule)
    assert len(prop.presets) > 20
    every = [(index,) for index in range(len(prop.presets))]
    assert every == sorted(choices_of(first)) != choices_of(first)
    assert () == second.first
    schedule.give_back(prop.name, first.first[5:])
    assert first.first[5:] == next_slice(schedule).first
    assert () == next_slice(schedule).first


def test_each_of_a_checks_first_draws_is_tried_once(tmp_path: Path) -> None:
    """Each is tried with a random preset, and there are as many cases at least."""
    prop = next(one for one in properties_of(SUBJECT).values() if one.check.first_draws)
    tried = choices_of(next_slice(schedule_of(prop, folder=tmp_path)))
    assert sorted(prop.check.first_draws) == sorted(choices[1:] for choices in tried)
    assert len({preset for preset, *_ in tried}) > 10
    assert prop.min_cases == len(tried)


def test_first_inputs_of_a_lost_slice_are_given_back(tmp_path: Path) -> None:
    """Another slice gets the inputs after the last one, which may have killed the worker."""
    [prop] = [one for one in properties_of(SUBJECT).values() if one.check.axes]
    schedule = schedule_of(prop, folder=tmp_path)
    stored = [Input(prop.name, 0, (place, 5, True)) for place in (1, 2)]
    for one in stored:
        schedule.database.save_covering(prop.name, one.to_bytes())
    job = next_slice(schedule)
    assert {one.to_bytes() for one in stored} == set(job.first[:2]), "earlier nights come first"
    schedule.give_back_of_lost(job, Input.from_bytes(job.first[7]))
    rest = next_slice(schedule)
    assert job.first[8:] == rest.first
    schedule.give_back_of_lost(rest, None)
    again = next_slice(schedule)
    assert rest.first == again.first
    schedule.give_back_of_lost(again, Input(prop.name, 3, (2, 5, True)))
    assert () == next_slice(schedule).first, "it had tried all, and varied an input"


def test_only_open_findings_are_known_failures(tmp_path: Path) -> None:
    """A slice reports a failure that was fixed, whose replay this night cannot or need not fail."""
    prop = next(iter(properties_of(SUBJECT).values()))
    schedule = schedule_of(prop, folder=tmp_path)
    failures = [
        Failure(prop.check.function, "host", prop.name, "law", "", error, error, input=b"1")
        for error in ("StillFails", "Fixed")
    ]
    for failure in failures:
        schedule.findings.add(failure)
    schedule.findings.note_fixed(failures[1].id)
    later = schedule_of(prop, folder=tmp_path)
    assert {failures[0].key} == later.failing
    assert len(later.findings.by_id) == 2


def test_only_inputs_of_known_properties_are_minimized(tmp_path: Path) -> None:
    """A failure of a check that has another name now can be replayed, but not minimized."""
    prop = next(iter(properties_of(SUBJECT).values()))
    schedule = schedule_of(prop, folder=tmp_path)
    for name in ("renamed@host", prop.name):
        failure = Failure(prop.check.function, "host", name, "law", "", "E", "E", input=b"1")
        schedule.minimize(failure)
    assert [prop.name] == [job.name.removeprefix("minimize ") for job in schedule.urgent]


def test_a_property_that_kills_workers_gets_no_more_slices(tmp_path: Path) -> None:
    """After three dead workers the others get all slices; without others there are none."""
    dies, lives = [*properties_of(SUBJECT).values()][:2]
    schedule = schedule_of(dies, lives, folder=tmp_path)
    assert [False] * (MAX_DEATHS - 1) + [True] == [
        schedule.note_death(dies.name) for _ in range(MAX_DEATHS)
    ]
    assert {lives.name} == {next_slice(schedule).property_name for _ in range(20)}
    for _ in range(MAX_DEATHS):
        schedule.note_death(lives.name)
    assert None is schedule.next([], 0.0, 2)


def test_inputs_of_earlier_nights_are_read_before_the_first_slice(tmp_path: Path) -> None:
    """A property's first slice has them, and none of those that this night saved before it."""
    properties = [*properties_of(SUBJECT).values()][:2]
    earlier = open_database(None, tmp_path)
    for prop in properties:
        earlier.save_covering(prop.name, Input(prop.name, 1, (5,)).to_bytes())
        for damaged in (b"", b"[1", b"7", b'["a"]'):
            earlier.save_failing(prop.name, damaged)
    earlier.close()
    schedule = schedule_of(*properties, folder=tmp_path)
    jobs = [next_slice(schedule)]
    for prop in properties:
        schedule.database.save_covering(prop.name, Input(prop.name, 2, (6,)).to_bytes())
    jobs += [next_slice(schedule), next_slice(schedule)]
    found = [(job.property_name, job.first) for job in jobs[:2]]
    names = sorted(prop.name for prop in properties)
    assert [(name, (Input(name, 1, (5,)).to_bytes(),)) for name in names] == sorted(found)
    assert () == jobs[2].first


def test_what_explains_others_is_minimized_first(tmp_path: Path) -> None:
    """A law failure that was found earlier waits while a wrong answer explains it."""
    prop = next(iter(properties_of(SUBJECT).values()))
    schedule = schedule_of(prop, folder=tmp_path)
    function, target, name = prop.check.function, prop.target.name, prop.name
    law, answer = (
        Failure(function, target, name, kind, "", error, error, input=b"1")
        for kind, error in (("law", "LawViolation"), ("same answer", "Mismatch"))
    )
    for failure in (law, answer):
        schedule.findings.add(failure)
        schedule.minimize(failure)
    jobs = [schedule.next([], 0.0, 2) for _ in range(2)]
    assert isinstance(jobs[0], MinimizeJob)
    assert answer.id == jobs[0].finding_id
    assert isinstance(jobs[1], SliceJob)
    schedule.findings.note_failing(answer.id, 1, 5)  # it is flaky
    job = schedule.next([], 0.0, 2)
    assert isinstance(job, MinimizeJob)
    assert law.id == job.finding_id


@pytest.mark.parametrize("number", range(4))
def test_random_presets_are_not_tried_in_turn(number: int, tmp_path: Path) -> None:
    """A property without size axes does not go through its presets: it varies inputs at once."""
    of_sizes = [one for one in properties_of(SUBJECT).values() if len(one.presets) > 20]
    prop = [one for one in of_sizes if not (one.check.axes or one.check.first_draws)][number]
    assert () == next_slice(schedule_of(prop, folder=tmp_path)).first
