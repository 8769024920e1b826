"""Find the commit that introduced a failure, with `git bisect` in a temporary worktree.

The current harness and `reference` check each commit's implementation: of this repository, only
`fast` comes from the worktree. So a stored case is the same test for each commit, and a function is
compared with its current definition. A commit is

- bad, if the case fails as it does at BAD: the same field and exception class, or the process dies
  or hangs;
- good, if the case passes;
- skipped, if it cannot be tested (it cannot be imported, it lacks the function) or fails otherwise.

An implementation is imported as it is in the commit; compiled extensions are not built.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from conformance.encoding import read_json
from conformance.targets.target import choose_targets
from kvtwin.checkout import COMMANDS, ROOT
from kvtwin.fuzz.bisection.commit_check import CASE_SECONDS, Outcome, try_case
from kvtwin.fuzz.bisection.repository import BisectStep, Commit, Repository

KINDS: Final = ("call", "example", "input")


@dataclasses.dataclass(frozen=True)
class BisectResult:
    """Which commit introduced a failure.

    Attributes:
        repository: The folder of the repository.
        line: The failure at BAD, in a line.
        commits: The commit; several candidates, if commits that cannot be tested are among them.
        skipped: The reasons for which commits were skipped, by their hashes.
        tried: The number of commits that were tried, including GOOD and BAD.
    """

    repository: Path
    line: str
    commits: tuple[Commit, ...]
    skipped: Mapping[str, str]
    tried: int

    def lines(self) -> list[str]:
        """Return the result as text."""
        if len(self.commits) == 1:
            head = "first commit that fails:"
        else:
            head = f"the first commit that fails is one of {len(self.commits)}:"
        lines = [f"in {self.repository}, {self.tried} commits tried", head]
        for commit in self.commits:
            lines.append(f"  {commit}")
            if commit.hash in self.skipped:
                lines.append(f"    skipped: {self.skipped[commit.hash]}")
        return [*lines, f"the failure: {self.line}"]


def bisect(
    case_file: Path,
    good: str,
    bad: str,
    *,
    impl: str | None = None,
    adapter: str | None = None,
    target: str = "host",
    case_seconds: float = CASE_SECONDS,
    note: Callable[[str], None] = lambda _: None,
) -> BisectResult:
    """Return which commit introduced the failure of a stored case.

    The repository is that of the implementation. Uncommitted changes of its checkout are ignored,
    and left as they are.

    Args:
        case_file: The stored case.
        good: A commit at which the case passes, an ancestor of BAD.
        bad: A commit at which it fails.
        impl: The module or the file of the implementation; None for `fast`.
        adapter: The module or the file of its adapter, from the checkout; None for its own.
        target: Where it runs: `host`, `sim`, `native` or `cuda`.
        case_seconds: A case that takes longer hangs.
        note: Called with a line for each commit that was tried.

    Raises:
        ValueError: A file that is not a stored case, a target that cannot run here, an
            implementation that is in no repository, commits that do not exist or are in the wrong
            order, a case that fails at GOOD or passes at BAD.
    """
    case = read_json(case_file)
    if case.get("kind") not in KINDS:
        raise ValueError(f"{case_file} is not a stored case: its kind is {case.get('kind')!r}")
    if len(choose_targets(target)) != 1:
        raise ValueError(f"target {target!r} is more than one")
    if adapter is not None and adapter.endswith(".py"):
        adapter = str(Path(adapter).resolve())
    source = _source_of(impl)
    repository = Repository.of(source.path)
    with repository.worktree() as worktree, tempfile.TemporaryDirectory() as folder:
        inside, path = source.in_worktree(repository, worktree, Path(folder))
        request = {
            "case": case,
            "target": target,
            "impl": inside,
            "adapter": adapter,
            "worktree": str(worktree),
        }

        def attempt(commit: str) -> Outcome:
            # Files of two commits may have the same mtime: share no cache.
            cache = {"NUMBA_CACHE_DIR": str(Path(folder, commit)), "PYTHONDONTWRITEBYTECODE": "1"}
            environment = {**os.environ, **cache, "PYTHONPATH": os.pathsep.join(path)}
            return try_case(request, environment, case_seconds)

        return search(repository, worktree, good, bad, attempt, note)


def search(
    repository: Repository,
    worktree: Path,
    good: str,
    bad: str,
    attempt: Callable[[str], Outcome],
    note: Callable[[str], None] = lambda _: None,
) -> BisectResult:
    """Return the first commit at which an attempt fails.

    Args:
        repository: The repository.
        worktree: A worktree of it, in which commits are checked out.
        good: A commit at which it passes.
        bad: A commit at which it fails.
        attempt: Tries the commit that is checked out; called with its hash.
        note: Called with a line for each commit that was tried.

    Raises:
        ValueError: As `bisect`.
    """
    first, last = repository.commit(good, "GOOD"), repository.commit(bad, "BAD")
    if not repository.is_ancestor(first, last):
        raise ValueError(f"GOOD, {first}, is not an ancestor of BAD, {last}")
    tried: dict[str, Outcome] = {}

    def outcome_of(commit: Commit, name: str = "") -> Outcome:
        outcome = tried[commit.hash] = attempt(commit.hash)
        said = f": {outcome.line}" if outcome.line else ""
        note(f"{name or commit} {outcome.status}{said}")
        return outcome

    repository.check_out(worktree, last)
    expected = outcome_of(last, f"BAD {last}")
    if expected.status != "fails":
        said = "passes" if expected.status == "passes" else f"cannot be tested: {expected.line}"
        changes = "; uncommitted changes are part of no commit" if repository.is_dirty() else ""
        raise ValueError(f"BAD, {last}, {said}{changes}")
    repository.check_out(worktree, first)
    before = outcome_of(first, f"GOOD {first}")
    if before.status != "passes":
        said = "fails too" if before.status == "fails" else "cannot be tested"
        raise ValueError(f"GOOD, {first}, {said}: {before.line}")

    def step(commit: Commit) -> BisectStep:
        outcome = outcome_of(commit)
        if outcome.status == "passes":
            return "good"
        return "bad" if outcome.key and outcome.key == expected.key else "skip"

    found = repository.bisect(worktree, first, last, step)
    skipped = {
        commit: f"fails otherwise: {outcome.line}" if outcome.key else outcome.line
        for commit, outcome in tried.items()
        if outcome.status != "passes" and outcome.key != expected.key
    }
    return BisectResult(repository.root, expected.line, found, skipped, len(tried))


@dataclasses.dataclass(frozen=True)
class _Source:
    """The source of an implementation in its checkout.

    Attributes:
        path: A file, or the folder from which its module is imported.
        module: The module; None for a file.
    """

    path: Path
    module: str | None

    def in_worktree(
        self, repository: Repository, worktree: Path, folder: Path
    ) -> tuple[str, list[str]]:
        """Return the module, or its file in a worktree, and the folders to import from.

        Args:
            repository: Its repository.
            worktree: A worktree of it.
            folder: An empty folder.
        """
        inside = worktree / self.path.resolve().relative_to(repository.root)
        more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        path = [str(ROOT), str(COMMANDS), *filter(None, more)]
        if self.module is None:
            return str(inside), path
        if self.module == "fast":
            # A symlink: nothing else is imported from the worktree.
            (folder / "fast").symlink_to(inside / "fast")
            return "fast", [str(folder), *path]
        return self.module, [path[0], str(inside), *path[1:]]


def _source_of(impl: str | None) -> _Source:
    """Return where an implementation is, without importing it.

    Raises:
        ValueError: It is not there.
    """
    if impl is not None and impl.endswith(".py"):
        path = Path(impl)
        if not path.is_file():
            raise ValueError(f"--impl {impl!r} is not a file")
        return _Source(path, None)
    module = impl or "fast"
    found = importlib.util.find_spec(module.partition(".")[0])
    if found is None:
        raise ValueError(f"--impl {module!r} cannot be imported: there is no such module")
    locations = list(found.submodule_search_locations or ())
    origin = Path(locations[0]) if locations else Path(found.origin or "")
    if not origin.exists() or found.origin in {"built-in", "frozen"}:
        raise ValueError(f"--impl {module!r} has no source")
    return _Source(origin.parent, module)
