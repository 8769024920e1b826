"""What the process does that is forked to evaluate one mutant.

The project is imported again, the mutant in the place of its module; then the checks run, one by
one, until one fails. The process sends each check before it runs, and at the end what it found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, TypeAlias

from tools.mutation.loop_cache import FOLDER
from tools.mutation.project import Project

MEMORY_BYTES: Final = 6 << 30
"""The memory that a process may take beside what it starts with."""

PROJECT: Final = "KVTWIN_MUTATED_PROJECT"
"""The environment variable that says what of the project to import before processes are forked.

JSON of its folder, the folder of its compiled modules, and the names.
"""

Loaded: TypeAlias = Mapping[tuple[str, str, str], Any]
"""Checks by module, name and law."""


@dataclasses.dataclass(frozen=True)
class CheckId:
    """One test of the conformance run.

    Attributes:
        module: The module that states it, such as `test_slots`.
        name: Its name there.
        target: Where it runs.
        size: The size of its examples.
        law: The law that it is, "" for none.
    """

    module: str
    name: str
    target: str
    size: str
    law: str = ""

    def __str__(self) -> str:
        label = "-".join(filter(None, (self.target, self.size, self.law)))
        return f"{self.module}::{self.name}[{label}]"


@dataclasses.dataclass(frozen=True)
class Limited:
    """A check, and the seconds of processor time that it may take."""

    check: CheckId
    seconds: float


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all processes of a run have in common.

    Attributes:
        project: What is evaluated.
        profile: How many examples each check draws.
        folder: Where what spares time is stored: compiled modules and loops.
        independent: The modules that need not be imported again for a mutant.
    """

    project: Project
    profile: str
    folder: Path
    independent: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a process found.

    Attributes:
        by: The check that failed, "import" where the mutant cannot be imported, "" for none.
        error: What it said, in a line.
        seconds: Of processor time.
        num_checks: How many checks ran.
    """

    by: str
    error: str
    seconds: float
    num_checks: int


def evaluate(
    setup: Setup, module: str, text: str, checks: Sequence[Limited], connection: Connection
) -> None:
    """Evaluate a mutant, and send what was found.

    Args:
        setup: What is evaluated, and how.
        module: The mutant's module, "" for none: then the original is evaluated.
        text: Its text.
        checks: The checks, the likeliest to fail first.
        connection: Is sent a `Limited` before each check and a `Finding` at the end; a text where
            the process itself is at fault.
    """
    try:
        _evaluate(setup, module, text, checks, connection)
    except Exception:  # noqa: BLE001  # what a mutant raises is caught before
        connection.send(traceback.format_exc())


def _evaluate(
    setup: Setup, module: str, text: str, checks: Sequence[Limited], connection: Connection
) -> None:
    started = time.process_time()

    def found(by: str, error: BaseException | None, num_checks: int) -> Finding:
        line = "" if error is None else f"{type(error).__name__}: {_first_line(error)}"
        return Finding(by, line, time.process_time() - started, num_checks)

    with prepared(setup, module, text):
        try:
            known = load_checks(setup.project)
            tests = [(limited, bind(setup, known, limited.check)) for limited in checks]
        except BaseException as error:  # noqa: BLE001  # whatever a mutant does is evaluated
            connection.send(found("import", error, 0))
            return
        for number, (limited, test) in enumerate(tests, 1):
            connection.send(limited)
            limit_time(limited.seconds)
            try:
                test()
            except BaseException as error:  # noqa: BLE001  # likewise
                connection.send(found(str(limited.check), error, number))
                return
        connection.send(found("", None, len(tests)))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


@contextlib.contextmanager
def prepared(setup: Setup, module: str, text: str) -> Iterator[None]:
    """Prepare this process: no output, little memory, and the mutant in its module's place."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run that is interrupted ends its processes
    _be_quiet()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory()
    os.environ[FOLDER] = str(setup.folder / "loops")
    with contextlib.suppress(ImportError):
        from numba import config  # noqa: PLC0415  # a project may have no loops

        config.CACHE_LOCATOR_CLASSES = "tools.mutation.loop_cache.LoopLocator"
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(setup.folder / "bytecode")
    _forget(setup)
    project = setup.project
    sys.path.insert(0, str(project.root))
    importlib.invalidate_caches()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        if module:
            path = Path(folder, *module.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.meta_path.insert(0, _Finder(f"{project.package}.{module}", path))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as the conformance run has it
            yield


def _forget(setup: Setup) -> None:
    """Forget the modules of the project, but for those that no mutant changes."""
    project, root = setup.project, str(setup.project.root)
    for name, module in list(sys.modules.items()):
        if name.split(".", maxsplit=1)[0] in {project.package, project.checks, *project.others}:
            file = getattr(module, "__file__", None) or ""
            if name not in setup.independent or not file.startswith(root):
                del sys.modules[name]


def _be_quiet() -> None:
    """Let nothing that is printed get out."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _limit_memory() -> None:
    """Make allocations that are too large raise an exception."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def limit_time(seconds: float) -> None:
    """Let a signal end this process after so many more seconds of processor time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module in another place."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where the one module is, and leave all others to others."""
        del path, target
        if fullname != self.name:
            return None
        loader = _SourceLoader(fullname, str(self.path))
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module and keeps nothing of it."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the module's code."""
        path = self.get_filename(fullname)
        code: CodeType = compile(self.get_data(path), path, "exec", dont_inherit=True)
        return code


def load_checks(project: Project) -> Loaded:
    """Import all modules of checks, and return the checks.

    All are imported, whichever are to run: Hypothesis draws constants of the modules there are,
    and a check must draw the examples that it draws in the conformance run.
    """
    checks: Any = importlib.import_module("conformance.checks")
    folder = project.root / project.checks
    stems = sorted(path.stem for path in folder.glob("test_*.py"))
    modules = {stem: importlib.import_module(f"{project.checks}.{stem}") for stem in stems}
    return {
        (stem, name, check.law): check
        for stem, module in modules.items()
        for name, check in checks.checks_in(vars(module))
    }


def bind(setup: Setup, known: Loaded, check: CheckId) -> Callable[[], None]:
    """Return a check as a test on its target, as the conformance run does, without shrinking."""
    profiles: Any = importlib.import_module("conformance.profiles")
    targets: Any = importlib.import_module("conformance.targets")
    test: Callable[[], None] = known[check.module, check.name, check.law].bind(
        targets.TARGETS[check.target], profiles.PROFILES[setup.profile], check.size, shrink=False
    )
    return test
