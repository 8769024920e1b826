"""Which property gets the next slice: none is starved, and those that cover more get more."""

from __future__ import annotations

from collections import Counter

from tools.fuzz.chooser import Chooser

NAMES = [f"property {number}" for number in range(10)]


def learn(chooser: Chooser, name: str, seconds: float = 1.0, new: int = 0) -> None:
    """Let a slice of a property have covered so many new goals."""
    number = len(chooser.events)
    events = {("goal", name, str(number + index)): 1 for index in range(new)}
    assert new == chooser.learn(name, cases=10, seconds=seconds, events=events)


def first_round(chooser: Chooser) -> list[str]:
    """Give each property its first slice."""
    chosen = []
    while chooser.is_first_round:
        chosen.append(chooser.choose())
        learn(chooser, chosen[-1])
    return chosen


def test_each_property_is_first_chosen_once() -> None:
    """In an order that the seed decides."""
    orders = [first_round(Chooser(NAMES, seed)) for seed in (1, 1, 2)]
    assert all(sorted(order) == NAMES for order in orders)
    assert orders[0] == orders[1] != orders[2]


def test_none_is_starved() -> None:
    """One that never covers anything new has a fair share of three slices in ten."""
    chooser = Chooser(NAMES, 0)
    first_round(chooser)
    counts: Counter[str] = Counter()
    for _ in range(1000):
        name = chooser.choose()
        counts[name] += 1
        learn(chooser, name, new=5 if name == NAMES[0] else 0)
    assert counts[NAMES[0]] > 400
    assert min(counts[name] for name in NAMES) >= 20, counts


def test_a_slow_property_takes_no_more_time_than_others() -> None:
    """The fair share is one of time, not of slices."""
    chooser = Chooser(["slow", "fast"], 0)
    first_round(chooser)
    for _ in range(600):
        name = chooser.choose()
        learn(chooser, name, seconds=10.0 if name == "slow" else 1.0)
    fast, slow = (chooser.records[name] for name in ("fast", "slow"))
    assert fast.slices > slow.slices
    assert slow.seconds < 20 * fast.seconds


def test_what_is_new_is_preferred() -> None:
    """Of two, the one that covers new goals gets most slices; not for ever."""
    chooser = Chooser(["old", "new"], 0)
    first_round(chooser)
    counts: Counter[str] = Counter()
    for _ in range(100):
        name = chooser.choose()
        counts[name] += 1
        learn(chooser, name, new=3 if name == "new" else 0)
    assert counts["new"] > 60
    for _ in range(200):  # nothing is new any more
        learn(chooser, chooser.choose())
    counts.clear()
    for _ in range(200):
        counts[chooser.choose()] += 1
        learn(chooser, "old")
        learn(chooser, "new")
    assert min(counts.values()) > 60


def test_an_event_is_new_once() -> None:
    """Whichever property meets it; its cases are counted for each."""
    chooser = Chooser(["a", "b"], 0)
    events = {("branch", "f", "1>2"): 3, ("pair", "f", "x", "y"): 1}
    assert 2 == chooser.learn("a", cases=4, seconds=1.0, events=events, invalid=1, failed=2)
    assert 0 == chooser.learn("b", cases=4, seconds=1.0, events=events)
    assert 6 == chooser.events["branch", "f", "1>2"]
    record = chooser.records["a"]
    assert (4, 1, 2, 3) == (
        record.cases,
        record.invalid,
        record.failed,
        record.events["branch", "f", "1>2"],
    )


def test_a_lost_slice_counts_as_one() -> None:
    """A property whose worker died is not chosen again and again before others."""
    chooser = Chooser(["dies", "lives"], 0)
    first_round(chooser)
    counts: Counter[str] = Counter()
    for _ in range(100):
        name = chooser.choose()
        counts[name] += 1
        if name == "dies":
            chooser.give_up(name)
        else:
            learn(chooser, name, new=1)
    assert counts["lives"] > 50
