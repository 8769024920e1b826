"""A call, with its arguments converted for one implementation, and the variant of the call."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from conformance.messages.mismatch import Mismatch
from conformance.targets.conversion import Converter
from conformance.targets.progress import PROGRESS
from conformance.targets.target import RAISED, REFERENCE, Target
from conformance.values.aliases import Alias
from conformance.values.call import Arguments, Call
from conformance.values.differences import Difference, Verdict
from conformance.values.parts import is_array, is_immutable, is_object, walk


@dataclasses.dataclass(frozen=True)
class CallVariant:
    """How a call is made: choices of the caller that must not change the answer.

    Attributes:
        has_numpy_scalars: Whether ints and bools are NumPy's.
        is_positional: Whether arguments are given by position, as far as they can be.
        has_own_objects: Whether objects are stubs, with the same attributes.
        follows_idle_step: Whether the same call was made before with zeros in the same memory, as a
            runner's step follows its dummy run.
        has_negated_tensors: Whether tensors are lazy negations (`torch._neg_view`).
    """

    has_numpy_scalars: bool = False
    is_positional: bool = False
    has_own_objects: bool = False
    follows_idle_step: bool = False
    has_negated_tensors: bool = False

    @property
    def goals(self) -> list[str]:
        """Return the names of its coverage goals."""
        return [name for field, name in CALL_VARIANTS.items() if getattr(self, field)]

    def supported_by(self, target: Target) -> CallVariant:
        """Return this variant without the choices that a target's adapter does not support."""
        adapter = target.implementation.adapter
        return dataclasses.replace(
            self,
            has_numpy_scalars=self.has_numpy_scalars and adapter.takes_numpy_scalars,
            has_own_objects=self.has_own_objects and adapter.takes_own_objects,
        )


CALL_VARIANTS = {
    "has_numpy_scalars": "called with NumPy's scalars",
    "is_positional": "called by position",
    "has_own_objects": "called with a caller's own objects",
    "follows_idle_step": "called after a call with zeros in the same memory",
    "has_negated_tensors": "called with lazily negated tensors",
}

IDLE_STEP = "raised by the preceding call, which has zeros in the same memory"
"""The note on an exception of that call."""

PLAIN = CallVariant()
"""By name, with Python's ints and the implementation's objects."""


