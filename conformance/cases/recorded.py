"""Cases with their results: test vectors, which are replayed without calling `reference`.

The expected values are objects of `reference`'s classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.cases.recording import invalid_input_of
from conformance.cases.sessions import (
    LAYOUT_VARIABLE,
    construct,
    has_expected_outcome,
    perform,
    reset_kv_cache_layout,
)
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import (
    Expected,
    check_answer,
    check_refusal,
    check_stays_inside,
)
from conformance.encoding import Decoder, Json, decode_call
from conformance.execution.invocations import Invocation
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.targets.target import REFERENCE, Target
from conformance.values.aliases import Alias
from conformance.values.call import Arguments, Call
from conformance.values.comparison import first_difference
from conformance.values.differences import Difference, Verdict, raised
from conformance.values.parts import arrays_in


def read_recorded(case: Json) -> None:
    """Decode all of a case.

    Raises:
        ValueError: The kind of case is unknown.
    """
    if case["kind"] == "session":
        _Session(case)
    elif case["kind"] == "refusal":
        invalid_input_of(case["refusal"])
        decode_call(case)
    elif case["kind"] == "answer":
        _expected(case, _NO_CONTRACT)
    else:
        raise ValueError(f"kind is {case['kind']!r}, expected one of {', '.join(KINDS)}")


KINDS = ("call", "example", "answer", "refusal", "session")
"""The kinds of stored cases, including those that `compared` replays."""


def replay_recorded(case: Json, target: Target, contract: Contract | None = None) -> None:
    """Raise `Mismatch` if a target's results differ from a test vector."""
    __tracebackhide__ = True
    contract = contract or _NO_CONTRACT
    if case["kind"] == "session":
        _replay_session(case, target)
    elif case["kind"] == "refusal":
        _replay_refusal(case, target, contract)
    else:
        for checked in (True, False):
            actual = Invocation(target, decode_call(case))
            check_answer(contract, _expected(case, contract), actual, checked=checked)


_NO_CONTRACT = Contract("", lambda _: st.nothing(), {})


def _expected(case: Json, contract: Contract) -> Expected:
    """Return the expected outcome that a case stores, converted for `reference`."""
    decoder, converter = Decoder(case.get("memories", ())), REFERENCE.converter()
    call = decode_call(case, decoder)
    decoder.check_arrays()
    result = decoder.decode(case["result"])
    decoder.check_arrays()
    later = decoder.fields(case.get("after", {}))
    arguments = {name: converter.convert(v, name) for name, v in call.arguments.items()}
    after = REFERENCE.converter()
    changed = {name: after.convert(value, name) for name, value in later.items()}
    result = converter.convert(result, "result")
    # An argument that is also the result holds its values after the call.
    returned = [array for _, array in arrays_in(result, "result")]
    for name, value in changed.items():
        argument = arguments.get(name)
        if isinstance(argument, np.ndarray) and any(array is argument for array in returned):
            argument[...] = value
    # `applies` may depend on the source, which is not stored: the stored result decides instead.
    aliases = [
        alias
        for alias in contract.aliases
        if (holds(alias, result, arguments) if contract.shows is None else alias.applies(call))
    ]
    return Expected(result, arguments, changed, aliases)


def holds(alias: Alias, result: object, arguments: Arguments) -> bool:
    """Return whether a result conforms to an alias of an argument, which must be given."""
    is_given = alias.argument.partition(".")[0] in arguments
    return is_given and next(alias.differences(result, arguments), None) is None


def _replay_refusal(case: Json, target: Target, contract: Contract) -> None:
    __tracebackhide__ = True
    invalid = invalid_input_of(case["refusal"])
    call = decode_call(case)
    check_refusal(Invocation(target, call), invalid, contract.observe_refused)
    if invalid.is_value:
        check_stays_inside(Invocation(target, call), invalid, contract.changes)
    else:
        check_refusal(Invocation(target, call), invalid, contract.observe_refused, checked=False)


class _Session:
    """A session of a case: the constructor's call, and the steps, each with the expected result."""

    def __init__(self, case: Json) -> None:
        decoder = Decoder(case.get("memories", ()))
        self.constructor = None
        if "constructor" in case:
            made = case["constructor"]
            self.constructor = Call(made["function"], decoder.fields(made["arguments"]))
        self.steps: list[tuple[dict[str, Any], Any]] = []
        for written in case["steps"]:
            step = dict(written)
            step["arguments"] = decoder.fields(written.get("arguments", {}))
            step["value"] = decoder.decode(written.get("value"))
            if step["do"] == "set environment" and step["variable"] != LAYOUT_VARIABLE:
                raise ValueError(f"a case must not set {step['variable']}")
            self.steps.append((step, decoder.decode(written.get("result"))))


def _replay_session(case: Json, target: Target) -> None:
    __tracebackhide__ = True
    for checked in (True, False):
        with target.running(checked=checked), reset_kv_cache_layout(target):
            _play(_Session(case), target, checked=checked)


def _play(session: _Session, target: Target, *, checked: bool) -> None:
    """Run the steps of a session; raise `Mismatch` if an outcome differs from the case."""
    __tracebackhide__ = True
    subject = construct(target, session.constructor)
    for place, (step, expected) in enumerate(session.steps):
        where, difference = f"step {place}", None
        invalid = invalid_input_of(step["refusal"]) if "refusal" in step else None
        is_checked = target.validates and (checked or not (invalid and invalid.is_value))
        if invalid is not None and not is_checked:
            continue
        outcome = perform(target, subject, step)
        is_error = isinstance(outcome, BaseException)
        if not has_expected_outcome(outcome, invalid):
            got = raised(outcome) if is_error else f"returned {outcome!r}"
            due = invalid.expected if invalid else "return a result"
            difference = Difference(Verdict.OUTCOME, where, None, got, due)
        elif "result" in step:
            difference = first_difference(expected, outcome, where, target.device or "cpu")
        if difference is not None:
            name = step.get("method") or step["do"]
            raise Mismatch(Call(name, step["arguments"]), target.name, difference)
