"""What a call needs beyond plain data: objects that each twin makes, and sessions of an object.

An argument may be a `Factory`: it is drawn, changed, stored and shown as the data in its fields,
and each twin makes an object of it anew for each call. A contract's `run` makes the call itself:
`play` returns one that makes an object and calls its methods.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

import reference
from conformance.harness.values import Drawn, copied, parts, rebuilt

if TYPE_CHECKING:
    from conformance.harness.contract import Arguments, Contract
    from conformance.harness.targets import Target

RAISED = (Exception, SystemExit)
"""What counts as an answer of a call: `sys.exit` in it does not end a run."""


class Outcome(NamedTuple):
    """What a call returned, or the exception that it raised; and what became of its objects."""

    value: Any = None
    error: BaseException | None = None
    effects: Any = None


def attempt(function: Callable[..., Any], *args: Any, **keywords: Any) -> Outcome:
    try:
        return Outcome(function(*args, **keywords))
    except RAISED as error:
        return Outcome(error=error)


class Factory(Drawn, abc.ABC):
    """Data of which each twin makes an object: a class, a backend, a layer.

    Subclasses are dataclasses. When `make` is called, factories in the fields have been made.
    """

    @abc.abstractmethod
    def make(self, twin: Twin) -> Any:
        """Return the object of a twin."""

    def state(self, made: Any) -> Any:
        """Return what a call may change of the object: it is compared after each call."""
        del made


@dataclasses.dataclass
class Fresh(Factory):
    """A list or dict that the function changes: each call gets its own."""

    value: Any

    def make(self, _: Twin) -> Any:
        return copy.copy(self.value)

    def state(self, made: Any) -> Any:
        return made if isinstance(made, list | dict) else None


@dataclasses.dataclass
class Device(Factory):
    """The device of a twin's tensors; None for `reference`."""

    def make(self, twin: Twin) -> str | None:
        return twin.device


class Twin:
    """`reference`, or a target, while it makes one call."""

    def __init__(self, target: Target | None = None) -> None:
        self.target = target
        self.effects: list[Any] = []  # what `run` leaves to be compared even if it raises
        self._made: dict[int, tuple[Any, Any]] = {}
        self._factories: list[tuple[Factory, Any]] = []

    @property
    def device(self) -> str | None:
        """The type of device of its tensors; None for `reference`, which has arrays."""
        return None if self.target is None else self.target.device

    def array(self, values: Any) -> Any:
        """Return a new array of the twin with these values."""
        made = np.array(values)
        return made if self.device is None else torch.from_numpy(made).to(self.device)

    def find(self, name: str) -> Any:
        if self.target is None:
            return operator.attrgetter(name)(reference)
        return self.target.find(name)

    def function(self, name: str) -> Callable[..., Any]:
        return reference_function(name) if self.target is None else self.target.function(name)

    def method(self, cls: str, made: Any, name: str) -> Callable[..., Any]:
        """Return a method of an object that it made, by our names of the class and the method."""
        if self.target is None:
            return getattr(made, name)  # type: ignore[no-any-return]
        return self.target.implementation.method(cls, made, name)

    def make(self, value: Any) -> Any:
        """Return a value with objects in place of factories; one that occurs twice stays one."""
        is_plain = isinstance(value, slice) or (
            isinstance(value, list) and all(type(part) is int for part in value)
        )
        if is_plain or not parts(value):
            return value if not isinstance(value, Factory) else self._once(value, [])
        if id(value) in self._made:
            return self._made[id(value)][1]
        return self._once(value, [(key, self.make(part)) for key, part in parts(value)])

    def _once(self, value: Any, new: list[tuple[Any, Any]]) -> Any:
        if id(value) not in self._made:
            is_same = all(
                made is part for (_, made), (_, part) in zip(new, parts(value), strict=True)
            )
            made = value if is_same else rebuilt(value, new)
            if isinstance(made, Factory):
                factory, made = made, made.make(self)
                self._factories.append((factory, made))
            self._made[id(value)] = value, made
        return self._made[id(value)][1]

    def states(self) -> list[Any]:
        """Return what became of the objects that were made, in order."""
        return [frozen(factory.state(made)) for factory, made in self._factories]


def reference_function(name: str) -> Callable[..., Any]:
    found: Any = operator.attrgetter(name)(reference)
    if isinstance(found, functools.cached_property):
        found = found.func
    return getattr(found, "fget", found)  # type: ignore[no-any-return]


