"""The check of stateful objects: they agree with `reference`'s after every operation."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from hypothesis.strategies import SearchStrategy

from conformance.contracts.check import Check
from conformance.contracts.evaluation import is_named
from conformance.coverage.goals import Goals, reached_goals
from conformance.coverage.presets import Preset
from conformance.execution.invocations import CALL_VARIANTS, PLAIN, CallVariant
from conformance.generation.profiles import Kind
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.strategies.block_table import Operation, Session
from conformance.targets.implementations import is_of_fast
from conformance.targets.target import RAISED, REFERENCE, Target
from conformance.values.aliases import address_of
from conformance.values.call import Call
from conformance.values.comparison import first_difference
from conformance.values.differences import Difference, Verdict, raised
from conformance.values.parts import arrays_in
from conformance.values.wording import compare_wording

NUM_FIRST, NUM_LAST = 6, 20
"""How many of the first and of the last operations before a failure are reported."""


class SessionMismatch(Mismatch):
    """A difference in a session, with the operations before it."""

    def __init__(self, session: Session, step: int, target: str, difference: Difference) -> None:
        self.session, self.step = session, step
        done = session.operations[: step + 1]
        call = Call(f"{session.constructor.function}.{done[-1].method}", done[-1].arguments)
        super().__init__(call, target, difference)
        steps_before = ["constructed by " + repr(session.constructor), *_steps_of(done[:-1])]
        steps_before += map(repr, done[-1].overwrites)
        steps_before = list(_counted(steps_before))
        num_left_out = len(steps_before) - NUM_FIRST - NUM_LAST
        after = "after"
        if num_left_out > 1:
            steps_before[NUM_FIRST:-NUM_LAST] = [f"... {num_left_out} more lines ..."]
        if len(done) > NUM_FIRST + NUM_LAST:
            numbers = Counter(one.method for one in done[:-1]).most_common()
            named = ", ".join(f"{number:,} {method}" for method, number in numbers)
            after = f"after {len(done) - 1:,} operations ({named})"
        story = "\n".join(f"    {line}" for line in steps_before)
        self.args = (f"{self.args[0]}\n{after}\n{story}",)


def _counted(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines; equal lines in a row become one, with their number.

    >>> list(_counted(["a", "b", "b", "a"]))
    ['a', 'b, 2 times', 'a']
    """
    for line, group in groupby(lines):
        number = len(list(group))
        yield line if number == 1 else f"{line}, {number} times"


def _steps_of(operations: Sequence[Operation]) -> Iterator[str]:
    """Yield a line for each operation and overwrite; of refused calls in a row, only the last."""
    for is_refused, group in groupby(operations, lambda one: one.refused is not None):
        found = list(group)
        if is_refused and len(found) > 1:
            yield f"{len(found) - 1} refused calls"
            found = found[-1:]
        for one in found:
            yield from map(repr, one.overwrites)
            yield repr(Call(one.method, one.arguments)) + (", refused" if is_refused else "")


def session_check(
    function: str,
    sessions: Callable[[Preset], SearchStrategy[Session]],
    get_buffers: Callable[[Any, Session], Mapping[str, Any]],
    *,
    goals: Goals | None = None,
    refusals: Sequence[str] = (),
    has_kernel: bool = False,
    presets: Sequence[Preset] | None = None,
    kind: Kind = Kind.SAME_ANSWER,
    reader: Callable[[Session], Operation] | None = None,
) -> Check:
    """Return the check that a target's object and `reference`'s agree after every operation.

    Args:
        function: The class.
        sessions: The strategy of sessions, by preset.
        get_buffers: Returns views of all memory that operations write, by their names in reports.
            It is called right after the object is made. The views are compared after every
            operation, and returned tensors must have the same addresses.
        goals: Named predicates on a session that a run must reach.
        refusals: The names of the invalid inputs that a run must reach. If there are any, the kind
            of the check is `Kind.SAME_REFUSAL`.
        has_kernel: Whether the class has kernels.
        presets: The presets to draw from; None for the target's.
        kind: The kind of check, if it has no refusals. `Kind.CONDITIONS` does not run in checked
            mode.
        reader: Returns an operation that reads the whole state of an object. It serves to report
            the first operation after which the state is wrong.
    """
    named = goals or {}

    def body(target: Target, example: _Example) -> None:
        __tracebackhide__ = True
        # Checked mode first: there an out-of-bounds access raises instead of crashing.
        modes = (True,) if refusals and target.is_simulated else (True, False)
        for checked in modes if kind is not Kind.CONDITIONS else (False,):
            try:
                with target.running(checked=checked, seed=example.seed):
                    _run(target, example, get_buffers, checked=checked)
            except SessionMismatch as error:
                if reader is not None:
                    error.explain = partial(
                        _first_wrong, error, target, example, get_buffers, reader
                    )
                raise

    def goals_of(example: _Example) -> list[str]:
        refused = [op.refused for op in example.session.operations if op.refused]
        reached = reached_goals(example.session, named) + example.variant.goals
        return reached + [f"refused: {name}" for name in refused]

    variants = st.builds(CallVariant, st.booleans(), st.booleans())
    return Check(
        function,
        Kind.SAME_REFUSAL if refusals else kind,
        lambda preset: st.builds(_Example, sessions(preset), variants, st.integers(0, 2**16)),
        body,
        f"{function} agrees with reference after every operation of a session.",
        [*named, *list(CALL_VARIANTS.values())[:2], *(f"refused: {name}" for name in refusals)],
        goals_of,
        has_kernel,
        presets=presets,
    )


