"""Which checks reach which lines: a mutant is evaluated by the checks that reach it.

The conformance run draws the same examples every time. A check that does not reach a line of the
original does the same, whatever is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

from tools.mutation.mutant_process import CheckId, Loaded, Setup, bind, load_checks, prepared


@dataclasses.dataclass(frozen=True)
class Known:
    """A check that there is.

    Attributes:
        check: Which.
        home: The module of the package that has its function, "" for a constant, which belongs to
            none; None: it is about no one function.
    """

    check: CheckId
    home: str | None


@dataclasses.dataclass(frozen=True)
class Reached:
    """What a check reaches in the original.

    Attributes:
        seconds: Of processor time, traced.
        lines: By module of the package.
    """

    seconds: float
    lines: Mapping[str, frozenset[int]]


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The checks that there are.

    Attributes:
        known: The checks.
        import_lines: By module of the package, the lines that run when all is imported.
    """

    known: Sequence[Known]
    import_lines: Mapping[str, frozenset[int]]


def take_inventory(setup: Setup, targets: Sequence[str], connection: Connection) -> None:
    """Send the `Inventory`, or the line that says what went wrong."""
    tracer = Tracer(setup.project.modules())
    with prepared(setup, "", ""):
        try:
            sys.settrace(tracer.enter)
            try:
                load_checks(setup.project)
            finally:
                sys.settrace(None)
            connection.send(Inventory(list(_known(setup, targets)), tracer.lines()))
        except Exception as error:  # noqa: BLE001  # the caller reports it
            connection.send(f"{type(error).__name__}: {error}")


def _known(setup: Setup, targets: Sequence[str]) -> Iterator[Known]:
    all_targets: Any = importlib.import_module("conformance.targets")
    package = importlib.import_module(setup.project.package)
    for (module, name, law), check in load_checks(setup.project).items():
        named: Any = getattr(package, check.function.split(".")[0], None)
        inside, _, short = str(getattr(named, "__module__", "") or "").partition(".")
        home = short if inside == setup.project.package else None if named is None else ""
        for target in filter(check.runs_on, map(all_targets.TARGETS.get, targets)):
            for size in check.sizes(target):
                yield Known(CheckId(module, name, target.name, size, law), home)


def measure(
    setup: Setup, checks: Sequence[CheckId], deadline: float | None, connection: Connection
) -> None:
    """Send for each check what it reaches, as `(check, Reached)`, or what it says if it fails.

    Each runs in a process of its own: what is done once is done in each.

    Args:
        setup: What is measured.
        checks: The checks.
        deadline: When to begin no other, by `time.monotonic()`, which is one clock for all.
        connection: Where to send it.
    """
    context = multiprocessing.get_context("fork")
    with prepared(setup, "", ""):
        known = load_checks(setup.project)
        for check in checks:
            if deadline is not None and time.monotonic() > deadline:
                return
            arguments = (setup, known, check, connection)
            process = context.Process(target=_measure_one, args=arguments)
            process.start()
            process.join()
            if process.exitcode:
                connection.send((check, f"the process ended with {process.exitcode}"))


def _measure_one(setup: Setup, known: Loaded, check: CheckId, connection: Connection) -> None:
    started = time.process_time()
    tracer = Tracer(setup.project.modules())
    try:
        test = bind(setup, known, check)
        tracer.follow_loops(setup.project.package)
        sys.settrace(tracer.enter)
        try:
            test()
        finally:
            sys.settrace(None)
    except BaseException as error:  # noqa: BLE001  # the caller reports it
        connection.send((check, f"{type(error).__name__}: {error}"))
    else:
        connection.send((check, Reached(time.process_time() - started, tracer.lines())))


Follower: TypeAlias = Callable[..., Any]
"""What Python calls for each line of a call that is followed."""


class Tracer:
    """Notes the lines of some files that run; of loops in machine code, all of them.

    Args:
        files: By name.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._names = {str(path): name for name, path in files.items()}
        self._reached: defaultdict[str, set[int]] = defaultdict(set)

    def enter(self, frame: FrameType, event: str, argument: object) -> Follower | None:
        """Follow a call, if it is one of these files'."""
        del event, argument
        code = frame.f_code
        if code.co_filename not in self._names:
            return None
        reached = self._reached[code.co_filename]
        reached.add(code.co_firstlineno)

        def step(frame: FrameType, event: str, argument: object) -> Follower:
            del event, argument
            reached.add(frame.f_lineno)
            return step

        return step

    def follow_loops(self, package: str) -> None:
        """Note the compiled loops of a package, too: no frame of Python shows them.

        How they are called is changed for good: for a process that ends with what it measures.
        """
        try:
            compiler: Any = importlib.import_module(f"{package}._native.compiler")
        except ModuleNotFoundError:  # it has none
            return
        for loop in compiler.COMPILED:
            self._follow_loop(compiler, loop)

    def _follow_loop(self, compiler: Any, loop: Any) -> None:  # noqa: ANN401  # untyped here
        """Have a loop noted whenever its machine code, of either mode, is called."""

        def follow(compile_code: Callable[[], Callable[..., object]]) -> Callable[..., object]:
            code = cache(compile_code)

            def run(*args: object) -> object:
                self.note(loop)
                return code()(*args)

            return run

        loop._machine_code = follow(lambda: compiler._entry_point(loop._compile()))  # noqa: SLF001
        loop._bounds_checked = follow(  # noqa: SLF001
            lambda: loop._compile("_bounds_checked", boundscheck=True)  # noqa: SLF001
        )

    def note(self, loop: Any) -> None:  # noqa: ANN401  # or an inlined part
        """Note all lines of a loop, and of the parts that are inlined in it."""
        function = loop.py_func
        if function.__code__.co_filename in self._names:
            self._reached[function.__code__.co_filename] |= _lines(function.__code__)
        for name in function.__code__.co_names:
            part = function.__globals__.get(name)
            if type(part).__name__ == "Inlined":
                self.note(part)

    def lines(self) -> dict[str, frozenset[int]]:
        """Return the lines that ran, by name."""
        return {self._names[file]: frozenset(lines) for file, lines in self._reached.items()}


def _lines(code: CodeType) -> set[int]:
    """Return all lines of a code, and of those inside it."""
    inner = [_lines(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return {line for *_, line in code.co_lines() if line is not None}.union(*inner)


class ReachFile:
    """What was measured, stored for as long as no source changes.

    Args:
        path: Where it is stored.
        digest: Changes with the sources.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self._path, self._digest = path, digest
        self.reached: dict[str, Reached] = {}
        # What was cut short, or is another's, is as none: all is measured again.
        with contextlib.suppress(OSError, AttributeError, KeyError, TypeError, ValueError):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["digest"] == digest:
                self.reached = {
                    check: Reached(seconds, {name: frozenset(at) for name, at in lines.items()})
                    for check, (seconds, lines) in record["checks"].items()
                }

    def missing(self, known: Iterable[Known]) -> list[CheckId]:
        """Return the checks that were not measured yet."""
        return [one.check for one in known if str(one.check) not in self.reached]

    def save(self) -> None:
        """Write what was measured; an interrupted call leaves the file as it was."""
        checks = {
            check: (found.seconds, {name: sorted(at) for name, at in found.lines.items()})
            for check, found in self.reached.items()
        }
        text = json.dumps({"digest": self._digest, "checks": checks})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self._path)
