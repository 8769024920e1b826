"""The actions of the command line: a night, an exhaustive run, a bisection, or a replay."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from conformance.encoding import read_json
from conformance.targets.implementations import load_implementations
from conformance.targets.target import RAISED, default_targets
from kvtwin.fuzz.bisection.bisect import bisect as find_commit
from kvtwin.fuzz.cases import profile
from kvtwin.fuzz.cases.properties import Subject, check_runs_here, properties_of
from kvtwin.fuzz.display import Display
from kvtwin.fuzz.exhaustive.night import enumerate_scopes
from kvtwin.fuzz.findings.database import open_database
from kvtwin.fuzz.findings.replay import attempt_of_input
from kvtwin.fuzz.interrupts import catching_signals
from kvtwin.fuzz.night import Fuzzing
from kvtwin.fuzz.options import Options
from kvtwin.fuzz.report import write_reports
from kvtwin.fuzz.report.history import NO_HISTORY, append_night, read_history
from kvtwin.fuzz.report.record import Night
from kvtwin.fuzz.report.tally import digests_of, with_tables
from kvtwin.fuzz.report.words import count
from kvtwin.fuzz.summary import declared_goals, night_of, tallies_of
from kvtwin.fuzz.workers.jobs import Pool
from kvtwin.fuzz.workers.local_pool import LocalPool
from kvtwin.fuzz.workers.worker import Limits
from kvtwin.machine import num_cores
from kvtwin.parser import redirect_stdout_for_json, write_json

SIGNAL_STATUS: Final = {"SIGINT": 130, "SIGTERM": 143}


def fuzz(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Run a night or an exhaustive run, write its reports, and return the exit status.

    Args:
        options: The parsed command line.
        given: The command line, for the reports.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    night_options = Options(
        _subject_of(options),
        60 * options.minutes,
        options.out,
        options.seed,
        ["kvtwin", "fuzz", *given],
        options.database,
    )
    console = Console(stderr=True)
    pool = _make_pool(options, night_options.subject)
    try:
        if options.exhaustive:
            with Display(console, night_options.seconds) as display:
                night = enumerate_scopes(night_options, options.scale, pool, display)
            night = _report(options, night)
        else:
            night = _run_night(options, night_options, pool, console)
    finally:
        pool.close()
    if options.json is not None:
        write_json(night.to_json(), options.json)
    with redirect_stdout_for_json(options.json):
        print(_summary(night, options.out))
    if night.interrupted_by is not None:
        return SIGNAL_STATUS[night.interrupted_by]
    return 0 if night.verdict == "passed" else 1


def bisect(options: argparse.Namespace) -> int:
    """Find the commit that introduced a failure, print it, and return the exit status."""
    case, good, bad = options.bisect
    result = find_commit(
        Path(case),
        good,
        bad,
        impl=options.impl[0] if options.impl else None,
        adapter=options.adapter[0] if options.adapter else None,
        target=options.target or "host",
        note=lambda line: print(line, flush=True),
    )
    print("\n".join(result.lines()))
    return 0


def replay(options: argparse.Namespace) -> int:
    """Draw a stored input again, check it, and return the exit status."""
    profile.load()
    case, subject = read_json(options.replay), _subject_of(options)
    if case.get("kind") != "input":
        raise ValueError(
            f"{options.replay} is a stored call, not an input of the fuzzer; replay it with:"
            f" python -m conformance --replay {options.replay}"
        )
    check_runs_here(subject)
    try:
        attempt_of_input(case, subject)()
    except RAISED as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    print("no difference")
    return 0


def _run_night(
    options: argparse.Namespace, night_options: Options, pool: Pool, console: Console
) -> Night:
    """Fuzz until the time is over, write the reports, and return the record."""
    with contextlib.ExitStack() as signals:
        database = open_database(options.database, options.out)
        try:
            with Display(console, night_options.seconds) as display:
                fuzzing = Fuzzing(night_options, pool, database, display)
                display.note(
                    f"fuzzing {len(fuzzing.properties)} properties for "
                    f"{night_options.seconds / 60:g} min"
                    f" with {count(pool.size, 'worker')}, seed {fuzzing.seed}"
                )
                signals.enter_context(catching_signals(fuzzing.interrupt))
                fuzzing.run()
        finally:
            database.close()
        night = _report(options, night_of(fuzzing), fuzzing)
    # The signal may have come while the reports were written.
    return dataclasses.replace(night, interrupted_by=fuzzing.interrupted_by)


def _report(options: argparse.Namespace, night: Night, fuzzing: Fuzzing | None = None) -> Night:
    """Write the reports of a night, add it to the history, and return it with its tables."""
    tallies = [] if fuzzing is None else tallies_of(fuzzing)
    declared = {} if fuzzing is None else {"goals": declared_goals(fuzzing)}
    has_history = options.history is not None and fuzzing is not None
    history = read_history(options.history, night) if has_history else NO_HISTORY
    night = with_tables(night, tallies, declared=declared, history=history)
    write_reports(night, options.out)
    if has_history:
        append_night(options.history, night, digests_of(tallies))
    return night


def _make_pool(options: argparse.Namespace, subject: Subject) -> Pool:
    limits = Limits(options.hang_seconds, options.memory_gib << 30, options.memory_gib << 29)
    if options.ray is None:
        check_runs_here(subject)
        return LocalPool(options.workers or num_cores(), limits)
    uses_gpu = any(prop.target.device == "cuda" for prop in properties_of(subject).values())
    from kvtwin.fuzz.workers.ray_pool import RayPool  # noqa: PLC0415  # of the extra `ray`

    files = [Path(text) for text in (*subject.impl, *subject.adapter) if text.endswith(".py")]
    pool = RayPool(
        options.ray, limits=limits, workers=options.workers, use_gpus=uses_gpu, files=files
    )
    if uses_gpu and not pool.num_gpus:
        pool.close()
        raise ValueError(f"target 'cuda' needs a GPU, and the Ray cluster {options.ray} has none")
    return pool


def _subject_of(options: argparse.Namespace) -> Subject:
    impl, adapter = (
        tuple(_absolute(text) for text in given) for given in (options.impl, options.adapter)
    )
    target = options.target
    if target is None and options.ray is not None and not options.exhaustive and len(impl) < 2:
        # The default targets of a node with a GPU are others.
        target = ",".join(default_targets(load_implementations(impl, adapter)[0]))
    return Subject(impl, adapter, target, options.functions)


def _absolute(text: str) -> str:
    return str(Path(text).resolve()) if text.endswith(".py") else text


def _summary(night: Night, out: Path) -> str:
    statuses = [finding.status for finding in night.findings]
    failures = ", ".join(f"{statuses.count(name)} {name}" for name in ("new", "known", "fixed"))
    starved = sum(not row.cases for row in night.properties)
    of_all = f" of {count(len(night.properties), 'property', 'properties')} not run;"
    return (
        f"{night.verdict}: {night.cases:,} cases in {night.seconds:,.0f} s"
        f" ({night.cases_per_second:,.0f} per second); failures: {failures};"
        f"{f' {starved:,}{of_all}' if starved else ''} {out / 'report.html'}"
    )
