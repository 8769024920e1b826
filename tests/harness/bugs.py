"""Plant bugs one by one, each in a process of its own, and count those that the harness catches.

    python tests/harness/bugs.py                 # the catalogue and the own bugs, host and native
    python tests/harness/bugs.py --own --all -k split_attn -n 2 --output found.jsonl
    python tests/harness/bugs.py --witnesses     # each own bug shows, and is silent without
    python tests/harness/bugs.py --clean --seeds 10 --examples 600      # false alarms

The catalogue is `tests/bugs`; `tests/harness/bugs` has bugs of the same format that escape plain
calls. An entry of those has two more fields: `class`, a letter of `CLASSES`, and `witness`, a few
lines of Python that pass, and that raise with the bug.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import gc
import importlib
import json
import os
import re
import select
import signal
import statistics
import sys
import threading
import time
import tomllib
import tracemalloc
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch

import fast
from tests.bugs.planting import edit, planted

FOLDER: Final = Path(__file__).parent / "bugs"
CATALOGUE: Final = Path(__file__).parents[1] / "bugs"
LIMIT: Final = 120  # seconds of a bug
PATCH_ERRORS: Final = "NameError|UnboundLocalError|ImportError|SyntaxError"

CLASSES: Final = {
    "A": "remembered without one parameter",
    "B": "an argument's object changed in place since",
    "C": "a caller's class answers otherwise later",
    "D": "the call before was refused, or raised",
    "E": "a caller's object calls the library",
    # F, two objects in use, does not apply: these functions have no objects with state.
    "G": "long lives",
    "H": "two sizes large together",
    "I": "an option or dtype that is drawn at small sizes only",
    "J": "a condition that is drawn at small sizes only",
    "K": "exact sizes",
    # Of L, forks and pickles do not apply: nothing here has a process or an object of its own.
    "L": "threads of torch, modes that change",
    "M": "memory kept for new contents, or outside Python's heap",
    "N": "callers' subclasses",
    "O": "dtypes; no function here takes floats",
    "P": "a caller changes a result",
    "Q": "one object under two names; another thread",
}
"""Classes of bugs that escape plain calls, by the letters of the lab's list."""

Result: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bug:
    """An entry of the catalogue (`tests/bugs/catalogue.py` describes it), or an own bug."""

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
    letter: str = ""
    witness: str = ""

    @property
    def name(self) -> str:
        return f"{self.function}: {self.what}"

    @property
    def kind(self) -> str:
        return f"class {self.letter}" if self.letter else self.caught_by

    def planted(self) -> AbstractContextManager[None]:
        module = importlib.import_module(self.module)
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        olds, news = ([s] if isinstance(s, str) else s for s in (self.old, self.new))
        for old, new in zip(olds, news, strict=True):
            source = edit(source, old, new, self.within)
        return planted(module, source)


def read_bugs(folder: Path) -> Iterator[Bug]:
    for path in sorted(folder.rglob("*.toml")):
        parts = path.relative_to(folder).with_suffix("").parts
        is_kernel = parts[:2] == ("fast", "kernels")
        for function, bugs in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for what, found in bugs.items():
                fields = {"target": "sim"} if is_kernel else {}
                fields |= {"letter" if k == "class" else k: v for k, v in found.items()}
                fields["target"] = fields.get("target", "host").replace("sim", "native")
                yield Bug(function=function, what=what, module=".".join(parts), **fields)


# Children.


def in_children(
    jobs: Iterable[tuple[str, Callable[[], Result]]], number: int = 1, limit: float = LIMIT
) -> Iterator[tuple[str, Result]]:
    """Yield what each job returned in a child; after a crash, or after `limit` seconds, that."""
    waiting = [*jobs][::-1]
    running: dict[int, tuple[str, int, float]] = {}
    while waiting or running:
        while waiting and len(running) < number:
            name, job = waiting.pop()
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                _run(job, writer)
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
                    line = lines.readline()
                found = json.loads(line) if line else {}
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            found = found or {"stopped": f"the process ended with {status}"}
            os.close(reader)
            del running[reader]
            yield name, found