@dataclasses.dataclass(frozen=True)
class _Example:
    """A session, and how it is run.

    Attributes:
        session: The session.
        variant: The variant of each call.
        seed: The order of threads.
    """

    session: Session
    variant: CallVariant
    seed: int

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave the session to the report, which prints it better than Hypothesis does."""
        printer.text(f"the session above, of {len(self.session.operations)} operations")


def _run(
    target: Target,
    example: _Example,
    get_buffers: Callable[[Any, Session], Mapping[str, Any]],
    *,
    checked: bool,
) -> None:
    __tracebackhide__ = True
    session = example.session
    runs = [_Pair(target, example, get_buffers) for _ in range(1 if target.is_simulated else 2)]
    for step, operation in enumerate(session.operations):
        if operation.refused and not target.validates:
            continue
        if checked or not operation.is_value:
            runs[0].run_step(step, checked=checked)
    # Operations on one object must not affect another with the same constructor.
    for step, operation in enumerate(session.operations[:NUM_STEPS_OF_ANOTHER]):
        if runs[1:] and not operation.refused:
            runs[1].run_step(step, checked=checked)


def _first_wrong(
    error: SessionMismatch,
    target: Target,
    example: _Example,
    get_buffers: Callable[[Any, Session], Mapping[str, Any]],
    reader: Callable[[Session], Operation],
) -> Iterator[str]:
    """Yield lines about the first operation after which the state is wrong, by bisection."""

    def differs(number: int) -> bool:
        pair = _Pair(target, example, get_buffers)
        try:
            for step in range(number):
                pair.run_step(step, checked=True)
            expected, got = (
                perform(twin, one, reader(example.session))
                for twin, one in ((REFERENCE, pair.ours), (target, pair.theirs))
            )
        except Mismatch:
            return True
        return first_difference(expected, got, "result", target.device or "cpu") is not None

    with target.running(checked=True, seed=example.seed):
        right, wrong = 0, error.step
        if not differs(wrong) or differs(right):
            return
        while wrong - right > 1:
            middle = (right + wrong) // 2
            right, wrong = (right, middle) if differs(middle) else (middle, wrong)
    operation = example.session.operations[wrong - 1]
    yield "The state is correct before this operation and wrong after it:"
    yield f"    {Call(operation.method, operation.arguments)!r}"


NUM_STEPS_OF_ANOTHER = 6
"""Operations of a second object, made with the first and used after it."""


class _Pair:
    """A target's object and `reference`'s, which run the same operations."""

    def __init__(
        self,
        target: Target,
        example: _Example,
        get_buffers: Callable[[Any, Session], Mapping[str, Any]],
    ) -> None:
        self.target, self.example = target, example
        self.ours, self.theirs = (construct(twin, example.session) for twin in (REFERENCE, target))
        held, seen = (get_buffers(one, example.session) for one in (self.ours, self.theirs))
        self.names, self.held, self.seen = (*held,), (*held.values(),), (*seen.values(),)
        self.addresses = [address_of(tensor) for _, tensor in arrays_in(self.seen, "everything")]

    def run_step(self, step: int, *, checked: bool) -> None:
        """Run one operation on both, and raise `SessionMismatch` if they differ."""
        __tracebackhide__ = True
        operation, device = self.example.session.operations[step], self.target.device or "cpu"
        variant = PLAIN if operation.refused else self.example.variant.supported_by(self.target)
        self._overwrite(operation)
        expected = perform(REFERENCE, self.ours, operation, variant)
        got = perform(self.target, self.theirs, operation, variant)
        difference = _refusal(operation, expected, "the call of reference") or _refusal(
            operation, got, "the call"
        )
        if difference is None and operation.refused is not None and checked:
            is_exact = is_of_fast(getattr(self.theirs, operation.method))
            difference = compare_wording(expected, got, is_exact=is_exact)
        if difference is None and operation.refused is None:
            difference = first_difference(expected, got, "result", device)
        if difference is None:
            difference = first_difference(self.held, self.seen, self.names, device)
        if difference is None:
            difference = _moved(got, self.addresses)
        if difference is not None:
            raise SessionMismatch(self.example.session, step, self.target.name, difference)

    def _overwrite(self, operation: Operation) -> None:
        """Write into both objects' buffers, as a caller may write into earlier results."""
        for held in (self.held, self.seen):
            written = [array for _, array in arrays_in(held, "everything")]
            for overwrite in operation.overwrites:
                overwrite.write(written[overwrite.array])


