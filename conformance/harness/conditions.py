"""Conditions: what must not matter. Each is a function that all functions' stories may meet.

A condition gets a `Stage` after the call `x` has been compared once, makes further calls, and
raises `Found` if one of them differs. All results are held until the end of the story.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import os
import random
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path as File
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from conformance.adapters import Unsupported
from conformance.harness.compare import as_numpy
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Outcome, attempt
from conformance.harness.pair import (
    MODES,
    OBJECTS,
    Found,
    Pair,
    reference_answer,
    write_into,
)
from conformance.harness.story import Difference, Failure, Story, Verdict
from conformance.harness.tensor_kinds import TAKEN, TENSORS
from conformance.harness.values import (
    Drawn,
    Path,
    Stub,
    arrays,
    copied,
    fields_of,
    fingerprint,
    get,
    is_object,
    objects,
    parts,
    places,
    put,
    set_part,
    text_of,
)

if TYPE_CHECKING:
    from conformance.harness.targets import Target


@dataclasses.dataclass
class Stage:
    """What a condition works with."""

    contract: Contract  # the contract of the function
    target: Target  # the target
    story: Story  # the story
    x: Pair  # the call, which has been compared once
    random: random.Random  # what the condition chooses by itself

    @functools.cached_property
    def y(self) -> Pair:
        """Another call, mostly of the same sizes."""
        return self.pair(self.story.other or self.story.arguments)

    def pair(self, arguments: Arguments, *, is_paged: bool = False) -> Pair:
        """Return the same call with other arguments."""
        return Pair(self.contract, self.target, arguments, self.x.circumstances, is_paged=is_paged)

    @property
    def writes(self) -> bool:
        """Whether a repeated call finds other arguments; `out` is written alike each time."""
        return rewrites(self.contract, self.x.ours)


def rewrites(contract: Contract, arguments: Arguments) -> bool:
    return any(name in arguments for name in contract.written - {"out"})


def _validates(target: Target) -> bool:
    return target.implementation.adapter.validates


Run: TypeAlias = Callable[[Stage], None]


@dataclasses.dataclass(frozen=True)
class Condition:
    """Something that must not matter."""

    run: Run  # makes calls and raises `Found`
    words: str  # what was needed, in reports
    verdict: Verdict = Verdict.WRONG_ANSWER  # what a failure is that only shows with it
    weight: int = 2  # how often it is drawn
    needs_other: bool = False  # whether it makes another call too
    needs_objects: bool = False  # whether it needs objects of the caller's own classes
    same_sizes: bool = False  # whether the other call mostly has the same sizes
    takes_long: bool = False  # whether it takes milliseconds; then it is drawn on `host` only
    # Whether it depends on timing: a failure is repeated before it is reported.
    may_vary: bool = False


CONDITIONS: Final[dict[str, Condition]] = {}
"""By the names of their functions."""


def condition(words: str, **options: Any) -> Callable[[Run], Run]:
    def declare(run: Run) -> Run:
        CONDITIONS[run.__name__] = Condition(run, words, **options)
        return run

    return declare


# Earlier calls.


@condition("one value of the same objects changed", weight=5, needs_other=True, same_sizes=True)
def edited(stage: Stage) -> None:
    """A cache must not take a call for another that differs in one value."""
    x = stage.x
    base = fingerprint(x.accepts([], None).value)
    for path, new in _edits(stage):
        affordable = attempt(stage.contract.is_affordable, put(x.ours, path, new))
        if affordable.error is None and not affordable.value:
            continue
        outcome = x.accepts([path], new)
        if outcome.error is None and fingerprint(outcome.value) != base:
            old = copy.copy(get(x.ours, path))
            for value in (new, old):
                x.put(path, value)
                x.call()
            return
    refilled(stage)


def _edits(stage: Stage) -> Iterator[tuple[Any, Any]]:
    """Yield other values of scalars, lists and dicts within the arguments."""
    arguments, other = stage.x.ours, stage.story.other or {}
    found = [
        (path, value)
        for path, value in places(arguments)
        if path and _is_settable(arguments, path) and not isinstance(value, np.ndarray)
    ]
    for _ in range(8 if found else 0):
        path, value = stage.random.choice(found)
        has_it = attempt(get, stage.x.theirs, path).error is None  # an adapter's object may not
        if not has_it or not stage.target.lacks.isdisjoint(path):
            continue
        theirs = attempt(lambda path=path: get(other, path))
        new: list[Any] = []
        if theirs.error is None and type(theirs.value) is type(value):
            new.append(theirs.value)
        if isinstance(value, bool | np.bool_):
            new = [not value]
        elif isinstance(value, int | np.integer):
            new += [int(value) + 1, int(value) - 1, int(value) // 2, 2 * int(value), 0, 1]
        elif isinstance(value, list):
            new += [value[:-1], value + value[-1:], value[1:]]
        elif value is None:
            new += [0, 1]
        for candidate in stage.random.sample(new, min(2, len(new))):
            yield path, candidate


def _is_settable(arguments: Arguments, path: Any) -> bool:
    parent = get(arguments, path[:-1])
    if isinstance(parent, tuple | slice):
        return False
    parameters = getattr(type(parent), "__dataclass_params__", None)
    return not (parameters and parameters.frozen)


@condition("the same memory with other contents", weight=5, needs_other=True, same_sizes=True)
def refilled(stage: Stage) -> None:
    """Runners write each step into the same buffers; torch does not see NumPy's writes."""
    if "expanded" in stage.story.circumstances.layouts:  # entries that share memory
        in_turn(stage)
        return
    x, other = stage.x, dict(places(stage.y.ours))
    contents = {
        path: other[path].copy()
        for path, value in places(x.ours)
        if isinstance(value, np.ndarray) and getattr(other.get(path), "shape", None) == value.shape
    }
    old = {path: get(x.ours, path).copy() for path in contents}
    for path, values in contents.items():
        if path == ("out",):  # nothing is left of an earlier call
            values[...] = 55
            old[path][...] = 66
    if stage.random.random() < 0.3 and _validates(
        stage.target
    ):  # an idle step: it may be refused, but nothing is left of it
        x.fill({path: np.zeros_like(values) for path, values in old.items()})
        x.outcome()
    else:
        x.fill(contents)
        if x.accepts([], None).error is None:
            x.call()
    x.fill(old)
    x.call()


