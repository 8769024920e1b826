"""Convert a case to an example of the harness' own check, which can be stored.

That check compares more than an exhaustive run, such as calls by position and the aliasing of
results. So it fails for every case for which an exhaustive run does.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from conformance.checks.contract_checks import InvalidExample, ValidExample
from conformance.contracts.check import Check
from conformance.contracts.contract import ANY_NAME, InvalidInput
from conformance.contracts.sessions import _Example
from conformance.execution.invocations import PLAIN, Invocation
from conformance.generation.profiles import Kind
from conformance.strategies.block_table import Session
from conformance.targets.target import RAISED, REFERENCE
from kvtwin.fuzz.cases.properties import all_checks
from kvtwin.fuzz.exhaustive.comparing import Case
from kvtwin.fuzz.exhaustive.registry import all_scopes, function_of
from kvtwin.fuzz.exhaustive.tables import with_refusals


@dataclasses.dataclass(frozen=True)
class Example:
    """A case, and the check that it is an example of.

    Attributes:
        where: Where the check is defined, as the corpus names it.
        check: The check.
        value: The example, as the check's strategy draws it.
    """

    where: str
    check: Check
    value: Any


def example_of(scope: str, index: int, scale: int = 1) -> Example:
    """Return a case as an example of the harness' own check.

    Args:
        scope: The scope's name.
        index: The case.
        scale: How large the bounds are.
    """
    case = all_scopes(scale)[scope].cases.item(index)
    kind, value = _drawn(case)
    where, check = next(
        (where, check)
        for where, check in all_checks().items()
        if check.function == function_of(case) and check.kind is kind
    )
    # Goals may read the source of a call, which a case does not have.
    return Example(where, dataclasses.replace(check, goals_of=lambda _: ()), value)


def _drawn(case: Case) -> tuple[Kind, object]:
    """Return the kind of the check for a case, and the case as an example of that check."""
    if isinstance(case, Session):
        return Kind.SAME_ANSWER, _Example(with_refusals(case), PLAIN, 0)
    try:
        Invocation(REFERENCE, case).run()
    except RAISED as error:
        refused: Any = type(error)
    else:
        return Kind.SAME_ANSWER, ValidExample(case, 0, PLAIN)
    # `ANY_NAME`: an input with several errors may report any. `is_value`: checked mode only, since
    # the result of bad values is undefined without checks.
    invalid = InvalidInput(
        "what reference refuses", refused, ANY_NAME, lambda call: call, is_value=True
    )
    return Kind.SAME_REFUSAL, InvalidExample(case, [(invalid, case)])
