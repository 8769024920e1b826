"""Mutation testing of `fast`: does the conformance run find bugs?

    python -m tools.mutate [--modules slots,ubatch] [--workers 2] [--budget-minutes N]

makes mutants of each module, one change in each (`tools/mutation/operators.py` lists the changes).
It runs conformance tests on each mutant, in the simulator too, until one fails. The tests are those
of the functions in the module, and in all modules that import it, that reach the changed lines. To
find these, a few examples of each test run once before the first mutant; if `--budget-minutes` ends
before that, no mutant is evaluated.

A few examples of each test run first, all examples of the module's own tests early (see
`tools/mutation/evaluator.py`), until `--survivor-seconds` are used up. A mutant survives if no test
fails. Mutants that are equivalent to the original, or in functions whose work the definition leaves
open, are declared in `tools/equivalents.toml`; on these, only the few examples run.

Mutants are evaluated in a random order, so an interrupted run has evaluated a random sample.
Outcomes are stored, and stay valid while the source of the module is unchanged. The exit status is
0; 1 if under 95% of the undeclared mutants are killed, or under 90% in a module, or if a
declaration is wrong; 2 for a wrong command line.
"""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.entry_point import run

    run("tools.mutate", "test,mutation")

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from tqdm import tqdm

from conformance.name_lists import near
from kvtwin.parser import Parser, names
from tools.mutation.equivalents import Declarations
from tools.mutation.mutants import Mutant, find_mutants
from tools.mutation.project import Project
from tools.mutation.session import Outcome, Session
from tools.mutation.summary import make_table, shortfalls, survivor_lines, tally

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build" / "mutants"
EQUIVALENTS: Final = Path(__file__).with_name("equivalents.toml")
SECONDS_OF_A_MINUTE = 60


def main(arguments: Sequence[str] | None = None, project: Project | None = None) -> int:
    """Run the command line, and return its exit status.

    Args:
        arguments: The command line; None: the process' own.
        project: The mutated package and its checks; None: `fast` and `conformance`.
    """
    parser = _make_parser()
    options = parser.parse_args(arguments)
    project = project or Project(ROOT)
    files = project.modules()
    chosen = list(files) if options.modules is None else options.modules
    for name in chosen:
        if name not in files:
            parser.error(
                f"--modules: {project.package} has no {name!r}; it has {near(name, files)}"
            )
    try:
        declarations = Declarations.read(options.equivalents)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for name in sorted(declarations.modules - set(files)):
        parser.error(f"{options.equivalents}: {project.package} has no {name!r}")
    mutants = [mutant for name in chosen for mutant in find_mutants(name, files[name])]
    try:
        session = Session(options.db)
    except (OSError, ValueError) as error:
        parser.error(f"--db {options.db}: {error}")
    try:
        if options.fresh:
            session.forget(mutants)
        run = Run(mutants, session, declarations)
        status = 0
        if not options.list_survivors:
            try:
                run.evaluate(project, options)
            except RuntimeError as error:  # a test fails on the original
                parser.error(str(error))
            except KeyboardInterrupt:
                status = 130
        return run.report() or status
    finally:
        session.close()