@condition("a copy of the objects with other contents", needs_other=True, same_sizes=True)
def of_copies(stage: Stage) -> None:
    """What an object has cached in itself is about its own memory."""
    y = stage.y
    for name, value in stage.x.theirs.items():
        if is_object(value) and type(value) is type(y.theirs.get(name)):
            clone = copy.deepcopy(value)
            for field, new in fields_of(y.theirs[name]).items():
                old = getattr(clone, field)
                is_alike = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)
                is_alike = is_alike and (old.shape, old.dtype) == (new.shape, new.dtype)
                if is_alike and 0 not in old.stride():
                    old.copy_(new)
                else:
                    object.__setattr__(clone, field, new)
            y.theirs[name] = clone
    y.call()
    stage.x.call()


@condition("another call in turn", needs_other=True)
def in_turn(stage: Stage) -> None:
    """Two callers use the function in turn."""
    for pair in (stage.y, stage.x, stage.y):
        pair.call()
    stage.y.check_held()


@condition("the same call, many times", weight=1, takes_long=True)
def repeated(stage: Stage) -> None:
    """Results of earlier calls are held, so that none may lie in memory that is used again."""
    times = stage.random.choice((3, 17, 40, 40, 300))
    wanted = None if stage.writes else stage.x.call()
    num_arrays = sum(1 for _ in arrays(stage.x.held[-1][0])) if stage.x.held else 1
    times = min(times, max(3, 3000 // max(num_arrays, 1)))
    for _ in range(times):
        stage.x.call(wanted=wanted)


@condition("a result that the caller changes")
def scribbled(stage: Stage) -> None:
    """A result belongs to its caller."""
    x = stage.x
    expected = x.call().value
    _, got = x.held[-1]
    x.held.clear()
    before = [(array, array.copy()) for array in arrays(x.ours)]
    if "expanded" not in x.circumstances.layouts:
        write_into(expected, got)
    for array, old in before:  # views of arguments were written too
        array[...] = old
    x.memory.refill()
    kept = {id(value) for value in objects(x.theirs)}  # may be returned if `reference` does so
    for value in [v for v in objects(got) if isinstance(v, list | dict) and id(v) not in kept]:
        if isinstance(value, list):
            value.append(None)
            value.reverse()
        else:
            value.clear()
    x.call()


# The caller's own objects.


class _Raised(Exception):  # noqa: N818  # a caller's own
    """What an attribute of a caller's object raises."""


@condition(
    "an attribute that raised in the call before", verdict=Verdict.ROBUSTNESS, needs_objects=True
)
def after_an_error(stage: Stage) -> None:
    """A call that a caller's object ends leaves nothing behind."""

    def fails(_: Any) -> Any:
        raise _Raised

    with _behaving(stage, fails) as pair:
        if pair is not None:
            pair.outcome()
    for other in filter(None, (pair, stage.x, stage.y)):
        other.call()


@condition(
    "an attribute that calls the function itself",
    verdict=Verdict.ROBUSTNESS,
    needs_objects=True,
    needs_other=True,
)
def reentered(stage: Stage) -> None:
    """A caller's object may call the library."""
    calls: list[None] = []

    def calls_again(value: Any) -> Any:
        if not calls:
            calls.append(None)
            stage.y.call()
        return value

    with _behaving(stage, calls_again) as pair:
        if pair is None:
            return
        ended: list[BaseException | None] = []
        thread = threading.Thread(target=lambda: ended.append(_raised_by(pair)), daemon=True)
        thread.start()
        thread.join(10)
    if not ended:
        raise Found(Difference("the call", "no end", "an answer", "hangs"))
    if ended[0] is not None:
        raise ended[0]


def _raised_by(pair: Pair) -> BaseException | None:
    try:
        with pair.target.running(checked=pair.circumstances.is_checked):
            pair.call()
    except (Exception, Unsupported) as error:  # noqa: BLE001  # raised again in the test's thread
        return error
    return None


@contextlib.contextmanager
def _behaving(stage: Stage, behaviour: Callable[[Any], Any]) -> Iterator[Pair | None]:
    """Let an attribute of a caller's object run code inside; yield None if there is no object."""
    pair = None
    found = []
    own = OBJECTS["own classes"](stage.story.arguments)
    takes_own = stage.contract.takes_own_objects
    if takes_own and reference_answer(stage.contract, copied(own)).error is None:
        pair = stage.pair(own)
        found = [
            (owner, sorted(names))
            for _, owner in places(pair.theirs)
            if isinstance(owner, Stub)
            and (names := [name for name, part in parts(owner) if not _has_factory(part)])
        ]
    if not found:
        yield None
        return
    owner, names = stage.random.choice(found)
    name = stage.random.choice(names)
    cls, value = type(owner), vars(owner).pop(name)
    owner.__class__ = type(cls.__name__, (cls,), {name: property(lambda _: behaviour(value))})
    try:
        yield pair
    finally:
        owner.__class__ = cls
        vars(owner)[name] = value


def _has_factory(value: Any) -> bool:
    """Return whether a part is made for each call, which an attribute that runs code would hide."""
    return any(isinstance(part, Drawn) for _, part in places(value))


# Threads and modes.


@condition(
    "two threads at the same time", weight=3, needs_other=True, takes_long=True, may_vary=True
)
def in_threads(stage: Stage) -> None:
    """Each thread gets its own answer."""
    if stage.writes:
        in_turn(stage)
        return
    other = stage.story.other or stage.story.arguments
    pairs = [stage.x, stage.y, stage.pair(stage.story.arguments), stage.pair(other)]
    begin = time.monotonic()
    answers = [pair.call() for pair in pairs]
    number = 9 if time.monotonic() - begin < 0.01 else 1  # comparing takes longer than most calls
    found: list[Difference] = []

    def work(pair: Pair, wanted: Outcome) -> None:
        end = time.monotonic() + 0.03
        with stage.target.running(checked=pair.circumstances.is_checked):
            call = pair.prepared()
            while time.monotonic() < end and not found:
                for got in [attempt(call) for _ in range(number)]:
                    if got.error is not None:
                        found.append(Difference("the call", got.error, wanted.value, "raises"))
                        return
                    difference = pair.comparison.difference(wanted.value, got.value)
                    found.extend(filter(None, [difference]))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        works = list(zip(pairs, answers, strict=True))
        threads = [threading.Thread(target=work, args=args) for args in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    if found:
        raise Found(found[0])


@condition("a call in another thread", weight=1, needs_other=True)
def in_another_thread(stage: Stage) -> None:
    """What a thread has set, or kept, is its own."""
    ended: list[BaseException | None] = []
    for pair in (stage.x, stage.y):
        thread = threading.Thread(target=lambda pair=pair: ended.append(_raised_by(pair)))
        thread.start()
        thread.join()
        pair.call()
    for error in filter(None, ended):
        raise error


@condition(
    "modes of torch that change between calls",
    verdict=Verdict.ROBUSTNESS,
    weight=3,
    needs_other=True,
)
def in_changing_modes(stage: Stage) -> None:
    """A mode is that of the call, not of one before."""
    never = stage.target.implementation.adapter.unsupported_modes
    modes = stage.random.sample(sorted(MODES.keys() - never), 3)
    for mode in (*modes, ""):
        stage.x.call(mode)
    stage.y.call(modes[0])
    stage.x.call(modes[1])


@condition("checked mode that changes between calls", weight=1)
def in_changing_checks(stage: Stage) -> None:
    """Checked mode is that of the call."""
    for is_checked in (True, False, True):
        with stage.target.running(checked=is_checked):
            stage.x.call()


# Memory.


@condition("arguments in read-only memory", verdict=Verdict.ROBUSTNESS, weight=1, takes_long=True)
def read_only(stage: Stage) -> None:
    """A write that is put back is a write: another thread may read meanwhile.

    A forked child makes the call, since it dies if it writes.
    """
    if stage.target.device != "cpu":
        return
    pair = stage.pair(stage.story.arguments, is_paged=True)
    pair.memory.protect(is_read_only=True)
    child = os.fork()
    if not child:
        try:
            signal.alarm(10)
            pair.outcome("")
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    pair.memory.protect(is_read_only=False)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGSEGV, signal.SIGBUS}:
        kind = "writes to an argument, and puts it back"
        raise Found(Difference("an argument", "written", "only read", kind))


@condition("memory that a call keeps", verdict=Verdict.ROBUSTNESS, weight=1)
def released(stage: Stage) -> None:
    """Neither arguments nor results stay alive, nor do those of a refused call."""
    valid = stage.story.arguments
    numbers = [path for path, value in places(valid) if type(value) is int]
    refused = [
        put(valid, stage.random.choice(numbers), stage.random.choice((-5, 2**31, "x")))
        for _ in range(4 if numbers and _validates(stage.target) else 0)
    ]
    is_affordable = stage.contract.is_affordable
    refused = [one for one in refused if attempt(is_affordable, one).value is not False]
    memory: list[tuple[str, weakref.ref[Any]]] = []
    for arguments in (valid, *refused):
        pair = stage.pair(arguments)
        result = pair.outcome().value
        memory += [(placed.name, weakref.ref(placed.memory)) for placed in pair.memory.placed]
        memory += [("a result", weakref.ref(a)) for a in arrays(result)]
        callers = [v for v in objects(pair.theirs) if type(v).__weakrefoffset__]
        memory += [("an argument", weakref.ref(v)) for v in callers]
        del pair, result, callers
    for generation in range(3):  # a collection of all takes long
        if any(alive() is not None for _, alive in memory):
            gc.collect(generation)
    kept = [name for name, alive in memory if alive() is not None]
    if kept:
        raise Found(Difference(kept[0], "kept alive", "released", "keeps memory"))


# Interrupts and other kinds of tensors.


@condition("a call that was interrupted", verdict=Verdict.ROBUSTNESS, weight=1, needs_other=True)
def interrupted(stage: Stage) -> None:
    """A signal may end a call anywhere; the next one is right."""
    package = str(File(stage.target.implementation.file).parent)
    counted = Interrupt(package, 0)
    counted.run(lambda: stage.y.outcome(""))
    for _ in range(2):
        stage.y.memory.refill()  # the call before may have filled what is written
        at = stage.random.randint(1, max(counted.seen, 1))
        Interrupt(package, at).run(lambda: stage.y.outcome(""))
    if not stage.writes:
        stage.y.memory.refill()
        stage.y.call()
    stage.x.call()


class Interrupt:
    """Raises KeyboardInterrupt before one line of a package's Python code."""

    def __init__(self, package: str, at: int) -> None:
        self.package, self.at, self.seen = package, at, 0

    def run(self, call: Callable[[], Any]) -> None:
        """Make a call, to its end or to the interrupt."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _event: str, _value: object) -> Any:
        file = frame.f_code.co_filename
        is_kernel = f"{os.sep}kernels{os.sep}" in file
        return self._step if file.startswith(self.package) and not is_kernel else None

    def _step(self, _frame: FrameType, event: str, _value: object) -> Any:
        if event == "line":
            self.seen += 1
            if self.seen == self.at:
                raise KeyboardInterrupt
        return self._step


@condition("another kind of tensor", verdict=Verdict.ROBUSTNESS, weight=2)
def of_another_kind(stage: Stage) -> None:
    """It is refused by TypeError or ValueError, or the answer is right."""
    pair = stage.pair(stage.story.arguments)
    found = [
        (path, value) for path, value in places(pair.theirs) if isinstance(value, torch.Tensor)
    ]
    settable = [(path, value) for path, value in found if _is_settable(pair.theirs, path)]
    if not settable or stage.target.device != "cpu" or not _validates(stage.target):
        return
    path, value = stage.random.choice(settable)
    same = [
        other
        for other, one in places(pair.theirs, most=10**9)
        if one is value and _is_settable(pair.theirs, other)
    ]
    plain = value.detach().resolve_neg()
    expected = pair.accepts([], None).value
    for name, make in TENSORS.items():
        pair.memory.refill()  # the call before may have written to it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of prototypes
            made = attempt(make, plain.clone())
        if made.error is None:  # otherwise torch has no such tensor of this dtype and shape
            for one in same:
                set_part(pair.theirs, one, made.value)
            right, handed_on = expected, plain
            if name == "a tensor of complex numbers":  # a function may take any dtype
                taken = pair.accepts(same, as_numpy(made.value))
                if taken.error is None:
                    right, handed_on = taken.value, made.value
            _check_kind(stage, pair, right, name, path, handed_on)


def _check_kind(
    stage: Stage, pair: Pair, expected: Any, name: str, path: Path, handed_on: torch.Tensor
) -> None:
    given, where = get(pair.theirs, path), f"the call with {name} as {text_of(path)}"
    got = pair.outcome("")
    if got.error is not None:
        if name in TAKEN and handed_on.numel() and stage.target.is_fast:
            raise Found(Difference(where, got.error, expected, "raises"))
        if not isinstance(got.error, TypeError | ValueError):
            words = "TypeError or ValueError"
            raise Found(Difference(where, got.error, words, "wrong exception"))
        return
    value = got.value
    if _is_readable(value) and attempt(pair.comparison.difference, expected, value) == Outcome():
        return
    for at, part in places(value):
        if part is given and path[0] not in stage.contract.written:  # handed on without being read
            value = put(value, at, handed_on)
    if not _is_readable(value):
        return  # a view of memory that is gone
    found = attempt(pair.comparison.difference, expected, value).value
    # A view of what is handed on, such as a block table, may be of that kind.
    is_declared = found and stage.target.excuses(Failure(stage.story, stage.target.name, found))
    if found and found.kind in {"wrong value", "wrong shape", "wrong dtype"} and not is_declared:
        raise Found(Difference(where, got.value, "a refusal, or the right answer", "wrong value"))


def _is_readable(value: Any) -> bool:
    return not any(
        type(array) is torch.Tensor
        and array.layout is torch.strided
        and array.numel()
        and not array.untyped_storage().nbytes()
        for array in arrays(value)
    )
