"""A failure as plain values, to be sent between processes and machines."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from typing import Any

from conformance.cases.compared import case_of_failure
from conformance.encoding import Json
from conformance.messages.formatting import first_line
from conformance.messages.mismatch import Mismatch
from conformance.reports.failure import describe_failure
from conformance.reproduction.script import script_of
from kvtwin.fuzz.cases.case import Case, Input
from kvtwin.fuzz.cases.coverage import batch_of
from kvtwin.fuzz.cases.properties import Property

Key = tuple[str, str, str]
"""The deduplication key of a failure: the function, the field and the exception class."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """One failing input.

    Attributes:
        function: The function that the failed check tests.
        target: The target.
        property_name: The name of the property.
        kind: The kind of the check, such as `same answer`; or `crash`, `hang`, `memory growth`: see
            `records.KINDS`.
        field: The path of the first difference, without indices; empty if there is none.
        error: The class of the exception; for a crash the signal.
        line: The failure in a line.
        message: The whole message of the exception.
        uses: The functions of the target that the check used.
        input: The input, as `case.Input` writes it; empty if the example was not drawn.
        case: The stored case; None if the input is stored in its place.
        script: A short script that reproduces it; None if its call cannot be written as code.
        details: Tables and pictures for the report, from `conformance.reports`.
        is_minimal: Whether it was minimized.
        fails: How many of the tries failed.
        tries: How often it was tried.
        requests: The number of requests of its batch; None if it has none.
    """

    function: str
    target: str
    property_name: str
    kind: str
    field: str
    error: str
    line: str
    message: str = ""
    uses: tuple[str, ...] = ()
    input: bytes = b""
    case: Json = None
    script: str | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_minimal: bool = False
    fails: int = 1
    tries: int = 1
    requests: int | None = None

    @property
    def key(self) -> Key:
        """The deduplication key."""
        return self.function, self.field, self.error

    @property
    def id(self) -> str:
        """The id of the key."""
        return id_of(self.key)


def id_of(key: Key) -> str:
    """Return a short name of a deduplication key: `compute_slot_mapping-1f3a9c2e`."""
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:8]
    name = re.sub(r"[^\w.]+", "-", key[0]).strip("-")
    return f"{name}-{digest}"


def key_of(function: str, error: BaseException) -> Key:
    """Return the deduplication key of a failure in a check of a function."""
    return function, field_of(error), type(error).__name__


def field_of(error: BaseException) -> str:
    """Return the path of the first difference without its indices, empty if there is none.

    >>> field_of(ValueError("no"))
    ''
    """
    if not isinstance(error, Mismatch):
        return ""
    return re.sub(r"\[\d+\]", "[]", error.difference.path)


def failure_of_case(prop: Property, case: Case, **more: Any) -> Failure:
    """Return the failure of a case, with further fields; it has no stored case or script yet."""
    found: dict[str, Any] = {
        "uses": tuple(sorted(case.used)),
        "input": Input(prop.name, 0, case.choices).to_bytes(),
        **more,
    }
    return failure_of(prop, case.example, case.raised, **found)


def failure_of(prop: Property, example: Any, error: BaseException, **more: Any) -> Failure:
    """Return the failure of an example of a property with an error, with further fields."""
    check = prop.check
    function, field, name = key_of(check.function, error)
    line = error.difference.line if isinstance(error, Mismatch) else first_line(error)
    if not str(error):  # a plain `assert` has no message
        line += check.description.partition("\n")[0]
    batch = batch_of(example)
    fields: dict[str, Any] = {
        "property_name": prop.name,
        "kind": check.kind.value,
        "message": str(error),
        "details": describe_failure((check, example, error), error),
        "requests": None if batch is None else batch.num_reqs,
        **more,
    }
    return Failure(function, prop.target.name, field=field, error=name, line=line[:500], **fields)


def with_artefacts(
    failure: Failure, prop: Property, example: Any, error: BaseException, *, is_safe: bool = True
) -> Failure:
    """Return a failure with its stored case, and with a script if a short one reproduces it.

    With `is_safe` the call may be repeated in this process, to verify the script.
    """
    case = None
    with contextlib.suppress(TypeError, ValueError, KeyError):  # it cannot be written as JSON
        case = case_of_failure(prop.check, prop.where, example, error)
    script = script_of(prop.check, prop.target, example, error) if is_safe else None
    return dataclasses.replace(failure, case=case, script=script)
