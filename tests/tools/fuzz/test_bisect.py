"""Bisection: the commit that introduced a failure, by `git bisect` in a temporary worktree."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kvtwin.fuzz.bisection.bisect
from conformance.cases.compared import case_of_call
from conformance.cases.corpus import add_to_corpus
from conformance.encoding import read_json
from conformance.generation.profiles import Kind
from conformance.values.call import Call
from kvtwin.checkout import ROOT
from kvtwin.fuzz.bisection import commit_check
from kvtwin.fuzz.bisection.bisect import BisectResult, bisect, search
from kvtwin.fuzz.bisection.commit_check import Outcome, try_case
from kvtwin.fuzz.bisection.repository import Repository
from kvtwin.fuzz.cases.case import Input
from kvtwin.fuzz.cases.properties import Subject, properties_of
from kvtwin.fuzz.findings.failures import Failure
from kvtwin.fuzz.findings.records import Findings

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

ENGINE = """
from fast import checks

def get_dcp_local_seq_lens(seq_lens, *_, **__):
    {body}
    return -(-seq_lens // 2){change}
"""
"""The function that the case calls, without `fast`'s loops, which each commit would compile."""
RIGHT = ENGINE.format(body="", change="")
WRONG = ENGINE.format(body="", change=" + 1")


@pytest.fixture(autouse=True)
def _forked_trials(forked_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001  # `sys.executable` then
    """Fork the process of each case from one that has imported torch."""
    monkeypatch.setattr(commit_check, "COMMAND", (sys.executable, *commit_check.COMMAND[1:]))


class History:
    """A temporary git repository.

    Args:
        root: Its folder.

    Attributes:
        root: The same.
        hashes: The hashes of the commits, by subject.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hashes: dict[str, str] = {}
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        """Run git in the repository and return its output."""
        config = ("user.name=a", "user.email=a@b", "core.hooksPath=/dev/null")
        options = [word for setting in config for word in ("-c", setting)]
        command = ["git", "-C", str(self.root), *options, *arguments]
        return subprocess.run(  # noqa: S603  # our own commits
            command, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, subject: str, file: str = "engine.py", text: str | None = None) -> None:
        """Commit a file with the given text; without a text, append a line to the file."""
        path = self.root / file
        if text is None:
            text = (path.read_text() if path.exists() else "") + f"# {subject}\n"
        path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", subject)
        self.hashes[subject] = self.git("rev-parse", "HEAD")

    def assert_unchanged(self) -> None:
        """Check that no worktree, ref or state of a bisection is left."""
        assert self.git("worktree", "list").count("\n") == 0
        assert "" == self.git("for-each-ref", "refs/bisect")
        assert not list((self.root / ".git").glob("BISECT*"))


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Return 13 commits: a bug on a branch that is merged, two that cannot be imported."""
    made = History(tmp_path / "repository")
    made.commit("start", text=RIGHT)
    made.commit("second", "notes.txt")
    made.git("checkout", "--quiet", "-b", "faster")
    made.commit("prepare")
    made.commit("the bug", text=WRONG)
    made.commit("polish")
    made.git("checkout", "--quiet", "main")
    for number in range(2):
        made.commit(f"on main {number}", "notes.txt")
    made.commit("broken import", text=RIGHT + "import no_such_module\n")
    made.commit("repaired", text=RIGHT)
    made.git("merge", "--quiet", "--no-ff", "-X", "theirs", "--message", "merge faster", "faster")
    made.commit("broken syntax", text=WRONG + "def\n")
    made.commit("repaired again", text=WRONG)
    made.commit("last", "notes.txt")
    return made


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """Return a stored case, of two requests."""
    arguments = {
        "seq_lens": np.array([3, 5], np.int32),
        "dcp_size": 2,
        "dcp_rank": 0,
        "cp_kv_cache_interleave_size": 1,
    }
    return add_to_corpus(
        case_of_call(Call("get_dcp_local_seq_lens", arguments), "x"), tmp_path / "c"
    )


def outcome_of(text: str) -> Outcome:
    """Return the outcome of an implementation file from its text, without running it."""
    if "no_such_module" in text or "def\n\n" in text + "\n":
        return Outcome("untestable", line="it cannot be imported")
    if "+ 2" in text:
        return Outcome("fails", ("f", "", "KeyError"), "KeyError: 2")
    if "+ 1" in text:
        return Outcome("fails", ("f", "result[]", "Mismatch"), "result[0] = 2, but should be 1")
    return Outcome("passes")


def search_in(history: History, good: str, bad: str, notes: list[str]) -> BisectResult:
    """Bisect by looking at the file `engine.py` of each commit."""
    repository = Repository.of(history.root)
    with repository.worktree() as worktree:
        return search(
            repository,
            worktree,
            history.hashes.get(good, good),
            history.hashes.get(bad, bad),
            lambda _: outcome_of((worktree / "engine.py").read_text()),
            notes.append,
        )


def test_the_commit_on_a_merged_branch_is_found(history: History, case: Path) -> None:
    """Bisecting 13 commits with a stored case takes under 10 tries to find a merged commit."""
    notes: list[str] = []
    engine = str(history.root / "engine.py")
    found = bisect(case, history.hashes["start"], "main", impl=engine, note=notes.append)
    assert [history.hashes["the bug"]] == [commit.hash for commit in found.commits]
    assert found.tried == len(notes) < 10
    lines = found.lines()
    assert "first commit that fails:" == lines[1]
    assert lines[2].startswith(f"  {history.hashes['the bug'][:12]} (")
    assert lines[2].endswith(", the bug)")
    assert "the failure: result[0] = 3, but should be 2" == lines[3]
    assert notes[0].startswith("BAD ")
    assert notes[0].endswith(" fails: result[0] = 3, but should be 2")
    history.assert_unchanged()


def test_an_input_is_bisected(tmp_path: Path) -> None:
    """A failure that is stored as its input, not as a call, is drawn again at each commit."""
    text = """
import fast
from fast import checks

def extract_layer_index(*arguments, **options):
    return fast.extract_layer_index(*arguments, **options){change}
"""
    made = History(tmp_path / "repository")
    for subject, change in (("start", ""), ("the bug", " + 1"), ("last", " + 1 + 0")):
        made.commit(subject, text=text.format(change=change))
    properties = properties_of(Subject(target="host", functions="extract_layer_index"))
    prop = next(one for one in properties.values() if one.check.kind is Kind.SAME_ANSWER)
    failure = Failure("extract_layer_index", "host", prop.name, "same answer", "", "", "wrong")
    findings = Findings(tmp_path / "findings")
    findings.add(dataclasses.replace(failure, input=Input(prop.name, 3).to_bytes()))
    stored, engine = findings.case_path(failure.id), str(made.root / "engine.py")
    assert "input" == read_json(stored)["kind"]
    found = bisect(stored, made.hashes["start"], "main", impl=engine, note=lambda _: None)
    assert [made.hashes["the bug"]] == [commit.hash for commit in found.commits]
    made.assert_unchanged()


def test_commits_that_cannot_be_tested_make_a_range(tmp_path: Path) -> None:
    """Untestable commits before the first that fails are listed with it, each with its reason."""
    history = History(tmp_path / "repository")
    history.commit("right", text=RIGHT)
    history.commit("no import", text=RIGHT + "import no_such_module\n")
    history.commit("another failure", text=WRONG.replace("+ 1", "+ 2"))
    history.commit("wrong", text=WRONG)
    history.commit("later", "notes.txt")
    found = search_in(history, "right", "later", [])
    names = ("no import", "another failure", "wrong")
    assert {history.hashes[name] for name in names} == {commit.hash for commit in found.commits}
    text = "\n".join(found.lines())
    assert "the first commit that fails is one of 3:\n" in text
    assert "no import)\n    skipped: it cannot be imported\n" in text
    assert "another failure)\n    skipped: fails otherwise: KeyError: 2\n" in text


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("the bug", "last", r"^GOOD, \w{12} \(.*, the bug\), fails too: result\[0\] = 2"),
        ("start", "repaired", r"^BAD, \w{12} \(.*, repaired\), passes$"),
        ("start", "broken syntax", r"^BAD, .*, cannot be tested: it cannot be imported$"),
        ("broken import", "last", r"^GOOD, .*, cannot be tested: it cannot be imported$"),
        ("no-such", "last", r"^GOOD, 'no-such', is not a commit of "),
        ("start", "--all", r"^BAD, '--all', is not a commit of "),
        ("start", "main..faster", r"^BAD, 'main..faster', is not a commit of "),
        ("last", "start", r"^GOOD, .*, last\), is not an ancestor of BAD, .*, start\)$"),
        ("on main 0", "polish", r"^GOOD, .* is not an ancestor of BAD, .*$"),
        ("last", "last", r"^GOOD, .* is not an ancestor of BAD, .*$"),
    ],
)
def test_wrong_ends_are_refused(history: History, good: str, bad: str, message: str) -> None:
    """The error has the wrong end, GOOD or BAD, and the reason; no worktree is left."""
    with pytest.raises(ValueError, match=message):
        search_in(history, good, bad, [])
    history.assert_unchanged()


