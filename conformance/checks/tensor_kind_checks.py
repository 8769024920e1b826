"""Checks of calls with another kind of tensor: sparse, nested, fake, a view of an empty storage.

Only functions of `fast` are tested. They must refuse it with a `TypeError` or `ValueError` that
names an argument, or return. If the tensor has the type, the dtype and the values of an ordinary
one, the result must be correct.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from hypothesis.strategies import SearchStrategy

from conformance.arrays.change_tracking import argument_of
from conformance.arrays.guard_bands import Array
from conformance.conditions.known_answer import KnownAnswer
from conformance.contracts.check import Check, property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import outcome
from conformance.coverage.presets import Preset
from conformance.execution.invocations import Invocation
from conformance.generation.profiles import Kind
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.targets.target import RAISED, Target
from conformance.targets.tensor_kinds import (
    ORDINARY,
    TENSORS,
    NoSuchKindError,
    OfKind,
    kinds_at,
)
from conformance.values.call import Call
from conformance.values.comparison import field_name, first_difference
from conformance.values.differences import Verdict, raised
from conformance.values.parts import arrays_in, with_replaced
from reference import CommonAttentionMetadata

GOAL: Final = "with another kind of tensor"

METADATA_FIELDS: Final = frozenset(
    field.name for field in dataclasses.fields(CommonAttentionMetadata)
)
"""The names that a builder's exceptions may contain: the metadata is made from the arguments."""

NUM_PLACES: Final = 120
"""Places are numbers below this, taken modulo the number of tensors.

It is divisible by 1 to 6, 8 and 10, so each tensor is about equally likely.
"""

NUM_KINDS: Final = 4
"""How many kinds each example tries: drawing a call takes as long as making one or two."""


@dataclasses.dataclass(frozen=True, eq=False)
class OtherTensor:
    """A call, and the tensor that is of another kind.

    Attributes:
        call: The call with ordinary tensors.
        place: The number of the tensor, modulo the number of tensors.
        kind: The number of the first kind that is tried, modulo the number of kinds.
        is_everywhere: Whether the tensor is replaced wherever the same one occurs.
        checked: Whether it is called in checked mode.
    """

    call: Call
    place: int
    kind: int
    is_everywhere: bool
    checked: bool

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave out the call, which the report prints better than Hypothesis does."""
        paths = [path for path, _ in self.arrays] or ["nothing"]
        path = paths[self.place % len(paths)]
        everywhere = " wherever it occurs" * self.is_everywhere
        mode = " in checked mode" * self.checked
        printer.text(f"the call above, with {path} of other kinds{everywhere}{mode}")

    @property
    def arrays(self) -> list[tuple[str, Array]]:
        """The arrays of the call that may be of another kind, with their paths."""
        given = {**self.call.arguments, **self.call.hints}
        return [found for name, value in given.items() for found in arrays_in(value, name)]

    def calls(self) -> Iterator[tuple[Call, OfKind]]:
        """Yield calls with the tensor of other kinds, some of which cannot be made."""
        if self.arrays:
            path, array = self.arrays[self.place % len(self.arrays)]
            kinds = kinds_at(path)
            first = self.kind % len(kinds)
            for kind in (*kinds[first:], *kinds[:first]):
                yield self._with_other(OfKind(kind, array, path))

    def _with_other(self, other: OfKind) -> tuple[Call, OfKind]:
        """Return the call with a tensor of another kind, which may occur in several places."""

        def replace(path: str, part: Any) -> Any:
            if path == other.path:
                return other
            is_same = self.is_everywhere and part is other.array
            if not (is_same and other.kind in kinds_at(path)):
                return part
            is_on_same_device = path.endswith("_cpu") == other.path.endswith("_cpu")
            return other if is_on_same_device else OfKind(other.kind, other.array, path)

        arguments, hints = (
            {name: with_replaced(value, name, replace) for name, value in given.items()}
            for given in (self.call.arguments, self.call.hints)
        )
        return dataclasses.replace(self.call, arguments=arguments, hints=hints), other


def refuses_other_tensors(contract: Contract) -> Check:
    """Return the check that another kind of tensor is refused, or makes no difference."""

    def examples(preset: Preset) -> SearchStrategy[OtherTensor]:
        return st.builds(
            OtherTensor,
            place=st.sampled_from(range(NUM_PLACES)),
            kind=st.sampled_from(range(len(TENSORS))),
            # Functions with fixed arrays may need the same array in several places.
            is_everywhere=st.booleans() if contract.has_arrays else st.just(True),
            checked=st.booleans(),
            call=contract.calls(preset),
        )

    @property_check(
        contract.function,
        examples,
        goals={GOAL: lambda example: bool(example.arrays)},
        presets=contract.refusal_presets,
        kind=Kind.OTHER_TENSORS,
        tests_invalid_inputs=True,
    )
    def check(target: Target, example: OtherTensor) -> None:
        """Another kind of tensor is refused by name, or makes no difference."""
        __tracebackhide__ = True
        num_tried = 0
        for call, other in example.calls():
            try:
                invocation = Invocation(target, call, written=contract.changes)
            except NoSuchKindError:
                continue
            with target.running(checked=example.checked):
                _check(contract, invocation, other)
            num_tried += 1
            if num_tried == NUM_KINDS:
                break
        assert num_tried or not example.arrays

    return check


def check_refused_or_returned(
    target: Target, call: Call, run: Callable[[], object], condition: str
) -> tuple[bool, Any]:
    """Make a call with another kind of tensor; raise `Mismatch` for a wrong exception.

    Args:
        target: The target under test.
        call: The call, for the report and the names of its arguments.
        run: Makes the call.
        condition: What is of which kind, for the report.

    Returns:
        Whether the call returned, and its result.
    """
    __tracebackhide__ = True
    try:
        return True, run()
    except RAISED as error:
        if type(error) in {TypeError, ValueError} and _names_an_argument(call, error):
            return False, None
        difference = outcome(raised(error), "raise TypeError or ValueError naming an argument")
        raise Mismatch(call, target.name, difference, condition) from error


def condition_of(path: str, kind: str) -> str:
    """Return the condition of a call, for reports."""
    return f"with {path} as another kind of tensor: {kind}"


def _check(contract: Contract, invocation: Invocation, other: OfKind) -> None:
    """Make a call; raise `Mismatch` for a wrong exception or result, or a changed argument."""
    __tracebackhide__ = True
    call, target = invocation.call, invocation.target
    condition = condition_of(other.path, other.kind)
    has_returned, got = check_refused_or_returned(target, call, invocation.run, condition)
    may_change = contract.changes if has_returned else frozenset[str]()
    invocation.check_unchanged(may_change)
    if other.kind not in ORDINARY:
        return
    if argument_of(other.path) not in may_change:
        changed = first_difference(other.array, other.made, other.path, target.device or "cpu")
        if changed is not None:
            changed = dataclasses.replace(changed, verdict=Verdict.CHANGE)
            raise Mismatch(call, target.name, changed, condition)
    if has_returned:
        KnownAnswer.of(contract, call).compare(got, invocation, condition)


def _names_an_argument(call: Call, error: BaseException) -> bool:
    """Return whether the message of an exception contains the name of an argument or a field."""
    given: dict[str, Any] = {**call.arguments, **call.hints}
    paths = [path for name, value in given.items() for path, _ in arrays_in(value, name)]
    names = {*given, *map(field_name, paths), *METADATA_FIELDS} - {"self"}
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error)) for name in names)
