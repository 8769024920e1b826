"""Instrumentation: which branches it shows, and that the code does the same with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from kvtwin.fuzz.cases.instrumentation import Instrumentation
from tests.tools.fuzz.test_branches import CODE, check_branches

STATEMENTS = """
import functools

def of_if(x):
    if x:
        return 1
    elif x is None:
        return 2
    return 3

def of_for(x):
    for y in x:
        if y > 2:
            break
    return x

def of_while(x):
    while x > 0:
        x -= 2
    return x

def of_match(x):
    match x:
        case 1:
            return "one"
        case str():
            return "text"
    return "other"

def of_except(x):
    try:
        return 1 / x
    except ZeroDivisionError:
        return None

class Thing:
    @property
    def size(self):
        if self:
            return 1

    @classmethod
    def made(cls, x):
        def inner():
            if x:
                return cls
        return inner()

@functools.cache
def cached(x):
    return 1 if x else of_if(x)
"""

COMPILED = """
class Kernel:
    def __init__(self, function):
        self.py_func = function

def compiled(function):
    return Kernel(function)

@compiled
def by_decorator(x):
    if x:
        return 1

def by_call(x):
    if x:
        return 1

kernel = Kernel(by_call)
"""

PLAIN = """
from compiled_toys import kernel

def returned(function):
    return function

@returned
def by_another(x):
    if x:
        def inner():
            if x:
                return 1
        return inner()

def plain(x):
    if x:
        return 1
"""


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Instrumentation]:
    """Return instrumentation for the modules of a temporary folder."""
    source = Instrumentation([tmp_path])
    yield source
    source.close()


def test_it_shows_what_monitoring_shows(
    source: Instrumentation, load: Callable[[str, str], ModuleType]
) -> None:
    """A slice's branches are those that its cases took, in the given folders only."""
    check_branches(source, load("toys", CODE))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda toys: toys.of_if(True), {"5>6"}),
        (lambda toys: toys.of_if(None), {"5>7", "7>8"}),
        (lambda toys: toys.of_if(0), {"5>7", "7>else"}),
        (lambda toys: toys.of_for([]), {"12>else"}),
        (lambda toys: toys.of_for([1]), {"12>13", "13>else", "12>else"}),
        (lambda toys: toys.of_for([1, 3, 5]), {"12>13", "13>else", "13>14"}),
        (lambda toys: toys.of_while(3), {"18>19", "18>else"}),
        (lambda toys: toys.of_match(1), {"23>25"}),
        (lambda toys: toys.of_match("1"), {"23>27"}),
        (lambda toys: toys.of_match(2.5), set()),
        (lambda toys: toys.of_except(0), {"33>34"}),
        (lambda toys: toys.of_except(1), set()),
        (lambda toys: toys.Thing().size, {"39>40"}),
        (lambda toys: toys.Thing.made(1), {"45>46"}),
        (lambda toys: toys.cached(0), {"5>7", "7>else"}),
    ],
)
def test_statements(
    source: Instrumentation,
    load: Callable[[str, str], ModuleType],
    call: Callable[[Any], object],
    expected: set[str],
) -> None:
    """Each block of a statement has a mark, and the answer is the same."""
    toys = load("toys", STATEMENTS)
    answer = call(toys)
    toys.cached.cache_clear()
    source.begin("a property")
    assert repr(answer) == repr(call(toys))
    assert expected == {event[-1] for event in source.end()}


def test_compiled_functions_have_no_marks(
    source: Instrumentation, load: Callable[[str, str], ModuleType]
) -> None:
    """A function that a compiler may read keeps its code, and so do the functions inside it."""
    compiled, plain = load("compiled_toys", COMPILED), load("plain_toys", PLAIN)
    functions = (compiled.by_decorator.py_func, compiled.by_call, plain.by_another, plain.plain)
    before = [function.__code__ for function in functions]
    source.begin("a property")
    after = [function.__code__ for function in functions]
    assert [True, True, True, False] == [new is old for new, old in zip(after, before, strict=True)]


def test_closing_removes_the_marks(
    source: Instrumentation, load: Callable[[str, str], ModuleType]
) -> None:
    """After `close` the functions have their own code again."""
    toys = load("toys", CODE)
    before = toys.sign.__code__
    source.begin("a property")
    assert before is not toys.sign.__code__
    source.close()
    assert before is toys.sign.__code__


def test_modules_that_are_imported_later(
    source: Instrumentation, load: Callable[[str, str], ModuleType]
) -> None:
    """A module that is imported during a slice is instrumented from the next slice on."""
    source.begin("a property")
    toys = load("toys", CODE)
    toys.sign(1)
    assert not source.end()
    source.begin("a property")
    toys.sign(1)
    assert source.end()


def test_a_file_that_was_changed(
    source: Instrumentation, load: Callable[[str, str], ModuleType]
) -> None:
    """Functions whose source is not the imported one, or cannot be read, keep their code."""
    toys, others = load("toys", STATEMENTS), load("others", CODE)
    changed = STATEMENTS.replace("return 3", "return 4")
    Path(str(toys.__file__)).write_text(changed, encoding="utf-8")
    Path(str(others.__file__)).write_text("def sign(number):", encoding="utf-8")
    source.begin("a property")
    assert (3, "positive", [1]) == (toys.of_if(0), others.sign(2), toys.of_for([1]))
    assert {"12>13", "13>else", "12>else"} == {event[-1] for event in source.end()}


def test_what_tools_see_is_the_same(
    source: Instrumentation, load: Callable[[str, str], ModuleType]
) -> None:
    """A tracer visits the same lines, and a code object has a hash."""
    toys = load("toys", STATEMENTS)

    def lines() -> list[int]:
        found = []

        def trace(frame: FrameType, event: str, _: object) -> object:
            if event == "line":
                found.append(frame.f_lineno)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            toys.of_if(0)
            toys.of_for([1, 3])
            toys.of_while(3)
            toys.Thing.made(1)
        finally:
            sys.settrace(before)
        return found

    expected = lines()
    source.begin("a property")
    assert expected == lines()
    assert isinstance(hash(toys.of_if.__code__), int)
