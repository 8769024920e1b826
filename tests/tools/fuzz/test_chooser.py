"""Which property gets the next slice: none is starved, and those that cover more get more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kvtwin.fuzz.cases.coverage import Event
from kvtwin.fuzz.cases.properties import MANY_CASES, Subject, properties_of
from kvtwin.fuzz.chooser import Chooser
from kvtwin.fuzz.slices import SliceResult

NAMES = [f"property {number}" for number in range(10)]


def run_slices(
    chooser: Chooser,
    number: int,
    *,
    new: Mapping[str, int] = {},
    seconds: Mapping[str, float] = {},
) -> list[str]:
    """Give slices to the chosen properties; return their names.

    Args:
        chooser: The chooser under test.
        number: How many slices.
        new: How many new goals a slice of a property covers; default: 0.
        seconds: How long a slice of a property takes; default: 1.
    """
    chosen = []
    for _ in range(number):
        name = chooser.choose()
        chosen.append(name)
        known = len(chooser.events)
        goals = range(known, known + new.get(name, 0))
        events: Counter[Event] = Counter({("goal", name, str(goal)): 1 for goal in goals})
        result = SliceResult(name, 10, 0, 0, seconds.get(name, 1.0), events)
        assert len(goals) == chooser.learn(result)
    return chosen


def test_each_property_is_first_chosen_once() -> None:
    """Each property gets one of the first slices, in an order that the seed determines."""
    choosers = [Chooser(dict.fromkeys(NAMES, ()), seed) for seed in (1, 1, 2)]
    orders = [run_slices(chooser, len(NAMES)) for chooser in choosers]
    assert not any(chooser.is_first_round for chooser in choosers)
    assert all(sorted(order) == NAMES for order in orders)
    assert orders[0] == orders[1] != orders[2]


def test_none_is_starved() -> None:
    """A property that never covers anything new has a fair share of three slices in ten."""
    chooser = Chooser(dict.fromkeys(NAMES, ()), 0)
    counts = Counter(run_slices(chooser, 1000, new={NAMES[0]: 5}))
    assert counts[NAMES[0]] > 400
    assert min(counts[name] for name in NAMES) >= 30, counts


def test_a_property_with_unmet_goals_has_a_share() -> None:
    """A property gets more slices while no case of any property has met one of its goals."""
    goals: list[Event] = [("goal", "f", str(number)) for number in range(2)]
    chooser = Chooser({**dict.fromkeys(NAMES, ()), "of f": goals, "of f, too": goals}, 0)
    counts = Counter(run_slices(chooser, 1000))
    assert min(counts["of f"], counts["of f, too"]) > 100
    assert max(counts[name] for name in NAMES) < 100
    chooser.learn(SliceResult("of f", 2, 0, 0, 1.0, Counter(dict.fromkeys(goals, 2))))
    assert run_slices(chooser, 1000).count("of f") < 100


def test_a_property_with_few_cases_has_a_share() -> None:
    """A property gets more slices until it has run as many cases as it needs."""
    chooser = Chooser(dict.fromkeys(NAMES, ()), 0, {NAMES[0]: 1000})
    counts = Counter(run_slices(chooser, 1000))
    assert counts[NAMES[0]] > max(counts[name] for name in NAMES[1:])


def test_of_properties_with_few_cases_the_cheapest_is_completed() -> None:
    """Half of their share goes to the one that needs the least time for its cases."""
    slow = {f"slow {number}": 1000 for number in range(20)}
    chooser = Chooser(dict.fromkeys([*slow, "cheap"], ()), 0, {**slow, "cheap": 1000})
    run_slices(chooser, 600, seconds=dict.fromkeys(slow, 10.0) | {"cheap": 9.0})
    assert chooser.records["cheap"].cases > 1.5 * max(chooser.records[name].cases for name in slow)


def test_a_fixed_property_is_done_after_a_case() -> None:
    """A property with one example is chosen until it had a case, and then only if all are done."""
    chooser = Chooser({"fixed": [("goal", "f", "never")], "other": ()}, 0, fixed={"fixed"})
    assert {"fixed", "other"} == {chooser.choose() for _ in range(2)}
    for name in ("fixed", "other"):
        chooser.give_up(name)
    assert "fixed" in [chooser.choose() for _ in range(20)]
    chooser.learn(SliceResult("fixed", 1, 0, 0, 1.0, Counter()))
    assert {"other"} == {*run_slices(chooser, 20)}
    alone = Chooser({"fixed": ()}, 0, fixed={"fixed"})
    assert ["fixed"] * 3 == run_slices(alone, 3)


def test_a_slow_property_takes_no_more_time_than_others() -> None:
    """The fair share is a share of time, not of slices."""
    chooser = Chooser({"slow": (), "fast": ()}, 0)
    run_slices(chooser, 600, seconds={"slow": 10.0})
    fast, slow = (chooser.records[name] for name in ("fast", "slow"))
    assert fast.slices > slow.slices
    assert slow.seconds < 20 * fast.seconds


def test_what_is_new_is_preferred() -> None:
    """A property that covers new goals gets most slices, until it covers nothing new."""
    chooser = Chooser({"old": (), "new": ()}, 0)
    assert run_slices(chooser, 100, new={"new": 3}).count("new") > 60
    run_slices(chooser, 200)
    assert 60 < run_slices(chooser, 200).count("new") < 140


def test_the_most_promising_is_preferred() -> None:
    """A property that covers three times as many new goals gets over four times as many slices."""
    chooser = Chooser({**dict.fromkeys(NAMES, ()), "few": (), "many": ()}, 0)
    counts = Counter(run_slices(chooser, 1000, new={"few": 1, "many": 3}))
    assert 4 * counts["few"] < counts["many"]


def test_a_small_gain_is_preferred_too() -> None:
    """A property that covers one new goal in 100 s is preferred to those that cover none."""
    chooser = Chooser({**dict.fromkeys(NAMES, ()), "few": ()}, 0)
    seconds = dict.fromkeys([*NAMES, "few"], 100.0)
    counts = Counter(run_slices(chooser, 1000, new={"few": 1}, seconds=seconds))
    assert counts["few"] > 400


def test_an_event_is_new_once() -> None:
    """An event that another property covered is not new; its cases are counted for each."""
    chooser = Chooser({"a": (), "b": ()}, 0)
    events: Counter[Event] = Counter({("branch", "f", "1>2"): 3, ("pair", "f", "x", "y"): 1})
    assert 2 == chooser.learn(SliceResult("a", 4, 1, 2, 1.0, events))
    assert 0 == chooser.learn(SliceResult("b", 4, 0, 0, 1.0, events))
    assert 6 == chooser.events["branch", "f", "1>2"]
    assert {"branch": 1, "pair": 1} == chooser.kinds
    record = chooser.records["a"]
    assert (4, 1, 2, 3) == (
        record.cases,
        record.invalid,
        record.failed,
        record.events["branch", "f", "1>2"],
    )


def test_nothing_is_expected_after_one_case() -> None:
    """That no other case met the events of a property's only case says nothing about the next."""
    chooser = Chooser({"a": ()}, 0)
    chooser.learn(SliceResult("a", 1, 0, 0, 1.0, Counter({("pair", "f", "x", "y"): 1})))
    assert (1.0, 0.0) == (chooser.records["a"].gain, chooser.records["a"].expected_gain)
    chooser.learn(SliceResult("a", 1, 0, 0, 1.0, Counter({("pair", "f", "x", "z"): 1})))
    assert 1.0 == chooser.records["a"].expected_gain