def _run(job: Callable[[], Result], writer: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    try:
        found = job()
    except BaseException:  # noqa: BLE001  # the parent shows it
        found = {"error": traceback.format_exc(limit=-4)}
    os.write(writer, json.dumps(found).encode() + b"\n")
    os._exit(0)


# Witnesses.


def batch(query_lens: list[int]) -> fast.CommonAttentionMetadata:
    """Return a batch of prefills."""
    starts = i32(0, *np.cumsum(query_lens))
    lens, tokens = i32(*query_lens), sum(query_lens)
    rows = torch.arange(len(query_lens) * 3, dtype=torch.int32).reshape(-1, 3)
    slots, computed = torch.arange(tokens), torch.zeros_like(lens)
    sizes = (len(lens), tokens, max(query_lens), max(query_lens))
    vectors = (starts, starts.clone(), lens, lens.clone(), computed)
    return fast.CommonAttentionMetadata(*vectors, *sizes, rows, slots)


def i32(*values: Any) -> torch.Tensor:  # noqa: ANN401  # ints
    return torch.tensor(values, dtype=torch.int32)


def outcome(call: Callable[[], Any]) -> Any:  # noqa: ANN401  # of any type
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # a witness compares it
        return error


def in_thread(call: Callable[[], Any]) -> Any:  # noqa: ANN401  # of any type
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(outcome(call)))
    thread.start()
    thread.join()
    return found[0]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_witness(bug: Bug) -> None:
    """Run a bug's witness; it raises if the bug is planted."""
    names: dict[str, Any] = {
        **{one.__name__: one for one in (contextlib, copy, dataclasses, gc, torch, tracemalloc)},
        **{one.__name__: one for one in (batch, fast, i32, in_thread, outcome, resident_bytes, types)},
        "np": np,
        "table": lambda rows: torch.tensor([[*row] for row in rows], dtype=torch.int32),
        "part": lambda *at: fast.UBatchSlice(slice(*at[:2]), slice(*at[2:])),
        "local_lens": fast.get_dcp_local_seq_lens,
        "slots": fast.compute_slot_mapping,
        "kernel_blocks": fast.map_to_kernel_blocks,
        "cut_batch": fast.create_ubatch_slices,
        "slice_starts": fast.slice_query_start_locs,
        "make_part": fast._make_metadata_with_slice,
        "split": fast.split_attn_metadata,
        "__name__": "__main__",
    }
    exec(compile(bug.witness, f"<witness of {bug.name}>", "exec"), names)  # noqa: S102  # our own


def check_witness(bug: Bug) -> Result:
    run_witness(bug)
    with bug.planted():
        try:
            run_witness(bug)
        except AssertionError as error:
            return {"shown": str(error)}
    return {"silent": "the witness passes with the bug"}


# The harness.


@functools.cache
def harness() -> tuple[Any, Any, dict[str, Any]]:
    """Return the modules `checks` and `targets`, and the contracts by function."""
    checks = importlib.import_module("conformance.harness.checks")
    targets = importlib.import_module("conformance.harness.targets")
    return checks, targets, {one.function: one for one in checks.contracts()}


def first_failures(
    function: str, targets: Iterable[str], profile: Any, *, every: bool
) -> list[Result]:
    """Run the tests of a function, and return the first failure, or that of each test."""
    checks, target_module, contracts = harness()
    found: list[Result] = []
    for target in targets:
        for kind in checks.KINDS:
            test, before = f"{kind}[{target}]", checks.COUNTS.total()
            begin = time.monotonic()
            try:
                getattr(checks, kind)(contracts[function], target_module.Target(target), profile)()
                continue
            except Exception as error:  # noqa: BLE001  # of the harness, if it is no Failure
                failure: Result = {"test": test, "message": f"{type(error).__name__}: {error}"}
                if hasattr(error, "difference"):
                    what, got = error.difference, str(error.difference.got)
                    failure |= {"condition": error.condition, "kind": what.kind}
                    failure |= {"drawn": error.story.condition, "verdict": what.verdict.value}
                    failure |= {"broken": bool(re.search(PATCH_ERRORS, got))}
                else:
                    failure["error"] = traceback.format_exc(limit=-6)
            failure["message"] = failure["message"][:300]
            failure["examples"] = checks.COUNTS.total() - before
            failure["seconds"] = round(time.monotonic() - begin, 2)
            found.append(failure)
            if not every:
                return found
    return found


def try_bug(bug: Bug, profile: Any, every: bool) -> Result:
    begin = time.monotonic()
    targets = ["host", "native"] if every and can_run_native(bug.function) else [bug.target]
    with bug.planted():
        found = first_failures(bug.function, targets, profile, every=every)
    return {"failures": found, "seconds": round(time.monotonic() - begin, 2)}


def can_run_native(function: str) -> bool:
    return bool(harness()[2][function].has_kernel)


