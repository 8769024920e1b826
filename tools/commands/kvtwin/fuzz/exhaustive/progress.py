"""The progress of an exhaustive run, stored in a file so that a stopped run can resume.

The file contains the bounds of its scopes and digests of the code. If either differs, it is stale.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import torch

import conformance
import reference
from conformance.checks.registry import choose_functions
from conformance.reports.files import replace_file
from conformance.targets.target import Target
from kvtwin.fuzz.cases.properties import Subject
from kvtwin.fuzz.exhaustive.jobs import (
    CaseFailure,
    ExhaustiveJob,
    ExhaustiveResult,
    targets_of,
)
from kvtwin.fuzz.exhaustive.registry import scopes_of
from kvtwin.fuzz.exhaustive.spaces import Scope

FILE: Final = "exhaustive.json"
"""The name of the progress file in the folder of a run."""

VERSION: Final = 2
"""The version of the file format."""

JOB_CASES: Final = 20_000
"""The maximum number of cases of a job."""


@dataclasses.dataclass
class Done:
    """The progress of one scope.

    Attributes:
        ranges: The compared cases as ranges `[start, stop)`, sorted and merged.
        failed: The number of cases that failed.
        declared: The number of other cases that differ, as an adapter declares.
        seconds: How long they took, over all workers.
    """

    ranges: list[list[int]] = dataclasses.field(default_factory=list)
    failed: int = 0
    declared: int = 0
    seconds: float = 0.0

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

    def has(self, index: int) -> bool:
        """Return whether a case was compared."""
        return any(start <= index < stop for start, stop in self.ranges)

    def left(self, count: int) -> list[tuple[int, int]]:
        """Return the ranges of `count` cases that are not done.

        >>> Done([[0, 2], [5, 6]]).left(8)
        [(2, 5), (6, 8)]
        """
        edges = [0, *(edge for part in self.ranges for edge in part), count]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [(start, stop) for start, stop in pairs if start < stop]


class StaleProgressError(ValueError):
    """A progress file has other bounds or other code."""


class Progress:
    """The progress of all scopes on all targets.

    Args:
        subject: What is under test.
        scale: How large the bounds are.

    Attributes:
        subject: What is under test.
        scale: How large the bounds are.
        scopes: The scopes, by the names of target and scope.
        done: The progress of each scope.
        failures: The first failure of each key.

    Raises:
        ValueError: The subject has unknown names, or no scope tests it.
    """

    def __init__(self, subject: Subject, scale: int = 1) -> None:
        self.subject, self.scale = subject, scale
        self.targets = targets_of(subject)
        functions = choose_functions(subject.functions)
        self.scopes: dict[tuple[str, str], Scope] = {
            (target.name, name): scope
            for target in self.targets.values()
            for name, scope in scopes_of(target, scale, functions).items()
        }
        if not self.scopes:
            raise ValueError(f"no scope is about {subject.functions or 'what is under test'}")
        self.done = {key: Done() for key in self.scopes}
        self.failures: dict[tuple[str, str, str], CaseFailure] = {}
        bounds = {
            f"{target}: {name}": [scope.bounds, scope.cases.count]
            for (target, name), scope in self.scopes.items()
        }
        code = code_digests(self.targets.values())
        self._origin = {"version": VERSION, "scale": scale, "bounds": bounds, "code": code}

    @classmethod
    def resume(cls, folder: Path, subject: Subject, scale: int = 1) -> Progress:
        """Return the progress stored in a folder; new progress if there is no file.

        Args:
            folder: The folder of the run.
            subject: What is under test.
            scale: How large the bounds are.

        Raises:
            ValueError: The subject has unknown names, or no scope tests it.
            StaleProgressError: The file has other bounds or other code, or cannot be read.
        """
        progress = cls(subject, scale)
        path = folder / FILE
        if not path.exists():
            return progress
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            for what, expected in progress._origin.items():
                _check_same(path, what, found["origin"].get(what), expected)
            for target, name, done in found["done"]:
                progress.done[target, name] = Done(**done)
            for failure in found["failures"]:
                progress.add_failure(CaseFailure(**failure))
        except StaleProgressError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise StaleProgressError(
                f"{path} is not a file of progress ({error!r}); remove it to begin again"
            ) from error
        return progress

    def write(self, folder: Path) -> None:
        """Write the progress to the file in a folder, atomically."""
        contents = {
            "origin": self._origin,
            "done": [[*key, dataclasses.asdict(done)] for key, done in self.done.items()],
            "failures": list(map(dataclasses.asdict, self.failures.values())),
        }
        replace_file(folder / FILE, json.dumps(contents))

    @property
    def cases(self) -> int:
        """The number of cases that were compared, in all scopes."""
        return sum(done.cases for done in self.done.values())

    @property
    def total(self) -> int:
        """The number of cases of all scopes."""
        return sum(scope.cases.count for scope in self.scopes.values())

    @property
    def is_complete(self) -> bool:
        """Whether every case was compared."""
        return self.cases == self.total

    def jobs(self) -> list[ExhaustiveJob]:
        """Return jobs for all cases that are left."""
        found = []
        for (target, name), scope in self.scopes.items():
            for start, stop in self.done[target, name].left(scope.cases.count):
                found += [
                    ExhaustiveJob(
                        self.subject, target, self.scale, name, first, min(first + JOB_CASES, stop)
                    )
                    for first in range(start, stop, JOB_CASES)
                ]
        return found

    def add(self, job: ExhaustiveJob, result: ExhaustiveResult) -> list[ExhaustiveJob]:
        """Record that a job has ended.

        Args:
            job: The job.
            result: Its result.

        Returns:
            A job for its other cases, if it ended before its last one.
        """
        done = self.done[job.target, job.scope]
        done.add(result.start, result.stop)
        done.failed += result.failed
        done.declared += result.declared
        done.seconds += result.seconds
        return [dataclasses.replace(job, start=result.stop)] if result.stop < job.stop else []

    def add_failure(self, failure: CaseFailure) -> bool:
        """Record a failing case; return whether it is the first with its key."""
        is_first = failure.key not in self.failures
        self.failures.setdefault(failure.key, failure)
        return is_first

    def add_lost(self, job: ExhaustiveJob, failure: CaseFailure) -> list[ExhaustiveJob]:
        """Record that a worker died, hung or took too much memory in a case.

        Args:
            job: The job.
            failure: The failure of that case, as `crash_of` returns it.

        Returns:
            Jobs for the job's other cases.
        """
        self.add(job, ExhaustiveResult(failure.index, failure.index + 1, 1, 0, 0.0))
        rest = ((job.start, failure.index), (failure.index + 1, job.stop))
        return [
            dataclasses.replace(job, start=start, stop=stop) for start, stop in rest if start < stop
        ]


def _check_same(path: Path, what: str, got: object, expected: object) -> None:
    """Raise if an entry of a file's origin differs from that of this run."""
    if got == expected:
        return
    changed = what
    if isinstance(got, dict) and isinstance(expected, dict):
        keys = [key for key in {**got, **expected} if got.get(key) != expected.get(key)]
        changed = f"{what} ({', '.join(keys[:4])}{', ...' if len(keys) > 4 else ''})"
    raise StaleProgressError(
        f"{path} belongs to a run with other {changed}. Remove the file to begin again, or restore"
        " the code and the options of that run to continue it"
    )


def code_digests(targets: Iterable[Target]) -> dict[str, str]:
    """Return digests of the code and the package versions that a comparison depends on."""
    parts = {
        "reference": Path(reference.__file__).parent,
        "conformance": Path(conformance.__file__).parent,
        "kvtwin.fuzz.exhaustive": Path(__file__).parent,
    }
    for target in targets:
        file = Path(target.implementation.file)
        is_package = file.name == "__init__.py"
        parts[target.implementation.name] = file.parent if is_package else file
    found = {name: _digest(path) for name, path in parts.items()}
    found["python"] = platform.python_version()
    return {**found, "numpy": np.__version__, "torch": str(torch.__version__)}


def _digest(path: Path) -> str:
    """Return a digest of a Python file, or of all Python files in a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        name = file.relative_to(path.parent)
        if "failures" not in name.parts:  # scripts that failing conformance runs leave there
            digest.update(str(name).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
