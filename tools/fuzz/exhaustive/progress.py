"""What of the scopes is done, kept in a file so that a stopped run goes on where it was.

The file says of which bounds and of which code it is; with others, what it has done says nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import conformance
import reference
from tools.fuzz.exhaustive.jobs import (
    CaseFailure,
    ExhaustiveJob,
    ExhaustiveResult,
    Subject,
    crash_of,
    read_note,
)
from tools.fuzz.exhaustive.registry import scopes_of
from tools.fuzz.exhaustive.scope import Scope

FILE: Final = "exhaustive.json"
"""The name of the file in the folder of a run."""

VERSION: Final = 1
"""The version of the file's form."""

JOB_SECONDS: Final = 10.0
"""About how long a job takes."""


@dataclasses.dataclass
class Done:
    """What of a scope is done.

    Attributes:
        ranges: The cases that were compared, `[start, stop)`, sorted, apart from each other.
        failed: How many of them failed.
        seconds: How long they took, over all workers.
        failures: The failures that were reported, one of each function and field, as
            `[case, function, line]`.
    """

    ranges: list[list[int]] = dataclasses.field(default_factory=list)
    failed: int = 0
    seconds: float = 0.0
    failures: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)

    @property
    def cases(self) -> int:
        """The number of cases that were compared."""
        return sum(stop - start for start, stop in self.ranges)

    def add(self, start: int, stop: int) -> None:
        """Add a range of cases.

        >>> done = Done()
        >>> for part in ((0, 3), (5, 9), (3, 5)):
        ...     done.add(*part)
        >>> done.ranges
        [[0, 9]]
        """
        merged: list[list[int]] = []
        for begin, end in sorted([*self.ranges, [start, stop]]):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            elif end > begin:
                merged.append([begin, end])
        self.ranges = merged

    def left(self, count: int) -> list[tuple[int, int]]:
        """Return the ranges of so many cases that are not done.

        >>> Done([[0, 2], [5, 6]]).left(8)
        [(2, 5), (6, 8)]
        """
        edges = [0, *(edge for part in self.ranges for edge in part), count]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [(start, stop) for start, stop in pairs if start < stop]


class StaleProgressError(ValueError):
    """A file of progress of other bounds or of other code."""


