"""Replays vectors against a target: the recorded answers and refusals, without `reference`'s help.

`reference` itself is not called. Its classes hold what is expected, and its module carries it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from conformance.checks import check_refusal, check_stays_inside
from conformance.comparison import Difference, Verdict, first_difference, parts
from conformance.contracts import Alias, Arguments, Call, Contract, Fault
from conformance.encoding import Decoder, decode_call
from conformance.encoding.elements import Json
from conformance.profiles import Kind
from conformance.report import Mismatch
from conformance.sides import Side
from conformance.targets import REFERENCE, Target
from conformance.vectors.cases import OBSERVED, after_call
from conformance.vectors.kept import CaseCheck, read_json
from conformance.vectors.sessions import Stage, is_refused, untouched
from conformance.vectors.subjects import contracts, functions, refusing
from conformance.views import first_view_difference


def vector_checks(directory: Path) -> list[CaseCheck]:
    """Return the checks of a folder of vectors, one for each case.

    Args:
        directory: What `python -m tools.vectors --out` made, or another's of the same schema.

    Raises:
        ValueError: A folder that has no index, or one of another version of the schema.
    """
    index = read_json(directory / "index.json")
    known, found = functions(), []
    try:
        for function, number in index["functions"].items():
            if function not in known:
                raise ValueError(f"{directory} has vectors of {function!r}, which is unknown")
            manifest = read_json(directory / function / "manifest.json")
            contract = contracts().get(function)
            if len(manifest["cases"]) != number:
                raise ValueError(
                    f"{directory}/{function} has {len(manifest['cases'])} cases, but its index says {number}"
                )
            for entry in manifest["cases"]:
                path = directory / function / entry["file"]
                read_json(path)
                name = f"{function}/{path.stem}"
                found.append(_check_of(function, name, entry, path, contract))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{directory} is not as schema.json has it: {error!r}") from error
    return found


def _check_of(
    function: str, name: str, entry: Json, path: Path, contract: Contract | None
) -> CaseCheck:
    kinds = {"refusal": Kind.SAME_REFUSAL}

    def body(target: Target) -> None:
        __tracebackhide__ = True
        try:
            replay(read_json(path), target, contract)
        except Exception as error:
            if not any(known.explains(error) for known in target.deviations(function)):
                raise

    kind = kinds.get(entry["kind"], Kind.SAME_ANSWER)
    return CaseCheck(function, name, kind, entry["about"], body)


def replay(case: Json, target: Target, contract: Contract | None = None) -> None:
    """Raise `Mismatch` where a target does otherwise than a case says.

    Args:
        case: It, as JSON.
        target: What is under test.
        contract: The function's, where it has one: what may change, and what is compared how.
    """
    __tracebackhide__ = True
    if case["kind"] == "session":
        _replay_session(case, target)
    elif case["kind"] == "refusal":
        _replay_refusal(case, target, refusing(contract or Contract("", _no_calls, {})))
    else:
        for checked in (True, False):
            _replay_answer(case, target, contract or Contract("", _no_calls, {}), checked=checked)


def _no_calls(_: object) -> Any:
    raise NotImplementedError


class _Expected:
    """What a case says of a valid call: its arguments afterwards and its result, in one memory."""

    def __init__(self, case: Json) -> None:
        decoder, carrier = Decoder(case.get("memories", ())), REFERENCE.carrier()
        call = decode_call(case, decoder)
        decoder.check_arrays()
        result = decoder.decode(case["result"])
        decoder.check_arrays()
        later = {name: decoder.decode(value) for name, value in case.get("after", {}).items()}
        self.arguments = {name: carrier.carry(v, name) for name, v in call.arguments.items()}
        after = REFERENCE.carrier()
        self.after = {name: after.carry(value, name) for name, value in later.items()}
        self.result = carrier.carry(result, "result")
        # An argument that is the result is what the call made of it.
        returned = [part for _, part in parts(self.result, "result")]
        for name, value in self.after.items():
            changed = self.arguments.get(name)
            if isinstance(changed, np.ndarray) and any(part is changed for part in returned):
                changed[...] = value


def _replay_answer(case: Json, target: Target, contract: Contract, *, checked: bool) -> None:
    __tracebackhide__ = True
    expected, actual = _Expected(case), Side(target, decode_call(case))
    with target.running(checked=checked):
        try:
            got = actual.run()
        except Exception as error:
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
    contract: Contract, expected: _Expected, actual: Side, got: object
) -> Difference | None:
    """Return the first place where a result lies in other memory than the case says."""
    if contract.compares_views:
        roots = {**actual.arguments, **actual.hints}
        return first_view_difference(expected.result, got, expected.arguments, roots)
    aliases = [alias for alias in contract.aliases if _applies(alias, contract, expected, actual)]
    return next(actual.aliasing(got, aliases), None)


def _applies(alias: Alias, contract: Contract, expected: _Expected, actual: Side) -> bool:
    """Tell whether a definition speaks of this call: where it does, the case bears it out."""
    if contract.shows is not None:  # what is written is not the result itself
        return alias.applies(actual.call)
    return holds(alias, expected.result, expected.arguments)


def holds(alias: Alias, result: object, arguments: Arguments) -> bool:
    """Tell whether a result is to an argument what a definition says; it must be given at all."""
    is_given = alias.argument.partition(".")[0] in arguments
    return is_given and next(alias.differences(result, arguments), None) is None


def _replay_refusal(case: Json, target: Target, contract: Contract) -> None:
    __tracebackhide__ = True
    fault = fault_of(case["refusal"])
    call = decode_call(case)
    check_refusal(Side(target, call), fault, contract.observe)
    if fault.is_value:
        check_stays_inside(Side(target, call), fault, contract.changes)
    else:
        check_refusal(Side(target, call), fault, contract.observe, checked=False)


def fault_of(refusal: Json) -> Fault:
    """Return the fault that a refusal tells of.

    Raises:
        ValueError: A class of exception that no function raises.
    """
    error = _ERRORS.get(refusal["error"])
    if error is None:
        raise ValueError(f"refusal: {refusal['error']!r} is none of {', '.join(_ERRORS)}")
    return Fault(
        refusal["what"],
        error,
        f"({'|'.join(map(re.escape, refusal['names']))})",
        lambda call, _: call,
        is_value=refusal.get("in_checked_mode_only", False),
        is_hint=refusal.get("of_a_hint", False),
    )


_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (
        *(ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError),
        *(OverflowError, RuntimeError),
    )
}


def _replay_session(case: Json, target: Target) -> None:
    __tracebackhide__ = True
    for checked in (True, False):
        with target.running(checked=checked), untouched(target):
            _play(case, target, checked=checked)


def _play(case: Json, target: Target, *, checked: bool) -> None:
    """Do the steps of a session, and raise where one ends otherwise than it says."""
    __tracebackhide__ = True
    decoder = Decoder(case.get("memories", ()))
    constructor = None
    if "constructor" in case:
        made = case["constructor"]
        constructor = Call(made["function"], decoder.fields(made["arguments"]))
    stage, device = Stage(target, constructor), target.device or "cpu"
    for place, written in enumerate(case["steps"]):
        step = dict(written)
        step["arguments"] = decoder.fields(written.get("arguments", {}))
        step["value"] = decoder.decode(written.get("value"))
        expected = decoder.decode(written.get("result"))
        refusal = written.get("refusal")
        if refusal is not None and refusal.get("in_checked_mode_only") and not checked:
            continue
        difference = None
        try:
            answer = stage.do(step)
        except Exception as error:  # noqa: BLE001  # judged here
            if refusal is None or not is_refused(refusal, error):
                wanted = "an answer" if refusal is None else _words(refusal)
                got = f"{type(error).__name__}: {error}"
                difference = Difference(Verdict.OUTCOME, f"step {place}", None, got, wanted)
        else:
            if refusal is not None:
                got = f"returned {answer!r}"
                difference = Difference(
                    Verdict.OUTCOME, f"step {place}", None, got, _words(refusal)
                )
            elif "result" in written:
                difference = first_difference(expected, answer, f"step {place}", device)
        if difference is not None:
            name = step.get("method") or step["do"]
            raise Mismatch(Call(name, step["arguments"]), target.name, difference)


def _words(refusal: Json) -> str:
    return f"{refusal['error']} naming {' or '.join(refusal['names'])} ({refusal['what']})"
