"""Choose the property that gets the next slice of time.

Each property first gets a short slice. Afterwards, of 100 slices, 35 go to the property that had
the least time, so that none is starved; 16 to a property that has fewer cases than it needs; and 15
to the property that had the least time for each of its unmet coverage goals. The others are drawn
with weights: the square of the new coverage per second expected of a property.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kvtwin.fuzz.cases.coverage import Event
from kvtwin.fuzz.slices import SliceResult

FAIR_SHARE: Final = 0.35
"""The share of slices that goes to the property with the least time.

A larger share runs more cases, and meets fewer pairs of goals: in three minutes on two cores 77,883
and 110,393 with 0.3, 84,473 and 109,308 with 0.45 (2026-11-27).
"""

FEW_SHARE: Final = 0.16
"""The share of slices that goes to properties with fewer cases than they need, while there are any.

Half of them go to the property that has the smallest part of its cases, half to the one that needs
the least time for the rest: otherwise all would have some of their cases, and hardly any all.
Without it, three minutes on two cores ran 9 cases of a check of refusals that has 50 examples in
the default run (2026-11-26), and missed branches that the default run takes: the cases of refusals
are slow, each makes many invalid calls. With 0.08, four of five nights took fewer branches than the
default run (2026-11-27).
"""

UNMET_SHARE: Final = 0.15
"""The share of slices that goes to properties with goals that no case has met, while there are any.

Without it, three minutes on two cores left 5 of 3,326 goals (2026-11-23): few cases meet them, and
the time went to properties with many pairs of goals. Even in the last of these minutes such slices
meet more than those that are drawn by expected gain: 53 pairs and 4 goals per second, not 46 and 1
(2026-11-27).
"""

GAIN_POWER: Final = 2
"""A property's weight is its expected gain to this power.

With 1, most slices go to the many properties from each of which little is expected.
"""

MIN_EXPECTED_GAIN: Final = 1e-3
"""Its power is added to every weight, so that each property can be chosen."""

MIN_SECONDS: Final = 1e-3
"""A shorter time counts as this."""

MEMORY: Final = 0.6
"""The weight of earlier slices in the moving average of a property's gain."""

WEIGHTS: Final[Mapping[str, float]] = {"goal": 4.0, "branch": 10.0}
"""The weights of new events; 1 for other kinds. New branches are rare, and often lead to more."""


@dataclasses.dataclass
class Record:
    """The statistics of a property.

    Attributes:
        cases: The number of its cases.
        invalid: The number of cases that could not be drawn.
        failed: The number of cases that failed.
        seconds: The time that it had.
        slices: The number of its slices.
        gain: The weight of new events per second, as a moving average over slices.
        singletons: The weight of the events that only one case of the night met, one of this
            property.
        events: Its events, with the number of cases.
    """

    cases: int = 0
    invalid: int = 0
    failed: int = 0
    seconds: float = 0.0
    slices: int = 0
    gain: float = 0.0
    singletons: float = 0.0
    events: Counter[Event] = dataclasses.field(default_factory=Counter)

    @property
    def expected_gain(self) -> float:
        """The weight of new events that are expected in the next second.

        It is the gain of the last slices, capped by the Good-Turing estimate: the next case is as
        likely to meet a new event as a case so far was to meet an event that no other case met.
        After a property's first slice the gain is too high: it includes events that every property
        of its function meets. Nothing is expected after one case: no other case of the property
        could meet the same.
        """
        if self.cases == 1:
            return 0.0
        return min(self.gain, self.singletons / max(self.seconds, MIN_SECONDS))