def test_uncommitted_changes_stay_and_are_named(history: History) -> None:
    """Uncommitted changes are left as they are; if BAD passes, the error mentions them."""
    (history.root / "engine.py").write_text(WRONG + "# mine\n")
    with pytest.raises(ValueError, match="passes; uncommitted changes are part of no commit"):
        search_in(history, "start", "repaired", [])
    search_in(history, "start", "last", [])
    assert WRONG + "# mine\n" == (history.root / "engine.py").read_text()


def test_ctrl_c_removes_the_worktree(history: History) -> None:
    """Ctrl-C while a case runs removes the worktree."""

    def interrupt(_: str) -> Outcome:
        raise KeyboardInterrupt

    repository = Repository.of(history.root)
    with pytest.raises(KeyboardInterrupt), repository.worktree() as worktree:
        search(repository, worktree, history.hashes["start"], "main", interrupt)
    assert not worktree.exists()
    history.assert_unchanged()


def test_a_bisection_of_the_user_is_left_alone(history: History) -> None:
    """A bisection that the user has begun in the checkout is not disturbed."""
    history.git("bisect", "start", "main", history.hashes["start"])
    before = history.git("bisect", "log"), history.git("rev-parse", "HEAD")
    search_in(history, "start", "main", [])
    assert before == (history.git("bisect", "log"), history.git("rev-parse", "HEAD"))


