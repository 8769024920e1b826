"""Stored cases: a call or an example as a JSON file, in `failures/`, in the corpus or as vectors.

| kind | contents of the file |
|---|---|
| `call` | a call; `kvtwin vectors` adds the answer of `reference` |
| `example` | an example for which a law or a session failed |

`docs/vectors.md` describes the format.
"""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import importlib
import json
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance import FOLDER
from conformance.cases.values import MAX_BYTES, Decoder, Encoder, Json, plain_lists
from conformance.checks.contract_checks import InvalidExample, ValidExample, checks_in
from conformance.checks.registry import conformance_modules, contracts, find_contract
from conformance.contracts.check import Check
from conformance.contracts.contract import Contract, InvalidInput
from conformance.messages.mismatch import Mismatch
from conformance.values.call import Call

SCHEMA_VERSION = "2.0"
"""The version of the format: the first number changes if old readers would misread it."""

MAX_LINE = 100
"""The longest object on one line."""

CORPUS = FOLDER / "corpus"
"""The corpus of this project: inputs that failed once, which every run replays first."""


def to_text(value: Json) -> str:
    """Return a value as JSON text, with lists of numbers and small objects on one line each.

    >>> print(to_text({"shape": [2, 2]}), end="")
    {
     "shape": [2, 2]
    }
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)
    return re.sub(r"[{[]\n[^][{}]*[]}]", _in_one_line, text) + "\n"


def _in_one_line(found: re.Match[str]) -> str:
    line = re.sub(r"\n\s*", " ", found[0])  # a string has no line ends of its own
    is_short = len(line) < MAX_LINE or line[0] == "["
    return f"{line[0]}{line[1:-1].strip()}{line[-1]}" if is_short else found[0]


def read_json(path: Path) -> Json:
    """Return the content of a file of this version of the format.

    Raises:
        ValueError: The file is missing, too large, nested too deeply, not JSON, or of another
            version.
    """
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES:,} bytes")
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        said = getattr(error, "strerror", None) or error  # without the number and the name again
        raise ValueError(f"{path} cannot be read: {said}") from error
    version = read.get("schema_version") if isinstance(read, dict) else None
    if str(version).partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise ValueError(f"{path} has schema {version}, but this version reads {SCHEMA_VERSION}")
    return read


def write_case(case: Json, path: Path) -> None:
    """Write a stored case to a file, which is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_text({"schema_version": SCHEMA_VERSION, **case}), encoding="utf-8")


def folder_for(ours: Path) -> Path:
    """Return a folder next to the harness, or `conformance-NAME` in the working directory.

    The latter is used if the former cannot be written, or the package is installed.

    >>> folder_for(Path("/lib/python3.11/site-packages/conformance/corpus")).name
    'conformance-corpus'
    """
    is_writable = os.access(ours if ours.exists() else ours.parent, os.W_OK)
    is_ours = is_writable and "site-packages" not in ours.parts
    return ours if is_ours else Path(f"conformance-{ours.name}")


def encode_call(call: Call) -> dict[str, Json]:
    """Return a call as JSON: its function, its arguments and its hints.

    Raises:
        TypeError: An argument cannot be written as JSON.
    """
    encoder = Encoder()
    case = {"function": call.function, "arguments": encoder.fields(call.arguments)}
    if call.hints:
        case["hints"] = encoder.fields(call.hints)
    return dict(plain_lists(case))


def decode_call(case: Json) -> Call:
    """Return the call of a case, without `source`, which is not stored.

    >>> decode_call({"function": "f", "arguments": {"block_size": 2}})
    f(block_size=2)
    """
    decoder = Decoder()
    arguments = decoder.fields(case["arguments"])
    return Call(case["function"], arguments, hints=decoder.fields(case.get("hints", {})))


def encode_refusal(invalid: InvalidInput) -> dict[str, Json]:
    """Return the expected exception as JSON.

    >>> encode_refusal(InvalidInput("it is 0", ValueError, "size", lambda call: call))
    {'name': 'it is 0', 'error': 'ValueError', 'argument': 'size'}
    """
    found = {**vars(invalid), "error": invalid.error.__name__}
    return {name: value for name, value in found.items() if name != "change" and value}


def decode_refusal(refusal: Json) -> InvalidInput:
    """Return the invalid input of a refusal, which changes nothing: a stored call is invalid.

    Raises:
        ValueError: The class of the exception is unknown.
    """
    error = getattr(builtins, refusal["error"], None)
    if not (isinstance(error, type) and issubclass(error, Exception)):
        raise ValueError(f"refusal: error is {refusal['error']!r}, which is no exception")  # noqa: TRY004
    return InvalidInput(**{**refusal, "error": error, "change": already_invalid})


