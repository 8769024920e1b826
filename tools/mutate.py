"""Mutation testing of `fast`: does the conformance run see bugs?

    python -m tools.mutate [--modules slots,ubatch] [--workers 2] [--budget-minutes N]

makes mutants of each module, one change in each (`tools/mutation/operators.py` says which), and
lets the module's conformance checks judge them, in the simulator too: first those of its own test
module, then those of all functions whose modules import it; of these, those that come by the
changed line. A mutant that no check sees survives. What is judged is kept, and stays judged while
the source of the module is unchanged; before that every check is run once, to see which lines it
comes by. `--budget-minutes` ends either: where not all checks were run once, nothing is judged.
Mutants that mean what the original means are declared in `tools/equivalents.toml`. The exit status
is 0; 1 where under 95% of the mutants that are not declared are seen in all, or under 90% in a
module, or a declaration is wrong; 2 when the call was wrong.
"""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.command_line import run

    run("tools.mutate", "-e '.[test,mutation]'")

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from tqdm import tqdm

from conformance.name_lists import near
from tools.mutation.court import Court
from tools.mutation.equivalents import Declarations
from tools.mutation.judge import Bench
from tools.mutation.mutants import Mutant, find_mutants
from tools.mutation.project import Project
from tools.mutation.session import Judgement, Session
from tools.mutation.summary import make_table, shortfalls, survivor_lines, tally
from tools.parser import Parser, names, positive

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build" / "mutants"
EQUIVALENTS: Final = Path(__file__).with_name("equivalents.toml")
TARGETS: Final = ("host", "sim")
SECONDS_OF_A_MINUTE = 60


def main(arguments: Sequence[str] | None = None, project: Project | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Those of the command line; None: the process' own.
        project: What is mutated, and by what it is judged; None: `fast`, by `conformance`.

    Returns:
        The exit status: 0 where enough mutants are seen, otherwise 1.

    Raises:
        SystemExit: With status 2, for a command line that cannot be used.
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
                run.judge(project, options)
            except RuntimeError as error:  # there is no judging with checks that fail
                parser.error(str(error))
            except KeyboardInterrupt:
                status = 130
        return run.tell() or status
    finally:
        session.close()


class Run:
    """The mutants of a run, and what is known of them.

    Args:
        mutants: The mutants.
        session: Keeps what is found.
        declarations: What is declared of them.
    """

    def __init__(
        self, mutants: Sequence[Mutant], session: Session, declarations: Declarations
    ) -> None:
        self._mutants = mutants
        self._session = session
        self._declarations = declarations

    def judged(self) -> list[tuple[Mutant, Judgement]]:
        """Return the mutants that were judged, and what was found of each."""
        known = [(mutant, self._session.judgement(mutant)) for mutant in self._mutants]
        return [(mutant, judgement) for mutant, judgement in known if judgement is not None]

    def judge(self, project: Project, options: argparse.Namespace) -> None:
        """Judge those that are not judged yet.

        Args:
            project: Has the judges.
            options: Of the command line.

        Raises:
            RuntimeError: A check fails without a mutant, or cannot be imported.
        """
        left = [mutant for mutant in self._mutants if self._is_open(mutant, options)]
        if options.sample is not None and options.sample < len(left):
            chosen = random.Random(options.seed).sample(range(len(left)), options.sample)  # noqa: S311  # no secret
            left = [left[at] for at in sorted(chosen)]
        if not left:
            return
        deadline = None
        if options.budget_minutes is not None:
            deadline = time.monotonic() + SECONDS_OF_A_MINUTE * options.budget_minutes
        folder = options.db.resolve().with_name(f"{options.db.name}.kept")
        copy = project.copied_to(folder / "source")
        bench = Bench(copy, options.profile, folder, copy.independent())
        court = Court(
            bench,
            TARGETS,
            options.workers,
            options.timeout_seconds,
            is_thorough=options.thorough,
        )
        for mutant, judgement in self.judged():
            court.learn(mutant, judgement)
        modules = list(dict.fromkeys(mutant.module for mutant in left))
        with tqdm(
            total=court.num_missing(modules), desc="checks run", unit="check", leave=False
        ) as bar:
            for _ in court.measure(modules, deadline):
                bar.update()
        if court.num_missing(modules):
            left_over = court.num_missing(modules)
            print(f"nothing was judged: the budget ended before {left_over} checks were run once")
            return
        survived = 0
        with tqdm(total=len(left), unit="mutant", smoothing=0.05) as bar:
            for mutant, judgement in court.judge(left, deadline):
                self._session.note(mutant, judgement)
                survived += judgement.verdict.is_alive
                bar.set_description(mutant.module, refresh=False)
                bar.set_postfix(survived=survived, refresh=False)
                bar.update()

    def _is_open(self, mutant: Mutant, options: argparse.Namespace) -> bool:
        """Tell whether a mutant is to be judged."""
        judgement = self._session.judgement(mutant)
        if judgement is None or not options.survivors_again:
            return judgement is None
        return judgement.verdict.is_alive and self._declarations.of(mutant) is None

    def tell(self) -> int:
        """Print the survivors, the table and what is wrong; return the exit status."""
        judged = self.judged()
        for line in survivor_lines(judged, self._declarations):
            print(line)
        tallies = tally(self._mutants, judged, self._declarations)
        Console(width=None if sys.stdout.isatty() else 120).print(make_table(tallies))
        complete = [name for name, one in tallies.items() if one.is_complete]
        wrong = self._declarations.wrong(complete, judged) + shortfalls(tallies)
        for line in wrong:
            print(line)
        return 1 if wrong else 0


def _make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m tools.mutate",
        description="Make mutants of fast, and let its conformance checks judge them.",
    )
    add = parser.add_argument
    add(
        "--modules",
        type=names,
        metavar="A,B",
        help="such as slots,kernels.moves; default: all of fast",
    )
    add(
        "--workers",
        type=positive,
        metavar="N",
        default=os.cpu_count() or 1,
        help="judges at a time; default: one for each core, %(default)s",
    )
    add(
        "--budget-minutes",
        type=positive,
        metavar="N",
        help="begin nothing else after these: first no check that is run once, then no mutant",
    )
    add("--sample", type=positive, metavar="N", help="judge so many of those that are left")
    add("--seed", type=int, metavar="N", default=0, help="of the sample; default: %(default)s")
    add(
        "--db",
        type=Path,
        metavar="FILE",
        default=FOLDER / "session.sqlite",
        help="keeps what is judged, with a folder FILE.kept beside it; default:"
        " build/mutants/session.sqlite",
    )
    add(
        "--equivalents",
        type=Path,
        metavar="FILE.toml",
        default=EQUIVALENTS,
        help="declares what no check can see; default: tools/equivalents.toml",
    )
    add(
        "--timeout-seconds",
        type=positive,
        metavar="N",
        default=10,
        help="of processor time, beside 4 times what a check takes; default: %(default)s",
    )
    add(
        "--profile",
        choices=("dev", "default"),
        default="default",
        help="of the checks; default: %(default)s",
    )
    add("--fresh", action="store_true", help="forget what was judged before, of these modules")
    add(
        "--thorough",
        action="store_true",
        help="also run checks of many functions, as the stateful test: a minute for each survivor",
    )
    add(
        "--survivors-again",
        action="store_true",
        help="judge those once more that survived and are not declared",
    )
    add("--list-survivors", action="store_true", help="judge nothing, print what is known")
    return parser
