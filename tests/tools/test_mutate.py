"""The mutation tester, on a toy package whose survivors are known."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import pytest
import torch

pytest.importorskip("cosmic_ray", reason="needs cosmic-ray: pip install -e '.[mutation]'")

import fast
from conformance.generation.profiles import Kind
from fast._native import slots as slot_loops
from fast._native.compiler import COMPILED
from tools import mutate
from tools.bugs import planting
from tools.mutation import evaluator, trial
from tools.mutation.mutants import Mutant, find_mutants
from tools.mutation.project import Project
from tools.mutation.regions import Source
from tools.mutation.session import Verdict
from tools.mutation.tracer import Tracer

CLAMPING = '''"""A toy."""


def clamp(value: int, low: int, high: int) -> int:
    """Return the nearest value that is allowed."""
    if value < low:
        return low
    if value > high:
        return high
    return value
'''

COUNTING = '''"""Another."""

from toy.clamping import clamp


def count_down(number: int) -> int:
    """Return 0, after a while."""
    while number:
        number -= 1
    return number


def never(number: int) -> int:
    """Is never called."""
    return clamp(number, 0, 1) + 1
'''

CHECKS = '''"""What is said of the toys."""

from hypothesis import strategies as st

import toy
from conformance.contracts.check import property_check


@property_check("clamp", lambda preset: st.integers(-9, 9))
def test_a_value_is_clamped(target, value):
    """A value is between the bounds, and stays where it is if it was."""
    assert sorted([-3, value, 3])[1] == toy.clamp(value, -3, 3)


@property_check("count_down", lambda preset: st.integers(0, 9))
def test_nothing_is_left(target, number):
    """Nothing is left."""
    assert toy.count_down(number) == 0
'''

CLAMP = "[clamping.clamp]\n"
BELOW = '"if value < low: => if value <= low:" = "It is its own bound."\n'
ABOVE = '"if value > high: => if value >= high:" = "It is its own bound."\n'
SEEN = '"if value > high: => if value <= high:" = "It is its own bound."\n'
GONE = '"if value > top: => if value >= top:" = "It is its own bound."\n'
NEVER = '[counting.never]\n"*" = "Runs on the moon only."\n'
RUNS = NEVER.replace("never", "count_down")


@dataclasses.dataclass
class Toy:
    """A toy project, and the declarations for its runs."""

    project: Project
    declared: str = ""

    def run(self, *options: str) -> int:
        """Run the command line, and return its exit status."""
        root = self.project.root
        for name in [name for name in sys.modules if name.startswith("toy")]:
            del sys.modules[name]  # of an earlier run
        planting._FUNCTIONS.clear()
        (root / "declared.toml").write_text(self.declared, encoding="utf-8")
        common = ["--db", f"{root}/build/toy.sqlite", "--equivalents", f"{root}/declared.toml"]
        return mutate.main([*common, "--workers", "2", "--profile", "dev", *options], self.project)


def make_toy(root: Path) -> Toy:
    """Return a project of two modules and their checks."""
    files = {
        "toy/__init__.py": "from toy.clamping import clamp\nfrom toy.counting import count_down\n",
        "toy/clamping.py": CLAMPING,
        "toy/counting.py": COUNTING,
        "toychecks/__init__.py": "",
        "toychecks/test_toys.py": CHECKS,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Toy(Project(root, "toy", "toychecks", ()))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Return a project whose mutants were not evaluated yet."""
    monkeypatch.syspath_prepend(tmp_path)
    return make_toy(tmp_path)


class Evaluated(NamedTuple):
    """A project, the runs that evaluated one of its modules, and what they printed."""

    toy: Toy
    statuses: list[int]
    printed: list[str]

    def copied_to(self, folder: Path) -> Toy:
        """Return a copy of the project, with its outcomes."""
        shutil.copytree(self.toy.project.root, folder, dirs_exist_ok=True)
        return Toy(dataclasses.replace(self.toy.project, root=folder))


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """Return a project with a module that was evaluated in two runs: one mutant, then the rest."""
    root = tmp_path_factory.mktemp("evaluated")
    found = Evaluated(make_toy(root), [], [])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        for more in (("--sample", "1"), ()):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                found.statuses.append(found.toy.run("--modules", "clamping", *more))
            found.printed.append(out.getvalue())
    return found


