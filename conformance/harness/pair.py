"""A call of both twins: the same arguments, object by object, and the comparison."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from conformance.harness.compare import Comparison
from conformance.harness.contract import Arguments, Contract
from conformance.harness.memory import Memory, NotMadeError, with_more_fields
from conformance.harness.objects import (
    Outcome,
    Twin,
    attempt,
    perform,
    reference_function,
)
from conformance.harness.process import unchanged
from conformance.harness.story import Circumstances, Difference, Failure, Story, Verdict
from conformance.harness.values import (
    Array,
    Drawn,
    Path,
    Stub,
    arrays,
    copied,
    get,
    is_object,
    objects,
    parts,
    places,
    rebuilt,
    set_part,
    text_of,
)

if TYPE_CHECKING:
    from conformance.harness.targets import Target


class Found(Exception):  # noqa: N818  # a difference, not an error
    """The first difference of a call; `checks` makes a `Failure` of it.

    `arguments` are those of the call, if it is not the first one of its story.
    """

    def __init__(self, difference: Difference, arguments: Arguments | None = None) -> None:
        super().__init__(difference)
        self.difference, self.arguments = difference, arguments


def reference_answer(contract: Contract, arguments: Arguments) -> Outcome:
    """Return the outcome of `reference`; arguments that it writes are changed."""
    if contract.run is not None or contract.has_objects:
        return perform(Twin(), contract, arguments)
    return attempt(reference_function(contract.function), **arguments)


@contextmanager
def _switched(read: Callable[[], Any], write: Callable[[Any], None], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


MODES: Final[Mapping[str, Callable[[], AbstractContextManager[Any]]]] = {
    "": nullcontext,
    "three threads of torch": lambda: _switched(torch.get_num_threads, torch.set_num_threads, 3),
    "torch.no_grad": torch.no_grad,
    "torch.inference_mode": torch.inference_mode,
    "torch.autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default dtype bfloat16": lambda: _switched(
        torch.get_default_dtype, torch.set_default_dtype, torch.bfloat16
    ),
    "default device meta": lambda: torch.device("meta"),
}
"""Modes of torch in which a call is made."""


class _List(list[Any]):
    """A caller's list."""


class _Dict(dict[Any, Any]):
    """A caller's dict."""


class _Str(str):
    """A caller's str."""

    __slots__ = ()


def _throughout(change: Callable[[Any, Callable[[Any], Any]], Any]) -> Callable[[Any], Any]:
    """Return a function that changes a value and its parts; a part that occurs twice stays one."""

    def changed(value: Any) -> Any:
        made: dict[int, tuple[Any, Any]] = {}

        def once(value: Any) -> Any:
            if id(value) not in made:
                made[id(value)] = value, change(value, once)
            return made[id(value)][1]

        return once(value)

    return changed


def _subclassed(value: Any, once: Callable[[Any], Any]) -> Any:
    if isinstance(value, str):
        return _Str(value)
    if isinstance(value, slice) or not (isinstance(value, list | dict) or parts(value)):
        return value
    new = [(key, once(part)) for key, part in parts(value)]
    if is_object(value) and not isinstance(value, Drawn | SimpleNamespace):
        return rebuilt(value, [*new, ("more", 9)], with_more_fields(type(value)))  # type: ignore[arg-type]  # hashable
    own: dict[Any, Any] = {list: _List, dict: _Dict}
    return rebuilt(value, new, own.get(type(value)))


@functools.cache
def _stub_class(name: str) -> type[Any]:
    return type(name, (Stub,), {})


def _stubbed(value: Any, once: Callable[[Any], Any]) -> Any:
    if isinstance(value, slice) or not parts(value):
        return value
    new = [(key, once(part)) for key, part in parts(value)]
    is_theirs = is_object(value) and not isinstance(value, Drawn)
    return rebuilt(value, new, _stub_class(type(value).__name__) if is_theirs else None)


OBJECTS: Final[Mapping[str, Callable[[Arguments], Arguments]]] = {
    "": lambda arguments: arguments,
    "subclasses": _throughout(_subclassed),
    "own classes": _throughout(_stubbed),
}
"""Whose classes the lists, dicts and objects among the arguments are of: a caller's subclasses, or
a caller's own classes with the same attributes."""


ORDINARY: Final = Circumstances()


