"""Loops that are compiled when first called, not when `fast` is imported."""

import types
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar

import numpy as np

from fast._checks import ON_SWITCH, is_checked

P = ParamSpec("P")
R = TypeVar("R")

Int32s: TypeAlias = Any
"""An int32 array in a compiled loop or a kernel. Its elements are the compiler's ints, not NumPy's
or Python's: no checker of types knows them."""

Int64s: TypeAlias = Any
"""An int64 array in a compiled loop or a kernel."""


Int: TypeAlias = Any
"""An integer in a compiled loop, where its arithmetic gives the compiler's ints."""


def int32s_at(address: int, length: int) -> Int32s:
    """Return the int32 array at an address: a name for compiled loops, in which numba's own stands.

    A loop that is handed an address in place of an array is called 0.7 us sooner: that is what
    torch takes to make an array of a tensor. Who calls it has judged the tensor, and holds it.

    Raises:
        TypeError: whoever calls it is not compiled.
    """
    raise TypeError(f"{length} entries at {address} are for compiled loops only")


def int64s_at(address: int, length: int) -> Int64s:
    """Return the int64 array at an address, as `int32s_at` does.

    Raises:
        TypeError: whoever calls it is not compiled.
    """
    raise TypeError(f"{length} entries at {address} are for compiled loops only")


def prefetch(array: Any, index: Int) -> None:  # noqa: ANN401  (an array)
    """Have an element of an array brought near that will be read soon: a name for compiled loops.

    No bounds are asked: what is no element is passed over.

    Raises:
        TypeError: whoever calls it is not compiled.
    """
    raise TypeError(f"element {index} of {type(array).__name__} is for compiled loops only")


@cache
def _for_numba_only() -> dict[str, Any]:
    """Return what numba compiles for `int32s_at`, `int64s_at` and `prefetch`."""
    from llvmlite import ir  # type: ignore[import-untyped]  # noqa: PLC0415
    from numba import carray, types  # type: ignore[attr-defined]  # noqa: PLC0415  # carray is there
    from numba.core import cgutils  # noqa: PLC0415
    from numba.extending import intrinsic, register_jitable  # noqa: PLC0415

    def typed(_context: Any, _address: Any) -> Any:  # noqa: ANN401  (numba is untyped)
        def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:  # noqa: ANN401
            return builder.inttoptr(args[0], cgutils.voidptr_t)

        return types.voidptr(types.int64), lower

    as_pointer: Any = intrinsic(typed)

    @register_jitable
    def int32s(address: int, length: int) -> Int32s:
        return carray(as_pointer(address), length, np.int32)

    @register_jitable
    def int64s(address: int, length: int) -> Int64s:
        return carray(as_pointer(address), length, np.int64)

    def typed_prefetch(_context: Any, array: Any, index: Any) -> Any:  # noqa: ANN401
        def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ANN401
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            element = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
            number = ir.IntType(32)
            kinds = [cgutils.voidptr_t, number, number, number]
            called = ir.FunctionType(ir.VoidType(), kinds)
            function = builder.module.declare_intrinsic("llvm.prefetch", kinds[:1], called)
            # To read, into every cache, as data.
            builder.call(function, [element, *(number(n) for n in (0, 3, 1))])
            return context.get_dummy_value()

        return types.void(array, index), lower

    return {"int32s_at": int32s, "int64s_at": int64s, "prefetch": intrinsic(typed_prefetch)}


class Inlined(Generic[P, R]):
    """A part of compiled loops: a function that loops of its own module call.

    Attributes:
        py_func: the function as it is written.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.py_func = function
        self._for_numba: dict[str, Callable[P, R]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function as Python; loops that call it are compiled."""
        return self.py_func(*args, **kwargs)

    def for_numba(self, suffix: str) -> Callable[P, R]:
        """Return the function as compiled loops call it whose names have this suffix.

        Numba hands no options down: what a loop with checked bounds calls is told of them again.
        """
        if suffix not in self._for_numba:
            from numba.extending import register_jitable  # noqa: PLC0415  (numba takes 0.3 s)

            function = _bind(self.py_func, suffix)
            self._for_numba[suffix] = register_jitable(boundscheck=bool(suffix))(function)
        return self._for_numba[suffix]


def inlined(function: Callable[P, R]) -> Inlined[P, R]:
    """Declare a part of compiled loops of the same module.

    Numba's cache on disk looks at the file of a loop alone: a part that stands in another would be
    the old one after a change.
    """
    return Inlined(function)