@dataclasses.dataclass
class Invocation:
    """A call on one target, with its own copies of the arguments.

    Attributes:
        target: The target.
        call: The call as drawn.
        variant: How it is made.
        written: Names of the arguments that the function writes.
        converter: The converter that copied the arguments.
        arguments: The target's copies of the arguments.
        hints: The target's copies of the hints; `reference` gets none.
    """

    target: Target
    call: Call
    variant: CallVariant = PLAIN
    written: frozenset[str] = frozenset()
    converter: Converter = dataclasses.field(init=False)
    arguments: Arguments = dataclasses.field(init=False)
    hints: Arguments = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        # Only `fast` has to support torch's lazy negations.
        self.converter = self.target.converter(
            has_own_objects=self.variant.has_own_objects,
            negates=self.variant.has_negated_tensors and self.target.launches(self.call.function),
            written=self.written,
        )
        is_plain = not self.variant.has_numpy_scalars
        call = self.call if is_plain else self.call.with_numpy_scalars()
        self.arguments, self.hints = self._copies(call)

    def _copies(self, call: Call) -> tuple[Arguments, Arguments]:
        """Return the target's copies of a call's arguments and hints."""
        hints = {} if self.target is REFERENCE else call.hints
        arguments, hints = (
            {name: self.converter.convert(value, name) for name, value in given.items()}
            for given in (call.arguments, hints)
        )
        return arguments, hints

    @contextmanager
    def with_call(self, call: Call) -> Iterator[Invocation]:
        """Yield the invocation of a similar call; arguments that both share are copied once.

        This invocation must not have run, and calls inside must be refused, so that they leave its
        arguments unchanged.
        """
        with self.converter.forgetting():
            invocation = copy.copy(self)
            invocation.call = call
            invocation.arguments, invocation.hints = self._copies(call)
            yield invocation

    def answer(self, *, checked: bool = True, seed: int = 0) -> Any:
        """Call the function inside `Target.running`, and return its result.

        Args:
            checked: Whether to call it in checked mode.
            seed: The seed of the thread order.
        """
        with self.target.running(checked=checked, seed=seed):
            return self.run()

    def answer_or_error(self) -> Any:
        """Return what the function returns in checked mode, or the exception that it raises."""
        try:
            return self.answer()
        except RAISED as error:
            return error

    def run(self) -> Any:
        """Call the function and return its result; the caller must be inside `Target.running`."""
        if self.variant.follows_idle_step and self._may_be_idle():
            with self.converter.tracker.idle_step():
                self._run_idle()
        return self._run()

    def _run_idle(self) -> None:
        """Call the function with zeros; a step of no tokens may be refused."""
        try:
            self._run()
        except ValueError:
            pass
        except RAISED as error:
            error.add_note(IDLE_STEP)
            raise

    def _may_be_idle(self) -> bool:
        """Return whether an idle step is a valid call, or the target rejects invalid ones."""
        if self.target.implementation.adapter.validates:
            return True
        idle = Invocation(REFERENCE, self.call, written=self.written)
        with idle.converter.tracker.idle_step():
            try:
                idle.run()
            except RAISED:
                return False
        return True

    def _run(self) -> Any:
        PROGRESS.call_id = id(self.call)
        function = self.target.lookup(self.call.function)
        hints = {name: hint for name, hint in self.hints.items() if self.takes(name)}
        if not self.variant.is_positional:
            return function(**self.arguments, **hints)
        by_position, rest = by_position_of(REFERENCE.lookup(self.call.function), self.arguments)
        return function(*by_position, **rest, **hints)

    def takes(self, hint: str) -> bool:
        """Return whether the target's function has a keyword for a hint; if not, it is left out."""
        function = self.target.lookup(self.call.function)
        return hint in _parameters(function)

    def check_unchanged(self, allowed: frozenset[str]) -> None:
        """Raise `Mismatch` if an argument that may not change has changed."""
        difference = self.converter.tracker.changed(allowed)
        if difference is not None:
            raise Mismatch(self.call, self.target.name, difference)

    def aliasing(self, result: object, aliases: Sequence[Alias]) -> Iterator[Difference]:
        """Yield where a result shares memory with arguments or itself in violation of `aliases`."""
        for alias in aliases:
            yield from alias.differences(result, self.arguments)
        shared = {alias.result for alias in aliases}
        for path, part in walk(result, "result", with_plain=False):
            if not (is_array(part) or is_object(part)):
                continue
            if re.sub(r"^result(\[[^\]]*\])*\.?", "", path) in shared or is_immutable(part):
                continue
            owner = self.converter.tracker.owner(part)
            if owner is not None:
                got, expected = f"{owner} itself, or a view of it", "new memory"
                yield Difference(Verdict.IDENTITY, path, None, got, expected)
            elif isinstance(part, torch.Tensor) and repeats_itself(part):
                got, expected = "an expanded tensor", "separate memory for each element"
                yield Difference(Verdict.IDENTITY, path, None, got, expected)


@functools.lru_cache(1024)
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function; cached, since this takes as long as many calls."""
    return inspect.signature(function).parameters


def by_position_of(
    function: Callable[..., Any], arguments: Arguments
) -> tuple[list[Any], Arguments]:
    """Split arguments into those that can be given by position, in order, and the rest."""
    rest, by_position = dict(arguments), []
    for name, parameter in _parameters(function).items():
        if parameter.kind is parameter.KEYWORD_ONLY or name not in rest:
            break
        by_position.append(rest.pop(name))
    return by_position, rest


def repeats_itself(tensor: torch.Tensor) -> bool:
    """Return whether several elements of a tensor have the same address.

    >>> repeats_itself(torch.zeros(1).expand(3)), repeats_itself(torch.zeros(3))
    (True, False)
    """
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 0 and any(size > 1 and stride == 0 for size, stride in sizes)
