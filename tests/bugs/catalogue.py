"""Planted bugs: patches of one module each, which the conformance run must catch.

An entry of `fast/_native/slots.toml`, which patches `fast/_native/slots.py`:

    [compute_slot_mapping."slots in int32"]         # the function that is wrong, and how
    why = "Right until the cache has 2**31 slots."  # what happens, or why it could go unnoticed
    within = "fill_slots"                           # where `old` occurs once; default: the file
    old = "return torch.from_numpy(slots)"          # what is replaced; a list for several places
    new = "return torch.from_numpy(slots).int()"    # what replaces it
    caught_by = "same answer"                       # a kind of check, or a law; this is the default
    target = "host"                                 # the default; for kernels it is `sim`; `native`
                                                    # for bugs that the simulator cannot show
    message = "slots"                               # a pattern that the failure matches; optional
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from conformance.checks.contract_checks import checks_in
from conformance.checks.law_checks import LawViolation
from conformance.contracts.check import FAILURES, Check
from conformance.coverage.goals import COVERAGE
from conformance.generation.profiles import Profile
from conformance.messages.mismatch import Mismatch
from conformance.targets.target import TARGETS
from conformance.values.differences import Verdict

from tests.bugs.planting import edit, planted

FOLDER: Final = Path(__file__).parent
PATCH_ERRORS: Final = "NameError|UnboundLocalError|ImportError|SyntaxError|AttributeError"
"""What a broken patch raises, in place of the bug that it should plant."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bug:
    """An entry of the catalogue: the fields of the example above."""

    function: str
    what: str
    why: str
    module: str
    old: str | list[str]
    new: str | list[str]
    within: str = ""
    target: str = "host"
    caught_by: str = "same answer"
    message: str = ""

    @property
    def name(self) -> str:
        return f"{self.function}: {self.what}"

    def planted(self) -> AbstractContextManager[None]:
        """Return a block in which the module has the bug.

        Raises:
            ValueError: A piece does not occur exactly once: update the entry to the changed code.
        """
        module = importlib.import_module(self.module)
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        olds, news = ([s] if isinstance(s, str) else s for s in (self.old, self.new))
        for old, new in zip(olds, news, strict=True):
            source = edit(source, old, new, self.within)
        return planted(module, source)


def read_catalogue(folder: Path = FOLDER) -> Iterator[Bug]:
    """Yield the bugs; a missing or unknown field is a ValueError that names the entry."""
    for path in sorted(folder.rglob("*.toml")):
        parts = path.relative_to(folder).with_suffix("").parts
        target = "sim" if parts[:2] == ("fast", "kernels") else "host"
        common = {"module": ".".join(parts), "target": target}
        for function, bugs in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for what, fields in bugs.items():
                try:
                    yield Bug(function=function, what=what, **{**common, **fields})
                except TypeError as error:
                    raise ValueError(f"{path}: {function}: {what}: {error}") from error


class NamedCheck(NamedTuple):
    """A check, and the name of its test in the conformance run."""

    module: str
    name: str
    check: Check


@dataclasses.dataclass(frozen=True)
class Catch:
    """The first failure."""

    test: str
    examples: int  # drawn by all tests until it failed
    error: Exception

    @property
    def line(self) -> str:
        found = self.error.difference.line if isinstance(self.error, Mismatch) else str(self.error)
        return f"{self.test}: {type(self.error).__name__}: {found.strip().partition(chr(10))[0]}"

    def shows(self, bug: Bug) -> bool:
        """Return whether the harness found the bug; otherwise the patch itself is broken.

        If a broken patch could raise the same exception, the bug's `message` must match it.
        """
        raised = patch_error_of(self.error)
        if raised:
            return bool(bug.message) and re.search(bug.message, raised) is not None
        # A report wraps a long difference.
        line = self.error.difference.line if isinstance(self.error, Mismatch) else ""
        return re.search(bug.message, f"{line}\n{self.error}", re.MULTILINE) is not None


@functools.cache
def all_checks() -> Sequence[NamedCheck]:
    """Return the checks of the conformance run."""
    importlib.import_module("conformance.conftest")
    folder = Path(str(importlib.import_module("conformance").__file__)).parent
    return [
        NamedCheck(path.stem, name, check)
        for path in sorted(folder.glob("test_*.py"))
        for name, check in checks_in(vars(importlib.import_module(f"conformance.{path.stem}")))
    ]


def checks_of(function: str, target: str) -> list[NamedCheck]:
    """Return the checks of a function on a target, those of the function's own module first."""
    found = [
        named
        for named in all_checks()
        if named.check.function == function and named.check.runs_on(TARGETS[target])
    ]
    own = {named.module for named in found if named.check.kind.value == "same answer"}
    return sorted(found, key=lambda named: named.module not in own)


def find(bug: Bug, profile: Profile) -> Catch | None:
    """Plant a bug, and run the checks that must catch it until one fails."""
    checks = [
        named
        for named in checks_of(bug.function, bug.target)
        if bug.caught_by in {named.check.kind.value, named.check.body.__name__}
    ]
    if not checks:
        raise ValueError(f"{bug.function} has no check {bug.caught_by!r} on {bug.target}")
    with bug.planted():
        return first_failure(checks, bug.target, profile)


def first_failure(checks: Iterable[NamedCheck], target: str, profile: Profile) -> Catch | None:
    """Run checks of one function without shrinking until one fails."""
    before = COVERAGE.examples.total()
    for named in checks:
        for size in named.check.sizes(TARGETS[target]):
            try:
                named.check.bind(TARGETS[target], profile, size, shrink=False)()
            except Exception as error:  # noqa: BLE001  # the caller decides what it shows
                label = "-".join(filter(None, (target, size, named.check.law)))
                test = f"{named.module}::{named.name}[{label}]"
                return Catch(test, COVERAGE.examples.total() - before, error)
            finally:
                FAILURES.clear()
    return None


def patch_error_of(error: Exception) -> str:
    """Return the exception if the patch may be broken; empty if the harness found a difference."""
    if isinstance(error, LawViolation):
        found = re.search(rf"^ +raised ((?:{PATCH_ERRORS}):.*)", str(error), re.MULTILINE)
        return found[1] if found else ""
    if isinstance(error, Mismatch) and error.difference.verdict is Verdict.OUTCOME:
        got = str(error.difference.got)
        found = re.match(rf"(?:raised )?((?:{PATCH_ERRORS}):.*)", got, re.DOTALL)
        return found[1] if found else ""
    # A law passes on errors of the target, and of the simulator, which name the kernel.
    is_of_target = isinstance(error, TypeError | ValueError | KeyError | IndexError)
    if isinstance(error, AssertionError) or is_of_target or str(error).startswith("kernel "):
        return ""
    return f"{type(error).__name__}: {error}"
