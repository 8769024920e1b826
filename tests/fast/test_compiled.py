import types

import numpy as np
import pytest

import fast
from fast._compiled import COMPILED, Compiled, Int, Int64s, compiled, inlined


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
        assert len(loop._machine_code.signatures) == 1, loop.py_func.__name__
        assert not loop._machine_code._can_compile, loop.py_func.__name__


def test_compiles_when_first_called() -> None:
    """A declared loop is compiled by its first call."""
    loop: Compiled[[int], int] = Compiled(lambda x: x + 1, "int64(int64)")
    assert loop._machine_code is None
    assert loop(3) == 4
    assert loop._machine_code is not None


def test_declaring_registers() -> None:
    """What `compiled` declares is what `warmup` compiles."""
    before = len(COMPILED)
    loop = compiled("int64(int64)")(lambda x: x)
    assert COMPILED[before:] == [loop]
    COMPILED.remove(loop)


def test_works_where_nothing_can_be_cached() -> None:
    """A function whose file numba cannot find is compiled without its cache."""
    code = compile("def double(x):\n    return 2 * x\n", "<nowhere>", "exec")
    function = types.FunctionType(code.co_consts[0], {}, "double")
    assert Compiled(function, "int64(int64)")(4) == 8


def test_other_compile_errors_are_not_hidden() -> None:
    """Only the missing cache is passed over."""
    loop: Compiled[[int], int] = Compiled(lambda x: x.nothing, "int64(int64)")
    with pytest.raises(Exception, match="nothing"):
        loop(1)


@inlined
def _write_at(array: Int64s, at: Int) -> None:
    array[at] = 1


@compiled("void(int64[::1], int64)")
def _write_by_a_part(array: Int64s, at: int) -> None:
    _write_at(array, at)


def test_parts_are_checked_too() -> None:
    """In checked mode what a loop calls raises where it would write past an array, as the loop."""
    COMPILED.remove(_write_by_a_part)
    memory = np.zeros(8, dtype=np.int64)
    with fast.checks(True), pytest.raises(IndexError):
        _write_by_a_part(memory[:4], 5)
    assert not memory.any()
    _write_by_a_part(memory, 5)
    assert [5] == memory.nonzero()[0].tolist()
    _write_at(memory, 6)
    assert [5, 6] == memory.nonzero()[0].tolist()