class Pair:
    """The arguments of a call for `reference`, and the same ones for the target."""

    def __init__(
        self,
        contract: Contract,
        target: Target,
        arguments: Arguments,
        circumstances: Circumstances = ORDINARY,
        *,
        is_paged: bool = False,  # memory lies in pages of its own
    ) -> None:
        self.contract, self.target, self.circumstances = contract, target, circumstances
        self.drawn = arguments
        self.ours: Arguments = copied(arguments, has_numpy_scalars=circumstances.has_numpy_scalars)
        self.memory = Memory(target, contract, circumstances, is_paged=is_paged)
        try:
            self.theirs = self.memory.converted(self.ours)
        except NotMadeError as error:
            name, raised = error.args
            raise Found(Difference(f"{name}(...)", raised, f"a {name}", "raises")) from None
        # A stranger need not have the `state` of a `Result`, nor what a caller's subclass has more.
        lacks = target.lacks if target.is_fast else target.lacks | {"state", "more"}
        self.comparison = Comparison(
            target.device, contract.host, lacks, may_have_more=not target.is_fast
        )
        self.held: list[tuple[Any, Any]] = []  # earlier results of both, which stay equal

    def expected(self) -> Outcome:
        return reference_answer(self.contract, self.ours)

    def outcome(self, mode: str | None = None) -> Outcome:
        self.target.implementation.check_preconditions(self.contract.function, self.ours)
        with unchanged() as settings, MODES[self.circumstances.mode if mode is None else mode]():
            if self.contract.run is not None or self.contract.has_objects:
                outcome = perform(Twin(self.target), self.contract, self.theirs)
            else:
                outcome = attempt(self.prepared())
        for difference in settings:
            raise Found(difference)
        return outcome

    def prepared(self) -> Callable[[], Any]:
        if self.contract.run is not None or self.contract.has_objects:
            return self._performed
        args, keywords = self._passed()
        return functools.partial(self.target.function(self.contract.function), *args, **keywords)

    def _performed(self) -> Any:
        outcome = perform(Twin(self.target), self.contract, self.theirs)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _passed(self) -> tuple[list[Any], Arguments]:
        keywords = dict(self.theirs)
        lacking = self.target.implementation.lacking(self.contract.function)
        if not self.circumstances.is_positional or lacking.is_reordered or lacking.parameters:
            return [], keywords
        function = reference_function(self.contract.function)
        args = []
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in keywords or parameter.kind is parameter.KEYWORD_ONLY:
                break
            args.append(keywords.pop(name))
        return args, keywords

    def call(self, mode: str | None = None, wanted: Outcome | None = None) -> Outcome:
        """Call both, and raise `Found` unless they do the same; return `reference`'s outcome.

        `wanted` is that outcome, if it is known from an earlier call that wrote the same.
        """
        expected = self.expected() if wanted is None else wanted
        if expected.error is not None:  # earlier calls may have filled what is written
            self.restore()
            expected = self.expected()
        if expected.error is not None:
            raise AssertionError(f"the strategy drew an invalid call: {expected.error!r}")
        before = self.memory.snapshot()
        versions = self._versions()
        got = self.outcome(mode)
        if got.error is not None:
            self._refuse(Difference("the call", got.error, expected.value, "raises"))
            return expected
        self._refuse(self.comparison.difference(expected.value, got.value))
        self._refuse(self.effect(expected, got))
        self._refuse(self._changes(before, versions))
        self.held.append((expected.value, got.value))
        return expected

    def _refuse(self, found: Difference | None) -> None:
        """Raise `Found` unless there is no difference, or a declared one."""
        story = Story(self.contract.function, self.drawn)
        if found is not None and not self.target.excuses(Failure(story, self.target.name, found)):
            raise Found(found, self.drawn)

    def effect(self, expected: Outcome, got: Outcome) -> Difference | None:
        return self.comparison.difference(expected.effects, got.effects, "after the call")

    def _folded(self, expected: Any, got: Any) -> Difference | None:
        """Return the first array of a result whose elements share memory, as in an expanded one.

        Or an object that occurs twice in a result, if `reference` returns two.
        """
        if len(set(map(id, objects(got)))) < len(set(map(id, objects(expected)))):
            return Difference("result", "one object twice", "two objects", "wrong object")
        for mine, theirs in alike(expected, got):
            strides = theirs.strides if isinstance(theirs, np.ndarray) else theirs.stride()
            if not mine.size or not any(
                n > 1 and not s for n, s in zip(mine.shape, strides, strict=True)
            ):
                continue
            if not any(np.may_share_memory(mine, array) for array in arrays(self.ours)):
                words = "elements that share memory", "memory for each"
                return Difference("result", *words, "wrong memory")
        return None

    def _versions(self) -> list[int]:
        given = (placed.given for placed in self.memory.placed)
        return [
            tensor._version  # noqa: SLF001  # torch's name for the number of writes
            if isinstance(tensor, torch.Tensor) and not tensor.is_inference()
            else 0
            for tensor in given
        ]

    def _changes(self, before: Any, versions: list[int]) -> Difference | None:
        """Return the first change of the arguments that `reference` does not make."""
        found = self.memory.changed(before)
        if found is not None:
            return found
        for placed, old, new in zip(self.memory.placed, versions, self._versions(), strict=True):
            if old != new and placed.name.partition(".")[0] not in self.contract.written:
                kind = "is written, and put back"
                return Difference(placed.name, new - old, 0, kind, Verdict.ROBUSTNESS)
        if not any(True for value in self.ours.values() for _ in objects(value)):
            return None
        found = self.comparison.difference(self.ours, self.theirs, "arguments")
        return found if found is not None and found.verdict is Verdict.WRONG_ANSWER else None

    def check_sharing(self) -> None:
        """Raise `Found` unless the last results share memory as those of `reference` do.

        A number is written into each array of both results; then all memory is compared, and
        restored.
        """
        expected, got = self.held.pop()
        self._refuse(self._folded(expected, got))
        for name, given in self.ours.items():
            if expected is given and got is not self.theirs[name] and isinstance(given, np.ndarray):
                kind = "returns another object"
                raise Found(Difference("result", "another object", name, kind, Verdict.OTHER))
        if "expanded" in self.circumstances.layouts:
            return
        mine = [(array, array.copy()) for array in arrays(self.ours)]
        before = self.memory.snapshot()
        theirs = {id(value) for value in objects(self.theirs)}
        ours = {id(value) for value in objects(self.ours)}
        pairs = zip(objects(expected), objects(got), strict=False)
        is_same = any(id(b) in theirs and id(a) not in ours for a, b in pairs)
        write_into(expected, got)
        olds = {id(array): old for array, old in mine}
        found = [self._sharing(change, olds) for change in self.memory.changes(before)]
        wrong = None if found else self.comparison.difference(expected, got)
        if wrong is not None and wrong.verdict is Verdict.WRONG_ANSWER:
            where, kind = (
                f"after a write into each result, {wrong.where}",
                "other results share memory",
            )
            found = [Difference(where, wrong.got, wrong.expected, kind)]
        for array, old in mine:
            array[...] = old
        self.memory.refill()
        if is_same:
            kind = "returns an object of the arguments"
            found += [Difference("result", "an argument", "a new one", kind, Verdict.OTHER)]
        for difference in sorted(found, key=lambda one: one.verdict is Verdict.OTHER):
            self._refuse(difference)

    def _sharing(self, found: Difference, before: Mapping[int, Array]) -> Difference:
        """Return what a write to the results has shown, in words."""
        same = (placed.ours for placed in self.memory.placed if placed.name == found.where)
        old = next((before[id(ours)] for ours in same), None)
        words = f"shares memory with {found.where}", "memory of its own"
        if old is None or not np.array_equal(found.got, old):
            return Difference("result", *words, "the result shares memory")
        return Difference("result", *words[::-1], "the result is a copy", Verdict.OTHER)

    def check_held(self) -> None:
        """Raise `Found` unless all earlier results are still as `reference`'s are."""
        for expected, got in self.held:
            self._refuse(self.comparison.difference(expected, got, "an earlier result"))

    def put(self, path: Path, new: Any) -> None:
        _replace(self.ours, path, new)
        _replace(self.theirs, path, self.memory.convert(new, text_of(path)))

    def fill(self, contents: Mapping[Path, Any]) -> None:
        """Write other contents into arrays of both, by their paths; torch does not see it."""
        for path, values in contents.items():
            get(self.ours, path)[...] = values
        self.memory.refill()

    def restore(self) -> None:
        """Write the drawn contents into the arrays of both."""
        for ours, drawn in zip(arrays(self.ours), arrays(self.drawn), strict=True):
            ours[...] = drawn
        self.memory.refill()

    def accepts(self, paths: Iterable[Path], new: Any) -> Outcome:
        """Return the outcome of `reference` with another part at each path."""
        changed = copied(self.ours)
        for path in paths:
            refused = attempt(_replace, changed, path, copied(new))
            if refused.error is not None:
                return refused
        return reference_answer(self.contract, changed)


def _replace(value: Any, path: Path, new: Any) -> None:
    old = get(value, path)
    if isinstance(old, list) and isinstance(new, list):
        old[:] = new
    else:
        set_part(value, path, new)


def write_into(expected: Any, got: Any) -> None:
    """Write numbers into the arrays of two results; `x` and `x_cpu`, which may be one, get one."""
    numbers: dict[Path, int] = {}
    with torch.inference_mode():
        for path, mine in places(expected, most=10**9):
            if isinstance(mine, np.ndarray) and mine.size and mine.flags.writeable:
                suffixes = re.compile("(_cpu)?(_upper_bound)?$")
                stem = tuple(suffixes.sub("", str(key)) for key in path)
                number = 11 + numbers.setdefault(stem, len(numbers)) % 100
                mine[...] = number
                theirs = attempt(get, got, path)
                if theirs.value is not None:  # it may lack a field
                    theirs.value[...] = number


def alike(expected: Any, got: Any) -> Iterator[tuple[Array, Any]]:
    for path, mine in places(expected, most=10**9):
        if isinstance(mine, np.ndarray):
            theirs = attempt(get, got, path)
            if theirs.value is not None:
                yield mine, theirs.value
