"""The command line of `python -m tools.bugs`; see the package."""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tqdm import tqdm

from conformance.entry_point import how_to_install, starting_workers
from conformance.name_lists import near
from kvtwin.parser import Parser, names
from kvtwin.processes import kill_all
from tools.bugs import by_target
from tools.bugs.outcomes import Outcome

if TYPE_CHECKING:
    from tools.bugs.catalogue import Bug

FOLDER: Final = Path(__file__).parents[2] / "tests" / "conformance" / "bugs"
"""The catalogue, which is not installed."""

MAX_MEDIAN: Final = 20
"""The most examples that the median bug may take."""


def main(arguments: Sequence[str] | None = None, bugs: Sequence[Bug] | None = None) -> int:
    """Run the command line, and return its exit status.

    Args:
        arguments: The command line; None: the process' own.
        bugs: The bugs, evaluated in this process; None: the catalogue.
    """
    parser = _make_parser()
    options = parser.parse_args(arguments)
    _check_catalogue(parser)
    known = _read_catalogue() if bugs is None else bugs
    chosen = list(known)
    if options.functions is not None:
        functions = dict.fromkeys(bug.function for bug in known)
        for name in options.functions:
            if name not in functions:
                parser.error(f"--functions: {name!r} has no bugs; try {near(name, functions)}")
        chosen = [bug for bug in known if bug.function in options.functions]
    if options.targets is not None:
        _check_targets(parser, options.targets, known)
        chosen = by_target.on_each(chosen, options.targets)
    if bugs is None and options.workers > 1:
        outcomes = evaluate_in_processes(chosen, options.workers)
    else:
        outcomes = map(evaluate, chosen)
    evaluated, status, why = _collect(outcomes, len(chosen))
    if options.targets is None:
        reported = report(evaluated, is_whole=len(evaluated) == len(known))
    else:
        reported = report_by_target(chosen, evaluated, options.targets)
    if why:
        print(f"{why}: {len(chosen) - len(evaluated)} bugs were not evaluated")
    return status or reported


def _check_catalogue(parser: Parser) -> None:
    """Exit with an error if there is no catalogue."""
    if not FOLDER.is_dir():
        parser.error(f"runs in the repository only: there is no folder {FOLDER}")


def _check_targets(parser: Parser, chosen: Iterable[str], known: Iterable[Bug]) -> None:
    """Exit with an error if a target has no bugs."""
    targets = {bug.target for bug in known}
    for name in chosen:
        if name not in targets:
            parser.error(f"--targets: {name!r} has no bugs; there are {', '.join(sorted(targets))}")


def _collect(outcomes: Iterable[Outcome], total: int) -> tuple[list[Outcome], int, str]:
    """Return the outcomes, the exit status, and why some outcomes are missing; empty if none."""
    found: list[Outcome] = []
    try:
        with tqdm(total=total, unit="bug", file=sys.stderr) as bar:
            for outcome in outcomes:
                found.append(outcome)
                bar.set_postfix(missed=sum(not one.is_caught for one in found), refresh=False)
                bar.update()
    except BrokenProcessPool:
        return found, 1, "a worker crashed (try --workers 1)"
    except KeyboardInterrupt:
        return found, 130, "it was interrupted"
    return found, 0, ""


def _read_catalogue() -> list[Bug]:
    # It takes long to import: only after the command line is parsed.
    from tools.bugs.catalogue import read_catalogue  # noqa: PLC0415

    _use_one_thread()
    found = sorted(read_catalogue(), key=lambda bug: bug.function)
    if find_spec("numba_cuda") is None:
        runnable = [bug for bug in found if bug.target != "native"]
        print(
            f"{len(found) - len(runnable)} bugs of machine code are left out: numba-cuda is not"
            f" installed ({how_to_install('cuda')})",
            file=sys.stderr,
        )
        return runnable
    return found


def _use_one_thread() -> None:
    """Let torch use one thread, as in the conformance run."""
    import torch  # noqa: PLC0415  # likewise

    torch.set_num_threads(1)


