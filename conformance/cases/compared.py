"""Cases without a result: calls and examples that failed, which are compared with `reference`."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from conformance.cases.recorded import holds
from conformance.cases.recording import invalid_input_of, refusal_of
from conformance.checks.contract_checks import (
    InvalidExample,
    ValidExample,
    checks_in,
    same_answer,
    same_refusal,
)
from conformance.checks.registry import conformance_modules, contracts, find_contract
from conformance.contracts.check import Check
from conformance.contracts.contract import ANY_NAME, Contract, InvalidInput
from conformance.encoding import Decoder, Encoder, Json, decode_call, encode_call
from conformance.execution.invocations import CallVariant, Invocation
from conformance.generation.profiles import Profile
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.targets.target import RAISED, REFERENCE, Target
from conformance.values.call import Call

TRIES = Profile("corpus", 8, 4)
"""The profile of a replayed call, which is repeated in different call variants."""


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
                    return {**case, "refusal": refusal_of(invalid)}
    if isinstance(example, InvalidExample):
        ways = [
            (dataclasses.replace(bad, change=already_invalid), call) for bad, call in example.ways
        ]
        example = dataclasses.replace(example, ways=ways)
    return case_of_example(where, example, reason, function=check.function)


def already_invalid(*_: object) -> None:
    """Change nothing: a stored call is already invalid."""


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
    encoder = Encoder()
    case = {"kind": "example", "contract": function, **_dated(reason), "check": check}
    case["example"] = encoder.encode(example)
    return encoder.finish(case)


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


def decode_example(case: Json) -> tuple[Check, Any]:
    """Return the check of an example's case, and the example."""
    return check_of(case["check"]), Decoder(case.get("memories", ())).decode(case["example"])


def replay_example(case: Json, target: Target) -> None:
    """Raise if an example still fails its check."""
    __tracebackhide__ = True
    check, example = decode_example(case)
    try:
        check.examine(target, example)
    except RAISED as error:
        if not target.excuses(case["contract"], error):
            raise


def replay_call(case: Json, target: Target) -> None:
    """Raise if a target differs from `reference` in a call, in its stored variant and in others.

    An invalid call must be refused as stored, or, if no refusal is stored, as `reference` refuses
    it today.
    """
    __tracebackhide__ = True
    call, contract = decode_call(case), contract_of(case["contract"])
    invalid = invalid_input_of(case["refusal"]) if "refusal" in case else None
    check = check_of_call(contract, call, case.get("names", ()), invalid)
    if "seed" in case:
        variant = CallVariant(**dict.fromkeys(case["variant"], True))
        try:
            check.examine(target, ValidExample(call, case["seed"], variant))
        except RAISED as error:
            if not target.excuses(contract.function, error):
                raise
    check.bind(target, TRIES, "minimal")()


def check_of_call(
    contract: Contract, call: Call, names: Sequence[str] = (), invalid: InvalidInput | None = None
) -> Check:
    """Return the check that a target answers, or refuses, one call as `reference` does.

    Args:
        contract: The contract of the function.
        call: The call, valid or bad.
        names: For an invalid call, names of which the message must have one; empty for any.
        invalid: The invalid input; None to infer it from `reference`'s exception, if any.
    """
    if invalid is None:
        made = Invocation(REFERENCE, call)
        try:
            result = made.run()
        except Exception as error:  # noqa: BLE001  # a refusal, whatever it is
            named = "|".join(map(re.escape, names)) or ANY_NAME
            invalid = InvalidInput(
                "an implementation failed it before",
                type(error),
                f"({named})",
                already_invalid,
                is_value=True,
            )
        else:
            # `applies` may depend on the source of a call, which is not stored.
            aliases = [
                dataclasses.replace(alias, applies=lambda _: True)
                for alias in contract.aliases
                if holds(alias, result, made.arguments)
            ]
            return same_answer(dataclasses.replace(_of_one(contract, call), aliases=aliases))
    # A target that lacks the keyword of a bad hint is not given it.
    rest = {
        name: hint for name, hint in call.hints.items() if not re.search(invalid.argument, name)
    }
    valid = dataclasses.replace(call, hints=rest) if invalid.is_hint else call
    bad = dataclasses.replace(invalid, change=lambda _: call)
    contract = dataclasses.replace(contract, invalid_inputs=(bad,))
    return same_refusal(_of_one(contract, valid))


def _of_one(contract: Contract, call: Call) -> Contract:
    """Return a contract of one call, without goals: they read its source, which is not stored."""
    return dataclasses.replace(contract, calls=lambda _: st.just(call), goals={}, axes={}, pairs=())
