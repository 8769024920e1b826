"""The KV cache layout, the order of tokens and heads inside a block: setting and reading it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

from conformance.contracts.check import FixedCheck, property_check
from conformance.contracts.contract import Contract
from conformance.coverage.presets import MINIMAL
from conformance.coverage.size_axes import Axis
from conformance.execution.actors import actors
from conformance.generation.profiles import Kind
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.strategies.kv_layout import (
    LAYOUTS,
    OVERRIDE,
    TEXT_LENGTH,
    VARIABLE,
    Step,
    histories,
    is_valid_calls,
)
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call
from conformance.values.comparison import first_difference

test_is_valid_kv_cache_layout = Contract(
    "is_valid_kv_cache_layout",
    is_valid_calls,
    {
        "a layout": lambda call: call.source in LAYOUTS,
        "None": lambda call: call["value"] is None,
        "another text": lambda call: isinstance(call["value"], str) and call.source not in LAYOUTS,
        "an array": lambda call: hasattr(call["value"], "dtype"),
        "what has no hash": lambda call: isinstance(call["value"], list | dict | set),
    },
    axes={TEXT_LENGTH: Axis(lambda call: len(call["value"]), 65_537)},
)


@contextlib.contextmanager
def _as_found(target: Target) -> Iterator[Any]:
    """Clear the environment variable and the override inside, and restore them on exit."""
    module = _holder(target)
    set_layout = target.lookup("set_kv_cache_layout")
    is_seen = module is not None
    patch = mock.patch.object(module, OVERRIDE, None) if is_seen else contextlib.nullcontext()
    with mock.patch.dict(os.environ), patch:
        os.environ.pop(VARIABLE, None)
        set_layout(None)
        yield module
        set_layout(None)


def _holder(target: Target) -> Any:
    """Return the module that holds the override under kvtwin's name for it, or None.

    It may be in the implementation's `kv_layout`, or where one of the two functions is defined.
    """
    functions = [target.lookup(name) for name in ("get_kv_cache_layout", "set_kv_cache_layout")]
    modules = [sys.modules.get(function.__module__) for function in functions]
    candidates = (getattr(target.implementation.module, "kv_layout", None), *modules)
    return next((module for module in candidates if hasattr(module, OVERRIDE)), None)


def _possible(target: Target, history: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps that a target supports: only public ones, if it lacks our attribute."""
    has_attribute = _holder(target) is not None
    return tuple(step for step in history if has_attribute or step.what != "attribute")


class _Error(str):
    """The answer of a step that raised an exception, for a report."""

    __slots__ = ()


def _check_history(
    target: Target,
    function: str,
    history: tuple[Step, ...],
    expected: list[object],
    got: list[object],
    where: str = "",
) -> None:
    """Raise `Mismatch` at the first step of a history whose answer is not the expected one.

    Args:
        target: The implementation that was called.
        function: The function that the check is about.
        history: The steps.
        expected: The answer to each step, or the answer and the override after each step.
        got: The target's answers.
        where: The thread of the reads, as text after each step, if not this one.
    """
    __tracebackhide__ = True
    if first_difference(expected, got) is None:
        return
    names = [f"[{i}] {step!r}{where}" for i, step in enumerate(history)]
    if len(expected) > len(history):
        names = [text for i, name in enumerate(names) for text in (name, f"{OVERRIDE} after [{i}]")]
    difference = first_difference(expected, got, tuple(names))
    assert difference is not None
    step = names.index(difference.path) * len(history) // len(names)
    raise Mismatch(Call(function, {"history": history[: step + 1]}), target.name, difference)


def _play(
    target: Target,
    history: tuple[Step, ...],
    *,
    shows_override: bool = False,
    reading: Callable[[Callable[[], object]], object] = lambda read: read(),
) -> list[object]:
    """Return the answer to each step.

    Args:
        target: The implementation to call.
        history: The steps.
        shows_override: Whether the override after each step is returned, too.
        reading: Calls the function that reads, possibly in another thread.
    """
    seen: list[object] = []
    with _as_found(target) as module:
        for step in history:
            try:
                do = functools.partial(_do, target, module, step)
                seen.append(reading(do) if step.what == "get" else do())
            except Exception as error:  # noqa: BLE001  # its class is the answer
                named = [name for name in LAYOUTS if name in str(error)]
                seen.append(_Error(f"a {type(error).__name__} naming {', '.join(named) or 'none'}"))
            if shows_override:
                override = getattr(module, OVERRIDE)
                seen.append(override if isinstance(override, str | None) else type(override))
    return seen


PUBLIC_STEPS: Final = (
    *(Step("set", layout) for layout in (*LAYOUTS, None)),
    *(Step("environment", layout) for layout in (*LAYOUTS, None)),
)
"""Steps by public names, each of which succeeds."""

REFUSED_STEPS: Final = (Step("set", 0), Step("environment", 0))
"""A set that is refused, and a value of the environment that each read refuses."""


def _public_histories() -> Iterator[tuple[Step, ...]]:
    """Yield all short histories, shorter ones first, and a long one; all by public names."""
    for length in (1, 2, 3):
        yield from itertools.product(PUBLIC_STEPS + REFUSED_STEPS, repeat=length)
    yield from itertools.product(PUBLIC_STEPS, repeat=4)
    yield tuple(random.Random(0).choices(PUBLIC_STEPS + REFUSED_STEPS, k=3000))  # noqa: S311  # no secret