class Chooser:
    """Chooses properties, and updates their statistics with the results of slices.

    Args:
        goals: The events of the coverage goals of each property.
        seed: The seed of the choices.
        min_cases: How many cases a property needs at least, for those for which it matters.
        fixed: The properties with only one example, which are not chosen again after a case.

    Attributes:
        records: The statistics of each property.
        events: All events, with the number of cases.
        kinds: How many different events there are of each kind.

    >>> chooser = Chooser({"a": [("goal", "f", "empty")], "b": []}, 0)
    >>> sorted([chooser.choose(), chooser.choose()])
    ['a', 'b']
    """

    def __init__(
        self,
        goals: Mapping[str, Iterable[Event]],
        seed: int,
        min_cases: Mapping[str, int] = MappingProxyType({}),
        fixed: Collection[str] = (),
    ) -> None:
        self._min_cases, self._fixed = min_cases, fixed
        self.records = {name: Record() for name in goals}
        self._unmet = {name: set(events) for name, events in goals.items()}
        self.events: Counter[Event] = Counter()
        self.kinds: Counter[str] = Counter()
        self._chance = random.Random(seed)  # noqa: S311  # no secret
        self._first = list(self.records)
        self._chance.shuffle(self._first)
        self._running: Counter[str] = Counter()
        self._met_once: dict[Event, Record] = {}
        self._retired: set[str] = set()

    @property
    def is_first_round(self) -> bool:
        """Whether some property was never chosen."""
        return bool(self._first)

    def choose(self) -> str | None:
        """Return the property that should run next; None if all are retired."""
        while self._first:
            name = self._first.pop()
            if name not in self._retired:
                return self._take(name)
        left = [name for name in self.records if name not in self._retired]
        if not left:
            return None
        done = {name for name in self._fixed if self.records[name].cases}
        return self._take(self._choose_from([name for name in left if name not in done] or left))

    def _choose_from(self, names: Sequence[str]) -> str:
        """Return one of some properties, after the first round; see the module's docstring."""
        share = self._chance.random()
        if share < FAIR_SHARE:
            return min(names, key=self._time_of)
        few = [name for name in names if self._has_too_few_cases(name)]
        if few and share < FAIR_SHARE + FEW_SHARE / 2:
            return min(few, key=self._share_of_min_cases)
        if few and share < FAIR_SHARE + FEW_SHARE:
            return min(few, key=self._seconds_to_min_cases)
        unmet = [name for name in names if self._unmet[name]]
        if unmet and share < FAIR_SHARE + FEW_SHARE + UNMET_SHARE:
            return min(unmet, key=lambda name: self._time_of(name) / len(self._unmet[name]))
        powers = [self.records[name].expected_gain ** GAIN_POWER for name in names]
        minimum = MIN_EXPECTED_GAIN**GAIN_POWER + sum(powers) / len(names) / 20
        weights = [power + minimum for power in powers]
        return self._chance.choices(names, weights)[0]

    def learn(self, result: SliceResult) -> int:
        """Add the result of a slice; return how many of its events are new."""
        name, seconds = result.property_name, result.seconds
        record = self.records[name]
        new = [event for event in result.events if event not in self.events]
        record.cases += result.cases
        record.invalid += result.invalid
        record.failed += result.failed
        record.seconds += seconds
        record.slices += 1
        record.events.update(result.events)
        self.events.update(result.events)
        self._note_met_once(record, result.events)
        self.kinds.update(event[0] for event in new)
        goals_met = [event for event in new if event[0] == "goal"]
        if goals_met:
            for goals in self._unmet.values():
                goals.difference_update(goals_met)
        self._running[name] -= 1
        gain = sum(map(_weight, new)) / max(seconds, MIN_SECONDS)
        is_first = record.slices == 1
        record.gain = gain if is_first else MEMORY * record.gain + (1 - MEMORY) * gain
        return len(new)

    def give_up(self, name: str) -> None:
        """Record that a slice was lost."""
        self._running[name] -= 1
        self.records[name].slices += 1
        self.records[name].gain /= 2

    def retire(self, name: str) -> None:
        """Do not choose a property again."""
        self._retired.add(name)

    def _note_met_once(self, record: Record, events: Counter[Event]) -> None:
        for event, cases in events.items():
            first = self._met_once.pop(event, None)
            if first is not None:
                first.singletons -= _weight(event)
            elif cases == self.events[event] == 1:
                self._met_once[event] = record
                record.singletons += _weight(event)

    def _take(self, name: str) -> str:
        self._running[name] += 1
        return name

    def _has_too_few_cases(self, name: str) -> bool:
        return name in self._min_cases and self._share_of_min_cases(name) < 1

    def _share_of_min_cases(self, name: str) -> float:
        """Return how many cases a property had, for each that it needs."""
        return self._running[name] + self.records[name].cases / self._min_cases[name]

    def _seconds_to_min_cases(self, name: str) -> float:
        """Return the seconds that a property probably takes for the cases that it lacks."""
        record = self.records[name]
        left = (1 - self._share_of_min_cases(name)) * self._min_cases[name]
        return left * record.seconds / max(record.cases, 1)

    def _time_of(self, name: str) -> float:
        """Return the seconds that a property had, plus one for each slice that has not ended."""
        return self.records[name].seconds + self._running[name]


def _weight(event: Event) -> float:
    return WEIGHTS.get(event[0], 1.0)
