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
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from conformance.cases.store import (
    SCHEMA_VERSION,
    case_of_call,
    decode_call,
    encode_refusal,
    to_text,
    write_case,
)
from conformance.cases.values import Encoder, Json, plain_lists
from conformance.checks.registry import contracts
from conformance.contracts.contract import Contract, InvalidInput
from conformance.contracts.evaluation import changed_by, check_refusal, shown
from conformance.coverage.presets import MINIMAL
from conformance.execution.invocations import Invocation
from conformance.generation.drawing import drawn
from conformance.name_lists import near
from conformance.targets.target import REFERENCE
from conformance.values.call import Call
from kvtwin.parser import Parser, names, positive

DRAWS_FOR_INVALID_INPUTS = 300
"""Calls that are drawn until each invalid input applied to one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    known = sorted(contracts())
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
    chosen = options.functions or known
    for name in tqdm(chosen, desc="vectors", unit="function", file=sys.stderr, disable=None):
        counts[name] = write_function(contracts()[name], out / name, options.examples)
    index = {"schema_version": SCHEMA_VERSION, "functions": counts}
    (out / "index.json").write_text(to_text(index), encoding="utf-8")
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
        help="valid calls of each function; default: %(default)s; plus one for each invalid input",
    )
    parser.add_argument(
        "--functions",
        type=names,
        metavar="A,B",
        help="functions to write; default: all with a contract",
    )
    return parser


def write_function(contract: Contract, folder: Path, num_examples: int) -> dict[str, int]:
    """Write the cases of one function; return how many calls and refusals there are."""
    drawn_calls = drawn(contract.calls(MINIMAL), DRAWS_FOR_INVALID_INPUTS, contract.function)
    calls = list({repr((call, call.hints)): call for call in drawn_calls}.values())
    num_calls = 0
    for call in calls[:: -(-len(calls) // num_examples)]:
        with contextlib.suppress(TypeError):  # the result has state, such as `BlockTables`
            write_case(_answer(contract, call), folder / f"call-{num_calls:03}.json")
            num_calls += 1
    refused = list(_invalid_calls(contract, drawn_calls))
    for place, (invalid, call) in enumerate(refused):
        write_case(_refusal(contract, invalid, call), folder / f"refusal-{place:03}.json")
    return {"calls": num_calls, "refusals": len(refused)}


def _invalid_calls(
    contract: Contract, calls: Sequence[Call]
) -> Iterator[tuple[InvalidInput, Call]]:
    """Yield each invalid input that applies to a call, with the first such call."""
    for invalid in contract.invalid_inputs:
        bad = next(filter(None, map(invalid.change, calls)), None)
        if bad is not None:
            yield invalid, bad


def _answer(contract: Contract, call: Call) -> dict[str, Json]:
    """Return a valid call with its result, and the arguments that it changes."""
    case = case_of_call(call, "a valid call", contract=contract.function)
    del case["date"]
    made = Invocation(REFERENCE, decode_call(case))
    case["result"] = plain_lists(Encoder().encode(shown(contract, made.run())))
    after = changed_by(contract, made.arguments)
    return {**case, "after": plain_lists(Encoder().fields(after))} if after else case


def _refusal(contract: Contract, invalid: InvalidInput, call: Call) -> dict[str, Json]:
    """Return an invalid call with the exception that it raises."""
    case = case_of_call(call, invalid.name, contract=contract.function)
    del case["date"]
    case["refusal"] = encode_refusal(invalid)
    if not invalid.is_hint:  # `reference` has no hints
        made = Invocation(REFERENCE, decode_call(case))
        error = check_refusal(made, invalid, contract.observe_refused)
        case["raises"] = {"class": type(error).__name__, "message": str(error)}
    return case
