import types
from collections.abc import Iterator

import numpy as np
import pytest

import fast
from fast import _compiled
from fast._compiled import (
    COMPILED,
    Compiled,
    Int,
    Int64s,
    _entry_point,
    compiled,
    inlined,
    int32s_at,
    int64s_at,
    prefetch,
)


@pytest.fixture(autouse=True)
def _loops_of_tests_leave() -> Iterator[None]:
    """What a test declares is not there for the next."""
    before = [*COMPILED]
    yield
    COMPILED[:] = before


def test_warmup_compiles_every_loop() -> None:
    """After `warmup` no loop is left to compile, and another call costs nothing."""
    fast.warmup()
    codes = [loop._machine_code for loop in COMPILED]
    assert len(codes) >= 10
    assert None not in codes
    fast.warmup()
    assert codes == [loop._machine_code for loop in COMPILED]


def test_each_loop_has_one_signature() -> None:
    """Numba adds no second signature, so that processes can share the cache on disk."""
    fast.warmup()
    for loop in COMPILED:
        dispatcher = loop._compile()
        assert len(dispatcher.signatures) == 1, loop.py_func.__name__
        assert not dispatcher._can_compile, loop.py_func.__name__


def test_compiles_when_first_called() -> None:
    """A declared loop is compiled by its first call."""
    loop: Compiled[[int], int] = Compiled(lambda x: x + 1, "int64(int64)")
    assert loop._machine_code is None
    assert loop.run(3) == 4
    assert loop._machine_code is not None
    assert loop._bounds_checked is None


def test_nothing_stands_before_the_machine_code() -> None:
    """What runs is the C function that this numba's dispatcher would call: 0.3 us sooner."""
    fast.warmup()
    for loop in COMPILED:
        assert loop.run is loop._machine_code
        assert isinstance(loop.run, types.BuiltinFunctionType), loop.py_func.__name__


def test_runs_by_a_dispatcher_that_is_made_otherwise() -> None:
    """A numba whose dispatcher has no C function to be found is called itself."""

    def dispatcher(x: int) -> int:
        return x

    assert _entry_point(dispatcher) is dispatcher
    dispatcher.overloads = {}  # type: ignore[attr-defined]
    assert _entry_point(dispatcher) is dispatcher
    dispatcher.overloads = {(): object()}  # type: ignore[attr-defined]
    assert _entry_point(dispatcher) is dispatcher


def test_checked_mode_exchanges_the_code() -> None:
    """A loop runs the code of the mode, which numba judges the arguments of; then its own again."""
    loop = compiled("int64(int64[::1])")(lambda x: x[0])
    ones = np.ones(4, dtype=np.int64)
    assert loop.run(ones) == 1
    assert loop.run(ones[::2]) == 1  # nobody asks
    with fast.checks(True):
        assert loop.run(ones) == 1
        checked = loop.run
        assert checked is loop._bounds_checked
        with pytest.raises(TypeError, match="No matching definition"):
            loop.run(ones[::2])
        with fast.checks(False):
            assert loop.run is loop._machine_code
        assert loop.run is checked
    assert loop.run is loop._machine_code


def test_a_switch_while_a_thread_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was asked what to run before a switch does not undo it."""
    loop = compiled("int64(int64)")(lambda x: x + 1)
    loop.warm_up()
    answers = [False, True]  # the other thread switches between the two

    def is_checked() -> bool:
        return answers.pop(0) if answers else True

    monkeypatch.setattr(_compiled, "is_checked", is_checked)
    loop.choose()
    assert loop.run != loop._machine_code


def test_first_call_in_checked_mode() -> None:
    """It compiles what checked mode runs, and no more."""
    loop = compiled("int64(int64)")(lambda x: x + 1)
    with fast.checks(True):
        assert loop.run(3) == 4
        assert loop._machine_code is None
    assert loop.run(3) == 4
    assert loop._machine_code is not None


def test_declaring_registers() -> None:
    """What `compiled` declares is what `warmup` compiles."""
    before = len(COMPILED)
    loop = compiled("int64(int64)")(lambda x: x)
    assert COMPILED[before:] == [loop]


def test_works_where_nothing_can_be_cached() -> None:
    """A function whose file numba cannot find is compiled without its cache."""
    code = compile("def double(x):\n    return 2 * x\n", "<nowhere>", "exec")
    function = types.FunctionType(code.co_consts[0], {}, "double")
    assert Compiled(function, "int64(int64)").run(4) == 8


def test_other_compile_errors_are_not_hidden() -> None:
    """Only the missing cache is passed over."""
    loop: Compiled[[int], int] = Compiled(lambda x: x.nothing, "int64(int64)")
    with pytest.raises(Exception, match="nothing"):
        loop.run(1)


@inlined
def _write_at(array: Int64s, at: Int) -> None:
    array[at] = 1


@compiled("void(int64[::1], int64)")
def _write_by_a_part(array: Int64s, at: int) -> None:
    _write_at(array, at)


def test_parts_are_checked_too() -> None:
    """In checked mode what a loop calls raises where it would write past an array, as the loop."""
    memory = np.zeros(8, dtype=np.int64)
    with fast.checks(True), pytest.raises(IndexError):
        _write_by_a_part.run(memory[:4], 5)
    assert not memory.any()
    _write_by_a_part.run(memory, 5)
    assert [5] == memory.nonzero()[0].tolist()
    _write_at(memory, 6)
    assert [5, 6] == memory.nonzero()[0].tolist()


@compiled("int64(int64[::1], int64)")
def _read_ahead(array: Int64s, at: int) -> int:
    prefetch(array, at)
    total: int = array.sum()
    return total


@pytest.mark.parametrize("at", [0, 7, 8, -1, 2**40, -(2**62)])
@pytest.mark.parametrize("checked", [False, True])
def test_what_is_fetched_ahead_may_be_nowhere(at: int, checked: bool) -> None:
    """No element that a loop has fetched is asked for its bounds, and none changes."""
    memory = np.arange(8)
    with fast.checks(checked):
        assert _read_ahead.run(memory, at) == 28
    assert memory.tolist() == [*range(8)]


def test_what_only_compiled_loops_call() -> None:
    """Python cannot reach memory by its address, nor fetch it."""
    for call in (int32s_at, int64s_at):
        with pytest.raises(TypeError, match="8 entries at 64 are for compiled loops only"):
            call(64, 8)
    with pytest.raises(TypeError, match="element 3 of list is for compiled loops only"):
        prefetch([], 3)
