"""Describes a failure as plain values, in the process where it happens."""

from __future__ import annotations

import textwrap
from typing import Any, Final

from conformance.contracts.check import Check
from conformance.messages.call_table import render
from conformance.messages.formatting import first_line
from conformance.messages.mismatch import Mismatch
from conformance.messages.places import describe_place
from conformance.reports.picture import pictures_of
from conformance.values.call import calls_in

MAX_CHARS = 20_000
"""The maximum length of a message."""

NO_DETAILS: Final = {
    "verdict": "error",
    "where": "",
    "statement": "",
    "law": "",
    "goals": (),
    "call": "",
    "table": "",
    "pictures": (),
}
"""The details of a failure if only the exception is known."""


def describe_failure(
    failed: tuple[Check, Any, BaseException] | None, error: BaseException
) -> dict[str, Any]:
    """Describe a failed test as plain values, which can be sent between processes.

    Args:
        failed: The check, its shrunk example and the exception; None for tests without examples.
        error: The exception of the test.

    >>> describe_failure(None, ValueError("no such block"))["difference"]
    'ValueError: no such block'
    """
    check, example, cause = failed or (None, None, error)
    found: dict[str, Any] = {
        **NO_DETAILS,
        "difference": first_line(error),
        "message": str(error)[:MAX_CHARS],
    }
    if check is not None:
        found |= {"statement": check.description, "law": check.law}
        found["goals"] = [] if example is None else list(check.goals_of(example))
    mismatch = cause if isinstance(cause, Mismatch) else None
    if mismatch is not None:
        found["difference"] = mismatch.difference.line
        found["verdict"] = mismatch.difference.verdict.value
        found["where"] = describe_place(mismatch.call, mismatch.difference)
    call = next(calls_in(example), None) if mismatch is None else mismatch.call
    if call is not None:
        found["call"] = call.function
        found["table"] = textwrap.dedent(render(call))
        try:
            found["pictures"] = pictures_of(call, mismatch.difference if mismatch else None)
        except Exception as picture_error:  # noqa: BLE001  # a bad call's arguments may be anything
            found["no_picture"] = first_line(picture_error)
    return found
