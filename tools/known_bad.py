"""How soon does the conformance run catch each known-bad implementation?

    python -m tools.known_bad [--functions compute_slot_mapping,BlockTables] [--workers N]

puts each implementation of `tests/conformance/known_bad` in the place of the right one, runs the
tests of its function as the default conformance run does, one after another and without shrinking,
and says which of them fails first, and at which of its examples. An honest implementation, of which
the bad ones are made, must pass them all. The exit status is 0; 1 where a bad one is not caught, or
the median one after more than 20 examples (where all are run), or an honest one fails; 2 when the
call was wrong.
"""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.command_line import run

    run("tools.known_bad")

import argparse
import dataclasses
import json
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tqdm import tqdm

from conformance.command_line import starting_workers
from conformance.lists import near
from tools.parser import Parser, names, positive

if TYPE_CHECKING:
    from known_bad import KnownBad

SET: Final = Path(__file__).parents[1] / "tests" / "conformance" / "known_bad"
"""The implementations, which are not installed: they stand beside the tests."""

MOST_IN_THE_MEDIAN: Final = 20
"""The examples after which half of the bad ones must be caught."""

SCHEMA_VERSION: Final = 1
"""Of what `--json` writes."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one implementation.

    Attributes:
        function: The function that it implements, as its checks name it.
        bug: What is wrong, None for an honest one.
        target: The target on which it ran.
        verdict: `caught` or `passes`, as it should; `not caught`; `fails`, of an honest one;
            `breaks down`, where something else than the bug was seen.
        test: The test that failed, as pytest names it; empty where none did.
        kind: What that test looks at.
        example: The number of its example that failed, counted from 1; 0 where none did.
        drawn: Likewise, with the examples of all tests that passed before.
        error: What it said, in a line.
        seconds: How long all this took.
    """

    function: str
    bug: str | None
    target: str
    verdict: str
    test: str = ""
    kind: str = ""
    example: int = 0
    drawn: int = 0
    error: str = ""
    seconds: float = 0.0

    @property
    def is_as_it_should(self) -> bool:
        """Whether it is a bad one that was caught, or an honest one that passes."""
        return self.verdict in {"caught", "passes"}

    @property
    def line(self) -> str:
        """What is to be read of one that is not as it should."""
        name = f"{self.function} on {self.target}: {self.bug or 'the honest one'}"
        return ": ".join(filter(None, (self.verdict, name, self.test, self.error)))