def _play_public_histories(target: Target, _: object) -> None:
    """Check each history, and the short ones with reads in another thread."""
    __tracebackhide__ = True
    with actors(1) as (actor,):
        for history in _public_histories():
            steps = tuple(part for step in history for part in (step, Step("get")))
            expected = _play(REFERENCE, steps)
            got = _play(target, steps)
            _check_history(target, "get_kv_cache_layout", steps, expected, got)
            if len(history) < 3:
                got = _play(target, steps, reading=actor.do)
                where = " in another thread"
                _check_history(target, "get_kv_cache_layout", steps, expected, got, where)


test_every_short_history = FixedCheck(
    "get_kv_cache_layout",
    Kind.LAW,
    lambda _preset: st.just(None),
    _play_public_histories,
    "Histories by public names are answered as reference answers them, in any thread.",
    presets=(MINIMAL,),
)


def _do(target: Target, module: Any, step: Step) -> object:
    """Do one step."""
    if step.what == "get":
        return target.lookup("get_kv_cache_layout")()
    if step.what == "set":
        return target.lookup("set_kv_cache_layout")(step.made())
    if step.what == "attribute":
        setattr(module, OVERRIDE, step.made())
    elif step.value is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = step.made()
    return None


def _after(history: tuple[Step, ...], first: Step) -> bool:
    """Return whether a read directly follows a step."""
    pairs = itertools.pairwise(history)
    return any(a == first and b.what == "get" for a, b in pairs)


def _is_strange(history: tuple[Step, ...], what: str) -> bool:
    return any(step.what == what and isinstance(step.value, int) for step in history)


@property_check(
    "get_kv_cache_layout",
    histories,
    goals={
        "nothing is set": lambda history: history[0].what == "get",
        "HND from the environment": lambda history: _after(history, Step("environment", "HND")),
        "HND is set": lambda history: _after(history, Step("set", "HND")),
        "HND by the attribute": lambda history: _after(history, Step("attribute", "HND")),
        "set over the environment": lambda history: (
            Step("environment", "NHD") in history
            and Step("set", "HND") in history[history.index(Step("environment", "NHD")) :]
        ),
        "removed again": lambda history: (
            Step("set", "HND") in history
            and _after(history[history.index(Step("set", "HND")) :], Step("set", None))
        ),
        "the environment changes between two reads": lambda history: (
            sum(step.what == "environment" for step in history) > 1 and history[0].what == "get"
        ),
        "the environment holds the empty text": lambda history: _after(
            history, Step("environment", 0)
        ),
        "the environment holds another text": lambda history: _is_strange(history, "environment"),
        "the attribute holds anything": lambda history: _is_strange(history, "attribute"),
    },
)
def test_the_layout_in_force(target: Target, history: tuple[Step, ...]) -> None:
    """Each read returns the layout in force, or an error with both names, as reference does."""
    history = _possible(target, history)
    shows = _holder(target) is not None
    expected, got = (_play(one, history, shows_override=shows) for one in (REFERENCE, target))
    _check_history(target, "get_kv_cache_layout", history, expected, got)


@property_check(
    "set_kv_cache_layout",
    histories,
    goals={
        "anything is set": lambda history: _is_strange(history, "set"),
        "None is set": lambda history: Step("set", None) in history,
    },
)
def test_what_is_set_is_read(target: Target, history: tuple[Step, ...]) -> None:
    """A read returns the layout that was set last; a refused set changes nothing."""
    set_layout = target.lookup("set_kv_cache_layout")
    done: list[Step] = []

    def check(step: Step, expected: object) -> None:
        """Do a step, and check its answer."""
        done.append(step)
        try:
            is_set = step.what == "set"
            got = set_layout(cache_layout=step.made()) if is_set else _do(target, module, step)
        except Exception as error:  # noqa: BLE001  # its class is the answer
            got = _Error(f"a {type(error).__name__}")
        answers = [None] * (len(done) - 1)
        _check_history(
            target, "set_kv_cache_layout", (*done,), [*answers, expected], [*answers, got]
        )

    with _as_found(target) as module:
        for step in _possible(target, history):
            before = getattr(module, OVERRIDE, None)
            if step.what != "set":
                done.append(step)
                with contextlib.suppress(ValueError):
                    _do(target, module, step)
            elif step.value in LAYOUTS:
                check(step, None)
                check(Step("get"), step.value)
                assert getattr(module, OVERRIDE, step.value) == step.value
            elif step.value is None:
                check(step, None)
                done.append(Step("environment", "HND"))
                _do(target, module, done[-1])
                check(Step("get"), "HND")
            else:
                check(step, _Error("a ValueError"))
                assert getattr(module, OVERRIDE, None) is before


@property_check("is_valid_kv_cache_layout", is_valid_calls)
def test_what_is_valid_can_be_set(target: Target, call: Call) -> None:
    """A layout is valid exactly when it can be set and read; the answer is Python's bool."""
    answer = target.lookup("is_valid_kv_cache_layout")(call["value"])
    assert type(answer) is bool
    if call["value"] is None:
        return
    with _as_found(target):
        try:
            target.lookup("set_kv_cache_layout")(call["value"])
        except ValueError:
            can_be_set = False
        else:
            can_be_set = call["value"] == target.lookup("get_kv_cache_layout")()
    assert answer == can_be_set
