"""Coverage of a slice of cases, by kind of event."""

from __future__ import annotations

from kvtwin.fuzz.cases.coverage import GoalsAndSizes


def test_goals_and_their_pairs() -> None:
    """Goals and pairs are counted by case, and each slice starts from zero."""
    source = GoalsAndSizes()
    source.see("f", ["b", "a"], None)
    source.see("f", ["a"], None)
    source.see("f", [], None)
    source.see("g", ["a", "c", "b"], None)
    assert {
        ("goal", "f", "a"): 2,
        ("goal", "f", "b"): 1,
        ("pair", "f", "a", "b"): 1,
        ("goal", "g", "a"): 1,
        ("goal", "g", "b"): 1,
        ("goal", "g", "c"): 1,
        ("pair", "g", "a", "b"): 1,
        ("pair", "g", "a", "c"): 1,
        ("pair", "g", "b", "c"): 1,
    } == dict(source.end())
    assert not source.end()
