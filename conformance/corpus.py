"""The corpus: inputs that an implementation once got wrong, kept, to be tried first in every run.

Each is a file in `corpus/`, in the form of the test vectors. What is right is not kept with it: it
is what `reference` does, each time it is tried.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance.calls import Call
from conformance.checks import Check, checks_in, same_answer, same_refusal
from conformance.contracts import Contract, InvalidInput
from conformance.encoding import (
    SCHEMA_VERSION,
    Decoder,
    Encoder,
    decode_call,
    encode_call,
    pruned,
    to_text,
)
from conformance.encoding.elements import Json
from conformance.folders import folder_for
from conformance.invocations import Invocation
from conformance.profiles import Kind, Profile
from conformance.report import Mismatch
from conformance.strategies import cached as st
from conformance.targets import RAISED, REFERENCE, Target
from conformance.vectors.kept import CaseCheck, read_json
from conformance.vectors.replay import holds
from conformance.vectors.subjects import contracts, find_contract, refusing

CORPUS = Path(__file__).with_name("corpus")
"""The corpus of this project."""

TRIES = Profile("corpus", 8, 4)
"""How often a call is made: by position, with NumPy's scalars, after an idle step, ..."""


def add_to_corpus(
    call: Call,
    reason: str,
    *,
    contract: str | None = None,
    names: Sequence[str] = (),
    directory: Path | None = None,
) -> Path:
    """Keep a call that an implementation got wrong.

    Args:
        call: The call, valid or bad.
        reason: What was wrong, for whoever meets it again.
        contract: The function of the contract that it is drawn by; None for the call's own.
        names: For a bad call, of which the message of its refusal must name one; nothing: any.
        directory: The corpus; None for this project's, or, where the package is installed, for a
            `conformance-corpus` in the working directory.

    Returns:
        The file. One call has one file: what is kept already stays as it is.

    Raises:
        KeyError: A function without a contract.
        TypeError: An argument of a kind that has no form in JSON.
    """
    return write_case(_case_of_call(call, reason, contract=contract, names=names), directory)


def add_example(
    check: str, example: object, reason: str, *, function: str, directory: Path | None = None
) -> Path:
    """Keep an example of a check, such as a law or a session, that an implementation failed.

    Args:
        check: Where the check stands, `conformance.test_block_table:test_block_tables`; a law of a
            function, `conformance.test_ubatch:test_split_laws[split_partitions]`.
        example: What its strategy drew.
        reason: What was wrong.
        function: The function that it is about.
        directory: The corpus; None for this project's, or, where the package is installed, for a
            `conformance-corpus` in the working directory.

    Returns:
        The file.

    Raises:
        ValueError: A check that is not there.
        TypeError: An example of a kind that has no form in JSON.
    """
    return write_case(_case_of_example(check, example, reason, function=function), directory)


def add_failure(
    check: Check,
    where: str,
    example: Any,
    error: BaseException,
    *,
    directory: Path | None = None,
) -> Path:
    """Keep what failed a check, in the form in which it can be tried again.

    This is for `--corpus-add`.

    Args:
        check: The check.
        where: Where it stands, `conformance.test_ubatch:test_split`.
        example: What its strategy drew.
        error: What it raised.
        directory: The corpus; None for this project's, or, where the package is installed, for a
            `conformance-corpus` in the working directory.

    Returns:
        The file.
    """
    return write_case(case_of_failure(check, where, example, error), directory)


def case_of_failure(check: Check, where: str, example: Any, error: BaseException) -> Json:
    """Return what failed a check as a stored case.

    A `Mismatch` of answers or refusals knows its call; anything else is stored as an example.

    Args:
        check: The check.
        where: Where it stands, `conformance.test_ubatch:test_split`.
        example: What its strategy drew.
        error: What it raised.

    Raises:
        TypeError: An example of a kind that has no form in JSON.
        ValueError: A check that is not there.
    """
    # A plain `assert` says nothing: then it is the check that does.
    reason = (str(error) or check.description).partition("\n")[0]
    if isinstance(error, Mismatch):
        reason = f"{reason}: {error.difference.line}"
        if check.kind is not Kind.LAW and find_contract(check.function) is not None:
            return _case_of_call(error.call, reason, contract=check.function)
    return _case_of_example(where, example, reason, function=check.function)


def _case_of_call(
    call: Call, reason: str, *, contract: str | None = None, names: Sequence[str] = ()
) -> dict[str, Json]:
    function = contract or call.function
    contract_of(function)
    case = {"kind": "call", "contract": function, **_told(reason), **encode_call(call)}
    if names:
        case["names"] = list(names)
    return case


def _case_of_example(check: str, example: object, reason: str, *, function: str) -> dict[str, Json]:
    check_of(check)
    encoder = Encoder()
    case = {"kind": "example", "contract": function, **_told(reason), "check": check}
    case["example"] = encoder.encode(example)
    return pruned(case, encoder.memories)


