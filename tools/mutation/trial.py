"""Evaluate one mutant in one process: replace its module, and run tests until one fails.

The process is a fork of one that has imported the whole project, so tests start at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from tools.mutation.mutants import Mutant
from tools.mutation.project import Project

TARGETS: Final = ("host", "sim")
"""The targets on which tests run."""

MEMORY_BYTES: Final = 6 << 30
"""The memory that a process may allocate."""

IDLE_SECONDS: Final = 60
"""A process that uses no processor time for this long is killed."""


@dataclasses.dataclass(frozen=True)
class Test:
    """A test of the conformance run.

    Attributes:
        name: Its name in pytest.
        check: The check and the target, shared by tests that differ in the size of examples.
        function: The function under test.
        kind: The kind of its check, such as "same answer".
        home: The module of the package that defines the function, "" for a constant; None if the
            test is not of a single function.
        bind: Returns a callable that runs the test with a profile.
    """

    name: str
    check: str
    function: str
    kind: str
    home: str | None
    bind: Callable[[str], Callable[[], None]]


class Step(NamedTuple):
    """A test to run.

    Attributes:
        test: Its name.
        profile: The profile, which sets the number of examples.
        seconds: The limit of processor time, after which the mutant counts as a timeout.
    """

    test: str
    profile: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result that a process sends.

    Attributes:
        by: The test that failed, "import" if the mutant cannot be imported, "" for none.
        error: The exception, in a line.
        num_tests: How many tests ran.
        num_left: How many tests did not run, because the time was used up.
    """

    by: str
    error: str
    num_tests: int
    num_left: int = 0


def load_tests(project: Project) -> dict[str, Test]:
    """Import the project, and return its tests by name.

    All modules of checks are imported, so that a check draws the same examples as in a whole run.
    """
    all_checks = importlib.import_module("tools.bugs.evaluation").all_checks.__wrapped__
    targets = importlib.import_module("conformance.targets.target").TARGETS
    profiles = importlib.import_module("conformance.generation.profiles").PROFILES
    package = importlib.import_module(project.package)

    def binds(check: Any, target: str, size: str) -> Callable[[str], Callable[[], None]]:  # noqa: ANN401
        return lambda name: check.bind(targets[target], profiles[name], size, shrink=False)

    tests = {}
    for named in all_checks(project.checks):
        check = named.check
        owner: Any = getattr(package, check.function.split(".")[0], None)
        inside, _, short = str(getattr(owner, "__module__", "") or "").partition(".")
        home = short if inside == project.package else None if owner is None else ""
        for target in TARGETS:
            sizes = check.sizes(targets[target]) if check.runs_on(targets[target]) else []
            for size in sizes:
                name, group = named.test(target, size), named.test(target, "")
                bind = binds(check, target, size)
                kind = check.kind.value
                tests[name] = Test(name, group, check.function, kind, home, bind)
    return tests


@dataclasses.dataclass(frozen=True)
class Trial:
    """The evaluation of one mutant in a forked process.

    Attributes:
        project: The project, which is imported.
        tests: Its tests.
        mutant: The mutant.
        steps: The steps, the likeliest to fail first.
        is_imported_again: Whether to import the project again with the mutant, because the changed
            code, or a caller of it, runs at import.
        seconds: The processor time after which no step begins.
        folder: The folder for temporary files.
    """

    project: Project
    tests: dict[str, Test]
    mutant: Mutant
    steps: Sequence[Step]
    is_imported_again: bool
    seconds: float
    folder: Path

    def run(self, connection: Connection) -> None:
        """Run the tests until one fails: send the name of each first, then a `Finding`."""
        _prepare()
        by, number = "import", 0
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("error")  # as in the conformance run
            try:
                limit_time(IDLE_SECONDS)
                tests = self._plant(stack)
                for number, step in enumerate(self.steps, 1):
                    if used_seconds() > self.seconds:
                        connection.send(Finding("", "", number - 1, len(self.steps) - number + 1))
                        return
                    by = step.test
                    connection.send(by)
                    limit_time(step.seconds)
                    with _without_maps():
                        tests[by].bind(step.profile)()
            except BaseException as error:  # noqa: BLE001  # any exception kills the mutant
                line = (str(error).strip().splitlines() or [""])[0][:300]
                connection.send(Finding(by, f"{type(error).__name__}: {line}", number))
            else:
                connection.send(Finding("", "", len(self.steps)))

    def _plant(self, stack: contextlib.ExitStack) -> dict[str, Test]:
        """Replace the module by the mutant, and return the tests to run."""
        name = f"{self.project.package}.{self.mutant.module}"
        if not self.is_imported_again:
            planted = importlib.import_module("tools.bugs.planting").planted
            with contextlib.suppress(ValueError):  # the change cannot be planted
                stack.enter_context(planted(sys.modules[name], self.mutant.text))
                return self.tests
        return self._import_again(name)

    def _import_again(self, name: str) -> dict[str, Test]:
        for known in list(sys.modules):
            if any(f"{known}.".startswith(f"{one}.") for one in self.project.packages):
                del sys.modules[known]
        path = self.folder / f"{self.mutant.digest}.py"
        path.write_text(self.mutant.text, encoding="utf-8")
        sys.meta_path.insert(0, _Finder(name, path))
        if not self.mutant.place.function:
            from numba import config  # noqa: PLC0415  # only these processes need it

            # Loops of other files may use a changed constant, but numba's cache only checks the
            # loop's own file.
            config.CACHE_DIR = str(self.folder)  # type: ignore[attr-defined]  # numba reads it
        return load_tests(self.project)


class _Finder(importlib.machinery.PathFinder):
    """Imports one module from another file."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path

    def find_spec(  # type: ignore[override]  # of an object here, of the class there
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of the mutated module, None for others."""
        del path, target
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path)


@contextlib.contextmanager
def _without_maps() -> Iterator[None]:
    """Ignore ENOMEM from mmap: a process that has run many tests has many mappings.

    Too large allocations of a mutant raise other exceptions, in NumPy and torch.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise


def _prepare() -> None:
    """Prepare this process: its own process group, no output, limited memory."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the parent kills this process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def used_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (0, -1))


def limit_time(seconds: float) -> None:
    """Kill this process after so much processor time, or when it is idle for `IDLE_SECONDS`."""
    before = [used_seconds()]

    def end_if_idle(*_: object) -> None:
        if used_seconds() - before[0] < 0.1:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGALRM)
        before[0] = used_seconds()

    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.signal(signal.SIGALRM, end_if_idle)
    signal.setitimer(signal.ITIMER_REAL, IDLE_SECONDS, IDLE_SECONDS)