@pytest.fixture
def no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if an evaluation begins."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an evaluation began")

    monkeypatch.setattr(evaluator, "Evaluator", refuse)


def test_survivors_are_reported(evaluated: Evaluated) -> None:
    """A survivor is shown with its diff, and fails the run when the whole module is evaluated."""
    assert (0, True) == (evaluated.statuses[0], "1 of 4 *" in evaluated.printed[0])
    assert evaluated.statuses[1] == 1
    out = evaluated.printed[1]
    assert [4, 2, 2] == numbers(out, "clamping")
    assert "    -    if value < low:\n    +    if value <= low:\n" in out
    assert "    -    if value > high:\n    +    if value >= high:\n" in out
    assert out.count("passes 3 tests") == 2
    assert "clamping: 50.0% of the mutants are killed, expected at least 90.0%" in out


def test_each_kind_of_check_has_a_place() -> None:
    """The tests of a mutant are ordered by the kinds of their checks."""
    assert {kind.value for kind in Kind} == {*evaluator.KINDS}


def test_a_budget_ends_the_measuring_too(
    toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the budget ends before all checks ran once, nothing is evaluated, and a line says so."""
    monkeypatch.setattr(mutate, "SECONDS_OF_A_MINUTE", 0)
    assert toy.run("--modules", "clamping", "--budget-minutes", "1") == 0
    out = capsys.readouterr().out
    assert "nothing was evaluated: the budget ended before 2 tests ran once" in out
    assert "0 of 4 *" in out
    assert "%" not in out


def test_tests_that_declarations_name_exist() -> None:
    """The test files in the reasons of `tools/equivalents.toml` exist."""
    text = mutate.EQUIVALENTS.read_text(encoding="utf-8")
    named = set(re.findall(r"tests/[a-z_/]+\.py", text))
    assert named
    assert not {name for name in named if not (mutate.ROOT / name).is_file()}


@pytest.mark.usefixtures("no_evaluation")
def test_outcomes_stay(evaluated: Evaluated, capsys: pytest.CaptureFixture[str]) -> None:
    """Another run evaluates nothing; what is declared equivalent does not count."""
    toy = evaluated.toy
    toy.declared = CLAMP + BELOW + ABOVE
    assert toy.run("--modules", "clamping") == 0
    assert "100.0%" in capsys.readouterr().out
    toy.declared = CLAMP + BELOW + ABOVE + SEEN + GONE
    assert toy.run("--modules", "clamping") == 1
    out = capsys.readouterr().out
    assert "declared equivalent, but killed by test_toys::test_a_value_is_clamped[host-" in out
    assert "declared equivalent, but no longer there: clamping clamp: 'if value > top:' => " in out


@pytest.mark.usefixtures("no_evaluation")
def test_what_is_unspecified_is_no_survivor(
    evaluated: Evaluated, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutants of an unspecified function do not count; the function must exist."""
    toy = evaluated.toy
    toy.declared = CLAMP + '"unspecified" = "The definition leaves it open."\n'
    assert toy.run("--modules", "clamping") == 0
    assert [4, 4] == numbers(capsys.readouterr().out, "clamping")
    toy.declared = toy.declared.replace("clamp]", "clump]")
    assert toy.run("--modules", "clamping") == 1
    assert "declared unspecified, but no longer there: clamping clump" in capsys.readouterr().out


@pytest.mark.usefixtures("no_evaluation")
def test_only_survivors_are_evaluated_again(toy: Toy) -> None:
    """`--survivors-again` does not begin with mutants that were never evaluated."""
    assert toy.run("--modules", "clamping", "--survivors-again") == 0


@pytest.mark.usefixtures("no_evaluation")
def test_what_is_forgotten_stays_forgotten(
    evaluated: Evaluated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--fresh` forgets outcomes; those of a module whose source changed do not count."""
    toy = evaluated.copied_to(tmp_path)

    def is_evaluated(*options: str) -> bool:
        status = toy.run("--modules", "clamping", "--list-survivors", *options)
        is_open = "0 of 4 *" in capsys.readouterr().out
        assert is_open == (status == 0)
        return not is_open

    path = toy.project.modules()["clamping"]
    assert is_evaluated()
    path.write_text(CLAMPING.replace("value > high", "high < value"), encoding="utf-8")
    assert not is_evaluated()
    path.write_text(CLAMPING, encoding="utf-8")
    assert is_evaluated()
    assert not is_evaluated("--fresh")
    assert not is_evaluated()


def test_loops_that_do_not_end_are_ended(
    toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit kills a mutant that never ends; a function without callers is unreached."""
    monkeypatch.setattr(evaluator, "TIMES_THE_ORIGINAL", 0)
    toy.declared = NEVER
    status = toy.run("--modules", "counting", "--timeout-seconds", "1")
    out = capsys.readouterr().out
    assert status == 0, out
    mutants, killed, timeouts, elsewhere = numbers(out, "counting")
    assert (mutants, elsewhere) == (killed + timeouts + elsewhere, 7)
    assert timeouts >= 2
    toy.declared = NEVER + RUNS
    assert toy.run("--modules", "counting", "--list-survivors") == 1
    assert "declared elsewhere, but killed by " in capsys.readouterr().out


@pytest.mark.usefixtures("no_evaluation")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--modules clamping,clumping",
            "--modules: toy has no 'clumping'; it has clamping, ",
        ),
        ("--modules ,", "argument --modules: ',' contains no name"),
        (
            "--db {root}/toy/clamping.py",
            "--db {root}/toy/clamping.py: is no database of outcomes: ",
        ),
        ("--db {root}", "--db {root}: "),
    ],
)
def test_a_wrong_call_is_one_line(
    toy: Toy, options: str, message: str, refusal: Callable[..., str]
) -> None:
    """An unknown module or a file that is no database is a one-line error; the file is kept."""
    root = toy.project.root
    arguments = options.format(root=root).split()
    assert message.format(root=root) in refusal(lambda given: toy.run(*given), arguments)
    assert CLAMPING == (root / "toy" / "clamping.py").read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_evaluation")
@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("clamping = 3", "clamping is 3, expected [module."),
        ("[clamping]\nclamp = 3", "clamping clamp is 3, expected [module.function] with lines"),
        (CLAMP + BELOW.replace("It is its own bound.", " "), "clamp gives no reason for 'if"),
        (CLAMP + '"*" = 3', "clamping clamp gives no reason for '*'"),
        ("[", "declared.toml: "),
        (CLAMP.replace("clamp", "clump") + BELOW, "declared.toml: toy has no 'clumping'"),
    ],
)
def test_wrong_declarations_are_one_line(
    toy: Toy, declared: str, message: str, refusal: Callable[..., str]
) -> None:
    """An invalid file of declarations is a one-line error."""
    toy.declared = declared
    assert message in refusal(lambda given: toy.run(*given), [])


def test_checks_that_fail_evaluate_nothing(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that fails without a mutant ends the run with an error that has its name."""
    path = toy.project.root / "toychecks/test_toys.py"
    path.write_text(CHECKS.replace("== 0", "== 1"), encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        toy.run("--modules", "counting")
    err = capsys.readouterr().err
    assert re.search(r"test_nothing_is_left\[host-.*fails without a mutant: AssertionError", err)


ODDITIES = '''"""Nothing here but `value + 1` matters."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toy import X1

__all__ = ["a" + "b"]


def one(value: "int | None" = None, *, other: list[int] | int = 7) -> int | None:
    """1 + 1 is 2."""
    if value is None:
        at = 3 - 2
        raise ValueError(f"value is {at + 1}" + "!")
    return value + 1
'''


def test_what_cannot_matter_is_left_out(tmp_path: Path) -> None:
    """No mutant changes an annotation, a list of names, or the words of an error."""
    path = tmp_path / "odd.py"
    path.write_text(ODDITIES, encoding="utf-8")
    changes = [(m.place.function, m.after) for m in find_mutants("odd", path)]
    head = 'def one(value: "int | None" = None, *, other: list[int] | int = {}) -> int | None:'
    assert changes == [
        ("one", head.format("8")),
        ("one", head.format("6")),
        ("one", "if value is not None:"),
        ("one", "pass"),
        ("one", "return value - 1"),
        ("one", "return value + 2"),
        ("one", "return value + 0"),
    ]


def test_a_dotted_exception_among_several_is_passed_over(tmp_path: Path) -> None:
    """A dotted exception name, which cosmic-ray cannot replace in a tuple, is skipped."""
    path = tmp_path / "dotted.py"
    path.write_text(
        "def f(x):\n    try:\n        return x + 1\n"
        "    except (struct.error, TypeError):\n        return None\n"
    )
    changes = {m.after for m in find_mutants("dotted", path)}
    assert {"return x - 1", "except (struct.error, CosmicRayTestingException):"} <= changes


def test_own_tests_come_before_a_few_examples_of_many() -> None:
    """A module's own tests run in full after a few examples of the first twenty tests."""
    few = [trial.Step(f"test_x::{number}", evaluator.FEW, 1.0) for number in range(30)]
    rest = [trial.Step(f"test_{name}::all", "default", 1.0) for name in ("x", "own", "y")]
    found = [step.test for step in evaluator.order_steps(few, rest, "test_own")]
    names = [step.test for step in few]
    assert [*names[:20], "test_own::all", *names[20:], "test_x::all", "test_y::all"] == found
    assert rest[1:2] == evaluator.order_steps([], rest[1:2], "test_own")


def test_what_raises_is_known(tmp_path: Path) -> None:
    """Lines that raise or call a check are recognized."""
    path = tmp_path / "raising.py"
    lines = "if a < 0:", "    raise ValueError(a)", "check_int('b', b)", "return a + b"
    body = "".join(f"    {line}\n" for line in lines)
    path.write_text(f"def add(a, b):\n{body}", encoding="utf-8")
    found = {
        mutant.before.partition(" ")[0]: evaluator.changes_a_check(mutant)
        for mutant in find_mutants("raising", path)
    }
    assert {"if": False, "raise": True, "check_int('b',": True, "return": False} == found


def test_places() -> None:
    """A line's place has its function and statement; function headers run at import time."""
    source = Source(COUNTING)
    whiled = source.place((8, 4))
    assert ("count_down", (8, 8), False) == (whiled.function, whiled.lines, whiled.is_import_time)
    head = source.place((6, 8))
    assert ((6, 10), True) == (head.around, head.is_import_time)
    assert source.place((3, 0)).is_import_time


def test_users_are_found(toy: Toy) -> None:
    """The users of a module are those that import it, directly or indirectly."""
    users = toy.project.users()
    assert users == {"clamping": {"clamping", "counting"}, "counting": {"counting"}}


def test_lines_are_traced(tmp_path: Path) -> None:
    """The tracer notes the lines that run."""
    path = tmp_path / "traced.py"
    path.write_text("def f(x):\n    if x:\n        return 1\n    return 2\n", encoding="utf-8")
    names: dict[str, FunctionType] = {}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)  # noqa: S102  # our own
    tracer = Tracer({"traced": path})
    outside = sys.gettrace(), threading.gettrace()
    with tracer:
        names["f"](0)
    assert tracer.take_lines() == {"traced": {1, 2, 4}}
    assert tracer.take_lines() == {}
    with tracer:
        thread = threading.Thread(target=names["f"], args=(1,))
        thread.start()
        thread.join()
    assert tracer.take_lines() == {"traced": {1, 2, 3}}
    assert (sys.gettrace(), threading.gettrace()) == outside


@pytest.mark.parametrize("checked", [False, True])
def test_loops_are_followed(checked: bool) -> None:
    """All lines of a called compiled loop and of its parts count as run; those of others do not."""
    path = Path(slot_loops.__file__)
    tracer = Tracer({"_native.slots": path})
    tracer.follow_loops(loop for loop in COMPILED if loop.py_func.__module__ == slot_loops.__name__)
    codes = [loop._machine_code for loop in COMPILED]
    table, starts = torch.tensor([[5, 9]], dtype=torch.int32), torch.tensor([0, 2]).int()
    with tracer, fast.checks(checked):
        assert fast.compute_slot_mapping(table, starts, torch.arange(2), 2).tolist() == [10, 11]
    source = path.read_text(encoding="utf-8").splitlines()
    reached = {source[line - 1].strip() for line in tracer.take_lines()["_native.slots"]}
    assert {"virtual_size = block_size * world", "slots[k] = slot + np.int64(k)"} <= reached
    assert "token = max(token, end)" not in reached  # of all groups
    assert codes == [loop._machine_code for loop in COMPILED]


@pytest.mark.parametrize(
    ("exit_code", "verdict", "error"),
    [
        (-signal.SIGSEGV, Verdict.CRASHED, "the process ended with SIGSEGV"),
        (3, Verdict.CRASHED, "the process ended with 3"),
        (-signal.SIGPROF, Verdict.TIMEOUT, "it did not end"),
        (-signal.SIGALRM, Verdict.TIMEOUT, "it did not end"),
    ],
)
def test_a_mutant_that_ends_its_process_is_killed(
    exit_code: int, verdict: Verdict, error: str
) -> None:
    """A mutant that ends its process is distinguished from one that never ends."""
    found = evaluator.outcome_of(["test_toys::test_x[host-real]"], exit_code, is_reached=True)
    assert (verdict, error, "test_toys::test_x[host-real]") == (
        found.verdict,
        found.error,
        found.by,
    )


@pytest.mark.parametrize(
    ("idle_seconds", "seconds", "body", "number"),
    [
        (0.2, 60, lambda: time.sleep(30), signal.SIGALRM),
        (60, 0.05, lambda: all(True for _ in itertools.count()), signal.SIGPROF),
    ],
    ids=["only waits", "takes too long"],
)
def test_a_process_ends_itself(
    idle_seconds: float,
    seconds: float,
    body: Callable[[], object],
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that waits, or that uses more processor time than it may, ends by a signal."""
    monkeypatch.setattr(trial, "IDLE_SECONDS", idle_seconds)
    process = os.fork()
    if process == 0:
        trial.limit_time(seconds)
        body()
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert number == os.WTERMSIG(status)


def test_every_mutant_of_fast_compiles_and_differs() -> None:
    """The mutants of a real module have distinct texts, digests and keys."""
    path = mutate.ROOT / "fast" / "sequence_parallel.py"
    mutants: list[Mutant] = find_mutants("sequence_parallel", path)
    assert len(mutants) > 10
    assert len({mutant.text for mutant in mutants}) == len(mutants)
    assert len({mutant.digest for mutant in mutants}) == len(mutants)
    keys = {(m.place.function, m.before, m.after, m.nth) for m in mutants}
    assert len(keys) == len(mutants)
    assert all(mutant.diff.count("\n") >= 3 for mutant in mutants)


def numbers(out: str, module: str) -> list[int]:
    """Return the counts of a module's line in the table."""
    line = next(line for line in out.splitlines() if line.startswith(f"  {module} "))
    return [int(word) for word in line.split() if word.isdecimal()]
