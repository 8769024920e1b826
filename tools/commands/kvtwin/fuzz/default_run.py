"""Count what the default conformance run covers: `python -m kvtwin.fuzz.default_run`.

It runs the checks of `pytest conformance` in one process, with the default profile, and counts
cases, goals, pairs of goals and branches in the same way as `kvtwin fuzz`.
"""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.entry_point import run

    run("kvtwin.fuzz.default_run")

import argparse
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import fast
import reference
from conformance.contracts.check import Check
from conformance.coverage.goals import COVERAGE
from conformance.generation.profiles import PROFILES
from conformance.stateful.check import StatefulCheck
from kvtwin.fuzz import preload
from kvtwin.fuzz.cases import branches, coverage
from kvtwin.fuzz.cases.coverage import PLURALS
from kvtwin.fuzz.cases.properties import Subject, check_runs_here, properties_of
from kvtwin.parser import Parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, and print their coverage.

    Args:
        arguments: The command line; None: the process' own.

    Returns:
        0; a check that fails raises.
    """
    parser = Parser(
        prog="python -m kvtwin.fuzz.default_run",
        description="Run the checks of the default conformance run, and print their coverage.",
        examples=("--functions compute_slot_mapping --target host",),
    )
    parser.add_argument("--functions", metavar="A,B", help="functions to check; default: all")
    parser.add_argument(
        "--target", metavar="A,B", help="targets to run; default: all that run on this machine"
    )
    options = parser.parse_args(arguments)
    preload.prepare()
    print(json.dumps(observe(options), indent=1))
    return 0


def observe(options: argparse.Namespace) -> dict[str, Any]:
    """Run the checks; return the cases, the seconds, and the number of different events by kind.

    Args:
        options: The parsed command line.
    """
    subject = Subject(target=options.target, functions=options.functions)
    check_runs_here(subject)
    folders = {Path(module.__file__ or "").parent for module in (fast, reference)}
    branch_source = branches.branch_source(folders, is_sampled=False)
    try:
        return _observe(subject, [coverage.GoalsAndSizes(), branch_source])
    finally:
        branch_source.close()


def _observe(subject: Subject, sources: Sequence[coverage.Source]) -> dict[str, Any]:
    events: Counter[coverage.Event] = Counter()
    cases = 0
    began = time.process_time()
    for prop in properties_of(subject).values():
        for source in sources:
            source.begin(prop.name)
        check, sizes = prop.check, prop.check.sizes(prop.target)
        if isinstance(check, StatefulCheck):
            sizes = [prop.size]
        observed, seen = _observed(check, sources)
        before = COVERAGE.examples.copy()
        for size in sizes:
            COVERAGE.reached.clear()
            observed.bind(prop.target, PROFILES["default"], size)()
            if isinstance(check, StatefulCheck):
                for source in sources:
                    source.see(check.function, [name for _, name in COVERAGE.reached], None)
        cases += seen.total() or (COVERAGE.examples - before).total()
        for source in sources:
            events += source.end()
    seconds = time.process_time() - began
    kinds = Counter(PLURALS[event[0]] for event in events)
    return {"cases": cases, "seconds": seconds, "cases_per_second": cases / seconds, **kinds}


def _observed(check: Check, sources: Sequence[coverage.Source]) -> tuple[Check, Counter[str]]:
    """Return a check whose examples are observed, and a counter of its examples."""
    seen: Counter[str] = Counter()

    def goals_of(example: Any) -> Iterable[str]:
        found = list(check.goals_of(example))
        seen[check.function] += 1
        for source in sources:
            source.see(check.function, found, example)
        return found

    if isinstance(check, StatefulCheck):
        return check, seen
    return dataclasses.replace(check, goals_of=goals_of), seen
