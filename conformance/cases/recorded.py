"""Cases with their results: test vectors, which are replayed without calling `reference`.

The classes of `reference` hold what is expected.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from conformance.aliases import Alias
from conformance.calls import Arguments, Call
from conformance.cases.recording import OBSERVED, after_call
from conformance.cases.sessions import construct, is_refused, perform, untouched
from conformance.comparison import Difference, Verdict, first_difference
from conformance.contracts import ANY_NAME, Contract, InvalidInput
from conformance.encoding import Decoder, decode_call
from conformance.encoding.elements import Json
from conformance.evaluation import check_refusal, check_stays_inside
from conformance.invocations import Invocation
from conformance.report import Mismatch
from conformance.targets import RAISED, REFERENCE, Target
from conformance.values import arrays_in
from conformance.views import first_view_difference


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tell of a file that is not as the schema has it by its name, in one line."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        said = (str(error).splitlines() or [""])[0]
        if str(path) in said:
            raise
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {said}") from error


def read_recorded(case: Json) -> None:
    """Decode all of a case.

    Raises:
        ValueError: A kind of case that there is not.
    """
    if case["kind"] == "session":
        _Session(case)
    elif case["kind"] == "refusal":
        invalid_input_of(case["refusal"])
        decode_call(case)
    elif case["kind"] == "answer":
        _Expected(case)
    else:
        raise ValueError(f"kind {case['kind']!r} is none of {', '.join(KINDS)}")


KINDS = ("call", "example", "answer", "refusal", "session")
"""The kinds of stored cases, those that `compared` replays among them."""


def replay_recorded(case: Json, target: Target, contract: Contract | None = None) -> None:
    """Raise `Mismatch` where a target does otherwise than a case says.

    Args:
        case: It, as JSON.
        target: What is under test.
        contract: The function's, where it has one: what may change, and what is compared how.
    """
    __tracebackhide__ = True
    contract = contract or Contract("", _no_calls, {})
    if case["kind"] == "session":
        _replay_session(case, target)
    elif case["kind"] == "refusal":
        _replay_refusal(case, target, contract)
    else:
        for checked in (True, False):
            _replay_answer(case, target, contract, checked=checked)


def _no_calls(_: object) -> Any:
    raise NotImplementedError


class _Expected:
    """What a case says of a valid call: its arguments afterwards and its result, in one memory."""

    def __init__(self, case: Json) -> None:
        decoder, converter = Decoder(case.get("memories", ())), REFERENCE.converter()
        call = decode_call(case, decoder)
        decoder.check_arrays()
        result = decoder.decode(case["result"])
        decoder.check_arrays()
        later = {name: decoder.decode(value) for name, value in case.get("after", {}).items()}
        self.arguments = {name: converter.convert(v, name) for name, v in call.arguments.items()}
        after = REFERENCE.converter()
        self.after = {name: after.convert(value, name) for name, value in later.items()}
        self.result = converter.convert(result, "result")
        # An argument that is the result is what the call made of it.
        returned = [array for _, array in arrays_in(self.result, "result")]
        for name, value in self.after.items():
            changed = self.arguments.get(name)
            if isinstance(changed, np.ndarray) and any(array is changed for array in returned):
                changed[...] = value


def _replay_answer(case: Json, target: Target, contract: Contract, *, checked: bool) -> None:
    __tracebackhide__ = True
    expected, actual = _Expected(case), Invocation(target, decode_call(case))
    with target.running(checked=checked):
        try:
            got = actual.run()
        except RAISED as error:
            outcome = f"raised {type(error).__name__}: {error}"
            difference = Difference(Verdict.OUTCOME, "the call", None, outcome, "a result")
            raise Mismatch(actual.call, target.name, difference) from error
    device = target.device or "cpu"
    shown = got if contract.shows is None else contract.shows(got)
    found = first_difference(expected.result, shown, "result", device)
    after = after_call(contract, actual.arguments)
    for name, value in expected.after.items():
        found = found or first_difference(
            value, after[name], "/".join(sorted(contract.changes)) if name == OBSERVED else name
        )
    found = found or _aliasing(contract, expected, actual, got)
    if found is not None:
        raise Mismatch(actual.call, target.name, found)
    actual.check_unchanged(contract.changes)


def _aliasing(
    contract: Contract, expected: _Expected, actual: Invocation, got: object
) -> Difference | None:
    """Return the first place where a result lies in other memory than the case says."""
    if contract.compares_views:
        roots = {**actual.arguments, **actual.hints}
        return first_view_difference(expected.result, got, expected.arguments, roots)
    aliases = [alias for alias in contract.aliases if _applies(alias, contract, expected, actual)]
    return next(actual.aliasing(got, aliases), None)


def _applies(alias: Alias, contract: Contract, expected: _Expected, actual: Invocation) -> bool:
    """Return whether a definition speaks of this call: where it does, the case bears it out."""
    if contract.shows is not None:  # what is written is not the result itself
        return alias.applies(actual.call)
    return holds(alias, expected.result, expected.arguments)


def holds(alias: Alias, result: object, arguments: Arguments) -> bool:
    """Return whether a result is to an argument what a definition says; it must be given at all."""
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


def invalid_input_of(refusal: Json) -> InvalidInput:
    """Return the invalid input that a refusal describes.

    Raises:
        ValueError: A class of exception that no function raises.
    """
    error = _ERRORS.get(refusal["error"])
    if error is None:
        raise ValueError(f"refusal: {refusal['error']!r} is none of {', '.join(_ERRORS)}")
    names = "|".join(map(re.escape, refusal["names"])) or ANY_NAME
    return InvalidInput(
        refusal["what"],
        error,
        f"({names})" if "|" in names else names,
        lambda call: call,
        is_value=refusal.get("in_checked_mode_only", False),
        is_hint=refusal.get("of_a_hint", False),
        also=refusal.get("also", ""),
    )


_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (
        *(ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError),
        *(OverflowError, RuntimeError),
    )
}


class _Session:
    """What a case says of an object: how it is made, and the steps, each with what it answers."""

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
            _ = step["do"]
            self.steps.append((step, decoder.decode(written.get("result"))))


def _replay_session(case: Json, target: Target) -> None:
    __tracebackhide__ = True
    for checked in (True, False):
        with target.running(checked=checked), untouched(target):
            _play(case, target, checked=checked)


def _play(case: Json, target: Target, *, checked: bool) -> None:
    """Do the steps of a session, and raise where one ends otherwise than it says."""
    __tracebackhide__ = True
    session = _Session(case)
    subject, device = construct(target, session.constructor), target.device or "cpu"
    for place, (step, expected) in enumerate(session.steps):
        refusal = step.get("refusal")
        if refusal is not None and refusal.get("in_checked_mode_only") and not checked:
            continue
        difference = None
        try:
            answer = perform(target, subject, step)
        except RAISED as error:  # evaluated here
            if refusal is None or not is_refused(refusal, error):
                expected_outcome = "an answer" if refusal is None else _words(refusal)
                got = f"{type(error).__name__}: {error}"
                difference = Difference(
                    Verdict.OUTCOME, f"step {place}", None, got, expected_outcome
                )
        else:
            if refusal is not None:
                got = f"returned {answer!r}"
                difference = Difference(
                    Verdict.OUTCOME, f"step {place}", None, got, _words(refusal)
                )
            elif "result" in step:
                difference = first_difference(expected, answer, f"step {place}", device)
        if difference is not None:
            name = step.get("method") or step["do"]
            raise Mismatch(Call(name, step["arguments"]), target.name, difference)


def _words(refusal: Json) -> str:
    return f"{refusal['error']} naming {' or '.join(refusal['names'])} ({refusal['what']})"
