"""Cases of invalid calls: they raise the same exceptions as `reference`, or do no harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from conformance.values.call import Call
from tools.probe.array_values import other_array
from tools.probe.calling import POISONS, Outcome, call_reference, poison
from tools.probe.case import Case
from tools.probe.checks import (
    check_resources,
    check_twins,
    check_unchanged,
    is_large_request,
    is_refusal,
    path_of,
)
from tools.probe.differences import contents
from tools.probe.sites import Site, are_copies, replaced_at, sites_of
from tools.probe.strange_objects import HostilityError, StrangeObject, other_value
from tools.probe.violation import Finding

PATIENCE_SECONDS: Final = 5.0
"""The time limit of `fast` for a call that exceeds the limit of `reference`."""


class _Mutation:
    """A call with some of its values replaced at random.

    Attributes:
        call: The call.
        changed: The paths of the values that were replaced.
        is_plain: Whether all new values are None, numbers, strings or arrays.
        is_alike: Whether both twins get equivalent values: no new device, no array in place of
            another object (a tensor has other attributes), and no copies that differ.
        has_hints: Whether the call has hints, which only `fast` takes.
    """

    def __init__(self, case: Case, call: Call, is_wanted: Callable[[Site], bool]) -> None:
        self.call, self.changed = call, list[str]()
        self.is_plain, self.is_alike, self.has_hints = True, True, bool(call.hints)
        for _ in range(case.random.choice((1, 1, 1, 1, 2, 3))):
            sites = sites_of(self.call)
            chosen = [site for site in sites if is_wanted(site)] or sites
            if not chosen:
                return
            self._replace(case, case.random.choice(chosen), sites)

    def _replace(self, case: Case, site: Site, sites: list[Site]) -> None:
        value: Any
        if isinstance(site.value, np.ndarray) and case.random.random() < 0.9:
            value = other_array(case.random, site.value)
        else:
            value = other_value(case.random, site.value, site.path)
        self.changed.append(site.path)
        self.is_plain &= value is None or isinstance(value, int | float | str | np.ndarray)
        self.is_alike &= "device" not in site.path
        is_strange_array = isinstance(value, StrangeObject) and "array" in value.name
        is_array = is_strange_array or isinstance(value, np.ndarray)
        self.is_alike &= not is_array or isinstance(site.value, np.ndarray)
        self.is_alike &= not is_strange_array
        self.call = replaced_at(self.call, site, value)
        twin = next((other for other in sites if are_copies(site.path, other.path)), None)
        if twin is not None and case.random.random() < 0.9:
            self.call = replaced_at(self.call, twin, value)
        elif twin is not None:
            self.is_alike = False


def bad_arrays(case: Case) -> Iterator[Finding]:
    """Replace arrays: other values, shapes, dtypes and layouts."""
    yield from _mutated(case, lambda site: isinstance(site.value, np.ndarray))


def bad_values(case: Case) -> Iterator[Finding]:
    """Replace any values: numbers, strings, lists, objects and arrays."""
    yield from _mutated(case, lambda _: True)


def _mutated(case: Case, is_wanted: Callable[[Site], bool]) -> Iterator[Finding]:
    valid, _ = case.choose()
    mutation = _Mutation(case, valid, is_wanted)
    call, contract = mutation.call, case.subject.contract
    expected = call_reference(call)
    checked, is_protected = case.random.random() < 0.5, case.random.random() < 0.3
    seconds = 0 if expected is not None else PATIENCE_SECONDS
    got = case.call_fast(call, checked=checked, is_protected=is_protected, seconds=seconds)
    is_large = is_large_request(call, expected)
    yield from check_resources(got, is_large_request=is_large)
    if is_large and isinstance(got.error, TimeoutError):
        return
    for finding in case.check_error(got, is_large_request=is_large):
        if not (finding[0] == "message names no argument" and _is_pythons(expected, got)):
            yield finding
    if expected is not None and case.subject.is_compared and mutation.is_alike:
        is_single = len(mutation.changed) == 1
        yield from check_twins(
            contract,
            expected,
            got,
            mutation.changed,
            checked=checked and is_single,
            has_one_fault=mutation.is_plain,
            has_hints=mutation.has_hints,
        )
    elif got.error is None:
        yield from check_unchanged(contract, got)
    if got.error is None and not checked and case.random.random() < 0.5:
        yield from _repeated(case, call, got)


def _is_pythons(expected: Outcome | None, got: Outcome) -> bool:
    """Return whether Python itself, not a check, raised the same exception in both twins."""
    return (
        expected is not None
        and type(expected.error) is type(got.error)
        and not is_refusal(expected)
    )


def _repeated(case: Case, call: Call, first: Outcome) -> Iterator[Finding]:
    """Call again with fresh memory filled with other bytes, and compare the results."""
    try:
        seen = contents(first.result)
    except (RecursionError, HostilityError, TypeError):
        return  # cannot be traversed: it contains itself, or hostile objects
    poison(POISONS[1])
    second = case.call_fast(call, checked=False)
    if second.error is not None:
        message = f"{type(second.error).__name__}: {second.error}"
        yield "another result the second time", "", message
        return
    for (path, ours), (_, theirs) in zip(seen, contents(second.result), strict=False):
        if ours != theirs:
            yield "uninitialised memory in a result", path_of(path), path
