"""The command line of the fuzzer."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tools.fuzz.database import open_database
from tools.fuzz.display import Display
from tools.fuzz.jobs import Pool
from tools.fuzz.local_pool import LocalPool
from tools.fuzz.night import Fuzzing, Options
from tools.fuzz.properties import Subject, properties_of
from tools.fuzz.report import NO_HISTORY, append_night, digests_of, read_history, with_tables, write_reports
from tools.fuzz.report.record import Night
from tools.fuzz.summary import declared_situations, night_of, tallies_of
from tools.fuzz.worker import Limits, Start
from tools.parser import Parser

SIGNAL_STATUS = {"SIGINT": 130, "SIGTERM": 143}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a night as the command line says.

    Args:
        arguments: Those of the command line; None: the process' own.

    Returns:
        0 if nothing fails; 1 if something does, or nothing was run; 130 or 143 after a signal.

    Raises:
        SystemExit: With status 2, for a command line that cannot be used.
    """
    parser = _make_parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    try:
        return _run(options, given)
    except ValueError as error:
        parser.error(str(error))


def _run(options: argparse.Namespace, given: Sequence[str]) -> int:
    subject = Subject(
        tuple(_absolute(text) for text in options.impl),
        tuple(_absolute(text) for text in options.adapter),
        options.target,
        options.functions,
    )
    chosen = properties_of(subject)
    options.out.mkdir(parents=True, exist_ok=True)
    uses_gpu = any(prop.target.device == "cuda" for prop in chosen.values())
    limits = Limits(options.hang_seconds, options.memory_gib << 30, options.memory_gib << 29)
    wanted = Options(
        subject,
        60 * options.minutes,
        options.out,
        options.seed,
        ["python", "-m", "tools.fuzz", *given],
        options.database,
    )
    database = open_database(options.database, options.out)
    console = Console(stderr=False)
    pool: Pool = LocalPool(options.workers, limits, Start("spawn") if uses_gpu else Start())
    with Display(console, wanted.seconds) as display:
        fuzzing = Fuzzing(wanted, pool, database, display)
        display.note(
            f"fuzzing {len(chosen)} properties for {options.minutes:g} minutes with"
            f" {pool.size} workers, seed {fuzzing.seed}"
        )
        fuzzing.run()
    database.close()
    night = _report(fuzzing, options)
    console.print(_last_words(night, options.out), soft_wrap=True, highlight=False)
    if night.interrupted_by is not None:
        return SIGNAL_STATUS[night.interrupted_by]
    return 0 if night.verdict == "passed" else 1


def _report(fuzzing: Fuzzing, options: argparse.Namespace) -> Night:
    night, tallies = night_of(fuzzing), tallies_of(fuzzing)
    history = NO_HISTORY
    if options.history is not None:
        history = read_history(options.history, night)
    declared = {"situations": declared_situations(fuzzing)}
    night = with_tables(night, tallies, declared=declared, history=history)
    write_reports(night, options.out)
    if options.history is not None:
        append_night(options.history, night, digests_of(tallies))
    return night


def _last_words(night: Night, out: Path) -> str:
    count = {
        status: sum(finding.status == status for finding in night.findings)
        for status in ("new", "known", "fixed")
    }
    told = ", ".join(f"{number} {status}" for status, number in count.items())
    return (
        f"{night.verdict}: {night.cases:,} cases in {night.seconds:,.0f} s"
        f" ({night.cases_per_second:,.0f} per second); failures: {told}; {out / 'report.html'}"
    )


def _absolute(text: str) -> str:
    return str(Path(text).resolve()) if text.endswith(".py") else text


def _make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m tools.fuzz",
        description="Check properties with random inputs until the time is over.",
    )
    add = parser.add_argument
    add("--minutes", type=_positive_float, metavar="N", default=10.0, help="default: %(default)g")
    add("--workers", type=_positive, metavar="N", default=_cores(), help="default: one for each core")
    add("--target", metavar="A,B", help="host, sim, cuda; default: those that run here")
    add("--impl", action="append", default=[], metavar="MODULE", help="what is tested; default: fast")
    add("--adapter", action="append", default=[], metavar="MODULE", help="translates its objects")
    add("--functions", metavar="A,B", help="default: all")
    add("--out", type=Path, metavar="DIR", default=Path("fuzz-out"), help="default: %(default)s")
    add("--database", metavar="URL", help="of examples; default: a folder in --out")
    add("--seed", type=int, metavar="N", help="default: another one each time")
    add("--history", type=Path, metavar="DIR", help="keeps a record of each night, for the trend")
    add("--hang-seconds", type=_positive_float, metavar="N", default=20.0, help="default: %(default)g")
    add("--memory-gib", type=_positive, metavar="N", default=4, help="for each worker; default: %(default)s")
    return parser


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _positive_float(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
