"""What was evaluated, stored in cosmic-ray's database from run to run."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterable
from pathlib import Path

from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import (
    MutationSpec,
    TestOutcome,
    WorkerOutcome,
    WorkItem,
    WorkResult,
)
from sqlalchemy.exc import SQLAlchemyError

from tools.mutation.mutants import Mutant


class Verdict(enum.Enum):
    """How a mutant ended."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    SURVIVED = "survived"
    UNREACHED = "unreached"

    @property
    def is_alive(self) -> bool:
        """Whether no check saw the mutant."""
        return self in {Verdict.SURVIVED, Verdict.UNREACHED}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was found of a mutant.

    Attributes:
        verdict: How it ended.
        by: The check that saw it, "" for none.
        error: What that said, in a line.
        seconds: Of processor time.
        num_checks: How many checks ran.
    """

    verdict: Verdict
    by: str = ""
    error: str = ""
    seconds: float = 0.0
    num_checks: int = 0


class Session:
    """The outcomes of mutants, each written as soon as it is made.

    A mutant is known by its module's source and by what is changed: an outcome is valid while the
    source of the module is unchanged.

    Args:
        path: The database, made where there is none.

    Raises:
        OSError: Its folder cannot be made.
        ValueError: The file is no database, or none of these outcomes.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = WorkDB(path, WorkDB.Mode.create)
            results = dict(self._db.results)
            self._stored = set(results)
            self._outcomes = {
                job: _read(result)
                for job, result in results.items()
                if result.worker_outcome is not WorkerOutcome.SKIPPED
            }
        except (SQLAlchemyError, KeyError, TypeError, ValueError) as error:
            said = (str(error).splitlines() or [""])[0]
            raise ValueError(f"is no database of outcomes: {said}") from error

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def forget(self, mutants: Iterable[Mutant]) -> None:
        """Forget what was found of mutants."""
        jobs = {mutant.digest for mutant in mutants} & self._outcomes.keys()
        self._db.set_multiple_results(sorted(jobs), WorkResult(WorkerOutcome.SKIPPED))
        for job in jobs:
            del self._outcomes[job]

    def outcome(self, mutant: Mutant) -> Outcome | None:
        """Return what was found of a mutant, None where it was not evaluated."""
        return self._outcomes.get(mutant.digest)

    def note(self, mutant: Mutant, outcome: Outcome) -> None:
        """Keep what was found of a mutant."""
        if mutant.digest not in self._stored:
            spec = MutationSpec(
                module_path=mutant.path,
                operator_name=mutant.operator,
                occurrence=mutant.occurrence,
                start_pos=mutant.start,
                end_pos=mutant.end,
                definition_name=mutant.place.function,
            )
            self._db.add_work_item(WorkItem.single(mutant.digest, spec))
            self._stored.add(mutant.digest)
        self._outcomes[mutant.digest] = outcome
        self._db.set_result(mutant.digest, _written(mutant, outcome))


def _written(mutant: Mutant, outcome: Outcome) -> WorkResult:
    """Return a outcome in cosmic-ray's words, so that its own reports can be read too."""
    alive = outcome.verdict.is_alive
    is_crash = outcome.verdict is Verdict.CRASHED
    record = dataclasses.asdict(outcome) | {"verdict": outcome.verdict.value}
    return WorkResult(
        worker_outcome=WorkerOutcome.ABNORMAL if is_crash else WorkerOutcome.NORMAL,
        test_outcome=TestOutcome.SURVIVED if alive else TestOutcome.KILLED,
        output=json.dumps(record),
        diff=mutant.diff,
    )


def _read(result: WorkResult) -> Outcome:
    """Return the outcome that was written."""
    record = json.loads(result.output or "{}")
    return Outcome(**(record | {"verdict": Verdict(record["verdict"])}))