def evaluate(bug: Bug) -> Outcome:
    """Run the checks of the default profile on a bug.

    Args:
        bug: The bug.

    Returns:
        The outcome.
    """
    # They take long to import.
    from conformance.generation.profiles import PROFILES  # noqa: PLC0415
    from tools.bugs.evaluation import find  # noqa: PLC0415

    started = time.perf_counter()
    found = None
    fields: dict[str, Any] = {"verdict": "not caught"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as in the conformance run
            found = find(bug, PROFILES["default"], by_any_check=True)
    except ValueError as error:  # the patch does not apply
        fields = {"verdict": "broken patch", "error": str(error)}
    if found is not None:
        difference = getattr(found.error, "difference", None)
        first = (str(found.error).strip().splitlines() or [""])[0]
        fields = {
            "verdict": "caught" if found.shows(bug) else "broken patch",
            "test": found.test,
            "example": found.number,
            "error": f"{type(found.error).__name__}: {difference.line if difference else first}",
        }
    seconds = round(time.perf_counter() - started, 3)
    return Outcome(bug.function, bug.what, bug.target, **fields, seconds=seconds)


def evaluate_in_processes(bugs: Sequence[Bug], workers: int) -> Iterator[Outcome]:
    """Evaluate bugs, several at a time, and yield their outcomes in order.

    Raises:
        BrokenProcessPool: One of them crashed its process.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _use_one_thread) as pool:
        with starting_workers():
            outcomes = [pool.submit(evaluate, bug) for bug in bugs]
        try:
            for outcome in outcomes:
                yield outcome.result()
        except BaseException:
            kill_all()  # futures are not cancelled: the pool's thread would raise of each
            pool.shutdown(wait=False)
            raise


def report(outcomes: Sequence[Outcome], *, is_whole: bool) -> int:
    """Print the outcomes, and return the exit status.

    Args:
        outcomes: The outcome of each bug.
        is_whole: Whether these are all bugs; only then the median is checked.
    """
    caught = [outcome.example for outcome in outcomes if outcome.is_caught]
    wrong = [outcome.line for outcome in outcomes if not outcome.is_caught]
    median = statistics.median(caught or [0])
    if is_whole and median > MAX_MEDIAN:
        wrong.append(f"the median is {median:g} examples, above {MAX_MEDIAN}")
    Console(width=None if sys.stdout.isatty() else 140).print(make_table(outcomes))
    print(f"caught: {len(caught)} of {len(outcomes)}, half of them within {median:g} examples")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def report_by_target(
    bugs: Sequence[Bug], outcomes: Sequence[Outcome], targets: Sequence[str]
) -> int:
    """Print what each target catches, and return the exit status.

    Args:
        bugs: Each for all targets, one after another.
        outcomes: The outcome of each.
        targets: Their names.
    """
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(by_target.make_table(bugs, outcomes, targets))
    wrong = list(by_target.find_wrong(bugs, outcomes))
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def make_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table of bugs.

    Args:
        outcomes: The outcome of each.
    """
    table = Table(title="bugs", box=box.SIMPLE_HEAD)
    table.add_column("what is wrong", ratio=5)
    table.add_column("caught by", ratio=6, overflow="fold")
    for name in ("example", "seconds"):
        table.add_column(name, justify="right")
    before = ""
    for one in outcomes:
        if one.function != before:
            table.add_section()
            table.add_row(f"[bold]{escape(one.function)}[/bold]")
            before = one.function
        table.add_row(
            escape(f"  {one.bug}"),
            escape(one.test) or one.verdict.upper(),
            f"{one.example:,}" if one.example else "",
            f"{one.seconds:.1f}",
        )
    return table


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m tools.bugs",
        description="Report which test catches each bug of the catalogue, and how many examples it "
        "takes.",
        examples=("--functions compute_slot_mapping,BlockTables",),
        statuses={0: "all bugs are caught", 1: "a bug is not caught, or its patch is broken"},
    )
    add = parser.add_argument
    add(
        "--functions",
        type=names,
        metavar="A,B",
        help="evaluate only the bugs of these functions; default: all",
    )
    add(
        "--targets",
        type=names,
        metavar="A,B",
        help="run each bug of these targets on all of them, and print which ones catch it",
    )
    parser.add_workers("processes")
    return parser
