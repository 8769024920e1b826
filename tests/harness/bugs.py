"""Plant bugs one by one, each in a process of its own, and count those that the harness catches.

python tests/harness/bugs.py                 # the catalogue and the own bugs, host and native
python tests/harness/bugs.py --own --all -k split_attn -n 2 --output found.jsonl
python tests/harness/bugs.py --witnesses     # each own bug shows, and is silent without
python tests/harness/bugs.py --clean --seeds 10 --examples 600      # false alarms
"""

# ruff: noqa: T201  # the output of a command

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import re
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import torch

from conformance.functions import contracts
from conformance.harness import checks
from conformance.harness.checks import Profile
from conformance.harness.contract import Contract
from conformance.harness.story import Failure
from conformance.harness.targets import Target
from tests.harness.children import LIMIT, Result, in_children
from tests.harness.own_bugs import CATALOGUE, CLASSES, OWN, Bug, check_witness, read_bugs

PATCH_ERRORS: Final = "NameError|UnboundLocalError|ImportError|SyntaxError"

CONTRACTS: Final = {contract.function: contract for contract in contracts()}


def contract_of(function: str) -> Contract | None:
    """Return the contract of a function; of a method without its own, that of the class."""
    return CONTRACTS.get(function, CONTRACTS.get(function.partition(".")[0]))


def first_failures(
    function: str, targets: Iterable[str], profile: Profile, *, every: bool
) -> Result:
    """Run the tests of a function, and return the first failure, or that of each test."""
    found: list[Result] = []
    started, contract = time.monotonic(), contract_of(function)
    for target, kind in itertools.product(targets, checks.KINDS):
        test, before = f"{kind}[{target}]", checks.COUNTS.total()
        begin = time.monotonic()
        try:
            getattr(checks, kind)(contract, Target(target), profile)()
            continue
        except Exception as error:  # noqa: BLE001  # of the harness, if it is no Failure
            failure: Result = {"test": test, "message": f"{type(error).__name__}: {error}"}
            if isinstance(error, Failure):
                what, got = error.difference, str(error.difference.got)
                failure |= {"condition": error.condition, "kind": what.kind}
                failure |= {"drawn": error.story.conditions, "verdict": what.verdict.value}
                failure |= {"broken": bool(re.search(PATCH_ERRORS, got))}
            else:
                failure["error"] = traceback.format_exc(limit=-6)
        failure["message"] = failure["message"][:300]
        failure["examples"] = checks.COUNTS.total() - before
        failure["seconds"] = round(time.monotonic() - begin, 2)
        found.append(failure)
        if not every:
            break
    return {"failures": found, "seconds": round(time.monotonic() - started, 2)}


def targets_of(function: str) -> list[str]:
    contract = contract_of(function)
    return ["host", *["native"] * bool(contract and contract.has_kernel)]


def try_bug(bug: Bug, profile: Profile, every: bool) -> Result:
    targets = targets_of(bug.function) if every else [bug.target]
    with bug.planted():
        return first_failures(bug.function, targets, profile, every=every)


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
    profile = dataclasses.replace(checks.PROFILES["default"], shrink_seconds=0.0)
    # What fails for right code too shows no bug.
    alarms = {
        place_of(name.split()[0], failure)
        for name, found in run_right_code({bug.function for bug in bugs}, [profile], options.n)
        for failure in found.get("failures", [])
    }
    jobs = [(bug.name, functools.partial(try_bug, bug, profile, options.all)) for bug in bugs]
    by_name = {bug.name: bug for bug in bugs}
    records: list[Result] = []
    with Path(options.output).open("w", encoding="utf-8") as output:
        for name, found in in_children(jobs, options.n):
            function, failures = by_name[name].function, found.get("failures") or []
            is_alarm = any(place_of(function, failure) in alarms for failure in failures)
            verdict = "alarm" if is_alarm else judge(found)
            records.append({"bug": name, "kind": by_name[name].kind, "verdict": verdict, **found})
            output.write(json.dumps(records[-1]) + "\n")
            output.flush()
            first = failures[0] if failures else {}
            why = found.get("stopped") or found.get("error") or first.get("error") or ""
            why = why.strip().rpartition("\n")[2]  # of a traceback
            where = [first.get(key) or "" for key in ("test", "condition", "kind", "examples")]
            print(f"{verdict:7} {name}:", why or "; ".join(map(str, where)), flush=True)
    show_summary(records)
    return 0


def place_of(function: str, failure: Result) -> tuple[object, ...]:
    return function, *map(failure.get, ("test", "condition", "kind"))


def show_summary(records: list[Result]) -> None:
    print()
    for kind in sorted({record["kind"] for record in records}):
        judged = [record["verdict"] for record in records if record["kind"] == kind]
        words = CLASSES.get(kind.removeprefix("class "), "")
        print(f"{judged.count('caught'):4} of {len(judged):3}  {kind}  {words}")
    verdicts = Counter(record["verdict"] for record in records)
    print(f"{verdicts['caught']:4} of {len(records):3}  all")
    for record in sorted(records, key=lambda record: str(record["verdict"])):
        if record["verdict"] != "caught":
            print(f"{record['verdict']}: {record['bug']}")
    failing = [float(len(record["failures"])) for record in records if record.get("failures")]
    seconds = [float(record.get("seconds", LIMIT)) for record in records]
    for what, numbers in [("failing tests", failing), ("seconds", seconds)]:
        if numbers:
            print(f"{what}: median {statistics.median(numbers)}, at most {max(numbers)}")


def find_false_alarms(options: argparse.Namespace) -> int:
    default = dataclasses.replace(checks.PROFILES["default"], answers=options.examples)
    seeded = [
        dataclasses.replace(default, shrink_seconds=0.0, seed=k) for k in range(options.seeds)
    ]
    functions = {function for function in CONTRACTS if re.search(options.k, function)}
    verdicts = Counter(judge(found) for _, found in run_right_code(functions, seeded, options.n))
    print(f"{verdicts['missed']} of {verdicts.total()} runs of right code pass")
    return verdicts.total() - verdicts["missed"]


def run_right_code(
    functions: Iterable[str], profiles: list[Profile], number: int
) -> Iterator[tuple[str, Result]]:
    """Yield the failures of each function on each target without a bug, and print them."""
    jobs = [
        (
            f"{name} on {target}, seed {profile.seed}",
            functools.partial(first_failures, name, [target], profile, every=True),
        )
        for name in sorted(functions)
        for target in targets_of(name)
        for profile in profiles
    ]
    for name, found in in_children(jobs, number, 4 * LIMIT):
        if judge(found) != "missed":
            print(f"ALARM   {name}: {json.dumps(found, indent=1)}", flush=True)
        yield name, found


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
    parser.add_argument(
        "--all", action="store_true", help="run all tests, not to the first failure"
    )
    parser.add_argument("--output", default=os.devnull, help="a file of JSON lines")
    parser.add_argument("--witnesses", action="store_true")
    parser.add_argument("--clean", action="store_true", help="run the right `fast`")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--examples", type=int, default=600)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.clean:
        return find_false_alarms(options)
    folders = [OWN] if options.own or options.witnesses else [OWN, CATALOGUE]
    bugs = [bug for folder in folders for bug in read_bugs(folder)]
    bugs = [bug for bug in bugs if contract_of(bug.function) and re.search(options.k, bug.name)]
    if options.witnesses:
        return check_witnesses(bugs, options)
    return try_bugs(bugs, options)


if __name__ == "__main__":
    sys.exit(main())
