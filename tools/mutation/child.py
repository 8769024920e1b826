"""The processes of a run: each imports the project with a mutant in it, and runs tests."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tools.mutation.mutants import Mutant
from tools.mutation.project import Project
from tools.mutation.session import Reached
from tools.mutation.tracer import Tracer

if TYPE_CHECKING:
    from tools.bugs.evaluation import NamedCheck

MEMORY_BYTES: Final = 6 << 30
"""The memory that a process may take in addition to what it starts with."""

IDLE_SECONDS: Final = 60
"""A process that uses no processor time for so long is ended."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all processes of a run have in common.

    Attributes:
        project: What is imported.
        profile: The profile of the conformance run that says how many examples a test draws.
    """

    project: Project
    profile: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a process found.

    Attributes:
        by: The test that failed, "import" if the mutant cannot be imported, "" for none.
        error: What it raised, in a line.
        num_tests: How many tests ran.
    """

    by: str
    error: str
    num_tests: int


@dataclasses.dataclass(frozen=True)
class Known:
    """A test that there is.

    Attributes:
        test: Its name, as pytest has it.
        home: The module of the package that defines its function, "" for a constant; None if the
            test is not of a single function.
    """

    test: str
    home: str | None


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The tests that there are.

    Attributes:
        known: The tests.
        import_lines: By module of the package, the lines that run when all is imported.
    """

    known: list[Known]
    import_lines: Mapping[str, frozenset[int]]


class NoSuchTestError(Exception):
    """A test is not there, whatever the mutant is."""


def take_inventory(setup: Setup, targets: list[str], connection: Connection) -> None:
    """Send the `Inventory`."""
    tracer = Tracer(setup.project.modules())
    with _prepared(setup), tracer:
        checks = _load_checks(setup)
    package = importlib.import_module(setup.project.package)
    known = []
    for named in checks:
        owner: Any = getattr(package, named.check.function.split(".")[0], None)
        inside, _, short = str(getattr(owner, "__module__", "") or "").partition(".")
        home = short if inside == setup.project.package else None if owner is None else ""
        known += [Known(named.test(*at), home) for at in _places(named, targets)]
    connection.send(Inventory(known, tracer.lines()))


def measure(setup: Setup, test: str, connection: Connection) -> None:
    """Run a test on the original, and send what it reaches."""
    tracer = Tracer(setup.project.modules())
    with _prepared(setup):
        run = _bind(setup, _load_checks(setup), test)
        tracer.follow_loops(setup.project.package)
        started = time.process_time()
        with tracer:
            run()
    connection.send(Reached(time.process_time() - started, tracer.lines()))


def evaluate(
    setup: Setup, mutant: Mutant, limits: Mapping[str, float], connection: Connection
) -> None:
    """Run tests on a mutant until one fails: send the name of each first, then a `Finding`.

    Args:
        setup: The project.
        mutant: The mutant.
        limits: The tests, the likeliest to fail first, and their seconds of processor time.
        connection: Where to send it.
    """
    with _prepared(setup, mutant):
        by, number = "import", 0
        try:
            checks = _load_checks(setup)
            runs = {test: _bind(setup, checks, test) for test in limits}
            for number, (by, seconds) in enumerate(limits.items(), 1):  # noqa: B007
                connection.send(by)
                limit_time(seconds)
                runs[by]()
        except NoSuchTestError:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever a mutant does is evaluated
            line = (str(error).strip().splitlines() or [""])[0][:300]
            connection.send(Finding(by, f"{type(error).__name__}: {line}", number))
        else:
            connection.send(Finding("", "", len(limits)))


def limit_time(seconds: float) -> None:
    """End this process by a signal after so much processor time, or when it only waits."""

    def used() -> float:
        return sum(sum(resource.getrusage(who)[:2]) for who in (0, -1))  # its children's too

    before = [used()]

    def end_if_idle(*_: object) -> None:
        if used() - before[0] < 0.1:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGALRM)
        before[0] = used()

    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.signal(signal.SIGALRM, end_if_idle)
    signal.setitimer(signal.ITIMER_REAL, IDLE_SECONDS, IDLE_SECONDS)


@contextlib.contextmanager
def _prepared(setup: Setup, mutant: Mutant | None = None) -> Iterator[None]:
    """Prepare this process: no output, little memory, and the mutant in its module's place."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run that is interrupted ends its processes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.dont_write_bytecode = False
    packages = (*setup.project.packages, "tools.bugs")  # which has imported the others
    for name in list(sys.modules):
        if any(f"{name}.".startswith(f"{package}.") for package in packages):
            del sys.modules[name]
    sys.path.insert(0, str(setup.project.root))
    importlib.invalidate_caches()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder, warnings.catch_warnings():
        warnings.simplefilter("error")  # as in the conformance run
        if mutant is not None:
            path = Path(folder, f"{mutant.module}.py")
            path.write_text(mutant.text, encoding="utf-8")
            sys.meta_path.insert(0, _Finder(f"{setup.project.package}.{mutant.module}", path))
            if mutant.place.is_import_time:
                from numba import config  # noqa: PLC0415  # only the processes need it

                # Loops of other files may use a changed constant, and numba's cache knows a loop by
                # its own file.
                config.CACHE_DIR = folder  # type: ignore[attr-defined]  # numba reads it
        yield


class _Finder(importlib.machinery.PathFinder):
    """Finds one module in another file."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path

    def find_spec(  # type: ignore[override]  # of an object here, of the class there
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where the one module is."""
        del path, target
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path)


def _load_checks(setup: Setup) -> list[NamedCheck]:
    """Import all modules of checks, whichever are to run: a check draws as in the whole run."""
    from tools.bugs.evaluation import all_checks  # noqa: PLC0415  # it imports the project

    return list(all_checks(setup.project.checks))


def _places(named: NamedCheck, targets: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the targets and sizes of the tests that the conformance run makes of a check."""
    from conformance.targets import TARGETS  # noqa: PLC0415  # likewise

    for target in targets:
        if named.check.runs_on(TARGETS[target]):
            yield from ((target, size) for size in named.check.sizes(TARGETS[target]))


def _bind(setup: Setup, checks: list[NamedCheck], test: str) -> Callable[[], None]:
    """Return a test as the conformance run makes it, but without shrinking."""
    from conformance.profiles import PROFILES  # noqa: PLC0415  # likewise
    from conformance.targets import TARGETS  # noqa: PLC0415

    for named in checks:
        for target, size in _places(named, list(TARGETS)):
            if named.test(target, size) == test:
                profile = PROFILES[setup.profile]
                return named.check.bind(TARGETS[target], profile, size, shrink=False)
    raise NoSuchTestError(test)
