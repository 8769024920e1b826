"""Find the first difference between the outcomes of both twins."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from conformance.contracts.contract import Contract
from conformance.values.comparison import as_bytes, field_name, first_difference
from conformance.values.differences import Difference, Verdict
from conformance.values.parts import arrays_in
from tools.probe.calling import Outcome


def difference_in(
    contract: Contract, expected: Outcome, got: Outcome, changed: Sequence[str] = ()
) -> Difference | None:
    """Return the first difference from `reference` in the result and the written arguments.

    Args:
        contract: The contract of the function.
        expected: The outcome of `reference`.
        got: The outcome that is compared with it.
        changed: The paths of the values that were replaced, which a result may contain.
    """
    shows: Callable[[Any], Any] = contract.shows or (lambda result: result)
    difference = first_difference(shows(expected.result), shows(got.result))
    if difference is None:
        difference = _difference_in_changes(contract, expected, got)
    if difference is not None and difference.verdict is not Verdict.VALUE:
        names = {field_name(path) for path in changed}
        if names & set(re.findall(r"\w+", difference.path)):
            return None
    return difference


def contents(value: Any) -> list[tuple[str, bytes]]:
    """Return the paths and the bytes of all arrays in a result."""
    return [
        (path, as_bytes(part).tobytes())
        for path, part in arrays_in(value, "result")
        if _is_readable(part)
    ]


def _difference_in_changes(
    contract: Contract, expected: Outcome, got: Outcome
) -> Difference | None:
    if expected.invocation is None or got.invocation is None:
        return None
    ours, theirs = expected.invocation.arguments, got.invocation.arguments
    if contract.observe is not None:
        return first_difference(contract.observe(ours), contract.observe(theirs), "changed")
    for name in sorted(contract.changes & set(ours)):
        difference = first_difference(ours[name], theirs[name], name)
        if difference is not None:
            return difference
    return None


def _is_readable(array: Any) -> bool:
    if isinstance(array, torch.Tensor):
        return type(array) is torch.Tensor and array.layout is torch.strided and array.is_cpu
    return array.dtype.kind in "iufcb"