def test_a_crash_is_a_failure(tmp_path: Path, case: Path) -> None:
    """A case that kills its process fails, and the search goes on."""
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    history = History(tmp_path / "repository")
    history.commit("right", text=RIGHT)
    history.commit("wrong", text=ENGINE.format(body=crash, change=""))
    found = bisect(case, "HEAD~1", "HEAD", impl=str(history.root / "engine.py"))
    assert [history.hashes["wrong"]] == [commit.hash for commit in found.commits]
    assert "the process died: SIGSEGV" == found.line


@pytest.mark.parametrize(
    ("text", "status", "line"),
    [
        (ENGINE.format(body="import time; time.sleep(600)", change=""), "fails", "the case hangs"),
        ("import no_such_module", "untestable", "cannot be imported: ModuleNotFoundError: No mod"),
        ("import os; os._exit(3)", "untestable", "the import ends the process: exit 3"),
        ("from fast import checks, CpuGpuBuffer", "untestable", "needs get_dcp_local_seq_lens, wh"),
    ],
    ids=["hang", "import error", "exit", "lacks it"],
)
def test_what_ends_a_trial_otherwise(
    tmp_path: Path, case: Path, text: str, status: str, line: str
) -> None:
    """A hang is a failure; a file that cannot be imported or lacks the function is untestable."""
    engine = tmp_path / "engine.py"
    engine.write_text(text)
    request = {
        "case": read_json(case),
        "target": "host",
        "impl": str(engine),
        "adapter": None,
        "worktree": str(tmp_path),
    }
    outcome = try_case(request, os.environ | {"PYTHONPATH": str(ROOT)}, 3)
    assert (status, True) == (outcome.status, line in outcome.line), outcome.line


def test_fast_of_a_commit_meets_the_harness_of_today(
    tmp_path: Path, case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this repository only `fast` comes from the worktree; the harness is the current one."""
    history = History(tmp_path / "repository")
    shutil.copytree(ROOT / "fast", history.root / "fast", ignore=shutil.ignore_patterns("*.pyc"))
    (history.root / "conformance").mkdir()
    (history.root / "reference.py").write_text("raise ImportError")
    history.commit("right", "conformance/__init__.py", "raise ImportError")
    path = history.root / "fast" / "context_parallel.py"
    text = path.read_text()
    wrong = text + "\n\ndef get_dcp_local_seq_lens(seq_lens, *_, **__):\n    return seq_lens\n"
    history.commit("wrong", "fast/context_parallel.py", wrong)
    monkeypatch.setattr(kvtwin.fuzz.bisection.bisect, "_source_of", _source_in(history.root))
    found = bisect(case, "HEAD~1", "HEAD")
    assert [history.hashes["wrong"]] == [commit.hash for commit in found.commits]
    assert "result[0] = 3, but should be 2" == found.line


def _source_in(root: Path) -> Callable[[str | None], kvtwin.fuzz.bisection.bisect._Source]:
    return lambda _: kvtwin.fuzz.bisection.bisect._Source(root, "fast")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"impl": "nowhere.py"}, "--impl 'nowhere.py' is not a file"),
        ({"impl": "no_such.engine"}, "--impl 'no_such.engine' cannot be imported"),
        ({"impl": "sys"}, "--impl 'sys' has no source"),
        ({"target": "nonsense"}, "target 'nonsense' is unknown"),
        ({"target": "host,sim"}, "target 'host,sim' is more than one"),
    ],
)
def test_wrong_options_are_refused(case: Path, options: dict[str, str], message: str) -> None:
    """Options that cannot be used are errors before any commit is checked out."""
    with pytest.raises(ValueError, match=message):
        bisect(case, "HEAD~1", "HEAD", **options)  # type: ignore[arg-type]  # all are strings


def test_a_file_without_a_repository_or_case_is_refused(tmp_path: Path, case: Path) -> None:
    """A file outside of a repository, or one that is not a case, is named in the error."""
    (tmp_path / "engine.py").write_text(RIGHT)
    with pytest.raises(ValueError, match=r"engine.py is in no git repository: "):
        bisect(case, "HEAD~1", "HEAD", impl=str(tmp_path / "engine.py"))
    (tmp_path / "case.json").write_text('{"schema_version": "1.0", "kind": "x"}')
    with pytest.raises(ValueError, match=r"case.json is not a stored case: its kind is 'x'"):
        bisect(tmp_path / "case.json", "HEAD~1", "HEAD")
