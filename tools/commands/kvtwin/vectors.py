"""Write test vectors: calls and their results in `reference`, as plain JSON for any language.

    kvtwin vectors --out DIR

writes one folder for each function, with a manifest and its cases: valid calls with their results,
invalid calls with the exception they raise, sessions of objects that keep state. `docs/vectors.md`
describes the format, `schema.json` in DIR defines it.
"""

from __future__ import annotations

if __name__ == "__main__":
    from kvtwin.commands import run_command

    run_command("vectors")

import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import reference
from conformance.checks.registry import contracts
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import OBSERVED
from conformance.encoding import SCHEMA_VERSION, Encoder, Json, to_text
from conformance.encoding.classes import find_class
from conformance.name_lists import near
from conformance.targets.target import REFERENCE
from conformance.values.parts import walk
from conformance.vectors import SCHEMA
from conformance.vectors.drawing import contract_cases, session_cases
from conformance.vectors.folder import SESSIONS, WITHOUT_VECTORS, functions
from kvtwin import __version__
from kvtwin.parser import Parser, names, positive, redirect_stdout_for_json, write_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    known = functions()
    names = known if options.functions is None else options.functions
    for name in names:
        if name not in known:
            parser.error(f"no vectors of {name!r}; similar names: {near(name, known)}")
    out: Path = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        parser.error(f"--out {out} is there already, and not an empty folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {out}: {error.strerror}")
    rows = {}
    for name in tqdm(names, desc="vectors", unit="function", file=sys.stderr, disable=None):
        rows[name] = write_function(name, out / name, options.examples)
    _write(out / "index.json", index_of(rows))
    (out / "schema.json").write_text(SCHEMA.read_text(encoding="utf-8"), encoding="utf-8")
    if options.json is not None:
        write_json(index_of(rows), options.json)
    with redirect_stdout_for_json(options.json):
        _print_table(out, rows)
    return 0


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="kvtwin vectors",
        description="Write calls and their results in reference as test vectors, in plain JSON.",
        examples=(
            "--out vectors",
            "--out vectors --functions compute_slot_mapping,BlockTables --examples 50",
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
        help="functions to write; default: all that have vectors",
    )
    parser.add_json("the index of the folder")
    return parser


def write_function(name: str, folder: Path, num_examples: int) -> dict[str, int]:
    """Write the cases of one function, and their manifest.

    Args:
        name: The function, class or method.
        folder: The folder to create.
        num_examples: How many valid calls, or sessions of a kind, to write at most.

    Returns:
        How many cases of each kind there are.
    """
    folder.mkdir()
    cases: list[dict[str, Json]] = []
    contract = contracts().get(name)
    left: list[str] = []
    if contract is not None:
        found, left = contract_cases(contract, num_examples)
        cases += found
    if name in SESSIONS:
        cases += session_cases(name, num_examples)
    counts = dict.fromkeys(("answer", "refusal", "session"), 0)
    entries = []
    for case in cases:
        file = f"{case['kind']}-{counts[case['kind']]:03}.json"
        counts[case["kind"]] += 1
        _write(folder / file, {"schema_version": SCHEMA_VERSION, **case})
        entries.append({"file": file, "kind": case["kind"], "about": _about(case)})
    _write(folder / "manifest.json", manifest_of(name, contract, cases, entries, left))
    return counts


def _about(case: dict[str, Json]) -> str:
    """Describe a case in one line: its invalid input, or the coverage goals that it meets."""
    if case["kind"] == "refusal":
        return str(case["refusal"]["what"])
    return "; ".join(case["meets"])


