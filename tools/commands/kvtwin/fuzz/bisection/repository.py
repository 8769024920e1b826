"""The git repository of an implementation: its commits, and `git bisect` in a worktree."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

BisectStep = Literal["good", "bad", "skip"]

FOUND = re.compile(r"^# (?:possible )?first bad commit: \[(\w+)\]", re.MULTILINE)
"""The last lines of `git bisect log`; `possible` if only skipped commits are left."""


@dataclasses.dataclass(frozen=True)
class Commit:
    """A commit.

    Attributes:
        hash: Its hash.
        date: The author's date, `2026-11-22`.
        subject: The first line of its message.
    """

    hash: str
    date: str
    subject: str

    def __str__(self) -> str:
        return f"{self.hash[:12]} ({self.date}, {self.subject})"


@dataclasses.dataclass(frozen=True)
class Repository:
    """A git repository.

    Attributes:
        root: The top folder of its checkout.
    """

    root: Path

    @classmethod
    def of(cls, path: Path) -> Repository:
        """Return the repository that a file or a folder is in.

        Raises:
            ValueError: There is none, or git is not installed.
        """
        folder = path.resolve() if path.is_dir() else path.resolve().parent
        try:
            root = _git(folder, "rev-parse", "--show-toplevel")
        except ValueError as error:
            raise ValueError(f"{path} is in no git repository: {error}") from error
        return cls(Path(root.strip()).resolve())

    @contextlib.contextmanager
    def worktree(self) -> Iterator[Path]:
        """Add a worktree of HEAD, and remove it afterwards."""
        with tempfile.TemporaryDirectory(prefix="kvtwin-bisect-") as folder:
            worktree = Path(folder).resolve() / "worktree"
            try:
                _git(self.root, "worktree", "add", "--quiet", "--detach", str(worktree), "HEAD")
                yield worktree
            finally:
                with contextlib.suppress(ValueError):  # it was not added
                    _git(self.root, "worktree", "remove", "--force", str(worktree))

    def commit(self, name: str, role: str) -> Commit:
        """Return a commit.

        Args:
            name: Its hash, or another git revision.
            role: Its name in an error message.

        Raises:
            ValueError: There is no such commit.
        """
        try:
            if name.startswith("-"):
                raise ValueError(name)  # noqa: TRY301  # git would take it for an option
            found = _git(
                self.root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"
            ).strip()
        except ValueError as error:
            raise ValueError(f"{role}, {name!r}, is not a commit of {self.root}") from error
        text = _git(self.root, "log", "-1", "--format=%H%n%as%n%s", found, "--")
        return Commit(*text.split("\n")[:3])

    def is_ancestor(self, one: Commit, other: Commit) -> bool:
        """Return whether a commit is an ancestor of another."""
        try:
            _git(self.root, "merge-base", "--is-ancestor", one.hash, other.hash)
        except ValueError:
            return False
        return one != other

    def is_dirty(self) -> bool:
        """Return whether the checkout has uncommitted changes."""
        return bool(_git(self.root, "status", "--porcelain", "--untracked-files=no"))

    def check_out(self, worktree: Path, commit: Commit) -> None:
        """Check a commit out in a worktree."""
        _git(worktree, "checkout", "--quiet", "--force", "--detach", commit.hash)

    def bisect(
        self, worktree: Path, good: Commit, bad: Commit, step: Callable[[Commit], BisectStep]
    ) -> tuple[Commit, ...]:
        """Run `git bisect`.

        Args:
            worktree: The worktree in which commits are checked out.
            good: A good commit, an ancestor of the bad one.
            bad: A bad commit.
            step: Returns the verdict on the commit that is checked out.

        Returns:
            The first bad commit; several candidates, if only skipped commits are left.
        """
        _git(worktree, "bisect", "start", bad.hash, good.hash)
        while not (found := FOUND.findall(_git(worktree, "bisect", "log"))):
            commit = self.commit(_git(worktree, "rev-parse", "HEAD").strip(), "HEAD")
            # The status is 2 if only skipped commits are left.
            _git(worktree, "bisect", step(commit), allowed=(0, 2))
        return tuple(self.commit(name, "found") for name in found)


def commit_of(path: Path) -> str:
    """Return the commit of the repository that a file is in.

    Args:
        path: The file or folder.

    Returns:
        Its short hash, with ` (modified)` if tracked files differ from it; empty if the file is in
        no repository, or git is not installed.
    """
    folder = path if path.is_dir() else path.parent
    options = ("--always", "--abbrev=12", "--exclude=*", "--dirty= (modified)")
    try:
        return _git(folder, "describe", *options).strip()
    except ValueError:
        return ""


def _git(folder: Path, *arguments: str, allowed: tuple[int, ...] = (0,)) -> str:
    """Run git, and return its output.

    Raises:
        ValueError: It fails; the message has its error.
    """
    environment = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    # The user's hooks must not run in this worktree.
    command = ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        done = subprocess.run(  # noqa: S603  # git, with commits of the user
            command,
            env={**environment, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
        )
    except FileNotFoundError as error:
        raise ValueError("git is not installed") from error
    if done.returncode not in allowed:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ValueError(f"git {arguments[0]}: {said}")
    return done.stdout
