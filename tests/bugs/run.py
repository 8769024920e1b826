"""Plant bugs one by one, each in a process of its own, and count those that the harness catches.

python tests/bugs/run.py                 # all bugs, on the target of each
python tests/bugs/run.py --own --all -k split_attn -n 2 --output found.jsonl
python tests/bugs/run.py --clean -k compute_slot     # false alarms: no bug, other seeds
"""

# ruff: noqa: BLE001, PLC0415, T201  # a bug is planted before its module is imported

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import os
import re
import select
import signal
import sys
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Final, TypeAlias

# What takes long to import, and has no bugs: each process begins with it.
import hypothesis.extra.numpy
import hypothesis.stateful  # noqa: F401
import numba.core.caching  # noqa: F401
import torch

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
LIMIT: Final = 120  # seconds of a bug
PATCH_ERRORS: Final = "NameError|UnboundLocalError|ImportError|SyntaxError"
TARGETS: Final = ("host", "native")

CLASSES: Final = {
    "A": "remembered without one parameter",
    "B": "an argument's object changed in place since",
    "C": "a caller's class answers otherwise later",
    "D": "the call before was refused, or raised",
    "E": "a caller's object calls the library",
    "G": "long lives",
    "H": "two sizes large together",
    "I": "an option or dtype that is drawn at small sizes only",
    "J": "a condition that is drawn at small sizes only",
    "K": "exact sizes",
    "L": "threads of torch, modes that change",
    "M": "memory kept for new contents, or outside Python's heap",
    "N": "callers' subclasses",
    "O": "dtypes",
    "P": "a caller changes a result",
    "Q": "one object under two names; another thread",
}
"""Classes of bugs that were written to escape the harness (`own`)."""

Result: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bug:
    """An entry of a TOML file, whose path is that of the module; `tests/README.md` describes it."""

    function: str
    what: str
    why: str
    module: str
    old: str | list[str]
    new: str | list[str]
    within: str = ""
    target: str = "host"
    letter: str = ""

    @property
    def name(self) -> str:
        return f"{self.function}: {self.what}"

    def sources(self) -> tuple[str, str]:
        """Return the source of the module without the bug, and with it."""
        path = ROOT.joinpath(*self.module.split(".")).with_suffix(".py")
        right = source = path.read_text(encoding="utf-8")
        olds, news = ([s] if isinstance(s, str) else s for s in (self.old, self.new))
        for old, new in zip(olds, news, strict=True):
            begin, end = _find_definition(source, self.within) if self.within else (0, len(source))
            if (count := source.count(old, begin, end)) != 1:
                raise ValueError(f"{self.name}: {old!r} is there {count} times, expected once")
            at = source.index(old, begin, end)
            source = source[:at] + new + source[at + len(old) :]
        return right, source

    def plant(self) -> None:
        """Let this process import the module with the bug."""
        read = SourceFileLoader.get_code
        # Of no file: numba keeps no machine code of its loops on disk, nor we of its kernels.
        source = self.sources()[1]
        code = compile(source, f"<{self.module} with a bug>", "exec", dont_inherit=True)

        def get_code(loader: SourceFileLoader, name: str) -> Any:
            return code if name == self.module else read(loader, name)

        SourceFileLoader.get_code = get_code
        sys.dont_write_bytecode = True  # nor of kernels that call its functions
        if self.module == "fast.numba_cuda":
            from conformance.native import cache

            cache.FOLDER = HERE / "nowhere"


def _find_definition(source: str, name: str) -> tuple[int, int]:
    """Return where the definition of a function or class begins and ends."""
    body: list[Any] = ast.parse(source).body
    for part in name.split("."):
        found = next(node for node in body if getattr(node, "name", None) == part)
        body = found.body
    lines = source.splitlines(keepends=True)
    first = min(node.lineno for node in (found, *found.decorator_list))
    return len("".join(lines[: first - 1])), len("".join(lines[: found.end_lineno]))