def perform(
    twin: Twin, contract: Contract, arguments: Arguments, call: Callable[..., Any] | None = None
) -> Outcome:
    """Make a call whose arguments may have factories; `call` is the twin's function, if known."""
    made = attempt(twin.make, arguments)
    if made.error is not None:
        return made
    if contract.run is not None:
        outcome = attempt(contract.run, twin, **made.value)
    else:
        outcome = attempt(call or twin.function(contract.function), **made.value)
    states = attempt(twin.states)
    return outcome._replace(effects=[twin.effects, states.value, states.error])


def frozen(value: Any) -> Any:
    """Return a value with copies of its arrays, which do not change any more."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, slice) or not parts(value):
        return value
    return rebuilt(value, [(key, frozen(part)) for key, part in parts(value)])


# Sessions.


@dataclasses.dataclass
class Operation(Drawn):
    """A call of a method in a session."""

    # Its name; empty for nothing; `"="` writes `value` into all arrays that operation `step` has
    # returned, as a caller may.
    method: str
    arguments: dict[str, Any]  # its keyword arguments
    on: int = 0  # which of the session's objects it is called on


@dataclasses.dataclass
class Result(Drawn):
    """What an operation did: all parts are copies."""

    returned: Any  # its result
    state: Any  # what is watched, afterwards; an implementation may have nothing to watch
    is_refused: bool  # whether it has raised


@dataclasses.dataclass
class Played(Drawn):
    """The result of a session: what each operation did, and their results themselves."""

    steps: list[Result]
    results: list[Any]


def play(cls: str, watch: Callable[[Any, Arguments], Any]) -> Callable[..., Played]:
    """Return a `run` for a contract: it makes objects of a class, and calls their methods in order.

    The arguments of the contract are those of the constructor, and `operations`. An operation that
    raises does not end the session, so that what it leaves behind is compared.
    """

    def run(twin: Twin, *, operations: list[Operation], **constructor: Any) -> Played:
        number = 1 + min(max((operation.on for operation in operations), default=0), 3)
        made = [twin.function(cls)(**constructor) for _ in range(number)]
        watched = attempt(watch, made[0], constructor)
        is_known = twin.target is None or twin.target.is_fast
        if watched.error is not None and is_known:
            raise watched.error
        played, errors = Played([], []), list[BaseException]()
        for operation in operations:
            method = functools.partial(twin.method, cls, made[operation.on])
            got = attempt(_operate, method, operation, played.results)
            played.results.append(got.value)
            is_refused = got.error is not None
            step = Result(frozen(got.value), frozen(watched.value), is_refused)
            if watched.error is not None:  # it lacks a method
                del step.state
            played.steps.append(step)
            if got.error is not None:
                errors.append(got.error)
                if len(errors) > 1:  # what follows from the first one
                    break
        if errors:
            twin.effects.append(played.steps)
            raise errors[0]
        return played

    return run


def _operate(
    method: Callable[[str], Callable[..., Any]], operation: Operation, results: list[Any]
) -> Any:
    if operation.method == "=":
        _write(results[operation.arguments["step"]], operation.arguments["value"])
    elif operation.method:
        return method(operation.method)(**operation.arguments)
    return None


def possible(target: Target, contract: Contract, arguments: Arguments) -> Arguments:
    """Return a valid call without options, and a session without methods, that a target lacks.

    Nothing is in place of an operation that is not possible; so others may not be, either.
    """
    if target.is_fast:
        return arguments
    implementation = target.implementation
    fewer: Arguments = implementation.supported(contract.function, arguments)
    if len(fewer) < len(arguments) and perform(Twin(), contract, copied(fewer)).error is None:
        arguments = fewer
    operations = arguments.get("operations")
    if not isinstance(operations, list):
        return arguments
    nothing, known = Operation("", {}), {"", "="}
    kept = [
        one
        if one.method in known or implementation.takes(contract.function, one.method, one.arguments)
        else nothing
        for one in operations
    ]
    if all(map(operator.is_, kept, operations)):
        return arguments
    for attempts in range(5):
        outcome = perform(Twin(), contract, copied({**arguments, "operations": kept}))
        steps = outcome.effects[0][0] if outcome.error is not None and outcome.effects[0] else []
        refused = [k for k, step in enumerate(steps) if step.is_refused]
        if not refused:
            break
        kept[refused[0]] = nothing
        if attempts == 4:
            del kept[refused[0] :]
    return {**arguments, "operations": kept}


def _write(value: Any, number: int) -> None:
    if isinstance(value, np.ndarray | torch.Tensor) and isinstance(number, int | np.integer):
        value[...] = number % 100
    for _, part in parts(value) if not isinstance(value, slice) else ():
        _write(part, number)