def main(arguments: Sequence[str] | None = None, entries: Sequence[KnownBad] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Those of the command line; None: the process' own.
        entries: The implementations, which one worker judges; None: the project's.

    Returns:
        The exit status: 0 where all is as it should be, otherwise 1.

    Raises:
        SystemExit: With status 2, for a command line that cannot be used, or outside of the
            repository.
    """
    parser = _make_parser()
    options = parser.parse_args(arguments)
    _check_places(parser, options)
    known = project_entries() if entries is None else entries
    chosen = list(range(len(known)))
    if options.functions is not None:
        names = options.functions
        functions = dict.fromkeys(entry.function for entry in known)
        for name in names:
            if name not in functions:
                parser.error(
                    f"--functions: no {name!r} is known to be bad; try {near(name, functions)}"
                )
        chosen = [index for index in chosen if known[index].function in names]
    if entries is None and options.workers > 1:
        outcomes = judge_in_processes(chosen, options.workers)
    else:
        outcomes = ((index, judge_one(known[index])) for index in chosen)
    found, status, why = _collected(outcomes, len(chosen))
    judged = [found[index] for index in sorted(found)]
    told = tell(judged, options, is_whole=len(judged) == len(known))
    if why:
        print(f"{why}: {len(chosen) - len(found)} implementations were not judged")
    return status or told


def _check_places(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End where there is nothing to judge, or where what is found could not be written."""
    if not SET.is_dir():
        parser.error(f"runs in the repository only: there is no folder {SET}")
    if options.json is not None and options.json.is_dir():
        parser.error(f"--json {options.json}: is a folder")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")


def _collected(
    outcomes: Iterable[tuple[int, Outcome]], total: int
) -> tuple[dict[int, Outcome], int, str]:
    """Return what became of which, and, where that is not all, the exit status and why."""
    found: dict[int, Outcome] = {}
    try:
        with tqdm(total=total, unit="implementation", file=sys.stderr) as bar:
            missed = 0
            for index, outcome in outcomes:
                found[index] = outcome
                missed += not outcome.is_as_it_should
                bar.set_postfix(missed=missed, refresh=False)
                bar.update()
    except BrokenProcessPool:
        return found, 1, "a worker crashed (try --workers 1)"
    except KeyboardInterrupt:
        return found, 130, "it was interrupted"
    return found, 0, ""


def project_entries() -> list[KnownBad]:
    """Return the project's known-bad implementations."""
    folder = str(SET.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import torch  # noqa: PLC0415  # what takes long to import waits until the call is known to be right

    torch.set_num_threads(1)  # as in the conformance run
    from known_bad import ENTRIES  # noqa: PLC0415  # likewise

    return ENTRIES


def judge_one(entry: KnownBad) -> Outcome:
    """Judge one implementation by the default profile.

    Args:
        entry: The implementation.

    Returns:
        What became of it.
    """
    from known_bad.judge import judge  # noqa: PLC0415  # it is not installed

    from conformance.profiles import PROFILES  # noqa: PLC0415  # that takes long

    started = time.perf_counter()
    found = None
    told: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as in the conformance run
            found = judge(entry, PROFILES["default"])
    except ValueError as error:  # it cannot be put in its place
        verdict, told = "breaks down", {"error": str(error)}
    else:
        verdict = "passes" if entry.bug is None else "not caught"
    if found is not None:
        caught = "caught" if found.is_verdict else "breaks down"
        verdict = "fails" if entry.bug is None else caught
        difference = getattr(found.error, "difference", None)
        first = (str(found.error).strip().splitlines() or [""])[0]
        told = {
            "test": found.test,
            "kind": found.check.kind.value,
            "example": found.number,
            "drawn": found.drawn,
            "error": f"{type(found.error).__name__}: {difference.line if difference else first}",
        }
    seconds = round(time.perf_counter() - started, 3)
    return Outcome(entry.function, entry.bug, entry.target, verdict, **told, seconds=seconds)


def judge_in_processes(chosen: Sequence[int], workers: int) -> Iterator[tuple[int, Outcome]]:
    """Judge some of the project's implementations, several at a time.

    Args:
        chosen: Where they stand in the list of all.
        workers: How many processes judge.

    Yields:
        Where one stands, and what became of it, as soon as it is known.

    Raises:
        BrokenProcessPool: One of them crashed its process.
    """
    entries = project_entries()
    # The honest ones take longest, and nobody should be waiting for the last of them.
    queue = sorted(chosen, key=lambda index: entries[index].bug is not None)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        with starting_workers():
            waiting = {pool.submit(_judge_numbered, index): index for index in queue}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def _judge_numbered(index: int) -> Outcome:
    """Judge the project's implementation that stands there in the list; the work of a process."""
    return judge_one(project_entries()[index])


def tell(outcomes: Sequence[Outcome], options: argparse.Namespace, *, is_whole: bool) -> int:
    """Print what became of the implementations, write it where that is asked, and judge the whole.

    Args:
        outcomes: What became of each.
        options: Of the command line.
        is_whole: Whether these are all that there are; else there is no judging their median.

    Returns:
        The exit status.
    """
    caught = [outcome for outcome in outcomes if outcome.verdict == "caught"]
    console = Console(width=None if sys.stdout.isatty() else 140)
    shown: Sequence[Outcome] = outcomes
    if options.slowest is not None:
        shown = sorted(caught, key=lambda one: (-one.example, -one.drawn))[: options.slowest]
    console.print(make_table(shown))
    console.print(make_summary(caught))
    bad = [outcome for outcome in outcomes if outcome.bug is not None]
    honest = [outcome for outcome in outcomes if outcome.bug is None]
    passing = sum(outcome.is_as_it_should for outcome in honest)
    print(f"caught: {len(caught)} of {len(bad)}; honest, and pass: {passing} of {len(honest)}")
    wrong = [outcome.line for outcome in outcomes if not outcome.is_as_it_should]
    counts = count(caught)
    if is_whole and counts["median"] > MOST_IN_THE_MEDIAN:
        wrong.append(f"the median is {counts['median']:g} examples, above {MOST_IN_THE_MEDIAN}")
    for line in wrong:
        print(line)
    if options.json is not None:
        record = {
            "schema_version": SCHEMA_VERSION,
            "profile": "default",
            "is_whole": is_whole,
            "bad": len(bad),
            "honest": len(honest),
            "caught": len(caught),
            "examples": counts,
            "wrong": wrong,
            "implementations": [dataclasses.asdict(outcome) for outcome in outcomes],
        }
        text = json.dumps(record, indent=1, ensure_ascii=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 1 if wrong else 0


def count(caught: Iterable[Outcome]) -> dict[str, float]:
    """Return the median, the 90th percentile and the most of the examples that were needed.

    The percentile is the number of examples within which nine of ten are caught.

    Args:
        caught: Those that were caught.

    >>> count(Outcome("f", "bug", "host", "caught", example=n) for n in range(1, 11))
    {'median': 5.5, 'percentile_90': 9, 'worst': 10}
    """
    numbers = sorted(outcome.example for outcome in caught)
    if not numbers:
        return {"median": 0, "percentile_90": 0, "worst": 0}
    nine_of_ten = numbers[-(-9 * len(numbers) // 10) - 1]
    median = statistics.median(numbers)
    return {"median": median, "percentile_90": nine_of_ten, "worst": numbers[-1]}


def make_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table of implementations.

    Args:
        outcomes: What became of each.
    """
    table = Table(title="known-bad implementations", box=box.SIMPLE_HEAD)
    table.add_column("what is wrong", ratio=5)
    table.add_column("is caught by", ratio=6, overflow="fold")
    for name in ("example", "all drawn", "seconds"):
        table.add_column(name, justify="right")
    before = ""
    for one in outcomes:
        if one.function != before:
            table.add_section()
            table.add_row(f"[bold]{escape(one.function)}[/bold]")
            before = one.function
        honest = f"honest on {one.target}: {one.verdict}"
        numbers = [f"{n:,}" if n else "" for n in (one.example, one.drawn)]
        table.add_row(
            escape(f"  {one.bug or honest}"),
            escape(one.test) or ("" if one.is_as_it_should else one.verdict.upper()),
            *numbers,
            f"{one.seconds:.1f}",
        )
    return table


def make_summary(caught: Sequence[Outcome]) -> Table:
    """Return the table of how many examples it took, by kind of test and by target.

    Args:
        caught: What was caught.
    """
    table = Table(title="examples until one is caught", box=box.SIMPLE_HEAD)
    for name in ("caught by", "implementations", "median", "90th percentile", "worst"):
        table.add_column(name, justify="left" if name == "caught by" else "right")
    by_kind: dict[str, list[Outcome]] = {}
    by_target: dict[str, list[Outcome]] = {}
    for one in caught:
        by_kind.setdefault(one.kind, []).append(one)
        by_target.setdefault(f"on {one.target}", []).append(one)
    for group in (by_kind, by_target, {"all": caught}):
        for label, some in group.items():
            numbers = (f"{number:,g}" for number in count(some).values())
            table.add_row(label, f"{len(some):,}", *numbers)
        table.add_section()
    return table


def _make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m tools.known_bad",
        description="Say which test catches each known-bad implementation, and how soon.",
    )
    add = parser.add_argument
    add("--functions", type=names, metavar="A,B", help="as their tests name them; default: all")
    add("--json", type=Path, metavar="FILE", help="write all that was found there too")
    add("--slowest", type=positive, metavar="N", help="print only the N caught latest")
    add(
        "--workers",
        type=positive,
        metavar="N",
        default=os.cpu_count() or 1,
        help="processes that judge; default: one for each core, %(default)s",
    )
    return parser
