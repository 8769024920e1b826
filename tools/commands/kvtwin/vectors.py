"""Write test vectors: calls and their results in `reference`, as plain JSON for any language.

    kvtwin vectors --out DIR

writes a folder for each function, with a stored case for each call: valid calls with their results,
invalid calls with the exception that they raise. `python -m conformance --replay DIR` replays them.
`docs/vectors.md` describes the format.
"""

from __future__ import annotations

if __name__ == "__main__":
    from kvtwin.commands import run_command

    run_command("vectors")

import contextlib
import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tqdm import tqdm

from conformance.functions import contracts
from conformance.harness.cases import SCHEMA_VERSION, encode, encode_value, written
from conformance.harness.checks import changed_calls
from conformance.harness.contract import Contract
from conformance.harness.objects import Outcome
from conformance.harness.pair import reference_answer
from conformance.harness.refusals import REFERENCE_SECONDS, TooLong, time_of_cpu
from conformance.harness.story import Story
from conformance.harness.targets import Target
from conformance.harness.values import copied, fingerprint
from conformance.name_lists import near
from kvtwin.parser import Parser, names, positive


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    known = {contract.function: contract for contract in contracts()}
    for name in options.functions or ():
        if name not in known:
            parser.error(f"no vectors of {name!r}; similar names: {near(name, known)}")
    out: Path = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        parser.error(f"--out {out} is there already, and not an empty folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {out}: {error.strerror}")
    counts = {}
    chosen = options.functions or sorted(known)
    for name in tqdm(chosen, desc="vectors", unit="function", file=sys.stderr, disable=None):
        counts[name] = write_function(known[name], out / name, options.examples)
    index = {"schema_version": SCHEMA_VERSION, "functions": counts}
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="ascii")
    for name, found in counts.items():
        print(f"{name}: {found['calls']} calls, {found['refusals']} refusals")
    return 0


def _make_parser() -> Parser:
    parser = Parser(
        prog="kvtwin vectors",
        description="Write calls and their results in reference as test vectors, in plain JSON.",
        examples=(
            "--out vectors",
            "--out vectors --functions compute_slot_mapping,UBatchSlice --examples 50",
        ),
        statuses={0: "all vectors are written"},
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="a new or empty folder"
    )
    parser.add_argument(
        "--examples",
        type=positive,
        metavar="N",
        default=20,
        help="valid calls of each function, and as many invalid ones; default: %(default)s",
    )
    parser.add_argument(
        "--functions", type=names, metavar="A,B", help="functions to write; default: all"
    )
    return parser


def write_function(contract: Contract, folder: Path, num_examples: int) -> dict[str, int]:
    """Write the cases of one function; return how many calls and refusals there are."""
    folder.mkdir(parents=True)
    counts = {"calls": 0, "refusals": 0}
    for case in _cases(contract, num_examples):
        kind = "refusals" if "raises" in case else "calls"
        if counts[kind] < num_examples:
            file = folder / f"{kind[:-1]}-{counts[kind]:03}.json"
            file.write_text(written(case), encoding="ascii")
            counts[kind] += 1
    return counts


def _cases(contract: Contract, number: int) -> Iterator[dict[str, Any]]:
    """Yield cases of different calls; huge ones and those that JSON cannot have are left out."""
    seen = set()
    for story in _drawn(contract, number):
        if fingerprint(story.arguments) in seen:
            continue
        seen.add(fingerprint(story.arguments))
        with contextlib.suppress(TypeError, TooLong):
            case = encode(story)
            arguments = copied(story.arguments)
            with time_of_cpu(REFERENCE_SECONDS):
                found = reference_answer(contract, arguments)
            if found.error is None:
                case["result"] = encode_value(found.value)
                after = {name: arguments[name] for name in contract.written & {*arguments}}
                case |= {"after": encode_value(after)} if after else {}
            else:
                case["raises"] = {"class": type(found.error).__name__, "message": str(found.error)}
            if story.changed is None or _is_refusal(found):
                yield case


def _is_refusal(found: Outcome) -> bool:
    """Return whether a call ends in code of `reference`, and not in code of the harness."""
    frames = traceback.walk_tb(getattr(found.error, "__traceback__", None))
    packages = [frame.f_globals["__name__"].partition(".")[0] for frame, _ in frames]
    known = [package for package in packages if package in {"reference", "conformance"}]
    return known[-1:] == ["reference"] and not isinstance(found.error, MemoryError)


def _drawn(contract: Contract, number: int) -> list[Story]:
    found: list[Story] = []

    @settings(
        max_examples=2 * number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(changed_calls(contract, Target("host"))))
    def draw(example: tuple[list[Story]]) -> None:
        found.extend(example[0])

    draw()
    return found