def read_bugs(folder: Path = HERE) -> Iterator[Bug]:
    for path in sorted(folder.rglob("*.toml")):
        parts = path.relative_to(HERE).with_suffix("").parts
        parts = parts[parts[0] == "own" :]
        kernel = {"target": "native"} if parts[:2] == ("fast", "kernels") else {}
        for function, bugs in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for what, found in bugs.items():
                fields = kernel | {"letter" if k == "class" else k: v for k, v in found.items()}
                yield Bug(function=function, what=what, module=".".join(parts), **fields)


# In the process of a bug.


def failures(function: str, targets: Iterable[str], every: bool, **profile: Any) -> Result:
    """Run the tests of a function, and return the first failure, or that of each test."""
    from conformance.functions import contracts
    from conformance.harness import checks
    from conformance.harness.story import Failure
    from conformance.harness.targets import Target

    known = {contract.function: contract for contract in contracts()}
    contract = known.get(function) or known[function.partition(".")[0]]  # of a method, its class
    counts = dataclasses.replace(checks.PROFILES["default"], shrink_seconds=0.0, **profile)
    found: list[Result] = []
    started = time.monotonic()
    kinds = [k for k in checks.KINDS if k != "refusals" or not contract.is_long]
    tests = [(t, k) for t in targets for k in kinds if t == "host" or contract.has_kernel]
    for target, kind in tests:
        before, begin = checks.COUNTS.total(), time.monotonic()
        try:
            getattr(checks, kind)(contract, Target(target), counts)()
            continue
        except Exception as error:  # of the harness, if it is no Failure
            failure: Result = {"test": f"{kind}[{target}]", "message": f"{error!r}"[:300]}
            if isinstance(error, Failure):
                what, got = error.difference, str(error.difference.got)
                failure |= {"message": str(error)[:300], "condition": error.condition}
                failure |= {"kind": what.kind, "verdict": what.verdict.value}
                failure |= {"drawn": error.story.conditions}
                failure |= {"broken": bool(re.search(PATCH_ERRORS, got))}
            elif "the strategy drew an invalid call" in str(error):  # a bug of the engine
                failure |= {"kind": "refused", "broken": bool(re.search(PATCH_ERRORS, str(error)))}
            else:
                failure["error"] = traceback.format_exc(limit=-6)
        failure["examples"] = checks.COUNTS.total() - before
        failure["seconds"] = round(time.monotonic() - begin, 2)
        found.append(failure)
        if not every:
            break
    return {"failures": found, "seconds": round(time.monotonic() - started, 2)}


def try_bug(bug: Bug, every: bool = False, **profile: Any) -> Result:
    bug.plant()
    return failures(bug.function, TARGETS if every else [bug.target], every, **profile)


def judge(found: Result) -> str:
    """Return `caught`, `missed`, `broken` (the patch is) or `error` (of the harness)."""
    failed = found.get("failures", [])
    if any("error" in one for one in (found, *failed)):
        return "error"
    if any(one["broken"] for one in failed):
        return "broken"
    return "caught" if failed or "stopped" in found else "missed"


# Processes.


def in_children(
    jobs: dict[str, Callable[[], Result]], number: int = 1, limit: float = LIMIT
) -> Iterator[tuple[str, Result]]:
    """Yield what each job returned in a child; after a crash, or after `limit` seconds, that."""
    waiting = [*jobs][::-1]
    running: dict[int, tuple[str, int, float]] = {}
    while waiting or running:
        while waiting and len(running) < number:
            name = waiting.pop()
            reader, writer = os.pipe()
            if (child := os.fork()) == 0:
                _run(jobs[name], writer)
            os.close(writer)
            running[reader] = name, child, time.monotonic() + limit
        ready = select.select([*running], [], [], 0.5)[0]
        for reader, (name, child, end) in [*running.items()]:
            if reader not in ready and time.monotonic() < end:
                continue
            found: Result = {"stopped": f"still running after {limit} s"}
            if reader not in ready:
                os.kill(child, signal.SIGKILL)
            else:
                with os.fdopen(os.dup(reader), encoding="utf-8") as lines:
                    found = json.loads(lines.readline() or "{}")
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.close(reader)
            del running[reader]
            yield name, found or {"stopped": f"the process ended with {status}"}


