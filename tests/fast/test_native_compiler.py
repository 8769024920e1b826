import shutil
import signal
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fast
from fast._native.compiler import (
    _CACHE_WARNINGS,
    COMPILED,
    Compiled,
    Int,
    Int64s,
    UncachedWarning,
    _entry_point,
    compiled,
    inlined,
    int32s_at,
    int64s_at,
    prefetch,
)


@pytest.fixture(autouse=True)
def _loops_of_tests_leave() -> Iterator[None]:
    before = [*COMPILED]
    yield
    COMPILED[:] = before


@pytest.fixture
def _new_warnings() -> Iterator[None]:
    """Clear the set of folders with a warning for a test, and restore it."""
    before = {*_CACHE_WARNINGS}
    _CACHE_WARNINGS.clear()
    yield
    _CACHE_WARNINGS.clear()
    _CACHE_WARNINGS.update(before)


def test_warmup_compiles_every_loop() -> None:
    fast.warmup()
    codes = [loop._machine_code for loop in COMPILED]
    assert len(codes) >= 10
    for loop in COMPILED:
        assert isinstance(loop._machine_code, types.BuiltinFunctionType), loop.py_func.__name__
        dispatcher = loop._compile()
        assert len(dispatcher.signatures) == 1, loop.py_func.__name__
        assert not dispatcher._can_compile, loop.py_func.__name__
    fast.warmup()
    assert codes == [loop._machine_code for loop in COMPILED]


def test_runs_by_a_dispatcher_that_is_made_otherwise() -> None:
    def dispatcher(x: int) -> int:
        return x

    assert _entry_point(dispatcher) is dispatcher
    dispatcher.overloads = {}  # type: ignore[attr-defined]
    assert _entry_point(dispatcher) is dispatcher
    dispatcher.overloads = {(): object()}  # type: ignore[attr-defined]
    assert _entry_point(dispatcher) is dispatcher


def test_checked_mode_has_its_own_code() -> None:
    loop: Compiled[..., int] = Compiled(lambda x, i: x[i], "int64(int64[::1], int64)")
    ones = np.ones(4, dtype=np.int64)
    assert loop.run(ones, 3) == 1
    code = loop._machine_code
    with fast.checks(True):
        assert loop.run(ones, 3) == 1
        with pytest.raises(IndexError):
            loop.run(ones, 4)
        with fast.checks(False):
            assert loop.run(ones, 3) == 1
        with pytest.raises(IndexError):
            loop.run(ones, 4)
    assert loop._machine_code is code


@pytest.mark.usefixtures("_new_warnings")
def test_works_where_nothing_can_be_cached() -> None:
    code = compile("def double(x):\n    return 2 * x\n", "<nowhere>", "exec")
    function = types.FunctionType(code.co_consts[0], {}, "double")
    with pytest.warns(UncachedWarning, match="cannot be used"):
        assert Compiled(function, "int64(int64)").run(4) == 8


TRIPLE = "def triple(x):\n    return 3 * x\n"


def load(path: Path) -> Compiled[[int], int]:
    """Declare the loop of a module, as a new process would."""
    names: dict[str, object] = {"__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec"), names)  # noqa: S102  # our own
    function = names["triple"]
    assert isinstance(function, types.FunctionType)
    return Compiled(function, "int64(int64)")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "one byte": lambda written: written[:1],
    "half": lambda written: written[: len(written) // 2],
    "all but the last byte": lambda written: written[:-1],
    "garbage": lambda written: b"\x80\x05garbage." * (len(written) // 10),
    "one other byte": lambda written: (
        b"%b%c%b" % (written[:-99], ~written[-99] % 256, written[-98:])
    ),
}


@pytest.mark.usefixtures("_new_warnings")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_cache(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / "loops.py"
    path.write_text(TRIPLE)
    assert load(path).run(2) == 6
    (entry,) = (tmp_path / "__pycache__").glob(f"*.{suffix}")
    entry.write_bytes(DAMAGES[damage](entry.read_bytes()))
    hits = []
    for _ in range(2):
        loop: Any = load(path)
        hits.append(sum(loop._compile().stats.cache_hits.values()))
        assert loop.run(2) == 6
    assert hits == [0, 1]


class TooSlowError(Exception):
    """What a watchdog's signal handler raises."""


@pytest.mark.parametrize(
    ("interrupted", "error"),
    [
        ("caching.IndexDataCacheFile._load_index", TimeoutError()),
        ("caching.IndexDataCacheFile._save_data", TimeoutError()),
        ("caching.FunctionCache.__init__", RuntimeError("too slow")),
        ("compiler.compile_extra", TooSlowError()),
    ],
)
@pytest.mark.filterwarnings("error")
def test_exceptions_of_signal_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str, error: Exception
) -> None:
    def handle(*_: object) -> None:
        raise error

    def interrupt(*_args: object, **_options: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    path = tmp_path / "loops.py"
    path.write_text(TRIPLE)
    assert load(path).run(2) == 6
    if interrupted != "caching.IndexDataCacheFile._load_index":
        shutil.rmtree(tmp_path / "__pycache__")
    loop = load(path)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(f"numba.core.{interrupted}", interrupt)
            with pytest.raises(type(error)) as caught:
                loop.run(2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught.value is error
    assert loop.run(2) == 6


@pytest.mark.usefixtures("_new_warnings")
def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core.caching import IndexDataCacheFile  # noqa: PLC0415  (numba takes 0.3 s)

    def save(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "save", save)
    path = tmp_path / "loops.py"
    path.write_text(TRIPLE)
    with pytest.warns(UncachedWarning, match="No space left on device"):
        assert load(path).run(2) == 6


def test_compile_errors_are_not_hidden() -> None:
    loop: Compiled[[int], int] = Compiled(lambda x: x.nothing, "int64(int64)")
    with pytest.raises(Exception, match="nothing"):
        loop.run(1)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    loop: Compiled[[int], int] = Compiled(lambda x: x, "int64(int64)")
    with pytest.raises(ValueError, match="NUMBA_DISABLE_JIT is set, but the loops of fast"):
        loop.run(1)


@inlined
def _write_at(array: Int64s, at: Int) -> None:
    array[at] = 1


@compiled("void(int64[::1], int64)")
def _write_by_a_part(array: Int64s, at: int) -> None:
    _write_at(array, at)


def test_parts_are_checked_too() -> None:
    memory = np.zeros(8, dtype=np.int64)
    with fast.checks(True), pytest.raises(IndexError):
        _write_by_a_part(memory[:4], 5)
    assert not memory.any()
    _write_by_a_part(memory, 5)
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
    memory = np.arange(8)
    with fast.checks(checked):
        assert _read_ahead(memory, at) == 28
    assert memory.tolist() == [*range(8)]


def test_what_only_compiled_loops_call() -> None:
    for call in (int32s_at, int64s_at):
        with pytest.raises(TypeError, match="8 entries at 64 are for compiled loops only"):
            call(64, 8)
    with pytest.raises(TypeError, match="element 3 of list is for compiled loops only"):
        prefetch([], 3)
