"""The command line of the probe."""

from __future__ import annotations

import argparse
import gc
import re
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

import torch

import fast
from conformance.name_lists import near
from kvtwin.checked_mode import warm_checked_mode
from kvtwin.parser import Parser, names
from tools.probe import pools, subjects
from tools.probe.target import load
from tools.probe.violation import Violation
from tools.probe.workers import HANG_SECONDS, Job, Report, run_job

CASES_FOR_A_WORKER: Final = 200
"""The fewest cases that a worker runs: starting one takes as long as a hundred cases."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    if sys.platform != "linux":
        parser.error("needs Linux: it protects pages and reads /proc")
    known = subjects.names()
    if options.replay is not None:
        function, seed, case = options.replay
        names, jobs = [function], [Job((function,), seed, case, case + 1)]
    else:
        names = options.functions or known
        size = min(-(-CASES_FOR_A_WORKER // options.cases), -(-len(names) // options.workers))
        groups = [tuple(names[at : at + size]) for at in range(0, len(names), size)]
        jobs = [Job(group, options.seed, 0, options.cases) for group in groups]
    for name in names:
        if name not in known:
            parser.error(f"nothing is probed by the name {name!r}; there is {near(name, known)}")
    try:
        implementation = load(options.impl)
    except Exception as error:  # noqa: BLE001  # whatever the file raises
        parser.error(f"--impl {options.impl}: {type(error).__name__}: {error}")
    _prepare_workers(names)
    deadline = float("inf") if options.minutes is None else time.monotonic() + 60 * options.minutes
    stop = threading.Event()
    reports = []
    with ThreadPoolExecutor(options.workers) as pool:

        def is_over() -> bool:
            return stop.is_set() or time.monotonic() > deadline

        try:
            futures = [
                pool.submit(run_job, job, implementation, options.hang_seconds, is_over)
                for job in jobs
            ]
            for future in as_completed(futures):
                for report in future.result():
                    reports.append(report)
                    print(describe(report, is_full=options.replay is not None), flush=True)
        finally:
            stop.set()  # after Ctrl-C too: `pool` waits for its threads
    return _sum_up(reports)


def _prepare_workers(names: Sequence[str]) -> None:
    """Do the slow initialization once, before workers are forked."""
    torch.set_num_threads(1)  # a fork copies only one thread
    fast.warmup()
    warm_checked_mode()
    pools.Pool("extract_layer_index", 0)  # Hypothesis collects constants of all modules
    if set(names) & set(subjects.constructors()):
        pools.objects_in_calls()
    gc.collect()
    gc.freeze()  # Hypothesis collects garbage in each worker, which takes 0.2 s otherwise


def describe(report: Report, *, is_full: bool = False) -> str:
    """Return a function's report as text, with one example of each kind of violation."""
    lines = [f"{report.function}: {report.done:,} of {report.total:,} cases"]
    found: dict[tuple[str, str, str], list[Violation]] = {}
    for violation in report.violations:
        found.setdefault(violation.key, []).append(violation)
    for alike in found.values():
        first = min(alike, key=lambda found: (not found.call, len(found.call)))
        lines.append(f"  {first.kind}, {len(alike)} times, at {first.where}")
        maximum = 5000 if is_full else 400
        lines.append(f"    {first.detail[:maximum].rstrip()}")
        lines += [f"    {first.call[:maximum]}"] if first.call else []
        lines.append(f"    --replay {first.replay}")
    return "\n".join(lines)


def _sum_up(reports: Sequence[Report]) -> int:
    """Print a last line and return the exit status."""
    cases = sum(report.done for report in reports)
    distinct = {violation.key for report in reports for violation in report.violations}
    short = [report for report in reports if report.done < report.total]
    print(
        f"{len(reports)} functions, {cases:,} cases, {len(distinct)} kinds of violations"
        + (f"; {len(short)} functions not finished" if short else "")
    )
    return 1 if distinct else 0


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m tools.probe",
        description="Call the functions of fast with random arguments, and report violations.",
        examples=(
            "--functions compute_slot_mapping --cases 1000",
            "--replay compute_slot_mapping:0:29",
        ),
        statuses={0: "no violations", 1: "a violation was found"},
    )
    parser.add_argument(
        "--functions", type=names, metavar="A,B", help="functions to call; default: all public ones"
    )
    parser.add_number("--cases", "cases of each function", 10_000)
    parser.add_argument(
        "--seed", type=int, metavar="N", default=0, help="seed of the cases; default: %(default)s"
    )
    parser.add_workers("processes")
    parser.add_argument(
        "--hang-seconds",
        type=float,
        metavar="N",
        default=HANG_SECONDS,
        help="a case that takes longer counts as hung; default: %(default)s",
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="stop after this time")
    parser.add_argument(
        "--impl", type=Path, metavar="FILE", help="a Python file whose names replace those of fast"
    )
    parser.add_argument(
        "--replay",
        type=_case,
        metavar="FUNCTION:SEED:CASE",
        help="run one case, and print it in full",
    )
    return parser


def _case(text: str) -> tuple[str, int, int]:
    """Parse the name of a case."""
    found = re.fullmatch(r"([\w.]+):(-?\d+):(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not FUNCTION:SEED:CASE")
    return found[1], int(found[2]), int(found[3])