def manifest_of(
    name: str,
    contract: Contract | None,
    cases: Sequence[dict[str, Json]],
    entries: Sequence[dict[str, str]],
    left: Sequence[str],
) -> dict[str, Json]:
    """Return the manifest of a function's folder."""
    found: dict[str, Json] = {"schema_version": SCHEMA_VERSION, "function": name}
    called = sorted({called for case in cases for called in _called(case)})
    found["calls"] = {one: {"parameters": parameters_of(one)} for one in called}
    if contract is not None and contract.observe is not None:
        found["changes"] = sorted(contract.changes)
        found["observed"] = f"what is under {OBSERVED!r} is reported in Python's words"
    elif contract is not None and contract.changes:
        found["changes"] = sorted(contract.changes)
    if contract is not None and contract.shows is not None:
        found["result"] = "an object, described by some of its attributes"
    factories = sorted({path for case in cases for path in _blueprints(case)})
    if factories:
        found["blueprints"] = {path: _first_line(find_class(path)) for path in factories}
    if left:
        found["invalid_inputs_without_a_case"] = list(left)
    found["cases"] = list(entries)
    return found


def _called(case: dict[str, Json]) -> Iterator[str]:
    """Yield the functions that a case calls."""
    if case["kind"] != "session":
        yield case["function"]
        return
    constructor = case.get("constructor", {}).get("function")
    if constructor is not None:
        yield constructor
    for step in case["steps"]:
        if step["do"] == "call":
            yield f"{constructor}.{step['method']}" if constructor else step["method"]


def parameters_of(function: str) -> list[dict[str, Json]]:
    """Return a function's parameters, in order.

    >>> parameters_of("map_to_kernel_blocks")
    [{'name': 'block_ids'}, {'name': 'blocks_per_kv_block'}]
    """
    found = []
    for parameter in inspect.signature(REFERENCE.lookup(function)).parameters.values():
        entry: dict[str, Json] = {"name": parameter.name}
        if parameter.kind is parameter.KEYWORD_ONLY:
            entry["by_keyword_only"] = True
        if parameter.kind is parameter.VAR_POSITIONAL:
            entry["takes_several"] = True
        if parameter.kind is parameter.VAR_KEYWORD:
            entry["takes_any_keyword"] = True
        if parameter.default is not parameter.empty:
            entry["default"] = _default(parameter.default)
        found.append(entry)
    return found


def _default(value: Json) -> Json:
    """Return a default as JSON, or its `repr` if it cannot be encoded."""
    try:
        return Encoder().encode(value)
    except TypeError:
        return {"$": "text", "text": repr(value)}


def _blueprints(value: Json) -> Iterator[str]:
    """Yield the class paths of the factories in a case."""
    for _, node in walk(value, ""):
        if isinstance(node, dict) and node.get("$") == "blueprint":
            yield node["class"]


def _first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").split("\n", 1)[0]


def index_of(rows: dict[str, dict[str, int]]) -> dict[str, Json]:
    """Return the contents of `index.json` in a folder of vectors.

    Args:
        rows: The number of cases of each kind, by function.
    """
    without = {name: why for name, why in WITHOUT_VECTORS.items() if name in reference.__all__}
    return {
        "schema_version": SCHEMA_VERSION,
        "made_by": f"kvtwin {__version__}",
        "functions": {name: sum(counts.values()) for name, counts in rows.items()},
        "without_vectors": without,
    }


def _write(path: Path, value: Json) -> None:
    """Write JSON, after checking that it can be read back."""
    text = to_text(value)
    if json.loads(text) != value:
        raise ValueError(f"{path} does not read as it was written")
    path.write_text(text, encoding="utf-8")


def _print_table(out: Path, rows: dict[str, dict[str, int]]) -> None:
    """Print the number of cases of each function."""
    table = Table(title=f"vectors in {out}")
    table.add_column("function")
    kinds = ("answer", "refusal", "session")
    for kind in kinds:
        table.add_column({"answer": "answers"}.get(kind, f"{kind}s"), justify="right")
    for name, counts in rows.items():
        table.add_row(name, *(f"{counts[kind]:,}" if counts[kind] else "" for kind in kinds))
    table.add_section()
    table.add_row("all", *(f"{sum(c[kind] for c in rows.values()):,}" for kind in kinds))
    Console().print(table)