class Progress:
    """What is done of all scopes of a run.

    Args:
        subject: What is compared.
        functions: The functions to look at; None for all.

    Attributes:
        subject: What is compared.
        scopes: The scopes, by name.
        done: What of each is done, by its name.
        failures: The failures that this process was told of, the first of each function and field.
    """

    def __init__(self, subject: Subject, functions: Iterable[str] | None = None) -> None:
        self.subject = subject
        named = None if functions is None else sorted(functions)
        self.scopes: dict[str, Scope] = scopes_of(subject.find_target(), subject.scale, named)
        if not self.scopes:
            raise ValueError(f"no scope has a case of {', '.join(named or ())} on {subject.target}")
        self.done = {name: Done() for name in self.scopes}
        self.failures: dict[tuple[str, str], CaseFailure] = {}
        self._origin = {
            "version": VERSION,
            "subject": dataclasses.asdict(subject) | {"impl": list(subject.impl)},
            "scopes": {s.name: [s.bounds, s.count()] for s in self.scopes.values()},
            "code": code_digests(subject),
        }
        self._origin = json.loads(json.dumps(self._origin))

    @classmethod
    def resume(
        cls, folder: Path, subject: Subject, functions: Iterable[str] | None = None
    ) -> Progress:
        """Return what is done, as the file in a folder says; nothing where there is no file.

        Args:
            folder: The folder of the run.
            subject: What is compared.
            functions: The functions to look at; None for all.

        Raises:
            StaleProgressError: The file is of other bounds or of other code.
        """
        progress = cls(subject, functions)
        path = folder / FILE
        if not path.exists():
            return progress
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            origin, done = found["origin"], found["done"]
        except (ValueError, KeyError, TypeError) as error:
            raise StaleProgressError(
                f"{path} is no file of progress ({error}); remove it to begin anew"
            ) from error
        for what, wanted in progress._origin.items():
            progress._check_same(path, what, origin.get(what), wanted)
        for name, fields in done.items():
            progress.done[name] = Done(**fields)
        return progress

    def _check_same(self, path: Path, what: str, got: object, wanted: object) -> None:
        if got == wanted:
            return
        changed = what
        if isinstance(got, Mapping) and isinstance(wanted, Mapping):
            keys = [key for key in {**got, **wanted} if got.get(key) != wanted.get(key)]
            changed = f"{what} ({', '.join(map(str, keys))})"
        raise StaleProgressError(
            f"{path} was written by a run with other {changed}: what it has compared says nothing "
            "of this one. Go on with that version, or remove the file to begin anew"
        )

    def write(self, folder: Path) -> None:
        """Write what is done to the file in a folder, at once or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        done = {name: dataclasses.asdict(done) for name, done in self.done.items()}
        path = folder / FILE
        new = path.with_suffix(f".{os.getpid()}.new")
        new.write_text(json.dumps({"origin": self._origin, "done": done}), encoding="utf-8")
        new.replace(path)

    @property
    def is_complete(self) -> bool:
        """Whether every case was compared."""
        return all(done.cases == self.scopes[name].count() for name, done in self.done.items())

    def jobs(self) -> list[ExhaustiveJob]:
        """Return jobs of about ten seconds for all that is left."""
        found = []
        for name, scope in self.scopes.items():
            size = max(int(JOB_SECONDS * 1e6 / scope.case_us), 1)
            for start, stop in self.done[name].left(scope.count()):
                found += [
                    ExhaustiveJob(self.subject, name, first, min(first + size, stop))
                    for first in range(start, stop, size)
                ]
        return found

    def add(self, result: ExhaustiveResult) -> None:
        """Note that a job has ended."""
        done = self.done[result.scope]
        done.add(result.start, result.stop)
        done.failed += result.failed
        done.seconds += result.seconds

    def add_failure(self, failure: CaseFailure) -> bool:
        """Note a failing case; return whether it is the first of its function and field."""
        is_new = failure.key not in self.failures
        if is_new:
            self.failures[failure.key] = failure
            told = (failure.index, failure.function, failure.line)
            self.done[failure.scope].failures.append(told)
        return is_new

    def add_lost(
        self, job: ExhaustiveJob, reason: str, note: bytes
    ) -> tuple[CaseFailure, list[ExhaustiveJob]]:
        """Note that a worker was lost in a job.

        Args:
            job: The job.
            reason: How it was lost.
            note: What it noted last.

        Returns:
            The failure of the case in which it was lost, and jobs for the job's other cases.
        """
        noted = read_note(note)
        index = noted[1] if noted else job.start
        failure = crash_of(job, index, reason)
        self.add_failure(failure)
        self.add(ExhaustiveResult(job.scope, index, index + 1, 1, 0.0))
        rest = ((job.start, index), (index + 1, job.stop))
        return failure, [
            dataclasses.replace(job, start=start, stop=stop) for start, stop in rest if start < stop
        ]


def code_digests(subject: Subject) -> dict[str, str]:
    """Return a digest of all that decides what a case compares: code and versions of packages."""
    parts = {
        "reference": Path(reference.__file__).parent,
        "conformance": Path(conformance.__file__).parent,
        "scopes": Path(__file__).parent,
    }
    under_test = subject.find_target().under_test
    if under_test is not None:
        file = Path(under_test.file)
        parts[under_test.name] = file.parent if file.name == "__init__.py" else file
    digests = {name: _digest(path) for name, path in parts.items()}
    versions: dict[str, Any] = {"python": platform.python_version()}
    versions |= {"numpy": np.__version__, "torch": torch.__version__}
    return {**digests, **{name: str(version) for name, version in versions.items()}}


def _digest(path: Path) -> str:
    """Return a digest of a Python file, or of all Python files in a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        digest.update(str(file.relative_to(path.parent)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
