"""The coverage of each function's last run, stored in pytest's cache for `--explain`."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.coverage.goals import Coverage
from conformance.results.run import Run

KEY = "kvtwin/last_run"
"""The key in the cache."""


def remember(config: pytest.Config, run: Run, coverage: Coverage, started: str) -> None:
    """Store the coverage of a run's functions, in place of that of earlier runs.

    Unreached goals of a function whose tests did not all run are not stored. Without pytest's cache
    plugin nothing is stored.
    """
    if getattr(config, "cache", None) is None:
        return
    stored = {**recall(config)}
    for name in {function for function, _ in run.outcomes}:
        ran = [target for target in run.targets if run.outcomes.get((name, target.name))]
        counts = {goal: coverage.reached[name, goal] for goal in coverage.expected.get(name, ())}
        stored[name] = {
            "date": started,
            "profile": run.profile.name,
            "states": {target.name: run.verdict(name, target)[0].value for target in ran},
            "implementations": [one.name for one in run.implementations],
            "examples": sum(coverage.examples[name, target.name] for target in ran),
            "goals": {g: count for g, count in counts.items() if count or name not in run.partial},
        }
    config.cache.set(KEY, stored)


def recall(config: pytest.Config) -> dict[str, Any]:
    """Return the stored coverage, by function."""
    cache = getattr(config, "cache", None)
    found = None if cache is None else cache.get(KEY, None)
    return found if isinstance(found, dict) else {}