def test_what_each_case_meets_is_no_gain() -> None:
    """A property is promising if it met new events, and some of its events only once."""
    chooser = Chooser({"a": (), "b": (), "c": ()}, 0)
    often, rare, both = (("pair", "f", name, name) for name in ("often", "rare", "both"))
    chooser.learn(SliceResult("a", 9, 0, 0, 2.0, Counter({often: 9})))
    assert (0.5, 0.0) == (chooser.records["a"].gain, chooser.records["a"].expected_gain)
    chooser.learn(SliceResult("b", 9, 0, 0, 2.0, Counter({often: 8, rare: 1, both: 1})))
    assert 1.0 == chooser.records["b"].expected_gain
    chooser.learn(SliceResult("c", 9, 0, 0, 2.0, Counter({both: 1})))
    gains = [chooser.records[name].expected_gain for name in "abc"]
    assert [0.0, 0.5, 0.0] == gains, "an event that was met again is no gain"
    chooser.learn(SliceResult("b", 9, 0, 0, 3.0, Counter({rare: 9})))
    assert 0.0 == chooser.records["b"].expected_gain


def test_a_lost_slice_counts_as_one() -> None:
    """A lost slice counts as a slice, so a property that kills workers does not starve others."""
    chooser = Chooser({"dies": (), "lives": ()}, 0)
    num_lives = 0
    for _ in range(100):
        name = chooser.choose()
        if name == "dies":
            chooser.give_up(name)
        else:
            num_lives += 1
            chooser.learn(
                SliceResult(name, 10, 0, 0, 1.0, Counter({("goal", name, str(num_lives)): 1}))
            )
    assert num_lives > 50


def test_a_retired_property_is_not_chosen() -> None:
    """Neither if it never ran, has the least time, has too few cases, nor if no other is left."""
    chooser = Chooser({"retired": [("goal", "f", "never")], "other": ()}, 0, {"retired": 9})
    chooser.retire("retired")
    assert ["other"] * 50 == run_slices(chooser, 50)
    chooser.retire("other")
    assert None is chooser.choose()


def test_a_night_knows_what_needs_many_cases() -> None:
    """Some checks have a least number of cases, and those with one example have that once."""
    known = properties_of(Subject(target="host"))
    needed = {prop.where: prop.min_cases for prop in known.values() if prop.min_cases}
    assert needed.items() >= MANY_CASES.items()
    refusing = "conformance.test_slots:test_compute_slot_mapping_refuses"
    assert needed[refusing] > 0
    assert len(needed) < len(known) / 4
    fixed = [prop.where for prop in known.values() if prop.is_fixed]
    assert ["conformance.test_kv_layout:test_every_short_history"] == fixed