class Compiled(Generic[P, R]):
    """A Python function that numba compiles for one signature when it is first called.

    In checked mode a second machine code runs, which raises `IndexError` where the first would
    write past the end of an array: a mistake in a loop is an exception there, not a crash.

    Attributes:
        py_func: the function as it is written.
        signature: numba's signature, as text.
        run: the compiled function, called by position. In checked mode numba refuses arguments of
            another type or layout than the signature's. Otherwise nobody asks, since asking takes
            0.3 us of 0.6 (and a method around it, which would not have to be exchanged, 0.3 more):
            whoever calls it owes it plain arrays of just these dtypes, numbers of dimensions and
            layouts, and ints that were judged.
    """

    def __init__(self, function: Callable[P, R], signature: str) -> None:
        self.py_func = function
        self.signature = signature
        self.run: Callable[P, R] = self._compile_and_run
        self._machine_code: Callable[P, R] | None = None
        self._bounds_checked: Callable[P, R] | None = None

    def choose(self) -> None:
        """Let `run` be the machine code of the mode that is on, or compile it first.

        Where another thread switches meanwhile, whoever is last to set `run` sets what it shall be.
        """
        while True:
            checked = is_checked()
            self.run = (
                self._bounds_checked if checked else self._machine_code
            ) or self._compile_and_run
            if is_checked() is checked:
                return

    def warm_up(self) -> None:
        """Compile the function now, if it is not yet, but for checked mode."""
        if self._machine_code is None:
            self._machine_code = _entry_point(self._compile())
        self.choose()

    def _compile_and_run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not is_checked():
            self.warm_up()
        elif self._bounds_checked is None:
            self._bounds_checked = self._compile("_bounds_checked", boundscheck=True)
        self.choose()
        return self.run(*args, **kwargs)

    def _compile(self, suffix: str = "", **options: bool) -> Callable[P, R]:
        """Compile the function, or load it from numba's cache on disk."""
        function = _bind(self.py_func, suffix)
        from numba import njit  # noqa: PLC0415  (numba takes 0.3 s to import)

        # One explicit signature for each function: processes that share the cache agree on it.
        settings: dict[str, Any] = {"error_model": "numpy", "nogil": True, **options}
        try:
            return njit(self.signature, cache=True, **settings)(function)
        except RuntimeError as error:  # no folder of the cache can be written to
            if "cannot cache" not in str(error):
                raise
            return njit(self.signature, **settings)(function)


def _entry_point(dispatcher: Any) -> Any:  # noqa: ANN401  (numba is untyped)
    """Return the C function that numba's dispatcher calls when it has looked at the arguments.

    It is what the dispatcher has for its one signature; itself, where a numba has it no more.
    """
    try:
        (overload,) = dispatcher.overloads.values()
    except (AttributeError, ValueError):
        return dispatcher
    return getattr(overload, "entry_point", dispatcher)


def _bind(function: Callable[P, R], suffix: str) -> Callable[P, R]:
    """Return a copy with numba's `int32s_at` and the like, and what is inlined, as globals.

    The name's suffix is for numba's cache, which knows functions by name, not by option.
    """
    whole: Any = function
    names = {**whole.__globals__, **_for_numba_only()}
    for name in whole.__code__.co_names:
        part = names.get(name)
        if isinstance(part, Inlined):
            names[name] = part.for_numba(suffix)
    copy = types.FunctionType(whole.__code__, names, f"{whole.__name__}{suffix}")
    copy.__qualname__ = copy.__name__
    copy.__module__ = whole.__module__
    return copy


COMPILED: Final[list[Compiled[Any, Any]]] = []
"""Every compiled loop of the package."""


def compiled(signature: str) -> Callable[[Callable[P, R]], Compiled[P, R]]:
    """Declare a loop that is compiled for one signature when it is first called.

    Array arguments that a caller may pass strided are declared `[:]` (any layout), scratch `[::1]`.
    The body may call nothing but NumPy, builtins, `int32s_at` and the like, and what its own module
    has `inlined`, so that it can be cached on its own.

    Args:
        signature: numba's signature, such as `"int64(int32[:], int64)"`.
    """

    def declare(function: Callable[P, R]) -> Compiled[P, R]:
        loop = Compiled(function, signature)
        COMPILED.append(loop)
        return loop

    return declare


def compile_loops() -> None:
    """Compile every loop that is not yet."""
    for loop in COMPILED:
        loop.warm_up()


def _choose_codes() -> None:
    for loop in COMPILED:
        loop.choose()


ON_SWITCH.append(_choose_codes)