def _told(reason: str) -> dict[str, Json]:
    return {"reason": reason, "date": datetime.now(UTC).date().isoformat()}


def write_case(case: dict[str, Json], directory: Path | None = None) -> Path:
    """Write a stored case to a file, unless it is there already.

    Args:
        case: As `case_of_failure` gives it.
        directory: The corpus, as `add_failure` has it.

    Returns:
        The file. One case has one file, whatever its reason and date.
    """
    directory = folder_for(CORPUS) if directory is None else directory
    said = {"reason", "date"}
    content = json.dumps({name: value for name, value in case.items() if name not in said})
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    path = directory / f"{case['contract']}-{digest}.json"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(to_text({"schema_version": SCHEMA_VERSION, **case}), encoding="utf-8")
    return path


def contract_of(function: str) -> Contract:
    """Return the contract of a function.

    Raises:
        KeyError: A function without one.
    """
    found = find_contract(function)
    if found is None:
        raise KeyError(f"{function} has no contract; there are some of {', '.join(contracts())}")
    return found


def check_of(where: str) -> Check:
    """Return the check that stands somewhere.

    Raises:
        ValueError: A place where no check stands.
    """
    module, _, rest = where.partition(":")
    name, _, law = rest.rstrip("]").partition("[")
    try:
        values = vars(importlib.import_module(module))
    except ImportError:
        values = {}
    for found, check in checks_in(values):
        if (found, check.law) == (name, law):
            return check
    raise ValueError(f"check {where!r} is not there")


def read_corpus(directory: Path | None = None) -> list[tuple[Path, Json]]:
    """Return the cases of a corpus with their files, in the order of their names.

    Args:
        directory: The corpus; None for this project's, and after it what `--corpus-add` keeps
            elsewhere, where the package is installed.

    Raises:
        ValueError: A file that is none of this schema.
    """
    folders = [CORPUS, folder_for(CORPUS)] if directory is None else [directory]
    paths = [path for folder in dict.fromkeys(folders) for path in sorted(folder.glob("*.json"))]
    return [(path, read_json(path)) for path in paths]


def corpus_checks(directory: Path | None = None) -> list[CaseCheck]:
    """Return the checks of a corpus, one for each case, to be run before all others.

    Args:
        directory: The corpus, as `read_corpus` has it.

    Raises:
        ValueError: A file that is none of this schema.
    """
    return [
        CaseCheck(
            case["contract"],
            f"corpus/{path.stem}",
            Kind.LAW if case["kind"] == "example" else Kind.SAME_ANSWER,
            case["reason"],
            _body(case),
        )
        for path, case in read_corpus(directory)
    ]


def _body(case: Json) -> Any:
    def body(target: Target) -> None:
        __tracebackhide__ = True
        try_again(case, target)

    return body


def try_again(case: Json, target: Target) -> None:
    """Raise where a target gets a kept case wrong.

    Args:
        case: It, as JSON.
        target: What is under test.
    """
    __tracebackhide__ = True
    if case["kind"] == "example":
        example = Decoder(case.get("memories", ())).decode(case["example"])
        try:
            check_of(case["check"]).body(target, example)
        except RAISED as error:
            if not target.excuses(case["contract"], error):
                raise
        return
    call, contract = decode_call(case), contract_of(case["contract"])
    check = check_of_call(contract, call, case.get("names", ()))
    check.bind(target, TRIES, "minimal")()


def check_of_call(contract: Contract, call: Call, names: Sequence[str]) -> Check:
    """Return the check of one call: that it is answered, or refused, as `reference` does it.

    Args:
        contract: What is stated about the function.
        call: The call, valid or bad.
        names: For a bad call, of which the message of its refusal must name one; nothing: any.
    """
    invocation = Invocation(REFERENCE, call)
    try:
        result = invocation.run()
    except Exception as error:  # noqa: BLE001  # a refusal, whatever it is
        named = "|".join(map(re.escape, names)) or ".*"
        invalid = InvalidInput(
            "it was got wrong once", type(error), f"({named})", _as_it_is, is_value=True
        )
        bad = dataclasses.replace(refusing(contract), invalid_inputs=(invalid,))
        return same_refusal(_of_one(bad, call))
    # Of which calls a definition speaks may stand in their facts, which are not kept.
    aliases = [
        dataclasses.replace(alias, applies=lambda _: True)
        for alias in contract.aliases
        if holds(alias, result, invocation.arguments)
    ]
    return same_answer(dataclasses.replace(_of_one(contract, call), aliases=aliases))


def _as_it_is(call: Call) -> Call:
    return call


def _of_one(contract: Contract, call: Call) -> Contract:
    """Return a contract of one call; its situations look at facts, too."""
    return dataclasses.replace(contract, calls=lambda _: st.just(call), situations={}, pairs=())
