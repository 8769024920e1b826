"""The command line of the fuzzer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from conformance.entry_point import INTERRUPTS
from kvtwin.fuzz.exhaustive import SCALES
from kvtwin.fuzz.workers.worker import kill_fork_server, start_fork_server
from kvtwin.parser import Parser, positive

SEED_HELP: Final = (
    "default: a new one each time; repeats the seed of each slice and the order of the properties'"
    " first slices, but not a whole night, whose later slices depend on timing"
)

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
    _check_combination(parser, options)
    if options.minutes is None:
        options.minutes = EXHAUSTIVE_MINUTES if options.exhaustive else MINUTES
    try:
        if options.ray is None and options.bisect is None and options.replay is None:
            start_fork_server()
        # Its imports take seconds, in which the fork server imports the same.
        with INTERRUPTS.importing(kill_fork_server):
            from kvtwin.fuzz import actions  # noqa: PLC0415

        with parser.reporting_errors():
            if options.bisect is not None:
                return actions.bisect(options)
            if options.replay is not None:
                return actions.replay(options)
            return actions.fuzz(options, given)
    except BaseException:
        kill_fork_server()
        raise


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
        help="targets to run: host, sim, native, cuda; default: all that run on this machine, and"
        " host with --exhaustive",
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


def _check_combination(parser: Parser, options: argparse.Namespace) -> None:
    """Refuse options that the chosen action would ignore."""
    actions = [name for name in ("exhaustive", "bisect", "replay") if getattr(options, name)]
    if len(actions) > 1:
        parser.error(f"--{actions[0]} and --{actions[1]} exclude each other")
    ignored = {
        "exhaustive": ("history", "database", "seed"),
        "bisect": ("history", "database", "seed", "json", "functions", "ray"),
        "replay": ("history", "database", "seed", "json", "ray"),
    }
    for action in actions:
        for name in ignored[action]:
            if getattr(options, name) is not None:
                parser.error(f"--{action} does not use --{name}")
    if options.bisect is not None and len(options.impl) > 1:
        parser.error("--bisect takes one --impl")


def _positive_float(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number greater than 0, got {text!r}")
    return number
