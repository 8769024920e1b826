"""The command line of the fuzzer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from conformance.encoding import read_json
from conformance.targets.target import RAISED
from kvtwin.fuzz.bisection.bisect import bisect
from kvtwin.fuzz.cases import profile
from kvtwin.fuzz.cases.properties import Subject, properties_of
from kvtwin.fuzz.display import Display
from kvtwin.fuzz.exhaustive.night import enumerate_scopes
from kvtwin.fuzz.exhaustive.registry import SCALES
from kvtwin.fuzz.findings.database import open_database
from kvtwin.fuzz.findings.replay import attempt_of_input
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
from kvtwin.fuzz.workers.worker import Limits, start_fork_server
from kvtwin.machine import num_cores
from kvtwin.parser import Parser, positive, redirect_stdout_for_json, write_json

SEED_HELP: Final = (
    "default: a new one each time; repeats the seed of each slice and the order of the properties'"
    " first slices, but not a whole night, whose later slices depend on timing"
)

SIGNAL_STATUS: Final = {"SIGINT": 130, "SIGTERM": 143}

MINUTES: Final = 10.0
"""The default of `--minutes`."""

EXHAUSTIVE_MINUTES: Final = 60.0
"""The default of `--minutes` with `--exhaustive`, which ends by itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The command line; None: the process' own.

    Returns:
        0 if nothing fails; 1 if something does, or nothing was run; 130 or 143 after a signal.

    Raises:
        SystemExit: With status 2, for an invalid command line.
    """
    parser = _make_parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    with parser.reporting_errors():
        if options.bisect is not None:
            return _bisect(options)
        if options.replay is not None:
            return _replay(options)
        options.out.mkdir(parents=True, exist_ok=True)
        return _run(options, given)


def _run(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Run a night, write its reports, and return the exit status."""
    minutes = options.minutes
    if minutes is None:
        minutes = EXHAUSTIVE_MINUTES if options.exhaustive else MINUTES
    night_options = Options(
        _subject_of(options),
        60 * minutes,
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
            night = _fuzz(options, night_options, pool, console)
    finally:
        pool.close()
    if options.json is not None:
        write_json(night.to_json(), options.json)
    with redirect_stdout_for_json(options.json):
        print(_summary(night, options.out))
    if night.interrupted_by is not None:
        return SIGNAL_STATUS[night.interrupted_by]
    return 0 if night.verdict == "passed" else 1


def _fuzz(
    options: argparse.Namespace, night_options: Options, pool: Pool, console: Console
) -> Night:
    """Fuzz until the time is over, and return the record."""
    database = open_database(options.database, options.out)
    try:
        with Display(console, night_options.seconds) as display:
            fuzzing = Fuzzing(night_options, pool, database, display)
            display.note(
                f"fuzzing {len(fuzzing.properties)} properties for "
                f"{night_options.seconds / 60:g} min"
                f" with {count(pool.size, 'worker')}, seed {fuzzing.seed}"
            )
            fuzzing.run()
    finally:
        database.close()
    return _report(options, night_of(fuzzing), fuzzing)


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
    if options.ray is None:
        start_fork_server()
    limits = Limits(options.hang_seconds, options.memory_gib << 30, options.memory_gib << 29)
    uses_gpu = any(prop.target.device == "cuda" for prop in properties_of(subject).values())
    if options.ray is None:
        return LocalPool(options.workers or num_cores(), limits)
    from kvtwin.fuzz.workers.ray_pool import RayPool  # noqa: PLC0415  # of the extra `ray`

    files = [Path(text) for text in (*subject.impl, *subject.adapter) if text.endswith(".py")]
    pool = RayPool(
        options.ray, limits=limits, workers=options.workers, use_gpus=uses_gpu, files=files
    )
    if uses_gpu and not pool.num_gpus:
        pool.close()
        raise ValueError(f"target 'cuda' needs a GPU, and the Ray cluster {options.ray} has none")
    return pool


def _bisect(options: argparse.Namespace) -> int:
    case, good, bad = options.bisect
    result = bisect(
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


def _replay(options: argparse.Namespace) -> int:
    """Draw a stored input again, and check it."""
    profile.load()
    case, subject = read_json(options.replay), _subject_of(options)
    if case.get("kind") != "input":
        raise ValueError(
            f"{options.replay} was not drawn: python -m conformance --replay {options.replay}"
        )
    try:
        attempt_of_input(case, subject)()
    except RAISED as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    print("no difference")
    return 0


def _subject_of(options: argparse.Namespace) -> Subject:
    return Subject(
        tuple(_absolute(text) for text in options.impl),
        tuple(_absolute(text) for text in options.adapter),
        options.target,
        options.functions,
    )


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


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="kvtwin fuzz",
        description="Test an implementation with random inputs until the time is up.",
        examples=(
            "--minutes 30",
            "--impl my_engine.plumbing --functions compute_slot_mapping --minutes 5",
            "--minutes 480 --out night --history history",
            "--replay night/findings/cases/CASE.json",
        ),
        statuses={
            0: "no failures",
            1: "failures or errors, or no case was run",
            130: "ended by Ctrl-C, with its report written",
            143: "ended by SIGTERM, with its report written",
        },
    )
    add = parser.add_argument
    add(
        "--minutes",
        type=_positive_float,
        metavar="N",
        help=f"time limit; default: {MINUTES:g}, or {EXHAUSTIVE_MINUTES:g} with --exhaustive",
    )
    add(
        "--workers",
        type=positive,
        metavar="N",
        help="number of workers; default: one for each core",
    )
    add(
        "--target",
        metavar="A,B",
        help="targets to run: host, sim, native, cuda; default: all that run on this machine",
    )
    add(
        "--impl",
        action="append",
        default=[],
        metavar="M",
        help="implementation, a module or a .py file; may be repeated; default: fast",
    )
    add("--adapter", action="append", default=[], metavar="M", help="adapter for its objects")
    add("--functions", metavar="A,B", help="functions to check; default: all")
    add(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("fuzz-out"),
        help="folder for reports and findings; default: %(default)s",
    )
    add("--database", metavar="URL", help="example database; default: a folder in --out")
    add("--seed", type=int, metavar="N", help=SEED_HELP)
    add(
        "--history",
        type=Path,
        metavar="DIR",
        help="compare with the nights recorded in this folder, and record this one",
    )
    add("--ray", metavar="ADDRESS", help="run on the Ray cluster at HOST:PORT, or auto")
    add(
        "--hang-seconds",
        type=_positive_float,
        metavar="N",
        default=30.0,
        help="a case that takes longer counts as hung; default: 30",
    )
    add(
        "--memory-gib",
        type=positive,
        metavar="N",
        default=4,
        help="memory limit of a worker; default: 4",
    )
    add(
        "--exhaustive",
        action="store_true",
        help="check all inputs of small scopes, not random ones",
    )
    add(
        "--scale",
        type=int,
        choices=SCALES,
        default=1,
        help="how large the scopes of --exhaustive are; default: 1",
    )
    add(
        "--bisect",
        nargs=3,
        metavar=("CASE", "GOOD", "BAD"),
        help="find the commit that introduced the failure of a stored case",
    )
    parser.add_json("the report")
    add("--replay", type=Path, metavar="CASE", help="draw a stored input again, and check it")
    return parser


def _positive_float(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number greater than 0, got {text!r}")
    return number
