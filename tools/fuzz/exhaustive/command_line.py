"""The command line of an exhaustive run by itself."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from tools.fuzz.exhaustive import summary
from tools.fuzz.exhaustive.progress import Progress
from tools.fuzz.exhaustive.registry import SCALES
from tools.fuzz.exhaustive.run import run
from tools.fuzz.local_pool import LocalPool
from tools.fuzz.properties import Subject
from tools.fuzz.worker import Limits, Start
from tools.parser import Parser

RESULT = "exhaustive-report.json"
"""What was shown, in the folder of the run, beside the progress."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Enumerate small scopes as the command line says.

    Args:
        arguments: Those of the command line; None: the process' own.

    Returns:
        0 if all cases were compared and are equal, 1 if not.

    Raises:
        SystemExit: With status 2, for a command line that cannot be used.
    """
    parser = _make_parser()
    options = parser.parse_args(arguments)
    subject = Subject(
        tuple(options.impl), tuple(options.adapter), options.target, options.functions
    )
    try:
        progress = Progress.resume(options.out, subject, options.scale)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print(summary.text(progress))
        return 0
    deadline = time.monotonic() + 60 * options.minutes
    uses_gpu = any(target.device == "cuda" for target in progress.targets.values())
    pool = LocalPool(options.workers, Limits(), Start("spawn") if uses_gpu else Start())
    try:
        run(
            progress,
            pool,
            options.out,
            is_over=lambda: time.monotonic() > deadline,
            show=lambda line: print(line, flush=True),
        )
    finally:
        pool.close()
        report = json.dumps(summary.as_json(progress), indent=1)
        (options.out / RESULT).write_text(report + "\n", encoding="utf-8")
        print(summary.text(progress), flush=True)
    has_failed = any(done.failed for done in progress.done.values())
    return 0 if progress.is_complete and not has_failed else 1


def _make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m tools.fuzz.exhaustive",
        description="Compare every case below stated bounds; a run that was stopped goes on.",
    )
    add = parser.add_argument
    add("--minutes", type=float, metavar="N", default=60.0, help="at most; default: %(default)g")
    add("--workers", type=int, metavar="N", default=2, help="default: %(default)s")
    add("--scale", type=int, choices=SCALES, default=1, help="of the bounds; default: %(default)s")
    add("--target", metavar="A,B", help="host, sim, cuda; default: host")
    add(
        "--impl",
        action="append",
        default=[],
        metavar="MODULE",
        help="what is tested; default: fast",
    )
    add("--adapter", action="append", default=[], metavar="MODULE", help="translates its objects")
    add("--functions", metavar="A,B", help="default: all")
    add("--out", type=Path, metavar="DIR", default=Path("fuzz-out"), help="default: %(default)s")
    add("--list", action="store_true", help="only show the scopes, their bounds and counts")
    return parser