def construct(target: Target, session: Session) -> Any:
    """Construct a session's object on a target."""
    call, converter = session.constructor, target.converter()
    arguments = {name: converter.convert(value, name) for name, value in call.arguments.items()}
    if target.device is not None:
        arguments["device"] = target.device
    function = target.lookup(call.function)
    # Those of `reference`: a class that only forwards has `*args`.
    parameters = inspect.signature(REFERENCE.lookup(call.function)).parameters.values()
    several = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    by_position = arguments.pop(several[0]) if several else ()
    return function(*by_position, **arguments)


def perform(target: Target, self: Any, operation: Operation, variant: CallVariant = PLAIN) -> Any:
    """Call the method and return its result, or the exception; check its arguments afterwards.

    The arguments are overwritten at the end: a caller may reuse its lists and buffers.
    """
    call = Call(operation.method, operation.arguments)
    call = call.with_numpy_scalars() if variant.has_numpy_scalars else call
    converter = target.converter()
    arguments = {name: converter.convert(value, name) for name, value in call.arguments.items()}
    method = getattr(self, operation.method)
    result: Any
    try:
        result = method(*arguments.values()) if variant.is_positional else method(**arguments)
    except RAISED as error:  # evaluated by the caller
        result = error
    difference = converter.tracker.changed(frozenset())
    if difference is not None:
        raise Mismatch(call, target.name, difference)
    converter.tracker.poison_arguments()
    return result


def perform_or_raise(target: Target, self: Any, operation: Operation) -> Any:
    """Return the result of an operation; raise its exception if it raises one."""
    result = perform(target, self, operation)
    if isinstance(result, Exception):
        raise result
    return result


def _refusal(operation: Operation, outcome: object, whose: str) -> Difference | None:
    """Return the difference of an outcome from the expected one, or None."""
    if operation.refused is None:
        if not isinstance(outcome, BaseException):
            return None
        got, expected = raised(outcome), "return a result"
    else:
        if is_named(operation.error, operation.argument, outcome):
            return None
        got = raised(outcome) if isinstance(outcome, BaseException) else f"returned {outcome!r}"
        name = operation.error.__name__ if operation.error else ""
        expected = f"raise {name} naming {operation.argument} ({operation.refused})"
    return Difference(Verdict.OUTCOME, whose, None, got, expected)


def _moved(result: object, addresses: Sequence[int]) -> Difference | None:
    """Return a difference if a returned tensor is at none of the addresses."""
    for path, tensor in arrays_in(result, "result"):
        if tensor.numel() and address_of(tensor) not in addresses:
            got, expected = "new memory", "a view of the same buffer in each call"
            return Difference(Verdict.IDENTITY, path, None, got, expected)
    return None


__all__ = ["SessionMismatch", "construct", "perform", "perform_or_raise", "session_check"]
