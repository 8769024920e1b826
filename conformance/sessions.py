"""The check of objects that keep state: both twins' agree after every operation of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from conformance.checks import Check
from conformance.comparison import Difference, Verdict, first_difference
from conformance.contracts import Call
from conformance.profiles import Kind
from conformance.report import Mismatch
from conformance.situations import Situations, situations_met
from conformance.strategies.presets import Preset
from conformance.strategies.sessions import Operation, Session
from conformance.targets import REFERENCE, Target


class SessionMismatch(Mismatch):
    """A difference in the course of a session, told with what was done before it."""

    def __init__(self, session: Session, step: int, target: str, difference: Difference) -> None:
        done = session.operations[: step + 1]
        call = Call(f"{session.constructor.function}.{done[-1].method}", done[-1].arguments)
        super().__init__(call, target, difference)
        lines = [f"    {Call(op.method, op.arguments)!r}" for op in done[:-1]]
        story = "\n".join(["    made by " + repr(session.constructor), *lines])
        self.args = (f"{self.args[0]}\n  after\n{story}",)


def session_check(
    function: str,
    sessions: Callable[[Preset], SearchStrategy[Session]],
    everything: Callable[[Any, Session], Any],
    *,
    situations: Situations | None = None,
    refusals: Sequence[str] = (),
    has_kernel: bool = False,
) -> Check:
    """Return the check that a target's object and `reference`'s agree after every operation.

    Args:
        function: The class.
        sessions: The strategy of sessions, by preset.
        everything: Hands out, right after the object is made, views of all that its operations
            write; they are compared after every operation, and must not move.
        situations: Named predicates on a session that a run must meet.
        refusals: What is wrong with the bad operations that a run must meet; with any, the check is
            one of refusals, in checked mode.
        has_kernel: Whether the class has kernels.
    """
    named = situations or {}

    def body(target: Target, example: tuple[Session, int]) -> None:
        __tracebackhide__ = True
        session, seed = example
        # Checked mode first: there a loop that goes astray raises, and does not crash.
        for checked in (True,) if refusals else (True, False):
            with target.running(checked=checked, seed=seed):
                _run(target, session, everything)

    return Check(
        function,
        Kind.SAME_REFUSAL if refusals else Kind.SAME_ANSWER,
        lambda preset: st.tuples(sessions(preset), st.integers(0, 2**16)),
        body,
        f"A {function} of a target agrees with reference's after every operation.",
        [*named, *(f"refused: {name}" for name in refusals)],
        lambda example: [
            *situations_met(example[0], named),
            *(f"refused: {op.refused}" for op in example[0].operations if op.refused),
        ],
        has_kernel,
    )


def _run(target: Target, session: Session, everything: Callable[[Any, Session], Any]) -> None:
    __tracebackhide__ = True
    ours, theirs = construct(REFERENCE, session), construct(target, session)
    held, seen = everything(ours, session), everything(theirs, session)
    addresses = [_address(tensor) for tensor in _tensors(seen)]
    device = target.device or "cpu"
    for step, operation in enumerate(session.operations):
        wanted = perform(REFERENCE, ours, operation)
        got = perform(target, theirs, operation)
        difference = _refusal(operation, wanted, "reference") or _refusal(operation, got, "target")
        if difference is None and operation.refused is None:
            difference = first_difference(wanted, got, "result", device)
        if difference is None:
            difference = first_difference(held, seen, "everything", device)
        if difference is None:
            difference = _moved(got, addresses)
        if difference is not None:
            raise SessionMismatch(session, step, target.name, difference)


def construct(target: Target, session: Session) -> Any:
    """Return a session's object, as a target makes it."""
    arguments = dict(session.constructor.arguments)
    if target.device is not None:
        arguments["device"] = target.device
    return target.lookup(session.constructor.function)(**arguments)


def perform(target: Target, self: Any, operation: Operation) -> Any:
    """Call the method and return its result, or the exception; check its arguments afterwards."""
    carrier = target.carrier()
    arguments = {name: carrier.carry(value, name) for name, value in operation.arguments.items()}
    result: Any
    try:
        result = getattr(self, operation.method)(**arguments)
    except Exception as error:  # noqa: BLE001  # judged by the caller
        result = error
    difference = carrier.changed(operation.arguments, arguments, frozenset())
    if difference is not None:
        raise Mismatch(Call(operation.method, operation.arguments), target.name, difference)
    return result


def _refusal(operation: Operation, outcome: object, whose: str) -> Difference | None:
    """Return what is wrong with how an operation ended, None where it ended as it should."""
    if operation.refused is None:
        if not isinstance(outcome, Exception):
            return None
        got, wanted = f"raised {type(outcome).__name__}: {outcome}", "a result"
    else:
        if type(outcome) is operation.error and operation.argument in str(outcome):
            return None
        got = repr(outcome)
        name = operation.error.__name__ if operation.error else ""
        wanted = f"{name} naming {operation.argument} ({operation.refused})"
    return Difference(Verdict.OUTCOME, f"the call of {whose}", None, got, wanted)


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a tree in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for inner in value for tensor in _tensors(inner)]
    return []


def _address(tensor: torch.Tensor) -> int:
    return (
        tensor.untyped_storage().data_ptr() + int(tensor.storage_offset()) * tensor.element_size()
    )


def _moved(result: object, addresses: Sequence[int]) -> Difference | None:
    """Return a difference where a tensor handed out lies elsewhere than it first did."""
    for i, tensor in enumerate(_tensors(result)):
        if tensor.numel() and _address(tensor) not in addresses:
            path = f"result[{i}].data_ptr()"
            return Difference(Verdict.IDENTITY, path, None, "moved", "where it first was")
    return None


__all__ = ["SessionMismatch", "construct", "perform", "session_check"]