class Run:
    """The mutants of a run, with their outcomes and declarations.

    Args:
        mutants: The mutants.
        session: The stored outcomes.
        declarations: The declarations about mutants.
    """

    def __init__(
        self, mutants: Sequence[Mutant], session: Session, declarations: Declarations
    ) -> None:
        self._mutants = mutants
        self._session = session
        self._declarations = declarations

    def evaluated(self) -> list[tuple[Mutant, Outcome]]:
        """Return the mutants that were evaluated, with their outcomes."""
        known = [(mutant, self._session.outcome(mutant)) for mutant in self._mutants]
        return [(mutant, outcome) for mutant, outcome in known if outcome is not None]

    def evaluate(self, project: Project, options: argparse.Namespace) -> None:
        """Evaluate the mutants that are not evaluated yet.

        Args:
            project: The project.
            options: The parsed command line.

        Raises:
            RuntimeError: A test fails without a mutant, or cannot be imported.
        """
        left = [mutant for mutant in self._mutants if self._is_open(mutant, options)]
        random.Random(options.seed).shuffle(left)  # noqa: S311  # no secret
        if options.sample is not None:
            left = first_of_each_module(left, options.sample)
        if not left:
            return
        # It imports the project.
        from tools.mutation.evaluator import Evaluator  # noqa: PLC0415

        deadline = float("inf")
        if options.budget_minutes is not None:
            deadline = time.monotonic() + SECONDS_OF_A_MINUTE * options.budget_minutes
        evaluator = Evaluator(
            project,
            options.profile,
            options.workers,
            options.timeout_seconds,
            options.survivor_seconds,
            deadline=deadline,
        )
        for mutant, outcome in self.evaluated():
            evaluator.learn(mutant, outcome)
        missing = evaluator.missing({mutant.module for mutant in left})
        with tqdm(total=len(missing), desc="tests run", unit="test", leave=False) as bar:
            for _ in evaluator.measure(missing):
                bar.update()
        if missing := evaluator.missing({mutant.module for mutant in left}):
            print(f"nothing was evaluated: the budget ended before {len(missing)} tests ran once")
            return
        survived = 0
        with tqdm(total=len(left), unit="mutant", smoothing=0.05) as bar:
            for mutant, outcome in evaluator.evaluate(left, self._declarations.of):
                self._session.store(mutant, outcome)
                survived += outcome.verdict.is_alive and self._declarations.of(mutant) is None
                bar.set_postfix(survived=survived, refresh=False)
                bar.update()

    def _is_open(self, mutant: Mutant, options: argparse.Namespace) -> bool:
        """Return whether a mutant is to be evaluated."""
        outcome = self._session.outcome(mutant)
        if not options.survivors_again:
            return outcome is None
        is_alive = outcome is not None and outcome.verdict.is_alive
        return is_alive and self._declarations.of(mutant) is None

    def report(self) -> int:
        """Print the survivors, the table and what is wrong; return the exit status."""
        evaluated = self.evaluated()
        for line in survivor_lines(evaluated, self._declarations):
            print(line)
        tallies = tally(self._mutants, evaluated, self._declarations)
        Console(width=None if sys.stdout.isatty() else 140).print(make_table(tallies))
        complete = [name for name, one in tallies.items() if one.is_complete]
        wrong = self._declarations.wrong(complete, evaluated) + shortfalls(tallies)
        for line in wrong:
            print(line)
        return 1 if wrong else 0


def first_of_each_module(mutants: Iterable[Mutant], number: int) -> list[Mutant]:
    """Return the first `number` mutants of each module, in order."""
    found: Counter[str] = Counter()
    chosen = []
    for mutant in mutants:
        found[mutant.module] += 1
        if found[mutant.module] <= number:
            chosen.append(mutant)
    return chosen


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m tools.mutate",
        description="Run the conformance tests on mutants of fast.",
        examples=("--modules slots,ubatch --budget-minutes 30", "--list-survivors"),
        statuses={
            0: "enough mutants are killed",
            1: "too few are killed, or a declaration is wrong",
        },
    )
    add = parser.add_argument
    add(
        "--modules",
        type=names,
        metavar="A,B",
        help="modules to mutate, such as slots,kernels.moves; default: all of fast",
    )
    parser.add_workers("mutants to evaluate in parallel")
    parser.add_number(
        "--budget-minutes",
        "start no test and no mutant after this time",
    )
    parser.add_number("--sample", "evaluate at most N of the remaining mutants of each module")
    add("--seed", type=int, metavar="N", default=0, help="seed of the order; default: %(default)s")
    add(
        "--db",
        type=Path,
        metavar="FILE",
        default=FOLDER / "session.sqlite",
        help="database of evaluated mutants; default: build/mutants/session.sqlite",
    )
    add(
        "--equivalents",
        type=Path,
        metavar="FILE.toml",
        default=EQUIVALENTS,
        help="declares the mutants that no test can kill; default: tools/equivalents.toml",
    )
    parser.add_number(
        "--timeout-seconds", "CPU time limit of a test, in addition to 4 times its usual time", 10
    )
    parser.add_number(
        "--survivor-seconds",
        "CPU time after which no more tests start on a mutant",
        60,
    )
    add(
        "--profile",
        choices=("dev", "default"),
        default="default",
        help="profile of the tests; default: %(default)s",
    )
    add("--fresh", action="store_true", help="delete the stored outcomes of these modules first")
    add(
        "--survivors-again",
        action="store_true",
        help="evaluate only the undeclared survivors, again",
    )
    add(
        "--list-survivors",
        action="store_true",
        help="print the stored outcomes, and evaluate nothing",
    )
    return parser