def judge(found: Result) -> str:
    """Return `caught`, `missed`, `broken` (the patch is) or `error` (of the harness)."""
    if "stopped" in found:
        return "caught"
    failures = found.get("failures", [])
    if "error" in found or any("error" in failure for failure in failures):
        return "error"
    if any(failure["broken"] for failure in failures):
        return "broken"
    return "caught" if failures else "missed"


# The command.


def try_bugs(bugs: list[Bug], options: argparse.Namespace) -> int:
    profile = dataclasses.replace(
        harness()[0].PROFILES[options.profile], shrink_seconds=0.0, seed=options.seed
    )
    by_name = {bug.name: bug for bug in bugs}
    jobs = [(bug.name, functools.partial(try_bug, bug, profile, options.all)) for bug in bugs]
    judged: dict[str, list[str]] = defaultdict(list)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    numbers: list[int] = []
    seconds: list[float] = []
    with open(options.output, "w", encoding="utf-8") as output:
        for name, found in in_children(jobs, options.n):
            verdict = judge(found)
            record = {"bug": name, "kind": by_name[name].kind, "verdict": verdict, **found}
            output.write(json.dumps(record) + "\n")
            output.flush()
            judged[verdict].append(name)
            counts[by_name[name].kind][verdict] += 1
            if found.get("failures"):
                numbers.append(len(found["failures"]))
            seconds.append(found.get("seconds", LIMIT))
            first = (found.get("failures") or [{}])[0]
            why = found.get("stopped") or found.get("error") or first.get("error")
            where = [first.get(key) or "" for key in ("test", "condition", "kind", "examples")]
            print(f"{verdict:7} {name}:", why or "; ".join(map(str, where)), flush=True)
    print()
    for kind, count in sorted(counts.items()):
        letter = kind.removeprefix("class ")
        words = f"{kind}, {CLASSES[letter]}" if letter in CLASSES else kind
        print(f"{count['caught']:4} of {count.total():3}  {words}")
    print(f"{len(judged['caught']):4} of {len(bugs):3}  all")
    for verdict in ("missed", "broken", "error"):
        for name in judged[verdict]:
            print(f"{verdict}: {name}")
    if numbers:
        print(f"failing tests: median {statistics.median(numbers)}, at most {max(numbers)}")
    print(f"seconds: median {statistics.median(seconds)}, at most {max(seconds)}")
    return 0


def find_false_alarms(options: argparse.Namespace) -> int:
    checks, _, contracts = harness()
    profile = dataclasses.replace(
        checks.PROFILES[options.profile], shrink_seconds=0.0, answers=options.examples
    )
    jobs = []
    for function in filter(re.compile(options.k).search, contracts):
        for target in ["host", *["native"] * can_run_native(function)]:
            for seed in range(options.seeds):
                seeded = dataclasses.replace(profile, seed=seed)
                run = functools.partial(first_failures, function, [target], seeded, every=True)
                jobs.append((f"{function} on {target}, seed {seed}", lambda run=run: {"all": run()}))
    wrong = 0
    for name, found in in_children(jobs, options.n, 4 * LIMIT):
        if found.get("all") != []:
            wrong += 1
            print(f"{name}: {json.dumps(found, indent=1)}", flush=True)
    print(f"{wrong} of {len(jobs)} runs of right code fail")
    return wrong


def check_witnesses(bugs: list[Bug], options: argparse.Namespace) -> int:
    jobs = [(bug.name, functools.partial(check_witness, bug)) for bug in bugs]
    wrong = 0
    for name, found in in_children(jobs, options.n):
        wrong += "shown" not in found
        print(f"{name}: {found}", flush=True)
    print(f"{wrong} of {len(jobs)} witnesses are wrong")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("-k", default="", help="a pattern of bugs' names")
    parser.add_argument("-n", type=int, default=1, help="processes at a time")
    parser.add_argument("--own", action="store_true", help="only the own bugs")
    parser.add_argument("--all", action="store_true", help="run all tests, not to the first failure")
    parser.add_argument("--profile", default="default")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--output", default=os.devnull, help="a file of JSON lines")
    parser.add_argument("--witnesses", action="store_true")
    parser.add_argument("--clean", action="store_true", help="run the right `fast`")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--examples", type=int, default=600)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.clean:
        return find_false_alarms(options)
    bugs = [bug for bug in read_bugs(FOLDER) if re.search(options.k, bug.name)]
    if options.witnesses:
        return check_witnesses(bugs, options)
    if not options.own:
        known = harness()[2]
        bugs += [
            bug
            for bug in read_bugs(CATALOGUE)
            if bug.function in known and re.search(options.k, bug.name)
        ]
    return try_bugs(bugs, options)


if __name__ == "__main__":
    sys.exit(main())