def already_invalid(*_: object) -> None:
    """Change nothing: a stored call is already invalid."""


def case_of_failure(check: Check, where: str, example: Any, error: BaseException) -> Json:
    """Return a failing example of a check as a stored case.

    Args:
        check: The check.
        where: Its location, `conformance.test_ubatch:test_split`.
        example: The example.
        error: The exception that it raised.

    Raises:
        TypeError: The example cannot be encoded as JSON.
        ValueError: There is no check at this location.
    """
    # A plain `assert` has no message: then the check's description is the reason.
    reason = (str(error) or check.description).partition("\n")[0]
    if isinstance(error, Mismatch):
        reason = f"{reason}: {error.difference.line}"
    if find_contract(check.function) is not None:
        if isinstance(example, ValidExample):
            case = case_of_call(example.call, reason, contract=check.function)
            chosen = [name for name, is_so in vars(example.variant).items() if is_so]
            return {**case, "variant": chosen, "seed": example.seed}
        if isinstance(example, InvalidExample) and isinstance(error, Mismatch):
            for invalid, call in example.ways:
                if call is error.call:
                    case = case_of_call(call, reason, contract=check.function)
                    return {**case, "refusal": encode_refusal(invalid)}
    if isinstance(example, InvalidExample):
        ways = [
            (dataclasses.replace(bad, change=already_invalid), call) for bad, call in example.ways
        ]
        example = dataclasses.replace(example, ways=ways)
    return case_of_example(where, example, reason, function=check.function)


def case_of_call(
    call: Call, reason: str, *, contract: str | None = None, names: Sequence[str] = ()
) -> dict[str, Json]:
    """Return a call for which an implementation failed as a stored case.

    Args:
        call: The call, valid or bad.
        reason: The first failure, which is shown when the case fails again.
        contract: The function whose contract draws it; None for the call's own.
        names: For an invalid call, names of which the message must have one; empty for any.

    Raises:
        KeyError: The function has no contract.
        TypeError: An argument cannot be encoded as JSON.
    """
    function = contract or call.function
    contract_of(function)
    case = {"kind": "call", "contract": function, **_dated(reason), **encode_call(call)}
    if names:
        case["names"] = list(names)
    return case


def case_of_example(check: str, example: object, reason: str, *, function: str) -> dict[str, Json]:
    """Return a failing example of a law or a session as a stored case.

    Args:
        check: The location of the check, `conformance.test_block_table:test_block_tables`; for a
            law of a function, `conformance.test_ubatch:test_split_laws[split_partitions]`.
        example: The example.
        reason: The first failure.
        function: The function that it is about.

    Raises:
        ValueError: There is no check at this location.
        TypeError: The example cannot be encoded as JSON.
    """
    check_of(check)
    case = {"kind": "example", "contract": function, **_dated(reason), "check": check}
    return {**case, "example": plain_lists(Encoder().encode(example))}


def _dated(reason: str) -> dict[str, Json]:
    return {"reason": reason, "date": datetime.now(UTC).date().isoformat()}


def contract_of(function: str) -> Contract:
    """Return the contract of a function.

    Raises:
        KeyError: It has none.
    """
    found = find_contract(function)
    if found is None:
        raise KeyError(f"{function} has no contract; those with one are {', '.join(contracts())}")
    return found


def check_of(where: str) -> Check:
    """Return the check at a location.

    Raises:
        ValueError: There is none.
    """
    module, _, rest = where.partition(":")
    name, _, law = rest.rstrip("]").partition("[")
    values = {}
    # A case must not import anything else.
    if module in {f"conformance.{path.stem}" for path in conformance_modules()}:
        values = vars(importlib.import_module(module))
    for found, check in checks_in(values):
        if (found, check.law) == (name, law):
            return check
    raise ValueError(f"check {where!r} does not exist")


def add_to_corpus(case: dict[str, Json], directory: Path | None = None) -> Path:
    """Store an input for which an implementation failed.

    Args:
        case: A case from `case_of_call`, `case_of_example` or `case_of_failure`.
        directory: The corpus. None for `conformance/corpus` in a checkout, and for
            `conformance-corpus` in the working directory if the package is installed.

    Returns:
        The file, named after the input; an existing file is not changed.
    """
    directory = folder_for(CORPUS) if directory is None else directory
    notes = {"reason", "date", "variant", "seed", "refusal"}  # it is the same input without them
    content = json.dumps({name: value for name, value in case.items() if name not in notes})
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    path = directory / f"{case['contract']}-{digest}.json"
    if not path.exists():
        write_case(case, path)
    return path
