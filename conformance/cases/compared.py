"""Cases without a result: calls and examples that failed, which are compared with `reference`."""

from __future__ import annotations

import contextlib
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
from conformance.checks.functions import contracts, find_contract
from conformance.contracts.contract import ANY_NAME, Contract, InvalidInput
from conformance.contracts.properties import Check
from conformance.encoding import Decoder, Encoder, Json, decode_call, encode_call
from conformance.execution.invocations import CallVariant, Invocation
from conformance.generation.profiles import Profile
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.targets.target import RAISED, REFERENCE, Target
from conformance.values.call import Call

TRIES = Profile("corpus", 8, 4)
"""How often a call is made: by position, with NumPy's scalars, after an idle step, ..."""


def case_of_failure(check: Check, where: str, example: Any, error: BaseException) -> Json:
    """Return what failed a check as a stored case.

    Args:
        check: The check.
        where: Where it stands, `conformance.test_ubatch:test_split`.
        example: What its strategy drew.
        error: What it raised.

    Raises:
        TypeError: An example of a kind that has no form in JSON.
        ValueError: A check that is not there.
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
    """Change nothing: what a case stores is invalid already."""


def case_of_call(
    call: Call, reason: str, *, contract: str | None = None, names: Sequence[str] = ()
) -> dict[str, Json]:
    """Return a call that an implementation failed as a stored case.

    Args:
        call: The call, valid or bad.
        reason: What was wrong; shown when the case fails again.
        contract: The function of the contract that it is drawn by; None for the call's own.
        names: For an invalid call, names of which the message must have one; empty for any.

    Raises:
        KeyError: A function without a contract.
        TypeError: An argument of a kind that has no form in JSON.
    """
    function = contract or call.function
    contract_of(function)
    case = {"kind": "call", "contract": function, **_dated(reason), **encode_call(call)}
    if names:
        case["names"] = list(names)
    return case


def case_of_example(check: str, example: object, reason: str, *, function: str) -> dict[str, Json]:
    """Return an example that an implementation failed, of a law or a session, as a stored case.

    Args:
        check: Where the check stands, `conformance.test_block_table:test_block_tables`; a law of a
            function, `conformance.test_ubatch:test_split_laws[split_partitions]`.
        example: What its strategy drew.
        reason: What was wrong.
        function: The function that it is about.

    Raises:
        ValueError: A check that is not there.
        TypeError: An example of a kind that has no form in JSON.
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
    values = {}
    if module.startswith("conformance."):  # a case imports nothing else
        with contextlib.suppress(ImportError):
            values = vars(importlib.import_module(module))
    for found, check in checks_in(values):
        if (found, check.law) == (name, law):
            return check
    raise ValueError(f"check {where!r} is not there")


def decode_example(case: Json) -> tuple[Check, Any]:
    """Return the check of an example's case, and the example."""
    return check_of(case["check"]), Decoder(case.get("memories", ())).decode(case["example"])


def replay_example(case: Json, target: Target) -> None:
    """Raise where an example still fails its check."""
    __tracebackhide__ = True
    check, example = decode_example(case)
    try:
        check.examine(target, example)
    except RAISED as error:
        if not target.excuses(case["contract"], error):
            raise


def replay_call(case: Json, target: Target) -> None:
    """Raise where a target differs from `reference` in a call, made as it was and in other ways.

    An invalid call must be refused as it was meant to be, or, where that is not stored, as
    `reference` refuses it today.
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
    """Return the check of one call: that it is answered, or refused, as `reference` does it.

    Args:
        contract: What is stated about the function.
        call: The call, valid or bad.
        names: For an invalid call, names of which the message must have one; empty for any.
        invalid: What is wrong with a bad call; None for whatever `reference` refuses.
    """
    if invalid is None:
        made = Invocation(REFERENCE, call)
        try:
            result = made.run()
        except Exception as error:  # noqa: BLE001  # a refusal, whatever it is
            named = "|".join(map(re.escape, names)) or ANY_NAME
            invalid = InvalidInput(
                "it was got wrong once", type(error), f"({named})", already_invalid, is_value=True
            )
        else:
            # The definition may depend on the facts of a call, which are not stored.
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
    """Return a contract of one call; its coverage goals look at facts, too."""
    return dataclasses.replace(contract, calls=lambda _: st.just(call), goals={}, axes={}, pairs=())
