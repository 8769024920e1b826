"""The database of the outcomes of mutants, from which later runs continue."""

from __future__ import annotations

import dataclasses
import enum
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tools.mutation.mutants import Mutant

TABLE: Final = "create table if not exists outcomes (mutant text primary key, outcome text)"


class Verdict(enum.Enum):
    """How the evaluation of a mutant ended."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    SURVIVED = "survived"
    UNREACHED = "unreached"

    @property
    def is_alive(self) -> bool:
        """Whether no check noticed the mutant."""
        return self in {Verdict.SURVIVED, Verdict.UNREACHED}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of evaluating a mutant.

    Attributes:
        verdict: How its evaluation ended.
        by: The test that killed it; "import" if it cannot be imported; "" if it survived.
        error: The exception, in a line.
        num_tests: How many tests ran.
        num_left: How many tests did not run, because the time was used up.
    """

    verdict: Verdict
    by: str = ""
    error: str = ""
    num_tests: int = 0
    num_left: int = 0


class Session:
    """The outcomes of mutants, each stored as soon as it is known.

    An outcome is valid while the mutant's module is unchanged.

    Args:
        path: The database; it is created if it does not exist.

    Raises:
        OSError: Its folder cannot be created.
        ValueError: The file is not a database of outcomes.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute(TABLE)
            stored = self._database.execute("select mutant, outcome from outcomes")
            self._outcomes = {mutant: _read(text) for mutant, text in stored}
        except (sqlite3.Error, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"is no database of outcomes: {error}") from error

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def outcome(self, mutant: Mutant) -> Outcome | None:
        """Return the outcome of a mutant; None if it was not evaluated."""
        return self._outcomes.get(mutant.digest)

    def store(self, mutant: Mutant, outcome: Outcome) -> None:
        """Store the outcome of a mutant."""
        self._outcomes[mutant.digest] = outcome
        record = dataclasses.asdict(outcome) | {"verdict": outcome.verdict.value}
        row = mutant.digest, json.dumps(record)
        self._database.execute("insert or replace into outcomes values (?, ?)", row)

    def forget(self, mutants: Iterable[Mutant]) -> None:
        """Delete the outcomes of mutants."""
        digests = [mutant.digest for mutant in mutants]
        self._database.executemany("delete from outcomes where mutant = ?", zip(digests))
        for digest in digests:
            self._outcomes.pop(digest, None)


def _read(text: str) -> Outcome:
    record = json.loads(text)
    return Outcome(**(record | {"verdict": Verdict(record["verdict"])}))