def _run(job: Callable[[], Result], writer: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    try:
        found = job()
    except BaseException:  # the parent shows it
        found = {"error": traceback.format_exc(limit=-4)}
    os.write(writer, json.dumps(found).encode() + b"\n")
    os._exit(0)


# The command.


def find_alarms(
    functions: Iterable[str], seeds: Iterable[int | None], number: int
) -> list[tuple[Any, ...]]:
    """Run the tests of functions without a bug; print what fails, and return its places."""
    jobs = {
        f"{name}, seed {seed}": lambda name=name, seed=seed: failures(
            name, TARGETS, every=True, seed=seed
        )
        for name in sorted(functions)
        for seed in seeds
    }
    alarms = []
    for name, found in in_children(jobs, number, 4 * LIMIT):
        if judge(found) != "missed":
            print(f"ALARM   {name}: {json.dumps(found, indent=1)}", flush=True)
            function = name.partition(", seed")[0]
            alarms += [place_of(function, one) for one in found.get("failures") or [found]]
    print(f"{len(jobs)} runs of right code, {len(alarms)} alarms")
    return alarms


def place_of(function: str, failure: Result) -> tuple[Any, ...]:
    return function, *map(failure.get, ("test", "condition", "kind"))


def try_bugs(bugs: list[Bug], options: argparse.Namespace) -> None:
    functions = set() if options.quick else {bug.function for bug in bugs}
    alarms = find_alarms(functions, [None], options.n)
    jobs = {bug.name: lambda bug=bug: try_bug(bug, options.all) for bug in bugs}
    by_name = {bug.name: bug for bug in bugs}
    verdicts: dict[str, list[str]] = {}
    with Path(options.output).open("w", encoding="utf-8") as output:
        for name, found in in_children(jobs, options.n):
            bug, first = by_name[name], (found.get("failures") or [{}])[0]
            verdict = "alarm" if place_of(bug.function, first) in alarms else judge(found)
            record = {"bug": name, "class": bug.letter, "verdict": verdict, **found}
            output.write(json.dumps(record) + "\n")
            output.flush()
            verdicts.setdefault(bug.letter, []).append(verdict)
            why = found.get("stopped") or found.get("error") or first.get("error") or ""
            where = [first.get(key) or "" for key in ("test", "condition", "kind", "examples")]
            said = why.strip().rpartition("\n")[2] or "; ".join(map(str, where))
            print(f"{verdict:7} {name}: {said}", flush=True)
    for letter, found in sorted(verdicts.items()):
        words = f"class {letter}: {CLASSES[letter]}" if letter else "of the catalogue"
        print(f"{found.count('caught'):4} of {len(found):3}  {words}")
    totals = Counter(verdict for found in verdicts.values() for verdict in found)
    print(", ".join(f"{number} {verdict}" for verdict, number in totals.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("-k", default="", help="a pattern of bugs' names")
    parser.add_argument("-n", type=int, default=1, help="processes at a time")
    parser.add_argument("--own", action="store_true", help="only those that plain calls miss")
    parser.add_argument("--all", action="store_true", help="run all tests, on all targets")
    parser.add_argument("--quick", action="store_true", help="do not try the right code first")
    parser.add_argument("--output", default=os.devnull, help="a file of JSON lines")
    parser.add_argument("--clean", action="store_true", help="run the right `fast`, ten times")
    options = parser.parse_args()
    bugs = [
        bug
        for bug in read_bugs(HERE / "own" if options.own else HERE)
        if re.search(options.k, bug.name)
    ]
    if options.clean:
        return len(find_alarms({bug.function for bug in bugs}, range(10), options.n))
    try_bugs(bugs, options)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
