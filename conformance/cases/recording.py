"""Records the answers and refusals of `reference` as cases in plain JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from conformance.contracts.contract import ANY_NAME, Contract, InvalidInput
from conformance.contracts.evaluation import changed_by, check_refusal, shown
from conformance.encoding import Encoder, Json, decode_call, encode_call
from conformance.encoding.encoder import start_call
from conformance.execution.invocations import Invocation
from conformance.targets.conversion import Converter
from conformance.targets.target import REFERENCE
from conformance.values.call import Call


class _Pairing(Converter):
    """Copies values for `reference`, and stores each value with its copy."""

    def __init__(self) -> None:
        super().__init__(REFERENCE.implementation, None)
        self.pairs: list[tuple[Any, Any]] = []

    def convert(self, value: Any, path: str) -> Any:
        """Return `reference`'s copy of a value."""
        converted = super().convert(value, path)
        if not isinstance(value, int | str | float | tuple | np.generic) and converted is not None:
            self.pairs.append((value, converted))
        return converted


def answer_case(contract: Contract, call: Call, goals: list[str]) -> dict[str, Json]:
    """Return the case of a valid call with the result of `reference` and the goals that it reaches.

    Raises:
        ValueError: The case does not decode to the call.
    """
    encoder, converter = Encoder(), _Pairing()
    case: dict[str, Json] = {"kind": "answer", "meets": goals, **start_call(encoder, call)}
    encoder.seal()
    arguments = {name: converter.convert(value, name) for name, value in call.arguments.items()}
    result = REFERENCE.lookup(call.function)(**arguments)
    for drawn, converted in converter.pairs:
        encoder.same(converted, drawn)
    case["result"] = encoder.encode(shown(contract, result))
    after = changed_by(contract, arguments)
    if after:
        encoder.forget()
        case["after"] = encoder.encode_fields(after)
    return _checked(encoder.finish(case), call)


def refusal_case(contract: Contract, invalid: InvalidInput, call: Call) -> dict[str, Json]:
    """Return the case of an invalid call: its arguments, and the expected exception.

    Raises:
        Mismatch: `reference` does not refuse the call as the invalid input describes.
        ValueError: The case does not decode to the call.
    """
    case = encode_call(call)
    case = {"kind": "refusal", **case, "refusal": refusal_of(invalid)}
    _checked(case, call)
    if invalid.is_hint:
        return case
    check_refusal(Invocation(REFERENCE, decode_call(case)), invalid, contract.observe_refused)
    return case


def refusal_of(invalid: InvalidInput) -> dict[str, Json]:
    """Return the expected exception as JSON: its class, and the names in its message.

    >>> refusal_of(InvalidInput("it is 0", ValueError, "(a|b)", lambda call: call))
    {'what': 'it is 0', 'error': 'ValueError', 'names': ['a', 'b']}
    """
    plain = invalid.argument.replace("(", "").replace(")", "").replace("\\.", ".")
    found: dict[str, Json] = {
        "what": invalid.name,
        "error": invalid.error.__name__,
        "names": [] if plain == ANY_NAME else plain.split("|"),
    }
    if invalid.is_value:
        found["in_checked_mode_only"] = True
    if invalid.is_hint:
        found["of_a_hint"] = True
    if invalid.also:
        found["also"] = invalid.also
    return found


def invalid_input_of(refusal: Json) -> InvalidInput:
    """Return the invalid input that a refusal describes.

    Raises:
        ValueError: The class of the exception is unknown.
    """
    error = _ERRORS.get(refusal["error"])
    if error is None:
        raise ValueError(
            f"refusal: error is {refusal['error']!r}, expected one of {', '.join(_ERRORS)}"
        )
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


def _checked(case: dict[str, Json], call: Call) -> dict[str, Json]:
    """Return the case of a call, after verifying that it decodes to that call."""
    # Compared as text, since 1, 1.0 and True are equal, and so are 0.0 and -0.0.
    if json.dumps(encode_call(decode_call(case))) != json.dumps(encode_call(call)):
        raise ValueError(f"a call of {call.function} decodes to a different call than was encoded")
    return case
